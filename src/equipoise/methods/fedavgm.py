"""FedAvgM: momentum at the server. Hsu, Qi and Brown, 2019."""

from __future__ import annotations

from equipoise.method import Method, Rate, register, require
from equipoise.parts.optimizers import ServerMomentum


@register(
    title="Momentum at the server",
    reference="Hsu, Qi, Brown, Measuring the effects of non-identical data distribution for federated visual "
    "classification, 2019",
)
def fedavgm(
    beta: float = 0.9, lr: float = 1.0, nesterov: bool = False, damped: bool = False, schedule: str = "constant"
) -> Method:
    """The directions of all rounds are summed with weights that fade: `b <- beta b + D`, and the model moves by `lr b`.

    `beta=0, lr=1` is FedAvg. `nesterov` moves by `lr (D + beta b)`. `damped` is the form `b <- beta b + (1 - beta) D`,
    whose steps are as long as FedAvg's. `schedule` changes `lr` over rounds.
    """
    require(0 <= beta < 1, "beta", "at least 0 and below 1", beta)
    require(lr > 0, "lr", "above 0", lr)
    return Method(step=(ServerMomentum(Rate(lr, schedule), beta, nesterov, damped),))
