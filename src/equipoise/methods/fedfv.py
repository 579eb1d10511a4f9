"""FedFV, fair averaging: conflicting updates are projected onto each other's normal planes. Wang et al., IJCAI 2021."""

from __future__ import annotations

from equipoise.method import Method, Range, register, require
from equipoise.parts.conflicts import ExternalConflicts, InternalConflicts
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.steps import LengthOfMean
from equipoise.parts.weights import Uniform


@register(
    title="Conflicting updates are projected onto each other's normal planes",
    reference="Wang et al., Federated learning with fair averaging, IJCAI 2021",
    ranges={"alpha": Range(0.0, 0.5)},
    side="server",
)
def fedfv(alpha: float = 0.1, tau: int = 1) -> Method:
    """From each update, its components along conflicting updates (with a negative inner product) are removed.

    `alpha` is the share of clients, those with the largest losses, that keep their update. The last updates of clients
    absent for up to `tau` rounds are taken into account, too; 0 ignores absent clients. Without conflicts it is FedAvg
    with equal weights.
    """
    require(0 <= alpha <= 1, "alpha", "between 0 and 1", alpha)
    require(tau >= 0, "tau", "at least 0", tau)
    return Method(
        reports=(GlobalLoss(),),
        shape=(InternalConflicts(alpha),),
        weigh=Uniform(),
        step=(*((ExternalConflicts(tau),) if tau else ()), LengthOfMean()),
    )
