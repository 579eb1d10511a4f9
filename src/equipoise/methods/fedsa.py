"""FedSA, semantic anchors: features are drawn to slowly moving anchors with a margin, and the classifier is trained on
them.

Zhou et al., AAAI 2025. In the paper models stay with their clients. Here they are averaged, and one global model is
scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise import seeds
from equipoise.method import (
    Beginning,
    Local,
    Method,
    Round,
    Sent,
    Share,
    State,
    Tensors,
    Term,
    Trained,
    register,
    require,
)
from equipoise.parts.anchors import linear_head, margin_losses, mean_gap
from equipoise.parts.prototypes import LAST_PROTOTYPES, ClassMeans, class_means, last_prototypes, mean_prototypes


def first_anchors(classes: int, width: int, seed: int) -> Tensor:
    """The first anchors `[C, width]`: random vectors passed through a random net of two layers.

    The layers have batch normalisation and ReLU. The net is never trained.
    """

    def drawn() -> Tensor:
        net = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
        )  # fmt: skip
        return net.train()(torch.randn(classes, width)).detach()

    return seeds.build_from_seed(drawn, seed, "fedsa")


@dataclass(frozen=True)
class SemanticAnchors(
    Share, needs=("prototypes", "prototype_counts"), gives=("shared anchors",), remembers=LAST_PROTOTYPES, by_columns=()
):
    """Sends `anchors [C, F]`, a moving average of the mean prototypes: `anchor <- ema anchor + (1 - ema) prototype`."""

    reads_updates: ClassVar[bool] = False

    ema: float  # weight of the old anchor; near one, so that anchors move slowly

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        prototypes, counts, memory = last_prototypes(round, state)
        if "anchors" in state:
            anchors = state.tensor("anchors")
        else:
            anchors = first_anchors(prototypes.shape[1], prototypes.shape[2], round.setting.seed).to(prototypes)
        means, known = mean_prototypes(prototypes, counts), (counts.sum(0) > 0)[:, None]
        anchors = torch.where(known, self.ema * anchors + (1 - self.ema) * means, anchors)
        return Sent({"anchors": anchors}, {**memory, "anchors": anchors})


@dataclass(frozen=True)
class AnchorLosses(Term, needs=("shared anchors", "class outputs")):
    """Adds three losses: distance to the anchor of the class, a contrast of the anchors with a margin, and calibration.

    Calibration is the classifier's cross-entropy on the anchors. The margin is the larger of two mean distances between
    nearest classes: that of the anchors, and that of the client's own last prototypes.
    """

    lam: float  # weight of the squared distance to the anchor
    mcl: float  # weight of the contrast with a margin
    cc: float  # weight of the calibration

    def start(self, beginning: Beginning) -> list[Tensors]:
        """A gap of zero: the client has no prototypes yet."""
        some = next(iter(beginning.received.params.values()))
        return [{"gap": some.new_zeros(())} for _ in beginning.clients]

    def loss(self, local: Local) -> Tensor | None:
        """The weighted losses `[batch]`; None in the first round, when there are no anchors."""
        anchors = local.received.shared.get("anchors")
        if anchors is None:
            return None
        shared = {name: local.params[name] for name in local.received.layout.names}
        weight, bias = linear_head(shared, "fedsa")
        everyone = torch.ones_like(anchors[:, 0])
        margin = torch.maximum(mean_gap(anchors, everyone), local.states[self.key]["gap"])
        calibration = F.cross_entropy(
            F.linear(anchors, weight, bias), torch.arange(len(anchors), device=anchors.device)
        )
        features = local.out.features
        return (
            self.lam * (features - anchors[local.y]).square().mean(1)
            + self.mcl * margin_losses(features, anchors, local.y, margin)
            + self.cc * calibration
        )

    def finish(self, trained: Trained) -> Tensors:
        """The mean distance between nearest prototypes of the client after training."""
        means, counts = class_means(trained)
        return {"gap": mean_gap(means, (counts > 0).to(means.dtype))}


@register(
    title="Semantic anchors that move slowly, and a classifier calibrated on them",
    reference="Zhou et al., FedSA: a unified representation learning via semantic anchors for prototype-based federated "
    "learning, AAAI 2025",
)
def fedsa(lam: float = 1.0, mcl: float = 1.0, cc: float = 1.0, ema: float = 0.9999) -> Method:
    """Features are drawn to anchors, one per class, and the classifier is trained on the anchors, too.

    `lam` weighs the distance to the anchor of the class, `mcl` the contrast of the anchors with a margin, and `cc` the
    classifier's loss on the anchors. `ema` is the weight of the old anchors in their moving average.
    """
    for name, value in (("lam", lam), ("mcl", mcl), ("cc", cc)):
        require(value >= 0, name, "at least 0", value)
    require(0 <= ema <= 1, "ema", "between 0 and 1", ema)
    return Method(terms=(AnchorLosses(lam, mcl, cc),), reports=(ClassMeans(),), share=(SemanticAnchors(ema),))
