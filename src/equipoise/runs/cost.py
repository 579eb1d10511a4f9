"""What a method costs a client in a round: what it uploads, and how much it computes."""

from __future__ import annotations

from math import prod

import torch
from torch.utils.flop_counter import FlopCounterMode

from equipoise.method import Method
from equipoise.task import Task
from equipoise.types import REPORTS


def estimate_cost(method: Method, task: Task, cohort: int) -> dict[str, int]:
    """Figures of one client in one round.

    `upload` in bytes: shared and personal tensors, buffers that are averaged, reports. `flops` of local training: forward
    passes of the wrapped model as torch counts them (a multiplication and an addition are two), three times for forward and
    backward, over the mean client's samples. What a method's own terms compute on top (a second model's pass) is not in it.
    """
    params = {name: value.cpu() for name, value in task.initial_params.items()}
    buffers = {name: value.cpu() for name, value in task.initial_buffers.items()}
    width = next(iter(params.values())).element_size() if params else 4
    sent = [b for name, b in buffers.items() if task.policies[name] == "average"]
    features = _features(task)
    sizes = {"m": 1, "G": task.layout.size, "C": task.classes, "P": task.personal.size, "F": features}
    reported = sum(
        prod(sizes.get(axis, 1) for axis in REPORTS[name].axes)
        for part in method.reports
        for name in part.gives
        if name in REPORTS
    )
    training, clients = task.training, task.federation.clients
    samples = sum(len(c.train) for c in clients) / len(clients)
    seen = samples * training.epochs if training.steps is None else training.steps * (training.batch or samples)
    return {
        "parameters": task.layout.size,
        "upload": width * (task.layout.size + reported) + sum(b.numel() * b.element_size() for b in sent),
        "flops": round(3 * _forward_flops(task) * seen),
        "clients": cohort,
    }


def _features(task: Task) -> int:
    out = task.apply(task.initial_params, task.initial_buffers, task.federation.example().to(task.device))
    return int(out.features.shape[1])


def _forward_flops(task: Task) -> float:
    """Of one sample."""
    example = task.federation.example().to(task.device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        task.apply(task.initial_params, task.initial_buffers, example)
    return counter.get_total_flops() / len(example)
