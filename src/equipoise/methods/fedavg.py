"""FedAvg and FedSGD (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from typing import Literal

from equipoise.method import Method, Value, register
from equipoise.parts.weights import BySamples, Uniform

REFERENCE = "McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017"
# One full-batch gradient step, as a demand on the local optimizer.
ONE_STEP: tuple[tuple[str, Value], ...] = (("steps", 1), ("batch", None), ("momentum", 0.0), ("optimizer", "SGD"))


@register(title="Average of the clients' models", reference=REFERENCE)
def fedavg(weights: Literal["samples", "uniform"] = "samples") -> Method:
    """`theta <- theta + sum_k p_k D_k`, `p_k` the share of samples, or equal."""
    return Method(weigh=BySamples() if weights == "samples" else Uniform())


@register(title="One full-batch gradient step a client and round", reference=REFERENCE)
def fedsgd(weights: Literal["samples", "uniform"] = "samples") -> Method:
    """FedAvg with one full-batch step and no momentum: `theta <- theta - eta sum_k p_k grad F_k(theta)`."""
    return Method(weigh=BySamples() if weights == "samples" else Uniform(), training=ONE_STEP)
