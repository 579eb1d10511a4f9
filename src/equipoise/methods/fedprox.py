"""FedProx: a penalty in the local loss pulls each client back to the received model. Li et al., MLSys 2020."""

from __future__ import annotations

from typing import Literal

from equipoise.method import Method, Range, register, require
from equipoise.parts.terms import Proximal

HIDDEN = 0.01  # a constant factor of the penalty in the public code of the domain-skew benchmarks


@register(
    title="A pull of every client back to the global model",
    reference="Li et al., Federated optimization in heterogeneous networks, MLSys 2020",
    ranges={"mu": Range(0.001, 1.0, log=True)},
    side="client",
)
def fedprox(mu: float = 0.01, variant: Literal["paper", "released"] = "paper") -> Method:
    """Adds `mu/2 ||x - theta||^2` to the local loss, where `theta` is the received model; `mu=0` is FedAvg.

    `variant="released"` multiplies `mu` by 0.01, as the public code of the domain-skew benchmarks does.
    """
    require(mu >= 0, "mu", "at least 0", mu)
    return Method(terms=(Proximal(mu * HIDDEN if variant == "released" else mu),))
