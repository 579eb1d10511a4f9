"""Local training, written for one client and run for one or for many.

A term never sees a client axis. For one client its function is called directly; for several it is vectorised with
`torch.func.vmap` over tensors stacked along a leading client axis. The numbers are the same up to float rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from equipoise import seeds
from equipoise.models.pixels import pixelwise
from equipoise.roles import Term
from equipoise.seeds import Integers
from equipoise.task import EVALUATION_BATCH, Mode, Task
from equipoise.training import Training
from equipoise.types import ClientState, Factors, Layout, Local, Model, OutputGradient, Outputs, Received, Tensors

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
            tensors: list[Tensor] = []
            tree_map(tensors.append, args)

            def of_tensors(*slices: Tensor) -> Tree:
                following = iter(slices)
                return function(*tree_map(lambda _: next(following), args))

            return vmap(of_tensors)(*tensors)  # a tree of arguments would take it twice as long

        return vectorised

    def alone(*args: Tree) -> Tree:
        # `squeeze`, not `[0]`: its gradient is a view, that of an index a copy into zeros.
        return tree_map(lambda t: t.unsqueeze(0), function(*tree_map(lambda t: t.squeeze(0), args)))

    return alone


# --------------------------------------------------------------------------- which samples, in which order
class Plan(NamedTuple):
    """The batches of several clients: positions in the pool, -1 for padding."""

    batches: Integers  # [m, steps, batch]
    places: Integers  # [m, steps, batch], the same as positions among the client's own samples, 0 for padding
    sizes: Integers  # [m, steps], true batch sizes; 0 when the client is done
    steps: Integers  # [m]

    @property
    def repeats(self) -> bool:
        """Whether all steps have the same batch, which then lies in memory once."""
        return self.batches.strides[1] == 0

    def ordered(self, order: Integers) -> Plan:
        """The clients in another order."""
        if not self.repeats:
            return Plan(*(value[order] for value in self))
        once = [np.broadcast_to(value[order, :1], value.shape) for value in (self.batches, self.places)]
        return Plan(once[0], once[1], self.sizes[order], self.steps[order])


def plan(task: Task, clients: Sequence[int], training: Training, *path: int | str) -> Plan:
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
        return Plan(whole[0], whole[1], np.where(np.arange(shape[1]) < steps[:, None], n[:, None], 0), steps)
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
    return Plan(batches, places, real.sum(2), steps)


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
    watch: Callable[[int, Sequence[int], Tensors, Tensors], bool] | None = None,
) -> Fitted:
    """Train the clients from stacked `params` and `buffers` (which are left as they are).

    `watch(step, clients, params, buffers)` sees the models after every step, and ends the training when it says so.
    """
    training = training or task.training
    planned = plan(task, clients, training, seed, purpose, round)
    # Clients with the most steps first: those still at work are always the first ones of the stack.
    order = np.argsort(-planned.steps, kind="stable")
    planned = planned.ordered(order)
    ids = [clients[i] for i in order]
    there = torch.from_numpy(order).to(task.device)
    mine = pick(start.per_client, there)
    values = pick(params, there)  # indexing copies
    statistics = pick(buffers, there)
    draws = _augmentation(task, ids, planned, seed, purpose, round)
    frozen = _frozen(task, terms, start, ids, mine, int(planned.sizes.sum())) if draws is None else {}
    losses = torch.zeros(planned.sizes.shape[1], len(clients), device=task.device)

    moment = Moment(0, round, rounds, training.lr)
    if task.factored is not None and training.plain:
        advance: Steps = FactoredSteps(task, terms, start, mine, values, training, moment)
    else:
        noise = partial(_noise, task, ids, seed, purpose, round)
        advance = AutogradSteps(task, terms, start, mine, values, statistics, training, noise, moment)
    same = planned.repeats and draws is None
    groups: list[Group] = []
    changed = np.any(np.diff(planned.sizes, axis=1, prepend=-1), axis=0).tolist()
    for step, sizes in enumerate(planned.sizes.T):
        if changed[step]:
            working = int(np.count_nonzero(sizes))
            together = _groups(sizes[:working], task.batch_statistics)
            groups.clear()
        if not same or not groups:
            groups = [
                _samples(task, rows, planned.batches[:working][rows, step, :size], padded,
                         None if draws is None else draws[:working][rows, step, :size],
                         _looked_up(frozen, planned.places[:working, step, :size], rows))
                for rows, size, padded in together
            ]  # fmt: skip
        for group, base in zip(groups, advance(step, working, groups), strict=True):
            losses[step, :working][group.rows] = base
        if watch is not None and watch(step, ids, values, statistics):
            break

    back = torch.from_numpy(np.argsort(order)).to(task.device)
    counts = torch.from_numpy(planned.sizes).to(task.device)
    done = torch.from_numpy(planned.steps).to(task.device, losses.dtype)
    loss = (losses.T * counts).sum(1) / counts.sum(1)
    return Fitted(pick(values, back), pick(statistics, back), done[back], loss[back])


class Group(NamedTuple):
    """Clients that share one call in a step, and their batches."""

    rows: slice | Integers  # among those at work
    batch: Integers  # [rows, batch], positions in the pool, -1 for padding
    x: Tensor
    y: Tensor
    keep: Tensor | None
    frozen: Tensors  # features by models that do not change, [rows, batch, width], where they are known already


Steps = Callable[
    [int, int, list[Group]], list[Tensor]
]  # (step, clients at work, groups) -> mean base losses of each group


class Force(NamedTuple):
    """What the terms add to the gradient of one tensor `x`: `pull * x + constant`."""

    pull: float
    constant: Tensor  # [m, ...]


class Stack(NamedTuple):
    """What the clients at work have, one beside the other."""

    values: Tensors
    momenta: Tensors
    mine: Tree
    forces: dict[str, Force]


class FactoredSteps:
    """Plain SGD for models that give their gradient in factors: it is added to the weights by the same matrix product that
    computes it, so that it is never stored (unless a term looks at the weights or corrects their gradient).

    The network is small where this is used, and a call costs as much as a thousand numbers: what does not change between
    two steps is looked up once.
    """

    def __init__(
        self,
        task: Task,
        terms: Sequence[Term],
        start: Start,
        mine: Tree,
        values: Tensors,
        training: Training,
        moment: Moment,
    ) -> None:
        self.task, self.terms, self.start, self.training, self.moment = task, terms, start, training, moment
        momenta = {n: torch.zeros_like(v) for n, v in values.items()} if training.momentum else {}
        self.everyone = Stack(values, momenta, mine, _forces(terms, start, mine, len(next(iter(values.values())))))
        self.correcting = any(_overrides(term, "correct") for term in terms)
        self.changing = any(_overrides(term, hook) for term in terms for hook in ("base", "loss"))
        self.scaling = _scaling(terms)
        self.working = 0

    def __call__(self, step: int, working: int, groups: list[Group]) -> list[Tensor]:
        (group,) = groups  # such models have no batch statistics
        if working != self.working:
            assert self.task.factored is not None
            self.stack = pick(self.everyone, slice(working))
            self.forward, self.working = self.task.factored(self.stack.values), working
        forward = self.forward(group.x)
        if self.changing:
            loss, gradient, direct = self._differentiated(step, forward.out, group)
        else:
            (loss, gradient), direct = self._known(forward.out, group), {}
        layers, clip = forward.back(gradient), self.training.clip
        if self.correcting or (clip is not None and (direct or self.stack.forces)):
            for i in range(working):  # one after the other: a client's gradient then stays in the cache
                self._step_multiplied(*pick((self.stack, layers, direct), slice(i, i + 1)))
        else:
            self._step_in_factors(self.stack, layers if clip is None else _clipped_factors(layers, clip), direct)
        return [loss]

    def _known(self, out: Outputs, group: Group) -> tuple[Tensor, OutputGradient]:
        """The gradient of mean cross-entropy, times the terms' factors, with respect to the logits, whose memory it takes."""
        y, keep = group.y.unsqueeze(2), group.keep
        logarithms = torch.log_softmax(out.logits, 2)
        picked = logarithms.gather(2, y)
        share = 1 / y.shape[1] if keep is None else (keep / keep.sum(1, keepdim=True)).unsqueeze(2)
        loss = -(picked.mean((1, 2)) if keep is None else (picked * share).sum((1, 2)))
        delta = logarithms.exp_().scatter_add_(2, y, torch.full_like(picked, -1.0)).mul_(share)
        if self.scaling:
            delta *= self._factor(loss).view(-1, 1, 1)
        return loss, OutputGradient(delta)

    def _factor(self, loss: Tensor) -> Tensor:
        own_params, own_buffers, own, _ = self.stack.mine
        factor = torch.ones_like(loss)
        for term in self.scaling:
            factor = factor * for_each(
                lambda loss, *own, term=term: term.scale(loss, self.start.received(*own)), len(loss)
            )(loss, own_params, own_buffers, own)
        return factor

    def _differentiated(self, step: int, out: Outputs, group: Group) -> tuple[Tensor, OutputGradient, Tensors]:
        """By autograd, but only back to the outputs; and what terms that look at the weights themselves add to them."""
        out, params = tree_map(lambda tensor: tensor.detach().requires_grad_(), (out, self.stack.values))
        objective = _objective(self.task, self.terms, self.start, self.moment._replace(done=step))
        total, loss = for_each(objective, len(group.x))(
            _cross_entropy(out, group.y), out, params, group.x, group.y, group.keep, group.frozen, *self.stack.mine
        )
        inputs = {"logits": out.logits, "features": out.features, **out.extra, **params}
        gradients = torch.autograd.grad(total.sum(), list(inputs.values()), allow_unused=True)
        found: dict[str, Tensor | None] = dict(zip(inputs, gradients, strict=True))
        at_outputs = {
            name: torch.zeros_like(inputs[name]) if (value := found[name]) is None else value
            for name in ("logits", *out.extra)
        }
        direct = {name: value for name in params if (value := found[name]) is not None}
        return loss, OutputGradient(at_outputs.pop("logits"), found["features"], at_outputs), direct

    def _step_multiplied(self, stack: Stack, layers: Factors, direct: Tensors) -> None:
        gradients: dict[str, Tensor | None] = {}
        for layer, (delta, x) in layers.items():
            gradients |= {f"{layer}.weight": torch.bmm(delta.mT, x), f"{layer}.bias": delta.sum(1)}
        gradients |= {name: _added(gradients[name], more) for name, more in direct.items()}
        gradients = _corrected(gradients, stack.values, self.terms, self.start, stack.mine, stack.forces, 1)
        if self.training.clip is not None:
            gradients = _clipped(gradients, self.training.clip)
        lr, decay, momentum = self.training.lr, self.training.weight_decay, self.training.momentum
        for name, gradient in cast(Tensors, gradients).items():
            if decay:
                gradient = gradient.add(stack.values[name], alpha=decay)
            if momentum:
                gradient = stack.momenta[name].mul_(momentum).add_(gradient)
            stack.values[name].sub_(gradient, alpha=lr)

    def _step_in_factors(self, stack: Stack, layers: Factors, direct: Tensors) -> None:
        lr, momentum = self.training.lr, self.training.momentum
        for layer, (delta, inputs) in layers.items():
            for name in (f"{layer}.weight", f"{layer}.bias"):
                value, force = stack.values[name], stack.forces.get(name)
                pull = self.training.weight_decay + (0.0 if force is None else force.pull)
                changed, kept, rate = (stack.momenta[name], momentum, 1.0) if momentum else (value, 1 - lr * pull, -lr)
                if name.endswith("weight"):
                    changed.baddbmm_(delta.mT, inputs, beta=kept, alpha=rate)
                else:
                    (changed if kept == 1 else changed.mul_(kept)).add_(delta.sum(1), alpha=rate)
                if force is not None:
                    changed.add_(force.constant, alpha=rate)
                if name in direct:
                    changed.add_(direct[name], alpha=rate)
                if momentum:
                    value.sub_(changed.add_(value, alpha=pull) if pull else changed, alpha=lr)


class AutogradSteps:
    """Any model, any terms, any optimiser of torch."""

    def __init__(
        self,
        task: Task,
        terms: Sequence[Term],
        start: Start,
        mine: Tree,
        values: Tensors,
        statistics: Tensors,
        training: Training,
        noise: Callable[[Sequence[int], Integers, int], Tensors],
        moment: Moment,
    ) -> None:
        self.task, self.terms, self.start, self.mine, self.training = task, terms, start, mine, training
        self.values, self.statistics, self.noise, self.moment = values, statistics, noise, moment
        self.forces = _forces(terms, start, mine, len(next(iter(values.values()))))
        self.leaves: Tensors = {}
        self.optimiser: torch.optim.Optimizer | None = None
        self.working = 0

    def __call__(self, step: int, working: int, groups: list[Group]) -> list[Tensor]:
        if working != self.working:  # the clients still at work are the first ones: go on with their part of the stack
            leaves = {name: value[:working].detach().requires_grad_() for name, value in self.values.items()}
            self.optimiser = _optimiser(self.training, self.optimiser, self.leaves, leaves)
            self.leaves, self.working = leaves, working
        assert self.optimiser is not None
        gradients: dict[str, Tensor | None] = dict.fromkeys(self.leaves)
        bases = []
        at_work = pick(self.mine, slice(working))
        for group in groups:
            everyone = isinstance(group.rows, slice)
            single = self.task.batch_statistics and group.batch.shape[1] == 1
            total, base, after = _losses(
                self.task,
                self.terms,
                self.start,
                self.moment._replace(done=step),
                "single" if single else "train",
                len(group.x),
            )(
                self.leaves if everyone else pick(self.leaves, group.rows),
                pick(pick(self.statistics, slice(working)), group.rows),
                self.noise(np.arange(working)[group.rows].tolist(), group.batch, step),
                group.x,
                group.y,
                group.keep,
                group.frozen,
                *pick(at_work, group.rows),
            )
            found = torch.autograd.grad(total.sum(), list(self.leaves.values()), allow_unused=True)
            gradients = {n: _added(gradients[n], g) for n, g in zip(self.leaves, found, strict=True)}
            for name, value in after.items():
                self.statistics[name][:working][group.rows] = value
            bases.append(base)
        values = {name: leaf.detach() for name, leaf in self.leaves.items()}
        forces = pick(self.forces, slice(working))
        gradients = _corrected(gradients, values, self.terms, self.start, at_work, forces, working)
        if self.training.clip is not None:
            gradients = _clipped(gradients, self.training.clip)
        for name, leaf in self.leaves.items():
            leaf.grad = gradients[name]
        self.optimiser.step()
        return bases


class Moment(NamedTuple):
    """When a local step happens."""

    done: int  # local steps before this one
    round: int
    rounds: int
    lr: float


def _objective(task: Task, terms: Sequence[Term], start: Start, moment: Moment) -> Callable[..., tuple[Tensor, Tensor]]:
    """The local loss of one client on one batch, from its cross-entropies and the outputs of its model: (total, base)."""

    def objective(
        losses: Tensor,
        out: Outputs,
        params: Tensors,
        x: Tensor,
        y: Tensor,
        keep: Tensor | None,
        frozen: Tensors,
        own_params: Tensors,
        own_buffers: Tensors,
        own: Tensors,
        states: ClientState,
    ) -> tuple[Tensor, Tensor]:
        received = start.received(own_params, own_buffers, own)
        if not frozen:
            with torch.no_grad():
                frozen = {
                    name: task.apply(model.params, model.buffers, x).features
                    for name, model in _asked(terms, received, states).items()
                }
        local = Local(out, x, y, keep, params, received, states, *moment, frozen)
        base = local.mean(losses.detach())
        for term in terms:
            losses = term.base(losses, local)
        total = local.mean(losses)
        for term in terms:
            extra = term.loss(local)
            if extra is not None:
                total = total + local.mean(extra)
        for term in _scaling(terms):
            total = total * term.scale(base, received)
        return total, base

    return objective


def _cross_entropy(out: Outputs, y: Tensor) -> Tensor:
    """Of stacked batches, `[m, batch]`. Under `vmap` it would take several times as long."""
    return F.cross_entropy(out.logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


def _losses(
    task: Task, terms: Sequence[Term], start: Start, moment: Moment, mode: Mode, count: int
) -> Callable[..., tuple[Tensor, Tensor, Tensors]]:
    """The local losses of `count` stacked clients on one batch each: (total [m], base [m], next buffers)."""
    objective = _objective(task, terms, start, moment)

    def alone(
        params: Tensors, buffers: Tensors, noise: Tensors, x: Tensor, y: Tensor, *rest: Tree
    ) -> tuple[Tensor, Tensor, Tensors]:
        stored, images = tree_map(pixelwise, (params, x)) if count == 1 else (params, x)
        out, buffers = task.forward(stored, buffers, images, mode, noise)
        losses = F.cross_entropy(out.logits, y, reduction="none")
        return *objective(losses, out, params, x, y, *rest), buffers

    def together(
        params: Tensors, buffers: Tensors, noise: Tensors, x: Tensor, y: Tensor, keep: Tensor | None, *rest: Tree
    ) -> tuple[Tensor, Tensor, Tensors]:
        """For a model that can be evaluated with stacked weights by itself: only the terms are vectorised."""
        assert task.stacked is not None
        out = task.stacked(params, x)
        losses = _cross_entropy(out, y)
        if terms:
            return *for_each(objective, count)(losses, out, params, x, y, keep, *rest), buffers
        means = losses.mean(1) if keep is None else (losses * keep).sum(1) / keep.sum(1)
        return means, means.detach(), buffers

    return together if count > 1 and task.stacked is not None else for_each(alone, count)


def _overrides(term: Term, hook: str) -> bool:
    return getattr(type(term), hook) is not getattr(Term, hook)


def _scaling(terms: Sequence[Term]) -> list[Term]:
    return [term for term in terms if _overrides(term, "scale")]


def _groups(sizes: Integers, apart: bool) -> list[tuple[slice | Integers, int, bool]]:
    """Clients that can share a call: (rows, batch size, whether smaller batches are padded to it).

    One group, padded where batches differ; or groups of equal batches, where padding would change the numbers.
    """
    largest = int(sizes.max())
    if (sizes == largest).all():
        return [(slice(None), largest, False)]
    if not apart:
        return [(slice(None), largest, True)]
    return [(np.flatnonzero(sizes == size), int(size), False) for size in np.unique(sizes)[::-1]]


def _samples(
    task: Task, rows: slice | Integers, index: Integers, padded: bool, draws: Tensor | None, frozen: Tensors
) -> Group:
    """Prepared samples and labels of stacked batches; padding repeats the sample at position 0."""
    data = task.federation
    flat = torch.from_numpy((index.clip(min=0) if padded else index).flatten()).to(task.device)
    x, y = data.x.index_select(0, flat), data.y.index_select(0, flat)  # takes half the time of `data.x[flat]`
    x = data.preparation.evaluation(x) if draws is None else data.preparation.training(x, draws.flatten(0, 1))
    keep = torch.from_numpy(index >= 0).to(task.device, x.dtype) if padded else None
    return Group(rows, index, x.view(*index.shape, *x.shape[1:]), y.view(index.shape), keep, frozen)


@torch.no_grad()
def _frozen(task: Task, terms: Sequence[Term], start: Start, ids: Sequence[int], mine: Tree, visits: int) -> Tensors:
    """Features of all the clients' samples by the models that the terms ask for, `[m, samples, width]`.

    Nothing where a sample's features depend on its batch, or where fewer samples will be visited than there are.
    """
    _, starts = task.federation.training_positions
    in_batches = task.evaluates_in_batches or task.noise_in_evaluation or visits < np.diff(starts)[ids].sum()
    if in_batches or not any(_overrides(term, "frozen") for term in terms):
        return {}
    count = len(ids)

    def models_of(_: Tensor, *mine: Tree) -> dict[str, Model]:
        return _asked(terms, start.received(*mine[:3]), mine[3])

    def features_of(model: Model, x: Tensor) -> Tensor:
        stored, images = tree_map(pixelwise, (model.params, x)) if count == 1 else (model.params, x)
        return task.apply(stored, model.buffers, images).features

    found: Tensors = {}
    models = for_each(models_of, count)(torch.zeros(count), *mine)
    for name, model in models.items():
        parts = []
        for x in _everything(task, ids):
            if task.stacked is not None:
                parts.append(task.stacked(model.params, x).features)
            else:
                parts.append(for_each(features_of, count)(model, x))
        found[name] = torch.cat(parts, 1)
    return found


def _asked(terms: Sequence[Term], received: Received, states: ClientState) -> dict[str, Model]:
    return {name: model for term in terms for name, model in term.frozen(received, states).items()}


def _everything(task: Task, ids: Sequence[int]) -> Iterator[Tensor]:
    """All training samples of these clients, prepared for evaluation, `[m, some, ...]` at a time, the shorter ones padded."""
    pool, starts = task.federation.training_positions
    first, n = starts[:-1][ids], np.diff(starts)[ids]
    for at in range(0, n.max(), EVALUATION_BATCH):
        places = np.arange(at, min(at + EVALUATION_BATCH, n.max()))
        index = pool[first[:, None] + np.minimum(places, n[:, None] - 1)]
        x = task.federation.x.index_select(0, torch.from_numpy(index.reshape(-1)).to(task.device))
        yield task.federation.preparation.evaluation(x).view(*index.shape, *x.shape[1:])


def _looked_up(frozen: Tensors, places: Integers, rows: slice | Integers) -> Tensors:
    """The features of the samples at these places, for some of the clients at work."""
    found: Tensors = {}
    for name, value in frozen.items():
        index = (places + np.arange(len(places))[:, None] * value.shape[1])[rows]
        flat = value.flatten(0, 1).index_select(0, torch.from_numpy(index.flatten()).to(value.device))
        found[name] = flat.view(*index.shape, -1)
    return found


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


def _noise(
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


def _forces(terms: Sequence[Term], start: Start, mine: Tree, count: int) -> dict[str, Force]:
    """The sum of the terms' forces. They do not change during a round."""
    forces: dict[str, Force] = {}
    for term in terms:
        if not _overrides(term, "force"):
            continue

        def force(_: Tensor, *mine: Tree, term: Term = term) -> Tensors:
            return term.force(start.received(*mine[:3]), mine[3])

        for name, constant in for_each(force, count)(torch.zeros(count), *mine).items():
            before = forces.get(name, Force(0.0, torch.zeros(())))
            forces[name] = Force(
                before.pull + term.pull, constant if name not in forces else before.constant + constant
            )
    return forces


def _corrected(
    gradients: Mapping[str, Tensor | None],
    params: Tensors,
    terms: Sequence[Term],
    start: Start,
    mine: Tree,
    forces: Mapping[str, Force],
    count: int,
) -> dict[str, Tensor | None]:
    """With the terms' forces, then with their corrections."""
    pushed = {name: (force, value) for name, force in forces.items() if (value := gradients[name]) is not None}
    gradients = {**gradients} | {
        name: value.add(force.constant).add_(params[name], alpha=force.pull) for name, (force, value) in pushed.items()
    }
    correcting = [term for term in terms if _overrides(term, "correct")]
    if not correcting:
        return dict(gradients)

    def correct(
        gradients: Tensors,
        params: Tensors,
        own_params: Tensors,
        own_buffers: Tensors,
        own: Tensors,
        states: ClientState,
    ) -> Tensors:
        received = start.received(own_params, own_buffers, own)
        for term in correcting:
            gradients = term.correct(gradients, params, received, states)
        return gradients

    known = {name: value for name, value in gradients.items() if value is not None}
    return {**gradients, **for_each(correct, count)(known, params, *mine)}


def _clipped(gradients: dict[str, Tensor | None], limit: float) -> dict[str, Tensor | None]:
    """Each client's gradient, no longer than `limit`."""
    factor = _clipping([value.flatten(1).square().sum(1) for value in gradients.values() if value is not None], limit)
    return {
        name: None if value is None else value * factor.view(-1, *[1] * (value.dim() - 1))
        for name, value in gradients.items()
    }


def _clipped_factors(layers: Factors, limit: float) -> Factors:
    """The same, of gradients in factors: the squared length of `delta' x`, and of the bias's gradient, follows from the inner
    products of the samples."""
    squares = [(delta @ delta.mT).mul_((x @ x.mT).add_(1)).sum((1, 2)).clamp(min=0) for delta, x in layers.values()]
    factor = _clipping(squares, limit).view(-1, 1, 1)
    return {name: (delta * factor, x) for name, (delta, x) in layers.items()}


def _clipping(squares: Sequence[Tensor], limit: float) -> Tensor:
    """The factor on each client's gradient, from the squared lengths of its pieces, as torch clips."""
    return (limit / (torch.stack(list(squares)).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
