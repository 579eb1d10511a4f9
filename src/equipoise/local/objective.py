"""The local objective, which a client minimises: the loss of the task, changed by the terms of the method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.local.trees import Tree, for_each
from equipoise.models.pixels import store_by_pixel
from equipoise.roles import Term
from equipoise.task import Mode, Task
from equipoise.types import ClientState, Layout, Local, Model, Outputs, Received, Tensors


@dataclass(frozen=True)
class Start:
    """What m clients start a round from. Tensors that all of them share have no client axis."""

    params: Tensors  # the shared parameters
    buffers: Tensors  # the buffers that clients received
    shared: Tensors  # what the server's `share` parts sent to all clients
    own_params: Tensors  # [m, ...] each: private and personal parameters
    own_buffers: Tensors  # [m, ...] each: buffers that stay with the client
    own: Tensors  # [m, ...] each: what the server's `share` parts sent to each client alone
    states: ClientState  # [m, ...] each: what the clients' parts remember
    layout: Layout  # of the shared parameters

    @property
    def per_client(self) -> tuple[Tensors, Tensors, Tensors, ClientState]:
        """The fields with a client axis. The first three are the arguments of `received`, in its order."""
        return self.own_params, self.own_buffers, self.own, self.states

    def received(self, own_params: Tensors, own_buffers: Tensors, own: Tensors) -> Received:
        """What one client starts from, given its own tensors without the client axis."""
        params, buffers = {**self.params, **own_params}, {**self.buffers, **own_buffers}
        return Received(params, buffers, self.shared, own, self.layout)


class StepTime(NamedTuple):
    """When a local step happens, and its learning rate: the fields `done` to `lr` of `Local`."""

    done: int  # local steps before this one in this round
    round: int  # counted from 0
    rounds: int  # planned for the run
    lr: float  # the local learning rate


def build_objective(
    task: Task, terms: Sequence[Term], start: Start, time: StepTime
) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function that computes the local loss of one client on one batch, from its samples' losses and model outputs.

    It returns two scalars: the loss to differentiate, and the mean loss without the terms (the base loss).
    """

    def objective(
        losses: Tensor,
        out: Outputs,
        params: Tensors,
        x: Tensor,
        y: Tensor,
        keep: Tensor | None,
        sample_groups: Tensor | None,
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
        local = Local(out, x, y, keep, params, received, states, *time, frozen, task.loss, sample_groups)
        base = local.mean(losses.detach())
        for term in terms:
            losses = term.base(losses, local)
        total = local.mean(losses)
        for term in terms:
            extra = term.loss(local)
            if extra is not None:
                total = total + local.mean(_per_sample(term, extra))
        for term in select_scaling(terms):
            total = total * term.scale(base, received)
        return total, base

    return objective


def build_losses(
    task: Task, terms: Sequence[Term], start: Start, time: StepTime, mode: Mode, count: int
) -> Callable[..., tuple[Tensor, Tensor, Tensors]]:
    """A function that computes the local losses of m = `count` stacked clients, on one batch each.

    It returns the losses to differentiate `[m]`, the mean losses without the terms `[m]` (the base losses),
    and the next buffers.
    """
    objective = build_objective(task, terms, start, time)

    def alone(
        params: Tensors, buffers: Tensors, noise: Tensors, x: Tensor, y: Tensor, *rest: Tree
    ) -> tuple[Tensor, Tensor, Tensors]:
        stored, images = store_by_pixel(params, x) if count == 1 else (params, x)
        out, buffers = task.forward(stored, buffers, images, mode, noise)
        losses = task.loss(out.logits, y)
        return *objective(losses, out, params, x, y, *rest), buffers

    def together(
        params: Tensors, buffers: Tensors, noise: Tensors, x: Tensor, y: Tensor, keep: Tensor | None, *rest: Tree
    ) -> tuple[Tensor, Tensor, Tensors]:
        """For models that have a forward pass of their own for stacked weights: only the terms are vectorised."""
        assert task.stacked is not None
        out = task.stacked(params, x)
        losses = task.loss(out.logits, y)  # not vectorised with `vmap`, which is several times slower here
        if terms:
            return *for_each(objective, count)(losses, out, params, x, y, keep, *rest), buffers
        means = losses.mean(1) if keep is None else (losses * keep).sum(1) / keep.sum(1)
        return means, means.detach(), buffers

    return together if count > 1 and task.stacked is not None else for_each(alone, count)


def is_overridden(term: Term, hook: str) -> bool:
    """Whether the term's class overrides this hook of `Term`."""
    return getattr(type(term), hook) is not getattr(Term, hook)


def select_scaling(terms: Sequence[Term]) -> list[Term]:
    """The terms that multiply the local loss by a factor (`Term.scale`)."""
    return [term for term in terms if is_overridden(term, "scale")]


def collect_frozen_models(terms: Sequence[Term], received: Received, states: ClientState) -> dict[str, Model]:
    """The models of all terms that stay fixed during the round (`Term.frozen`), by name.

    Two terms may name the same model; two different models of one name are an error.
    """
    found: dict[str, Model] = {}
    for term in terms:
        for name, model in term.frozen(received, states).items():
            other = found.setdefault(name, model)
            if any(other.params.get(key) is not value for key, value in model.params.items()):
                raise EquipoiseError(
                    f"`{term.name}` (terms) has a frozen model `{name}`, and another term has a different one of that "
                    "name. Name it otherwise."
                )
    return found


def _per_sample(term: Term, losses: Tensor) -> Tensor:
    """The losses of a term, `[batch]`. One loss for the whole batch is an error unless the term announces it, because a
    plain mean would count the samples that a batch is padded with."""
    if losses.dim() == 0 and not term.whole_loss:
        raise EquipoiseError(
            f"`{term.name}` (terms) gives one loss for the whole batch. Give one per sample, [batch], such as "
            "`.mean(1)` instead of `.mean()`; or say `whole_loss = True` if padding is left out (`local.keep`)."
        )
    return losses


class Force(NamedTuple):
    """What the terms add to the gradient of one tensor `x`: `pull * x + constant`."""

    pull: float  # the same for all clients
    constant: Tensor  # [m, ...]


def sum_forces(terms: Sequence[Term], start: Start, mine: Tree, count: int) -> dict[str, Force]:
    """The sum of the forces of all terms, by the name of the parameter. It does not change during a round.

    `mine` holds the tensors of `start.per_client` of `count` clients.
    """
    forces: dict[str, Force] = {}
    for term in terms:
        if not is_overridden(term, "force"):
            continue

        def force(_: Tensor, *mine: Tree, term: Term = term) -> Tensors:
            return term.force(start.received(*mine[:3]), mine[3])

        # The zeros are there because `vmap` needs at least one tensor.
        for name, constant in for_each(force, count)(torch.zeros(count), *mine).items():
            if name in forces:
                forces[name] = Force(forces[name].pull + term.pull, forces[name].constant + constant)
            else:
                forces[name] = Force(term.pull, constant)
    return forces
