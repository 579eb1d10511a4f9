"""PropFair, proportional fairness: the local loss `-log(1 - loss/M)`, for a largest loss M. Zhang et al., TMLR 2023."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.method import Method, Range, Received, Term, register, require


def proportional(loss: Tensor, M: float, eps: float) -> Tensor:
    """`-log(1 - loss/M)`, or `loss/M` where `M - loss` is less than `eps`.

    >>> proportional(torch.tensor([0.5, 4.9]), M=5.0, eps=0.2)
    tensor([0.1054, 0.9800])
    """
    left = M - loss
    return torch.where(left < eps, loss / M, -torch.log(left.clamp(min=eps) / M))


@dataclass(frozen=True)
class ProportionalLoss(Term):
    """Scales the local loss so that its gradient is that of `proportional` of the batch's mean loss."""

    M: float  # largest loss
    eps: float  # distance from M below which the logarithm is replaced by a linear function

    def scale(self, loss: Tensor, received: Received) -> Tensor:
        """The derivative of `proportional` at the batch's mean loss."""
        left = self.M - loss
        return torch.where(left < self.eps, 1 / self.M, 1 / left.clamp(min=self.eps))


@register(
    title="Proportional fairness by a logarithm of the loss",
    reference="Zhang et al., Proportional fairness in federated learning, TMLR 2023",
    per_dataset={"scanners": {"M": 3.0}},  # above log 10, the first loss with ten classes,
    ranges={"M": Range(2.0, 6.0), "eps": Range(0.05, 0.5)},
    side="server",
)
def propfair(M: float = 2.0, eps: float = 0.2) -> Method:
    """Each client minimises `-log(1 - loss/M)`, so that a batch with a large loss counts more.

    The gradient is that of the loss, divided by `M - loss`. `M` should be above the losses that occur; for a large `M`
    it is FedAvg with the rate `lr / M`. Where `M - loss` is less than `eps`, the gradient is divided by `M`.
    """
    require(M > 0, "M", "above 0", M)
    require(0 < eps < M, "eps", "above 0 and below M", eps)
    return Method(terms=(ProportionalLoss(M, eps),))
