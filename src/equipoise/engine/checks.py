"""Checks of the clients' answers, before anything touches the model. An answer that fails does not count, and the
reason is kept.

`admit` takes single answers as they arrive, from anywhere: it checks the round, the client, names, shapes and types,
counts each client once, and stacks the answers in the order of clients. `check_numbers` looks at stacked answers:
whether their numbers are finite, and plausible beside those of the other clients. `admit` ends with `check_numbers`; a
simulation, whose answers come from the library itself, needs only this second check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.columns import ALL, Columns
from equipoise.data.clients import Integers
from equipoise.grammar import require
from equipoise.method import Method
from equipoise.roles import Phase
from equipoise.task import Task
from equipoise.types import REPORTS, Layout, Replies, Server, Tensors
from equipoise.updates import Updates

TRAVELS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})  # types that become the model's
COHORT = 3  # with fewer answers a median says nothing


class Refusal(NamedTuple):
    """A client's answer that does not count, and why."""

    client: int  # its number
    why: str  # in words
    is_not_finite: bool = False  # it holds NaN or infinity: a run in which nobody's answer is finite has diverged


@dataclass(frozen=True)
class Checks:
    """Which answers count, and what happens to a round with too few of them. None switches a limit off."""

    norm: float | None = 10.0  # largest length of an update, as a multiple of the round's median length
    loss: float | None = 1000.0  # largest loss, as a multiple of the round's median; smaller lies are left to the guard
    quorum: int | None = 1  # valid answers that a round needs; None: half of the clients asked
    too_few: Literal["stop", "skip", "repeat"] = "skip"  # what happens to a round without them
    patience: int = 3  # the run ends after this many tries in a row without an update

    def __post_init__(self) -> None:
        require(self.norm is None or self.norm > 1, "norm", "above 1, or None", self.norm)
        require(self.loss is None or self.loss > 1, "loss", "above 1, or None", self.loss)
        require(self.quorum is None or self.quorum >= 1, "quorum", "at least 1, or None for half", self.quorum)
        require(self.too_few in ("stop", "skip", "repeat"), "too_few", "stop, skip or repeat", self.too_few)
        require(self.patience >= 1, "patience", "at least 1", self.patience)

    def find_quorum(self, asked: int) -> int:
        """How many valid answers a round needs if this many clients are asked."""
        return max(1, -(-asked // 2) if self.quorum is None else self.quorum)


# Without the limits that compare clients: what is left costs next to nothing.
SIMULATION_CHECKS = Checks(norm=None, loss=None, too_few="stop")
DEPLOYMENT_CHECKS = Checks()


@dataclass(frozen=True, eq=False)
class Answer:
    """What one client sent, before it is checked."""

    client: int  # its number
    round: int  # that it answers, counted from 0
    reports: Mapping[str, Any]
    update: Any = None  # local minus global model, as one flat row or as named tensors
    buffers: Mapping[str, Any] = field(default_factory=dict)  # such as running statistics


@dataclass(frozen=True, eq=False)
class Expected:
    """What a server asked for, against which answers are checked."""

    round: int  # counted from 0
    clients: frozenset[int]  # that were asked
    reports: Mapping[str, tuple[int | None, ...]]  # the shape of one client's value; None is any size
    layout: Layout | None  # of the update; None before training, when none is asked for
    buffers: Tensors  # the server's own, for their names, shapes and types
    dtype: torch.dtype  # of the model
    samples: Mapping[int, float]  # numbers of samples that clients gave before


def expect(
    method: Method,
    task: Task,
    server: Server,
    clients: Sequence[int],
    phase: Phase = "train",
    samples: Mapping[int, float] | None = None,
) -> Expected:
    """What these clients are to send in this phase of the server's current round."""
    sizes = {"G": task.layout.size, "C": task.classes, "P": task.personal.size}
    asked = [name for report in method.list_reports(phase) for name in report.gives]
    trains = phase == "train"
    return Expected(
        round=server.memory.round,
        clients=frozenset(clients),
        reports={name: tuple(sizes.get(axis) for axis in REPORTS[name].axes[1:]) for name in asked},
        layout=task.layout if trains else None,
        buffers={name: server.buffers[name] for name, p in task.policies.items() if p == "average" and trains},
        dtype=server.theta.dtype,
        samples=samples or {},
    )


class _Counts(Mapping[int, float]):
    """A number per client, kept in an array."""

    def __init__(self, values: Integers) -> None:
        self.values_of = values

    def __getitem__(self, client: int) -> float:
        if not 0 <= client < len(self.values_of):
            raise KeyError(client)
        return float(self.values_of[client])

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.values_of)))

    def __len__(self) -> int:
        return len(self.values_of)


def count_declared_samples(task: Task) -> Mapping[int, float]:
    """How many training samples each client has, as far as the server knows."""
    return _Counts(task.federation.count("train"))


# --------------------------------------------------------------------------- single answers, from anywhere
def admit(
    answers: Sequence[Answer], wanted: Expected, checks: Checks = DEPLOYMENT_CHECKS
) -> tuple[Replies | None, list[Refusal]]:
    """The answers that count, stacked in the order of clients (None if none counts), and why the others do not.

    The result does not depend on the order of arrival. Copies of one answer count once; a client that sends two different
    answers does not count.
    """
    good: dict[int, list[Replies]] = {}
    refused: list[Refusal] = []
    for answer in answers:
        try:
            one = _converted(answer, wanted)
        except _Bad as why:
            refused.append(Refusal(answer.client, str(why)))
        else:
            good.setdefault(one.clients[0], []).append(one)
    single: list[Replies] = []
    for client, copies in good.items():
        if all(_same(copy, copies[0]) for copy in copies[1:]):
            single.append(copies[0])
            refused += [Refusal(client, "counts once: this is a copy of its answer")] * (len(copies) - 1)
        else:
            refused.append(Refusal(client, f"sent {len(copies)} different answers to round {wanted.round + 1}"))
    single, odd = _of_one_shape(single)
    refused += odd
    if not single:
        return None, sorted(refused)
    replies, more = check_numbers(Replies.join(single), wanted, checks)
    return replies, sorted([*refused, *more])


class _Bad(Exception):  # noqa: N818 - it never leaves this module
    """Why an answer does not count."""


def _converted(answer: Answer, wanted: Expected) -> Replies:
    """An answer as the replies of one client, in the model's type."""
    if answer.client not in wanted.clients:
        raise _Bad("was not asked in this round")
    if answer.round != wanted.round:
        raise _Bad(f"answers round {_plus_one(answer.round)}, not round {wanted.round + 1}")
    _same_names(answer.reports, wanted.reports, "reports")
    reports = {
        name: _tensor(answer.reports[name], shape, f"report `{name}`", None) for name, shape in wanted.reports.items()
    }
    _same_names(answer.buffers, wanted.buffers, "buffers")
    buffers = {
        name: _tensor(answer.buffers[name], tuple(known.shape), f"buffer `{name}`", known.dtype)
        for name, known in wanted.buffers.items()
    }
    update = None
    if wanted.layout is not None:
        update = _row(answer.update, wanted.layout, wanted.dtype)[None]
    elif answer.update is not None:
        raise _Bad("sent an update that was not asked for")
    return Replies(
        (int(answer.client),),
        {name: value[None] for name, value in reports.items()},
        update,
        {name: value[None] for name, value in buffers.items()},
    )


def _plus_one(round: object) -> object:
    return round + 1 if isinstance(round, int) else round


def _same_names(found: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    missing, strange = sorted(set(wanted) - set(found)), sorted(map(str, set(found) - set(wanted)))
    if missing:
        raise _Bad(f"{what} without {', '.join(missing)}")
    if strange:
        raise _Bad(f"unknown {what}: {', '.join(strange)[:200]}")


def _row(update: Any, layout: Layout, dtype: torch.dtype) -> Tensor:
    if update is None:
        raise _Bad("sent no update")
    if not isinstance(update, Mapping):
        return _tensor(update, (layout.size,), "the update", dtype)
    _same_names(update, dict.fromkeys(layout.names), "tensors")
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return layout.join({name: _tensor(update[name], shapes[name], f"`{name}`", dtype) for name in layout.names})


def _tensor(value: Any, shape: Sequence[int | None], what: str, dtype: torch.dtype | None) -> Tensor:
    """A tensor of this shape (nothing is broadcast) and type. `dtype=None` keeps the type it has."""
    if isinstance(value, (str, bytes)) or value is None:
        raise _Bad(f"{what} is {type(value).__name__}, not numbers")
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise _Bad(f"{what} is {type(value).__name__}, not numbers") from None
    if tensor.dim() != len(shape) or any(b not in (None, a) for a, b in zip(tensor.shape, shape, strict=True)):
        raise _Bad(f"{what} has shape {list(tensor.shape)}, not {['any' if s is None else s for s in shape]}")
    counter = dtype is not None and not dtype.is_floating_point
    if (
        tensor.dtype not in TRAVELS
        and not (counter and tensor.dtype == dtype)
        and not (dtype is None and _scalar(value))
    ):
        raise _Bad(f"{what} has type {str(tensor.dtype).removeprefix('torch.')}")
    if dtype is None:
        return tensor if tensor.dtype in TRAVELS else tensor.double()
    return tensor.to(dtype)


def _scalar(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _same(a: Replies, b: Replies) -> bool:
    pairs = [(a.reports[name], b.reports[name]) for name in a.reports]
    pairs += [(a.buffers[name], b.buffers[name]) for name in a.buffers]
    if a.updates is not None and b.updates is not None:
        pairs.append((a.updates, b.updates))
    return all(x.shape == y.shape and torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in pairs)


def _of_one_shape(single: Sequence[Replies]) -> tuple[list[Replies], list[Refusal]]:
    """Refuse reports whose shape is not that of most clients, and bring the rest to one type.

    This is for sizes that the server does not know beforehand, such as the width of prototypes.
    """
    kept, refused = list(single), []
    for name in single[0].reports if single else ():
        common = Counter(tuple(one.reports[name].shape) for one in kept)
        shape = max(sorted(common), key=common.__getitem__) if common else ()
        for one in [one for one in kept if tuple(one.reports[name].shape) != shape]:
            found = list(one.reports[name].shape[1:])
            refused.append(Refusal(one.clients[0], f"report `{name}` has shape {found}, not {list(shape[1:])}"))
            kept.remove(one)
    for name in single[0].reports if single else ():  # types may differ between clients; a stack has one
        widest = max((one.reports[name].dtype for one in kept), key=lambda d: d.itemsize, default=None)
        kept = [replace(one, reports={**one.reports, name: one.reports[name].to(widest)}) for one in kept]
    return kept, refused


# --------------------------------------------------------------------------- numbers of a whole round
def check_numbers(
    replies: Replies, wanted: Expected, checks: Checks = DEPLOYMENT_CHECKS
) -> tuple[Replies | None, list[Refusal]]:
    """The replies without clients whose numbers cannot be true (None if no client is left), and the reasons.

    A client is judged by what it sent, and by medians over the clients that have not been refused so far. Where only
    the sum of the updates is known, single updates cannot be checked: `is_sum_finite` checks the sum.
    """
    why: dict[int, str] = {}
    infinite: set[int] = set()

    def refuse(bad: Tensor, reason: str) -> None:
        for place in bad.nonzero().flatten().tolist():
            why.setdefault(place, reason)

    def refuse_infinite(bad: Tensor, what: str) -> None:
        refuse(bad, f"{what} is not finite")
        infinite.update(bad.nonzero().flatten().tolist())

    for name, value in replies.reports.items():
        refuse_infinite(~_finite(value, find_columns(replies, name)), f"report `{name}`")
    for name, value in replies.buffers.items():
        refuse_infinite(~_finite(value), f"buffer `{name}`")
    norms = None if replies.updates is None else Updates(replies.updates, columns=replies.columns).norms()
    if norms is not None and replies.updates is not None:
        bad = ~torch.isfinite(norms)  # a norm may overflow although the update does not
        for place in bad.nonzero().flatten().tolist():
            bad[place] = not bool(_finite(replies.updates[place][None], replies.columns))
        refuse_infinite(bad, "the update")
    _check_samples(replies, wanted.samples, refuse)
    for name, value in replies.reports.items():
        impossible = REPORTS[name].find_impossible(value).reshape(len(value), -1).any(1)
        refuse(impossible, f"report `{name}` is {'not above zero' if REPORTS[name].is_positive else 'negative'}")
        if REPORTS[name].is_loss and checks.loss is not None:
            far = _beyond(value.double(), checks.loss, why)
            refuse(far, f"report `{name}` is over {checks.loss:g} times the median")
    if checks.norm is not None:
        if norms is not None:
            refuse(
                _beyond(norms, checks.norm, why), f"the update is over {checks.norm:g} times as long as the median one"
            )
        for name, value in replies.reports.items():
            if REPORTS[name].length_power:
                limit = checks.norm ** REPORTS[name].length_power
                far = _beyond(_lengths(value, find_columns(replies, name)), limit, why)
                refuse(far, f"report `{name}` is over {limit:g} times as large as the median one")
        for name, value in replies.buffers.items():
            if not value.is_floating_point():  # a counter, of batches for example, has no usual size
                continue
            # Running means may be near zero at most clients, so the median counts as a root mean square of at least 1.
            usual = value[0].numel() ** 0.5
            far = _beyond(_lengths(value), checks.norm**2, why, at_least=usual)
            refuse(far, f"buffer `{name}` is over {checks.norm**2:g} times as large as the median one")
    if not why:
        return replies, []
    refused = [Refusal(replies.clients[place], reason, place in infinite) for place, reason in sorted(why.items())]
    return select_places(replies, [place for place in range(len(replies.clients)) if place not in why]), refused


def select_places(replies: Replies, places: Sequence[int]) -> Replies | None:
    """The replies of the clients at these places; None if there are no places."""
    if not places:
        return None
    chosen = list(places)
    return Replies(
        tuple(replies.clients[place] for place in chosen),
        {name: value[chosen] for name, value in replies.reports.items()},
        None if replies.updates is None else replies.updates[chosen],
        {name: value[chosen] for name, value in replies.buffers.items()},
        columns=replies.columns,
    )


def is_sum_finite(replies: Replies) -> bool:
    """Whether a sum of updates is finite, and so every update in it."""
    return replies.total is None or bool(_finite(replies.total[None], replies.columns))


def find_columns(replies: Replies, report: str) -> Columns:
    """Which columns of a report are here: those of the updates, if it has an entry per parameter; otherwise all."""
    return replies.columns if REPORTS[report].has_columns else ALL


def _finite(value: Tensor, columns: Columns = ALL) -> Tensor:
    """Which clients' values are finite, [m]. The sum of a row is checked first; only if it is not finite, all values
    are."""
    if not value.is_floating_point():
        return torch.ones(len(value), dtype=torch.bool)
    rows = value.reshape(len(value), -1)
    sure = torch.isfinite(rows.sum(1))
    for place in (~sure).nonzero().flatten().tolist():
        sure[place] = torch.isfinite(rows[place]).all()
    return columns.add_up((~sure).double()) == 0


def _lengths(value: Tensor, columns: Columns = ALL) -> Tensor:
    return columns.length(value.double().reshape(len(value), -1))


def _beyond(values: Tensor, limit: float, refused: Mapping[int, str], at_least: float = 0.0) -> Tensor:
    """Which values exceed `limit` times the median of the clients not refused so far, or times `at_least`, if that is
    more."""
    fair = [place for place in range(len(values)) if place not in refused]
    if len(fair) < COHORT:
        return torch.zeros(len(values), dtype=torch.bool)
    middle = values[fair].double().median()  # the lower one of two middle values: half of the clients cannot raise it
    middle = middle.clamp(min=at_least)
    return (values.double() > limit * middle) & (middle > 0)


def _check_samples(replies: Replies, known: Mapping[int, float], refuse: Callable[[Tensor, str], None]) -> None:
    if "samples" not in replies.reports:
        return
    samples = replies.reports["samples"].double()
    refuse((samples < 1) | (samples != samples.round()), "report `samples` is not a whole number above zero")
    said = torch.tensor([known.get(client, float(n)) for client, n in zip(replies.clients, samples, strict=True)])
    refuse(samples != said.to(samples), "report `samples` is not the number that the client first gave")
