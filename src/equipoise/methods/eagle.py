"""EAGLE: loss-gap parity. Every client should stand equally far from the best it could do alone.

`r_k` is the loss of the global model at client k minus the client's own optimal loss. Its gradient is scaled by
`w_k = 1 + 4 lam K / (K - 1) (r_k - mean r)`, which is that of the objective `mean L + 2 lam Var(r)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise.method import (
    Beginning,
    Method,
    PerClient,
    Phase,
    Received,
    Report,
    Round,
    Sent,
    Share,
    Shared,
    State,
    Tensors,
    Term,
    Trained,
    Weigh,
    Weighed,
    register,
    require,
)
from equipoise.parts.reports import mean_loss
from equipoise.parts.weights import Uniform

Norm = Literal["sqrtK", "unit", "none"]
FLAT = (
    1e-3  # gain of the training loss over `PATIENCE` epochs, relative to the first epoch's, below which a curve is flat
)
PATIENCE = 10


def gap_weights(gap: Tensor, lam: float, norm: Norm = "none", floor: float | None = None) -> Tensor:
    """A weight per client from the loss gaps of the round's participants; they may be negative, as in the paper.

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
    if norm == "none":
        return weights
    return weights / torch.linalg.vector_norm(weights) * (K**0.5 if norm == "sqrtK" else 1.0)


@dataclass(frozen=True)
class LossGap(Report, gives=("gap",)):
    """`gap`, against the optimal loss that the start-up phase found. Its curve of losses stays in the client's state."""

    split: Literal["validation", "train"] = "validation"
    lstar: Literal["final", "best_val"] = "final"
    epochs: int = 200
    early: bool = False  # reported before training, in a probe

    @property
    def needs(self) -> tuple[str, ...]:
        return ("validation",) if self.split == "validation" or self.lstar == "best_val" else ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ("probe",) if self.early else ("train",)

    def start(self, beginning: Beginning) -> list[Tensors]:
        """Each client trains the first model alone until its training loss is flat, or for `epochs`."""
        splits = dict.fromkeys(("train", self.split, *(("validation",) if self.lstar == "best_val" else ())))
        curves = beginning.train_alone(self.epochs, tuple(splits), is_flat)
        judged = curves[self.split]
        last, best = (~judged.isnan()).sum(1) - 1, curves.get("validation", judged).nan_to_num(torch.inf).argmin(1)
        chosen = last if self.lstar == "final" else best
        optimum = judged[torch.arange(len(judged)), chosen]
        return [{"optimum": optimum[i], "curve": curves["train"][i]} for i in range(len(judged))]

    def __call__(self, trained: Trained) -> Tensors:
        samples = trained.validation if self.split == "validation" else trained.train
        loss = mean_loss(trained, trained.received, samples)
        return {"gap": loss - trained.states[self.key]["optimum"]}


def is_flat(curve: Tensor) -> bool:
    """Whether the last epochs hardly improved on the best loss before them."""
    if len(curve) <= PATIENCE:
        return False
    before, lately = curve[:-PATIENCE].min(), curve[-PATIENCE:].min()
    return bool(before - lately < FLAT * curve[0])


@dataclass(frozen=True)
class ScaledLoss(Term, needs=("shared weight",)):
    """The whole local loss times the weight that the server sent to this client."""

    def scale(self, loss: Tensor, received: Received) -> Tensor:
        return received.own["weight"].to(loss.dtype)


@dataclass(frozen=True)
class GapShare(Share, needs=("gap",), gives=("shared weight",), remembers="its next weight"):
    """`weight`: each participant's next weight; who was absent keeps the last one."""

    reads_updates: ClassVar[bool] = False

    lam: float
    norm: Norm
    floor: float | None
    early: bool

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ("probe",) if self.early else ("train",)

    def begin(self, cohort: int) -> Shared:
        return {"weight": first_weights(self.norm, cohort)}

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        last = state.rows("weight", default=first_weights(self.norm, len(round.clients)).default)
        weights = last.put(round.clients, gap_weights(round.reports["gap"].double(), self.lam, self.norm, self.floor))
        return Sent({"weight": weights}, {"weight": weights})


def first_weights(norm: Norm, cohort: int) -> PerClient:
    """The weight of a client whose gap is not known yet: that of equal gaps among this many clients."""
    return PerClient(default=torch.tensor(cohort**-0.5 if norm == "unit" else 1.0, dtype=torch.float64))


@dataclass(frozen=True)
class GapWeigh(Weigh, needs=("gap",)):
    """The same weights on the updates instead of on the local losses: `w_k / m`."""

    lam: float
    norm: Norm
    floor: float | None
    lag: Literal[0, 1]

    @property
    def is_convex(self) -> bool:
        return False

    @property
    def is_non_negative(self) -> bool:
        return self.floor is not None

    @property
    def remembers(self) -> str:
        return "its next weight" if self.lag else ""

    def __call__(self, round: Round, state: State) -> Weighed:
        gap = round.reports["gap"].double()
        last = state.rows("weight", default=first_weights(self.norm, len(round.clients)).default)
        fresh = gap_weights(gap, self.lam, self.norm, self.floor)
        used = fresh if self.lag == 0 else last.take(round.clients)
        kept = {"weight": last.put(round.clients, fresh)} if self.lag else {}
        return Weighed(used / len(used), kept, figures={"gap": gap, "w": used})


@register(
    title="Loss-gap parity: equal distance to what each client could reach alone",
    reference="Erraji, Perrot, Bellet, Loss gap parity for fairness in heterogeneous federated learning, arXiv 2603.29818",
    per_dataset={
        "gaussians": {"lam": 2.0, "gap_split": "train"},
        # Its smallest clients validate on five samples, which a converged model fits too badly to be called an optimum.
        "scanners": {"lstar": "best_val"},
    },
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
    """`norm="unit"` is the paper's; `"sqrtK"` keeps its direction and the step length of FedAvg. `lag=0` measures the gaps
    of this round's model in a probe before training. `apply="server"` weighs the updates instead of the losses."""
    require(lam >= 0, "lam", "at least 0", lam)
    require(floor is None or floor >= 0, "floor", "at least 0, or None to keep negative weights", floor)
    require(lstar_epochs >= 1, "lstar_epochs", "at least 1", lstar_epochs)
    early = lag == 0 and apply == "client"
    reports = (LossGap(gap_split, lstar, lstar_epochs, early),)
    if apply == "server":
        return Method(reports=reports, weigh=GapWeigh(lam, norm, floor, lag))
    share = GapShare(lam, norm, floor, early)
    return Method(terms=(ScaledLoss(),), reports=reports, weigh=Uniform(), share=(share,))
