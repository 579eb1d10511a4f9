"""How a report looks at its runs: over clients or domains, with which divisor, and after which rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from equipoise.grammar import require
from equipoise.metrics import FORMULAS, of_clients, std

Vector = NDArray[np.float64]
Over = Literal["clients", "domains"]


def average_by_domain(values: Vector, domains: Sequence[str]) -> dict[str, float]:
    """The mean over the clients of each domain."""
    found: dict[str, list[float]] = {}
    for domain, value in zip(domains, values.tolist(), strict=True):
        if not np.isnan(value):
            found.setdefault(domain, []).append(value)
    return {domain: sum(those) / len(those) for domain, those in found.items()}


@dataclass(frozen=True)
class View:
    """What the figures of a report are taken over. It holds for tables, curves and sweeps alike."""

    over: Over = "clients"  # one value per client, or one per domain: the mean over its clients
    ddof: int = 0  # the divisor of standard deviations and variances is their number minus this
    last: int = 1  # scores are means over so many evaluated rounds at the end of a run

    def __post_init__(self) -> None:
        require(self.ddof in (0, 1), "ddof", "0 or 1", self.ddof)
        require(self.last >= 1, "last", "at least 1", self.last)

    def measure(self, name: str, values: Vector, domains: Sequence[str]) -> float:
        """The figure of this name, from one value per client.

        >>> four, where = np.array([0.5, 0.7, 0.9, 0.9]), ["a", "a", "b", "b"]
        >>> [round(View(over, 1).measure("STD", four, where), 3) for over in ("clients", "domains")]
        [0.191, 0.212]
        """
        if self.over == "domains":
            values = np.array(list(average_by_domain(values, domains).values()))
        if name in ("STD", "variance"):
            spread = std(of_clients(values).tolist(), self.ddof)
            return spread if name == "STD" else spread**2
        return FORMULAS[name].function(values)

    def average_last(self, values: Vector) -> Vector:
        """One value per client, from one per evaluated round and client: the mean over the last rounds."""
        found: Vector = values[-self.last :].mean(axis=0)
        return found

    def vary(self, values: Vector) -> float:
        """The variance over clients."""
        known = of_clients(values)
        return float(np.var(known, ddof=self.ddof)) if len(known) > self.ddof else float("nan")

    @property
    def when(self) -> str:
        """After which rounds, in words."""
        return "after the last round" if self.last == 1 else f"mean of the last {self.last} evaluated rounds"

    def word(self, name: str, definition: str) -> str:
        """The definition of a figure as it is taken here."""
        words = definition.replace("ddof 0", f"ddof {self.ddof}") if "ddof 1" not in name else definition
        if self.over == "domains" and name in FORMULAS:
            words = words.replace("client", "domain")
        return words


DEFAULT_VIEW = View()
