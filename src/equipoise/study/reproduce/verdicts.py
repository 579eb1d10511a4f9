"""Whether what a paper claims holds in our runs: comparisons paired by seed, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from equipoise.metrics import Interval, over_seeds, paired

State = Literal["holds", "does not hold", "undecided", "not run"]
Verdict = Literal["holds", "in part", "does not hold", "undecided", "not run"]
BySeed = Mapping[int, float]  # the value of one cell for each seed that has been run


@dataclass(frozen=True)
class Finding:
    """What became of a statement."""

    state: State
    why: str  # in words: the difference that decided, or what is missing


def compare(better: BySeed, other: BySeed, lower: bool, digits: int = 2) -> Finding:
    """Whether one cell is better than another: the difference over the seeds that both have, with its interval.

    >>> compare({0: 3.0, 1: 3.2, 2: 3.1}, {0: 1.0, 1: 1.1, 2: 1.2}, lower=False)
    Finding(state='holds', why='+2.00 [1.75, 2.25]')
    >>> compare({0: 3.0}, {0: 1.0}, lower=True)
    Finding(state='undecided', why='+2.00, one seed, points the other way')
    """
    first, second = _whole(better), _whole(other)
    shared = first.keys() & second.keys()
    if not shared:
        return Finding("not run", "no seed of both")
    found = paired(second, first)
    size = f"{found.mean:+.{digits}f}"
    if len(shared) == 1:
        points = "no difference" if found.mean == 0 else _say_direction((found.mean < 0) == lower)
        return Finding("undecided", f"{size}, one seed, {points}")
    told = f"{size} [{found.low:.{digits}f}, {found.high:.{digits}f}]"
    sign = -1 if lower else 1
    low, high = sorted((sign * found.low, sign * found.high))
    if low > 0:
        return Finding("holds", told)
    return Finding("does not hold" if high < 0 else "undecided", told)


def judge_beats(row: BySeed, others: Mapping[str, BySeed], lower: bool, digits: int = 2) -> Finding:
    """Whether a row is better than each of others: it is not if one is better, and that is undecided if one is close.

    >>> judge_beats({0: 3.0, 1: 3.1}, {"a": {0: 1.0, 1: 1.1}, "b": {}}, lower=False).state
    'not run'
    """
    found = {name: compare(row, other, lower, digits) for name, other in others.items()}
    if not found:
        return Finding("not run", "nothing to compare with")
    order: tuple[State, ...] = ("does not hold", "not run", "undecided", "holds")
    state = min((one.state for one in found.values()), key=order.index)
    return Finding(state, "; ".join(f"against {name}: {one.why}" for name, one in found.items() if one.state == state))


def judge_reaches(row: BySeed, value: float, digits: int = 2) -> Finding:
    """Whether a cell is at least `value`, by the interval of its mean.

    >>> judge_reaches({0: 45.0, 1: 46.0, 2: 47.0}, 40).state
    'holds'
    """
    values = _whole(row)
    if not values:
        return Finding("not run", "no seed")
    found = over_seeds(list(values.values()))
    if len(values) == 1:
        return Finding("undecided", f"{found.mean:.{digits}f}, one seed, {_say_direction(found.mean >= value)}")
    told = f"{found.mean:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"
    if found.low >= value:
        return Finding("holds", told)
    return Finding("does not hold" if found.high < value else "undecided", told)


def judge_return(row: BySeed, published: float, near: float, seeds: Sequence[int], digits: int = 2) -> Finding:
    """Whether a published mean over these seeds comes back: whether ours over the same seeds is that near.

    >>> judge_return({0: 80.81, 1: 79.67}, 80.24, 0.01, [0, 1])
    Finding(state='holds', why='80.24 against 80.24')
    """
    values = _whole(row)
    if not set(seeds) <= values.keys():
        return Finding("not run", f"{len(values.keys() & set(seeds))} of {len(seeds)} seeds")
    mean = sum(values[seed] for seed in seeds) / len(seeds)
    state: State = "holds" if abs(mean - published) <= near + 1e-9 else "does not hold"
    return Finding(state, f"{mean:.{digits}f} against {published:.{digits}f}")


@dataclass(frozen=True)
class Order:
    """How the order of the rows in a column compares with the published one, pair by pair."""

    column: str
    agree: int  # pairs in the published order, by an interval that excludes zero
    reversed: tuple[str, ...]  # pairs in the other order, as `a > b` where the paper has a better
    undecided: int  # pairs whose interval contains zero, or that have one seed
    correlation: float  # Kendall's tau between our means and the published values; NaN for fewer than two rows

    @property
    def state(self) -> State:
        """Whether the published order holds."""
        if self.agree + len(self.reversed) + self.undecided == 0:
            return "not run"
        if self.reversed:
            return "does not hold"
        return "undecided" if self.undecided else "holds"

    def __str__(self) -> str:
        told = f"{self.agree} pairs as published, {len(self.reversed)} the other way round, {self.undecided} undecided"
        return told if math.isnan(self.correlation) else f"{told}; Kendall's tau of the means {self.correlation:+.2f}"


def judge_order(column: str, measured: Mapping[str, BySeed], published: Mapping[str, float], lower: bool) -> Order:
    """Compare the order of the rows that have been run with the published one.

    >>> ours = {"a": {0: 3.0, 1: 3.1}, "b": {0: 1.0, 1: 1.1}, "c": {0: 1.05, 1: 1.0}}
    >>> print(judge_order("AVG", ours, {"a": 80.0, "b": 70.0, "c": 60.0}, lower=False))
    2 pairs as published, 0 the other way round, 1 undecided; Kendall's tau of the means +1.00
    """
    rows = {name: _whole(measured[name]) for name in published if _whole(measured.get(name, {}))}
    agree, undecided, turned = 0, 0, []
    concordant: list[int] = []
    for a, b in combinations(rows, 2):
        if published[a] == published[b]:
            continue
        best, worst = (a, b) if (published[a] < published[b]) == lower else (b, a)
        found = compare(rows[best], rows[worst], lower)
        if found.state == "not run":
            continue
        agree += found.state == "holds"
        undecided += found.state == "undecided"
        if found.state == "does not hold":
            turned.append(f"{best} > {worst}")
        ahead = paired(rows[worst], rows[best]).mean * (-1 if lower else 1)
        concordant.append((ahead > 0) - (ahead < 0))
    tau = sum(concordant) / len(concordant) if concordant else math.nan
    return Order(column, agree, tuple(turned), undecided, tau)


def sum_up(states: Sequence[State]) -> Verdict:
    """One word for several statements: they hold or fail together, or in part, or nothing is decided.

    >>> sum_up(["holds", "undecided"]), sum_up(["not run", "not run"]), sum_up([])
    ('in part', 'not run', 'not run')
    """
    run = [state for state in states if state != "not run"]
    if not run:
        return "not run"
    if all(state == "holds" for state in states):
        return "holds"
    if "holds" in run:
        return "in part"
    return "does not hold" if "does not hold" in run else "undecided"


def _whole(values: BySeed) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if not math.isnan(value)}


def _say_direction(same: bool) -> str:
    return "points the same way" if same else "points the other way"


def describe_interval(values: BySeed, digits: int) -> str:
    """A cell in words: its mean and half its 95 % interval over seeds; empty if it has no value.

    >>> describe_interval({0: 1.0, 1: 3.0}, 1), describe_interval({0: 1.0}, 1), describe_interval({}, 1)
    ('2.0 ± 12.7', '1.0', '')
    """
    whole = _whole(values)
    if not whole:
        return ""
    found: Interval = over_seeds(list(whole.values()))
    return f"{found.mean:.{digits}f}" if len(whole) == 1 else f"{found.mean:.{digits}f} ± {found.half:.{digits}f}"
