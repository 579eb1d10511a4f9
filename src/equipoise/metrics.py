"""Fairness figures from one value per client, and intervals over seeds and test samples. One function per formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, stdtr, stdtrit

UNSEEN = "unseen"  # the split of the scores of clients that are held out of training: no figure over clients has them
POOLED = "pooled"  # the one client of a run that trains on the data of all clients together, by which its weights go
Values = Sequence[float] | NDArray[np.float64]  # one value per client; NaN: the client has none


@dataclass(frozen=True)
class Figures:
    """Summary of a quantity that has one value per client (or per domain)."""

    avg: float  # unweighted mean
    std: float  # population standard deviation (ddof 0)
    std1: float  # sample standard deviation (ddof 1), NaN for a single value
    min: float  # the smallest value
    max: float  # the largest value


def std(values: Sequence[float], ddof: int = 0) -> float:
    """Standard deviation with divisor `len(values) - ddof`. NaN for too few values.

    FedEquilibria, FedFV and FedFE report ddof 0, FedHEAL and F2DC ddof 1.

    >>> round(std([89.84, 93.25, 79.54, 41.35], ddof=1), 2), round(std([94.44, 93.17, 79.07, 39.60], ddof=0), 2)
    (23.82, 22.18)
    """
    if len(values) <= ddof:
        return float("nan")
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=ddof))


def figures(values: Sequence[float]) -> Figures:
    """Mean, both standard deviations, minimum and maximum of the values.

    >>> figures([0.5, 0.7]).min
    0.5
    """
    if not values:
        nan = float("nan")
        return Figures(nan, nan, nan, nan, nan)
    array = np.asarray(values, dtype=np.float64)
    return Figures(float(array.mean()), std(values), std(values, 1), float(array.min()), float(array.max()))


class Estimate(NamedTuple):
    """What a random sample of the clients tells of all of them, with 95 % confidence each."""

    average: float  # of the sample
    half_width: float  # the average over all clients lies within the sample's plus or minus this
    worst: float  # of the sample
    below: float  # at most this share of all clients has a value below the worst of the sample


def estimate(values: Sequence[float], population: int) -> Estimate:
    """What the values of a random sample of the clients tell of all `population` of them.

    The interval of the average is 1.96 standard errors wide on each side, with the correction for a finite population. That
    none of n clients is among the lowest share q has the chance `(1 - q)^n`, which is 5 % for the `below` given here.

    >>> found = estimate([0.4, 0.6, 0.5, 0.5], 1000)
    >>> round(found.average, 3), round(found.half_width, 3), found.worst, round(found.below, 3)
    (0.5, 0.08, 0.4, 0.527)
    >>> estimate([0.4, 0.6], 2)
    Estimate(average=0.5, half_width=0.0, worst=0.4, below=0.0)
    """
    n, found = len(values), figures(values)
    if n >= population:
        return Estimate(found.avg, 0.0, found.min, 0.0)
    error = found.std1 / n**0.5 * (1 - n / population) ** 0.5 if n else float("nan")
    return Estimate(found.avg, 1.96 * error, found.min, 1 - 0.05 ** (1 / n) if n else 1.0)


def auc(margins: Values, y: NDArray[np.int64] | Sequence[int]) -> float:
    """The area under the ROC curve, for two classes.

    It is the share of pairs, one sample of class 1 and one of class 0, in which the former has the larger margin; ties
    count half.

    >>> auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875
    """
    labels = np.asarray(y)
    _, place, counts = np.unique(np.asarray(margins, dtype=np.float64), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[place]  # equal margins share the mean of their ranks
    ones = int((labels == 1).sum())
    return float((ranks[labels == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(labels) - ones)))


# --------------------------------------------------------------------------- of one client's single answers
def average_precision(margins: Values, y: NDArray[np.int64] | Sequence[int]) -> float:
    """The area under the precision-recall curve, for two classes, as the mean precision at the samples of class 1.

    Samples with equal margins are taken together.

    >>> round(average_precision([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), 4)
    0.8333
    """
    values, labels = np.asarray(margins, dtype=np.float64), np.asarray(y) == 1
    levels, place = np.unique(-values, return_inverse=True)
    hits = np.bincount(place, labels, len(levels))
    precision = hits.cumsum() / np.bincount(place, minlength=len(levels)).cumsum()
    return float((precision * hits).sum() / labels.sum())


def _of_questions(
    function: Callable[[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]], float],
) -> Callable[[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]], float]:
    """The mean of a metric over the questions to which some samples say yes; NaN if there is none.

    With two classes there is one question, whether a sample is of the second class; otherwise one per class or label.
    """

    def mean(margins: NDArray[np.float64], chosen: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
        asked = [q for q in range(truth.shape[1]) if truth[:, q].any()]
        found = of_clients([function(margins[:, q], chosen[:, q], truth[:, q]) for q in asked])
        return float(found.mean()) if len(found) else math.nan

    return mean


def _divide(a: float, b: float) -> float:
    return a / b if b else 0.0


# Metrics that a run can record beside the score and the loss, from the margins, the answers and the truth of a client's
# samples, [n, questions] each: see `_of_questions`.
METRICS: dict[str, Callable[[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]], float]] = {
    "precision": _of_questions(lambda _, chosen, truth: _divide((chosen & truth).sum(), chosen.sum())),
    "recall": _of_questions(lambda _, chosen, truth: _divide((chosen & truth).sum(), truth.sum())),
    "f1": _of_questions(lambda _, chosen, truth: _divide(2 * (chosen & truth).sum(), chosen.sum() + truth.sum())),
    "auc": _of_questions(lambda margins, _, truth: math.nan if truth.all() else auc(margins, truth.astype(np.int64))),
    "pr_auc": _of_questions(lambda margins, _, truth: average_precision(margins, truth.astype(np.int64))),
}


def measure_errors(answers: Values, y: Values, spread: float = 1.0) -> dict[str, float]:
    """Mean absolute and squared error, in the units of the targets, and R², of numbers that were predicted.

    `answers` and `y` are standardised: divided by `spread`, and shifted alike. R² is 1 minus the squared error divided by the
    variance of these targets; it is left out where they are all equal.

    >>> measure_errors([0.0, 1.0], [0.0, 2.0], spread=10.0)
    {'mae': 5.0, 'mse': 50.0, 'r2': 0.5}
    """
    true = np.asarray(y, dtype=np.float64)
    distance = np.asarray(answers, dtype=np.float64) - true
    found = {"mae": spread * float(np.abs(distance).mean()), "mse": spread**2 * float((distance**2).mean())}
    variance = float(true.var())
    return found | ({"r2": 1 - float((distance**2).mean()) / variance} if variance > 0 else {})


# --------------------------------------------------------------------------- one formula each, with its definition
def of_clients(values: Values) -> NDArray[np.float64]:
    """The values that are not NaN: those of the clients that have one."""
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]


def share_of(values: Values, percent: float, best: bool = False) -> float:
    """Mean over the worst (or best) `percent` of the clients; their number is rounded up, and at least one.

    >>> share_of([0.9, 0.5, 0.7], 10), share_of([0.9, 0.5, 0.7], 34, best=True)
    (0.5, 0.8)
    """
    found = np.sort(of_clients(values))
    count = max(1, math.ceil(percent * len(found) / 100))
    return float((found[-count:] if best else found[:count]).mean()) if len(found) else math.nan


def jain(values: Values) -> float:
    """Jain's index `(sum x)^2 / (K sum x^2)` of K clients: 1 if all are equal, 1/K if one client has everything.

    >>> round(jain([98, 93, 80, 61]), 3)
    0.971
    """
    x = of_clients(values)
    return float(x.sum() ** 2 / (len(x) * (x**2).sum())) if (x**2).sum() > 0 else math.nan


def gini(values: Values) -> float:
    """The Gini coefficient: the mean absolute difference between two clients, divided by twice the mean; 0 if all are
    equal.

    >>> round(gini([98, 93, 80, 61]), 3)
    0.093
    """
    x = np.sort(of_clients(values))
    rank = 2 * np.arange(1, len(x) + 1) - len(x) - 1
    return float((rank * x).sum() / (len(x) * x.sum())) if x.sum() > 0 else math.nan


def entropy(values: Values) -> float:
    """The entropy of `x / sum(x)`, divided by `ln K` for K clients: 1 if all are equal.

    >>> round(entropy([98, 93, 80, 61]), 3)
    0.989
    """
    x = of_clients(values)
    if len(x) < 2 or x.sum() <= 0:
        return math.nan
    p = x[x > 0] / x.sum()
    return float(-(p * np.log(p)).sum() / math.log(len(x)))


def cosine(values: Values) -> float:
    """The cosine between the clients' values and a vector of ones. Its square is Jain's index.

    >>> round(cosine([98, 93, 80, 61]) ** 2, 3)
    0.971
    """
    x = of_clients(values)
    norm = math.sqrt(len(x) * float((x**2).sum()))
    return float(x.sum() / norm) if norm > 0 else math.nan


def corrected_variance(accuracy: Values, samples: Values) -> float:
    """The variance of accuracy between clients (ddof 1), without the part that is due to finite test sets.

    With accuracy p on n samples, a client's test set adds about `p(1-p)/(n-1)`; the mean of that is subtracted. A
    result below 0 means that the clients differ no more than by chance.

    >>> round(corrected_variance([0.5, 0.7], [101, 101]), 5)
    0.0177
    """
    p, n = np.asarray(accuracy, dtype=np.float64), np.asarray(samples, dtype=np.float64)
    there = ~np.isnan(p) & (n > 1)
    if there.sum() < 2:
        return math.nan
    p, n = p[there], n[there]
    return float(np.var(p, ddof=1) - (p * (1 - p) / (n - 1)).mean())


class Formula(NamedTuple):
    """How a figure is computed from one value per client, and how it is shown."""

    function: Callable[[NDArray[np.float64]], float]  # values of the clients -> figure
    definition: str  # in words, printed with the figure
    percent: bool = True  # whether it is shown in percent, times 100


def _or_nan(function: Callable[[NDArray[np.float64]], float]) -> Callable[[NDArray[np.float64]], float]:
    return lambda x: float(function(of_clients(x))) if len(of_clients(x)) else math.nan


def _tail(percent: int, which: str) -> Formula:
    return Formula(
        lambda x: share_of(x, percent, which == "best"),
        f"mean of the {which} {percent} % of the clients, rounded up, at least one",
    )


# The figures of reports and comparisons, by the name that is printed.
FORMULAS: dict[str, Formula] = {
    "AVG": Formula(_or_nan(np.mean), "unweighted mean over clients"),
    "STD": Formula(_or_nan(np.std), "standard deviation over clients, ddof 0"),
    "STD (ddof 1)": Formula(lambda x: std(of_clients(x).tolist(), 1), "standard deviation over clients, ddof 1"),
    "variance": Formula(_or_nan(np.var), "variance over clients, ddof 0, of values in [0, 1]", percent=False),
    "MIN": Formula(_or_nan(np.min), "the worst client"),
    "MAX": Formula(_or_nan(np.max), "the best client"),
    "range": Formula(_or_nan(np.ptp), "best client minus worst client"),
    **{f"{which} {k} %": _tail(k, which) for k in (10, 5, 20, 30) for which in ("worst", "best")},
    "Jain": Formula(jain, "(sum x)^2 / (K sum x^2); 1 is equal", percent=False),
    "Gini": Formula(gini, "mean absolute difference / (2 mean); 0 is equal", percent=False),
    "entropy": Formula(entropy, "entropy of x / sum(x), divided by ln K; 1 is equal", percent=False),
    "cosine": Formula(cosine, "cosine between x and a vector of ones; its square is Jain's index", percent=False),
}


# --------------------------------------------------------------------------- over seeds, over samples
PLUS_MINUS = "half the width of the 95 % interval over seeds (Student's t)"  # what ± means in all tables


class Interval(NamedTuple):
    """A mean and its 95 % confidence interval."""

    mean: float
    low: float  # NaN where the spread is unknown, as for a single value
    high: float  # NaN where the spread is unknown, as for a single value

    @property
    def half(self) -> float:
        """Half the width of the interval, which is what ± means wherever it is printed."""
        return (self.high - self.low) / 2


def over_seeds(values: Values) -> Interval:
    """The mean over seeds and its 95 % interval by Student's t distribution.

    >>> [round(x, 3) for x in over_seeds([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    x = of_clients(values)
    if not len(x):
        return Interval(math.nan, math.nan, math.nan)
    mean = float(x.mean())
    if len(x) < 2:
        return Interval(mean, math.nan, math.nan)
    half = float(stdtrit(len(x) - 1, 0.975) * x.std(ddof=1) / math.sqrt(len(x)))
    return Interval(mean, mean - half, mean + half)


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Interval:
    """The mean of `second - first` over the seeds that both have, and its 95 % interval by Student's t distribution.

    >>> paired({0: 1.0, 1: 2.0, 2: 9.0}, {0: 1.5, 1: 2.5}).mean
    0.5
    """
    return over_seeds([second[seed] - first[seed] for seed in sorted(first.keys() & second.keys())])


def find_discoveries(differences: NDArray[np.float64], rate: float = 0.05) -> NDArray[np.bool_]:
    """For which clients the mean difference over seeds is not zero, among many that are looked at.

    `differences` is `[seeds, clients]`. Each client is tested by Student's t; the procedure of Benjamini and Hochberg
    keeps the share of false discoveries among all of them at `rate`. With one seed nothing can be tested, and none is
    found.

    >>> find_discoveries(np.array([[0.30, 0.02], [0.31, -0.02], [0.29, 0.01]])).tolist()
    [True, False]
    """
    seeds, clients = differences.shape
    if seeds < 2 or not clients:
        return np.zeros(clients, dtype=bool)
    mean, error = differences.mean(0), differences.std(0, ddof=1) / math.sqrt(seeds)
    size = np.abs(mean)
    t = np.divide(size, error, out=np.where(size > 0, np.inf, 0.0), where=error > 0)
    p = 2 * stdtr(seeds - 1, -t)
    order = np.argsort(p)
    kept = np.flatnonzero(p[order] <= rate * np.arange(1, clients + 1) / clients)
    found = np.zeros(clients, dtype=bool)
    found[order[: kept[-1] + 1 if len(kept) else 0]] = True
    return found


@lru_cache(maxsize=4096)  # clients with the same number of samples often have the same accuracy
def bootstrap(accuracy: float, samples: int) -> Interval:
    """The 95 % bootstrap interval of an accuracy: as if its test samples were drawn again, with replacement, infinitely
    often.

    The number of correct answers in such a draw has a binomial distribution, so that no draw has to be made.

    >>> [round(x, 3) for x in bootstrap(0.8, 400)]
    [0.8, 0.76, 0.838]
    """
    if samples < 1 or math.isnan(accuracy):
        return Interval(accuracy, math.nan, math.nan)
    p = min(1.0, max(0.0, accuracy))
    middle, reach = samples * p, 6 * math.sqrt(samples * p * (1 - p)) + 1  # the probability beyond it is negligible
    hits = np.arange(max(0, math.floor(middle - reach)), min(samples, math.ceil(middle + reach)) + 1)
    low, high = hits[np.searchsorted(bdtr(hits, samples, p), (0.025, 0.975))] / samples
    return Interval(accuracy, float(low), float(high))
