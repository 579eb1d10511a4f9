"""Selections that several methods share, and the draws behind them: who takes part in a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from equipoise import seeds
from equipoise.roles import Select
from equipoise.types import Selected, State, Turnout


@dataclass(frozen=True)
class UniformDraw(Select, by_columns=()):
    """Every available client has the same chance. This is FedAvg's selection."""

    rank: ClassVar[int] = 0

    def __call__(self, turnout: Turnout, state: State) -> Selected:
        return Selected(draw_uniformly(turnout, turnout.available, turnout.places))


def draw_uniformly(turnout: Turnout, clients: Sequence[int], count: int) -> list[int]:
    """`count` of these clients (all, if there are fewer), each with the same chance."""
    return seeds.draw_participants(clients, count, turnout.setting.seed, turnout.round)


def draw_by_samples(turnout: Turnout, count: int) -> list[int]:
    """`count` of the available clients (all, if there are fewer), drawn one after the other without replacement, each with
    a chance proportional to its training samples."""
    # The smallest of independent exponential times with rates n_k is that of client k with chance n_k / sum_j n_j, and
    # so is each next one among the clients that are left.
    times = {c: -math.log(_draw(turnout, "by samples", c)) / max(turnout.samples[c], 1e-9) for c in turnout.available}
    return sorted(sorted(times, key=times.__getitem__)[:count])


def rank_largest(turnout: Turnout, values: Mapping[int, float]) -> list[int]:
    """The clients by their values, the largest first. The seed decides between equal ones.

    Values that agree in five digits count as equal, so that rounding, which differs between runners, decides nothing.
    """
    return sorted(values, key=lambda c: (-float(f"{values[c]:.5g}"), _draw(turnout, "ties", c)))


def _draw(turnout: Turnout, purpose: str, client: int) -> float:
    """A number in (0, 1) for this client in this round, whoever else is available."""
    return (seeds.key(turnout.setting.seed, purpose, turnout.round, client) + 0.5) / 2**63
