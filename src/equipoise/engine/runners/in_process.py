"""Runners in this process: they compute one client at a time, or many at once with stacked tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from equipoise.method import Method
from equipoise.roles import Phase
from equipoise.rounds.client import client_round
from equipoise.rounds.contract import weigh_raw
from equipoise.task import Task
from equipoise.types import Broadcast, ClientState, Replies

STACKED_PARAMETERS = 1 << 26  # parameters of all stacked clients together: 256 MB in float32


class Errand(NamedTuple):
    """What a runner is asked to do: one phase of a round, for some clients."""

    clients: Sequence[int]  # their numbers
    broadcast: Broadcast  # what the server sends to all of them
    states: Mapping[int, ClientState]  # what the clients keep from earlier rounds
    seed: int  # of the run
    phase: Phase = "train"


# Does an errand: the clients' replies, and what each client keeps.
Runner = Callable[[Errand], tuple[Replies, dict[int, ClientState]]]


def run_in_process(method: Method, task: Task, stacked: int, sums: bool) -> Runner:
    """A runner that computes `stacked` clients at a time. With `sums` it returns only the weighted sum of the
    updates."""

    def compute(errand: Errand) -> tuple[Replies, dict[int, ClientState]]:
        replies: list[Replies] = []
        kept: dict[int, ClientState] = {}
        total: Tensor | None = None
        for first in range(0, len(errand.clients), stacked):
            some = errand.clients[first : first + stacked]
            states = {client: errand.states.get(client, {}) for client in some}
            reply, after = client_round(method, task, some, errand.broadcast, states, errand.seed, errand.phase)
            if sums and reply.updates is not None:  # add them up, and free the rows
                weights = weigh_raw(method.weigh, reply.reports)
                part = weights.to(reply.updates.dtype) @ reply.updates
                total = part if total is None else total.add_(part)
                reply = replace(reply, updates=None)
            replies.append(reply)
            kept |= after
        return replace(Replies.join(replies), total=total), kept

    return compute


def count_fitting_at_once(task: Task, clients: int) -> int:
    """How many of the clients can be stacked without filling up the memory."""
    parameters = sum(value.numel() for value in task.initial_params.values())
    return max(1, min(clients, STACKED_PARAMETERS // max(1, parameters)))
