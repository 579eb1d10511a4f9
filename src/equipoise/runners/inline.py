"""One client at a time, called directly: large models, and models that cannot be vectorised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from equipoise.method import Method
from equipoise.roles import Phase
from equipoise.round import client_round
from equipoise.task import Task
from equipoise.types import Broadcast, ClientState, Replies


def inline(
    method: Method,
    task: Task,
    clients: Sequence[int],
    broadcast: Broadcast,
    states: Mapping[int, ClientState],
    seed: int,
    phase: Phase = "train",
) -> tuple[Replies, dict[int, ClientState]]:
    """The replies of all clients, computed one after the other."""
    return in_groups(method, task, clients, broadcast, states, seed, phase, size=1)


def in_groups(
    method: Method,
    task: Task,
    clients: Sequence[int],
    broadcast: Broadcast,
    states: Mapping[int, ClientState],
    seed: int,
    phase: Phase,
    size: int,
) -> tuple[Replies, dict[int, ClientState]]:
    """The replies of all clients, `size` of them at a time."""
    replies: list[Replies] = []
    kept: dict[int, ClientState] = {}
    for first in range(0, len(clients), size):
        some = clients[first : first + size]
        reply, after = client_round(method, task, some, broadcast, {c: states.get(c, {}) for c in some}, seed, phase)
        replies.append(reply)
        kept |= after
    return Replies.join(replies), kept
