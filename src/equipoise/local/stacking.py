"""Whether a model can be computed for several clients at once."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from equipoise.local.trees import for_each
from equipoise.models.vectorising import refuse_fallbacks
from equipoise.task import Task, stack_copies
from equipoise.types import Tensors

TRIED = 2  # clients and samples of the trial


def find_obstacle(task: Task) -> str | None:
    """The kind of layer that torch cannot compute for several clients at once, such as `GRU`; None if there is none.

    It is found by a trial: a forward and a backward pass for two clients.
    """
    if task.stacked is not None:
        return None
    params = {n: v.detach().requires_grad_() for n, v in stack_copies(task.initial_params, TRIED).items()}
    buffers = stack_copies(task.initial_buffers, TRIED)
    example = task.federation.example()
    noise = {
        name: torch.full((TRIED, len(example), *shape), 0.5, device=task.device) for name, shape in task.noise.items()
    }
    at_work: list[nn.Module] = []  # the layers that have been entered and not yet left, the innermost last

    def enter(layer: nn.Module, _: object) -> None:
        at_work.append(layer)

    def leave(*_: object) -> None:
        at_work.pop()

    def compute(params: Tensors, buffers: Tensors, noise: Tensors, x: Tensor) -> Tensor:
        return task.forward(params, buffers, x, "train", noise)[0].logits

    with ExitStack() as hooks:
        for layer in task.modules["train"].modules():
            hooks.enter_context(layer.register_forward_pre_hook(enter))
            hooks.enter_context(layer.register_forward_hook(leave))
        try:
            with refuse_fallbacks():
                logits = for_each(compute, TRIED)(params, buffers, noise, torch.stack([example] * TRIED))
                torch.autograd.grad(logits.sum(), list(params.values()), allow_unused=True)
        except (RuntimeError, UserWarning):
            return type(at_work[-1] if at_work else task.modules["train"]).__name__
    return None
