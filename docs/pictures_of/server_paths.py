"""The ways of the server's model over rounds: optimizers of the server in a narrow valley, and unequal local work."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from matplotlib import pyplot as plt
from torch import Tensor

from equipoise import aggregate
from pictures_of.drawing import DARK, GREY, OPTIMA, RED
from pictures_of.local_training import descend, draw_bowls

SIDES = torch.tensor([1.0, 12.0], dtype=torch.float64)  # curvature along and across the valley
START = torch.tensor([-3.0, 0.9], dtype=torch.float64)
STEPS = (12, 6, 2)  # local steps of the three clients


def follow(
    method: str, start: Tensor, rounds: int, train: Callable[[Tensor], Tensor], reports: Mapping[str, Tensor]
) -> Tensor:
    """The server's model over rounds `[rounds + 1, 2]`; `train` gives the updates of the clients from a model."""
    points, server = [start], None
    for _ in range(rounds):
        found = aggregate(
            method, points[-1], train(points[-1]), clients=range(3), reports=reports, server=server, rounds=rounds
        )
        server = found.server
        points.append(found.theta)
    return torch.stack(points)


def draw_optimizer(method: str) -> Callable[[], plt.Figure]:
    """The model in a narrow valley, with FedAvg and with an optimizer of the server; and the loss over rounds."""

    def draw() -> plt.Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.3), width_ratios=(3, 2), layout="constrained")
        reports = {"samples": torch.ones(3, dtype=torch.float64)}
        x, y = torch.meshgrid(torch.linspace(-3.4, 1.4, 80), torch.linspace(-1.3, 1.3, 60), indexing="xy")
        left.contour(x, y, x**2 + 12 * y**2, levels=[0.2, 1, 3, 6, 10, 15], colors="0.85", linewidths=0.8)
        for text, colour in (("fedavg", GREY), (method, DARK)):
            points = follow(text, START, 25, lambda w: (-0.08 * SIDES * w).expand(3, 2), reports)
            left.plot(*points.T, ".-", color=colour, label=text, ms=4)
            right.semilogy((points.square() * SIDES).sum(1) / 2, color=colour)
        left.plot(0, 0, "*", color=RED, ms=9)
        left.set(xticks=[], yticks=[], title="the model over 25 rounds in a narrow valley", ylim=(-1.3, 1.9))
        left.legend(loc="upper right", fontsize=7)
        right.set(xlabel="round", title="loss")
        return figure

    return draw


def draw_fednova() -> plt.Figure:
    """FedNova: the global model over rounds of unequal local work, beside FedAvg."""
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    draw_bowls(axes, f"the global model over 12 rounds; A does {STEPS[0]} local steps, B {STEPS[1]}, C {STEPS[2]}")
    steps = torch.tensor(STEPS, dtype=torch.float64)
    reports = {"samples": torch.ones(3, dtype=torch.float64), "steps": steps, "normaliser": steps}
    start, best = torch.tensor([0.2, -1.0], dtype=torch.float64), OPTIMA.double()

    def train(theta: Tensor) -> Tensor:
        ends = [descend(theta, lambda w, k=k: w - best[k], STEPS[k], lr=0.03)[-1] for k in range(3)]
        return torch.stack(ends) - theta

    shown = (("fedavg", "fedavg: drifts towards A", GREY), ("fednova", "fednova", DARK))
    for method, label, colour in shown:
        axes.plot(*follow(method, start, 12, train, reports).T, ".-", color=colour, label=label)
    axes.plot(*OPTIMA.mean(0), "*", color=RED, ms=9, label="best for the mean")
    axes.legend(loc="lower right", fontsize=7)
    return figure
