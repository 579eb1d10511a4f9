"""What a study cost: rounds, seconds and uploaded bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from equipoise.runs.reading import Recorded
from equipoise.study.tuning.choice import Choice
from equipoise.study.tuning.judging import Judgement
from equipoise.study.tuning.steps import Board


class Cost(NamedTuple):
    """What some runs cost."""

    what: str
    runs: int
    rounds: int
    seconds: float
    upload: int  # bytes, of all clients


def list_costs(board: Board, choice: Choice, judgement: Judgement) -> list[Cost]:
    """The cost of the search by contestant, of the choice, and of the judgement."""
    found = []
    for contestant, trials in board.items():
        ends = [trial.last for trial in trials if trial.reached]
        found.append(
            Cost(
                f"search: {contestant}",
                len(ends),
                sum(end.round for end in ends),
                sum(end.seconds for end in ends),
                sum(end.upload for end in ends),
            )
        )
    judged = [run for by_seed in judgement.study.runs.values() for run in by_seed.values()]
    return [*found, _add_up("choice: further seeds", choice.runs), _add_up("judgement: fresh seeds", judged)]


def _add_up(what: str, runs: Iterable[Recorded]) -> Cost:
    several = list(runs)
    rounds = [len(run.manifest["seconds_per_round"]) for run in several]
    sent = [run.manifest["cost"]["upload"] * run.manifest["cost"]["clients"] for run in several]
    return Cost(
        what,
        len(several),
        sum(rounds),
        sum(run.manifest["seconds"] for run in several),
        sum(n * each for n, each in zip(rounds, sent, strict=True)),
    )
