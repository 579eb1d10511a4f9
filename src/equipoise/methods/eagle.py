"""EAGLE, loss-gap parity: all clients should be equally far from the best loss that they could reach alone.

Erraji, Perrot and Bellet, arXiv 2603.29818. The gap `r_k` is the loss of the global model at client k minus the
client's own optimal loss. The client's loss is scaled by `w_k = 1 + 4 lam K / (K - 1) (r_k - mean r)`, so that the
clients' mean gradient is that of `mean L + 2 lam Var(r)`, with the sample variance over K clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise.method import (
    Method,
    PerClient,
    Phase,
    Range,
    Received,
    Round,
    Sent,
    Share,
    Shared,
    State,
    Tensors,
    Term,
    Weigh,
    Weighed,
    register,
    require,
)
from equipoise.parts.gaps import LossGap
from equipoise.parts.weights import Uniform

Norm = Literal["sqrtK", "unit", "none"]  # the norm to which the weights are scaled: sqrt(K), 1, or not scaled


def gap_weights(gap: Tensor, lam: float, norm: Norm = "none", floor: float | None = None) -> Tensor:
    """The weights `1 + 4 lam K / (K - 1) (r_k - mean r)`, `[K]`, from the loss gaps of the round's K participants.

    A weight can be negative, as in the paper, unless a `floor` is given: weights below it are raised to it, and all are
    rescaled to the sum K. `norm` scales the weights to a norm of `sqrt(K)` or 1, or leaves them.

    >>> gap_weights(torch.tensor([0.1, 0.3]), lam=1.0)
    tensor([0.2000, 1.8000])
    """
    K = len(gap)
    if K == 1:
        return torch.ones_like(gap)
    weights = 1 + 4 * lam * K / (K - 1) * (gap - gap.mean())
    if floor is not None:
        clipped = weights.clamp(min=floor)
        weights = clipped * (K / clipped.sum())
    return normalise(weights, norm)


def normalise(weights: Tensor, norm: Norm) -> Tensor:
    """Weights `[K]` scaled to the norm `sqrt(K)` or 1, or as they are."""
    if norm == "none":
        return weights
    return weights / torch.linalg.vector_norm(weights) * (len(weights) ** 0.5 if norm == "sqrtK" else 1.0)


def describe_gaps(round: Round, weights: Tensor, lam: float) -> Tensors:
    """What the records tell of a round: each client's weight `w` on its loss, its `gap` and, where clients report it,
    their `optimum`; and then the objective `F = mean L + 2 lam Var(gap)`, with the sample variance."""
    gap = round.reports["gap"].double()
    found = {"w": weights, "gap": gap}
    if "optimum" not in round.reports:
        return found
    optimum = round.reports["optimum"].double()
    spread = gap.var() if len(gap) > 1 else torch.zeros_like(gap[0])
    return {**found, "optimum": optimum, "F": (gap + optimum).mean() + 2 * lam * spread}


@dataclass(frozen=True)
class ScaledLoss(Term, needs=("shared weight",)):
    """Multiplies the whole local loss by the weight that the server sent to this client."""

    def scale(self, loss: Tensor, received: Received) -> Tensor:
        """The client's weight."""
        return received.own["weight"].to(loss.dtype)


@dataclass(frozen=True)
class GapShare(Share, needs=("gap",), gives=("shared weight",), remembers="its next weight", by_columns=()):
    """Sends each client its next `weight`, from the participants' loss gaps. An absent client keeps its last weight."""

    reads_updates: ClassVar[bool] = False

    lam: float  # strength of the parity
    norm: Norm  # the norm to which the weights are scaled
    floor: float | None  # smallest weight; None: weights may be negative
    early: bool  # whether gaps are reported in a probe, so that the weights serve in the same round

    @property
    def phases(self) -> tuple[Phase, ...]:
        """After the probe, or after training."""
        return ("probe",) if self.early else ("train",)

    def begin(self, cohort: int) -> Shared:
        """The weight of equal gaps, for every client."""
        return {"weight": first_weights(self.norm, cohort)}

    def scale_capped(self, weights: Tensor) -> Tensor:
        """The weights that a guard has changed, with the norm that they are to have."""
        return normalise(weights, self.norm)

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        last = state.rows("weight", default=first_weights(self.norm, len(round.clients)).default)
        used = last.take(round.clients)
        fresh = gap_weights(round.reports["gap"].double(), self.lam, self.norm, self.floor)
        figures = describe_gaps(round, fresh if self.early else used, self.lam)
        if not self.early:
            figures |= measure_slope(round, theta, used)
        weights = last.put(round.clients, fresh)
        return Sent({"weight": weights}, {"weight": weights}, figures)


def measure_slope(round: Round, theta: Tensor, used: Tensor) -> Tensors:
    """How far the model moved in the round, divided by the local rate: with one full-batch step of SGD, the length of
    the gradient of F, by the weights that were `used`.

    Weights that were scaled to a norm are scaled back, for before that they add up to the number of clients. Where the
    rate is unknown, or the weights do not have a positive sum, nothing can be said.
    """
    rate, total = round.setting.lr, float(used.sum())
    if not rate or total <= 0:
        return {}
    moved = round.columns.length((theta - round.theta).double())
    return {"slope of F": moved / rate * len(used) / total}


def first_weights(norm: Norm, cohort: int) -> PerClient:
    """The weight of clients whose gap is not known yet: that of equal gaps among `cohort` clients."""
    return PerClient(default=torch.tensor(cohort**-0.5 if norm == "unit" else 1.0, dtype=torch.float64))


@dataclass(frozen=True)
class GapWeigh(Weigh, needs=("gap",), by_columns=()):
    """EAGLE's weights on the updates of the m participants instead of on their local losses: `w_k / m`."""

    lam: float  # strength of the parity
    norm: Norm  # the norm to which the weights are scaled
    floor: float | None  # smallest weight; None: weights may be negative
    lag: Literal[0, 1]  # 0: weights from this round's gaps; 1: from the last round's

    @property
    def is_convex(self) -> bool:
        """False: the weights may be negative, and need not sum to one."""
        return False

    @property
    def is_non_negative(self) -> bool:
        """Only with a floor."""
        return self.floor is not None

    @property
    def remembers(self) -> str:
        """Each client's next weight, unless it is used in the same round."""
        return "its next weight" if self.lag else ""

    def __call__(self, round: Round, state: State) -> Weighed:
        gap = round.reports["gap"].double()
        last = state.rows("weight", default=first_weights(self.norm, len(round.clients)).default)
        fresh = gap_weights(gap, self.lam, self.norm, self.floor)
        used = fresh if self.lag == 0 else last.take(round.clients)
        kept = {"weight": last.put(round.clients, fresh)} if self.lag else {}
        return Weighed(used / len(used), kept, figures=describe_gaps(round, used, self.lam))


@register(
    title="Loss-gap parity: equal distance to what each client could reach alone",
    reference="Erraji, Perrot, Bellet, Loss gap parity for fairness in heterogeneous federated learning, arXiv 2603.29818",
    per_dataset={
        "gaussians": {"lam": 2.0, "gap_split": "train"},
        # The smallest clients have five validation samples. On these the loss of a converged model is far from the
        # best.
        "scanners": {"lstar": "best_val"},
        "clinics": {"lam": 0.7, "lstar": "best_val"},  # chosen by benchmarks/demo_parameters.py
    },
    ranges={"lam": Range(0.01, 2.0, log=True), "lstar": ("final", "best_val")},
    side="server",
)
def eagle(
    lam: float = 0.1,
    norm: Literal["sqrtK", "unit", "none"] = "sqrtK",
    lag: Literal[0, 1] = 1,
    floor: float | None = None,
    gap_split: Literal["validation", "train"] = "validation",
    lstar: Literal["final", "best_val"] = "final",
    lstar_epochs: int = 200,
    apply: Literal["client", "server"] = "client",
) -> Method:
    """Each client's local loss is scaled by `w_k = 1 + 4 lam K / (K - 1) (r_k - mean r)`, with its loss gap `r_k`.

    `lam` is the strength of the parity. `norm` scales the weights: `"unit"` to norm 1 as in the paper, `"sqrtK"` to
    norm sqrt(K), which keeps FedAvg's step length, `"none"` not at all. `lag=1` uses the gaps of the last round,
    `lag=0` measures them in a probe before training. `floor` bounds the weights from below; None keeps negative ones.
    Gaps are measured on `gap_split`. The optimal loss is that of training alone for at most `lstar_epochs` epochs:
    after the last one (`lstar="final"`), or after the one with the best validation loss. `apply="server"` puts the
    weights on the updates instead of on the losses.
    """
    require(lam >= 0, "lam", "at least 0", lam)
    require(floor is None or floor >= 0, "floor", "at least 0, or None to keep negative weights", floor)
    require(lstar_epochs >= 1, "lstar_epochs", "at least 1", lstar_epochs)
    early = lag == 0 and apply == "client"
    reports = (LossGap(gap_split, lstar, lstar_epochs, early),)
    if apply == "server":
        return Method(reports=reports, weigh=GapWeigh(lam, norm, floor, lag))
    share = GapShare(lam, norm, floor, early)
    return Method(terms=(ScaledLoss(),), reports=reports, weigh=Uniform(), share=(share,))
