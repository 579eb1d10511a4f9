"""Fairness between groups of samples (sex, age group, scanner), from counts alone. One function per formula.

A client counts how many of its samples of each group belong to the positive class and how many are said to; pooled
figures are those of the sums. Nothing else has to leave a client. The positive class is the second one; if there are
more than two classes, it is the second one against all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics import Interval

Vector = NDArray[np.float64]
SHOWN = 10  # a rate of fewer samples is not shown
JUDGED = 30  # a rate of fewer samples does not enter the figure of the worst client
WITHHELD = 5  # counts of a group with fewer samples do not leave a real site
DRAWS = 1000  # of counts that are drawn again, for an interval or an expected value
NORMAL = 1.959963984540054  # the 97.5 % point of the normal distribution
Against = Literal["pairs", "overall"]
RATES = ("accuracy", "selection rate", "true positive rate", "false positive rate")
# The gaps between groups, and the rates whose differences they are.
GAPS: dict[str, tuple[str, ...]] = {
    "accuracy": ("accuracy",),
    "demographic_parity": ("selection rate",),
    "equal_opportunity": ("true positive rate",),
    "equalized_odds": ("true positive rate", "false positive rate"),
}
DEFINITIONS = {
    "accuracy": "largest difference in accuracy between two groups",
    "demographic_parity": "largest difference in the share of samples that are said to be of the positive class",
    "equal_opportunity": "largest difference in the true positive rate",
    "equalized_odds": "the larger of the differences in true and in false positive rate",
}

# The samples among which a rate counts.
COUNTED = {
    "accuracy": "test samples",
    "selection rate": "test samples",
    "true positive rate": "test samples of the positive class",
    "false positive rate": "test samples of other classes than the positive one",
}


@dataclass(frozen=True, eq=False)
class Tally:
    """What is counted of the samples of one client, or of several together. Axes before these hold several draws of it."""

    counts: Vector  # [groups, 2, 2]: by group, truth (positive or not) and answer
    right: Vector  # [groups], right answers, whatever the class
    losses: Vector  # [groups, 2], sums of losses by group and truth

    @property
    def sizes(self) -> Vector:
        """Samples of each group, `[groups]`."""
        found: Vector = self.counts.sum((-2, -1))
        return found

    @property
    def mean_losses(self) -> Vector:
        """The mean loss of each group, `[groups]`; NaN for one of fewer than `SHOWN` samples."""
        return _divide(self.losses.sum(-1), self.sizes)

    def count(self, rate: str) -> tuple[Vector, Vector]:
        """How many samples of each group the rate counts, and among how many, `[groups]` each."""
        c = self.counts
        return {
            "accuracy": (self.right, self.sizes),
            "selection rate": (c[..., 1].sum(-1), self.sizes),
            "true positive rate": (c[..., 1, 1], c[..., 1, :].sum(-1)),
            "false positive rate": (c[..., 0, 1], c[..., 0, :].sum(-1)),
        }[rate]

    def rate(self, name: str, fewest: int = SHOWN) -> Vector:
        """The rate of each group, `[groups]`; NaN where fewer than `fewest` samples are behind it."""
        return _divide(*self.count(name), fewest)


def _divide(hits: Vector, total: Vector, fewest: int = SHOWN) -> Vector:
    enough = total >= max(1, fewest)
    return np.where(enough, hits / np.where(enough, total, 1), np.nan)


def pool(tallies: Iterable[Tally]) -> Tally:
    """The tally of all these samples together."""
    parts = list(tallies)
    return Tally(*(np.sum([getattr(one, name) for one in parts], axis=0) for name in ("counts", "right", "losses")))


def measure_gap(tally: Tally, name: str, against: Against = "pairs", fewest: int = SHOWN) -> float:
    """A gap between groups: the largest difference of two groups' rates, or from the rate of all samples together.

    A group that has no rate is left out. NaN if fewer than two are left.

    >>> half = Tally(np.array([[[30., 10], [10, 30]], [[40, 0], [20, 20]]]), np.array([60., 60]), np.zeros((2, 2)))
    >>> measure_gap(half, "demographic_parity"), measure_gap(half, "equalized_odds")
    (0.25, 0.25)
    """
    return float(_measure_gaps(tally, name, against, fewest))


def explain_absence(tally: Tally, name: str) -> str:
    """Why a gap is not shown, in words: what too few groups have enough of. Empty if it is shown.

    >>> few = Tally(np.array([[[30., 10], [1, 3]], [[40, 0], [20, 20]]]), np.array([33., 60]), np.zeros((2, 2)))
    >>> explain_absence(few, "equal_opportunity")
    'fewer than two groups have 10 test samples of the positive class'
    """
    lacking = [COUNTED[rate] for rate in GAPS[name] if np.isnan(_gap_of_rate(tally, rate, "pairs", SHOWN))]
    return f"fewer than two groups have {SHOWN} {' and '.join(lacking)}" if lacking else ""


def _measure_gaps(tally: Tally, name: str, against: Against = "pairs", fewest: int = SHOWN) -> Vector:
    """A gap of each draw; NaN where one of its rates has none."""
    found: Vector = np.max([_gap_of_rate(tally, rate, against, fewest) for rate in GAPS[name]], axis=0)
    return found


def _gap_of_rate(tally: Tally, rate: str, against: Against, fewest: int) -> Vector:
    values = tally.rate(rate, fewest)
    known = ~np.isnan(values)
    if against == "pairs":
        gap = np.where(known, values, -np.inf).max(-1) - np.where(known, values, np.inf).min(-1)
    else:
        hits, total = tally.count(rate)
        whole = hits.sum(-1, keepdims=True) / np.maximum(total.sum(-1, keepdims=True), 1)
        gap = np.where(known, np.abs(values - whole), 0.0).max(-1)
    return np.where(known.sum(-1) > 1, gap, np.nan)


def find_worst_group(tally: Tally) -> tuple[int, float]:
    """The number of the group with the smallest share of right answers (of numbers: the smallest score), and that share.

    Groups of fewer than `SHOWN` samples do not count. -1 and NaN if no other is there.

    >>> half = Tally(np.array([[[30., 10], [10, 30]], [[40, 0], [20, 20]]]), np.array([50., 60]), np.zeros((2, 2)))
    >>> find_worst_group(half)
    (0, 0.625)
    """
    rates = tally.rate("accuracy")
    if np.isnan(rates).all():
        return -1, math.nan
    return int(np.nanargmin(rates)), float(np.nanmin(rates))


def measure_loss_gap(tally: Tally) -> float:
    """The difference between the largest and the smallest mean loss of a group; NaN with fewer than two groups."""
    known = tally.mean_losses[~np.isnan(tally.mean_losses)]
    return float(known.max() - known.min()) if len(known) > 1 else math.nan


# --------------------------------------------------------------------------- intervals
def wilson(hits: float, total: float) -> Interval:
    """The 95 % interval of a rate by Wilson's score.

    >>> [round(x, 3) for x in wilson(8, 10)]
    [0.8, 0.49, 0.943]
    """
    if total < 1:
        return Interval(math.nan, math.nan, math.nan)
    p, z = hits / total, NORMAL**2 / total
    middle, half = (p + z / 2) / (1 + z), math.sqrt(p * (1 - p) * z + z**2 / 4) / (1 + z)
    return Interval(p, middle - half, middle + half)


def newcombe(first: tuple[float, float], second: tuple[float, float]) -> Interval:
    """The 95 % interval of `second` minus `first`, two rates given as (hits, total), by Newcombe's method.

    >>> [round(x, 4) for x in newcombe((68, 85), (34, 60))]
    [-0.2333, -0.3777, -0.0808]
    """
    a, b = wilson(*first), wilson(*second)
    low = math.hypot(b.mean - b.low, a.high - a.mean)
    high = math.hypot(b.high - b.mean, a.mean - a.low)
    return Interval(b.mean - a.mean, b.mean - a.mean - low, b.mean - a.mean + high)


def bound_gap(tallies: Sequence[Tally], name: str, seed: int = 0) -> Interval:
    """The pooled gap of several clients with its 95 % interval over their samples.

    For the difference of two groups it is Newcombe's. For more groups, and for equalised odds, the counts of each
    client are drawn again.
    """
    whole = pool(tallies)
    gap = measure_gap(whole, name)
    if math.isnan(gap):
        return Interval(gap, math.nan, math.nan)
    if len(GAPS[name]) == 1 and len(whole.sizes) == 2:
        hits, total = (values.tolist() for values in whole.count(GAPS[name][0]))
        found = newcombe((hits[0], total[0]), (hits[1], total[1]))
        ends = sorted((abs(found.low), abs(found.high)))
        return Interval(gap, 0.0 if found.low <= 0 <= found.high else ends[0], ends[1])
    draw = np.random.default_rng(seed)
    again = _measure_gaps(pool(_draw_again(one, draw) for one in tallies), name)
    low, high = np.nanquantile(again, (0.025, 0.975))
    return Interval(gap, float(low), float(high))


def _draw_again(tally: Tally, draw: np.random.Generator) -> Tally:
    """The counts of one client, drawn again with replacement, `DRAWS` times."""
    cells = tally.counts.flatten()
    total = int(cells.sum())
    shares = cells / total if total else np.eye(len(cells))[0]
    counts = draw.multinomial(total, shares, DRAWS).reshape(DRAWS, *tally.counts.shape)
    if (
        tally.right == np.trace(tally.counts, axis1=-2, axis2=-1)
    ).all():  # two classes: right answers are counted above
        right = np.trace(counts, axis1=-2, axis2=-1)
    else:
        right = draw.binomial(counts.sum((-2, -1)), np.nan_to_num(_divide(tally.right, tally.sizes, 1)))
    return Tally(counts.astype(float), right.astype(float), tally.losses)


@dataclass(frozen=True)
class Worst:
    """The client with the largest gap of its own, among those with enough samples."""

    client: str  # its name; empty if no client has enough samples
    gap: float
    expected: float  # what chance alone would give: the largest gap if every client had the pooled rates
    left_out: int  # clients with too few samples of some group


def find_worst(tallies: dict[str, Tally], name: str, seed: int = 0) -> Worst:
    """The client with the largest gap, and the gap that chance alone would give the worst of them.

    The worst of many clients has a gap even under a fair model, because it is the worst.
    """
    gaps = {client: measure_gap(one, name, fewest=JUDGED) for client, one in tallies.items()}
    known = {client: gap for client, gap in gaps.items() if not math.isnan(gap)}
    if not known:
        return Worst("", math.nan, math.nan, len(gaps))
    client = max(known, key=lambda one: known[one])
    whole, draw, largest = pool(tallies.values()), np.random.default_rng(seed), np.zeros(DRAWS)
    for other in known:
        mine = np.zeros(DRAWS)
        for rate in GAPS[name]:
            hits, total = whole.count(rate)
            its = tallies[other].count(rate)[1]
            enough = its >= JUDGED
            # Drawn with the rate of all groups together: a fair model with these numbers of samples.
            drawn = draw.binomial(its[enough].astype(int), hits.sum() / total.sum(), (DRAWS, int(enough.sum())))
            mine = np.maximum(mine, np.ptp(drawn / its[enough], axis=1))
        largest = np.maximum(largest, mine)
    return Worst(client, known[client], float(largest.mean()), len(gaps) - len(known))


# --------------------------------------------------------------------------- in records
def name_counts(tally: Tally) -> dict[str, float]:
    """A tally as metrics of a record: `group n[0,1,1]` (group, truth, answer), `group right[0]`, `group loss[0,1]`.

    A group without a sample, or one that is withheld, has no entry.
    """
    found: dict[str, float] = {}
    for z in np.flatnonzero(tally.sizes).tolist():
        found |= {f"group n[{z},{y},{a}]": float(tally.counts[z, y, a]) for y in (0, 1) for a in (0, 1)}
        found |= {f"group right[{z}]": float(tally.right[z])}
        found |= {f"group loss[{z},{y}]": float(tally.losses[z, y]) for y in (0, 1)}
    return found


def read_counts(metrics: dict[str, float], groups: int) -> Tally:
    """What `name_counts` gave."""
    tally = Tally(np.zeros((groups, 2, 2)), np.zeros(groups), np.zeros((groups, 2)))
    arrays = {"group n": tally.counts, "group right": tally.right, "group loss": tally.losses}
    for name, value in metrics.items():
        kind, _, place = name.rstrip("]").partition("[")
        if kind in arrays:
            arrays[kind][tuple(int(i) for i in place.split(","))] = value
    return tally
