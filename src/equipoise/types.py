"""Every noun of the library on one page. Nothing here computes; `updates.py` and the two halves of a round do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from equipoise.errors import EquipoiseError as EquipoiseError
from equipoise.errors import EquipoiseWarning as EquipoiseWarning
from equipoise.updates import Updates

Rows = TypeVar("Rows", Tensor, Updates)
Tensors = dict[str, Tensor]  # named tensors: parameters or buffers, as in a state dict


# --------------------------------------------------------------------------- what models return, how they are laid out
class Outputs(NamedTuple):
    """What a model returns for one batch. `extra` is for what a wrap adds (F2DC's decoupled features, for example).

    Two kinds of entries of `extra` mean something to everybody. `extra[PERSONAL_LOGITS]` are those of a personal model that
    a wrap keeps beside the global one: they are scored where the method scores personal models. `extra["view NAME"]` are
    logits of another way to look at the same model: its accuracy is recorded as `accuracy of NAME`.
    """

    logits: Tensor  # [batch, classes]
    features: Tensor  # [batch, width], what the head sees
    map: Tensor | None = None  # [batch, channels, height, width], the last feature map where there is one
    layers: tuple[Tensor, ...] = ()  # the feature map behind every stage
    extra: Mapping[str, Tensor] = {}


PERSONAL_LOGITS = "personal logits"
VIEW = "view "

# Linear layer -> (delta [m, batch, out], inputs [m, batch, in]): the gradient of `name.weight` is delta' inputs, that of
# `name.bias` is delta summed over the batch.
Factors = dict[str, tuple[Tensor, Tensor]]


class OutputGradient(NamedTuple):
    """Of a loss, with respect to what a model returned. None: nothing reaches the features but through the logits."""

    logits: Tensor
    features: Tensor | None = None
    extra: Mapping[str, Tensor] = {}


class Factored(NamedTuple):
    """A forward pass of many stacked networks of linear layers, and the way back that gives gradients in factors."""

    out: Outputs
    back: Callable[[OutputGradient], Factors]


@dataclass(frozen=True)
class Layout:
    """Where named tensors lie in one flat row. `parameters` columns come first; buffers may follow them."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    parameters: int = -1  # how many of the named tensors are parameters; -1: all of them

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor | Sequence[int]]) -> Layout:
        """The layout of named tensors, or of named shapes, in their order.

        >>> Layout.of({"weight": (2, 3), "bias": (2,)}).size
        8
        """
        shapes = (tuple(t.shape) if isinstance(t, Tensor) else tuple(t) for t in tensors.values())
        return cls(tuple(tensors), tuple(shapes))

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        starts = [0]
        for shape in self.shapes:
            starts.append(starts[-1] + prod(shape))
        return tuple(slice(a, b) for a, b in pairwise(starts))

    @property
    def size(self) -> int:
        return self.slices[-1].stop if self.slices else 0

    @property
    def parameter_slices(self) -> tuple[slice, ...]:
        """The columns of each parameter tensor, without those of buffers."""
        return self.slices if self.parameters < 0 else self.slices[: self.parameters]

    @property
    def parameter_size(self) -> int:
        return self.parameter_slices[-1].stop if self.parameter_slices else 0

    def split(self, row: Tensor) -> Tensors:
        """Named views of `row [..., size]`."""
        lead = row.shape[:-1]
        return {
            name: row[..., columns].view(*lead, *shape)
            for name, shape, columns in zip(self.names, self.shapes, self.slices, strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """The flat row of named tensors that have `lead` leading axes of their own."""
        if not self.names:
            some = next(iter(tensors.values()), torch.zeros(0))
            return some.new_zeros(*some.shape[:lead], 0)
        return torch.cat([tensors[name].flatten(lead) for name in self.names], dim=lead)


class PerClient(Mapping[int, Tensor]):
    """One tensor per client, by client id, and a default for a client that has none yet.

    Immutable: `put` gives a new value that shares the rows it did not change.
    """

    def __init__(self, rows: Mapping[int, Tensor] | None = None, default: Tensor | None = None) -> None:
        self._rows = dict(rows or {})
        self.default = default

    def __getitem__(self, client: int) -> Tensor:
        row = self._rows.get(int(client), self.default)
        if row is None:
            raise KeyError(client)
        return row

    def __contains__(self, client: object) -> bool:
        return client in self._rows

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"PerClient({dict(self)}, default={self.default})"

    def take(self, clients: Iterable[int]) -> Tensor:
        """The clients' rows, stacked."""
        return torch.stack([self[c] for c in clients])

    def put(self, clients: Iterable[int], rows: Iterable[Tensor]) -> PerClient:
        """With new rows for these clients."""
        return PerClient({**self._rows, **{int(c): row for c, row in zip(clients, rows, strict=True)}}, self.default)

    def only(self, clients: Iterable[int]) -> PerClient:
        """Without the rows of all other clients."""
        return PerClient({int(c): self._rows[int(c)] for c in clients}, self.default)


class State(dict[str, "Tensor | PerClient"]):
    """What one server part remembers between rounds, by name. Empty before its first round."""

    def rows(self, name: str, default: Tensor | None = None) -> PerClient:
        """What is kept under this name per client; `default` stands for clients that have no row yet.

        >>> State(seen=PerClient({3: torch.tensor(2)})).rows("seen")[3], len(State().rows("seen"))
        (tensor(2), 0)
        """
        found = self.get(name, PerClient())
        if not isinstance(found, PerClient):
            raise TypeError(f"`{name}` is one tensor for all clients: ask for state.tensor({name!r}).")
        return found if default is None else PerClient(found, default)

    def tensor(self, name: str, default: Tensor | None = None) -> Tensor:
        """The tensor kept under this name, or the default before there is one."""
        found = self.get(name, default)
        if not isinstance(found, Tensor):
            kind = (
                "one row per client: ask for state.rows"
                if isinstance(found, PerClient)
                else "not there yet: give a default"
            )
            raise TypeError(f"`{name}` is {kind}.")
        return found


Remembered = Mapping[str, "Tensor | PerClient"]  # what a server part gives back to be remembered
ClientState = dict[str, Tensors]  # what one client keeps between rounds: part key -> named tensors
Shared = dict[str, "Tensor | PerClient"]  # what goes down beside the model: the same for all, or one row per client
PERSONAL = (
    "personal"  # under this name personal tensors (see `roles.Mark`) are reported, and sent back as one row per client
)


# --------------------------------------------------------------------------- reports: one table, one definition each
class Definition(NamedTuple):
    """What a report means, and how far it is believed."""

    shape: str  # m clients, G shared parameters, P personal ones, C classes, F features; any other letter is any size
    meaning: str
    is_loss: bool = False  # never negative, and refused where it is far above the cohort's
    drives_weight: bool = False  # a client that reports more of it counts more: a guard limits it
    length_power: int = (
        0  # 1: refused where it is far longer than the cohort's; 2: the same for squares, which spread wider
    )

    @property
    def axes(self) -> list[str]:
        return self.shape.strip("[]").split(", ")


REPORTS: dict[str, Definition] = {
    "samples": Definition("[m]", "training samples of the client"),
    "loss": Definition(
        "[m]", "mean cross-entropy of the *received* model on the training data, eval mode",
        is_loss=True, drives_weight=True,
    ),
    "loss_local": Definition(
        "[m]", "mean base loss over the samples of the local steps, while the model moves",
        is_loss=True, drives_weight=True,
    ),
    "loss_trained": Definition(
        "[m]", "mean cross-entropy of the *trained* model on the training data, eval mode",
        is_loss=True, drives_weight=True,
    ),
    "gap": Definition(
        "[m]", "loss of the received model minus the client's own optimal loss, on EAGLE's split", drives_weight=True
    ),
    "fisher": Definition(
        "[m, G]", "diagonal of the empirical Fisher matrix at the trained model, eval mode", length_power=2
    ),
    "class_counts": Definition("[m, C]", "training samples of each class"),
    "prototypes": Definition(
        "[m, C, F]", "mean feature of each class, trained model, training data (zero where none)", length_power=1
    ),
    "prototype_counts": Definition("[m, C]", "samples behind each prototype (zero: the prototype is missing)"),
    "control": Definition("[m, G]", "change of the client's control variate", length_power=1),
    "steps": Definition("[m]", "local optimizer steps that were done"),
    "personal": Definition("[m, P]", "the client's personal tensors after training, as one row", length_power=1),
}  # fmt: skip
OWN_REPORTS = frozenset(REPORTS)
Reports = dict[str, Tensor]  # names of the table above -> values stacked over the round's clients


def define_report(
    name: str,
    shape: str,
    meaning: str,
    *,
    is_loss: bool = False,
    drives_weight: bool = False,
    length_power: int = 0,
) -> None:
    """Add a report of your own to the table, so that parts can give and need it, and answers are checked by it.

    Call it where the part that gives it is defined. `Definition` says what each argument means.

    >>> define_report("entropy", "[m]", "mean entropy of the received model's predictions")
    >>> REPORTS.pop("entropy").axes
    ['m']
    """
    if name in OWN_REPORTS:
        raise EquipoiseError(f"`{name}` is a report of Equipoise: {REPORTS[name].meaning}. Give yours another name.")
    if not name.isidentifier():
        raise EquipoiseError(f"A report's name is one word of letters, digits and _. Found {name!r}.")
    if not re.fullmatch(r"\[m(, [A-Z])*\]", shape):
        raise EquipoiseError(f"The shape of a report is such as '[m]' or '[m, G]', clients first. Found {shape!r}.")
    REPORTS[name] = Definition(shape, meaning, is_loss, drives_weight, length_power)


# --------------------------------------------------------------------------- what travels
@dataclass(frozen=True)
class Broadcast:
    """What the server sends down."""

    theta: Tensor
    buffers: Tensors
    shared: Shared
    round: int
    rounds: int


@dataclass(frozen=True)
class Replies:
    """What the clients of a round send up, stacked in the order of `clients`. A probe has no updates."""

    clients: tuple[int, ...]
    reports: Reports
    updates: Tensor | None = None  # [m, G], local minus global
    buffers: Tensors = field(default_factory=dict)  # [m, ...]
    total: Tensor | None = None  # [G], instead of the updates their sum with raw weights
    is_lent: bool = False  # whether the updates' memory will be written over: what is kept of them must be copied

    @classmethod
    def join(cls, parts: Sequence[Replies]) -> Replies:
        """The replies of several groups of clients as one, ordered by client: the order of arrival changes nothing."""
        clients = [c for part in parts for c in part.clients]
        order = sorted(range(len(clients)), key=clients.__getitem__)

        def joined(pieces: Sequence[Tensor]) -> Tensor:
            whole = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
            return whole if order == list(range(len(order))) else whole[order]

        updates = [part.updates for part in parts if part.updates is not None]
        return cls(
            tuple(clients[i] for i in order),
            {name: joined([part.reports[name] for part in parts]) for name in parts[0].reports},
            joined(updates) if updates else None,
            {name: joined([part.buffers[name] for part in parts]) for name in parts[0].buffers},
        )


# --------------------------------------------------------------------------- the client's side
class Model(NamedTuple):
    """The tensors of one model."""

    params: Tensors
    buffers: Tensors


class Received(NamedTuple):
    """What one client starts a round from."""

    params: Tensors  # the global parameters, and the client's own private ones
    buffers: Tensors
    shared: Tensors  # what the server's `share` parts sent to everyone
    own: Tensors  # what they sent to this client alone (EAGLE's weight)
    layout: Layout = Layout((), ())  # of the shared parameters


class Local(NamedTuple):
    """All that a term may look at in one local step of one client."""

    out: Outputs  # the current model on this batch
    x: Tensor
    y: Tensor
    keep: Tensor | None  # 1 for real samples and 0 for padding; None when there is no padding
    params: Tensors
    received: Received
    states: ClientState
    done: int  # local steps done before this one
    round: int
    rounds: int
    lr: float
    frozen: Mapping[str, Tensor]  # features of this batch by the models that the terms asked for with `Term.frozen`

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the batch, padding left out; a scalar stays as it is."""
        if values.dim() == 0:
            return values
        if self.keep is None:
            return values.mean()
        return (values * self.keep).sum() / self.keep.sum()


class Samples(NamedTuple):
    """Some samples of one client: positions in the federation's pool, and which of them are real."""

    positions: Tensor  # [n]
    valid: Tensor | None  # [n], 0 for padding; None when there is no padding

    @property
    def size(self) -> Tensor:
        """How many are real, []."""
        return torch.tensor(float(len(self.positions))) if self.valid is None else self.valid.sum()


class Trained(NamedTuple):
    """All that a report may look at once the local training of one client is over."""

    received: Received
    params: Tensors
    buffers: Tensors
    states: ClientState  # as they were when the round began
    next_states: ClientState  # as the terms left them
    train: Samples
    validation: Samples
    steps: Tensor  # []
    loss_local: Tensor  # []
    round: int
    lr: float
    momentum: float
    classes: int
    layout: Layout  # of the shared parameters
    personal: Layout  # of the personal ones
    model: nn.Module  # in eval mode; its own tensors are not the client's: call it through `apply` or functional_call
    chunks: Callable[
        [Samples], Iterator[tuple[Tensor, Tensor, Tensor | None]]
    ]  # (x, y, valid), prepared for evaluation
    apply: Callable[[Tensors, Tensors, Tensor], Outputs]  # (params, buffers, x) -> outputs, eval mode
    seed: tuple[int | str, ...]  # the path of this client's randomness in this round


# --------------------------------------------------------------------------- the server's side
class Setting(NamedTuple):
    """What does not change during a run. `None` is unknown: a part that needs it says so by name."""

    rounds: int | None = None
    num_clients: int | None = None
    num_classes: int | None = None
    num_domains: int | None = None
    total_samples: int | None = None
    lr: float | None = None
    layout: Layout | None = None
    seed: int = 0
    personal: Layout | None = None  # of the tensors that are mixed for each client


@dataclass(frozen=True)
class Round:
    """What every server part receives."""

    theta: Tensor  # [G], the model that the clients received
    clients: tuple[int, ...]  # ids of the m clients
    reports: Reports
    round: int  # counted from 0
    setting: Setting
    reported_rows: Tensor | None = None  # [m, G], local minus global, as they came; None: only their sum is there
    shaped_rows: Updates | None = None  # the same as the `shape` parts before left it

    @property
    def updates(self) -> Updates:
        """The round's updates, as the `shape` parts before left them."""
        return _there(self.shaped_rows)

    @property
    def reported(self) -> Tensor:
        """`[m, G]`, local minus global, as they came."""
        return _there(self.reported_rows)

    def known(self, name: str, who: str) -> float:
        """A value of the setting that `who` cannot do without."""
        value = getattr(self.setting, name)
        if value is None:
            raise EquipoiseError(f"{who} needs `{name}`, which was not given: pass {name}=...")
        return float(value)


def _there(rows: Rows | None) -> Rows:
    if rows is None:
        raise EquipoiseError(
            "There are no single updates here: every part of the method says that it does not read them, so they were "
            "summed up as they came, or this is a probe before training. Let the part that wants them say "
            "`reads_updates = True`."
        )
    return rows


class Shaped(NamedTuple):
    updates: Updates
    state: Remembered = {}


class Weighed(NamedTuple):
    weights: Tensor  # [m], any divisor inside
    state: Remembered = {}
    figures: Mapping[str, Tensor] = {}  # where the weights came from, [m] or []: they go into the records
    warning: str | None = None


class Merged(NamedTuple):
    direction: Tensor  # [G]
    tensor_weights: Tensor | None = None  # [m, tensors], for rules with weights per tensor


class Stepped(NamedTuple):
    direction: Tensor  # [G]
    state: Remembered = {}
    evaluated: Tensor | None = None  # [G], when another iterate than the next theta is to be scored


class Sent(NamedTuple):
    shared: Shared
    state: Remembered = {}


@dataclass(frozen=True)
class Memory:
    """What the server's parts remember between rounds. Part key -> named values."""

    round: int = 0
    parts: Mapping[str, Remembered] = field(default_factory=dict)
    shared: Shared = field(default_factory=dict)  # goes down with the next broadcast


@dataclass(frozen=True)
class Server:
    """The whole server as one value: a checkpoint is this, the clients' states, and the seed."""

    theta: Tensor
    buffers: Tensors
    memory: Memory = field(default_factory=Memory)
    evaluated: Tensor | None = None  # another theta, when the method scores one
