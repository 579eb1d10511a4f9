"""Pieces of the local loss that several methods share."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from equipoise.roles import Term
from equipoise.types import ClientState, Received, Tensors


@dataclass(frozen=True)
class Proximal(Term):
    """`mu/2 ||x - theta||^2` over the shared parameters, `theta` the received model, by its gradient `mu (x - theta)`."""

    mu: float

    @property
    def pull(self) -> float:
        return self.mu

    def force(self, received: Received, states: ClientState) -> Tensors:
        return {name: -self.mu * received.params[name] for name in received.layout.names}


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length one; a zero vector stays what it is, without an infinite slope."""
    return F.normalize(vectors, dim=-1, eps=1e-6)
