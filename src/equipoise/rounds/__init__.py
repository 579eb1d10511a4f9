"""One federated round as two pure functions, the clients' half and the server's half, and the scores of the model."""

from equipoise.rounds.client import client_round
from equipoise.rounds.evaluation import Score, evaluate
from equipoise.rounds.server import Aggregated, aggregate, begin_server, make_broadcast, server_probe, server_round

__all__ = [
    "Aggregated",
    "Score",
    "aggregate",
    "begin_server",
    "client_round",
    "evaluate",
    "make_broadcast",
    "server_probe",
    "server_round",
]
