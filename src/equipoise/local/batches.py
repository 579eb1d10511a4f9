"""Which samples a client trains on in which order, and the samples themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise import seeds
from equipoise.seeds import Integers
from equipoise.task import Task
from equipoise.training import Training
from equipoise.types import Tensors


class Batches(NamedTuple):
    """The batches of several clients; -1 stands for padding."""

    positions: Integers  # [m, steps, batch], in the pool
    places: Integers  # [m, steps, batch], the same as positions among the client's own samples, 0 for padding
    sizes: Integers  # [m, steps], true batch sizes; 0 when the client is done
    steps: Integers  # [m]

    @property
    def repeats(self) -> bool:
        """Whether all steps have the same batch, which then lies in memory once."""
        return self.positions.strides[1] == 0

    def ordered(self, order: Integers) -> Batches:
        """The clients in another order."""
        if not self.repeats:
            return Batches(*(value[order] for value in self))
        once = [np.broadcast_to(value[order, :1], value.shape) for value in (self.positions, self.places)]
        return Batches(once[0], once[1], self.sizes[order], self.steps[order])


def draw_batches(task: Task, clients: Sequence[int], training: Training, *path: int | str) -> Batches:
    """The same batches whoever runs them: they follow from the seed path and the client alone."""
    pool, starts = task.federation.training_positions
    ids = np.asarray(clients)
    n = starts[ids + 1] - starts[ids]
    size = n if training.batch is None else np.minimum(n, training.batch)
    per_epoch = -(-n // size)
    steps = per_epoch * training.epochs if training.steps is None else np.full_like(n, training.steps)
    epochs = int((-(-steps // per_epoch)).max())
    if (size == n).all():  # full batches need no order, and all steps are the same
        entry = np.arange(n.max())
        place = np.where(entry < n[:, None], entry, 0)
        batch = np.where(entry < n[:, None], pool[starts[ids][:, None] + place], -1)
        shape = (len(ids), int(steps.max()), n.max())
        whole = [np.broadcast_to(value[:, None], shape) for value in (batch, place)]
        return Batches(whole[0], whole[1], np.where(np.arange(shape[1]) < steps[:, None], n[:, None], 0), steps)
    order = seeds.permutations(n, epochs, [seeds.key(*path, client) for client in clients])
    order[size == n] = np.arange(n.max())
    # Step s of a client takes places [j, j + 1) * size of its epoch's order, j = s modulo its steps an epoch.
    s, slot = np.arange(steps.max()), np.arange(size.max())
    epoch, j = s // per_epoch[:, None], s % per_epoch[:, None]
    place = j[:, :, None] * size[:, None, None] + slot
    real = (place < n[:, None, None]) & (slot < size[:, None, None]) & (s < steps[:, None])[:, :, None]
    row = np.arange(len(ids))[:, None, None]
    chosen = order[row, np.minimum(epoch, epochs - 1)[:, :, None], np.minimum(place, n.max() - 1)]
    places = np.where(real, chosen, 0)
    batches = np.where(real, pool[starts[ids][:, None, None] + places], -1)
    return Batches(batches, places, real.sum(2), steps)


class Group(NamedTuple):
    """Clients that share one call in a step, and their batches."""

    rows: slice | Integers  # among those at work
    batch: Integers  # [rows, batch], positions in the pool, -1 for padding
    x: Tensor
    y: Tensor
    keep: Tensor | None
    frozen: Tensors  # features by models that do not change, [rows, batch, width], where they are known already


def group_clients(sizes: Integers, apart: bool) -> list[tuple[slice | Integers, int, bool]]:
    """Clients that can share a call: (rows, batch size, whether smaller batches are padded to it).

    One group, padded where batches differ; or groups of equal batches, where padding would change the numbers.
    """
    largest = int(sizes.max())
    if (sizes == largest).all():
        return [(slice(None), largest, False)]
    if not apart:
        return [(slice(None), largest, True)]
    return [(np.flatnonzero(sizes == size), int(size), False) for size in np.unique(sizes)[::-1]]


def gather_samples(
    task: Task, rows: slice | Integers, index: Integers, padded: bool, draws: Tensor | None, frozen: Tensors
) -> Group:
    """Prepared samples and labels of stacked batches; padding repeats the sample at position 0."""
    data = task.federation
    flat = torch.from_numpy((index.clip(min=0) if padded else index).flatten()).to(task.device)
    x, y = data.x.index_select(0, flat), data.y.index_select(0, flat)  # takes half the time of `data.x[flat]`
    x = data.preparation.evaluation(x) if draws is None else data.preparation.training(x, draws.flatten(0, 1))
    keep = torch.from_numpy(index >= 0).to(task.device, x.dtype) if padded else None
    return Group(rows, index, x.view(*index.shape, *x.shape[1:]), y.view(index.shape), keep, frozen)


def draw_augmentation(
    task: Task, ids: Sequence[int], drawn: Batches, seed: int, purpose: str, round: int
) -> Tensor | None:
    """Uniform draws `[m, steps, batch, draws]` for the augmentation, or None when there is none."""
    count = task.federation.preparation.draws
    if count == 0:
        return None
    shape = (*drawn.positions.shape[1:], count)
    draws = torch.zeros(len(ids), *shape)
    for i, client in enumerate(ids):
        width = int(drawn.sizes[i].max())
        steps = int(drawn.steps[i])
        draws[i, :steps, :width] = seeds.uniform((steps, width, count), seed, purpose, "augment", round, client)
    return draws.to(task.device)


def draw_noise(
    task: Task, ids: Sequence[int], seed: int, purpose: str, round: int, rows: Sequence[int], index: Integers, step: int
) -> Tensors:
    """The noise that the model takes in this step, for the clients in these rows, `[rows, batch, ...]`."""
    noise: Tensors = {}
    for name, shape in task.noise.items():
        stack = torch.full((*index.shape, *shape), 0.5)
        for i, row in enumerate(rows):
            size = int((index[i] >= 0).sum())
            stack[i, :size] = seeds.uniform((size, *shape), seed, purpose, name, round, ids[row], step)
        noise[name] = stack.to(task.device)
    return noise
