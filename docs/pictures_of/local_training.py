"""Local training: three clients whose losses are bowls in the plane, and the ways that models take between them.

PropFair's map of the loss is here, too: it changes what a client minimises, and needs no bowl.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from equipoise.methods.propfair import proportional
from pictures_of.drawing import COLOURS, DARK, GREY, NAMES, OPTIMA, RED, set_plane


def descend(start: Tensor, gradient: Callable[[Tensor], Tensor], steps: int = 6, lr: float = 0.12) -> Tensor:
    """Gradient descent, all points."""
    points = [start]
    for _ in range(steps):
        points.append(points[-1] - lr * gradient(points[-1]))
    return torch.stack(points)


def draw_bowls(axes: Axes, title: str) -> None:
    """The best place of each client."""
    for k in range(3):
        axes.plot(*OPTIMA[k], "x", color=COLOURS[k], ms=7, mew=2)
        place = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center"}
        axes.annotate(f"best for {NAMES[k]}", OPTIMA[k].tolist(), color=COLOURS[k], **place)
    set_plane(axes, title, (-2.5, 3.1), (-1.4, 2.2))


def draw_fedprox() -> plt.Figure:
    """FedProx: local paths without and with the pull to the received model."""
    figure, panels = plt.subplots(1, 2, figsize=(6.4, 2.4), layout="constrained")
    start = torch.tensor([0.2, -0.6])
    for axes, mu in zip(panels, (0.0, 2.0), strict=True):
        draw_bowls(axes, f"local training, mu = {mu:g}")
        for k in range(3):
            points = descend(start, lambda w, k=k, mu=mu: w - OPTIMA[k] + mu * (w - start), steps=10)
            axes.plot(*points.T, ".-", color=COLOURS[k], ms=4)
        axes.plot(*start, "o", color=DARK, ms=5)
    return figure


def follow_server(kind: str, rounds: int = 12) -> Tensor:
    """The server's model over rounds in which clients differ in their number of steps."""
    theta, c, own = torch.tensor([0.2, -1.0]), torch.zeros(2), torch.zeros(3, 2)
    points = [theta]
    steps = (12, 6, 2)
    for _ in range(rounds):
        ends = []
        for k in range(3):
            shift = c - own[k] if kind == "scaffold" else torch.zeros(2)
            end = descend(theta, lambda w, k=k, s=shift: w - OPTIMA[k] + s, steps[k])[-1]
            if kind == "scaffold":
                own[k] = own[k] - c + (theta - end) / (0.12 * steps[k])
            ends.append(end)
        theta = torch.stack(ends).mean(0)
        c = own.mean(0)
        points.append(theta)
    return torch.stack(points)


def draw_scaffold() -> plt.Figure:
    """SCAFFOLD: the global model over rounds of unequal local work, beside FedAvg."""
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    draw_bowls(axes, "the global model over 12 rounds; A does 12 local steps, B 6, C 2")
    axes.plot(*follow_server("fedavg").T, ".-", color=GREY, label="fedavg: drifts towards A")
    axes.plot(*follow_server("scaffold").T, ".-", color=DARK, label="scaffold")
    axes.plot(*OPTIMA.mean(0), "*", color=RED, ms=9, label="best for the mean")
    axes.legend(loc="lower right", fontsize=7)
    return figure


def draw_feddyn() -> plt.Figure:
    """FedDyn: the server's model, which reaches beyond, and the mean of the local models, which is scored."""
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    draw_bowls(axes, "FedDyn over 12 rounds, alpha = 0.5")
    alpha, theta, drift, g = 0.5, torch.tensor([0.2, -1.0]), torch.zeros(2), torch.zeros(3, 2)
    servers, means = [theta], [theta]

    def trained(k: int, theta: Tensor, linear: Tensor) -> Tensor:
        return descend(theta, lambda w: w - OPTIMA[k] - linear + alpha * (w - theta), 12)[-1]

    for _ in range(12):
        ends = torch.stack([trained(k, theta, g[k]) for k in range(3)])
        g = g - alpha * (ends - theta)
        drift = drift + (ends - theta).mean(0)
        theta = ends.mean(0) + drift
        servers.append(theta)
        means.append(ends.mean(0))
    axes.plot(*torch.stack(servers).T, ".-", color=GREY, label="the server's model: reaches beyond")
    axes.plot(*torch.stack(means).T, ".-", color=DARK, label="mean of the local models: scored")
    axes.plot(*OPTIMA.mean(0), "*", color=RED, ms=9, label="best for the mean")
    axes.legend(loc="lower left", fontsize=7)
    return figure


def draw_ditto() -> plt.Figure:
    """Ditto: personal models between the best place of a client and the global model, by the strength of the pull."""
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    draw_bowls(axes, "personal models for lambda = 0.1, 0.5, 1, 2, 5")
    shared = OPTIMA.mean(0)
    for k in range(3):
        own = torch.stack([(OPTIMA[k] + lam * shared) / (1 + lam) for lam in (0.1, 0.5, 1, 2, 5)])
        axes.plot(*own.T, "o-", color=COLOURS[k], ms=4)
    axes.plot(*shared, "o", color=DARK, ms=6)
    axes.annotate("global", shared.tolist(), textcoords="offset points", xytext=(0, -13), ha="center")
    return figure


def draw_propfair() -> plt.Figure:
    """PropFair: what is minimised, and the factor on the gradient, over the loss of a batch."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.3), layout="constrained")
    loss = torch.linspace(0, 3, 601, requires_grad=True)
    for limit, shade in ((2.0, DARK), (3.0, GREY)):
        value = proportional(loss, limit, 0.2)
        (slope,) = torch.autograd.grad(value.sum(), loss)
        left.plot(loss.detach(), value.detach(), color=shade, label=f"M = {limit:g}")
        right.plot(loss.detach(), slope, color=shade)
    left.set(xlabel="cross-entropy of a batch", title="what is minimised")
    right.set(xlabel="cross-entropy of a batch", title="factor on the gradient")
    left.legend()
    return figure
