"""A guard against lying losses. Fair weights reward a high loss, so whoever reports one gains influence.

Three limits, in front of any method that is driven by losses: a report is clipped to a robust range of the cohort's reports;
it may not climb faster than a factor a round; and no client's share of the weights exceeds a cap. An honestly hard client pays
for this, too: `docs/reliability.md` says how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.engine.checks import COHORT
from equipoise.grammar import require
from equipoise.method import Method
from equipoise.parts.weights import shares
from equipoise.roles import Part, Phase, Share, Weigh
from equipoise.types import REPORTS, PerClient, Replies, Round, Sent, Server, Shared, State, Weighed

KEY = "guard"  # under it the server remembers what it believed; no part has such a key, which begins with its role
SPREAD = 1.4826  # a median absolute deviation times this is a standard deviation, for normal values


@dataclass(frozen=True)
class Guard:
    """Limits on what a client can gain by what it says of its losses."""

    share: float = (
        2.0  # no share above so many equal ones; where a weighting counts samples, above so many shares of them
    )
    clip: float = 3.0  # reports up to so many medians, or so many robust standard deviations beyond the median
    climb: float = 2.0  # from one report to the next, above the cohort's median

    def __post_init__(self) -> None:
        for name in ("share", "clip", "climb"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))


DEPLOYMENT_GUARD = Guard()


def _is_driven(part: Part) -> bool:
    """Whether reports by which a client can talk itself up steer this part."""
    return any(need in REPORTS and REPORTS[need].drives_weight for need in part.needs)


def cap_weights(method: Method, guard: Guard) -> Method:
    """The method with caps on the weights that follow from losses."""
    weigh = CappedWeigh(method.weigh, guard.share) if _is_driven(method.weigh) else method.weigh
    share = tuple(
        CappedShare(part, guard.share) if WEIGHT in part.gives and _is_driven(part) else part for part in method.share
    )
    return replace(method, weigh=weigh, share=share)


# --------------------------------------------------------------------------- reports
def clip_reports(guard: Guard, server: Server, replies: Replies) -> tuple[Server, Replies, tuple[str, ...]]:
    """The replies with reports that the server believes, the server that remembers them, and what was cut, in words."""
    reports, memory, notes = dict(replies.reports), State(server.memory.parts.get(KEY, {})), []
    for name in [name for name in reports if REPORTS[name].drives_weight]:
        last = memory.rows(name)
        said = reports[name].double()
        heard = clip_to_cohort(said, replies.clients, last, guard)
        memory[name] = last.put(replies.clients, heard)
        for client, a, b in zip(replies.clients, said.tolist(), heard.tolist(), strict=True):
            if a != b:
                notes.append(f"guard: client {client} reported {name} {a:.3g}, {b:.3g} counts")
        if not torch.equal(said, heard):
            reports[name] = heard.to(reports[name].dtype)
    parts = {**server.memory.parts, **({KEY: memory} if memory else {})}
    return replace(server, memory=replace(server.memory, parts=parts)), replace(replies, reports=reports), tuple(notes)


def clip_to_cohort(said: Tensor, clients: Sequence[int], last: PerClient, guard: Guard) -> Tensor:
    """Reports `[m]` inside the cohort's robust range, none of which climbed too fast.

    The range is as wide on either side of the median: a gap can be made too high (by a high loss, or by an own optimum that is
    too low), and too low.

    >>> clip_to_cohort(torch.tensor([1.0, 1.0, 1.0, 1.0, 100.0]), range(5), PerClient(), Guard())
    tensor([1., 1., 1., 1., 3.])
    """
    if len(said) < COHORT:
        return said
    middle = said.median()
    deviation = SPREAD * (said - middle).abs().median()
    reach = torch.maximum((guard.clip - 1) * middle.abs(), guard.clip * deviation)
    heard = said.clamp(middle - reach, middle + reach)
    for place, client in enumerate(clients):
        if client in last:
            highest = guard.climb * torch.maximum(last[client].to(said), middle)
            if highest > 0:
                heard[place] = torch.minimum(heard[place], highest)
    return heard


# --------------------------------------------------------------------------- weights
def cap(weights: Tensor, limits: Tensor) -> Tensor:
    """Weights of the same total in which none has a larger share (of their absolute sum) than its limit.

    What is cut off goes to the others in proportion, or evenly where they have nothing. Limits that add up to less than one
    are widened until they do.

    >>> cap(torch.tensor([0.1, 0.1, 0.8]), torch.full((3,), 0.5))
    tensor([0.2500, 0.2500, 0.5000])
    """
    total = weights.abs().sum()
    if not bool(total > 0):
        return weights
    part = weights.abs() / total
    limits = (limits / limits.sum().clamp(max=1.0)).to(part)
    full = torch.zeros_like(part, dtype=torch.bool)
    while bool((over := ~full & (part > limits * (1 + 1e-12))).any()):
        full |= over
        free, rest = (1 - limits[full].sum()).clamp(min=0), part[~full].sum()
        others = part / rest * free if rest > 0 else (free / (~full).sum()).expand_as(part)
        part = torch.where(full, limits, others)
        if bool(full.all()):
            break
    return torch.where(weights < 0, -part, part) * total


def _limits(share: float, round: Round, by_samples: bool) -> Tensor:
    m = len(round.clients)
    equal = torch.full((m,), share / m, dtype=torch.float64)
    return torch.maximum(equal, share * shares(round.reports["samples"].double())) if by_samples else equal


class _Around(Part):
    """A part that stands around another one and passes for it."""

    inner: Part

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def needs(self) -> tuple[str, ...]:
        return self.inner.needs

    @property
    def gives(self) -> tuple[str, ...]:
        return self.inner.gives

    @property
    def remembers(self) -> str:
        return self.inner.remembers


@dataclass(frozen=True)
class CappedWeigh(_Around, Weigh):
    """A weighting by losses in which no client has more than its cap."""

    inner: Weigh
    share: float

    @property
    def is_convex(self) -> bool:
        return self.inner.is_convex

    @property
    def is_non_negative(self) -> bool:
        return self.inner.is_non_negative

    @property
    def rank(self) -> int:  # type: ignore[override]
        return self.inner.rank

    def __call__(self, round: Round, state: State) -> Weighed:
        found = self.inner(round, state)
        weights = cap(found.weights.double(), _limits(self.share, round, "samples" in self.needs))
        return found._replace(weights=weights, figures={**found.figures, "unguarded weight": found.weights})


WEIGHT = "shared weight"


@dataclass(frozen=True)
class CappedShare(_Around, Share):
    """The same for weights that clients put on their own losses (EAGLE)."""

    inner: Share
    share: float

    @property
    def reads_updates(self) -> bool:  # type: ignore[override]
        return self.inner.reads_updates

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self.inner.phases

    def begin(self, cohort: int) -> Shared:
        return self.inner.begin(cohort)

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        found = self.inner(round, theta, state)
        rows = found.shared["weight"]
        assert isinstance(rows, PerClient)
        weights = cap(rows.take(round.clients).double(), _limits(self.share, round, "samples" in self.needs))
        rows = rows.put(round.clients, weights)
        kept = (
            {**found.state, "weight": rows} if "weight" in found.state else found.state
        )  # who is absent keeps the capped one
        return Sent({**found.shared, "weight": rows}, kept)
