"""Pieces of the local loss that several methods share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.roles import Term
from equipoise.types import Local, Tensors


def squared_distance(params: Tensors, centre: Tensors) -> Tensor:
    """`||x - centre||^2` over the tensors of the centre."""
    return torch.stack([(params[name] - value).square().sum() for name, value in centre.items()]).sum()


@dataclass(frozen=True)
class Proximal(Term):
    """`mu/2 ||x - theta||^2` over the shared parameters, `theta` the received model."""

    mu: float

    def loss(self, local: Local) -> Tensor | None:
        centre = {name: local.received.params[name] for name in local.received.layout.names}
        return self.mu / 2 * squared_distance(local.params, centre) if self.mu and centre else None


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length one; a zero vector stays what it is, without an infinite slope."""
    return F.normalize(vectors, dim=-1, eps=1e-6)
