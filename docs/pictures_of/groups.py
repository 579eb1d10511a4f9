"""Group fairness: FairFed's weights of three clients, and how FedFB's weights on samples move."""

from __future__ import annotations

import torch
from matplotlib import pyplot as plt

from equipoise import aggregate
from equipoise.methods.fairfed import signed_gap
from equipoise.methods.fedfb import move_weights
from pictures_of.drawing import COLOURS, DARK, GREY, NAMES, RED, draw_weights_over

# Three clients' samples of two groups, by group, truth and answer.
COUNTS = torch.tensor(
    [
        [[[30.0, 10], [10, 30]], [[8, 2], [6, 4]]],
        [[[20, 5], [5, 20]], [[25, 5], [10, 20]]],
        [[[10, 10], [2, 18]], [[6, 4], [10, 10]]],
    ]
)


def draw_fairfed() -> plt.Figure:
    """FairFed: the gaps of three clients beside the pooled one, and the weights over beta."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.6), layout="constrained")
    gaps = signed_gap(COUNTS, "equal_opportunity").tolist()
    whole = float(signed_gap(COUNTS.sum(0), "equal_opportunity"))
    left.barh(NAMES, gaps, color=COLOURS, height=0.6)
    left.axvline(whole, color=DARK, ls="--", lw=1)
    left.annotate("pooled", (whole, 2.6), color=DARK, fontsize=7, textcoords="offset points", xytext=(4, 0))
    left.set_ylim(2.75, -0.6)
    left.set_title("gap in true positive rates of two groups", fontsize=8)
    betas = (0.0, 0.5, 1.0, 2.0, 3.0)
    found = [
        aggregate(
            f"fairfed(beta={beta})", torch.zeros(3), torch.eye(3), clients=(0, 1, 2), total_samples=280,
            reports={"samples": COUNTS.sum((1, 2, 3)), "group_counts": COUNTS},
        ).weights
        for beta in betas
    ]  # fmt: skip
    draw_weights_over(right, "beta", betas, found, "weights after one round")
    return figure


def draw_fedfb() -> plt.Figure:
    """FedFB: a group that gets too few positive answers, whose positives are weighted up round by round."""
    figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
    sizes, losses = torch.tensor([[85.0, 85], [50, 60]]).double(), torch.tensor([[30.0, 40], [12, 35]]).double()
    pooled = sizes.sum(1)
    shares = (pooled / pooled.sum()).expand(2, -1)
    path = [shares * pooled.sum() / pooled]
    for t in range(12):
        shares, _ = move_weights(shares, sizes, losses, pooled, 0.3 / (t + 1) ** 0.5, "demographic_parity")
        path.append(shares * pooled.sum() / pooled)
    for z, (colour, name) in enumerate(((GREY, "first group"), (RED, "second group, fewer positive answers"))):
        for y, style in ((1, "-"), (0, "--")):
            said = "positives" if y else "negatives"
            axes.plot([float(one[y, z]) for one in path], style, color=colour, label=f"{name}: {said}")
    axes.set_xlabel("round")
    axes.set_ylabel("weight on a sample's loss")
    axes.set_title("while the losses stay as they are, the weights move on", fontsize=8)
    axes.legend(fontsize=6)
    return figure
