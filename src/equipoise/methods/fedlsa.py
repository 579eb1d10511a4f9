"""FedLSA, learnable semantic anchors: features on a sphere are drawn to anchors that the server trains.

Fu et al., AAAI 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.method import Local, Method, Round, Sent, Share, State, Term, register, require
from equipoise.parts.anchors import AnchorNet, linear_head, train_anchors
from equipoise.parts.projection import Projection
from equipoise.parts.terms import unit


def separation(anchors: Tensor, tau: float) -> Tensor:
    """How near each anchor is to the others, `[C]`: `log` of the mean over j != i of `exp(a_i . a_j / tau)`."""
    itself = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    logits = torch.where(itself, -torch.inf, anchors @ anchors.mT / tau)
    return torch.logsumexp(logits, 1) - log(len(anchors) - 1)


def compactness(features: Tensor, anchors: Tensor, y: Tensor, tau: float) -> Tensor:
    """The cross-entropy `[batch]` of the similarities `feature . anchor_c / tau` with all anchors `[C, width]`."""
    return F.cross_entropy(features @ anchors.mT / tau, y, reduction="none")


@dataclass(frozen=True)
class ToAnchor(Term, needs=("shared anchors", "features on the sphere", "class outputs")):
    """Adds `lam` times the cross-entropy of a feature's similarities with the anchors. The first round has no
    anchors."""

    lam: float  # weight of the term
    tau: float  # temperature of the similarities

    def loss(self, local: Local) -> Tensor | None:
        """The weighted losses `[batch]`; None in the first round."""
        anchors = local.received.shared.get("anchors")
        if anchors is None or not self.lam:
            return None
        return self.lam * compactness(local.out.features, anchors, local.y, self.tau)


@dataclass(frozen=True)
class TrainedAnchors(Share, needs=("features on the sphere",), gives=("shared anchors",), by_columns=()):
    """Sends `anchors [C, width]` of length one.

    The server trains them so that the global classifier, held fixed, tells them apart, and so that they lie far from
    each other.
    """

    reads_updates: ClassVar[bool] = False

    alpha: float  # weight of the distance between anchors
    tau: float  # temperature of their similarities
    epochs: int  # training steps per round
    lr: float  # learning rate of the server

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        layout = round.setting.layout
        assert layout is not None  # aggregate fills it
        weight, bias = linear_head(layout.split(round.columns.whole(theta)), "fedlsa")
        labels = torch.arange(len(weight), device=weight.device)

        def loss(net: AnchorNet, step: int) -> Tensor:
            anchors = unit(net())
            known = F.cross_entropy(F.linear(anchors, weight, bias), labels)
            return known + self.alpha * separation(anchors, self.tau).mean()

        seed = (round.setting.seed, "fedlsa")
        classes, width = weight.shape
        raw, kept = train_anchors(classes, width, state, seed, theta, loss, self.epochs, self.lr)
        return Sent({"anchors": unit(raw)}, dict(kept))


@register(
    title="Features on a sphere, drawn to anchors that the server trains",
    reference="Fu et al., Beyond federated prototype learning: learnable semantic anchors with hyperspherical contrast for "
    "domain-skewed data, AAAI 2025",
    per_dataset={"digits": {"lam": 0.1}, "office-caltech": {"lam": 0.7}, "pacs": {"lam": 0.1}},
)
def fedlsa(
    lam: float = 0.1,
    alpha: float = 0.02,
    tau: float = 0.1,
    width: int = 128,
    server_epochs: int = 500,
    server_lr: float = 0.1,
) -> Method:
    """Features are projected on a unit sphere and drawn to anchors, one per class, that the server trains.

    `lam` weighs the pull to the anchors, and `alpha` their distance from each other in the server's training. `tau` is
    the temperature of similarities, and `width` the number of features on the sphere. The server trains the anchors for
    `server_epochs` steps per round with the rate `server_lr`.
    """
    require(lam >= 0, "lam", "at least 0", lam)
    require(alpha >= 0, "alpha", "at least 0", alpha)
    require(tau > 0, "tau", "above 0", tau)
    require(width >= 2, "width", "at least 2", width)
    require(server_epochs >= 1, "server_epochs", "at least 1", server_epochs)
    require(server_lr > 0, "server_lr", "above 0", server_lr)
    return Method(
        wrap=(Projection(width, sphere=True),),
        terms=(ToAnchor(lam, tau),),
        share=(TrainedAnchors(alpha, tau, server_epochs, server_lr),),
    )
