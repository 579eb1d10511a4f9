"""Measures how large a report is and how long it takes to build: `python benchmarks/report.py`.

The records are those of real runs on tiny data, so that weights, figures and losses have their true shapes: by default
10 methods x 3 seeds x 200 rounds with 20 clients. Reading the run folders is part of the time, training is not.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from equipoise import EquipoiseWarning, Federation, Protocol, Training, run, save
from equipoise.runs.reading import read_all
from equipoise.study.report.page import write

METHODS = (
    "fedavg", "local_only", "fedheal", "fedfe", "eagle", "fedequilibria", "qffl(q=1)", "term", "propfair", "afl",
)  # fmt: skip


def make_federation(clients: int) -> Federation:
    """Two classes in four numbers, turned a little further at each client; four domains."""
    draw = torch.Generator().manual_seed(0)
    train, validation, test, domains = {}, {}, {}, {}
    for k in range(clients):
        name = f"client {k + 1}"
        for store, count in ((train, 8 + k % 5), (validation, 8), (test, 30)):
            y = torch.arange(count) % 2
            x = torch.randn(count, 4, generator=draw)
            x[:, k % 4] += 2.0 * y
            store[name] = (x, y)
        domains[name] = f"domain {k % 4 + 1}"
    protocol = Protocol(rounds=1, training=Training(steps=1, batch=None, lr=0.1), model="linear")
    return Federation.from_tensors(
        train, test=test, validation=validation, domains=domains, classes=2, name="toy", protocol=protocol
    )


def main() -> None:
    """Train, then build the page and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", type=int, default=len(METHODS), help="how many of the ten")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EquipoiseWarning)
    data = make_federation(options.clients)
    with TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        for method in METHODS[: options.methods]:
            for seed in range(options.seeds):
                save(run(method, data, rounds=options.rounds, seed=seed), runs)
        clock, worked = time.perf_counter(), time.process_time()
        found, wrong = read_all([runs])
        page = write(found, Path(folder) / "report.html", wrong)[0]
        seconds, worked = time.perf_counter() - clock, time.process_time() - worked
        print(
            f"{options.clients} clients x {options.methods} methods x {options.rounds} rounds x {options.seeds} seeds: "
            f"{page.stat().st_size / 1e6:.2f} MB in {seconds:.1f} s ({worked:.1f} s of one core)"
        )


if __name__ == "__main__":
    main()
