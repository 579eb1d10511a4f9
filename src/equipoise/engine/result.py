"""The result of a run: a record per round, and the whole run as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from equipoise.convergence import Convergence, judge_convergence
from equipoise.data import Federation
from equipoise.engine.guard import cap_weights
from equipoise.engine.settings import Settings
from equipoise.losses import SCORES
from equipoise.method import Method
from equipoise.metrics import Estimate, Figures, estimate, figures
from equipoise.roles import Report, Share
from equipoise.rounds.evaluation import Score
from equipoise.task import Task
from equipoise.types import ClientState, EquipoiseError, Server


@dataclass(frozen=True)
class Rejection:
    """A client whose answer did not count in a round."""

    client: str  # its name
    why: str  # in words


@dataclass(frozen=True)
class Selection:
    """Who was asked to take part in a round, and why the others were not."""

    asked: tuple[int, ...] = ()  # numbers of the clients that were asked to train
    candidates: tuple[int, ...] = ()  # of those that reported before it was known who takes part
    why: Mapping[int, str] = field(default_factory=dict)  # client -> why it was not asked, where it has its own reason
    others: str = ""  # why all others that were there were not asked; empty: there are no others
    values: Mapping[int, float] = field(default_factory=dict)  # client -> what it was judged by, such as its loss


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
    selection: Selection = field(default_factory=Selection)  # who was asked, and why the others were not
    lr: float | None = None  # the local learning rate of this round; None: an older version did not record it

    def find_worst_and_average(self) -> tuple[float, float] | None:
        """The worst client's and the mean test score; None if the round was not evaluated."""
        values = [s.value for s in self.scores if s.metric in SCORES and s.split == "test"]
        found = figures(values)
        return (found.min, found.avg) if values else None


def judge_records(records: Sequence[RoundRecord]) -> Convergence:
    """Whether a run with these records has converged: see `convergence.py`.

    AVG and MIN are over domains, of the score on validation data, or on test data where there are none of those.
    """
    curves: dict[str, dict[int, float]] = {"AVG": {}, "MIN": {}}
    for record in records:
        scores = [score for score in record.scores if score.metric in SCORES]
        held = [score for score in scores if score.split == "validation"]
        means = _average_by_domain(held or [score for score in scores if score.split == "test"])
        if means:
            found = figures(list(means.values()))
            curves["AVG"][record.round], curves["MIN"][record.round] = 100 * found.avg, 100 * found.min
    return judge_convergence(curves, records[-1].round if records else 0)


def _average_by_domain(scores: Sequence[Score]) -> dict[str, float]:
    """The mean of the scores over the clients of each domain."""
    found: dict[str, list[float]] = {}
    for score in scores:
        found.setdefault(score.domain, []).append(score.value)
    return {domain: sum(values) / len(values) for domain, values in found.items()}


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
    scored: str  # which model the score belongs to, in words
    warnings: tuple[str, ...] = ()  # one of each kind
    seconds: float = 0.0  # that the run took
    stopped: str = ""  # why it ended before its last round, if it did
    onlookers: tuple[Report | Share, ...] = ()  # parts that look on, for plots, and change nothing of the run

    @property
    def method(self) -> Method:
        """The method, with the parameters that suit the data set."""
        return self.settings.method

    @property
    def played_method(self) -> Method:
        """The method as the rounds play it: with the onlookers, and with the guard's caps if there is a guard."""
        method, guard = self.settings.method, self.settings.guard
        if self.onlookers:
            reports = tuple(part for part in self.onlookers if isinstance(part, Report))
            share = tuple(part for part in self.onlookers if isinstance(part, Share))
            method = replace(method, reports=method.reports + reports, share=method.share + share)
        return method if guard is None else cap_weights(method, guard)

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

    def values(self, metric: str | None = None, split: str = "test") -> dict[str, float]:
        """The final value of a metric for each client, by name; by default of the loss's score, such as accuracy."""
        return {s.client: s.value for s in self._pick_scores(metric, split)}

    def by_domain(self, metric: str | None = None, split: str = "test") -> dict[str, float]:
        """The final value of a metric for each domain: the mean over its clients."""
        return _average_by_domain(self._pick_scores(metric, split))

    def _pick_scores(self, metric: str | None, split: str) -> list[Score]:
        wanted = metric or self.settings.loss.score
        return [s for s in self.scores if s.metric == wanted and s.split == split]

    def estimate(self, metric: str | None = None, split: str = "test") -> Estimate:
        """What the final values of the scored clients tell of all clients, where only some are scored."""
        return estimate(list(self.values(metric, split).values()), len(self.federation))

    @cached_property
    def convergence(self) -> Convergence:
        """Whether the run has converged, or how fast its figures still change."""
        return judge_records(self.rounds)

    def figures(self, by: str = "client") -> Figures:
        """AVG, STD, MIN and other fairness figures of the final test score, over clients or over domains."""
        if by not in ("client", "domain"):
            raise EquipoiseError(
                f"Figures are over each client or each domain. Found by={by!r}: say 'client' or 'domain'."
            )
        values = self.values() if by == "client" else self.by_domain()
        return figures(list(values.values()))
