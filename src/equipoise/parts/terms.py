"""Terms of the local loss that several methods share."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from equipoise.roles import Term
from equipoise.types import ClientState, Received, Tensors


@dataclass(frozen=True)
class Proximal(Term):
    """The penalty `mu/2 ||x - theta||^2` on the distance of the shared parameters `x` from the received model `theta`.

    It enters by its gradient `mu (x - theta)`, not as a loss.
    """

    mu: float  # weight of the penalty

    @property
    def pull(self) -> float:
        """`mu`: the factor of `x` in the gradient."""
        return self.mu

    def force(self, received: Received, states: ClientState) -> Tensors:
        """`-mu theta`: the constant part of the gradient."""
        return {name: -self.mu * received.params[name] for name in received.layout.names}


def unit(vectors: Tensor) -> Tensor:
    """The vectors `[..., F]` scaled to length one. A zero vector stays zero, and its gradient finite."""
    return F.normalize(vectors, dim=-1, eps=1e-6)
