"""Worker processes, which do many runs side by side."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from equipoise.data import Federation, load_federation
from equipoise.engine.result import RoundRecord
from equipoise.engine.runners import count_cores
from equipoise.engine.runners.processes import hide_main
from equipoise.errors import EquipoiseError
from equipoise.grammar import require
from equipoise.method.plugins import load_plugins, loaded_plugins
from equipoise.runs.reading import read
from equipoise.study.jobs import Job, Outcome, finish, summarise


@dataclass(frozen=True)
class Progress:
    """How far a run is, after a round that was evaluated."""

    job: int  # its place in the list of jobs
    round: int  # counted from 1
    worst: float  # score of the worst client
    average: float  # mean score over clients


@dataclass(frozen=True)
class Failure:
    """A run that could not be done, and why."""

    method: str
    seed: int
    why: str


def execute_all(
    todo: Sequence[Job], folder: Path, on_progress: Callable[[Progress], None], workers: int | None = None
) -> Iterator[Outcome | Failure]:
    """Do all runs, by default as many at once as there are cores, and yield each outcome as soon as the run is over.

    A run that is finished already, with the same settings, is not done again; one that was cut off goes on from its
    last checkpoint. A run that cannot be done, for example because it diverges, yields a `Failure`, and the others go
    on. When the caller stops iterating, the workers are ended.
    """
    count = min(workers or count_cores(), len(todo))
    require(count >= 1, "workers", "at least 1", workers)
    context = multiprocessing.get_context("spawn")
    waiting = deque(enumerate(todo))
    crew: dict[Connection, BaseProcess] = {}
    try:
        with hide_main():
            for _ in range(count):
                here, there = context.Pipe()
                told = (there, folder, max(1, count_cores() // count), loaded_plugins())
                worker = context.Process(target=_work, args=told, daemon=False)
                worker.start()
                there.close()
                crew[here] = worker
        for pipe in crew:
            pipe.send(waiting.popleft())
        left = len(todo)
        while left:
            for ready in wait(list(crew)):
                assert isinstance(ready, Connection)
                try:
                    message = ready.recv()
                except EOFError:
                    code = crew[ready].exitcode
                    raise EquipoiseError(f"A worker process ended (exit code {code}). Try --workers 1.") from None
                if isinstance(message, Progress):
                    on_progress(message)
                    continue
                if isinstance(message, BaseException):
                    raise message
                left -= 1
                if waiting:
                    ready.send(waiting.popleft())
                yield message
    finally:
        for pipe, one in crew.items():
            pipe.close()
            one.terminate()
        for one in crew.values():
            one.join()


def _work(pipe: Connection, folder: Path, threads: int, plugins: Sequence[Path]) -> None:
    """Do the jobs that come through the pipe, until it is closed. This is what a worker process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends its workers
    if hasattr(signal, "SIGUSR2"):  # so does what Slurm sends before a time limit
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # the outcome holds the warnings
    load_plugins(plugins)
    loaded: dict[str, Federation] = {}  # the data of the last job, which the next one often shares
    while True:
        try:
            number, job = pipe.recv()
        except EOFError:
            return

        def tell(record: RoundRecord, number: int = number) -> None:
            scored = record.find_worst_and_average()
            if scored:
                pipe.send(Progress(number, record.round, *scored))

        try:
            if job.dataset not in loaded:
                loaded = {job.dataset: load_federation(job.dataset)}
            place = finish(job, loaded[job.dataset], folder, tell, threads)
            pipe.send(summarise(read(place), job.dataset))
        except EquipoiseError as error:
            pipe.send(Failure(job.method, job.seed, str(error)))
        except Exception as error:  # the parent raises it
            pipe.send(error)
