"""FedRCL: relaxed contrastive learning on every layer. Seo et al., CVPR 2024."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.method import Local, Method, Outputs, Term, register, require
from equipoise.parts.terms import unit
from equipoise.parts.weights import Uniform


def layers_of(out: Outputs) -> list[Tensor]:
    """A vector a sample for every layer: feature maps pooled; the features where a model shows no layers."""
    return [map.flatten(2).mean(2) if map.dim() > 2 else map for map in out.layers] or [out.features]


def relaxed_contrast(
    features: Tensor, y: Tensor, keep: Tensor | None, tau: float, threshold: float, negatives: int
) -> tuple[Tensor, Tensor]:
    """Two losses `[batch]` of one layer.

    The first draws a sample to the *least* similar one of its class, away from the most similar ones of other classes. The
    second drives samples of a class apart whose similarity is at or above the threshold, starting with the least similar.
    """
    z = unit(features)
    likeness = z @ z.mT
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    real = torch.ones_like(itself) if keep is None else (keep > 0)[None].expand(len(y), len(y))
    same = (y[:, None] == y[None]) & real
    positive = torch.where(same | itself, likeness, torch.inf).amin(1)
    others = torch.where((y[:, None] != y[None]) & real, likeness, -torch.inf)
    hardest = others.topk(min(negatives, len(y)), dim=1).values
    contrast = torch.logsumexp(torch.cat([positive[:, None], hardest], 1) / tau, 1) - positive / tau
    mate = torch.where(same & ~itself, likeness, torch.inf).amin(1)
    too_near = torch.where((mate >= threshold) & mate.isfinite(), mate, -1.0)
    return contrast, F.softplus((too_near - 1) / tau)


@dataclass(frozen=True)
class RelaxedContrast(Term):
    """Both losses, averaged over the layers."""

    tau: float
    threshold: float
    negatives: int
    contrast: float
    penalty: float

    def loss(self, local: Local) -> Tensor | None:
        if not (self.contrast or self.penalty):
            return None
        layers = layers_of(local.out)
        total = torch.zeros(())
        for features in layers:
            near, apart = relaxed_contrast(features, local.y, local.keep, self.tau, self.threshold, self.negatives)
            total = total + self.contrast * near + self.penalty * apart
        return total / len(layers)


@register(
    title="Relaxed contrastive learning on every layer",
    reference="Seo et al., Relaxed contrastive learning for federated learning, CVPR 2024",
)
def fedrcl(
    tau: float = 0.05,
    threshold: float = 0.7,
    negatives: int = 2,
    contrast: float = 1.0,
    penalty: float = 1.0,
    clip: float | None = 10.0,
) -> Method:
    """`contrast` and `penalty` weigh the two losses; with both at 0 and no `clip` it is FedAvg with equal weights."""
    require(tau > 0, "tau", "above 0", tau)
    require(-1 <= threshold <= 1, "threshold", "between -1 and 1", threshold)
    require(negatives >= 1, "negatives", "at least 1", negatives)
    require(contrast >= 0, "contrast", "at least 0", contrast)
    require(penalty >= 0, "penalty", "at least 0", penalty)
    require(clip is None or clip > 0, "clip", "above 0, or None", clip)
    return Method(
        terms=(RelaxedContrast(tau, threshold, negatives, contrast, penalty),),
        weigh=Uniform(),
        training=(("clip", clip),) if clip is not None else (),
    )
