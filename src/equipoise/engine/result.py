"""The result of a run: a record per round, and the whole run as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from equipoise.data import Federation
from equipoise.engine.settings import Settings
from equipoise.method import Method
from equipoise.metrics import Figures, figures
from equipoise.rounds.evaluation import Score
from equipoise.task import Task
from equipoise.types import ClientState, EquipoiseError, Server


@dataclass(frozen=True)
class Rejection:
    """A client whose answer did not count in a round."""

    client: str  # its name
    why: str  # in words


@dataclass(frozen=True)
class RoundRecord:
    """What is known after one round."""

    round: int  # counted from 1: rounds done
    clients: tuple[int, ...]  # numbers of the clients whose answers counted
    weights: tuple[float, ...]  # one per client, in the same order
    figures: Mapping[str, tuple[float, ...]]  # what the weights came from: one value per client, or one for all
    scores: tuple[Score, ...]  # of every client; empty if the round was not evaluated
    seconds: float  # that the round took
    rejected: tuple[Rejection, ...] = ()  # answers that did not count, and why
    warnings: tuple[str, ...] = ()  # kinds of warnings that came up in this round for the first time

    def find_worst_and_average(self) -> tuple[float, float] | None:
        """The worst client's and the mean test accuracy; None if the round was not evaluated."""
        values = [s.value for s in self.scores if s.metric == "accuracy" and s.split == "test"]
        found = figures(values)
        return (found.min, found.avg) if values else None


@dataclass(frozen=True, eq=False)
class Run:
    """A run: what it was asked to do, the model, and everything that was measured on the way.

    `equipoise.run` returns it when the run is over. Before the first round it has no rounds.
    """

    settings: Settings  # all that decides what the run computes
    task: Task  # the model and the federation, brought together for the method
    server: Server  # the model, and what the server remembers
    states: Mapping[int, ClientState]  # what the clients keep
    rounds: tuple[RoundRecord, ...]  # one record per round
    runner: str  # the name of the runner
    scored: str  # which model `accuracy` belongs to, in words
    warnings: tuple[str, ...] = ()  # one of each kind
    seconds: float = 0.0  # that the run took
    stopped: str = ""  # why it ended before its last round, if it did

    @property
    def method(self) -> Method:
        """The method, with the parameters that suit the data set."""
        return self.settings.method

    @property
    def federation(self) -> Federation:
        """The data: who holds what."""
        return self.settings.federation

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return self.settings.seed

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores of the last round."""
        return self.rounds[-1].scores

    def values(self, metric: str = "accuracy", split: str = "test") -> dict[str, float]:
        """The final value of a metric for each client, by name."""
        return {s.client: s.value for s in self.scores if s.metric == metric and s.split == split}

    def by_domain(self, metric: str = "accuracy", split: str = "test") -> dict[str, float]:
        """The final value of a metric for each domain: the mean over its clients."""
        found: dict[str, list[float]] = {}
        for s in self.scores:
            if s.metric == metric and s.split == split:
                found.setdefault(s.domain, []).append(s.value)
        return {domain: sum(values) / len(values) for domain, values in found.items()}

    def figures(self, by: str = "client") -> Figures:
        """AVG, STD, MIN and other fairness figures of the final test accuracy, over clients or over domains."""
        if by not in ("client", "domain"):
            raise EquipoiseError(
                f"Figures are over each client or each domain. Found by={by!r}: say 'client' or 'domain'."
            )
        values = self.values() if by == "client" else self.by_domain()
        return figures(list(values.values()))
