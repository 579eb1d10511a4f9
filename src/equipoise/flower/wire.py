"""The content of messages between server and sites: tensors by name in Flower's records.

Nothing is pickled: Flower writes arrays in NumPy's own format, and `read_array` reads no other, nor arrays of objects.
An array that declares more numbers than were sent is refused before memory is asked for.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from equipoise.types import Broadcast, EquipoiseError, Layout, Memory, PerClient, Replies, Server, Shared, Tensors

FACTS = "equipoise"  # the name of the record of plain values
ERROR = "error"  # the plain value by which a site says what went wrong, in place of an answer
LONGEST = 2_000  # characters of such a text; the rest is cut off


def pack_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as a record of Flower's."""
    return ArrayRecord({name: Array(value.detach().cpu().contiguous().numpy()) for name, value in tensors.items()})


def unpack_arrays(content: RecordDict, name: str) -> Tensors:
    """The named tensors of a record, copied into memory of their own."""
    record = content.array_records.get(name)
    if record is None:
        raise EquipoiseError(
            f"The message has no arrays `{name}`. Do server and sites have the same version of Equipoise?"
        )
    return {key: torch.from_numpy(read_array(value, key)) for key, value in record.items()}


def read_array(array: Array, name: str) -> NDArray[np.generic]:
    """The numbers of an array, in memory of their own. What its header declares must be what was sent, byte for byte."""
    content = io.BytesIO(array.data)
    try:
        version = npy.read_magic(content)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, by_column, kind = read_header(content)
    except Exception as error:  # whatever foreign bytes lead to
        raise EquipoiseError(f"Array `{clean(name)}` is not in NumPy's format ({type(error).__name__}).") from None
    if kind.kind not in "fiub":
        raise EquipoiseError(f"Array `{clean(name)}` is {clean(str(kind))}, not numbers.")
    sent, declared = len(array.data) - content.tell(), math.prod(shape) * kind.itemsize
    if min(shape, default=0) < 0 or declared != sent:
        raise EquipoiseError(f"Array `{clean(name)}` declares {declared} bytes. Found {sent}.")
    values = np.frombuffer(array.data, kind, offset=content.tell())
    return values.reshape(shape, order="F" if by_column else "C").copy(order="C")


def read_facts(content: RecordDict) -> ConfigRecord:
    """The plain values of a message."""
    record = content.config_records.get(FACTS)
    if record is None:
        raise EquipoiseError("The message has no plain values. Do server and sites have the same version of Equipoise?")
    return record


def explain(error: Exception) -> str:
    """An error in words, without a stack trace. An error that tells several mistakes has a line for each."""
    kind = "" if isinstance(error, EquipoiseError) else f"{type(error).__name__}: "
    return clean(f"{kind}{error}")


def clean(text: str) -> str:
    """What another machine says, in lines of plain words, and not too many of them."""
    printable = ("".join(sign if sign.isprintable() else " " for sign in line) for line in text[:LONGEST].splitlines())
    lines = (" ".join(line.split()) for line in printable)
    return "\n".join(line for line in lines if line)


# --------------------------------------------------------------------------- to a site
def pack(broadcast: Broadcast, layout: Layout, client: int, evaluated: Tensor | None = None) -> dict[str, ArrayRecord]:
    """What one client receives. Of tensors that the server holds per client, it gets only its own row."""
    own = {
        name: value[client]
        for name, value in broadcast.shared.items()
        if isinstance(value, PerClient) and (client in value or value.default is not None)
    }
    found = {
        "model": pack_arrays(layout.split(broadcast.theta)),
        "buffers": pack_arrays(broadcast.buffers),
        "shared": pack_arrays({name: value for name, value in broadcast.shared.items() if isinstance(value, Tensor)}),
        "own": pack_arrays(own),
    }
    return found if evaluated is None else found | {"evaluated": pack_arrays(layout.split(evaluated))}


def unpack(content: RecordDict, layout: Layout, client: int) -> Server:
    """The server as far as a site knows it: the content of a message that `pack` made."""
    shared: Shared = dict(unpack_arrays(content, "shared"))
    shared |= {name: PerClient({client: row}) for name, row in unpack_arrays(content, "own").items()}
    evaluated = join_fitting(unpack_arrays(content, "evaluated"), layout) if "evaluated" in content else None
    memory = Memory(int(str(read_facts(content)["round"])), {}, shared)
    return Server(
        join_fitting(unpack_arrays(content, "model"), layout), unpack_arrays(content, "buffers"), memory, evaluated
    )


def join_fitting(named: Tensors, layout: Layout) -> Tensor:
    """Join named tensors to one row. If one does not fit the model, an error names it."""
    wanted = dict(zip(layout.names, layout.shapes, strict=True))
    if set(named) != set(wanted):
        odd = sorted(set(named) ^ set(wanted))[0]
        raise EquipoiseError(
            f"The tensors are not those of the model: `{odd}` is {'missing' if odd in wanted else 'unknown'}."
        )
    for name, shape in wanted.items():
        if tuple(named[name].shape) != shape or not named[name].is_floating_point():
            kind = f"{named[name].dtype} {list(named[name].shape)}".removeprefix("torch.")
            raise EquipoiseError(f"Tensor `{name}` must be floating-point {list(shape)}. Found {kind}.")
    return layout.join(named)


# --------------------------------------------------------------------------- to the server
def pack_reply(replies: Replies, layout: Layout) -> dict[str, ArrayRecord]:
    """What one client sends to the server."""
    found = {
        "reports": pack_arrays({name: value[0] for name, value in replies.reports.items()}),
        "buffers": pack_arrays({name: value[0] for name, value in replies.buffers.items()}),
    }
    return found if replies.updates is None else found | {"update": pack_arrays(layout.split(replies.updates[0]))}
