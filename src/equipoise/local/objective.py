"""What a client minimises: the terms of a method, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.local.trees import Tree, for_each
from equipoise.models.pixels import store_by_pixel
from equipoise.roles import Term
from equipoise.task import Mode, Task
from equipoise.types import ClientState, Layout, Local, Model, Outputs, Received, Tensors


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


class StepTime(NamedTuple):
    """When a local step happens."""

    done: int  # local steps before this one
    round: int
    rounds: int
    lr: float


def build_objective(
    task: Task, terms: Sequence[Term], start: Start, time: StepTime
) -> Callable[..., tuple[Tensor, Tensor]]:
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
                    for name, model in collect_frozen_models(terms, received, states).items()
                }
        local = Local(out, x, y, keep, params, received, states, *time, frozen)
        base = local.mean(losses.detach())
        for term in terms:
            losses = term.base(losses, local)
        total = local.mean(losses)
        for term in terms:
            extra = term.loss(local)
            if extra is not None:
                total = total + local.mean(extra)
        for term in select_scaling(terms):
            total = total * term.scale(base, received)
        return total, base

    return objective


def cross_entropy(out: Outputs, y: Tensor) -> Tensor:
    """Of stacked batches, `[m, batch]`. Under `vmap` it would take several times as long."""
    return F.cross_entropy(out.logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


def build_losses(
    task: Task, terms: Sequence[Term], start: Start, time: StepTime, mode: Mode, count: int
) -> Callable[..., tuple[Tensor, Tensor, Tensors]]:
    """The local losses of `count` stacked clients on one batch each: (total [m], base [m], next buffers)."""
    objective = build_objective(task, terms, start, time)

    def alone(
        params: Tensors, buffers: Tensors, noise: Tensors, x: Tensor, y: Tensor, *rest: Tree
    ) -> tuple[Tensor, Tensor, Tensors]:
        stored, images = store_by_pixel(params, x) if count == 1 else (params, x)
        out, buffers = task.forward(stored, buffers, images, mode, noise)
        losses = F.cross_entropy(out.logits, y, reduction="none")
        return *objective(losses, out, params, x, y, *rest), buffers

    def together(
        params: Tensors, buffers: Tensors, noise: Tensors, x: Tensor, y: Tensor, keep: Tensor | None, *rest: Tree
    ) -> tuple[Tensor, Tensor, Tensors]:
        """For a model that can be evaluated with stacked weights by itself: only the terms are vectorised."""
        assert task.stacked is not None
        out = task.stacked(params, x)
        losses = cross_entropy(out, y)
        if terms:
            return *for_each(objective, count)(losses, out, params, x, y, keep, *rest), buffers
        means = losses.mean(1) if keep is None else (losses * keep).sum(1) / keep.sum(1)
        return means, means.detach(), buffers

    return together if count > 1 and task.stacked is not None else for_each(alone, count)


def is_overridden(term: Term, hook: str) -> bool:
    return getattr(type(term), hook) is not getattr(Term, hook)


def select_scaling(terms: Sequence[Term]) -> list[Term]:
    return [term for term in terms if is_overridden(term, "scale")]


def collect_frozen_models(terms: Sequence[Term], received: Received, states: ClientState) -> dict[str, Model]:
    return {name: model for term in terms for name, model in term.frozen(received, states).items()}


class Force(NamedTuple):
    """What the terms add to the gradient of one tensor `x`: `pull * x + constant`."""

    pull: float
    constant: Tensor  # [m, ...]


def sum_forces(terms: Sequence[Term], start: Start, mine: Tree, count: int) -> dict[str, Force]:
    """The sum of the terms' forces. They do not change during a round."""
    forces: dict[str, Force] = {}
    for term in terms:
        if not is_overridden(term, "force"):
            continue

        def force(_: Tensor, *mine: Tree, term: Term = term) -> Tensors:
            return term.force(start.received(*mine[:3]), mine[3])

        for name, constant in for_each(force, count)(torch.zeros(count), *mine).items():
            if name in forces:
                forces[name] = Force(forces[name].pull + term.pull, forces[name].constant + constant)
            else:
                forces[name] = Force(term.pull, constant)
    return forces
