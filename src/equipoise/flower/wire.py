"""The content of messages between server and sites: tensors by name in Flower's records.

Nothing is pickled: Flower writes and reads arrays in NumPy's own format, with `allow_pickle=False`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
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
    return {key: torch.from_numpy(value.numpy().copy()) for key, value in record.items()}


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
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)[:LONGEST]


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
