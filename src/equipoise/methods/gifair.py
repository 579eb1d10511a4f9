"""GIFAIR-FL: a penalty on the differences between the clients' losses.

Yue, Nouiehed and Al Kontar, INFORMS Journal on Data Science, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.method import Method, Round, State, Weigh, Weighed, register, require
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.weights import shares


def standing(loss: Tensor) -> Tensor:
    """`sum_j sign(F_k - F_j)`, `[m]`: the number of clients with a smaller loss minus the number with a larger one.

    >>> import torch
    >>> standing(torch.tensor([0.5, 2.0, 1.0]))
    tensor([-2.,  2.,  0.])
    """
    return (loss[:, None] - loss[None]).sign().sum(1)


@dataclass(frozen=True)
class ByStanding(Weigh, needs=("samples", "loss"), by_columns=()):
    """The weights `p_k + lambda r_k`, with the client's share of samples `p_k` and its standing `r_k` among the losses.

    `lambda` is the share `strength` of the largest value that leaves no weight negative, `min p_k / (m - 1)`.
    """

    strength: float  # from 0 to below 1

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
    """The weights `p_k + lambda sum_j sign(F_k - F_j)`, with shares of samples `p_k` and losses `F_k`.

    `strength` is `lambda` as a share of its largest possible value, `min p_k / (K - 1)` for K clients; 0 is FedAvg.
    """
    require(0 <= strength < 1, "strength", "at least 0 and below 1", strength)
    return Method(reports=(GlobalLoss(),), weigh=ByStanding(strength))
