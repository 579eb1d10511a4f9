"""Draws a picture a method, from the method's own code: `python docs/make_pictures.py`.

Server rules are drawn as they act on three clients' updates; local terms as they act on small problems in the plane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
import torch.nn.functional as F
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from equipoise import Aggregated, aggregate, parse
from equipoise.methods.fedlsa import separation
from equipoise.methods.fedrcl import relaxed_contrast
from equipoise.methods.fedsa import first_anchors
from equipoise.methods.fedtgp import adaptive_margin
from equipoise.methods.fpl import cluster_means, finch
from equipoise.methods.moon import contrast
from equipoise.methods.propfair import proportional
from equipoise.parts.anchors import AnchorNet, margin_losses, mean_gap, train_anchors
from equipoise.parts.conflicts import project_conflicts
from equipoise.parts.terms import unit

FOLDER = Path(__file__).parent / "pictures" / "methods"
mpl.use("svg")
mpl.rcParams |= {
    "svg.hashsalt": "equipoise",  # the same picture gives the same file
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "lines.linewidth": 1.6,
}
COLOURS = ("#0072B2", "#E69F00", "#009E73")
NAMES = ("A", "B", "C")
GREY, DARK, RED = "#999999", "#222222", "#CC3311"

# Three clients: A is large and well served, C small and badly served, and pulls against A.
UPDATES = torch.tensor([[2.0, 0.2], [0.7, 1.3], [-1.1, 0.9]], dtype=torch.float64)
REPORTS = {
    "samples": torch.tensor([60.0, 30.0, 10.0], dtype=torch.float64),
    "loss": torch.tensor([0.4, 1.0, 2.0], dtype=torch.float64),
    "gap": torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64),
    "fisher": torch.tensor([[0.2, 0.1], [0.4, 0.3], [0.3, 0.8]], dtype=torch.float64),
    "personal": torch.tensor([[1.0, 0.2], [0.9, 0.5], [-0.6, 1.0]], dtype=torch.float64),
}
FACTS: dict[str, Any] = {"num_clients": 3, "rounds": 10, "num_classes": 10, "num_domains": 3, "total_samples": 100}
OPTIMA = torch.tensor([[2.0, 0.0], [0.4, 1.6], [-1.6, 1.2]])  # of the three clients' bowls


# --------------------------------------------------------------------------- server rules
def played(method: str, rounds: int = 1) -> Aggregated:
    """The rule after some rounds in which the clients reported the same."""
    result = None
    for _ in range(rounds):
        result = aggregate(
            parse(method), torch.zeros(2, dtype=torch.float64), UPDATES, clients=(0, 1, 2), reports=REPORTS,
            server=result.server if result else None, **FACTS,
        )  # fmt: skip
    assert result is not None
    return result


def arrow(
    axes: Axes, end: Tensor, colour: str, label: str = "", start: Tensor | None = None, width: float = 1.6
) -> None:
    """An arrow with its name beyond its head."""
    origin = torch.zeros(2, dtype=end.dtype) if start is None else start
    style = {"arrowstyle": "-|>", "color": colour, "lw": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 11}
    axes.annotate("", end.tolist(), origin.tolist(), arrowprops=style)
    if label:
        x, y = (9 * unit(end - origin)).tolist()
        side = "left" if x > 3 else "right" if x < -3 else "center"
        axes.annotate(
            label, end.tolist(), textcoords="offset points", xytext=(x, y), color=colour, ha=side, va="center"
        )


def plane(axes: Axes, title: str, x: tuple[float, float] = (-1.7, 2.7), y: tuple[float, float] = (-0.9, 1.9)) -> None:
    """No ticks, equal scales."""
    axes.set(xlim=x, ylim=y, aspect="equal", xticks=[], yticks=[], title=title)
    axes.spines[["left", "bottom"]].set_visible(False)


def updates_and_directions(axes: Axes, directions: Mapping[str, tuple[Tensor, str]], title: str) -> None:
    for k in range(3):
        arrow(axes, UPDATES[k], COLOURS[k], NAMES[k])
    for label, (direction, colour) in directions.items():
        arrow(axes, direction, colour, width=2.4)
        axes.plot([], [], color=colour, lw=2.4, label=label)
    plane(axes, title)
    axes.legend(loc="lower left", ncols=len(directions), fontsize=7, columnspacing=1.0, handlelength=1.2)


def weight_bars(axes: Axes, rows: Mapping[str, Sequence[float]], title: str = "weights") -> None:
    """Bars of A, B, C for each row."""
    height = 0.8 / len(rows)
    for i, (label, values) in enumerate(rows.items()):
        at = [2 - k + 0.4 - height * (i + 0.5) for k in range(3)]
        axes.barh(at, values, height * 0.9, color=COLOURS, alpha=1.0 if i == len(rows) - 1 else 0.35)
        for y, value in zip(at, values, strict=True):
            axes.annotate(
                f"{label} {value:.2f}", (max(value, 0), y), textcoords="offset points", xytext=(3, -3), fontsize=7
            )
    axes.set(yticks=[2, 1, 0], yticklabels=NAMES, title=title, xticks=[])
    axes.spines["bottom"].set_visible(False)
    axes.margins(x=0.5)


def rule(method: str, shown: str = "", rounds: int = 1) -> Callable[[], plt.Figure]:
    """Three updates, FedAvg's direction and the method's, and the weights of both."""

    def draw() -> plt.Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.6), width_ratios=(3, 2), layout="constrained")
        plain, found = played("fedavg"), played(method, rounds)
        name = shown or method.split("(")[0]
        directions = {"fedavg": (plain.direction, GREY), name: (found.direction, DARK)}
        updates_and_directions(left, directions, "three clients' updates, and what becomes of them")
        weight_bars(right, {"fedavg": plain.weights.tolist(), name: found.weights.tolist()})
        return figure

    return draw


def by_strength(name: str, parameter: str, values: Sequence[float], rest: str = "") -> Callable[[], plt.Figure]:
    """Three updates and the directions for several strengths; the weights over the strength."""

    def draw() -> plt.Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.6), width_ratios=(3, 2), layout="constrained")
        found = [played(f"{name}({parameter}={value}{rest})") for value in values]
        shades = [str(0.75 - 0.7 * i / (len(values) - 1)) for i in range(len(values))]
        directions = {f"{v:g}": (one.direction, shade) for v, one, shade in zip(values, found, shades, strict=True)}
        updates_and_directions(left, directions, f"three clients' updates, and the direction for {parameter} =")
        weights_over(
            right, parameter, values, [one.weights / one.weights.sum() for one in found], "share of the weights"
        )
        return figure

    return draw


def weights_over(axes: Axes, name: str, values: Sequence[float], weights: Sequence[Tensor], title: str) -> None:
    """A line a client."""
    for k in range(3):
        axes.plot(range(len(values)), [float(w[k]) for w in weights], "o-", color=COLOURS[k], label=NAMES[k], ms=4)
    axes.set(
        xticks=range(len(values)), xticklabels=[f"{v:g}" for v in values], xlabel=name, title=title, ylim=(0, 1.02)
    )
    axes.legend(fontsize=7)


def afl() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.6), width_ratios=(3, 2), layout="constrained")
    found = [played("afl(gamma=0.05)", r) for r in range(1, 11)]
    shades = {1: "0.75", 2: "0.5", 4: "0.3", 8: "0.05"}
    directions = {f"{r}": (found[r - 1].direction, shade) for r, shade in shades.items()}
    updates_and_directions(left, directions, "three clients' updates, and the direction in round")
    weights_over(right, "round", range(1, 11), [one.weights for one in found], "lambda climbs to the largest loss")
    return figure


def fedfv() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.4), layout="constrained")
    gram = UPDATES @ UPDATES.T
    rows = project_conflicts(gram, torch.argsort(REPORTS["loss"]), torch.ones(3, dtype=torch.bool)) @ UPDATES
    for k in range(3):
        arrow(left, UPDATES[k], COLOURS[k], NAMES[k])
        left.plot(*torch.stack([UPDATES[k], rows[k]]).T, ":", color=COLOURS[k])
        arrow(right, rows[k], COLOURS[k], f"{NAMES[k]}'")
    shown = (("fedavg(weights='uniform')", "plain mean", GREY), ("fedfv(alpha=0, tau=0)", "fedfv", DARK))
    for method, name, colour in shown:
        arrow(right, played(method).direction, colour, width=2.4)
        right.plot([], [], color=colour, label=name)
    plane(left, "A and C conflict: each gives up\nits part along the other")
    plane(right, "projected, and their mean\nat the plain mean's length")
    right.legend(loc="lower left", ncols=2, fontsize=7)
    return figure


def fedmgda_plus() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.6), width_ratios=(3, 2), layout="constrained")
    units = unit(UPDATES)
    values = (0.0, 0.1, 0.3, 1.0)
    found = [played(f"fedmgda_plus(eps={eps})") for eps in values]
    left.fill(*torch.cat([units, units[:1]]).T, color=GREY, alpha=0.15, lw=0)
    for k in range(3):
        arrow(left, units[k], COLOURS[k], NAMES[k])
    for eps, one, shade in zip(values, found, ("0.75", "0.5", "0.3", "0.05"), strict=True):
        arrow(left, one.direction, shade, width=2.2)
        left.plot([], [], color=shade, label=f"{eps:g}")
    plane(left, "unit updates, and the direction for eps =", (-1.3, 1.6), (-0.55, 1.2))
    left.legend(loc="lower left", ncols=4, fontsize=7, handlelength=1.2)
    weights_over(right, "eps", values, [one.weights for one in found], "weights")
    return figure


def per_tensor(method: str, weights: bool) -> Callable[[], plt.Figure]:
    """Two tensors of two entries each: what FedAvg and the method do in each."""

    def draw() -> plt.Figure:
        figure, panels = plt.subplots(1, 2, figsize=(6.4, 2.5), layout="constrained")
        rows = torch.cat([UPDATES, torch.tensor([[0.4, 1.6], [-0.3, 0.7], [1.9, -0.2]], dtype=torch.float64)], 1)
        reports = {
            name: value for name, value in REPORTS.items() if name != "fisher"
        }  # that one is as long as an update
        found, plain = (
            aggregate(
                parse(text), torch.zeros(4, dtype=torch.float64), rows, clients=(0, 1, 2), reports=reports,
                layout={"first": (2,), "second": (2,)}, **FACTS,
            )
            for text in (method, "fedavg")
        )  # fmt: skip
        assert found.tensor_weights is not None
        for i, (axes, name) in enumerate(zip(panels, ("first", "second"), strict=True)):
            here = slice(2 * i, 2 * i + 2)
            for k in range(3):
                weight = f" {found.tensor_weights[k, i]:.2f}" if weights else ""
                arrow(axes, rows[k, here], COLOURS[k], NAMES[k] + weight)
            for label, direction, colour in (("fedavg", plain.direction, GREY), (method, found.direction, DARK)):
                arrow(axes, direction[here], colour, width=2.4)
                axes.plot([], [], color=colour, label=label)
            plane(axes, f"{name} tensor: updates and directions", (-1.9, 2.9))
        panels[0].legend(loc="lower left", ncols=2, fontsize=7)
        return figure

    return draw


# --------------------------------------------------------------------------- local methods: three bowls in the plane
def path(start: Tensor, gradient: Callable[[Tensor], Tensor], steps: int = 6, lr: float = 0.12) -> Tensor:
    """Gradient descent, all points."""
    points = [start]
    for _ in range(steps):
        points.append(points[-1] - lr * gradient(points[-1]))
    return torch.stack(points)


def bowls(axes: Axes, title: str) -> None:
    for k in range(3):
        axes.plot(*OPTIMA[k], "x", color=COLOURS[k], ms=7, mew=2)
        place = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center"}
        axes.annotate(f"best for {NAMES[k]}", OPTIMA[k].tolist(), color=COLOURS[k], **place)
    plane(axes, title, (-2.5, 3.1), (-1.4, 2.2))


def fedprox() -> plt.Figure:
    figure, panels = plt.subplots(1, 2, figsize=(6.4, 2.4), layout="constrained")
    start = torch.tensor([0.2, -0.6])
    for axes, mu in zip(panels, (0.0, 2.0), strict=True):
        bowls(axes, f"local training, mu = {mu:g}")
        for k in range(3):
            points = path(start, lambda w, k=k, mu=mu: w - OPTIMA[k] + mu * (w - start), steps=10)
            axes.plot(*points.T, ".-", color=COLOURS[k], ms=4)
        axes.plot(*start, "o", color=DARK, ms=5)
    return figure


def global_path(kind: str, rounds: int = 12) -> Tensor:
    """The server's model over rounds in which clients differ in their number of steps."""
    theta, c, own = torch.tensor([0.2, -1.0]), torch.zeros(2), torch.zeros(3, 2)
    points = [theta]
    steps = (12, 6, 2)
    for _ in range(rounds):
        ends = []
        for k in range(3):
            shift = c - own[k] if kind == "scaffold" else torch.zeros(2)
            end = path(theta, lambda w, k=k, s=shift: w - OPTIMA[k] + s, steps[k])[-1]
            if kind == "scaffold":
                own[k] = own[k] - c + (theta - end) / (0.12 * steps[k])
            ends.append(end)
        theta = torch.stack(ends).mean(0)
        c = own.mean(0)
        points.append(theta)
    return torch.stack(points)


def scaffold() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    bowls(axes, "the global model over 12 rounds; A does 12 local steps, B 6, C 2")
    axes.plot(*global_path("fedavg").T, ".-", color=GREY, label="fedavg: drifts towards A")
    axes.plot(*global_path("scaffold").T, ".-", color=DARK, label="scaffold")
    axes.plot(*OPTIMA.mean(0), "*", color=RED, ms=9, label="best for the mean")
    axes.legend(loc="lower right", fontsize=7)
    return figure


def feddyn() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    bowls(axes, "FedDyn over 12 rounds, alpha = 0.5")
    alpha, theta, drift, g = 0.5, torch.tensor([0.2, -1.0]), torch.zeros(2), torch.zeros(3, 2)
    servers, means = [theta], [theta]

    def trained(k: int, theta: Tensor, linear: Tensor) -> Tensor:
        return path(theta, lambda w: w - OPTIMA[k] - linear + alpha * (w - theta), 12)[-1]

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


def ditto() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    bowls(axes, "personal models for lambda = 0.1, 0.5, 1, 2, 5")
    shared = OPTIMA.mean(0)
    for k in range(3):
        own = torch.stack([(OPTIMA[k] + lam * shared) / (1 + lam) for lam in (0.1, 0.5, 1, 2, 5)])
        axes.plot(*own.T, "o-", color=COLOURS[k], ms=4)
    axes.plot(*shared, "o", color=DARK, ms=6)
    axes.annotate("global", shared.tolist(), textcoords="offset points", xytext=(0, -13), ha="center")
    return figure


def propfair() -> plt.Figure:
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


# --------------------------------------------------------------------------- features, prototypes, anchors
def moon() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(4.6, 2.6), layout="constrained")
    angle = torch.linspace(-torch.pi, torch.pi, 361)
    z = torch.stack([angle.cos(), angle.sin()], 1)
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    for tau, shade in ((0.2, DARK), (0.5, "0.4"), (1.0, "0.7")):
        axes.plot(angle.rad2deg(), contrast(z, near, far, tau), color=shade, label=f"tau = {tau:g}")
    axes.axvline(0, color=COLOURS[2], ls=":", label="global model's feature")
    axes.axvline(90, color=RED, ls=":", label="previous model's")
    axes.set(
        xlabel="direction of the current feature in degrees", title="MOON's contrast", xticks=[-180, -90, 0, 90, 180]
    )
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0.1, 1.0))
    return figure


def cloud(centre: Sequence[float], seed: int, count: int = 14, spread: float = 0.28) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.tensor(centre) + spread * torch.randn(count, 2, generator=draw)


def fedproto() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(4.6, 2.8), layout="constrained")
    centres = {0: ((0.0, 0.2), (0.9, 0.0), (0.5, 1.0)), 1: ((3.0, 1.4), (2.3, 2.1), (3.4, 2.4))}
    for label, places in centres.items():
        means = []
        for k, place in enumerate(places):
            points = cloud(place, 10 * label + k)
            axes.plot(*points.T, "o" if label == 0 else "s", color=COLOURS[k], ms=2.5, alpha=0.6)
            means.append(points.mean(0))
            axes.plot(*means[-1], "P", color=COLOURS[k], ms=8)
        shared = torch.stack(means).mean(0)
        for mean, colour in zip(means, COLOURS, strict=True):
            arrow(axes, mean + 0.75 * (shared - mean), colour, start=mean)
        axes.plot(*shared, "*", color=DARK, ms=13)
        axes.annotate(f"prototype of class {label}", shared.tolist(), xytext=(10, -3), textcoords="offset points")
    axes.set(xticks=[], yticks=[], title="three clients' features, class means, and the pull")
    axes.margins(0.12)
    return figure


def fedproc() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.3), layout="constrained")
    t = torch.arange(30)
    alpha = 1 - t / 29
    left.fill_between(t, alpha, color=COLOURS[0], alpha=0.5, lw=0, label="contrast with prototypes")
    left.fill_between(t, alpha, 1, color=GREY, alpha=0.5, lw=0, label="cross-entropy")
    left.set(xlabel="round", title="weights of the two losses", xlim=(0, 29), ylim=(0, 1))
    left.legend(loc="center")
    angle = torch.linspace(-torch.pi, torch.pi, 361)
    features = torch.stack([angle.cos(), angle.sin()], 1)
    prototypes = unit(torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]]))
    for tau, shade in ((1.0, "0.6"), (0.1, DARK)):
        loss = F.cross_entropy(features @ prototypes.T / tau, torch.zeros(361, dtype=torch.long), reduction="none")
        right.plot(angle.rad2deg(), loss / loss.max(), color=shade, label=f"tau = {tau:g}")
    right.set(xlabel="angle to the own prototype", title="contrast, scaled to 1", xticks=[-180, -90, 0, 90, 180])
    right.legend()
    return figure


def fpl() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(4.6, 2.8), layout="constrained")
    points = torch.tensor([[1.0, 0.05], [0.92, 0.16], [0.85, 0.1], [0.97, 0.25], [0.1, 0.95], [0.2, 0.85]])
    labels = finch(points)
    means = cluster_means(points, labels)
    for label in range(len(means)):
        members = points[labels == label]
        axes.plot(*members.T, "o", color=COLOURS[label], label=f"clients' prototypes, cluster {label + 1}")
        for member in members:
            axes.plot(*torch.stack([member, means[label]]).T, "-", color=COLOURS[label], lw=0.8)
        axes.plot(*means[label], "P", color=COLOURS[label], ms=11)
    axes.plot(*means.mean(0), "*", color=DARK, ms=14, label="unbiased: mean of the clusters")
    axes.plot(*points.mean(0), "X", color=GREY, ms=9, label="plain mean: towards the many")
    axes.set(xlim=(0, 1.15), ylim=(-0.1, 1.1), xticks=[], yticks=[], title="one class, six clients")
    axes.legend(loc="upper right", fontsize=7)
    return figure


def fedtgp() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(4.6, 2.9), layout="constrained")
    uploads = torch.stack([cloud(c, 3 + i, 5, 0.3) for i, c in enumerate(((0.0, 0.0), (0.9, 0.3), (0.4, 1.0)))], 1)
    means, labels = uploads.mean(0), torch.arange(3).repeat(5)
    margin = adaptive_margin(means, torch.ones(3), "pairs", 100.0)

    def loss(net: AnchorNet, step: int) -> Tensor:
        return margin_losses(uploads.flatten(0, 1), net(), labels, margin).mean()

    sent, _ = train_anchors(3, 2, {}, (4, "picture"), torch.zeros(1), loss, 600, 0.05)
    for c in range(3):
        axes.plot(*uploads[:, c].T, "o", color=COLOURS[c], ms=4, label=f"uploads of class {c}")
        axes.plot(*means[c], "X", color=COLOURS[c], ms=8)
        arrow(axes, sent[c], COLOURS[c], start=means[c])
        axes.plot(*sent[c], "*", color=COLOURS[c], ms=14)
    axes.set(xticks=[], yticks=[], title="from plain means (x) to trained prototypes (*)")
    axes.legend(fontsize=7)
    axes.margins(0.15)
    return figure


def fedrcl() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(4.6, 2.5), layout="constrained")
    likeness = torch.linspace(-1, 1, 401)
    losses: list[list[float]] = [[], []]
    for s in likeness:
        pair = torch.tensor([[1.0, 0.0], [float(s), float((1 - s**2).clamp(min=0).sqrt())], [-0.3, -0.95]])
        for i, loss in enumerate(relaxed_contrast(pair, torch.tensor([0, 0, 1]), None, 0.05, 0.7, 1)):
            losses[i].append(float(loss[0]))
    axes.plot(likeness, losses[0], color=COLOURS[0], label="contrast: draws the pair together")
    axes.plot(likeness, losses[1], color=RED, label="penalty: keeps it from collapsing")
    axes.axvline(0.7, color=GREY, ls=":")
    axes.set(
        xlabel="similarity of two samples of one class", title="FedRCL's two losses", yscale="symlog", ylim=(0, 40)
    )
    axes.legend(fontsize=7)
    return figure


def fedsa() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(4.4, 2.9), layout="constrained")
    anchors = first_anchors(3, 2, seed=187)
    gap = float(mean_gap(anchors, torch.ones(3)))
    for c in range(3):
        points = cloud((anchors[c] + torch.tensor([0.35, 0.3])).tolist(), 20 + c, 9, 0.15)
        axes.plot(*points.T, "o", color=COLOURS[c], ms=3, alpha=0.7)
        for point in points[::2]:
            arrow(axes, point + 0.6 * (anchors[c] - point), COLOURS[c], start=point, width=0.8)
        axes.plot(*anchors[c], "D", color=COLOURS[c], ms=9, label=f"anchor of class {c}")
        axes.add_patch(plt.Circle(anchors[c].tolist(), gap / 2, fill=False, ls=":", color=COLOURS[c]))
    plane(axes, "anchors are drawn once and hardly move; features move to them", (-0.9, 3.2), (-0.85, 2.2))
    axes.legend(fontsize=7, loc="upper right")
    return figure


def fedlsa() -> plt.Figure:
    figure, panels = plt.subplots(1, 2, figsize=(5.4, 2.8), layout="constrained")
    classifier = unit(torch.tensor([[1.0, 0.4], [0.5, 1.0], [1.0, -0.4]]))

    def loss(net: AnchorNet, step: int) -> Tensor:
        anchors = unit(net())
        return F.cross_entropy(anchors @ classifier.T, torch.arange(3)) + 0.05 * separation(anchors, 0.1).mean()

    for axes, steps, title in zip(panels, (0, 500), ("before", "after 500 server steps"), strict=True):
        raw, _ = train_anchors(3, 2, {}, (6, "picture"), torch.zeros(1), loss, steps, 0.1)
        axes.add_patch(plt.Circle((0, 0), 1, fill=False, color=GREY))
        for c, anchor in enumerate(unit(raw)):
            arrow(axes, anchor, COLOURS[c], f"class {c}", width=2.2)
        plane(axes, title, (-1.9, 1.9), (-1.35, 1.35))
    figure.suptitle("anchors on the sphere, told apart by the global classifier", fontsize=9)
    return figure


def fedbn() -> plt.Figure:
    figure, panels = plt.subplots(1, 3, figsize=(6.6, 2.1), layout="constrained", sharey=True)
    draw = torch.Generator().manual_seed(0)
    values = [
        mean + spread * torch.randn(4000, generator=draw) for mean, spread in ((0.0, 1.0), (3.0, 0.5), (-2.0, 2.0))
    ]
    pooled_mean = torch.stack([v.mean() for v in values]).mean()
    pooled = torch.stack([v.var() for v in values]).mean().sqrt()
    views = {
        "a layer's values": values,
        "averaged normalisation": [(v - pooled_mean) / pooled for v in values],
        "each client's own": [(v - v.mean()) / v.std() for v in values],
    }
    for axes, (title, shown) in zip(panels, views.items(), strict=True):
        for k, v in enumerate(shown):
            axes.hist(v.numpy(), bins=40, density=True, color=COLOURS[k], alpha=0.55, histtype="stepfilled")
        axes.set(title=title, yticks=[], xlim=(-7, 6))
        axes.spines["left"].set_visible(False)
    return figure


PICTURES: dict[str, Callable[[], plt.Figure]] = {
    "afl": afl,
    "daa": rule("daa"),
    "ditto": ditto,
    "eagle": rule("eagle(apply='server', lag=0)", "eagle, on the server"),
    "fdse": per_tensor("fdse", weights=True),
    "fedbn": fedbn,
    "feddyn": feddyn,
    "fedequilibria": by_strength("fedequilibria", "t", (0.0, 0.3, 0.7, 1.0)),
    "fedfe": by_strength("fedfe", "q", (0.0, 0.2, 1.0, 5.0), ", lr=1.0"),
    "fedfv": fedfv,
    "fedheal": rule("fedheal", rounds=4),
    "fedlf": per_tensor("fedlf", weights=False),
    "fedlsa": fedlsa,
    "fedmgda_plus": fedmgda_plus,
    "fedproc": fedproc,
    "fedproto": fedproto,
    "fedprox": fedprox,
    "fedrcl": fedrcl,
    "fedsa": fedsa,
    "fedtgp": fedtgp,
    "fpl": fpl,
    "gifair": by_strength("gifair", "strength", (0.0, 0.3, 0.6, 0.9)),
    "moon": moon,
    "propfair": propfair,
    "qffl": by_strength("qffl", "q", (0.0, 0.2, 1.0, 5.0), ", lr=1.0"),
    "scaffold": scaffold,
    "term": by_strength("term", "t", (0.0, 0.5, 1.0, 3.0)),
}


def save(name: str) -> None:
    """Draw one picture into its file."""
    figure = PICTURES[name]()
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    for method_name in PICTURES:
        save(method_name)
