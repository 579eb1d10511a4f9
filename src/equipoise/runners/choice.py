"""Which runner serves which task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from equipoise.method import Method
from equipoise.roles import Phase
from equipoise.runners.inline import inline
from equipoise.runners.vectorised import vectorised
from equipoise.task import Task
from equipoise.types import Broadcast, ClientState, EquipoiseError, Replies

RunnerName = Literal["auto", "inline", "vectorised"]
SMALL_MODEL = 1_000_000  # parameters: beyond it a client alone keeps the cores busy


class Runner(Protocol):
    """Computes the clients' half of a round."""

    def __call__(
        self,
        method: Method,
        task: Task,
        clients: Sequence[int],
        broadcast: Broadcast,
        states: Mapping[int, ClientState],
        seed: int,
        phase: Phase = "train",
    ) -> tuple[Replies, dict[int, ClientState]]: ...


RUNNERS: dict[str, Runner] = {"inline": inline, "vectorised": vectorised}


def choose(name: RunnerName, task: Task, cohort: int) -> str:
    """The runner to use: the one asked for, or the one that is faster for this task."""
    if name == "auto":
        small = sum(value.numel() for value in task.initial_params.values()) <= SMALL_MODEL
        return "vectorised" if small and cohort > 1 and task.training.stacks else "inline"
    if name not in RUNNERS:
        raise EquipoiseError(f"Runner must be one of auto, {', '.join(RUNNERS)}. Found {name!r}.")
    if name == "vectorised" and not task.training.stacks:
        raise EquipoiseError(f"{task.training.optimizer} cannot be vectorised over clients: use runner='inline'.")
    return name
