"""The work that all simulators do in the benchmark: three federations with random data, FedAvg, plain SGD.

Scripts that run in the environment of the other simulators import it, so it needs torch and nothing else.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Work:
    """A federation, its model, and how a client trains."""

    clients: int
    samples: int  # per client
    cohort: int  # clients per round
    epochs: int
    batch: int
    shape: tuple[int, ...]
    model: str
    lr: float = 0.1


WORK = {
    "W1": Work(100, 600, 10, 5, 32, (784,), "mlp"),
    "W2": Work(100, 600, 10, 1, 32, (1, 28, 28), "cnn"),
    "W3": Work(1000, 20, 100, 1, 10, (784,), "linear"),
}


def draw_data(work: Work) -> tuple[Tensor, Tensor]:
    """Samples and labels of all clients, `[clients, samples, ...]`."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(work.clients, work.samples, *work.shape, generator=draw)
    return x, torch.randint(0, 10, (work.clients, work.samples), generator=draw)


def build_network(work: Work) -> nn.Module:
    """Logistic regression, a perceptron 784-200-200-10, or McMahan's convolutional network (1,663,370 parameters)."""
    torch.manual_seed(0)
    if work.model == "linear":
        return nn.Sequential(nn.Linear(784, 10))
    if work.model == "mlp":
        return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def count_operations(work: Work) -> float:
    """Floating-point operations of the matrix products of one round: forward, gradient of weights, gradient of inputs.

    The first layer needs no gradient of its inputs.
    """
    if work.model == "cnn":
        layers = [784 * 25 * 32, 196 * 25 * 32 * 64, 3136 * 512, 5120]
    else:
        layers = [784 * 10] if work.model == "linear" else [784 * 200, 200 * 200, 2000]
    per_sample = 2 * (2 * layers[0] + 3 * sum(layers[1:]))
    return float(per_sample) * work.cohort * work.samples * work.epochs


def read_arguments() -> tuple[str, Work, int]:
    """The name of the work and the number of rounds to measure, from the command line."""
    return sys.argv[1], WORK[sys.argv[1]], int(sys.argv[2])


def print_result(seconds: list[float]) -> None:
    """Print the result of a script: the seconds of each round, without the first, which pays for the start."""
    kept = seconds[1:]
    print(json.dumps({"seconds": kept, "median": statistics.median(kept)}))
