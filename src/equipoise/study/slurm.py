"""Hands the runs of a study to a cluster's queue, Slurm, through `submitit` (extra `slurm`).

A job of the queue does one shard of the runs, several side by side. One that reaches its time limit is queued again, and
goes on from the checkpoints of its runs.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError
from equipoise.grammar import require
from equipoise.method.plugins import load_plugins, loaded_plugins
from equipoise.study.jobs import Job
from equipoise.study.shards import Shard
from equipoise.study.workers import Failure, execute_all

FOLDER = ".slurm"  # for scripts and logs, below the folder of runs
REQUEUED = 1000  # how often a job is queued again after its time limit
NOTICE = 90  # seconds before the limit, at which the queue tells a job


@dataclass(frozen=True)
class Queue:
    """What a job asks the queue for. What is None is left to the cluster."""

    jobs: int | None = None  # how many jobs share the runs; None: one per run
    partition: str | None = None
    minutes: int = 60  # time limit of a job, after which it is queued again
    memory: float | None = None  # GB per job
    cpus: int = 2  # cores per job: as many runs at a time
    gpus: int = 0  # per job
    is_here: bool = False  # start the jobs on this machine instead, to try it out

    def __post_init__(self) -> None:
        for name, least in (("jobs", 1), ("minutes", 1), ("cpus", 1), ("gpus", 0)):
            value = getattr(self, name)
            require(value is None or value >= least, f"slurm_{name}", f"at least {least}", value)
        require(self.memory is None or self.memory > 0, "slurm_memory", "above 0", self.memory)

    def list_parameters(self) -> dict[str, object]:
        """The parameters in submitit's words."""
        asked: dict[str, object] = {
            "name": "equipoise",
            "timeout_min": self.minutes,
            "cpus_per_task": self.cpus,
            "gpus_per_node": self.gpus or None,
            "mem_gb": self.memory,
            "slurm_partition": self.partition,
            "slurm_signal_delay_s": NOTICE,
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class Work:
    """What one job of the queue does. It holds text and numbers only, because it travels to another machine."""

    todo: tuple[Job, ...]
    folder: str  # for the runs
    workers: int  # runs at a time
    plugins: tuple[str, ...]
    environment: Mapping[str, str]  # where data are

    def __call__(self) -> list[str]:
        """Do the runs; those that are finished are not done again, those that were cut off go on. What failed is
        returned, in words."""
        os.environ.update(self.environment)
        load_plugins([Path(file) for file in self.plugins])
        found = execute_all(self.todo, Path(self.folder), lambda _: None, self.workers)
        return [f"{one.method}, seed {one.seed}: {one.why}" for one in found if isinstance(one, Failure)]

    def checkpoint(self) -> Any:
        """What is queued again when the time limit is reached: the same work."""
        return _import_submitit().helpers.DelayedSubmission(self)


def submit(todo: Sequence[Job], folder: Path, queue: Queue) -> list[Any]:
    """Submit the runs as an array of jobs, and return these, as `submitit` describes them."""
    submitit = _import_submitit()
    count = min(queue.jobs or len(todo), len(todo))
    place = folder.resolve()
    kept = {name: os.environ[name] for name in ("EQUIPOISE_DATA", "EQUIPOISE_CACHE") if name in os.environ}
    plugins = tuple(str(file) for file in loaded_plugins())
    work = [Work(tuple(Shard(i + 1, count).take(todo)), str(place), queue.cpus, plugins, kept) for i in range(count)]
    cluster = "local" if queue.is_here else "slurm"
    try:
        executor = submitit.AutoExecutor(place / FOLDER, cluster=cluster, **{f"{cluster}_max_num_timeout": REQUEUED})
        executor.update_parameters(**queue.list_parameters())
        if queue.is_here:
            return [executor.submit(one) for one in work]
        with executor.batch():
            return [executor.submit(one) for one in work]
    except (RuntimeError, OSError) as error:
        why = str(error).splitlines()[0]
        raise EquipoiseError(
            f"The jobs could not be submitted: {why}. Is this a machine of a Slurm cluster (`sbatch --version`)? "
            "--slurm-here starts the jobs on this one."
        ) from None


def _import_submitit() -> Any:
    try:
        importlib.import_module("submitit.helpers")
        return importlib.import_module("submitit")
    except ImportError:
        raise EquipoiseError("--slurm needs the package submitit: pip install 'equipoise[slurm]'.") from None
