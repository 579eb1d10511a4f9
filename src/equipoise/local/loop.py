"""The loop of local training over the steps of several clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.local.batches import Group, draw_augmentation, draw_batches, draw_noise, gather_samples, group_clients
from equipoise.local.frozen import compute_frozen_features, look_up_features
from equipoise.local.objective import Start, StepTime
from equipoise.local.steps import AutogradSteps, Cohort, FactoredSteps, Steps
from equipoise.local.trees import pick
from equipoise.roles import Term
from equipoise.task import Task
from equipoise.training import Training
from equipoise.types import Tensors


class Fitted(NamedTuple):
    """The result of the local training of m clients."""

    params: Tensors  # [m, ...] each, after training
    buffers: Tensors  # [m, ...] each, after training
    steps: Tensor  # [m], number of local steps
    loss: Tensor  # [m], mean base loss over the samples of all steps


def fit(
    task: Task,
    terms: Sequence[Term],
    clients: Sequence[int],
    start: Start,
    *,
    params: Tensors,
    buffers: Tensors,
    round: int,
    rounds: int,
    seed: int,
    training: Training | None = None,
    purpose: str = "batches",
    watch: Callable[[int, Sequence[int], Tensors, Tensors], bool] | None = None,
) -> Fitted:
    """Train m clients from stacked `params` and `buffers`, which are not changed.

    Args:
        task: the model and the data.
        terms: the method's terms.
        clients: ids of the m clients.
        start: what the clients start from.
        params: `[m, ...]` each, the parameters before training.
        buffers: `[m, ...]` each, the buffers before training.
        round: the current round, counted from 0.
        rounds: number of rounds planned for the run.
        seed: the run's seed.
        training: settings of local training. Default: the task's.
        purpose: the word in the seed path that keeps the batches of different trainings apart.
        watch: `watch(step, clients, params, buffers)` is called after every step. It is given the current models,
            `[m, ...]` each, in the order of the clients that it is given. If it returns True, training ends.
    """
    training = training or task.training
    drawn = draw_batches(task, clients, training, seed, purpose, round)
    # Clients with the most steps come first, so that those that still train are always the first rows of the stack.
    order = np.argsort(-drawn.steps, kind="stable")
    drawn = drawn.ordered(order)
    ids = [clients[i] for i in order]
    there = torch.from_numpy(order).to(task.device)
    mine = pick(start.per_client, there)
    values = pick(params, there)  # a copy, because training changes it in place
    statistics = pick(buffers, there)
    draws = draw_augmentation(task, ids, drawn, seed, purpose, round)
    frozen = compute_frozen_features(task, terms, start, ids, mine, int(drawn.sizes.sum())) if draws is None else {}
    losses = torch.zeros(drawn.sizes.shape[1], len(clients), device=task.device)

    cohort = Cohort(task, terms, start, mine, values, training, StepTime(0, round, rounds, training.lr))
    if task.factored is not None and training.is_plain_sgd:
        advance: Steps = FactoredSteps(cohort)
    else:
        advance = AutogradSteps(cohort, statistics, partial(draw_noise, task, ids, seed, purpose, round))
    same = drawn.repeats and draws is None
    groups: list[Group] = []
    changed = np.any(np.diff(drawn.sizes, axis=1, prepend=-1), axis=0).tolist()
    for step, sizes in enumerate(drawn.sizes.T):
        if changed[step]:
            working = int(np.count_nonzero(sizes))
            together = group_clients(sizes[:working], task.batch_statistics)
            groups.clear()
        if not same or not groups:
            groups = [
                gather_samples(task, rows, drawn.positions[:working][rows, step, :size], padded,
                         None if draws is None else draws[:working][rows, step, :size],
                         look_up_features(frozen, drawn.places[:working, step, :size], rows))
                for rows, size, padded in together
            ]  # fmt: skip
        for group, base in zip(groups, advance(step, working, groups), strict=True):
            losses[step, :working][group.rows] = base
        if watch is not None and watch(step, ids, values, statistics):
            break

    back = torch.from_numpy(np.argsort(order)).to(task.device)
    counts = torch.from_numpy(drawn.sizes).to(task.device)
    done = torch.from_numpy(drawn.steps).to(task.device, losses.dtype)
    loss = (losses.T * counts).sum(1) / counts.sum(1)
    return Fitted(pick(values, back), pick(statistics, back), done[back], loss[back])
