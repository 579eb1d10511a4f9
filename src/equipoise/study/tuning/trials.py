"""Runs of trials: each goes up to a rung and pauses there; promoted, it goes on from its checkpoint, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from equipoise.data import Federation
from equipoise.engine.checkpoints import Checkpoints, discard
from equipoise.engine.result import RoundRecord, Run
from equipoise.engine.simulation import prepare_simulation, simulate
from equipoise.errors import EquipoiseError
from equipoise.losses import SCORES
from equipoise.runs.cost import estimate_cost
from equipoise.study.jobs import CHECKPOINT_EVERY, Job
from equipoise.study.report.figures import LAST
from equipoise.study.tuning.ledger import Reached, Trial
from equipoise.study.tuning.plan import Plan
from equipoise.study.tuning.space import Point

WORK = "trials"  # the folder of the trials' checkpoints


def hide_test_data(data: Federation, seed: int = 0) -> Federation:
    """The same federation without test data: what a search does not have, it cannot choose by.

    Clients that have no validation data set some aside, other ones for another seed.
    """
    nothing = data.clients[0].test[:0]
    clients = tuple(replace(client, test=nothing) for client in data.with_validation(seed=seed).clients)
    return replace(data, clients=clients, digest=data.pool_digest)


def build_job(plan: Plan, point: Point, seed: int = 0) -> Job:
    """The job of a point."""
    return replace(plan.job, method=point.method, training=point.training, seed=seed)


def climb(
    plan: Plan, trial: Trial, rung: int, data: Federation, folder: Path, on_round: Callable[[RoundRecord], None]
) -> Reached:
    """Run a trial up to a rung, from where it paused. `data` hold no test data."""
    if trial.reached and trial.last.is_over:
        return trial.last  # there is nothing left to do: the run was flat before
    place = folder / WORK / trial.name / "checkpoints"
    pause = plan.rungs[rung] if rung < len(plan.rungs) - 1 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            begun = prepare_simulation(build_job(plan, trial.point).settings(data))
            result = simulate(
                begun,
                checkpoint=Checkpoints(place, CHECKPOINT_EVERY, resume=True, pause=pause),
                on_round=lambda record, _: on_round(record),
            )
        except EquipoiseError as error:
            discard(place)
            return Reached(0, {}, "failed", True, 0.0, 0, str(error))
    return measure(result)


def measure(run: Run) -> Reached:
    """What a run has reached on validation data."""
    cost = estimate_cost(run.method, run.task, run.settings.cohort)
    done = len(run.rounds)
    return Reached(
        round=done,
        values=average_last(run.rounds),
        state=run.convergence.state,
        is_over=not run.stopped,
        seconds=run.seconds,
        upload=cost["upload"] * cost["clients"] * done,
    )


def average_last(records: Sequence[RoundRecord]) -> Mapping[str, float]:
    """The validation score of each domain (or client without one), in the mean over its clients and the last evaluations.

    A client's validation data are few, and a single round's score leaps: the mean of some is steadier.
    """
    found: dict[str, list[float]] = {}
    evaluated = [record for record in records if record.scores][-LAST:]
    for record in evaluated:
        for score in record.scores:
            if score.metric in SCORES and score.split == "validation":
                found.setdefault(score.domain, []).append(score.value)
    return {domain: float(np.mean(values)) for domain, values in found.items()}


def forget(trial: Trial, folder: Path) -> None:
    """Remove the checkpoints of a trial that is over."""
    discard(folder / WORK / trial.name / "checkpoints")
