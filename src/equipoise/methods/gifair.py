"""GIFAIR-FL: a penalty on the differences between the clients' losses. Yue, Nouiehed, Al Kontar, INFORMS JDS 2023."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.method import Method, Round, State, Weigh, Weighed, register, require
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.weights import shares


def standing(loss: Tensor) -> Tensor:
    """`sum_j sign(F_k - F_j)`: how many clients are better off, less how many are worse off.

    >>> import torch
    >>> standing(torch.tensor([0.5, 2.0, 1.0]))
    tensor([-2.,  2.,  0.])
    """
    return (loss[:, None] - loss[None]).sign().sum(1)


@dataclass(frozen=True)
class ByStanding(Weigh, needs=("samples", "loss")):
    """`p_k + lambda r_k`, `r_k` the client's standing, `lambda` a share of the largest that leaves no weight negative."""

    strength: float

    def __call__(self, round: Round, state: State) -> Weighed:
        loss = round.reports["loss"].double()
        usual = shares(round.reports["samples"].double())
        lam = self.strength * usual.min() / max(len(loss) - 1, 1)
        return Weighed(usual + lam * standing(loss), figures={"loss": loss, "lambda": lam})


@register(
    title="A penalty on the differences between the clients' losses",
    reference="Yue, Nouiehed, Al Kontar, GIFAIR-FL: a framework for group and individual fairness in federated learning, "
    "INFORMS Journal on Data Science 2023",
)
def gifair(strength: float = 0.5) -> Method:
    """`strength` is the penalty's factor as a share of the largest possible one, `min p_k / (K - 1)`; 0 is FedAvg."""
    require(0 <= strength < 1, "strength", "at least 0 and below 1", strength)
    return Method(reports=(GlobalLoss(),), weigh=ByStanding(strength))
