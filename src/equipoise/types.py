"""The data types of the library: what models return, what travels between server and clients, what parts are given.

Nothing here trains or aggregates: the packages `local` and `rounds` do. The stack of a round's updates is in
`updates.py`.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from equipoise.columns import ALL, Columns
from equipoise.errors import EquipoiseError as EquipoiseError
from equipoise.errors import EquipoiseWarning as EquipoiseWarning
from equipoise.losses import CROSS_ENTROPY, Loss
from equipoise.store import Store
from equipoise.updates import Updates

Rows = TypeVar("Rows", Tensor, Updates)
Tensors = dict[str, Tensor]  # tensors by name: parameters or buffers, as in a state dict


# --------------------------------------------------------------------------- what models return, how they are laid out
class Outputs(NamedTuple):
    """What a model returns for one batch.

    `extra` holds what a wrap adds, such as F2DC's decoupled features. Two kinds of its entries have a fixed meaning.
    `extra[PERSONAL_LOGITS]` are the logits of a personal model that a wrap keeps beside the global one; they are scored
    where the method scores personal models. `extra["view NAME"]` are logits from another reading of the same model;
    their accuracy is recorded as `accuracy of NAME`. `extra["map of NAME"]` is the feature map
    `[batch, channels, height, width]` that such logits come from; it need be there only while gradients are recorded.
    """

    logits: Tensor  # [batch, classes], or [batch, outputs] for another loss than cross-entropy
    features: Tensor  # [batch, width], the input of the head
    map: Tensor | None = None  # [batch, channels, height, width], the last feature map; None for a model without one
    layers: tuple[Tensor, ...] = ()  # the feature map after each stage
    extra: Mapping[str, Tensor] = {}  # what wraps add, by name


PERSONAL_LOGITS = "personal logits"  # the key of a personal model's logits in `Outputs.extra`
VIEW = "view "  # how the keys of further logits in `Outputs.extra` begin
VIEW_MAP = "map of "  # how the keys of the feature maps behind them begin

# Gradients of linear layers as pairs of factors: layer name -> (delta [m, batch, out], inputs [m, batch, in]). The
# gradient of `name.weight` is `delta.mT @ inputs`; that of `name.bias` is `delta` summed over the batch.
Factors = dict[str, tuple[Tensor, Tensor]]


class OutputGradient(NamedTuple):
    """The gradient of a loss with respect to a model's `Outputs`, of many stacked clients."""

    logits: Tensor  # [m, batch, outputs]
    features: Tensor | None = None  # [m, batch, width]; None: the loss depends on the features only through the logits
    extra: Mapping[str, Tensor] = {}  # one gradient for each entry of `Outputs.extra`


class Factored(NamedTuple):
    """A forward pass of many stacked networks of linear layers, with the function that does its backward pass."""

    out: Outputs  # with a leading client axis
    back: Callable[[OutputGradient], Factors]  # gradient of the outputs -> gradients of the layers, as factors


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in one flat row. Parameters come first; buffers may follow them."""

    names: tuple[str, ...]  # of the tensors, in the order of the row
    shapes: tuple[tuple[int, ...], ...]  # of the tensors, in the same order
    parameters: int = -1  # how many of the tensors, counted from the first, are parameters; -1: all of them

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor | Sequence[int]]) -> Layout:
        """The layout of named tensors, or of named shapes, in the order of the mapping.

        >>> Layout.of({"weight": (2, 3), "bias": (2,)}).size
        8
        """
        shapes = (tuple(t.shape) if isinstance(t, Tensor) else tuple(t) for t in tensors.values())
        return cls(tuple(tensors), tuple(shapes))

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """The columns of each tensor in the row, in the order of `names`."""
        starts = [0]
        for shape in self.shapes:
            starts.append(starts[-1] + prod(shape))
        return tuple(slice(a, b) for a, b in pairwise(starts))

    @property
    def size(self) -> int:
        """The length of the row: the number of entries of all tensors together."""
        return self.slices[-1].stop if self.slices else 0

    @property
    def parameter_slices(self) -> tuple[slice, ...]:
        """The columns of each parameter, without those of buffers."""
        return self.slices if self.parameters < 0 else self.slices[: self.parameters]

    @property
    def parameter_size(self) -> int:
        """The number of entries of all parameters together: the buffers begin at this column."""
        return self.parameter_slices[-1].stop if self.parameter_slices else 0

    def split(self, row: Tensor) -> Tensors:
        """The tensors by name, as views of `row [..., size]`; leading axes are kept."""
        lead = row.shape[:-1]
        return {
            name: row[..., columns].view(*lead, *shape)
            for name, shape, columns in zip(self.names, self.shapes, self.slices, strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """The inverse of `split`: named tensors as one row `[..., size]`.

        The first `lead` axes of every tensor (a client axis, for example) are kept; the others are flattened.
        """
        if not self.names:
            some = next(iter(tensors.values()), torch.zeros(0))
            return some.new_zeros(*some.shape[:lead], 0)
        return torch.cat([tensors[name].flatten(lead) for name in self.names], dim=lead)


class Shelved:
    """A row on disk. Its place is free for others when nobody has it any more."""

    def __init__(self, store: Store, place: tuple[int, int]) -> None:
        self.store, self.place = store, place
        weakref.finalize(self, store.free, place)

    @classmethod
    def put(cls, row: Tensor, store: Store) -> Shelved:
        """Put a row on disk."""
        return cls(store, store.put({"row": row}))

    def read(self) -> Tensor:
        """The row."""
        return self.store.get(self.place)["row"]


class PerClient(Mapping[int, Tensor]):
    """One tensor per client, by client id, with an optional default for clients that have none yet.

    `rows[client]` gives the client's tensor or the default, and raises a KeyError where there is neither. Iteration and
    `len` count only the clients that have a tensor of their own. It is immutable: `put` returns a new value, which
    shares the tensors that did not change. Rows that were put on disk (`shelve`) are read when they are asked for.
    """

    def __init__(self, rows: Mapping[int, Tensor] | None = None, default: Tensor | None = None) -> None:
        self._rows: dict[int, Tensor | Shelved] = dict(rows._rows if isinstance(rows, PerClient) else rows or {})
        self.default = default

    def __getitem__(self, client: int) -> Tensor:
        row = self._rows.get(int(client), self.default)
        if row is None:
            raise KeyError(client)
        return row.read() if isinstance(row, Shelved) else row

    def shelve(self, limit: int, store: Callable[[], Store]) -> PerClient:
        """The same rows, in memory if they take at most `limit` bytes; otherwise those put in earliest are on disk."""
        held = {client: row for client, row in self._rows.items() if isinstance(row, Tensor)}
        excess = sum(row.nbytes for row in held.values()) - limit
        moved: dict[int, Tensor | Shelved] = {}
        for client, row in held.items():
            if excess <= 0:
                break
            moved[client] = Shelved.put(row, store())
            excess -= row.nbytes
        return self if not moved else self._with({**self._rows, **moved})

    def list_clients(self) -> list[int]:
        """The clients that have a row, in the order in which their rows were put in."""
        return list(self._rows)

    def list_new(self, before: PerClient) -> list[object]:
        """The rows in memory that `before` does not have: others are not read from disk."""
        fresh = (row for client, row in self._rows.items() if before._rows.get(client) is not row)
        return [row for row in fresh if not isinstance(row, Shelved)]

    def change_held(self, function: Callable[[Tensor], Tensor]) -> PerClient:
        """A copy in which the function was applied to the rows in memory and to the default."""
        found = self._with({c: row if isinstance(row, Shelved) else function(row) for c, row in self._rows.items()})
        found.default = None if self.default is None else function(self.default)
        return found

    def _with(self, rows: dict[int, Tensor | Shelved]) -> PerClient:
        found = PerClient(None, self.default)
        found._rows = rows
        return found

    def __contains__(self, client: object) -> bool:
        return client in self._rows

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"PerClient({dict(self)}, default={self.default})"

    def take(self, clients: Iterable[int]) -> Tensor:
        """The tensors of these clients, stacked along a new first axis, in the order given."""
        return torch.stack([self[c] for c in clients])

    def put(self, clients: Iterable[int], rows: Iterable[Tensor]) -> PerClient:
        """A copy in which each of these clients has the row given for it."""
        fresh = {int(c): row for c, row in zip(clients, rows, strict=True)}
        # Those written now come last, so that they are the last to go to disk.
        return self._with({**{c: row for c, row in self._rows.items() if c not in fresh}, **fresh})

    def change(self, function: Callable[[Tensor], Tensor]) -> PerClient:
        """A copy in which the function was applied to each row, in the order of the clients, and to the default."""
        rows = {client: function(row) for client, row in self.items()}
        return PerClient(rows, None if self.default is None else function(self.default))

    def only(self, clients: Iterable[int]) -> PerClient:
        """A copy with the rows of these clients only."""
        return self._with({int(c): self._rows[int(c)] for c in clients})


class State(dict[str, "Tensor | PerClient"]):
    """What one part of the server remembers between rounds, by name. Empty before the first round."""

    def rows(self, name: str, default: Tensor | None = None) -> PerClient:
        """The rows kept under this name, one per client; `default` stands in for clients that have no row yet.

        >>> State(seen=PerClient({3: torch.tensor(2)})).rows("seen")[3], len(State().rows("seen"))
        (tensor(2), 0)
        """
        found = self.get(name, PerClient())
        if not isinstance(found, PerClient):
            raise TypeError(f"`{name}` is one tensor for all clients: ask for state.tensor({name!r}).")
        return found if default is None else PerClient(found, default)

    def tensor(self, name: str, default: Tensor | None = None) -> Tensor:
        """The one tensor kept under this name; `default` before there is one."""
        found = self.get(name, default)
        if not isinstance(found, Tensor):
            kind = (
                "one row per client: ask for state.rows"
                if isinstance(found, PerClient)
                else "not there yet: give a default"
            )
            raise TypeError(f"`{name}` is {kind}.")
        return found


Remembered = Mapping[str, "Tensor | PerClient"]  # what a server part returns to be kept as its state, by name
ClientState = dict[str, Tensors]  # what one client keeps between rounds: `Part.key` -> tensors by name
# What the server sends to clients beside the model, by name: a tensor for all of them, or one row per client.
Shared = dict[str, "Tensor | PerClient"]
# Under this name clients report their personal tensors, and the server sends them back as one row per client.
PERSONAL = "personal"


# --------------------------------------------------------------------------- reports: one table, one definition each
class Definition(NamedTuple):
    """What a report means, and which checks the server makes before it uses one."""

    # Such as "[m, G]": m clients, G shared parameters, P personal parameters, C classes, F features; any other letter
    # stands for any size.
    shape: str
    meaning: str  # in words
    is_loss: bool = False  # a loss: an answer is refused if it is negative, or far above the other clients'
    drives_weight: bool = False  # a client that reports a larger value gets a larger weight: a guard limits the effect
    # 1: an answer is refused if its norm is far above the other clients'. 2: the same for values that are squares,
    # which differ more between clients. 0: its norm is not checked.
    length_power: int = 0
    is_signed: bool = True  # False: a negative value cannot be true, as of a count
    is_positive: bool = False  # zero cannot be true, either, as of what others are divided by

    def find_impossible(self, value: Tensor) -> Tensor:
        """Which of these values cannot be true, whoever reports them, because of their sign."""
        if self.is_positive:
            return value <= 0
        return (value < 0) if self.is_loss or not self.is_signed else torch.zeros_like(value, dtype=torch.bool)

    @property
    def is_count(self) -> bool:
        """Whether it counts something, as samples: not negative, and without a usual size."""
        return not (self.is_signed or self.is_loss or self.is_positive or self.length_power)

    @property
    def axes(self) -> list[str]:
        """The letters of the shape: `["m", "G"]` for `"[m, G]"`."""
        return self.shape.strip("[]").split(", ")

    @property
    def has_columns(self) -> bool:
        """Whether it is `[m, G]`: an entry per parameter, as updates have."""
        return self.axes == ["m", "G"]


REPORTS: dict[str, Definition] = {
    "samples": Definition("[m]", "training samples of the client", is_signed=False),
    "loss": Definition(
        "[m]", "mean loss of the *received* model on the training data, eval mode",
        is_loss=True, drives_weight=True,
    ),
    "loss_local": Definition(
        "[m]", "mean base loss over the samples of the local steps, while the model moves",
        is_loss=True, drives_weight=True,
    ),
    "loss_trained": Definition(
        "[m]", "mean loss of the *trained* model on the training data, eval mode",
        is_loss=True, drives_weight=True,
    ),
    "gap": Definition(
        "[m]", "loss of the received model minus the client's own optimal loss, on EAGLE's split", drives_weight=True
    ),
    "optimum": Definition("[m]", "the client's own optimal loss, which the gap is measured from"),
    "fisher": Definition(
        "[m, G]", "diagonal of the empirical Fisher matrix at the trained model, eval mode", length_power=2, is_signed=False
    ),
    "class_counts": Definition("[m, C]", "training samples of each class", is_signed=False),
    "prototypes": Definition(
        "[m, C, F]", "mean feature of each class, trained model, training data (zero where none)", length_power=1
    ),
    "prototype_counts": Definition("[m, C]", "samples behind each prototype (zero: the prototype is missing)", is_signed=False),
    "control": Definition("[m, G]", "change of the client's control variate", length_power=1),
    "steps": Definition("[m]", "local optimizer steps that were done", length_power=2, is_positive=True),
    "normaliser": Definition(
        "[m]", "the sum of the weights with which the local gradients enter the update", length_power=2, is_positive=True
    ),
    "loss_valid": Definition(
        "[m]", "mean cross-entropy of the *received* model on the validation data, eval mode",
        is_loss=True, drives_weight=True,
    ),
    "loss_valid_trained": Definition(
        "[m]", "mean cross-entropy of the *trained* model on the validation data, eval mode", is_loss=True
    ),
    "group_counts": Definition(
        "[m, Z, T, A]", "training samples by group, truth and answer of the *received* model (positive class or not)",
        is_signed=False,
    ),
    "group_sizes": Definition("[m, Z, T]", "training samples by group and truth (positive class or not)", is_signed=False),
    "group_losses": Definition(
        "[m, Z, T]", "sums of the *received* model's losses on the training data, by group and truth", length_power=1
    ),
    "group_weight": Definition("[m]", "sum of the weights that the server put on the client's training samples"),
    "personal": Definition("[m, P]", "the client's personal tensors after training, as one row", length_power=1),
}  # fmt: skip
OWN_REPORTS = frozenset(REPORTS)  # the names that the library defines
Reports = dict[str, Tensor]  # name in `REPORTS` -> values of the round's clients, stacked along the first axis


def define_report(
    name: str,
    shape: str,
    meaning: str,
    *,
    is_loss: bool = False,
    drives_weight: bool = False,
    length_power: int = 0,
    is_signed: bool = True,
    is_positive: bool = False,
) -> None:
    """Add a report of your own to `REPORTS`, so that parts can give and need it and the server can check it.

    Call it in the module that defines the part which gives the report.

    Args:
        name: one word of letters, digits and underscores.
        shape: such as `"[m]"` or `"[m, G]"`, clients first: m clients, G shared parameters, P personal parameters,
            C classes, F features; any other letter stands for any size.
        meaning: what the values are, in words.
        is_loss: it is a loss. An answer is refused if it is negative or far above the other clients'.
        drives_weight: a client that reports a larger value gets a larger weight, so that a guard limits the effect.
        length_power: 1 refuses an answer whose norm is far above the other clients', 2 does the same for values that
            differ more, as squares do, 0 does not check the norm. A guard also raises one that is far below.
        is_signed: False says that a negative value cannot be true, as of a count: it is refused then.
        is_positive: zero cannot be true, either, as of something that others are divided by.

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
    REPORTS[name] = Definition(shape, meaning, is_loss, drives_weight, length_power, is_signed, is_positive)


# --------------------------------------------------------------------------- what travels
@dataclass(frozen=True)
class Broadcast:
    """What the server sends to the clients of a round."""

    theta: Tensor  # [G], the shared parameters
    buffers: Tensors  # the model's buffers
    shared: Shared  # what the `share` parts send beside the model
    round: int  # counted from 0
    rounds: int  # planned for the run
    lr: float | None = None  # the local learning rate of this round; None: the one of the task's training


@dataclass(frozen=True)
class Replies:
    """What the clients of a round send to the server, stacked in the order of `clients`."""

    clients: tuple[int, ...]  # ids of the m clients
    reports: Reports  # [m, ...] each
    updates: Tensor | None = None  # [m, G], local minus global model; None after a probe, or with `total`
    buffers: Tensors = field(default_factory=dict)  # [m, ...] each: the buffers that the server averages
    total: Tensor | None = None  # [G], the sum of the updates with the weights of `Weigh.raw`, in place of the updates
    is_lent: bool = False  # the memory of `updates` will be reused: whoever keeps some of it must copy it
    columns: Columns = ALL  # which columns of `updates`, of `total` and of reports `[m, G]` are here

    @classmethod
    def join(cls, parts: Sequence[Replies]) -> Replies:
        """The replies of several groups of clients as one, ordered by client id: the order of arrival has no effect."""
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

    params: Tensors  # parameters by name
    buffers: Tensors  # buffers by name


class Received(NamedTuple):
    """What one client has at the start of a round."""

    params: Tensors  # the shared parameters as received, and the client's own private and personal ones
    buffers: Tensors  # received, or the client's own where they stay with it
    shared: Tensors  # what the server's `share` parts sent to all clients
    own: Tensors  # what they sent to this client alone, such as EAGLE's weight
    layout: Layout = Layout((), ())  # of the shared parameters


class Local(NamedTuple):
    """What a term can use in one local step of one client."""

    out: Outputs  # of the current model on this batch
    x: Tensor  # [batch, ...], the samples
    y: Tensor  # [batch], their targets: classes or numbers; [batch, labels] with several labels
    keep: Tensor | None  # [batch], 1 for real samples and 0 for padding; None when there is no padding
    params: Tensors  # the current parameters
    received: Received  # what the client had at the start of the round
    states: ClientState  # what the client's parts remembered at the start of the round
    done: int  # local steps before this one in this round
    round: int  # counted from 0
    rounds: int  # planned for the run
    lr: float  # the local learning rate
    frozen: Mapping[str, Tensor]  # [batch, width] each: features of this batch by the models of `Term.frozen`
    loss: Loss = CROSS_ENTROPY  # what the task minimises
    group: Tensor | None = None  # [batch], the group of each sample; None: samples have no groups

    def mean(self, values: Tensor) -> Tensor:
        """Mean of `values [batch]` over the real samples of the batch; a scalar is returned as it is."""
        if values.dim() == 0:
            return values
        if self.keep is None:
            return values.mean()
        return (values * self.keep).sum() / self.keep.sum()


class Samples(NamedTuple):
    """Some samples of one client, by their positions in the federation's pool of samples."""

    positions: Tensor  # [n]
    valid: Tensor | None  # [n], 1 for real samples and 0 for padding; None when there is no padding

    @property
    def size(self) -> Tensor:
        """The number of real samples, as a tensor []."""
        return torch.tensor(float(len(self.positions))) if self.valid is None else self.valid.sum()


class Trained(NamedTuple):
    """What a report can use after the local training of one client."""

    received: Received  # what the client had at the start of the round
    params: Tensors  # the parameters after training
    buffers: Tensors  # the buffers after training
    states: ClientState  # what the client's parts remembered at the start of the round
    next_states: ClientState  # the same after the `finish` of every term
    train: Samples  # the client's training samples
    validation: Samples  # the client's validation samples
    steps: Tensor  # [], local steps that were done
    loss_local: Tensor  # [], mean base loss over the samples of the local steps
    round: int  # counted from 0
    lr: float  # the local learning rate
    momentum: float  # of the local optimizer
    classes: int  # number of classes
    layout: Layout  # of the shared parameters
    personal: Layout  # of the personal parameters
    model: nn.Module  # in eval mode; its own tensors are not the client's: call it with `apply` or functional_call
    # Samples -> pieces (x, y, valid) of bounded size, with x prepared as for evaluation.
    chunks: Callable[[Samples], Iterator[tuple[Tensor, Tensor, Tensor | None]]]
    apply: Callable[[Tensors, Tensors, Tensor], Outputs]  # (params, buffers, x) -> outputs in eval mode
    seed: tuple[int | str, ...]  # the seed path of this client in this round; () for a report that `stacks`
    loss: Loss = CROSS_ENTROPY  # what the task minimises
    groups: int = 0  # number of groups; 0: samples have none
    group_of: Callable[[Samples], Tensor] = lambda samples: samples.positions.new_zeros(0)  # samples -> groups [n]


# --------------------------------------------------------------------------- the server's side
class Setting(NamedTuple):
    """Facts that do not change during a run. None means unknown; a part that needs the fact then raises an error."""

    rounds: int | None = None  # planned for the run
    num_clients: int | None = None  # of the federation, absent ones included
    num_classes: int | None = None
    num_domains: int | None = None
    total_samples: int | None = None  # training samples of all clients together
    lr: float | None = None  # the local learning rate: the one fact that a schedule changes from round to round
    layout: Layout | None = None  # of the shared parameters
    seed: int = 0  # of the run
    personal: Layout | None = None  # of the personal parameters


@dataclass(frozen=True)
class Round:
    """What every part of the server is given: one round's model, clients, updates and reports.

    Where a run is spread over several processes and all parts of its method say `by_columns`, whatever has an entry per
    parameter (`[G]` below) holds the columns of this process only; see `columns.py`.
    """

    theta: Tensor  # [G], the model that the clients received
    clients: tuple[int, ...]  # ids of the m clients, in the order of all rows
    reports: Reports  # [m, ...] each
    round: int  # counted from 0
    setting: Setting  # facts that do not change during the run
    reported_rows: Tensor | None = None  # [m, G], local minus global model; None where only their sum is known
    shaped_rows: Updates | None = None  # the same after the `shape` parts so far
    columns: Columns = ALL  # which columns are here
    # [m], the factors that the clients put on their losses because the server sent them (EAGLE's); None: no part does.
    loss_weights: Tensor | None = None

    @property
    def slices(self) -> tuple[slice, ...]:
        """The columns of each tensor of the layout, among those that are here: empty slices for tensors elsewhere."""
        return self.columns.clip(self._layout.slices)

    @property
    def parameter_slices(self) -> tuple[slice, ...]:
        """The same for parameters, without buffers that a `shape` part sends through the rule."""
        return self.columns.clip(self._layout.parameter_slices)

    @property
    def parameters(self) -> slice:
        """The columns of all parameters, among those that are here."""
        return self.columns.clip([slice(0, self._layout.parameter_size)])[0]

    @property
    def _layout(self) -> Layout:
        layout = self.setting.layout
        return Layout(("theta",), ((len(self.theta),),)) if layout is None else layout

    @property
    def updates(self) -> Updates:
        """The round's updates after the `shape` parts so far. An error where only their sum is known."""
        return _there(self.shaped_rows)

    @property
    def reported(self) -> Tensor:
        """The updates `[m, G]` (local minus global model) as reported. An error where only their sum is known."""
        return _there(self.reported_rows)

    def known(self, name: str, who: str) -> float:
        """The value called `name` of the setting; if it is unknown, an error which says that `who` needs it."""
        value = getattr(self.setting, name)
        if value is None:
            raise EquipoiseError(f"{who} needs `{name}`, which was not given: pass {name}=...")
        return float(value)


@dataclass(frozen=True)
class Turnout:
    """What a `Select` part is given: who could take part in a round, before anyone does."""

    available: Sequence[int]  # ids of the clients that can be asked, in ascending order
    places: int  # how many clients can take part
    samples: Mapping[int, float]  # training samples of each client
    round: int  # counted from 0
    setting: Setting  # facts that do not change during the run
    candidates: tuple[int, ...] = ()  # ids of the c clients that made the reports of `Select.asks`
    reports: Reports = field(default_factory=dict)  # [c, ...] each: these reports, in the order of `candidates`


def _there(rows: Rows | None) -> Rows:
    if rows is None:
        raise EquipoiseError(
            "There are no single updates here: every part of the method says that it does not read them, so they were "
            "summed as they arrived, or this is a probe before training. Give the part that needs them "
            "`reads_updates = True`."
        )
    return rows


class Selected(NamedTuple):
    """What a `Select` part returns."""

    clients: Sequence[int]  # ids of those that take part, in any order
    state: Remembered | None = None  # the part's next state; None: it stays as it is
    why: Mapping[int, str] = {}  # client -> why it does not take part, in words, where a client has a reason of its own
    others: str = "not drawn"  # why all others do not
    values: Mapping[int, float] = {}  # client -> the value by which it was judged, such as its loss, for the records


class Shaped(NamedTuple):
    """What a `Shape` part returns."""

    updates: Updates  # the round's updates, edited
    state: Remembered = {}  # the part's next state
    figures: Mapping[str, Tensor] = {}  # values behind the edit, [m] or [] each: they go into the records
    refused: Tensor | None = None  # [m] bool, whose reports and buffers must not count, either; None: nobody's


class Weighed(NamedTuple):
    """What a `Weigh` part returns."""

    weights: Tensor  # [m], the factor on each update, with any divisor already applied
    state: Remembered = {}  # the part's next state
    figures: Mapping[str, Tensor] = {}  # values behind the weights, [m] or [] each: they go into the records
    warning: str | None = None  # something that a reader of the results should know


class Merged(NamedTuple):
    """What a `Merge` part returns."""

    direction: Tensor  # [G]
    tensor_weights: Tensor | None = None  # [m, tensors], for merges that weigh each tensor by itself


class Stepped(NamedTuple):
    """What a `Step` part returns."""

    direction: Tensor  # [G], edited
    state: Remembered = {}  # the part's next state
    evaluated: Tensor | None = None  # [G], the model to score if it is not the next theta
    figures: Mapping[str, Tensor] = {}  # values behind the step, [m] or [] each: they go into the records


class Sent(NamedTuple):
    """What a `Share` part returns."""

    shared: Shared  # what clients receive beside the next model
    state: Remembered = {}  # the part's next state
    figures: Mapping[str, Tensor] = {}  # values behind it, [m] or [] each: they go into the records


@dataclass(frozen=True)
class Memory:
    """What the server remembers between rounds besides the model."""

    round: int = 0  # the next round, counted from 0
    parts: Mapping[str, Remembered] = field(default_factory=dict)  # `Part.key` -> the state of that part
    shared: Shared = field(default_factory=dict)  # sent with the next broadcast

    def find_loss_weights(self, clients: Iterable[int]) -> Tensor | None:
        """The weights `[m]` that these clients were sent for their own losses; None: no part sends any."""
        rows = self.shared.get("weight")
        return rows.take(clients).double() if isinstance(rows, PerClient) else None


@dataclass(frozen=True)
class Server:
    """The whole server as one value. Together with the clients' states and the seed it makes a checkpoint."""

    theta: Tensor  # [G], the shared parameters
    buffers: Tensors  # the model's buffers
    memory: Memory = field(default_factory=Memory)  # what the method's parts remember
    evaluated: Tensor | None = None  # [G], the model to score if it is not theta
