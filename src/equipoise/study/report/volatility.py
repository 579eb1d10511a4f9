"""How much figures and weights change from round to round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.runs.reading import Recorded


def average_change(values: NDArray[np.float64]) -> float:
    """The mean absolute change from one value to the next, in the second half; NaN for fewer than two values there.

    >>> average_change(np.array([9.0, 0.0, 1.0, 3.0]))
    2.0
    """
    steps = np.abs(np.diff(values[len(values) // 2 :]))
    return float(steps.mean()) if len(steps) else float("nan")


def measure_weight_changes(run: Recorded) -> float:
    """The mean absolute change of a client's weight from one of its rounds to the next, in the second half of the run."""
    table = run.weights.select(["round", "client", "weight"]).to_pydict()
    weights: dict[str, dict[int, float]] = {}
    half = run.rounds_done // 2
    for r, client, weight in zip(table["round"], table["client"], table["weight"], strict=True):
        if r > half:
            weights.setdefault(client, {})[r] = weight
    steps = [np.abs(np.diff([by_round[r] for r in sorted(by_round)])) for by_round in weights.values()]
    whole = np.concatenate(steps) if steps else np.zeros(0)
    return float(whole.mean()) if len(whole) else float("nan")
