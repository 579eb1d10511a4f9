"""The same methods in a federation of real sites, run by Flower: `client_app` at each site, `server_app` at the server.

The server runs the same loop over rounds as a simulation (`engine/loop.py`). In place of a simulated desk it has one
that sends messages to the sites and gets their replies (`desk.py`). A site replies with what `client_round` computes on
its data (`site.py`). Tensors travel by name in Flower's records (`wire.py`). What a simulation and a federation of real
sites compute is the same.
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
