"""The optimal loss of each client, from which its loss gap is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from equipoise.runs.reading import Recorded

Vector = NDArray[np.float64]
Runs = Mapping[str, Mapping[int, Recorded]]  # method -> seed -> run


@dataclass(frozen=True, eq=False)
class Optima:
    """The optimal loss of each client for each seed, and the data on which losses are compared with it."""

    split: str  # `test`, `validation` or `train`
    by_seed: Mapping[int, Vector]  # one value per client; NaN: unknown
    source: str  # where the optimal losses come from, in words


def find_steered_optima(runs: Runs) -> Optima | None:
    """The optima by which a method of the study steered (EAGLE's), so that the report judges by the same; None: none did."""
    for method, by_seed in runs.items():
        found = {seed: values for seed, run in by_seed.items() if (values := _read_optima(run)) is not None}
        if found:
            split = _find_split(next(iter(by_seed.values())))
            return Optima(split, found, f"its optimal loss there by which {method} steers (same seed)")
    return None


def find_known_optima(run: Recorded) -> Vector | None:
    """The optimal losses that the clients brought; None unless all did."""
    values = [client.get("optimum") for client in run.manifest["data"]["clients"]]
    return None if None in values else np.array(values, dtype=float)


def _read_optima(run: Recorded) -> Vector | None:
    """The optimal losses that clients reported, the last one of each; None if the method has no such figure."""
    table = run.weights.filter(pc.field("figure") == "optimum")
    if not table.num_rows:
        return None
    last = dict(zip(table["client"].to_pylist(), table["value"].to_pylist(), strict=True))
    return np.array([last.get(name, np.nan) for name in run.clients])


def _find_split(run: Recorded) -> str:
    """The data on which the method measured gaps, by its parameters."""
    given = [values["gap_split"] for values in run.manifest["parameters"].values() if "gap_split" in values]
    return str(given[0]) if given else "validation"
