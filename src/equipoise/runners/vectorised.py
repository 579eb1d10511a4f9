"""Many clients at once, their tensors stacked: small models, where the overhead of a step is what costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from equipoise.method import Method
from equipoise.roles import Phase
from equipoise.runners.inline import in_groups
from equipoise.task import Task
from equipoise.types import Broadcast, ClientState, Replies

STACKED_PARAMETERS = 1 << 26  # parameters of all stacked clients together: 256 MB in float32


def vectorised(
    method: Method,
    task: Task,
    clients: Sequence[int],
    broadcast: Broadcast,
    states: Mapping[int, ClientState],
    seed: int,
    phase: Phase = "train",
) -> tuple[Replies, dict[int, ClientState]]:
    """The replies of all clients, as many at a time as fit into memory."""
    return in_groups(method, task, clients, broadcast, states, seed, phase, fitting_at_once(task, len(clients)))


def fitting_at_once(task: Task, clients: int) -> int:
    """How many of the clients can be stacked."""
    parameters = sum(value.numel() for value in task.initial_params.values())
    return max(1, min(clients, STACKED_PARAMETERS // max(1, parameters)))
