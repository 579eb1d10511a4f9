"""Local steps of many clients at once: with gradients as factors where the model gives them, otherwise by autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from equipoise.local.batches import Group
from equipoise.local.objective import (
    Force,
    Start,
    StepTime,
    build_losses,
    build_objective,
    is_overridden,
    select_scaling,
    sum_forces,
)
from equipoise.local.trees import Tree, for_each, pick, tree_map
from equipoise.roles import Term
from equipoise.seeds import Integers
from equipoise.task import Task
from equipoise.training import Training
from equipoise.types import ClientState, Factors, OutputGradient, Outputs, Tensors

# (step, number of clients that still train, their groups) -> for each group, the mean base losses of its clients
Steps = Callable[[int, int, list[Group]], list[Tensor]]


class Cohort(NamedTuple):
    """The m clients that train together, and all that their steps need."""

    task: Task  # the model and the data
    terms: Sequence[Term]  # of the method
    start: Start  # what the clients start from
    mine: Tree  # the tensors of `Start.per_client`, in the order of these clients
    values: Tensors  # [m, ...] each: the parameters, changed in place
    training: Training  # settings of local training
    time: StepTime  # of the first step

    @property
    def forces(self) -> dict[str, Force]:
        """What the terms add to the gradients in every step, by the name of the parameter."""
        return sum_forces(self.terms, self.start, self.mine, len(next(iter(self.values.values()))))


class Stack(NamedTuple):
    """The stacked tensors of some clients, `[clients, ...]` each."""

    values: Tensors  # the parameters
    momenta: Tensors  # of the parameters; empty without momentum
    mine: Tree  # the tensors of `Start.per_client`
    forces: dict[str, Force]  # what the terms add to the gradients


class FactoredSteps:
    """Steps of SGD for models that give their gradients as factors (`Task.factored`).

    The matrix product that computes a gradient also adds it to the weights, so that the gradient is never stored,
    unless a term corrects it or it is clipped together with what terms add.

    The networks are small where this is used, so that the overhead of each call of torch matters: what does not change
    between two steps is looked up once.
    """

    def __init__(self, cohort: Cohort) -> None:
        self.task, self.terms, self.start, mine, values, self.training, self.time = cohort
        momenta = {n: torch.zeros_like(v) for n, v in values.items()} if self.training.momentum else {}
        self.everyone = Stack(values, momenta, mine, cohort.forces)
        self.correcting = any(is_overridden(term, "correct") for term in self.terms)
        self.changing = any(is_overridden(term, hook) for term in self.terms for hook in ("base", "loss"))
        self.scaling = select_scaling(self.terms)
        self.working = 0

    def __call__(self, step: int, working: int, groups: list[Group]) -> list[Tensor]:
        (group,) = groups  # these models have no batch statistics, so that all clients are in one group
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
            for i in range(working):  # one by one, so that the gradient of a client stays in the cache
                self._step_multiplied(*pick((self.stack, layers, direct), slice(i, i + 1)))
        else:
            self._step_in_factors(self.stack, layers if clip is None else _clipped_factors(layers, clip), direct)
        return [loss]

    def _known(self, out: Outputs, group: Group) -> tuple[Tensor, OutputGradient]:
        """The mean losses `[m]`, and their gradient with respect to the outputs, times the terms' factors.

        The formula of this gradient is known, so that autograd is not needed.
        """
        keep = group.keep
        losses, delta = self.task.loss.differentiate(out.logits, group.y)
        if keep is None:
            loss, delta = losses.mean(1), delta.mul_(1 / losses.shape[1])
        else:
            share = keep / keep.sum(1, keepdim=True)
            loss, delta = (losses * share).sum(1), delta.mul_(share.unsqueeze(2))
        if self.scaling:
            delta *= self._factor(loss).view(-1, 1, 1)
        return loss, OutputGradient(delta)

    def _factor(self, loss: Tensor) -> Tensor:
        """The product of the terms' factors on each client's loss, `[m]`, from the mean base losses `[m]`."""
        own_params, own_buffers, own, _ = self.stack.mine
        factor = torch.ones_like(loss)
        for term in self.scaling:
            factor = factor * for_each(
                lambda loss, *own, term=term: term.scale(loss, self.start.received(*own)), len(loss)
            )(loss, own_params, own_buffers, own)
        return factor

    def _differentiated(self, step: int, out: Outputs, group: Group) -> tuple[Tensor, OutputGradient, Tensors]:
        """The base losses `[m]`, the gradient of the total loss at the outputs, and what terms add to that of weights.

        Autograd goes back only to the outputs of the model. The last result is the gradient, by name, of weights that
        terms use directly, for example in a penalty on the weights.
        """
        out, params = tree_map(lambda tensor: tensor.detach().requires_grad_(), (out, self.stack.values))
        objective = build_objective(self.task, self.terms, self.start, self.time._replace(done=step))
        total, loss = for_each(objective, len(group.x))(
            self.task.loss(out.logits, group.y),
            out,
            params,
            group.x,
            group.y,
            group.keep,
            group.sample_groups,
            group.frozen,
            *self.stack.mine,
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
        """Do a step of SGD for one client with whole gradients, which can be corrected and clipped."""
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
        """Do a step of SGD for all clients, without storing their gradients."""
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
    """Steps by autograd, for any model, any terms and any optimizer of torch."""

    def __init__(
        self, cohort: Cohort, statistics: Tensors, noise: Callable[[Sequence[int], Integers, int], Tensors]
    ) -> None:
        self.task, self.terms, self.start, self.mine, self.values, self.training, self.time = cohort
        self.statistics, self.noise, self.forces = statistics, noise, cohort.forces
        self.leaves: Tensors = {}
        self.optimizer: torch.optim.Optimizer | None = None
        self.working = 0

    def __call__(self, step: int, working: int, groups: list[Group]) -> list[Tensor]:
        if working != self.working:  # the clients that still train are the first rows of the stack
            leaves = {name: value[:working].detach().requires_grad_() for name, value in self.values.items()}
            self.optimizer = _optimizer(self.training, self.optimizer, self.leaves, leaves)
            self.leaves, self.working = leaves, working
        assert self.optimizer is not None
        gradients: dict[str, Tensor | None] = dict.fromkeys(self.leaves)
        bases = []
        at_work = pick(self.mine, slice(working))
        for group in groups:
            everyone = isinstance(group.rows, slice)
            single = self.task.batch_statistics and group.batch.shape[1] == 1
            total, base, after = build_losses(
                self.task,
                self.terms,
                self.start,
                self.time._replace(done=step),
                "single" if single else "train",
                len(group.x),
            )(
                self.leaves if everyone else pick(self.leaves, group.rows),
                pick(pick(self.statistics, slice(working)), group.rows),
                self.noise(np.arange(working)[group.rows].tolist(), group.batch, step),
                group.x,
                group.y,
                group.keep,
                group.sample_groups,
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
        self.optimizer.step()
        return bases


def _optimizer(
    training: Training, before: torch.optim.Optimizer | None, leaves: Tensors, shrunk: Tensors
) -> torch.optim.Optimizer:
    """An optimizer of the `shrunk` tensors, the first rows of `leaves`, with the state of the optimizer `before`."""
    after = training.build_optimizer(shrunk.values())
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
    gradients: Mapping[str, Tensor | None],
    params: Tensors,
    terms: Sequence[Term],
    start: Start,
    mine: Tree,
    forces: Mapping[str, Force],
    count: int,
) -> dict[str, Tensor | None]:
    """Add the terms' forces to the gradients of `count` clients, and then apply the terms' corrections."""
    pushed = {name: (force, value) for name, force in forces.items() if (value := gradients.get(name)) is not None}
    gradients = {**gradients} | {
        name: value.add(force.constant).add_(params[name], alpha=force.pull) for name, (force, value) in pushed.items()
    }
    correcting = [term for term in terms if is_overridden(term, "correct")]
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
    """Scale down each client's gradient to a norm of at most `limit`."""
    factor = _clipping([value.flatten(1).square().sum(1) for value in gradients.values() if value is not None], limit)
    return {
        name: None if value is None else value * factor.view(-1, *[1] * (value.dim() - 1))
        for name, value in gradients.items()
    }


def _clipped_factors(layers: Factors, limit: float) -> Factors:
    """Scale down each client's gradient to a norm of at most `limit`, for gradients as factors."""
    factor = _clipping([_squared_length(delta, x) for delta, x in layers.values()], limit).view(-1, 1, 1)
    return {name: (delta * factor, x) for name, (delta, x) in layers.items()}


def _squared_length(delta: Tensor, x: Tensor) -> Tensor:
    """The squared norms `[m]` of a layer's gradient, that of the weights (`delta.mT @ x`) and of the bias together.

    They follow from the inner products between samples, without the gradient itself, where that is less work.
    """
    batch, outputs, inputs = delta.shape[1], delta.shape[2], x.shape[2]
    if batch * (outputs + inputs) < outputs * inputs:
        return (delta @ delta.mT).mul_((x @ x.mT).add_(1)).sum((1, 2)).clamp(min=0)
    return (delta.mT @ x).square().sum((1, 2)) + delta.sum(1).square().sum(1)


def _clipping(squares: Sequence[Tensor], limit: float) -> Tensor:
    """The factors `[m]` on the clients' gradients, from the squared norms `[m]` of their pieces.

    The formula is that of `torch.nn.utils.clip_grad_norm_`.
    """
    return (limit / (torch.stack(list(squares)).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
