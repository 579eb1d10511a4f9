"""Deals the clients of a round out to those who compute them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from equipoise.task import Task


def count_samples_of_round(task: Task, client: int) -> float:
    """How many samples a client passes through the model in one round of training."""
    held, training = len(task.federation.clients[client].train), task.training
    return held * training.epochs if training.steps is None else training.steps * min(training.batch or held, held)


def deal(
    clients: Sequence[int], costs: Mapping[int, float], count: int, homes: Mapping[int, int] | None = None
) -> list[list[int]]:
    """Shares of about equal cost for `count` workers, each in ascending order: the costliest clients first, each to the
    worker that has least.

    A client in `homes` goes to the worker named there, where its state is, unless that one has its fair share already.

    >>> deal([0, 1, 2, 3, 4], {0: 100, 1: 10, 2: 20, 3: 60, 4: 40}, 2)
    [[0, 2], [1, 3, 4]]
    """
    loads = [0.0] * count
    shares: list[list[int]] = [[] for _ in range(count)]
    fair = sum(costs[client] for client in clients) / count
    for client in sorted(clients, key=lambda c: (-costs[c], c)):
        home = (homes or {}).get(client)
        chosen = loads.index(min(loads)) if home is None or loads[home] + costs[client] > fair else home
        loads[chosen] += costs[client]
        shares[chosen].append(client)
    return [sorted(share) for share in shares]
