"""A study's outcome for programs, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.metrics import Interval
from equipoise.study.tuning.choice import Choice
from equipoise.study.tuning.commands import write_deploy, write_run
from equipoise.study.tuning.costs import list_costs
from equipoise.study.tuning.judging import Judgement, tell_outcome
from equipoise.study.tuning.plan import Contest
from equipoise.study.tuning.steps import Board

SCHEMA = 1


def summarise_study(contest: Contest, board: Board, choice: Choice, judgement: Judgement) -> dict[str, Any]:
    """All that a program may want to know of a study that is over."""
    job = contest.plan.job
    point = judgement.points[choice.winner]
    return {
        "schema": SCHEMA,
        "plan": contest.plan.describe(),
        "left_out": dict(contest.left_out),
        "told": tell_outcome(choice, judgement),
        "winner": choice.winner,
        "goal_met": judgement.is_goal_met,
        "commands": {"train": write_run(job, point), "deploy": write_deploy(job, point)},
        "single": choice.single.candidate.contestant,
        "contestants": {
            name: {
                "method": one.candidate.point.method,
                "training": one.candidate.point.training.describe(),
                "convergence": one.candidate.state,
                "validation": one.score,
                "verdict_on_validation": one.verdict.word if one.verdict else None,
                "test": _figures(judgement, name),
            }
            for name, one in choice.by_contestant.items()
        },
        "local_only": _figures(judgement, "local_only"),
        "duels": [
            {"rival": duel.rival, "worst": duel.worst._asdict(), "average": duel.average._asdict(), "won": duel.is_won}
            for duel in judgement.duels
        ],
        "cost": [cost._asdict() for cost in list_costs(board, choice, judgement)],
    }


def _figures(judgement: Judgement, name: str) -> Mapping[str, Mapping[str, float]] | None:
    if name not in judgement.study.runs:
        return None
    figures: dict[str, Interval] = {figure: judgement.interval(name, figure) for figure in ("AVG", "STD", "MIN")}
    return {figure: value._asdict() for figure, value in figures.items()}
