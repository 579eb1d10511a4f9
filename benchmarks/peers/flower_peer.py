"""Times Flower on the benchmark's work: its simulation engine with Ray, one actor per core."""

import logging
import os
import sys
import time
from pathlib import Path

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0", EQUIPOISE_WORK=sys.argv[1],
    PYTHONPATH=str(Path(__file__).parent),
)  # fmt: skip

from flower_client import app
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import build_network, print_result, read_arguments

logging.getLogger("flwr").setLevel(logging.ERROR)
name, work, rounds = read_arguments()
server = ServerApp()
seconds = []


class Timed(FedAvg):
    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        seconds.append(time.perf_counter() - self.last if hasattr(self, "last") else 0.0)
        self.last = time.perf_counter()
        return result


@server.main()
def main(grid, context):
    strategy = Timed(
        fraction_train=work.cohort / work.clients, fraction_evaluate=0.0, min_train_nodes=work.cohort,
        min_available_nodes=work.clients,
    )  # fmt: skip
    strategy.start(grid=grid, initial_arrays=ArrayRecord(build_network(work).state_dict()), num_rounds=rounds + 1)


run_simulation(
    server_app=server,
    client_app=app,
    num_supernodes=work.clients,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)
print_result(seconds)
