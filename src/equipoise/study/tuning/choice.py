"""The choice: by validation data alone, with the levelling-down rules as constraints.

The best trials of each contestant are trained with further seeds, for each of which clients set other validation data
aside (unless the data come with some), so that the spread over seeds is also that of the samples. FedAvg's best of these
is the reference; of every other contestant the best one is chosen that does not fail the levelling-down check against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.data import Federation
from equipoise.errors import EquipoiseError
from equipoise.methods import parse
from equipoise.runs.reading import Recorded
from equipoise.study.jobs import Job
from equipoise.study.report.figures import DEFAULT_RULES, LAST
from equipoise.study.report.verdict import Verdict, judge
from equipoise.study.report.view import Vector, average_by_domain
from equipoise.study.tuning.ledger import Trial
from equipoise.study.tuning.plan import CONFIRMED, SEEDS_OF_CHOICE, Plan
from equipoise.study.tuning.runs import Doer, Done
from equipoise.study.tuning.space import REFERENCE, Point
from equipoise.study.tuning.steps import Board, is_top, rank
from equipoise.study.tuning.trials import build_job, hide_test_data

MOVING = ("rising", "falling")  # states of a run whose figures are of its speed
CHOICE = "choice"  # the folder of the runs with further seeds
LOCAL = "local_only"  # what clients reach alone


@dataclass(frozen=True, eq=False)
class Candidate:
    """A point that may be chosen: what it gave on validation data with several seeds."""

    contestant: str
    number: int  # of its trial
    point: Point
    domains: tuple[str, ...]  # or clients, where there are no domains
    values: Vector  # [seeds, domains]
    state: str  # of convergence, of the trial

    @property
    def is_moving(self) -> bool:
        """Whether it had not converged when its rounds were over."""
        return self.state in MOVING


@dataclass(frozen=True, eq=False)
class Chosen:
    """What was chosen of a contestant, and how it stands against tuned FedAvg on validation data."""

    candidate: Candidate
    verdict: Verdict | None  # None for the reference itself
    score: float  # the objective, in the mean over seeds

    @property
    def is_single(self) -> bool:
        """Whether it is one method, not a sum."""
        return len(parse(self.candidate.point.method).calls) == 1

    @property
    def is_fit(self) -> bool:
        """Whether nothing speaks against it: it does not fail the levelling-down check, and has converged."""
        return not self.candidate.is_moving and (self.verdict is None or self.verdict.word != "failed")


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen of every contestant."""

    by_contestant: Mapping[str, Chosen]
    alone: Candidate  # local-only training, as tuned FedAvg's clients train
    single: Chosen  # the best of these that is one method, not a sum
    runs: tuple[Recorded, ...]  # with further seeds, by which it was chosen

    @property
    def winner(self) -> str:
        """The contestant to take: the best fit one; FedAvg if none serves the worst better than FedAvg does."""
        fit = {name: one.score for name, one in self.by_contestant.items() if one.is_fit or name == REFERENCE}
        return max(fit, key=lambda name: (fit[name], name == REFERENCE))


def choose(plan: Plan, board: Board, data: Federation, folder: Path, do: Doer) -> Choice:
    """Choose a point of every contestant. `do` does runs, or waits for those who do them; none of them has test data."""
    seeds = range(1, SEEDS_OF_CHOICE)
    short = {name: shortlist(plan, trials) for name, trials in board.items()}
    listed = [trial for trials in short.values() for trial in trials]
    jobs = {(trial.name, seed): build_job(plan, trial.point, seed) for trial in listed for seed in seeds}
    done = _do_blindly(list(jobs.values()), data, folder, do)
    candidates: dict[str, list[Candidate]] = {}
    for trial in listed:
        runs = [done[jobs[trial.name, seed]] for seed in seeds]
        rest = [average_last(run) for run in runs if run is not None]
        if len(rest) == len(runs):  # one that breaks down with some seed is no choice
            values = _stack([trial.last.values, *rest])
            one = Candidate(
                trial.contestant, trial.number, trial.point, tuple(trial.last.values), values, trial.last.state
            )
            candidates.setdefault(trial.contestant, []).append(one)
    if REFERENCE not in candidates:
        raise EquipoiseError(
            "No trial of fedavg could be trained with all seeds. Lower --lr, around which is searched."
        )
    first = max(candidates[REFERENCE], key=lambda one: (not one.is_moving, score(plan, one)))
    alone, own = _train_alone(plan, first, data, folder, do)
    judged = {
        name: [Chosen(one, _judge(one, first, alone), score(plan, one)) for one in those]
        for name, those in candidates.items()
        if name != REFERENCE
    }
    chosen = {REFERENCE: Chosen(first, None, score(plan, first))}
    chosen |= {name: max(those, key=_standing) for name, those in judged.items()}
    singles = [one for one in chosen.values() if one.is_single]
    whole = [run for run in done.values() if run is not None]
    return Choice(chosen, alone, max(singles, key=_standing), (*whole, *own))


def _do_blindly(jobs: Sequence[Job], data: Federation, folder: Path, do: Doer) -> Done:
    """Do runs without test data, for each seed with other validation data."""
    found: dict[Job, Recorded | None] = {}
    for seed in sorted({job.seed for job in jobs}):
        mine = [job for job in jobs if job.seed == seed]
        found |= do(mine, hide_test_data(data, seed), folder / CHOICE)
    return found


def shortlist(plan: Plan, trials: Sequence[Trial]) -> list[Trial]:
    """The best trials at the last rung, those that have converged first. What was drawn twice counts once."""
    top = [trial for trial in trials if is_top(plan, trial)]
    ranked = sorted(top, key=lambda trial: (trial.last.state not in MOVING, *rank(plan, trial.last)), reverse=True)
    once = {trial.point: trial for trial in reversed(ranked)}
    return [trial for trial in ranked if once[trial.point] is trial][:CONFIRMED]


def score(plan: Plan, candidate: Candidate) -> float:
    """The objective of a candidate, in the mean over seeds."""
    rows = [dict(zip(candidate.domains, row, strict=True)) for row in candidate.values.tolist()]
    return float(np.mean([plan.score(row) for row in rows]))


def average_last(run: Recorded) -> dict[str, float]:
    """The validation score of each domain (or client without one), in the mean over the last evaluations of a run."""
    values = run.curve(split="validation")[1][-LAST:]
    return average_by_domain(values.mean(0), run.domains)


def _stack(rows: Sequence[Mapping[str, float]]) -> Vector:
    return np.array([[row[name] for name in rows[0]] for row in rows])


def _train_alone(
    plan: Plan, first: Candidate, data: Federation, folder: Path, do: Doer
) -> tuple[Candidate, list[Recorded]]:
    """What clients reach alone, if they train as tuned FedAvg's; and the runs that show it."""
    own = Point(LOCAL, first.point.training)
    done = _do_blindly([build_job(plan, own, seed) for seed in range(SEEDS_OF_CHOICE)], data, folder, do)
    runs = [run for run in done.values() if run is not None]
    if len(runs) < SEEDS_OF_CHOICE:
        raise EquipoiseError(
            "Clients could not be trained alone as fedavg trains them. Lower --lr, around which is searched."
        )
    return Candidate(LOCAL, 0, own, first.domains, _stack([average_last(run) for run in runs]), "flat"), runs


def _judge(one: Candidate, reference: Candidate, alone: Candidate) -> Verdict:
    """The levelling-down check on validation data, of domains or of clients without one."""
    return judge(one.point.method, one.domains, reference.values, one.values, alone.values, DEFAULT_RULES)


def _standing(one: Chosen) -> tuple[bool, bool, float]:
    return one.is_fit, not one.candidate.is_moving, one.score
