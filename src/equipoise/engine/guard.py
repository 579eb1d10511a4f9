"""A guard against clients that want more influence than others.

Fair methods give more weight to a client that says that it fares badly, and so to one that lies. The guard limits
everything that drives weight, in front of any method. A loss is clipped to a robust range of all losses in the round, and
may not rise by more than a factor per round. Declared counts are clipped to a multiple of the median, and so are the
lengths of updates and of reports such as Fisher information, which may not be far below the others', either. And no
weighting gives a client more than a cap. An honest client that is unlike the others pays for this, too:
`docs/reliability.md` says how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.engine.checks import COHORT, find_columns
from equipoise.errors import EquipoiseError
from equipoise.grammar import require
from equipoise.method import Method
from equipoise.parts.robust import clip_lengths, find_scales
from equipoise.parts.weights import shares
from equipoise.roles import Part, Phase, Share, Weigh
from equipoise.types import REPORTS, PerClient, Replies, Round, Sent, Server, Shared, State, Weighed
from equipoise.updates import Updates

KEY = "guard"  # of the server's memory for the reports that it believed; the keys of parts begin with their role
SPREAD = 1.4826  # a median absolute deviation times this is a standard deviation, for normal values


@dataclass(frozen=True)
class Guard:
    """Limits on what a client can gain by what it sends."""

    # Largest share of the weights: this many equal shares or, where a weighting counts samples, the client's share of
    # the samples that are believed, if that is more.
    share: float = 2.0
    # Largest loss: this many medians, or this many robust standard deviations beyond the median. Largest number of samples
    # (or other count) and size of a report such as Fisher information: this many medians; the latter's smallest: the
    # median over this.
    clip: float = 3.0
    climb: float = 2.0  # largest factor from a client's last loss to the next, for losses above the round's median
    length: float = 3.0  # largest length of an update, in medians of the round

    def __post_init__(self) -> None:
        for name in ("share", "clip", "climb", "length"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))


DEPLOYMENT_GUARD = Guard()
# Where those who go against the others are refused, with what they report, honest ones may differ more.
GUARD_BESIDE_ROBUST = Guard(share=3.0, clip=6.0, length=6.0)


def choose_guard(method: Method) -> Guard:
    """The guard of a deployment of this method."""
    return GUARD_BESIDE_ROBUST if any(part.finds_attackers for part in method.shape) else DEPLOYMENT_GUARD


def cap_weights(method: Method, guard: Guard) -> Method:
    """The method with caps on the weights that the server gives, and on those that it sends down."""
    share = tuple(CappedShare(part, guard.share) if WEIGHT in part.gives else part for part in method.share)
    return replace(method, weigh=CappedWeigh(method.weigh, guard.share), share=share)


# --------------------------------------------------------------------------- what clients send
def clip_replies(guard: Guard, server: Server, replies: Replies) -> tuple[Server, Replies, tuple[str, ...]]:
    """Clip what drives weights: the server, which remembers the losses that it believed, the replies, and what was clipped,
    in words."""
    if len(replies.clients) < COHORT:  # nobody can be told apart
        return server, replies, ()
    reports, memory, notes = dict(replies.reports), State(server.memory.parts.get(KEY, {})), []

    def note(said: Tensor, heard: Tensor, what: str) -> bool:
        """Note whose numbers `[m]` were clipped; whether there are any."""
        for client, a, b in zip(replies.clients, said.tolist(), heard.tolist(), strict=True):
            if a != b:
                notes.append(f"guard: client {client} {what} {a:.3g}, {b:.3g} counts")
        return not torch.equal(said, heard)

    for name, value in replies.reports.items():
        definition = REPORTS[name]
        if definition.drives_weight:
            last, said = memory.rows(name), value.double()
            heard = clip_to_cohort(said, replies.clients, last, guard)
            memory[name] = last.put(replies.clients, heard)
            if note(said, heard, f"reported {name}"):
                reports[name] = heard.to(value.dtype)
        elif definition.is_count or definition.length_power:
            rows = value.reshape(len(value), -1).double()
            said = rows.sum(1) if definition.is_count else find_columns(replies, name).length(rows)
            usual, factor = said.median(), guard.clip ** max(definition.length_power, 1)
            # Who says that it has little gains nothing by it.
            lowest = torch.zeros_like(usual) if definition.is_count else usual / factor
            heard = said.clamp(lowest, usual * factor) if usual > 0 else said
            if note(said, heard, f"reported {name}" if definition.is_count else f"reported a {name} of size"):
                scale = torch.where(said > 0, heard / said, 1.0).view(-1, *[1] * (value.dim() - 1))
                reports[name] = (value * scale).to(value.dtype)
    updates = replies.updates
    if updates is not None:
        said = Updates(updates, columns=replies.columns).norms()
        scales = find_scales(server.memory.find_loss_weights(replies.clients), len(said))
        factors = clip_lengths((said / scales).square(), guard.length)
        if note(said, said * factors, "sent an update of length"):
            updates = updates * factors.to(updates.dtype)[:, None]
    parts = {**server.memory.parts, **({KEY: memory} if memory else {})}
    server = replace(server, memory=replace(server.memory, parts=parts))
    return server, replace(replies, reports=reports, updates=updates), tuple(notes)


def clip_to_cohort(said: Tensor, clients: Sequence[int], last: PerClient, guard: Guard) -> Tensor:
    """Reports `[m]`, clipped to a robust range of the round, and to the largest rise since each client's last report.

    The range is equally wide on both sides of the median, because a client may report a gap that is too high (by a high
    loss, or by an own optimum that is too low) or one that is too low.

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
    """Weights with the same total, in which no weight's share of the absolute sum is larger than its limit.

    What is cut off goes to the others in proportion to their weights, or evenly where these are zero. Limits that add
    up to less than one are widened until they add up to one.

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


def raise_to_zero(weights: Tensor) -> Tensor:
    """Weights with the same total, none of them negative.

    A negative weight turns a client's training against it. Weights that follow from what others report (EAGLE's) could be
    driven there by one of them.

    >>> raise_to_zero(torch.tensor([-0.5, 0.5, 1.0]))
    tensor([0.0000, 0.3333, 0.6667])
    """
    total, raised = weights.sum(), weights.clamp(min=0)
    if not bool(total > 0):  # nothing is left to go by
        return torch.full_like(weights, float(total.abs()) / len(weights))
    return raised * (total / raised.sum())


def _limits(share: float, round: Round, by_samples: bool) -> Tensor:
    m = len(round.clients)
    equal = torch.full((m,), share / m, dtype=torch.float64)
    return torch.maximum(equal, shares(round.reports["samples"].double())) if by_samples else equal


class _Around(Part):
    """A part that wraps another one, and has its name, its needs and its memory."""

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

    @property
    def by_columns(self) -> tuple[str, ...] | None:
        return self.inner.by_columns


@dataclass(frozen=True)
class CappedWeigh(_Around, Weigh):
    """A weighting with a cap on each client's share."""

    inner: Weigh
    share: float

    @property
    def is_convex(self) -> bool:
        """As the wrapped weighting says."""
        return self.inner.is_convex

    @property
    def is_non_negative(self) -> bool:
        """As the wrapped weighting says."""
        return self.inner.is_non_negative

    @property
    def rank(self) -> int:  # type: ignore[override]
        """As the wrapped weighting says."""
        return self.inner.rank

    def __call__(self, round: Round, state: State) -> Weighed:
        found = self.inner(round, state)
        weights = cap(raise_to_zero(found.weights.double()), _limits(self.share, round, "samples" in self.needs))
        return found._replace(weights=weights, figures={**found.figures, "unguarded weight": found.weights})


WEIGHT = "shared weight"  # what a part gives that sends weights down to the clients


@dataclass(frozen=True)
class CappedShare(_Around, Share):
    """A part that sends weights which clients put on their own losses (EAGLE's), with a cap on each client's share."""

    inner: Share
    share: float

    @property
    def reads_updates(self) -> bool:  # type: ignore[override]
        """As the wrapped part says."""
        return self.inner.reads_updates

    @property
    def phases(self) -> tuple[Phase, ...]:
        """As the wrapped part says."""
        return self.inner.phases

    def begin(self, cohort: int) -> Shared:
        """What the wrapped part sends in the first round."""
        return self.inner.begin(cohort)

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        found = self.inner(round, theta, state)
        rows = found.shared.get("weight")
        if not isinstance(rows, PerClient):
            raise EquipoiseError(
                f"`{self.inner.name}` (share) gives a `{WEIGHT}`: it must send it as `weight`, one row per client."
            )
        weights = raise_to_zero(rows.take(round.clients).double())
        weights = self.inner.scale_capped(cap(weights, _limits(self.share, round, "samples" in self.needs)))
        rows = rows.put(round.clients, weights)
        kept = (
            {**found.state, "weight": rows} if "weight" in found.state else found.state
        )  # a client that is absent keeps its capped weight
        return found._replace(shared={**found.shared, "weight": rows}, state=kept)
