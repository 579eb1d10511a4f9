"""One federated round as pure functions: who takes part, the clients' half, the server's half; and the model's scores."""

from equipoise.rounds.client import client_round
from equipoise.rounds.evaluation import Score, evaluate
from equipoise.rounds.selection import find_candidates, select_clients
from equipoise.rounds.server import Aggregated, aggregate, begin_server, make_broadcast, server_probe, server_round

__all__ = [
    "Aggregated",
    "Score",
    "aggregate",
    "begin_server",
    "client_round",
    "evaluate",
    "find_candidates",
    "make_broadcast",
    "select_clients",
    "server_probe",
    "server_round",
]
