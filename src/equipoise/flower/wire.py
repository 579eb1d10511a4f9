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


def arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as a record."""
    return ArrayRecord({name: Array(value.detach().cpu().contiguous().numpy()) for name, value in tensors.items()})


def tensors(content: RecordDict, name: str) -> Tensors:
    """The named tensors of a record, as memory of our own."""
    record = content.array_records.get(name)
    if record is None:
        raise EquipoiseError(f"The message has no arrays `{name}`. Do server and sites run the same Equipoise?")
    return {key: torch.from_numpy(value.numpy().copy()) for key, value in record.items()}


def facts(content: RecordDict) -> ConfigRecord:
    """The plain values of a message."""
    record = content.config_records.get(FACTS)
    if record is None:
        raise EquipoiseError("The message has no facts. Do server and sites run the same Equipoise?")
    return record


def mistake(error: Exception) -> str:
    """An error in one line, without a stack trace."""
    kind = "" if isinstance(error, EquipoiseError) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split())[:LONGEST]


# --------------------------------------------------------------------------- down
def packed(
    broadcast: Broadcast, layout: Layout, client: int, evaluated: Tensor | None = None
) -> dict[str, ArrayRecord]:
    """What one client receives. Of what the server holds for each client it gets its own row alone."""
    own = {
        name: value[client]
        for name, value in broadcast.shared.items()
        if isinstance(value, PerClient) and (client in value or value.default is not None)
    }
    found = {
        "model": arrays(layout.split(broadcast.theta)),
        "buffers": arrays(broadcast.buffers),
        "shared": arrays({name: value for name, value in broadcast.shared.items() if isinstance(value, Tensor)}),
        "own": arrays(own),
    }
    return found if evaluated is None else found | {"evaluated": arrays(layout.split(evaluated))}


def received(content: RecordDict, layout: Layout, client: int) -> Server:
    """The server, as far as a site knows it."""
    shared: Shared = dict(tensors(content, "shared"))
    shared |= {name: PerClient({client: row}) for name, row in tensors(content, "own").items()}
    evaluated = fitting(tensors(content, "evaluated"), layout) if "evaluated" in content else None
    memory = Memory(int(str(facts(content)["round"])), {}, shared)
    return Server(fitting(tensors(content, "model"), layout), tensors(content, "buffers"), memory, evaluated)


def fitting(named: Tensors, layout: Layout) -> Tensor:
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
def packed_reply(replies: Replies, layout: Layout) -> dict[str, ArrayRecord]:
    """What one client sends up."""
    found = {
        "reports": arrays({name: value[0] for name, value in replies.reports.items()}),
        "buffers": arrays({name: value[0] for name, value in replies.buffers.items()}),
    }
    return found if replies.updates is None else found | {"update": arrays(layout.split(replies.updates[0]))}


def reply_of(content: RecordDict, layout: Layout, client: int, trains: bool) -> Replies:
    """One client's answer, as a round of one client."""
    update = fitting(tensors(content, "update"), layout) if trains else None
    reports, buffers = ({n: v[None] for n, v in tensors(content, name).items()} for name in ("reports", "buffers"))
    for name, value in {"update": update, **reports, **buffers}.items():
        if value is not None and not bool(torch.isfinite(value).all()):
            raise EquipoiseError(f"`{name}` is not finite.")
    return Replies((client,), reports, None if update is None else update[None], buffers)
