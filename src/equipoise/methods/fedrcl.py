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
    """One vector per sample for each layer, `[batch, channels]`: the mean of its feature map. A model without layers
    has its features."""
    return [map.flatten(2).mean(2) if map.dim() > 2 else map for map in out.layers] or [out.features]


def relaxed_contrast(
    features: Tensor, y: Tensor, keep: Tensor | None, tau: float, threshold: float, negatives: int
) -> tuple[Tensor, Tensor]:
    """The two losses `[batch]` of one layer, from the cosines between the samples of a batch.

    The first one draws a sample to the *least* similar sample of its class, and away from the `negatives` most similar
    samples of other classes. The second one acts if even the least similar other sample of the class has a similarity
    of at least `threshold`, and drives the two apart. `keep [batch]` is 0 for padding.
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
class RelaxedContrast(Term, needs=("classes",)):
    """Adds the two losses of relaxed contrast, averaged over the layers of the model."""

    tau: float  # temperature
    threshold: float  # similarity from which samples of a class are driven apart
    negatives: int  # number of samples of other classes in the contrast
    contrast: float  # weight of the contrast
    penalty: float  # weight of the loss that drives samples of a class apart

    def loss(self, local: Local) -> Tensor | None:
        """The weighted losses `[batch]`; None if both weights are zero."""
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
    """A supervised contrast on every layer, with a penalty that keeps features of a class from collapsing.

    `tau` is the temperature. The contrast compares with the `negatives` most similar samples of other classes; the
    penalty acts on samples of a class with a similarity of at least `threshold`. `contrast` and `penalty` are the
    weights of the two. `clip` bounds the norm of the gradient. With both weights 0 and no `clip` it is FedAvg with
    equal weights.
    """
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
