"""Many runs: methods x seeds on one federation, side by side on the cores there are."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import re
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from equipoise.data import Federation, load_federation
from equipoise.engine.checkpoints import Checkpoints, discard, saved
from equipoise.engine.guard import DEPLOYED
from equipoise.engine.loop import RoundRecord, Run, run
from equipoise.engine.runners import RunnerName, cores
from equipoise.engine.runners.processes import without_main
from equipoise.grammar import require
from equipoise.method import Method, parse
from equipoise.metrics import figures
from equipoise.runs import analysis
from equipoise.runs.live import View, open_view
from equipoise.runs.records import Recorded, Recorder, read, run_name
from equipoise.training import Training
from equipoise.types import EquipoiseError, Server

CHECKPOINTS = ".checkpoints"  # below the folder of runs
CHECKPOINT_EVERY = 10  # rounds


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
    with_validation: bool = False  # set some training data aside, so that methods and rounds can be chosen by it
    guard: bool = False  # against lying losses, as in a deployment
    live: tuple[str, ...] = ()  # other views of the same records: `mlflow`, `tensorboard`
    keep: tuple[str, ...] = ()  # what is kept beyond the records, see `analysis.py`


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    job: int
    round: int
    worst: float
    average: float


@dataclass(frozen=True)
class Failure:
    """A run that could not be done, and why."""

    method: str
    seed: int
    why: str


@dataclass(frozen=True)
class Outcome:
    """What a comparison keeps of a run; the rest is in its folder."""

    method: str
    seed: int
    by_domain: dict[str, float]
    seconds: float
    folder: Path
    warnings: tuple[str, ...]
    dataset: str  # as the job names it
    not_kept: Mapping[str, str]  # what was asked for and this run cannot give, and why


def jobs(methods: Sequence[str], dataset: str, seeds: Sequence[int], template: Job) -> list[Job]:
    """Every method with every seed. If one of them needs validation data, or it is asked for, all of them set it aside."""
    needs = any(parse(method).for_data(dataset.split("(")[0]).validates for method in methods)
    one = replace(template, dataset=dataset, with_validation=needs or template.with_validation)
    return [replace(one, method=method, seed=seed) for method in methods for seed in seeds]


def execute(
    job: Job,
    on_round: Callable[[RoundRecord], None] | None = None,
    threads: int | None = None,
    checkpoint: Checkpoints | None = None,
    on_begin: Callable[[Run], None] | None = None,
    on_server: Callable[[Server], None] | None = None,
) -> Run:
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
        guard=DEPLOYED if job.guard else None,
        checkpoint=checkpoint,
        on_begin=on_begin,
        on_server=on_server,
    )


class AlreadyDoneError(Exception):
    """A run of the same settings is finished already; its folder is the first argument."""


def recorded(
    job: Job,
    folder: Path,
    on_round: Callable[[RoundRecord], None] | None = None,
    threads: int | None = None,
    again: bool = True,
    checkpoint: Checkpoints | None = None,
) -> tuple[Run, Path]:
    """Do one run, and write its folder while it goes. Its checkpoints, if any, are removed when it is over.

    With `again=False` a run of the same settings that is finished, and kept all that is asked for, is not done twice:
    AlreadyDoneError names its folder.
    """
    writers: list[Recorder | View] = []
    begun: list[tuple[Method, Path]] = []

    def begin(run: Run) -> None:
        place = folder / run_name(run)
        if not again and is_finished(place) and set(job.keep) <= set(analysis.read(place)):
            raise AlreadyDoneError(place)
        begun.append((run.method, place))
        writers.append(Recorder(run, folder))
        writers.extend(open_view(name, run, folder) for name in job.live)

    def add(record: RoundRecord) -> None:
        for writer in writers:
            writer.add(record)
        if on_round:
            on_round(record)

    def look(server: Server) -> None:
        analysis.look(job.keep, begun[0][0], server, begun[0][1])

    try:
        result = execute(job, add, threads, checkpoint, begin, look)
    except AlreadyDoneError:
        if checkpoint is not None:
            discard(Path(checkpoint.folder))
        raise
    except (Exception, KeyboardInterrupt) as error:
        for writer in writers:
            writer.fail(str(error) or type(error).__name__)
        if checkpoint is not None and not saved(Path(checkpoint.folder)):
            discard(Path(checkpoint.folder))
        raise
    for writer in writers:
        writer.finish(result)
    place = begun[0][1]
    lacking = analysis.write(result, job.keep, place)
    if checkpoint is not None:
        discard(Path(checkpoint.folder))
    return replace(result, warnings=(*result.warnings, *lacking)), place


def checkpoints_of(job: Job, folder: Path, every: int = CHECKPOINT_EVERY, resume: bool = True) -> Checkpoints:
    """Where the checkpoints of a run go: to a folder that belongs to these settings alone."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", f"{job.dataset}-{job.method}-seed{job.seed}")[:80]
    digest = hashlib.sha256(repr(replace(job, live=(), keep=())).encode()).hexdigest()[:8]
    return Checkpoints(folder / CHECKPOINTS / f"{name}-{digest}", every, resume)


def is_finished(place: Path) -> bool:
    """Whether a folder holds a whole run."""
    try:
        return read(place).finished
    except EquipoiseError:
        return False


def outcome(run: Recorded, dataset: str) -> Outcome:
    """What a comparison keeps of a stored run: the final accuracy of each domain, the mean over its clients."""
    final = run.curve()[1][-1]
    by_domain: dict[str, list[float]] = {}
    for domain, value in zip(run.domains, final.tolist(), strict=True):
        if not math.isnan(value):
            by_domain.setdefault(domain, []).append(value)
    means = {domain: sum(values) / len(values) for domain, values in by_domain.items()}
    facts = run.manifest
    kept = analysis.read(run.place)
    missing = {kind: one[analysis.MISSING] for kind, one in kept.items() if analysis.MISSING in one}
    return Outcome(run.method, run.seed, means, facts["seconds"], run.place, tuple(facts["warnings"]), dataset, missing)


def worst_and_average(record: RoundRecord) -> tuple[float, float] | None:
    """Worst client's and mean test accuracy of a round, when it was evaluated."""
    values = [s.value for s in record.scores if s.metric == "accuracy" and s.split == "test"]
    found = figures(values)
    return (found.min, found.avg) if values else None


# --------------------------------------------------------------------------- side by side
def execute_all(
    todo: Sequence[Job], folder: Path, on_progress: Callable[[Progress], None], workers: int | None = None
) -> Iterator[Outcome | Failure]:
    """Do all runs, as many at once as there are cores, and give each outcome when it is there.

    What is finished already, with the same settings, is not done again; what was cut off goes on from its last checkpoint. A
    run that cannot be done (it diverges, say) is a `Failure`; the others go on. When the caller stops listening, so do workers.
    """
    count = min(workers or cores(), len(todo))
    require(count >= 1, "workers", "at least 1", workers)
    context = multiprocessing.get_context("spawn")
    waiting = deque(enumerate(todo))
    crew: dict[Connection, BaseProcess] = {}
    try:
        with without_main():
            for _ in range(count):
                here, there = context.Pipe()
                worker = context.Process(target=_work, args=(there, folder, max(1, cores() // count)), daemon=False)
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


def _work(pipe: Connection, folder: Path, threads: int) -> None:
    """A worker's life: do the jobs that come through the pipe, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and ends its workers
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # warnings travel back with the outcome
    while True:
        try:
            number, job = pipe.recv()
        except EOFError:
            return

        def tell(record: RoundRecord, number: int = number) -> None:
            scored = worst_and_average(record)
            if scored:
                pipe.send(Progress(number, record.round, *scored))

        try:
            try:
                place = recorded(job, folder, tell, threads, again=False, checkpoint=checkpoints_of(job, folder))[1]
            except AlreadyDoneError as done:
                place = done.args[0]
            pipe.send(outcome(read(place), job.dataset))
        except EquipoiseError as error:
            pipe.send(Failure(job.method, job.seed, str(error)))
        except Exception as error:  # the parent raises it
            pipe.send(error)
