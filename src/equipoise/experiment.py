"""Many runs: methods x seeds on one federation, side by side on the cores there are."""

from __future__ import annotations

import multiprocessing
import queue
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from pathlib import Path

import torch

from equipoise.data import Federation, load_federation
from equipoise.method import parse
from equipoise.metrics import figures
from equipoise.records import save
from equipoise.runners import RunnerName, cores
from equipoise.simulation import RoundRecord, Run, run
from equipoise.training import Training


@dataclass(frozen=True)
class Job:
    """One run of a comparison, as text and numbers: it travels to a worker process."""

    method: str = "fedavg"
    dataset: str = "scanners"
    seed: int = 0
    rounds: int | None = None
    participation: float | None = None
    training: Training | None = None
    model: str | None = None
    runner: RunnerName = "auto"
    device: str = "cpu"
    eval_every: int = 1
    with_validation: bool = False


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    job: int
    round: int
    average: float
    worst: float


@dataclass(frozen=True)
class Outcome:
    """What a comparison keeps of a run; the rest is in its folder."""

    method: str
    seed: int
    by_client: dict[str, float]
    by_domain: dict[str, float]
    seconds: float
    folder: Path
    warnings: tuple[str, ...]


def jobs(methods: Sequence[str], dataset: str, seeds: Sequence[int], template: Job) -> list[Job]:
    """Every method with every seed. If one of the methods needs validation data, all of them set it aside."""
    needs = any(parse(method).validates for method in methods)
    one = replace(template, dataset=dataset, with_validation=needs)
    return [replace(one, method=method, seed=seed) for method in methods for seed in seeds]


def execute(job: Job, on_round: Callable[[RoundRecord], None] | None = None, threads: int | None = None) -> Run:
    """Do one run."""
    method = parse(job.method)
    data: Federation = load_federation(job.dataset)
    if job.with_validation:
        data = data.with_validation()
    return run(
        method,
        data,
        model=job.model,
        rounds=job.rounds,
        seed=job.seed,
        participation=job.participation,
        training=job.training,
        runner=job.runner,
        device=job.device,
        eval_every=job.eval_every,
        threads=threads,
        on_round=on_round,
    )


def outcome(result: Run, folder: Path) -> Outcome:
    """Store a run and keep its final values."""
    place = save(result, folder)
    return Outcome(
        str(result.method), result.seed, result.values(), result.by_domain(), result.seconds, place, result.warnings
    )


def worst_and_average(record: RoundRecord) -> tuple[float, float] | None:
    """Worst client's and mean test accuracy of a round, when it was evaluated."""
    values = [s.value for s in record.scores if s.metric == "accuracy" and s.split == "test"]
    found = figures(values)
    return (found.min, found.avg) if values else None


# --------------------------------------------------------------------------- side by side
_messages: Queue[Progress] | None = None  # in a worker: where its progress goes


def _prepare_worker(messages: Queue[Progress], threads: int) -> None:
    global _messages
    _messages = messages
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # warnings travel back with the outcome


def _work(number: int, job: Job, folder: Path) -> Outcome:
    def tell(record: RoundRecord) -> None:
        scored = worst_and_average(record)
        if _messages is not None and scored:
            _messages.put(Progress(number, record.round, scored[1], scored[0]))

    return outcome(execute(job, tell, torch.get_num_threads()), folder)


def execute_all(
    todo: Sequence[Job], folder: Path, on_progress: Callable[[Progress], None], workers: int | None = None
) -> list[Outcome]:
    """Do all runs, as many at once as there are cores; the outcomes come in the order of the jobs."""
    count = min(workers or cores(), len(todo))
    context = multiprocessing.get_context("spawn")
    messages: Queue[Progress] = context.Queue()
    with ProcessPoolExecutor(
        count, context, initializer=_prepare_worker, initargs=(messages, max(1, cores() // count))
    ) as pool:
        futures = [pool.submit(_work, number, job, folder) for number, job in enumerate(todo)]
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
                _drain(messages, on_progress)
                for future in done:
                    future.result()  # an error ends the comparison at once
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        _drain(messages, on_progress)
        return [future.result() for future in futures]


def _drain(messages: Queue[Progress], on_progress: Callable[[Progress], None]) -> None:
    while True:
        try:
            on_progress(messages.get_nowait())
        except queue.Empty:
            return


__all__ = ["Job", "Outcome", "Progress", "execute", "execute_all", "jobs", "outcome"]
