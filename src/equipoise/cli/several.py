"""Options and words for studies whose runs several machines share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.crew import refuse_alone
from equipoise.cli.screens import screen
from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    from equipoise.study.experiment import Experiment
    from equipoise.study.shards import Shard
    from equipoise.study.slurm import Queue
    from equipoise.study.tuning.plan import Plan

SPREAD = "Several machines"  # a heading in the help of a command


@dataclass(frozen=True)
class SpreadOptions:
    """Options that spread the runs of a study over several machines."""

    shard: Annotated[
        str | None, typer.Option(help="do only share i of n of the runs, such as 2/8", rich_help_panel=SPREAD)
    ] = None
    slurm: Annotated[
        bool, typer.Option("--slurm", help="hand the runs to a Slurm cluster's queue", rich_help_panel=SPREAD)
    ] = False
    slurm_jobs: Annotated[
        int | None, typer.Option(help="jobs that share the runs (default: one per run)", rich_help_panel=SPREAD)
    ] = None
    slurm_partition: Annotated[
        str | None, typer.Option(help="partition (default: the cluster's)", rich_help_panel=SPREAD)
    ] = None
    slurm_minutes: Annotated[
        int, typer.Option(help="time limit of a job, which is queued again when it is reached", rich_help_panel=SPREAD)
    ] = 60
    slurm_memory: Annotated[
        float | None, typer.Option(help="memory of a job, in GB (default: the cluster's)", rich_help_panel=SPREAD)
    ] = None
    slurm_cpus: Annotated[int, typer.Option(help="cores of a job: runs at a time", rich_help_panel=SPREAD)] = 2
    slurm_gpus: Annotated[int, typer.Option(help="GPUs of a job", rich_help_panel=SPREAD)] = 0
    slurm_here: Annotated[
        bool,
        typer.Option(
            "--slurm-here", help="start the jobs on this machine instead, to try it out", rich_help_panel=SPREAD
        ),
    ] = False

    @property
    def share(self) -> Shard:
        """Which of the runs are done here."""
        from equipoise.study.shards import Shard

        return Shard() if self.shard is None else Shard.parse(self.shard)

    @property
    def queue(self) -> Queue | None:
        """The queue that does the runs; None: this machine does them now."""
        if not (self.slurm or self.slurm_here):
            return None
        from equipoise.study.slurm import Queue

        if self.shard is not None:
            raise EquipoiseError("--slurm divides the runs among its jobs: leave --shard out, or --slurm.")
        return Queue(
            self.slurm_jobs, self.slurm_partition, self.slurm_minutes, self.slurm_memory, self.slurm_cpus, self.slurm_gpus,
            self.slurm_here,
        )  # fmt: skip

    def take_plans(self, plans: Sequence[Plan]) -> list[Plan]:
        """The tunings of an experiment file that this machine carries out: each is one piece."""
        if plans and self.queue is not None:
            raise EquipoiseError("--slurm is for runs. A file with tunings goes to several machines by --shard i/n.")
        return self.share.take(plans)


def submit_and_say(experiment: Experiment, out: Path, queue: Queue) -> None:
    """Hand all runs to a queue, and say how to follow them."""
    from equipoise.study.slurm import FOLDER, submit

    for job in experiment.jobs:
        refuse_alone(job.runner, "a job does many runs side by side. Leave the runner out.")
    jobs = submit(experiment.jobs, out, queue)
    screen.print(
        f"{len(experiment.jobs)} runs in {len(jobs)} jobs: {', '.join(str(job.job_id) for job in jobs[:8])}"
        f"{' ...' if len(jobs) > 8 else ''}. Logs: {out / FOLDER}/. Look on with `equipoise watch {out}`; when all are done: "
        f"equipoise report {out} -o {out}/report.html",
        soft_wrap=True,
    )
