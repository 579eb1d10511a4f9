"""Per-client values -> fairness figures. One formula each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Figures:
    """Figures of one value per client (or per domain)."""

    avg: float  # unweighted mean
    std: float  # population standard deviation, ddof 0
    std1: float  # sample standard deviation, ddof 1 (nan for one value)
    min: float
    max: float


def std(values: Sequence[float], ddof: int = 0) -> float:
    """Standard deviation, ddof 0 (FedEquilibria, FedFV, FedFE) or 1 (FedHEAL, F2DC).

    >>> round(std([89.84, 93.25, 79.54, 41.35], ddof=1), 2), round(std([94.44, 93.17, 79.07, 39.60], ddof=0), 2)
    (23.82, 22.18)
    """
    if len(values) <= ddof:
        return float("nan")
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=ddof))


def figures(values: Sequence[float]) -> Figures:
    """AVG, both STDs, MIN and MAX.

    >>> figures([0.5, 0.7]).min
    0.5
    """
    if not values:
        nan = float("nan")
        return Figures(nan, nan, nan, nan, nan)
    array = np.asarray(values, dtype=np.float64)
    return Figures(float(array.mean()), std(values), std(values, 1), float(array.min()), float(array.max()))


def auc(margins: Tensor, y: Tensor) -> float:
    """The area under the ROC curve: how often a sample of class 1 has a larger margin than one of class 0 (ties count half).

    >>> auc(Tensor([0.1, 0.4, 0.4, 0.8]), Tensor([0, 0, 1, 1]))
    0.875
    """
    _, place, counts = margins.double().unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1).double() / 2)[place]  # equal margins share the mean of their ranks
    ones = int((y == 1).sum())
    return float((ranks[y == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(y) - ones)))
