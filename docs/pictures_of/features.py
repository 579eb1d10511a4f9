"""Losses on features: contrasts, class prototypes, anchors, and normalisation that stays with the client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from matplotlib import pyplot as plt
from torch import Tensor

from equipoise.methods.fedlsa import separation
from equipoise.methods.fedrcl import relaxed_contrast
from equipoise.methods.fedsa import first_anchors
from equipoise.methods.fedtgp import adaptive_margin
from equipoise.methods.fpl import cluster_means, finch
from equipoise.methods.moon import contrast
from equipoise.parts.anchors import AnchorNet, margin_losses, mean_gap, train_anchors
from equipoise.parts.terms import unit
from pictures_of.drawing import COLOURS, DARK, GREY, RED, draw_arrow, set_plane


def draw_moon() -> plt.Figure:
    """MOON: the contrast over the direction of a feature, between the global model's and the previous model's."""
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


def sample_cloud(centre: Sequence[float], seed: int, count: int = 14, spread: float = 0.28) -> Tensor:
    """Points around a centre, the same ones for the same seed."""
    draw = torch.Generator().manual_seed(seed)
    return torch.tensor(centre) + spread * torch.randn(count, 2, generator=draw)


def draw_fedproto() -> plt.Figure:
    """FedProto: features of three clients and two classes, class means, and the pull to the global prototypes."""
    figure, axes = plt.subplots(figsize=(4.6, 2.8), layout="constrained")
    centres = {0: ((0.0, 0.2), (0.9, 0.0), (0.5, 1.0)), 1: ((3.0, 1.4), (2.3, 2.1), (3.4, 2.4))}
    for label, places in centres.items():
        means = []
        for k, place in enumerate(places):
            points = sample_cloud(place, 10 * label + k)
            axes.plot(*points.T, "o" if label == 0 else "s", color=COLOURS[k], ms=2.5, alpha=0.6)
            means.append(points.mean(0))
            axes.plot(*means[-1], "P", color=COLOURS[k], ms=8)
        shared = torch.stack(means).mean(0)
        for mean, colour in zip(means, COLOURS, strict=True):
            draw_arrow(axes, mean + 0.75 * (shared - mean), colour, start=mean)
        axes.plot(*shared, "*", color=DARK, ms=13)
        axes.annotate(f"prototype of class {label}", shared.tolist(), xytext=(10, -3), textcoords="offset points")
    axes.set(xticks=[], yticks=[], title="three clients' features, class means, and the pull")
    axes.margins(0.12)
    return figure


def draw_fedproc() -> plt.Figure:
    """FedProc: from contrast to cross-entropy over rounds, and the contrast over the angle to the prototype."""
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


def draw_fpl() -> plt.Figure:
    """FPL: prototypes of one class in clusters, the mean of the clusters, and the plain mean."""
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


def draw_fedtgp() -> plt.Figure:
    """FedTGP: from the plain means of the uploads to the prototypes that the server trains."""
    figure, axes = plt.subplots(figsize=(4.6, 2.9), layout="constrained")
    uploads = torch.stack(
        [sample_cloud(c, 3 + i, 5, 0.3) for i, c in enumerate(((0.0, 0.0), (0.9, 0.3), (0.4, 1.0)))], 1
    )
    means, labels = uploads.mean(0), torch.arange(3).repeat(5)
    margin = adaptive_margin(means, torch.ones(3), "pairs", 100.0)

    def loss(net: AnchorNet, step: int) -> Tensor:
        return margin_losses(uploads.flatten(0, 1), net(), labels, margin).mean()

    sent, _ = train_anchors(3, 2, {}, (4, "picture"), torch.zeros(1), loss, 600, 0.05)
    for c in range(3):
        axes.plot(*uploads[:, c].T, "o", color=COLOURS[c], ms=4, label=f"uploads of class {c}")
        axes.plot(*means[c], "X", color=COLOURS[c], ms=8)
        draw_arrow(axes, sent[c], COLOURS[c], start=means[c])
        axes.plot(*sent[c], "*", color=COLOURS[c], ms=14)
    axes.set(xticks=[], yticks=[], title="from plain means (x) to trained prototypes (*)")
    axes.legend(fontsize=7)
    axes.margins(0.15)
    return figure


def draw_fedrcl() -> plt.Figure:
    """FedRCL: its two losses over the similarity of a pair of samples of one class."""
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


def draw_fedsa() -> plt.Figure:
    """FedSA: features on their way to anchors, and the margin around these."""
    figure, axes = plt.subplots(figsize=(4.4, 2.9), layout="constrained")
    anchors = first_anchors(3, 2, seed=187)
    gap = float(mean_gap(anchors, torch.ones(3)))
    for c in range(3):
        points = sample_cloud((anchors[c] + torch.tensor([0.35, 0.3])).tolist(), 20 + c, 9, 0.15)
        axes.plot(*points.T, "o", color=COLOURS[c], ms=3, alpha=0.7)
        for point in points[::2]:
            draw_arrow(axes, point + 0.6 * (anchors[c] - point), COLOURS[c], start=point, width=0.8)
        axes.plot(*anchors[c], "D", color=COLOURS[c], ms=9, label=f"anchor of class {c}")
        axes.add_patch(plt.Circle(anchors[c].tolist(), gap / 2, fill=False, ls=":", color=COLOURS[c]))
    set_plane(axes, "anchors are drawn once and hardly move; features move to them", (-0.9, 3.2), (-0.85, 2.2))
    axes.legend(fontsize=7, loc="upper right")
    return figure


def draw_fedlsa() -> plt.Figure:
    """FedLSA: anchors on the sphere before and after the server trained them."""
    figure, panels = plt.subplots(1, 2, figsize=(5.4, 2.8), layout="constrained")
    classifier = unit(torch.tensor([[1.0, 0.4], [0.5, 1.0], [1.0, -0.4]]))

    def loss(net: AnchorNet, step: int) -> Tensor:
        anchors = unit(net())
        return F.cross_entropy(anchors @ classifier.T, torch.arange(3)) + 0.05 * separation(anchors, 0.1).mean()

    for axes, steps, title in zip(panels, (0, 500), ("before", "after 500 server steps"), strict=True):
        raw, _ = train_anchors(3, 2, {}, (6, "picture"), torch.zeros(1), loss, steps, 0.1)
        axes.add_patch(plt.Circle((0, 0), 1, fill=False, color=GREY))
        for c, anchor in enumerate(unit(raw)):
            draw_arrow(axes, anchor, COLOURS[c], f"class {c}", width=2.2)
        set_plane(axes, title, (-1.9, 1.9), (-1.35, 1.35))
    figure.suptitle("anchors on the sphere, told apart by the global classifier", fontsize=9)
    return figure


def draw_fedbn() -> plt.Figure:
    """FedBN: a layer's values at three clients, with averaged normalisation, and with each client's own."""
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
