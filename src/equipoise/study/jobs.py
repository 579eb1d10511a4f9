"""Jobs: runs described by text and numbers, so that worker processes can be told what to do; and how they are done."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.data import Federation
from equipoise.engine.checkpoints import FOLDER, Checkpoints, discard, find_saved
from equipoise.engine.guard import choose_guard
from equipoise.engine.result import RoundRecord, Run
from equipoise.engine.runners import RunnerName
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import prepare_simulation, simulate
from equipoise.errors import EquipoiseError
from equipoise.method.registry import adapt_to_data
from equipoise.methods import parse
from equipoise.metrics import UNSEEN
from equipoise.runs import analysis
from equipoise.runs.kept import MISSING, read_kept
from equipoise.runs.live import View, open_view
from equipoise.runs.meant import watch
from equipoise.runs.reading import Recorded, read
from equipoise.runs.requests import normalise_requests, parse_request
from equipoise.runs.writing import Recorder
from equipoise.training import Training

CHECKPOINT_EVERY = 10  # rounds between two checkpoints


@dataclass(frozen=True)
class Job:
    """One run. What is None comes from the protocol of the data set."""

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
    with_validation: bool = False  # set training data aside, by which methods and rounds can be chosen
    guard: bool = False  # limit what one client can gain by what it sends, as in a deployment
    train_scores: bool = True  # score the training data, too, whenever the model is evaluated
    until_flat: bool = False  # end the run when it has converged; `rounds` is then a limit
    hold_out: int | str | tuple[str, ...] = 0  # clients that never train: how many, or names of clients or domains
    loss: str | None = None  # what clients minimise
    metrics: tuple[str, ...] = ()  # recorded beside the score and the loss
    eval_clients: int | None = None  # clients that are scored, drawn by the seed; None: all
    live: tuple[str, ...] = ()  # tools that show the records during the run: `mlflow`, `tensorboard`
    keep: tuple[str, ...] = ()  # what is kept for plots besides the records, as `runs/requests.py` writes it

    def settings(self, data: Federation, threads: int | None = None) -> Settings:
        """The settings of the run on these data. `threads` is the number of cores to use; None: all."""
        mine = data.draw_for(self.seed)
        return Settings.of(
            self.method,
            mine.with_validation() if self.with_validation else mine,
            model=self.model,
            rounds=self.rounds,
            seed=self.seed,
            participation=self.participation,
            training=self.training,
            runner=self.runner,
            device=self.device,
            eval_every=self.eval_every,
            threads=threads,
            guard=choose_guard(parse(self.method)) if self.guard else None,
            train_scores=self.train_scores,
            until_flat=self.until_flat,
            hold_out=self.hold_out,
            loss=self.loss,
            metrics=self.metrics,
            eval_clients=self.eval_clients,
        )


@dataclass(frozen=True)
class Outcome:
    """What a comparison needs of a finished run. Everything else is in the run's folder."""

    method: str
    seed: int
    by_domain: dict[str, float]  # final test score
    seconds: float  # of the whole run
    folder: Path  # of the run
    warnings: tuple[str, ...]
    dataset: str  # as the job names it
    unseen: dict[str, float]  # final accuracy of each client that is held out of training
    not_kept: Mapping[str, str]  # what the job asked to keep but this run cannot give, and why


def list_jobs(methods: Sequence[str], data: Federation, seeds: Sequence[int], template: Job) -> list[Job]:
    """The template with every method and seed.

    If one of the methods needs validation data, all set them aside: the methods of a comparison train on the same
    samples. A schedule of the local rate with which no run of so many rounds can train is an error.
    """
    usual = data.protocol
    (template.training or usual.training).rate.check(template.rounds or usual.rounds)  # refused before any run
    needs = any(adapt_to_data(parse(method), data.setting).validates for method in methods)
    one = replace(template, with_validation=needs or template.with_validation)
    return [replace(one, method=method, seed=seed) for method in methods for seed in seeds]


def find_finished(job: Job, settings: Settings, folder: Path) -> Path | None:
    """The folder of a finished run of these settings that kept all that the job asks for, if there is one."""
    place = folder / settings.name
    try:
        finished = read(place).is_finished
    except EquipoiseError:
        return None
    return place if finished and set(normalise_requests(job.keep)) <= set(read_kept(place)) else None


def begin(job: Job, settings: Settings) -> Run:
    """The run of a job before its first round, with what looks on for `keep`. A client or layer there that does not exist
    is an error."""
    return watch(prepare_simulation(settings), job.keep)


def run_and_record(
    job: Job,
    begun: Run,
    folder: Path,
    on_round: Callable[[RoundRecord], None] | None = None,
    checkpoint: Checkpoints | None = None,
) -> tuple[Run, Path]:
    """Do all rounds of a run that `begin` began, and write its folder as it goes.

    Returns the run and its folder. The run's checkpoints, if there are any, are removed when it is finished.
    """
    recorder = Recorder(begun, folder)
    writers: list[Recorder | View] = [recorder]

    def add(record: RoundRecord) -> None:
        for writer in writers:
            writer.add(record)
        if on_round:
            on_round(record)

    try:
        writers.extend(open_view(name, begun, folder) for name in job.live)
        result = simulate(begun, checkpoint=checkpoint, on_round=lambda record, _: add(record), on_earlier=add)
    except (Exception, KeyboardInterrupt) as error:
        for writer in writers:
            writer.fail(str(error) or type(error).__name__)
        if checkpoint is not None and not find_saved(Path(checkpoint.folder)):
            discard(Path(checkpoint.folder))
        raise
    for writer in writers:
        writer.finish(result)
    place = recorder.place
    lacking = analysis.keep(result, job.keep, place)
    if checkpoint is not None:
        discard(Path(checkpoint.folder))
    return replace(result, warnings=(*result.warnings, *lacking)), place


def place_checkpoints(job: Job, folder: Path, every: int = CHECKPOINT_EVERY, resume: bool = True) -> Checkpoints:
    """Where the checkpoints of a job go: to a folder that belongs to this job alone.

    What is kept of the finished run makes no other job of it, but what is counted while it goes on does.
    """
    asked = map(parse_request, job.keep)
    counted = tuple(sorted(str(request) for request in asked if request.kind == "consistency"))
    name = re.sub(r"[^A-Za-z0-9]+", "_", f"{job.dataset}-{job.method}-seed{job.seed}")[:80]
    digest = hashlib.sha256(repr(replace(job, live=(), keep=counted)).encode()).hexdigest()[:8]
    return Checkpoints(folder / FOLDER / f"{name}-{digest}", every, resume)


def finish(
    job: Job,
    data: Federation,
    folder: Path,
    on_round: Callable[[RoundRecord], None] | None = None,
    threads: int | None = None,
) -> Path:
    """Do a job, unless a finished run is there already, and return the run's folder. One that was cut off goes on."""
    settings = job.settings(data, threads)
    checkpoint = place_checkpoints(job, folder)
    place = find_finished(job, settings, folder)
    if place is not None:
        discard(Path(checkpoint.folder))
        return place
    return run_and_record(job, begin(job, settings), folder, on_round, checkpoint)[1]


def summarise(run: Recorded, dataset: str) -> Outcome:
    """The outcome of a stored run. The score of a domain is the mean over its clients after the last round."""
    final = run.curve()[1][-1]
    by_domain: dict[str, list[float]] = {}
    for domain, value in zip(run.domains, final.tolist(), strict=True):
        if not math.isnan(value):
            by_domain.setdefault(domain, []).append(value)
    means = {domain: sum(values) / len(values) for domain, values in by_domain.items()}
    unseen = dict(zip(run.unseen, run.curve(split=UNSEEN)[1][-1].tolist(), strict=True)) if run.unseen else {}
    facts = run.manifest
    kept = read_kept(run.place)
    missing = {kind: one[MISSING] for kind, one in kept.items() if MISSING in one}
    return Outcome(
        run.method, run.seed, means, facts["seconds"], run.place, tuple(facts["warnings"]), dataset, unseen, missing
    )
