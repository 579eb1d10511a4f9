"""Merges: how the shaped updates and the weights become one direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.roles import Merge
from equipoise.types import Merged, Round
from equipoise.updates import column_chunks


@dataclass(frozen=True)
class WeightedSum(Merge, by_columns=()):
    """The weighted sum of the updates, `sum_k w_k D_k`. This is FedAvg's merge."""

    rank: ClassVar[int] = 0

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        return Merged(round.updates.combine(weights))


@dataclass(frozen=True)
class MaskedMean(Merge, needs=("mask", "non-negative weights"), by_columns=()):
    """For each entry, the weighted mean over the clients whose mask keeps it, times the sum of all weights.

    `d_i = sum_j w_j * sum_k m_ki w_k D_ki / sum_k m_ki w_k`. An entry that no client keeps does not move. Without
    masked entries this is the weighted sum.
    """

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        rows, mask = round.updates.rows, round.updates.mask
        assert mask is not None  # the part that gives "mask" sets it
        scale = float(weights.sum())
        weights = weights.to(rows.dtype)
        direction = torch.empty_like(rows[0])
        for columns in column_chunks(rows):
            kept = mask[:, columns].to(rows.dtype)
            total = weights @ kept
            moved = weights @ kept.mul_(rows[:, columns])
            direction[columns] = torch.where(total > 0, moved / total * scale, 0.0)
        return Merged(direction)
