"""Measures time per client, start-up and memory for up to 10,000 clients: `python benchmarks/scaling.py`.

The work is W3 of `peers/work.py`: logistic regression, 20 samples per client. Every case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from ours import build_federation
from work import WORK

from equipoise import run
from equipoise.engine import RoundRecord

CASES = [(clients, "fedavg") for clients in (10, 100, 1000, 10_000)]
CASES += [(10_000, method) for method in ("fedheal", "fedfe", "scaffold", "moon(mu=0.1)", "ditto")]
COLUMNS = {"us per client": 0, "start-up s": 2, "MiB per round": 3, "peak MiB": 0}  # and their decimal places


def read_resident_memory() -> float:
    """Memory that this process holds now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_run(clients: int, rounds: int, method: str) -> dict[str, float]:
    """Rounds of at most 100 clients: time per client and round, start-up, and growth of memory in the later half."""
    cohort = min(100, clients)
    data = build_federation("W3", replace(WORK["W3"], clients=clients, cohort=cohort), rounds)
    held: list[float] = []
    start = time.perf_counter()
    first: list[float] = []

    def watch(record: RoundRecord) -> None:
        if not first:
            first.append(time.perf_counter() - start - record.seconds)
        held.append(read_resident_memory())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(method, data, eval_every=10**9, on_round=watch)
    seconds = statistics.median(record.seconds for record in result.rounds[1:])
    half = len(held) // 2
    return {
        "us per client": 1e6 * seconds / cohort,
        "start-up s": first[0],
        "MiB per round": (held[-1] - held[half]) / max(1, len(held) - 1 - half),
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("CLIENTS", "ROUNDS", "METHOD"), help="measure here, and print JSON")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    if options.one:
        clients, rounds, method = options.one
        print(json.dumps(measure_run(int(clients), int(rounds), method)))
        return
    print(f"{'clients':>8s} {'rounds':>7s} {'method':14s} " + " ".join(f"{column:>13s}" for column in COLUMNS))
    for clients, method in CASES:
        words = [sys.executable, __file__, "--one", str(clients), str(options.rounds), method]
        found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        figures = " ".join(f"{found[column]:13.{places}f}" for column, places in COLUMNS.items())
        print(f"{clients:8d} {options.rounds:7d} {method:14s} {figures}", flush=True)


if __name__ == "__main__":
    main()
