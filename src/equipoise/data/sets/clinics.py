"""Seven clinics that scan upright and one that scans sideways: plain averaging is unfair here at convergence.

The network is so narrow that it cannot serve both kinds of scans equally well, and the sideways ones are an eighth of the
data. The clinic with the sideways scanner would be served well by a network of the same size of its own. So what
methods reach here at the end differs by whom the shared model serves, not by how fast they learn.
"""

from __future__ import annotations

from equipoise.data.federation import Federation, Protocol
from equipoise.data.sets.scanners import deal_scans
from equipoise.training import Training

SIZES = {"upright": (90,) * 7, "sideways": (90,)}  # scanner -> training samples of each of its clients
VALIDATION = 0.9  # validation samples of a client per training sample, on top of these
PROTOCOL = Protocol(
    rounds=200, training=Training(epochs=4, batch=90, lr=0.3, weight_decay=0.02), model="mlp(hidden=(32,))"
)


def clinics(seed: int = 0) -> Federation:
    """Eight clinics, of which one scans its handwritten digits sideways; the model is too narrow to serve both well."""
    return deal_scans("clinics", SIZES, VALIDATION, PROTOCOL, seed)
