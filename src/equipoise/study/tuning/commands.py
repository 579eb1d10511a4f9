"""The commands that train and deploy a point of the space."""

from __future__ import annotations

import shlex

from equipoise.study.jobs import Job
from equipoise.study.tuning.space import Point

TUNED = ("lr", "epochs", "steps", "batch")  # what is searched of the local training, as options


def write_run(job: Job, point: Point) -> str:
    """The command that trains a point as the search did, on data of which some are set aside for validation."""
    words = ["equipoise", "run", job.dataset, "--method", point.method, *_list_options(job, point)]
    return shlex.join([*words, "--rounds", str(job.rounds), "--until-flat", "--validation"])


def write_deploy(job: Job, point: Point) -> str:
    """The command that writes an app by which real sites train a point."""
    words = ["equipoise", "deploy", "init", "app", "--data", job.dataset, "--method", point.method]
    return shlex.join([*words, *_list_options(job, point), "--rounds", str(job.rounds)])


def _list_options(job: Job, point: Point) -> list[str]:
    training = point.training
    given = {
        **{name: getattr(training, name) for name in TUNED},
        "epochs": None if training.steps is not None else training.epochs,
        "batch": "full" if training.batch is None else training.batch,
        "model": job.model,
        "participation": job.participation,
    }
    return [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
