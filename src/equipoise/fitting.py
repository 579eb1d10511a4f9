"""Local training, written for one client and run for one or for many.

A term never sees a client axis. For one client its function is called directly; for several it is vectorised with
`torch.func.vmap` over tensors stacked along a leading client axis. The numbers are the same up to float rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from equipoise import seeds
from equipoise.roles import Term
from equipoise.task import Mode, Task
from equipoise.training import Training
from equipoise.types import ClientState, Layout, Local, Received, Tensors

Tree = Any  # tensors in nested dicts, tuples and lists; other leaves are left alone


def tree_map(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """Apply a function to every tensor of a tree."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        values = [tree_map(function, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return tree


def pick(tree: Tree, at: Any) -> Tree:
    """Index every tensor of a tree along its leading axis."""
    return tree_map(lambda tensor: tensor[at], tree)


def for_each(function: Callable[..., Tree], count: int) -> Callable[..., Tree]:
    """A function of one client -> a function of stacked clients, whose tensors all have a leading client axis."""
    if count > 1:

        def vectorised(*args: Tree) -> Tree:
            axes = tuple(tree_map(lambda _: 0, arg) for arg in args)
            return vmap(function, in_dims=axes)(*args)

        return vectorised

    def alone(*args: Tree) -> Tree:
        return tree_map(lambda t: t.unsqueeze(0), function(*pick(args, 0)))

    return alone


# --------------------------------------------------------------------------- which samples, in which order
class Plan(NamedTuple):
    """The batches of several clients: positions in the pool, -1 for padding."""

    batches: Tensor  # [m, steps, batch]
    sizes: Tensor  # [m, steps], true batch sizes; 0 when the client is done
    steps: Tensor  # [m]


def plan(task: Task, clients: Sequence[int], training: Training, *path: int | str) -> Plan:
    """The same batches whoever runs them: they follow from the seed path and the client alone."""
    batches = [_batches(task.federation.clients[c].train.cpu(), training, *path, c) for c in clients]
    steps = torch.tensor([len(b) for b in batches])
    index = torch.full((len(clients), int(steps.max()), max(b.shape[1] for b in batches)), -1)
    for i, b in enumerate(batches):
        index[i, : b.shape[0], : b.shape[1]] = b
    return Plan(index, (index >= 0).sum(2), steps)


def _batches(samples: Tensor, training: Training, *path: int | str) -> Tensor:
    """Positions `[steps, batch]` of one client."""
    n = len(samples)
    size = min(training.batch or n, n)
    per_epoch = ceil(n / size)
    epochs = training.epochs if training.steps is None else ceil(training.steps / per_epoch)
    if size == n:  # a full batch needs no order
        return samples.expand(epochs, n)[: training.steps]
    draws = seeds.generator(*path)
    order = torch.stack([torch.randperm(n, generator=draws) for _ in range(epochs)])
    padded = F.pad(samples[order], (0, per_epoch * size - n), value=-1)
    return padded.view(epochs * per_epoch, size)[: training.steps]


# --------------------------------------------------------------------------- the loop
class Fitted(NamedTuple):
    params: Tensors  # [m, ...]
    buffers: Tensors  # [m, ...]
    steps: Tensor  # [m]
    loss: Tensor  # [m], mean base loss over the samples seen


@dataclass(frozen=True)
class Start:
    """What the clients of one call start from. Global tensors have no client axis, those of `own` do."""

    params: Tensors
    buffers: Tensors
    shared: Tensors
    own_params: Tensors  # private and personal parameters [m, ...]
    own_buffers: Tensors  # buffers that stay with the client [m, ...]
    own: Tensors  # what the server sent to each client alone [m, ...]
    states: ClientState  # [m, ...]
    layout: Layout  # of the shared parameters

    @property
    def per_client(self) -> tuple[Tensors, Tensors, Tensors, ClientState]:
        """What has a client axis, in the order in which `received` takes it."""
        return self.own_params, self.own_buffers, self.own, self.states

    def received(self, own_params: Tensors, own_buffers: Tensors, own: Tensors) -> Received:
        """What one client received, given its own slices."""
        params, buffers = {**self.params, **own_params}, {**self.buffers, **own_buffers}
        return Received(params, buffers, self.shared, own, self.layout)


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
) -> Fitted:
    """Train the clients from stacked `params` and `buffers` (which are left as they are)."""
    training = training or task.training
    planned = plan(task, clients, training, seed, purpose, round)
    # Clients with the most steps first: those still at work are always the first ones of the stack.
    order = torch.argsort(planned.steps, descending=True, stable=True)
    back = torch.argsort(order)
    planned = pick(planned, order)
    ids = [clients[i] for i in order.tolist()]
    at = order.to(task.device)
    mine = pick(start.per_client, at)
    values = {name: value[at].clone() for name, value in params.items()}
    statistics = {name: value[at].clone() for name, value in buffers.items()}
    draws = _augmentation(task, ids, planned, seed, purpose, round)
    loss_sums = torch.zeros(len(clients), device=task.device)

    active, leaves, optimiser = 0, values, None
    for step in range(planned.batches.shape[1]):
        working = int((planned.sizes[:, step] > 0).sum())
        if working != active:
            shrunk = {name: value[:working].detach().requires_grad_() for name, value in values.items()}
            optimiser = _optimiser(training, optimiser, leaves, shrunk)
            active, leaves = working, shrunk
        assert optimiser is not None
        gradients: dict[str, Tensor | None] = dict.fromkeys(leaves)
        for rows, size, padded in _groups(planned.sizes[:working, step], task.batch_statistics):
            index = planned.batches[:working][rows][:, step, :size]
            mode: Mode = "single" if task.batch_statistics and size == 1 else "train"
            one = _loss_of_one(task, terms, start, mode, round, rounds, training.lr, step)
            chosen = {name: value if rows == slice(None) else value[rows] for name, value in leaves.items()}
            arguments = (
                chosen,
                {name: value[:working][rows] for name, value in statistics.items()},
                *_samples(task, index, None if draws is None else draws[:working][rows][:, step, :size]),
                (index >= 0).float().to(task.device) if padded else None,
                _noise(task, [ids[i] for i in _positions(rows, working)], index, seed, purpose, round, step),
                *pick(pick(mine, slice(working)), rows),
            )
            total, base, after = for_each(one, index.shape[0])(*arguments)
            found = torch.autograd.grad(total.sum(), list(leaves.values()), allow_unused=True)
            gradients = {n: _added(gradients[n], g) for n, g in zip(leaves, found, strict=True)}
            for name, value in after.items():
                statistics[name][:working][rows] = value
            loss_sums[:working][rows] += base * (index >= 0).sum(1).to(task.device)
        gradients = _corrected(gradients, terms, start, pick(mine, slice(working)), working)
        if training.clip is not None:
            gradients = _clipped(gradients, training.clip)
        for name, leaf in leaves.items():
            leaf.grad = gradients[name]
        optimiser.step()

    seen = planned.sizes.sum(1).to(task.device)
    back = back.to(task.device)
    return Fitted(
        {name: value.detach()[back] for name, value in values.items()},
        {name: value[back] for name, value in statistics.items()},
        planned.steps[back.cpu()].to(task.device).float(),
        (loss_sums / seen)[back],
    )


def _loss_of_one(
    task: Task, terms: Sequence[Term], start: Start, mode: Mode, round: int, rounds: int, lr: float, done: int
) -> Callable[..., tuple[Tensor, Tensor, Tensors]]:
    """The local loss of one client on one batch, as a function of tensors."""

    def loss(
        params: Tensors,
        buffers: Tensors,
        x: Tensor,
        y: Tensor,
        keep: Tensor | None,
        noise: Tensors,
        own_params: Tensors,
        own_buffers: Tensors,
        own: Tensors,
        states: ClientState,
    ) -> tuple[Tensor, Tensor, Tensors]:
        out, buffers = task.forward(params, buffers, x, mode, noise)

        def frozen(params: Tensors, buffers: Tensors) -> Any:
            with torch.no_grad():
                return task.apply(params, buffers, x)

        received = start.received(own_params, own_buffers, own)
        local = Local(out, x, y, keep, params, received, states, done, round, rounds, lr, frozen)
        losses = F.cross_entropy(out.logits, y, reduction="none")
        base = local.mean(losses.detach())
        for term in terms:
            losses = term.base(losses, local)
        total = local.mean(losses)
        for term in terms:
            extra = term.loss(local)
            if extra is not None:
                total = total + local.mean(extra)
        for term in terms:
            total = term.whole(total, local)
        return total, base, buffers

    return loss


def _groups(sizes: Tensor, apart: bool) -> list[tuple[slice | Tensor, int, bool]]:
    """Clients that share one call in this step: (rows, batch size, whether smaller batches are padded)."""
    different = sorted(set(sizes.tolist()), reverse=True)
    if len(different) == 1:
        return [(slice(None), different[0], False)]
    if not apart:
        return [(slice(None), different[0], True)]
    return [((sizes == size).nonzero()[:, 0], size, False) for size in different]


def _positions(rows: slice | Tensor, working: int) -> list[int]:
    return list(range(working)) if isinstance(rows, slice) else rows.tolist()


def _samples(task: Task, index: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
    """Prepared samples and labels of stacked batches; padding repeats the sample at position 0."""
    flat = index.clamp(min=0).flatten().to(task.device)
    data = task.federation
    x = data.x[flat]
    x = data.preparation.evaluation(x) if draws is None else data.preparation.training(x, draws.flatten(0, 1))
    return x.view(*index.shape, *x.shape[1:]), data.y[flat].view(index.shape)


def _augmentation(task: Task, ids: Sequence[int], planned: Plan, seed: int, purpose: str, round: int) -> Tensor | None:
    """Uniform draws `[m, steps, batch, draws]` for the augmentation, or None when there is none."""
    count = task.federation.preparation.draws
    if count == 0:
        return None
    shape = (*planned.batches.shape[1:], count)
    draws = torch.zeros(len(ids), *shape)
    for i, client in enumerate(ids):
        width = int(planned.sizes[i].max())
        steps = int(planned.steps[i])
        draws[i, :steps, :width] = seeds.uniform((steps, width, count), seed, purpose, "augment", round, client)
    return draws.to(task.device)


def _noise(task: Task, ids: Sequence[int], index: Tensor, seed: int, purpose: str, round: int, step: int) -> Tensors:
    """The noise that the model takes in this step, for each client `[m, batch, ...]`."""
    noise: Tensors = {}
    for name, shape in task.noise.items():
        stack = torch.full((len(ids), index.shape[1], *shape), 0.5)
        for i, client in enumerate(ids):
            size = int((index[i] >= 0).sum())
            stack[i, :size] = seeds.uniform((size, *shape), seed, purpose, name, round, client, step)
        noise[name] = stack.to(task.device)
    return noise


def _optimiser(
    training: Training, before: torch.optim.Optimizer | None, leaves: Tensors, shrunk: Tensors
) -> torch.optim.Optimizer:
    """An optimiser for the clients still at work, which goes on with the state it has."""
    after = training.optimiser(shrunk.values())
    if before is not None:
        for old, new in zip(leaves.values(), shrunk.values(), strict=True):
            after.state[new] = {
                name: value[: len(new)]
                if isinstance(value, Tensor) and value.dim() and len(value) == len(old)
                else value
                for name, value in before.state[old].items()
            }
    return after


def _added(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if total is None or gradient is None:
        return gradient if total is None else total
    return total + gradient


def _corrected(
    gradients: dict[str, Tensor | None], terms: Sequence[Term], start: Start, mine: Tree, count: int
) -> dict[str, Tensor | None]:
    correcting = [term for term in terms if type(term).correct is not Term.correct]
    if not correcting:
        return gradients

    def correct(
        gradients: Tensors, own_params: Tensors, own_buffers: Tensors, own: Tensors, states: ClientState
    ) -> Tensors:
        received = start.received(own_params, own_buffers, own)
        for term in correcting:
            gradients = term.correct(gradients, received, states)
        return gradients

    known = {name: value for name, value in gradients.items() if value is not None}
    return {**gradients, **for_each(correct, count)(known, *mine)}


def _clipped(gradients: dict[str, Tensor | None], limit: float) -> dict[str, Tensor | None]:
    """Each client's gradient, no longer than `limit`."""
    squares = [value.flatten(1).square().sum(1) for value in gradients.values() if value is not None]
    factor = (limit / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    return {
        name: None if value is None else value * factor.view(-1, *[1] * (value.dim() - 1))
        for name, value in gradients.items()
    }
