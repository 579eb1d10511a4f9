"""Whole runs of a study, stored as run folders: each is done by one process, and read by all."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from equipoise.data import Federation
from equipoise.engine.result import RoundRecord
from equipoise.errors import EquipoiseError
from equipoise.runs.reading import Recorded, read
from equipoise.study.jobs import Job, find_finished, finish
from equipoise.study.tuning.ledger import claim

CLAIMS = ".claims"  # the folder of the locks by which processes share runs out
FAILED = "failed"  # the file that says why a run could not be done
WAIT = 0.2  # seconds until a process that waits for others looks again

Done = Mapping[Job, Recorded | None]  # None: the run could not be done
Doer = Callable[[Sequence[Job], Federation, Path], Done]


def do_all(
    jobs: Sequence[Job],
    data: Federation,
    folder: Path,
    on_run: Callable[[Job], None] = lambda _: None,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> Done:
    """Do all runs that are not done yet, waiting for those that other processes do. One that cannot be done is None."""
    found: dict[Job, Recorded | None] = {}
    while waiting := [job for job in dict.fromkeys(jobs) if job not in found]:
        for job in waiting:
            settings = job.settings(data)
            failed = folder / CLAIMS / settings.name / FAILED
            with claim(failed.parent) as is_mine:
                if not is_mine:
                    continue
                place = find_finished(job, settings, folder)
                if place is None and not failed.exists():
                    on_run(job)
                    place = _do(job, data, folder, failed, on_round)
                found[job] = None if place is None else read(place)
        if not found.keys() & set(waiting):
            time.sleep(WAIT)
    return found


def _do(
    job: Job, data: Federation, folder: Path, failed: Path, on_round: Callable[[RoundRecord], None] | None
) -> Path | None:
    """Do a run and return its folder. If it cannot be done, write down why, so that nobody tries again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run's manifest holds them
        try:
            return finish(job, data, folder, on_round)
        except EquipoiseError as error:
            failed.write_text(f"{error}\n", encoding="utf-8")
            return None
