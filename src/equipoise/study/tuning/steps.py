"""What is to be done next in a search, from what is in its book alone: so every process comes to the same answer.

The trials of a generation climb rungs together. At each rung all are looked at, and the better half goes on. When a
generation is over, the sampler is told, and draws the next one. FedAvg's generation ends first, because the others are
told apart by what they cost its clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from equipoise.study.report.figures import DEFAULT_RULES
from equipoise.study.tuning.ledger import Reached, Trial
from equipoise.study.tuning.plan import Plan
from equipoise.study.tuning.space import REFERENCE

Board = Mapping[str, Sequence[Trial]]  # contestant -> its trials


@dataclass(frozen=True)
class Draw:
    """A trial is to be drawn."""

    contestant: str
    generation: int


@dataclass(frozen=True)
class Climb:
    """A trial is to be run up to a rung."""

    trial: Trial
    rung: int


@dataclass(frozen=True)
class Settle:
    """The sampler is to be told what became of a generation."""

    contestant: str
    generation: int


Step = Draw | Climb | Settle


def list_steps(plan: Plan, board: Board, generation: int) -> list[Step]:
    """All that can be done now in a generation; empty if it is over. What comes first is the most urgent."""
    steps: list[Step] = []
    for contestant, trials in board.items():
        mine = [trial for trial in trials if trial.generation == generation]
        if len(mine) < plan.size_of(generation):
            steps.append(Draw(contestant, generation))
        elif not all(trial.is_settled for trial in mine):
            steps += _climb_or_settle(plan, board, contestant, mine)
    return steps


def _climb_or_settle(plan: Plan, board: Board, contestant: str, mine: Sequence[Trial]) -> Iterator[Step]:
    climbing = list(mine)
    for rung in range(len(plan.rungs)):
        undone = [trial for trial in climbing if len(trial.reached) <= rung]
        if undone:
            yield from (Climb(trial, rung) for trial in undone)
            return
        climbing = promote(plan, climbing, rung)
    generation = mine[0].generation
    first = [trial for trial in board[REFERENCE] if trial.generation == generation]
    if contestant == REFERENCE or all(trial.is_settled for trial in first):
        yield Settle(contestant, generation)


def promote(plan: Plan, trials: Sequence[Trial], rung: int) -> list[Trial]:
    """The better half of the trials at a rung, rounded up, without those that failed. Equal ones: by the average."""
    sound = [trial for trial in trials if not trial.reached[rung].failed]
    ranked = sorted(sound, key=lambda trial: rank(plan, trial.reached[rung]), reverse=True)
    return ranked[: math.ceil(len(trials) / 2)]


def rank(plan: Plan, reached: Reached) -> tuple[float, float]:
    """By what trials are compared: the objective, then the average."""
    values = list(reached.values.values())
    return plan.score(reached.values), sum(values) / len(values)


def is_top(plan: Plan, trial: Trial) -> bool:
    """Whether a trial got to the last rung."""
    return len(trial.reached) == len(plan.rungs) and not trial.last.failed


def limit(plan: Plan, trial: Trial, references: Sequence[Trial]) -> dict[str, float]:
    """The levelling-down rules for the worst and the average, as numbers for the sampler: above 0 means broken.

    The reference is the best of FedAvg's trials so far, at the same rung.
    """
    rung = len(trial.reached) - 1
    rivals = [one.reached[rung] for one in references if len(one.reached) > rung and not one.reached[rung].failed]
    if trial.contestant == REFERENCE or trial.last.failed or not rivals:
        return {}
    mine, best = trial.last.values, max(rivals, key=lambda one: rank(plan, one)).values
    worst = min(best.values()) - min(mine.values())
    average = sum(best.values()) / len(best) - sum(mine.values()) / len(mine)
    return {"worst": worst, "average": average - DEFAULT_RULES.average}
