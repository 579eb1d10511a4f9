"""q-FFL, fair resource allocation: the larger a client's loss, the more it counts. Li et al., ICLR 2020."""

from __future__ import annotations

from typing import Literal

from equipoise.method import Method, Range, register, require
from equipoise.methods.fedavg import ONE_STEP
from equipoise.parts.reports import GlobalLoss, TrainedLoss
from equipoise.parts.weights import PowerOfLoss


@register(
    title="The larger a client's loss, the more it counts",
    reference="Li, Sanjabi, Beirami, Smith, Fair resource allocation in federated learning, ICLR 2020",
    # With several local epochs and momentum ||L D||^2 is large, which makes the step short: q must be small.
    per_dataset={"scanners": {"q": 0.01}},
    ranges={"q": Range(0.005, 5.0, log=True)},
    side="server",
)
def qffl(
    q: float = 1.0,
    solver: Literal["fedavg", "fedsgd"] = "fedavg",
    lr: float | None = None,
    variant: Literal["paper", "released"] = "paper",
) -> Method:
    """The weights `L F_k^q / sum_j (q F_j^(q-1) ||L D_j||^2 + L F_j^q)`, with losses `F_k`, updates `D_k` and
    `L = 1/lr`.

    `q=0` is FedAvg (or FedSGD) with equal weights. `solver="fedsgd"` does one full-batch gradient step per round. `lr`
    is by default the local learning rate. `variant="released"` takes the losses of the *trained* models, as the code of
    FedFV's authors does, whose numbers for q-FFL others repeat.
    """
    require(q >= 0, "q", "at least 0", q)
    require(lr is None or lr > 0, "lr", "above 0", lr)
    plain = (*ONE_STEP, ("weight_decay", 0.0)) if solver == "fedsgd" else ()
    if variant == "released":
        return Method(reports=(TrainedLoss(),), weigh=PowerOfLoss(q, lr, loss="loss_trained"), training=plain)
    return Method(reports=(GlobalLoss(),), weigh=PowerOfLoss(q, lr), training=plain)
