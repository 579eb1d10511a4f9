"""FedAvg, the average of the clients' models, and FedSGD, one gradient step per round. McMahan et al., AISTATS 2017."""

from __future__ import annotations

from typing import Literal

from equipoise.method import Method, Value, register
from equipoise.parts.weights import BySamples, Uniform

REFERENCE = "McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017"
# Settings of local training: one full-batch gradient step.
ONE_STEP: tuple[tuple[str, Value], ...] = (("steps", 1), ("batch", None), ("momentum", 0.0), ("optimizer", "SGD"))


@register(
    title="Average of the clients' models",
    reference=REFERENCE,
    ranges={"weights": ("samples", "uniform")},
    side="server",
)
def fedavg(weights: Literal["samples", "uniform"] = "samples") -> Method:
    """`theta <- theta + sum_k p_k D_k`, with the clients' updates `D_k`.

    The weights `p_k` are the clients' shares of samples, or equal (`weights="uniform"`).
    """
    return Method(weigh=BySamples() if weights == "samples" else Uniform())


@register(title="One full-batch gradient step per client and round", reference=REFERENCE)
def fedsgd(weights: Literal["samples", "uniform"] = "samples") -> Method:
    """FedAvg with one full-batch step and no momentum: `theta <- theta - eta sum_k p_k grad F_k(theta)`.

    The weights `p_k` are the clients' shares of samples, or equal (`weights="uniform"`).
    """
    return Method(weigh=BySamples() if weights == "samples" else Uniform(), training=ONE_STEP)
