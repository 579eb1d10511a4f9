"""The figures that papers print, each measured on one finished run. One function per figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.errors import EquipoiseError
from equipoise.metrics import FORMULAS
from equipoise.runs.kept import MISSING, read_kept_of
from equipoise.runs.reading import Recorded
from equipoise.study.report.view import DEFAULT_VIEW, Vector, View, average_by_domain
from equipoise.study.report.volatility import average_change

SAME_DIRECTION = 0.9  # the share of rounds in which FedHEAL's figure 2 calls an entry consistent
Unit = tuple[str, ...]  # names that a domain or client may have; empty for a figure over all


@dataclass(frozen=True)
class Measured:
    """A finished run, and how its paper reports results."""

    run: Recorded
    view: View = DEFAULT_VIEW  # over what figures are taken, and after which rounds
    metric: str = ""  # a recorded metric that takes the place of the accuracy
    alone: Recorded | None = None  # the run of the same seed and data in which every client trains alone

    def curve(self, metric: str = "", split: str = "test") -> Vector:
        """One value per evaluated round and client."""
        wanted = metric or self.metric or self.run.score
        _, values = self.run.curve(wanted, split)
        if not len(values):
            raise EquipoiseError(f"`{self.run.place}` has no {wanted} on {split} data.")
        return values

    def final(self, metric: str = "", split: str = "test") -> Vector:
        """One value per client: the mean over the last evaluated rounds."""
        return self.view.average_last(self.curve(metric, split))

    def figure(self, name: str, values: Vector) -> float:
        """AVG, STD or MIN of one value per client, over clients or domains as the paper has it."""
        return self.view.measure(name, values, self.run.domains)

    def trace(self, name: str) -> Vector:
        """AVG or STD of every evaluated round, in percent."""
        return np.array([100 * self.figure(name, values) for values in self.curve()])

    def gaps(self, split: str = "test") -> Vector:
        """Each client's loss minus that of its own model after the same number of rounds alone."""
        if self.alone is None:
            raise EquipoiseError("Loss gaps need the run of `local_only` with the same seed, which is not there.")
        own = Measured(self.alone, self.view)
        found: Vector = self.final("loss", split) - own.final("loss", split)
        return found

    def of_unit(self, values: Vector, names: Unit) -> float:
        """The value of the domain (or client) that has one of these names."""
        by_client = dict(zip(self.run.clients, values.tolist(), strict=True))
        known = by_client if self.view.over == "clients" else average_by_domain(values, self.run.domains)
        return next((known[name] for name in names if name in known), math.nan)

    def kept(self, kind: str) -> Mapping[str, Any]:
        """What the run kept of a kind: of several, of other clients or layers, the first."""
        none = {MISSING: f"`{self.run.place}` kept no {kind}."}
        found = next(iter(read_kept_of(self.run.place, kind).values()), none)
        if MISSING in found:
            raise EquipoiseError(str(found[MISSING]))
        return found


@dataclass(frozen=True)
class Figure:
    """How a figure is measured, and how it is read."""

    measure: Callable[[Measured, Unit], float]  # of a run, and the names of a unit if it belongs to one
    definition: str
    lower: bool = False  # whether lower is better
    digits: int = 2  # behind the point, as the papers print it
    needs_alone: bool = False  # whether it needs the run of local training


def _effective_rank(one: Measured, unit: Unit) -> float:
    """How many directions the features fill, by the local model of each client; the mean over clients.

    It is exp of the entropy of the singular values, divided by their sum.
    """

    def count(singular: Sequence[float]) -> float:
        values = np.asarray(singular, dtype=np.float64)
        share = values[values > 0] / values[values > 0].sum()
        return float(np.exp(-(share * np.log(share)).sum()))

    return float(np.mean([count(singular) for singular in one.kept("spectrum")["singular"]]))


def _silhouette(one: Measured, unit: Unit) -> float:
    from sklearn.metrics import silhouette_score

    found = one.kept("features")
    points = np.asarray(found["points"], dtype=np.float64)
    return float(silhouette_score(points, np.asarray(found["classes"])))


def _same_direction(stretch: str) -> Callable[[Measured, Unit], float]:
    """The share of entries of updates that had their usual sign in at least nine of ten of the rounds of a stretch."""

    def measure(one: Measured, unit: Unit) -> float:
        shares = one.kept("consistency").get(stretch)
        if not isinstance(shares, list):
            return math.nan
        bins = np.linspace(0.5, 1.0, len(shares) + 1)[:-1]
        return 100 * float(np.asarray(shares, dtype=np.float64)[bins >= SAME_DIRECTION - 1e-9].sum())

    return measure


def _cost(name: str, divisor: float, of_all: bool = True) -> Callable[[Measured, Unit], float]:
    def measure(one: Measured, unit: Unit) -> float:
        return scale_cost(one.run.manifest["cost"], name, divisor, of_all)

    return measure


def scale_cost(cost: Mapping[str, int], name: str, divisor: float, of_all: bool = True) -> float:
    """A cost of all clients of a round (or of one client), in units of `divisor`."""
    return cost[name] * (cost["clients"] if of_all else 1) / divisor


COSTS = {"upload_params_1e7": ("parameters", 1e7), "comm_MB": ("upload", 2**20), "flops_1e10": ("flops", 1e10)}
ALL_CURVE = "mean over all evaluated rounds of"

FIGURES: dict[str, Figure] = {
    "accuracy of a unit": Figure(lambda one, unit: 100 * one.of_unit(one.final(), unit), "accuracy in percent"),
    "AVG": Figure(lambda one, _: 100 * one.figure("AVG", one.final()), "unweighted mean accuracy in percent"),
    "STD": Figure(
        lambda one, _: 100 * one.figure("STD", one.final()), "standard deviation of the accuracies in percent", True
    ),
    "MIN": Figure(lambda one, _: 100 * one.figure("MIN", one.final()), "lowest accuracy in percent"),
    "AVG of the curve": Figure(lambda one, _: float(one.trace("AVG").mean()), f"{ALL_CURVE} AVG: high if fast"),
    "STD of the curve": Figure(lambda one, _: float(one.trace("STD").mean()), f"{ALL_CURVE} STD", True),
    "lowest STD": Figure(lambda one, _: float(one.trace("STD").min()), "lowest STD of all evaluated rounds", True),
    "AVG volatility": Figure(
        lambda one, _: average_change(one.trace("AVG")),
        "mean absolute change of AVG from round to round, second half of the run", True,
    ),
    "STD volatility": Figure(
        lambda one, _: average_change(one.trace("STD")),
        "mean absolute change of STD from round to round, second half of the run", True,
    ),
    "accuracy": Figure(lambda one, _: one.figure("AVG", one.final()), "unweighted mean accuracy", digits=3),
    "max_gap": Figure(lambda one, _: float(np.nanmax(one.gaps())), "largest loss gap", True, 3, True),
    "min_gap": Figure(lambda one, _: float(np.nanmin(one.gaps())), "smallest loss gap", True, 3, True),
    "var_gap": Figure(lambda one, _: one.view.vary(one.gaps()), "variance of the loss gaps", True, 3, True),
    "gap": Figure(lambda one, unit: one.of_unit(one.gaps(), unit), "loss gap of a client", True, 3, True),
    "train gap": Figure(
        lambda one, unit: one.of_unit(one.gaps("train"), unit), "loss gap of a client on its training data", True, 3, True
    ),
    "train var_gap": Figure(
        lambda one, _: one.view.vary(one.gaps("train")), "variance of the loss gaps on training data", True, 3, True
    ),
    "loss": Figure(lambda one, unit: one.of_unit(one.final("loss"), unit), "test loss of a client", True, 3),
    "train loss": Figure(
        lambda one, unit: one.of_unit(one.final("loss", "train"), unit), "training loss of a client", True, 3
    ),
    "lowest L*": Figure(
        lambda one, _: float(np.nanmin(one.final("loss", "validation"))), "lowest validation loss of a client", True, 3
    ),
    "highest L*": Figure(
        lambda one, _: float(np.nanmax(one.final("loss", "validation"))), "highest validation loss of a client", True, 3
    ),
    "range of L*": Figure(
        lambda one, _: FORMULAS["range"].function(one.final("loss", "validation")),
        "difference between the highest and the lowest validation loss of clients that train alone", True, 3,
    ),
    "effective rank": Figure(
        _effective_rank,
        "exp of the entropy of the singular values of the features' covariance, by the local model of each client; their mean",
    ),
    "silhouette": Figure(_silhouette, "silhouette of the classes among the t-SNE points", digits=3),
    "same direction, 10 rounds": Figure(_same_direction("10"), "percent of entries with one sign in 9 of the first 10 rounds"),
    "same direction, 100 rounds": Figure(
        _same_direction("100"), "percent of entries with one sign in 90 of the first 100 rounds"
    ),
    "same direction, last 10 rounds": Figure(
        _same_direction("last 10"), "percent of entries with one sign in 9 of the last 10 rounds"
    ),
    **{
        name: Figure(_cost(*what), f"{what[0]} of all clients in a round, divided by {what[1]:g}", True)
        for name, what in COSTS.items()
    },
    "train_time_s": Figure(lambda one, _: math.nan, "seconds of a round, which are not compared", True),
}  # fmt: skip
