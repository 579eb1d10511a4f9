"""`equipoise.run`: a whole run simulated on one machine, in one process or with worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from equipoise.data import Federation
from equipoise.data.federation import HoldOut
from equipoise.engine.checkpoints import Checkpoints
from equipoise.engine.checks import SIMULATION_CHECKS, Checks
from equipoise.engine.crew_desk import CrewDesk
from equipoise.engine.desk import SimulatedDesk
from equipoise.engine.guard import Guard
from equipoise.engine.loop import begin_run, proceed
from equipoise.engine.ranks import Ranks, find_local_rank, pick_device
from equipoise.engine.result import RoundRecord, Run
from equipoise.engine.runners import RunnerName, choose_runner, count_cores, open_runner
from equipoise.engine.runners.distributed import Crew
from equipoise.engine.settings import Settings
from equipoise.losses import Loss
from equipoise.method import Method
from equipoise.task import BufferPolicy, ModelSource
from equipoise.training import Training
from equipoise.types import EquipoiseWarning, Server


def run(
    method: Method | str,
    federation: Federation | str,
    *,
    model: ModelSource | None = None,
    rounds: int | None = None,
    seed: int = 0,
    participation: float | None = None,
    training: Training | None = None,
    buffers: BufferPolicy | Mapping[str, BufferPolicy] = "average",
    runner: RunnerName = "auto",
    device: str = "cpu",
    eval_every: int = 1,
    threads: int | None = None,
    checks: Checks = SIMULATION_CHECKS,
    guard: Guard | None = None,
    train_scores: bool = True,
    until_flat: bool = False,
    hold_out: HoldOut = 0,
    loss: Loss | str | None = None,
    metrics: Sequence[str] = (),
    eval_clients: int | None = None,
    checkpoint: Checkpoints | None = None,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> Run:
    """Train a method on a federation. What is not given comes from the federation's protocol.

    Clients are scored on test data, on validation data where they have some, and on their training data.

    Args:
        method: a method, or text such as `"eagle + fedheal(tau=0.3)"`.
        federation: who holds what, or the name of a data set, or the path of your own data.
        model: a network as text such as `"mlp(hidden=(64,))"`, a module, or a function that makes one.
        rounds: federated rounds.
        seed: the seed of everything random.
        participation: share of the clients in each round.
        training: how a client trains in a round.
        buffers: what becomes of running statistics: `"average"`, `"local"` or `"drop"`, for all or by name.
        runner: `"inline"`, `"vectorised"` or `"processes"`; `"auto"` takes the fastest. `"distributed"` is for scripts
            that `torchrun` starts: see `docs/scale.md`. The numbers are the same.
        device: `"cpu"`, `"cuda"` or `"mps"`.
        eval_every: evaluate after every n rounds, and after the last one.
        threads: cores to use, by default all of them.
        checks: which answers count.
        guard: limits what one client can gain by what it sends.
        train_scores: whether the training data are scored, too, whenever the model is evaluated.
        until_flat: end the run when it has converged, by the rule of `docs/convergence.md`; `rounds` is then a limit.
        hold_out: clients that never train and are only scored: how many, or names of clients or domains.
        loss: what clients minimise: text such as `"huber(delta=1)"`, or a value of `equipoise.losses`.
        metrics: recorded beside the score and the loss: `precision`, `recall`, `f1`, `auc`, `pr_auc`.
        eval_clients: how many clients are scored, drawn by the seed; default: all, or 1,000 of a `Federation.from_pool`.
        checkpoint: where checkpoints go, from which an interrupted run can go on: see `docs/reliability.md`.
        on_round: called with the record of every round, also of rounds before the checkpoint from which a run goes on.

    >>> result = run("fedavg", "gaussians", rounds=2)
    >>> [record.round for record in result.rounds], sorted(result.values())
    ([1, 2], ['client 0', 'client 1', 'client 2'])
    """

    def prepare() -> Run:
        settings = Settings.of(
            method, federation, model=model, rounds=rounds, seed=seed, participation=participation, training=training,
            buffers=buffers, runner=runner, device=device, eval_every=eval_every, threads=threads, checks=checks,
            guard=guard, train_scores=train_scores, until_flat=until_flat, hold_out=hold_out, loss=loss, metrics=metrics,
            eval_clients=eval_clients,
        )  # fmt: skip
        return prepare_simulation(settings)

    begun = Ranks.join().do_together(prepare) if runner == "distributed" else prepare()
    tell = None if on_round is None else lambda record, _: on_round(record)
    return simulate(begun, checkpoint=checkpoint, on_round=tell, on_earlier=on_round)


def prepare_simulation(settings: Settings) -> Run:
    """The run before its first round, with its runner chosen."""
    begun = begin_run(settings, device=find_device(settings))
    cores = settings.threads or count_cores()
    choice = choose_runner(settings.runner, settings.method, begun.task, settings.cohort, settings.rounds, cores)
    notes = (*begun.task.notes, choice.note) if choice.note else begun.task.notes
    return replace(begun, runner=choice.runner, task=replace(begun.task, notes=notes))


def simulate(
    begun: Run,
    *,
    checkpoint: Checkpoints | None = None,
    on_round: Callable[[RoundRecord, Server], None] | None = None,
    on_earlier: Callable[[RoundRecord], None] | None = None,
) -> Run:
    """Do all rounds of a run that `prepare_simulation` began.

    `on_round` is called after each round with its record and the server, `on_earlier` with the records of the rounds
    before the checkpoint from which a run goes on.
    """
    settings = begun.settings
    method = begun.played_method
    sums = method.streams and settings.checks.norm is None  # a check of lengths needs single updates
    cores = settings.threads or count_cores()
    with open_runner(begun.runner, method, begun.task, settings.cohort, cores, sums) as compute:
        desk = CrewDesk(begun, compute) if isinstance(compute, Crew) else SimulatedDesk(begun, compute)
        if not desk.leads:
            return proceed(begun, desk, checkpoint=checkpoint)
        return proceed(begun, desk, checkpoint=checkpoint, on_round=on_round, on_earlier=on_earlier, on_note=_warn)


def find_device(settings: Settings) -> str:
    """The device on which this process trains: its own GPU, where a run has several processes."""
    if settings.runner != "distributed":
        return settings.device
    return pick_device(settings.device, find_local_rank(), torch.cuda.device_count())


def _warn(text: str) -> None:
    warnings.warn(text, EquipoiseWarning, stacklevel=2)
