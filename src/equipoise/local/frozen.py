"""Features by models that stay fixed during a round (`Term.frozen`), computed once and not in every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from equipoise.local.objective import Start, collect_frozen_models, is_overridden
from equipoise.local.trees import Tree, for_each
from equipoise.models.pixels import store_by_pixel
from equipoise.roles import Term
from equipoise.seeds import Integers
from equipoise.task import EVALUATION_BATCH, Task
from equipoise.types import Model, Tensors

LIMIT = 1 << 28  # the most bytes that all features together may take


@torch.no_grad()
def compute_frozen_features(
    task: Task, terms: Sequence[Term], start: Start, ids: Sequence[int], mine: Tree, visits: int
) -> Tensors:
    """The features of all training samples by each fixed model that the terms ask for, `[m, samples, width]` each.

    The result is empty, and features are computed in every step instead, if a sample's features depend on its batch, if
    training uses fewer samples (`visits`) than the clients hold, or if the features would take more than `LIMIT` bytes.

    Args:
        task: the model and the data.
        terms: the method's terms.
        start: what the clients start from.
        ids: the m clients.
        mine: the tensors of `start.per_client`, in the order of `ids`.
        visits: how many samples all steps of all clients use, counted with repetitions.
    """
    held = task.federation.training_positions[2][np.asarray(ids)]
    in_batches = task.evaluates_in_batches or task.noise_in_evaluation or visits < held.sum()
    if in_batches or not any(is_overridden(term, "frozen") for term in terms):
        return {}
    count = len(ids)

    def models_of(_: Tensor, *mine: Tree) -> dict[str, Model]:
        return collect_frozen_models(terms, start.received(*mine[:3]), mine[3])

    def features_of(model: Model, x: Tensor) -> Tensor:
        stored, images = store_by_pixel(model.params, x) if count == 1 else (model.params, x)
        return task.apply(stored, model.buffers, images).features

    found: Tensors = {}
    models = for_each(models_of, count)(torch.zeros(count), *mine)  # zeros: `vmap` needs at least one tensor
    for name, model in models.items():
        parts = []
        for x in _everything(task, ids):
            if task.stacked is not None:
                parts.append(task.stacked(model.params, x).features)
            else:
                parts.append(for_each(features_of, count)(model, x))
            if len(models) * held.max() * parts[0].nbytes / parts[0].shape[1] > LIMIT:
                return {}
        found[name] = torch.cat(parts, 1)
    return found


def _everything(task: Task, ids: Sequence[int]) -> Iterator[Tensor]:
    """All training samples of these clients, prepared for evaluation, in pieces `[m, some, ...]`.

    A client with fewer samples than others is padded with its last one.
    """
    pool, starts, held = task.federation.training_positions
    first, n = starts[np.asarray(ids)], held[np.asarray(ids)]
    for at in range(0, n.max(), EVALUATION_BATCH):
        places = np.arange(at, min(at + EVALUATION_BATCH, n.max()))
        index = pool[first[:, None] + np.minimum(places, n[:, None] - 1)]
        x = task.federation.x.index_select(0, torch.from_numpy(index.reshape(-1)).to(task.device))
        x = task.federation.preparation.evaluation(x)
        yield x.view(*index.shape, *x.shape[1:])


def look_up_features(frozen: Tensors, places: Integers, rows: slice | Integers) -> Tensors:
    """The features `[rows, batch, width]` of the samples at `places [m, batch]`, for some rows of the m clients."""
    found: Tensors = {}
    for name, value in frozen.items():
        index = (places + np.arange(len(places))[:, None] * value.shape[1])[rows]
        flat = value.flatten(0, 1).index_select(0, torch.from_numpy(index.flatten()).to(value.device))
        found[name] = flat.view(*index.shape, -1)
    return found
