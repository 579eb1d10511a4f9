"""What travels: tensors by name in Flower's records. Nothing is pickled: Flower writes arrays in NumPy's own format with
`allow_pickle=False`, and reads them so, too."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from equipoise.types import Broadcast, EquipoiseError, Layout, Memory, PerClient, Replies, Server, Shared, Tensors

FACTS = "equipoise"  # the record of plain values
ERROR = "error"  # a site's mistake in words, in place of an answer
LONGEST = 500  # letters of such words


def pack_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as a record."""
    return ArrayRecord({name: Array(value.detach().cpu().contiguous().numpy()) for name, value in tensors.items()})


def unpack_arrays(content: RecordDict, name: str) -> Tensors:
    """The named tensors of a record, as memory of our own."""
    record = content.array_records.get(name)
    if record is None:
        raise EquipoiseError(f"The message has no arrays `{name}`. Do server and sites run the same Equipoise?")
    return {key: torch.from_numpy(value.numpy().copy()) for key, value in record.items()}


def read_facts(content: RecordDict) -> ConfigRecord:
    """The plain values of a message."""
    record = content.config_records.get(FACTS)
    if record is None:
        raise EquipoiseError("The message has no facts. Do server and sites run the same Equipoise?")
    return record


def explain(error: Exception) -> str:
    """An error in one line, without a stack trace."""
    kind = "" if isinstance(error, EquipoiseError) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split())[:LONGEST]


# --------------------------------------------------------------------------- down
def pack(broadcast: Broadcast, layout: Layout, client: int, evaluated: Tensor | None = None) -> dict[str, ArrayRecord]:
    """What one client receives. Of what the server holds for each client it gets its own row alone."""
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
    """The server, as far as a site knows it."""
    shared: Shared = dict(unpack_arrays(content, "shared"))
    shared |= {name: PerClient({client: row}) for name, row in unpack_arrays(content, "own").items()}
    evaluated = join_fitting(unpack_arrays(content, "evaluated"), layout) if "evaluated" in content else None
    memory = Memory(int(str(read_facts(content)["round"])), {}, shared)
    return Server(
        join_fitting(unpack_arrays(content, "model"), layout), unpack_arrays(content, "buffers"), memory, evaluated
    )


def join_fitting(named: Tensors, layout: Layout) -> Tensor:
    """Named tensors as one row; an error says which of them is not as the model wants it."""
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


# --------------------------------------------------------------------------- up
def pack_reply(replies: Replies, layout: Layout) -> dict[str, ArrayRecord]:
    """What one client sends up."""
    found = {
        "reports": pack_arrays({name: value[0] for name, value in replies.reports.items()}),
        "buffers": pack_arrays({name: value[0] for name, value in replies.buffers.items()}),
    }
    return found if replies.updates is None else found | {"update": pack_arrays(layout.split(replies.updates[0]))}
