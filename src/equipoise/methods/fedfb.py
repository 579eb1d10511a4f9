"""FedFB, fair batches: weights on samples by class and group, which the server moves by the pooled losses of groups.

Zeng, Chen and Lee, 2021; after FairBatch (Roh et al., ICLR 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise.method import Local, Method, Reports, Round, Sent, Share, State, Term, Weigh, Weighed, register, require
from equipoise.parts.groups import GROUP_WEIGHTS, POSITIVE, GroupLosses
from equipoise.parts.weights import shares

Metric = Literal["demographic_parity", "equal_opportunity"]


@dataclass(frozen=True)
class WeightedGroups(Term, needs=("shared group weights", "groups", "classes")):
    """Multiplies the loss of a sample by the weight of its class (positive or not) and group."""

    def base(self, losses: Tensor, local: Local) -> Tensor:
        """The losses times their weights; as they are before the server has sent weights."""
        weights = local.received.shared.get(GROUP_WEIGHTS)
        if weights is None or local.group is None:
            return losses
        return losses * weights.to(losses)[(local.y == POSITIVE).long(), local.group]


@dataclass(frozen=True)
class ByGroupWeight(Weigh, needs=("group_weight",), by_columns=()):
    """Weights clients by the sum of the weights on their samples, which is their number before the server moves them."""

    rank: ClassVar[int] = 1

    def raw(self, reports: Reports) -> Tensor | None:
        """The sums of weights."""
        return reports["group_weight"]

    def __call__(self, round: Round, state: State) -> Weighed:
        return Weighed(shares(round.reports["group_weight"].double()))


def move_weights(
    shares: Tensor, sizes: Tensor, losses: Tensor, pooled: Tensor, rate: float, metric: Metric
) -> tuple[Tensor, Tensor]:
    """Move the groups' shares `[2, Z]`, by truth and group, one step; and the gaps of surrogate rates `[Z]`.

    `sizes [Z, 2]` and `losses [Z, 2]` are the sums of the round's clients, by group and truth; `pooled [Z]` are the
    samples of each group at all clients that are known. A group that gets too many positive answers has its negatives
    weighted up; for equal opportunity, one whose positives have a larger loss has these weighted up.
    """
    top = 2 * pooled / pooled.sum()
    if metric == "demographic_parity":
        level = (sizes[:, 1] - losses[:, 1] + losses[:, 0]) / sizes.sum(1)  # the loss stands for the number of errors
        moved = 0
    else:
        level = losses[:, 1] / sizes[:, 1]
        moved = 1
    gap = torch.nan_to_num(level - level[0])  # a group without samples in this round stays where it is
    step = rate * gap
    step[0] = -step[1:].sum()
    after = shares.clone()
    after[moved] = torch.minimum((shares[moved] + step).clamp(min=0), top)
    if metric == "demographic_parity":
        after[1] = top - after[0]
    return after, gap


@dataclass(frozen=True)
class GroupShare(
    Share,
    needs=("group_losses", "group_sizes"),
    gives=("shared group weights",),
    remembers="its samples by group and class",
    by_columns=(),
):
    """Moves the weights of classes and groups by the pooled losses at the received model, and sends them."""

    reads_updates: ClassVar[bool] = False
    alpha: float
    metric: Metric

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        each, losses = (round.reports[name].double() for name in ("group_sizes", "group_losses"))
        known = state.rows("sizes").put(round.clients, each)
        pooled = torch.stack([known[c] for c in known]).sum((0, 2))
        done = state.tensor("count", torch.tensor(0))
        rate = self.alpha / float(done + 1) ** 0.5
        # The weights are remembered, not the shares: these change as well when further clients become known.
        parts = pooled / pooled.sum()
        before = state.tensor("weights", torch.ones_like(each[0].T)) * parts
        after, _ = move_weights(before, each.sum(0), losses.sum(0), pooled, rate, self.metric)
        weights = torch.where(parts > 0, after / parts, 1.0)
        return Sent({GROUP_WEIGHTS: weights.float()}, {"sizes": known, "weights": weights, "count": done + 1})


@register(
    title="Weights on samples by class and group, moved by pooled losses",
    reference="Zeng, Chen, Lee, Improving fairness via federated learning, 2021",
)
def fedfb(alpha: float = 0.3, metric: Metric = "demographic_parity") -> Method:
    """The loss of a sample has the weight of its class and group, which the server moves towards equal rates.

    In each round a group whose (surrogate) rate of positive answers is above that of the first group has its negatives
    weighted up and its positives down, by `alpha / sqrt(round)` times the difference. With
    `metric="equal_opportunity"` the weights of positives move by the differences of their mean losses. Weights begin at
    1; with `alpha=0` they stay there, and it is FedAvg.
    """
    require(alpha >= 0, "alpha", "at least 0", alpha)
    return Method(
        terms=(WeightedGroups(),), reports=(GroupLosses(),), weigh=ByGroupWeight(), share=(GroupShare(alpha, metric),)
    )
