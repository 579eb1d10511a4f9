"""FedProc, prototypical contrast: the local loss moves from a contrast with class prototypes to cross-entropy.

Mu et al., FGCS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.method import Local, Method, Term, register, require
from equipoise.parts.prototypes import ClassMeans, MeanPrototypes
from equipoise.parts.terms import unit


def contrast(features: Tensor, prototypes: Tensor, known: Tensor, y: Tensor, tau: float) -> Tensor:
    """The cross-entropy `[batch]` of the cosines, divided by `tau`, between features and the known prototypes `[C, F]`.

    `known [C]` is 1 for classes that have a prototype. The class of every sample must be one of them.
    """
    logits = unit(features) @ unit(prototypes).mT / tau
    return F.cross_entropy(torch.where(known > 0, logits, -torch.inf), y, reduction="none")


@dataclass(frozen=True)
class PrototypeCurriculum(Term, needs=("shared prototypes",)):
    """Replaces the base loss by `alpha_t contrast + (1 - alpha_t) base loss`, `alpha_t = 1 - t / (T - 1)`.

    So the contrast counts fully in the first of the T rounds, and not at all in the last. A sample whose class has no
    prototype keeps its base loss.
    """

    tau: float  # temperature of the contrast

    def base(self, losses: Tensor, local: Local) -> Tensor:
        """The mixed losses `[batch]`; in the first round, without prototypes, the base losses."""
        shared = local.received.shared
        if "prototypes" not in shared:
            return losses
        alpha = max(0.0, 1 - local.round / max(local.rounds - 1, 1))  # an analysis of the finished run has round T
        prototypes, known = shared["prototypes"], shared["prototype_known"]
        # A sample without a prototype gets the label of a known class here, so that its unused loss is finite.
        label = torch.where(known[local.y] > 0, local.y, known.argmax())
        mixed = alpha * contrast(local.out.features, prototypes, known, label, self.tau) + (1 - alpha) * losses
        return torch.where(known[local.y] > 0, mixed, losses)


@register(
    title="A local loss that moves from a contrast with class prototypes to cross-entropy",
    reference="Mu et al., FedProc: prototypical contrastive federated learning on non-IID data, FGCS 2023",
    # Thirty rounds are too few for a contrast of cosines at temperature 1. Chosen on validation data.
    per_dataset={"scanners": {"tau": 0.1}},
)
def fedproc(tau: float = 1.0) -> Method:
    """The local loss moves from a contrast with global class prototypes to cross-entropy.

    `tau` is the temperature of the contrast. Its weight falls from one to zero over the planned rounds, so that the
    result depends on their number.
    """
    require(tau > 0, "tau", "above 0", tau)
    return Method(terms=(PrototypeCurriculum(tau),), reports=(ClassMeans(),), share=(MeanPrototypes(),))
