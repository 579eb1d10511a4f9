"""FedProc: from a contrast with global class prototypes over to cross-entropy. Mu et al., FGCS 2023."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.method import Local, Method, Term, register, require
from equipoise.parts.prototypes import ClassMeans, MeanPrototypes
from equipoise.parts.terms import unit


def contrast(features: Tensor, prototypes: Tensor, known: Tensor, y: Tensor, tau: float) -> Tensor:
    """Cross-entropy `[batch]` of the cosines with the known prototypes. Not for samples of an unknown class."""
    logits = unit(features) @ unit(prototypes).mT / tau
    return F.cross_entropy(torch.where(known > 0, logits, -torch.inf), y, reduction="none")


@dataclass(frozen=True)
class PrototypeCurriculum(Term, needs=("shared prototypes",)):
    """`alpha_t contrast + (1 - alpha_t) base loss`, `alpha_t = 1 - t / (T - 1)`; the base loss alone for a sample whose
    class has no prototype."""

    tau: float

    def base(self, losses: Tensor, local: Local) -> Tensor:
        shared = local.received.shared
        if "prototypes" not in shared:
            return losses
        alpha = max(0.0, 1 - local.round / max(local.rounds - 1, 1))  # a look at the finished model is one round more
        prototypes, known = shared["prototypes"], shared["prototype_known"]
        # A sample of an unknown class is compared as if it were of a known one, so that no infinity enters the gradient.
        label = torch.where(known[local.y] > 0, local.y, known.argmax())
        mixed = alpha * contrast(local.out.features, prototypes, known, label, self.tau) + (1 - alpha) * losses
        return torch.where(known[local.y] > 0, mixed, losses)


@register(
    title="From a contrast with global class prototypes over to cross-entropy",
    reference="Mu et al., FedProc: prototypical contrastive federated learning on non-IID data, FGCS 2023",
    # Thirty rounds are few for a contrast of cosines at temperature 1 (chosen on validation data).
    per_dataset={"scanners": {"tau": 0.1}},
)
def fedproc(tau: float = 1.0) -> Method:
    """The weight of the contrast falls from one to nothing over the planned rounds, so the result depends on their number."""
    require(tau > 0, "tau", "above 0", tau)
    return Method(terms=(PrototypeCurriculum(tau),), reports=(ClassMeans(),), share=(MeanPrototypes(),))
