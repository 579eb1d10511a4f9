"""PropFair: proportional fairness by a logarithm of what is left up to a largest loss. Zhang et al., TMLR 2023."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.method import Method, Received, Term, register, require


def proportional(loss: Tensor, M: float, eps: float) -> Tensor:
    """`-log(1 - loss/M)`, and `loss/M` where less than `eps` is left up to M.

    >>> proportional(torch.tensor([0.5, 4.9]), M=5.0, eps=0.2)
    tensor([0.1054, 0.9800])
    """
    left = M - loss
    return torch.where(left < eps, loss / M, -torch.log(left.clamp(min=eps) / M))


@dataclass(frozen=True)
class ProportionalLoss(Term):
    """The whole local loss is scaled by what `proportional` makes of the batch's mean loss: its derivative there."""

    M: float
    eps: float

    def scale(self, loss: Tensor, received: Received) -> Tensor:
        left = self.M - loss
        return torch.where(left < self.eps, 1 / self.M, 1 / left.clamp(min=self.eps))


@register(
    title="Proportional fairness by a logarithm of the loss",
    reference="Zhang et al., Proportional fairness in federated learning, TMLR 2023",
    per_dataset={"scanners": {"M": 3.0}},  # above log 10, where the loss of ten classes begins
)
def propfair(M: float = 2.0, eps: float = 0.2) -> Method:
    """`M` should lie above the losses that occur. The gradient is that of the loss over `M - loss`: for a large `M`, FedAvg
    at the rate `lr / M`."""
    require(M > 0, "M", "above 0", M)
    require(0 < eps < M, "eps", "above 0 and below M", eps)
    return Method(terms=(ProportionalLoss(M, eps),))
