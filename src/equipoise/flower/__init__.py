"""The same methods on Flower: `client_app` runs at a site, `server_app` where the model is put together.

Both are thin: a site calls `client_round`, the server `server_round`, and between them tensors travel by name in Flower's
records. What a simulation and a federation of real sites compute is the same.
"""

from __future__ import annotations

from equipoise.errors import EquipoiseError

try:
    import flwr  # noqa: F401
except ImportError:
    raise EquipoiseError("Flower is not installed. Say: pip install '.[flower]' in a checkout of Equipoise.") from None

from equipoise.flower.plan import Plan
from equipoise.flower.server import federate, server_app
from equipoise.flower.site import client_app

__all__ = ["Plan", "client_app", "federate", "server_app"]
