"""Chooses the runner that suits a task, and opens it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

import torch

from equipoise.engine.ranks import Ranks, count_local_ranks
from equipoise.engine.runners.distributed import Crew
from equipoise.engine.runners.in_process import Runner, count_fitting_at_once, run_in_process
from equipoise.engine.runners.processes import Workers, is_shippable
from equipoise.errors import EquipoiseError
from equipoise.local.stacking import find_obstacle
from equipoise.method import Method
from equipoise.task import Task

RunnerName = Literal["auto", "inline", "vectorised", "processes", "distributed"]
RUNNERS = tuple(name for name in get_args(RunnerName) if name != "auto")
SMALL_MODEL = 1_000_000  # parameters: with more, a single client keeps a core busy
BUSY_ROUND = 2e9  # floating-point operations: below it, messages between processes take longer than the round
LONG_RUN = 1e12  # floating-point operations: below it, a run is over before worker processes have started


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Choice(NamedTuple):
    """Which runner is used."""

    runner: str  # its name
    note: str = ""  # what a reader should know about the choice; empty: nothing


def choose_runner(name: RunnerName, method: Method, task: Task, cohort: int, rounds: int, available: int) -> Choice:
    """The runner to use: the one asked for or, for `auto`, the fastest for this task."""
    if name not in get_args(RunnerName):
        raise EquipoiseError(f"Runner must be one of {', '.join(get_args(RunnerName))}. Found {name!r}.")
    if name == "vectorised" and not task.training.stacks:
        raise EquipoiseError(f"{task.training.optimizer} cannot be vectorised over clients: use runner='inline'.")
    if name == "vectorised" and (layer := find_obstacle(task)):
        raise EquipoiseError(
            f"The model's `{layer}` cannot be vectorised over clients by torch. Found runner='vectorised': use 'inline' or "
            "'processes', or leave it out."
        )
    if name == "processes" and not is_shippable(method, task):
        raise EquipoiseError(
            "runner='processes' cannot see classes that are defined in the script itself: move the model and the method "
            "into a module, or use runner='inline'."
        )
    if name == "processes" and task.device.type != "cpu":
        raise EquipoiseError(f"runner='processes' is for the CPU. Found device {task.device}: use runner='inline'.")
    if name == "distributed" and not method.is_pooled:  # which has one client, but many to score
        _refuse_idle(Ranks.join(), cohort)
    if name != "auto":
        return Choice(name)
    parameters = sum(value.numel() for value in task.initial_params.values())
    work = 6.0 * parameters * cohort * _samples_per_client(task)
    several = cohort > 1 and available > 1 and task.device.type == "cpu" and is_shippable(method, task)
    if several and work > BUSY_ROUND and work * rounds > LONG_RUN:
        return Choice("processes")
    if parameters > SMALL_MODEL or cohort == 1 or not task.training.stacks:
        return Choice("inline")
    layer = find_obstacle(task)
    if layer:
        return Choice("inline", f"Clients are trained one by one: torch cannot vectorise the model's `{layer}`.")
    return Choice("vectorised")


def _refuse_idle(ranks: Ranks, cohort: int) -> None:
    """Refuse processes that would never have a client."""
    if ranks.size > cohort:
        raise EquipoiseError(
            f"{ranks.size} processes are too many for {cohort} clients in a round: start at most {cohort}, or let more "
            "clients take part."
        )


def _samples_per_client(task: Task) -> float:
    """How many samples a client passes through the model per round, on average."""
    held = task.federation.total_samples / len(task.federation)
    training = task.training
    return held * training.epochs if training.steps is None else training.steps * min(training.batch or held, held)


@contextmanager
def open_runner(name: str, method: Method, task: Task, cohort: int, available: int, sums: bool) -> Iterator[Runner]:
    """Open the runner of this name for the length of a run. With `sums` it returns only the weighted sum of the
    updates."""
    # Among several processes, convolutions gain nothing from being stacked.
    stacked = count_fitting_at_once(task, cohort) if task.stacked is not None else 1
    if name == "processes":
        workers = Workers(method, task, cohort, available, stacked, sums)
        try:
            yield workers
        finally:
            workers.close()
        return
    before = torch.get_num_threads()
    shared = count_local_ranks() if name == "distributed" else 1
    torch.set_num_threads(max(1, min(before, available // shared)))
    try:
        if name == "distributed":
            yield Crew(Ranks.join(), method, task, stacked, sums)
        else:
            yield run_in_process(method, task, 1 if name == "inline" else count_fitting_at_once(task, cohort), sums)
    finally:
        torch.set_num_threads(before)
