"""Shaped updates and weights -> one direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.roles import Merge
from equipoise.types import Merged, Round
from equipoise.updates import column_chunks


@dataclass(frozen=True)
class WeightedSum(Merge):
    """`sum_k w_k D_k`."""

    rank: ClassVar[int] = 0

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        return Merged(round.updates.combine(weights))


@dataclass(frozen=True)
class MaskedMean(Merge, needs=("mask", "non-negative weights")):
    """Entry by entry the weighted mean over the clients that kept it, times the sum of all weights (one, on the simplex); an
    entry that nobody kept does not move. Where everybody keeps everything it is the weighted sum."""

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        rows, mask = round.updates.rows, round.updates.mask
        assert mask is not None  # what gives `mask` sets it
        scale = float(weights.sum())
        weights = weights.to(rows.dtype)
        direction = torch.empty_like(rows[0])
        for columns in column_chunks(rows):
            kept = mask[:, columns].to(rows.dtype)
            total = weights @ kept
            moved = weights @ kept.mul_(rows[:, columns])
            direction[columns] = torch.where(total > 0, moved / total * scale, 0.0)
        return Merged(direction)
