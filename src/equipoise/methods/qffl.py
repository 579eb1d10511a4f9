"""q-FFL: the larger a client's loss, the more it counts. Li, Sanjabi, Beirami, Smith, ICLR 2020."""

from __future__ import annotations

from typing import Literal

from equipoise.method import Method, register, require
from equipoise.methods.fedavg import ONE_STEP
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.weights import PowerOfLoss


@register(
    title="The larger a client's loss, the more it counts",
    reference="Li, Sanjabi, Beirami, Smith, Fair resource allocation in federated learning, ICLR 2020",
    # Several local epochs with momentum make ||L D||^2 large and the step short: embedded data wants a small q.
    per_dataset={"scanners": {"q": 0.01}},
)
def qffl(q: float = 1.0, solver: Literal["fedavg", "fedsgd"] = "fedavg", lr: float | None = None) -> Method:
    """`q=0` is FedAvg (or FedSGD) with equal weights. `solver="fedsgd"` takes one full-batch gradient step a round. `lr` is
    the rate behind `L = 1/lr`, by default the run's local one."""
    require(q >= 0, "q", "at least 0", q)
    require(lr is None or lr > 0, "lr", "above 0", lr)
    plain = (*ONE_STEP, ("weight_decay", 0.0)) if solver == "fedsgd" else ()
    return Method(reports=(GlobalLoss(),), weigh=PowerOfLoss(q, lr), training=plain)
