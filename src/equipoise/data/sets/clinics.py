"""Seven clinics that scan upright and one that scans sideways: plain averaging is unfair here at convergence.

Weight decay limits what the network can hold, and the sideways scans are an eighth of the data: under plain averaging
they do not pay for the weights that they need. A network of the same size, trained with the same decay by the clinic with
the sideways scanner alone, serves it well. So what methods reach here at the end differs by whom the shared model serves,
not by how fast they learn; and because the decay leaves the first model little to say, seeds differ little.
"""

from __future__ import annotations

from equipoise.data.federation import Federation, Protocol
from equipoise.data.sets.scanners import deal_scans
from equipoise.training import Training

SIZES = {"upright": (90,) * 7, "sideways": (90,)}  # scanner -> training samples of each of its clients
VALIDATION = 0.9  # validation samples of a client per training sample, on top of these
PROTOCOL = Protocol(
    rounds=400, training=Training(epochs=4, batch=90, lr=0.3, weight_decay=0.02), model="mlp(hidden=(32,))"
)


def clinics(seed: int = 0) -> Federation:
    """Eight clinics, of which one scans its handwritten digits sideways; weight decay makes the two compete."""
    return deal_scans("clinics", SIZES, VALIDATION, PROTOCOL, seed)
