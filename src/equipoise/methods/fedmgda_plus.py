"""FedMGDA+: a direction of descent for all clients, from unit updates with weights near the usual ones.

Hu et al., IEEE TNSE 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.method import (
    Method,
    Range,
    Round,
    Shape,
    Shaped,
    State,
    Step,
    Stepped,
    Weigh,
    Weighed,
    register,
    require,
)
from equipoise.parts.minnorm import boxed_min_norm_weights
from equipoise.parts.steps import ServerRate
from equipoise.parts.weights import shares
from equipoise.updates import Updates


@dataclass(frozen=True)
class UnitUpdates(Shape, by_columns=()):
    """Scales every update to length one; a zero update stays zero."""

    def __call__(self, round: Round, state: State) -> Shaped:
        lengths = round.updates.norms()
        inverse = torch.where(lengths > 0, 1 / lengths.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
        return Shaped(round.updates.with_coefficients(torch.diag(inverse)))


@dataclass(frozen=True)
class NearMinNorm(Weigh, by_columns=()):
    """The min-norm weights of the shaped updates, among the weights that differ by at most `eps` from the usual
    ones."""

    eps: float  # largest difference of a weight
    around: Literal["samples", "uniform"] = "samples"  # the usual weights: shares of samples, or equal

    @property
    def needs(self) -> tuple[str, ...]:
        """The number of samples, if the usual weights are shares of samples."""
        return ("samples",) if self.around == "samples" else ()

    def __call__(self, round: Round, state: State) -> Weighed:
        gram = round.updates.gram
        usual = shares(round.reports["samples"].double() if self.around == "samples" else torch.ones_like(gram[0]))
        low, high = (usual - self.eps).clamp(min=0), (usual + self.eps).clamp(max=1)
        return Weighed(boxed_min_norm_weights(gram, low, high), figures={"usual": usual})


@dataclass(frozen=True)
class MeanLength(Step, by_columns=()):
    """Multiplies the direction of unit updates by the mean norm of the reported updates, so that its length fits
    training."""

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        lengths = Updates(round.reported, columns=round.columns).norms()
        return Stepped(direction * lengths.mean().to(direction.dtype))


@register(
    title="A direction of descent for all clients, from unit updates with weights near the usual ones",
    reference="Hu et al., Federated learning meets multi-objective optimization, IEEE TNSE 2022",
    ranges={"eps": Range(0.0, 1.0), "server_lr": Range(0.1, 3.0, log=True), "step": ("unit", "mean_length")},
    side="server",
)
def fedmgda_plus(
    eps: float = 0.1,
    around: Literal["samples", "uniform"] = "samples",
    server_lr: float = 1.0,
    step: Literal["unit", "mean_length"] = "unit",
) -> Method:
    """The direction is the shortest weighted sum of the clients' unit updates, with weights near the usual ones.

    A weight may differ by at most `eps` from the usual one, which is the share of samples or equal (`around`): `eps=0`
    is the mean of unit updates, `eps=1` is MGDA. The direction is multiplied by `server_lr`, so that it is at most that
    long, however long the updates are. `step="mean_length"`, which is not in the paper, also multiplies it by their
    mean norm.
    """
    require(0 <= eps <= 1, "eps", "between 0 and 1", eps)
    require(server_lr > 0, "server_lr", "above 0", server_lr)
    steps: tuple[Step, ...] = (MeanLength(),) if step == "mean_length" else ()
    if server_lr != 1:
        steps += (ServerRate(server_lr),)
    return Method(shape=(UnitUpdates(),), weigh=NearMinNorm(eps, around), step=steps)
