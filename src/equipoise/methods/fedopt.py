"""FedAdam, FedYogi and FedAdagrad: adaptive optimizers at the server. Reddi et al., ICLR 2021.

None of them corrects the bias of the first rounds. FLamby, a public benchmark, starts `v` at 0 instead of `tau^2` and
keeps more of it; its numbers for heart disease are the settings of the data set `heart`.
"""

from __future__ import annotations

from typing import Literal

from equipoise.grammar import Value
from equipoise.method import Method, Rate, register, require
from equipoise.parts.optimizers import AdaptiveStep

REFERENCE = "Reddi et al., Adaptive federated optimization, ICLR 2021"
FLAMBY: dict[str, Value] = {"beta1": 0.9, "tau": 1e-8, "start": 0.0}  # for heart disease, at each of the three
# The rates on `scanners` are the best of three for the worst domain's accuracy on validation data, seeds 0 and 1.


def _adapt(
    rule: Literal["adam", "yogi", "adagrad"],
    lr: float,
    beta1: float,
    beta2: float,
    tau: float,
    start: float | None,
    schedule: str,
) -> Method:
    require(lr > 0, "lr", "above 0", lr)
    require(0 <= beta1 < 1, "beta1", "at least 0 and below 1", beta1)
    require(0 <= beta2 < 1, "beta2", "at least 0 and below 1", beta2)
    require(tau > 0, "tau", "above 0", tau)
    require(start is None or start >= 0, "start", "at least 0, or None", start)
    first = tau**2 if start is None else start
    return Method(step=(AdaptiveStep(Rate(lr, schedule), rule, beta1, beta2, tau, first),))


@register(
    title="Adam at the server",
    reference=REFERENCE,
    per_dataset={"heart": {**FLAMBY, "lr": 0.01, "beta2": 0.999}, "scanners": {"lr": 0.03}},
)
def fedadam(
    lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    start: float | None = None,
    schedule: str = "constant",
) -> Method:
    """The model moves by `lr m / (sqrt(v) + tau)`, with fading means `m` of the directions and `v` of their squares.

    `beta1` and `beta2` say how much of the means is kept from round to round. `start` is `v` before the first round;
    by default `tau^2`. `schedule` changes `lr` over rounds. FLamby's form is `beta2=0.999, start=0.0`.
    """
    return _adapt("adam", lr, beta1, beta2, tau, start, schedule)


@register(
    title="Yogi at the server: Adam whose squares grow slowly",
    reference=REFERENCE,
    per_dataset={"heart": {**FLAMBY, "lr": 0.01, "beta2": 0.999}, "scanners": {"lr": 0.1}},
)
def fedyogi(
    lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    start: float | None = None,
    schedule: str = "constant",
) -> Method:
    """FedAdam with `v <- v - (1 - beta2) D^2 sign(v - D^2)`, for the direction `D`.

    So `v` grows no faster than Adam's, and forgets large directions slowly. The parameters are FedAdam's.
    """
    return _adapt("yogi", lr, beta1, beta2, tau, start, schedule)


@register(
    title="Adagrad at the server: steps that shrink where much has moved",
    reference=REFERENCE,
    per_dataset={"heart": {**FLAMBY, "lr": 0.316228}, "scanners": {"lr": 0.1}},
)
def fedadagrad(
    lr: float = 0.01,
    beta1: float = 0.0,
    tau: float = 1e-3,
    start: float | None = None,
    schedule: str = "constant",
) -> Method:
    """FedAdam with `v <- v + D^2`, for the direction `D`: nothing is forgotten, and steps become shorter.

    The parameters are FedAdam's. The paper has no mean of directions (`beta1=0`), FLamby has `beta1=0.9`.
    """
    return _adapt("adagrad", lr, beta1, 0.0, tau, start, schedule)
