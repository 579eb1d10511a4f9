"""The batches of local training: which samples each client uses in which step, and the samples themselves."""

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
    """The batches of m clients in all their steps, padded to the largest batch and to the most steps."""

    positions: Integers  # [m, steps, batch], positions of the samples in the federation's pool; -1 for padding
    places: Integers  # [m, steps, batch], the same samples, counted among the client's own; 0 for padding
    sizes: Integers  # [m, steps], batch sizes without padding; 0 after the client's last step
    steps: Integers  # [m], number of steps

    @property
    def repeats(self) -> bool:
        """Whether all steps use the same batch, which is then stored once, with a stride of zero between steps."""
        return self.positions.strides[1] == 0

    def ordered(self, order: Integers) -> Batches:
        """The batches of the same clients in another order `[m]`."""
        if not self.repeats:
            return Batches(*(value[order] for value in self))
        once = [np.broadcast_to(value[order, :1], value.shape) for value in (self.positions, self.places)]
        return Batches(once[0], once[1], self.sizes[order], self.steps[order])


def draw_batches(task: Task, clients: Sequence[int], training: Training, *path: int | str) -> Batches:
    """Draw the batches of these clients for one local training.

    A client's batches depend only on the seed path, its id, its data and the settings. So they do not depend on which
    clients are trained together.
    """
    pool, starts, held = task.federation.training_positions
    ids = np.asarray(clients)
    n = held[ids]
    size = n if training.batch is None else np.minimum(n, training.batch)
    per_epoch = -(-n // size)
    steps = per_epoch * training.epochs if training.steps is None else np.full_like(n, training.steps)
    epochs = int((-(-steps // per_epoch)).max())
    if (size == n).all():  # full batches need no random order, and are the same in all steps
        entry = np.arange(n.max())
        place = np.where(entry < n[:, None], entry, 0)
        batch = np.where(entry < n[:, None], pool[starts[ids][:, None] + place], -1)
        shape = (len(ids), int(steps.max()), n.max())
        whole = [np.broadcast_to(value[:, None], shape) for value in (batch, place)]
        return Batches(whole[0], whole[1], np.where(np.arange(shape[1]) < steps[:, None], n[:, None], 0), steps)
    order = seeds.permutations(n, epochs, [seeds.key(*path, client) for client in clients])
    order[size == n] = np.arange(n.max())
    # In step s a client takes the entries from j * size up to (j + 1) * size of its order for that epoch, where j is s
    # modulo its number of steps per epoch.
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
    """Clients that are computed together in a step, and their batches."""

    rows: slice | Integers  # their rows among the clients that still train
    batch: Integers  # [rows, batch], positions of the samples in the pool; -1 for padding
    x: Tensor  # [rows, batch, ...], prepared samples
    y: Tensor  # [rows, batch], targets; [rows, batch, labels] with several labels
    keep: Tensor | None  # [rows, batch], 1 for real samples and 0 for padding; None when there is no padding
    sample_groups: Tensor | None  # [rows, batch], the groups of the samples; None if they have none
    frozen: Tensors  # [rows, batch, width] each: features by fixed models (`Term.frozen`); empty if not computed ahead


def group_clients(sizes: Integers, apart: bool) -> list[tuple[slice | Integers, int, bool]]:
    """Group clients by their batch sizes `[m]`: (rows, batch size, whether smaller batches are padded to it).

    There is one group, padded if batch sizes differ. With `apart`, for models whose results padding would change, there
    is one group per batch size instead.
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
    """Fetch the prepared samples and the targets of stacked batches `index [rows, batch]`.

    Padding is filled with the sample at position 0. `draws [rows, batch, draws]` are the random numbers of the
    augmentation; None: there is none.
    """
    data = task.federation
    flat = torch.from_numpy((index.clip(min=0) if padded else index).flatten()).to(task.device)
    x, y = data.x.index_select(0, flat), data.y.index_select(0, flat)  # in half the time of `data.x[flat]`
    x = data.preparation.evaluation(x) if draws is None else data.preparation.training(x, draws.flatten(0, 1))
    marks = None if data.groups is None else data.groups.of.index_select(0, flat).view(index.shape)
    kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()  # samples may be integer tokens
    keep = torch.from_numpy(index >= 0).to(task.device, kind) if padded else None
    return Group(
        rows, index, x.view(*index.shape, *x.shape[1:]), y.view(*index.shape, *y.shape[1:]), keep, marks, frozen
    )


def draw_augmentation(
    task: Task, ids: Sequence[int], drawn: Batches, seed: int, purpose: str, round: int
) -> Tensor | None:
    """Draw uniform random numbers `[m, steps, batch, draws]` for the augmentation; None if there is no augmentation."""
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
    """Draw the noise that the model takes in one step for the clients in these rows, by name, `[rows, batch, ...]`.

    Padding gets 0.5.
    """
    noise: Tensors = {}
    for name, shape in task.noise.items():
        stack = torch.full((*index.shape, *shape), 0.5)
        for i, row in enumerate(rows):
            size = int((index[i] >= 0).sum())
            stack[i, :size] = seeds.uniform((size, *shape), seed, purpose, name, round, ids[row], step)
        noise[name] = stack.to(task.device)
    return noise
