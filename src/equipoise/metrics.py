"""Per-client values -> fairness figures. One formula each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
