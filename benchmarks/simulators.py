"""Measures seconds per round of the same federated work in several simulators, in one run on one machine.

`make bench` installs the other simulators (the peers) in an environment of their own and calls this script. Whole
rounds are timed: sampling, local training, aggregation, bookkeeping. The first round of each is left out, as it
includes the start-up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch

HERE = Path(__file__).parent / "peers"
sys.path.insert(0, str(HERE))

from work import WORK, count_operations  # noqa: E402

ROUNDS = {"W1": 6, "W2": 3, "W3": 12}
COLUMNS = {
    # name -> (script, environment, further arguments, threads)
    "Flower": ("flower_peer.py", "peers", (), None),
    "pfl-research": ("pfl_peer.py", "peers", (), None),
    "FLGo": ("flgo_peer.py", "peers", (), None),
    "loop, 1 thread": ("loops.py", "ours", ("1",), 1),
    "loop, 2 processes": ("loops.py", "ours", ("2",), 1),
    "Equipoise": ("ours.py", "ours", (), None),
}
PEERS = ("Flower", "pfl-research", "FLGo")


def measure_speed() -> tuple[float, float]:
    """Operations per second in matrix products, and bytes per second in memory reads, with all threads: the best of
    several."""
    a, b, long = torch.randn(2048, 2048), torch.randn(2048, 2048), torch.randn(50_000_000)

    def time_best(call: Callable[[], object]) -> float:
        call()
        times = []
        for _ in range(8):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return min(times)

    return 2 * 2048**3 / time_best(lambda: a @ b), 4 * len(long) / time_best(long.sum)


def time_round(script: str, python: str, name: str, more: tuple[str, ...], threads: int | None) -> float:
    """Seconds of the median round in one run of a script."""
    environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    words = [python, script, name, str(ROUNDS[name]), *more]
    done = subprocess.run(words, cwd=HERE, env=environment, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"{script} {name} failed:\n{done.stderr[-2000:]}")
    last = done.stdout.strip().splitlines()[-1]
    return json.loads(last[last.index('{"seconds"') :])["median"]


def main() -> None:
    """Time everybody on every work and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=".venv-peers/bin/python", help="the python of the peers' environment")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--work", nargs="*", default=list(WORK))
    parser.add_argument("--only", nargs="*", default=list(COLUMNS))
    options = parser.parse_args()
    rate, reads = measure_speed()
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    speed = f"{rate / 1e9:.0f} GFLOP/s in matrix products, {reads / 1e9:.0f} GB/s of memory reads"
    print(f"{date.today()}, {machine}: {speed}\n")
    pythons = {"peers": str(Path(options.peers).absolute()), "ours": sys.executable}
    for name in options.work:
        limit = count_operations(WORK[name]) / rate
        found: dict[str, list[float]] = {column: [] for column in options.only}
        for _ in range(options.repetitions):  # interleaved, so that a change of the machine's speed meets all of them
            for column in options.only:
                script, environment, more, threads = COLUMNS[column]
                # Of a peer with one process the better of one thread and all of them counts.
                choices = [1, None] if environment == "peers" and column != "Flower" else [threads]
                found[column].append(
                    min(time_round(script, pythons[environment], name, more, choice) for choice in choices)
                )
        medians = {column: statistics.median(values) for column, values in found.items()}
        fastest = min((medians[p] for p in PEERS if p in medians), default=float("nan"))
        print(f"{name}: {WORK[name]}")
        print(f"  {'':20s} {'median s':>9s} {'spread':>18s} {'x fastest peer':>15s} {'% of limit':>11s}")
        for column, values in found.items():
            spread = f"{min(values):.4f}..{max(values):.4f}"
            print(f"  {column:20s} {medians[column]:9.4f} {spread:>18s} {fastest / medians[column]:15.2f} "
                  f"{100 * limit / medians[column]:11.1f}")  # fmt: skip
        print(f"  {'arithmetic limit':20s} {limit:9.4f}\n")


if __name__ == "__main__":
    main()
