"""The cost of a method for one client in one round: how much it uploads and computes."""

from __future__ import annotations

from math import prod

import torch
from torch.utils.flop_counter import FlopCounterMode

from equipoise.method import Method
from equipoise.task import Task
from equipoise.types import REPORTS


def estimate_cost(method: Method, task: Task, cohort: int) -> dict[str, int]:
    """Estimate the cost for one client in one round.

    `parameters` counts the shared parameters. `upload`, in bytes, consists of the shared parameters, the averaged
    buffers and the reports, which include personal tensors. `flops` is the work of local training: three times the
    forward passes of the wrapped model (once forward, twice backward) over the samples of an average client, as torch
    counts them (a multiplication and an addition are two). What a method's terms compute in addition, such as a second
    model's pass, is not included. `clients` is the number of clients per round.
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
    """The number of features of the model."""
    out = task.apply(task.initial_params, task.initial_buffers, task.federation.example().to(task.device))
    return int(out.features.shape[1])


def _forward_flops(task: Task) -> float:
    """The floating-point operations of a forward pass, per sample."""
    example = task.federation.example().to(task.device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        task.apply(task.initial_params, task.initial_buffers, example)
    return counter.get_total_flops() / len(example)
