"""Whether a run has converged: the trend of its figures over its last rounds, with an interval.

Methods that are compared before they have converged differ in speed, which is not fairness. A run is *flat* when the 95 %
interval of its trend, of AVG and of MIN alike, lies within half a point per ten rounds.

The trend is the slope of a least-squares line over the last fifth of the rounds. Scores of neighbouring rounds resemble
each other, because one model follows from the other; the interval is therefore widened by the correlation of
neighbouring residuals. In short or noisy runs a fifth of the rounds leaves the interval so wide that it says nothing.
Where it neither lies within the limits nor excludes zero, the last third is used, and then the last half: a longer
stretch has a much narrower interval (its width falls with the length to the power 3/2), and on a curve that saturates it
errs on the safe side, because it begins where the curve was steeper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from equipoise.grammar import say_count
from equipoise.metrics import Interval

LIMIT = 0.5  # points per ten rounds
EVALUATIONS = 8  # the fewest evaluations from which a trend is told
STRETCHES = (5, 3, 2)  # the last fifth of the rounds; then, where that is undecided, the last third and half

State = Literal["flat", "rising", "falling", "unclear", "unknown"]


@dataclass(frozen=True)
class Convergence:
    """Whether a run has converged, and the trend that shows it."""

    state: State  # unclear: too noisy to tell; unknown: too few evaluations
    figure: str = ""  # the figure whose trend decided: AVG or MIN
    trend: Interval = Interval(math.nan, math.nan, math.nan)  # of that figure, in points per ten rounds
    since: int = 0  # the first round of the stretch
    evaluations: int = 0  # in the stretch

    def __str__(self) -> str:
        """The state in words, beginning with a small letter."""
        size = f"{abs(self.trend.mean):.1f} points per 10 rounds"
        words: dict[State, str] = {
            "flat": "flat",
            "rising": f"{self.figure} still rising by {size}",
            "falling": f"{self.figure} falling by {size}",
            "unclear": f"too noisy to tell ({self.figure} changes by {self.trend.low:+.1f} to {self.trend.high:+.1f} "
            "points per 10 rounds)",
            "unknown": f"unknown: {say_count(self.evaluations, 'evaluation')} in the last fifth of the rounds, and a trend "
            f"needs {EVALUATIONS}",
        }
        return words[self.state]


def fit_trend(rounds: Sequence[int], values: Sequence[float]) -> Interval:
    """The slope of `values` over `rounds` and its 95 % interval, in units of the values per ten rounds.

    >>> [round(x, 6) for x in fit_trend([1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0])]
    [10.0, 10.0, 10.0]
    """
    t, v = np.asarray(rounds, dtype=np.float64), np.asarray(values, dtype=np.float64)
    n, t = len(t), t - t.mean()
    spread = float((t**2).sum())
    slope = float(t @ v) / spread
    residuals = v - v.mean() - slope * t
    squares = float(residuals @ residuals)
    error = math.sqrt(squares / (n - 2) / spread)
    if squares > 0:  # neighbours that resemble each other tell less than independent values
        alike = min(max(float(residuals[1:] @ residuals[:-1]) / squares, 0.0), 0.9)
        error *= math.sqrt((1 + alike) / (1 - alike))
    half = float(stdtrit(n - 2, 0.975)) * error
    return Interval(10 * slope, 10 * (slope - half), 10 * (slope + half))


def judge_convergence(curves: Mapping[str, Mapping[int, float]], rounds: int | None = None) -> Convergence:
    """Whether a run has converged, from curves such as `{"AVG": {round: points}, "MIN": {round: points}}`.

    `rounds` is the number of rounds done; without it, the last evaluated round.

    >>> rising = {r: 0.2 * r for r in range(1, 51)}
    >>> str(judge_convergence({"AVG": rising}))
    'AVG still rising by 2.0 points per 10 rounds'
    """
    evaluated = sorted(next(iter(curves.values()), {}))
    total = rounds or (evaluated[-1] if evaluated else 0)
    found = Convergence("unknown")
    for part in STRETCHES:
        since = total - math.ceil(total / part) + 1
        stretch = [r for r in evaluated if r >= since]
        if len(stretch) < EVALUATIONS:
            if found.state == "unknown":
                found = Convergence("unknown", evaluations=max(len(stretch), found.evaluations))
            continue
        found = _judge_stretch({name: [curve[r] for r in stretch] for name, curve in curves.items()}, stretch)
        if found.state != "unclear":
            break
    return found


def _judge_stretch(curves: Mapping[str, Sequence[float]], rounds: Sequence[int]) -> Convergence:
    """The worst of the figures' states over one stretch: one that moves, then one that is unclear, then a flat one."""
    order: tuple[State, ...] = ("rising", "falling", "unclear", "flat")
    found = []
    for name, values in curves.items():
        trend = fit_trend(rounds, values)
        if trend.low >= -LIMIT and trend.high <= LIMIT:
            state: State = "flat"
        else:
            state = "rising" if trend.low > 0 else "falling" if trend.high < 0 else "unclear"
        found.append(Convergence(state, name, trend, rounds[0], len(rounds)))
    return min(found, key=lambda one: (order.index(one.state), -abs(one.trend.mean)))
