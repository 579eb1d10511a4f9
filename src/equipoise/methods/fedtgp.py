"""FedTGP, trainable global prototypes: the server trains the prototypes, with a margin between classes.

Zhang et al., AAAI 2024. In the paper models stay with their clients. Here they are averaged, and one global model is
scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from equipoise import seeds
from equipoise.method import Method, Round, Sent, State, register, require
from equipoise.parts.anchors import AnchorNet, distances, margin_losses, nearest_others, train_anchors
from equipoise.parts.prototypes import ClassMeans, PrototypeShare, ToPrototype, last_prototypes, mean_prototypes

Margin = Literal["pairs", "nearest"]  # from the distances of all pairs of classes, or of nearest neighbours


def adaptive_margin(centres: Tensor, known: Tensor, kind: Margin, cap: float) -> Tensor:
    """The margin between classes, a scalar of at most `cap`, from their centres `[C, F]`.

    It is the largest distance between two known classes (`kind="pairs"`), or the largest distance of a known class to
    its nearest neighbour (`"nearest"`). `known [C]` is 1 for known classes.

    >>> centres = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    >>> adaptive_margin(centres, torch.ones(3), "nearest", 100.0)
    tensor(5.)
    """
    if kind == "nearest":
        found = nearest_others(centres, known)
        found = torch.where(found.isfinite(), found, 0.0)
    else:
        found = distances(centres, centres) * known[:, None] * known[None]
    return found.max().clamp(max=cap)


@dataclass(frozen=True)
class TrainedPrototypes(PrototypeShare, by_columns=()):
    """Sends prototypes made by a net on the server.

    The net is trained so that each client's prototype is nearest to that of its class, by a margin.
    """

    epochs: int  # passes over the clients' prototypes per round
    batch: int  # clients' prototypes per step
    lr: float | None  # learning rate of the server; None: the local one
    margin: Margin  # how the margin is found
    cap: float  # largest margin

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        prototypes, counts, memory = last_prototypes(round, state)
        known = (counts.sum(0) > 0).to(prototypes.dtype)
        margin = adaptive_margin(mean_prototypes(prototypes, counts), known, self.margin, self.cap)
        owners, labels = (counts > 0).nonzero(as_tuple=True)
        points = prototypes[owners, labels]
        per_epoch = ceil(len(points) / self.batch)
        seed = (round.setting.seed, "fedtgp")

        def loss(net: AnchorNet, step: int) -> Tensor:
            epoch, part = divmod(step, per_epoch)
            order = seeds.permutation(len(points), *seed, round.round, epoch)
            some = order[part * self.batch : (part + 1) * self.batch]
            return margin_losses(points[some], net(), labels[some], margin).mean()

        rate = self.lr if self.lr is not None else round.known("lr", "fedtgp (server_lr)")
        classes, width = prototypes.shape[1:]
        trained, kept = train_anchors(classes, width, state, seed, points, loss, self.epochs * per_epoch, rate)
        return Sent({"prototypes": trained, "prototype_known": known}, {**memory, **kept})


@register(
    title="Prototypes that the server trains, with a margin between classes",
    reference="Zhang et al., FedTGP: trainable global prototypes with adaptive-margin-enhanced contrastive learning, AAAI 2024",
)
def fedtgp(
    lam: float = 1.0,
    margin: Literal["pairs", "nearest"] = "pairs",
    cap: float = 100.0,
    server_epochs: int = 100,
    server_batch: int = 32,
    server_lr: float | None = None,
) -> Method:
    """Features are pulled towards prototypes, one per class, that the server trains with a margin between classes.

    `lam` weighs the pull. `margin="pairs"` is the paper's formula, `"nearest"` that of the authors' code; `cap` is the
    largest margin. The server trains for `server_epochs` epochs per round with batches of `server_batch` prototypes and
    the rate `server_lr`, by default the local one.
    """
    require(lam >= 0, "lam", "at least 0", lam)
    require(cap >= 0, "cap", "at least 0", cap)
    require(server_epochs >= 1, "server_epochs", "at least 1", server_epochs)
    require(server_batch >= 1, "server_batch", "at least 1", server_batch)
    require(server_lr is None or server_lr > 0, "server_lr", "above 0", server_lr)
    share = TrainedPrototypes(server_epochs, server_batch, server_lr, margin, cap)
    return Method(terms=(ToPrototype(lam),), reports=(ClassMeans(),), share=(share,))
