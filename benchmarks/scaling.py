"""Cost against the number of clients, start-up, and memory over many rounds, on W3's task (logistic regression, 20 samples a
client). `python benchmarks/scaling.py` prints the tables; every size runs in a process of its own.
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

from ours import federation_of
from work import WORK

from equipoise import run


def resident() -> float:
    """Memory that this process holds now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def one(clients: int, rounds: int, method: str) -> dict[str, float]:
    """Rounds of at most 100 clients: seconds a client and round, start-up, and growth of memory in the later half."""
    cohort = min(100, clients)
    data = federation_of("W3", replace(WORK["W3"], clients=clients, cohort=cohort), rounds)
    held: list[float] = []
    start = time.perf_counter()
    first: list[float] = []

    def watch(record) -> None:
        if not first:
            first.append(time.perf_counter() - start - record.seconds)
        held.append(resident())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(method, data, eval_every=10**9, on_round=watch)
    seconds = statistics.median(record.seconds for record in result.rounds[1:])
    half = len(held) // 2
    return {
        "us a client": 1e6 * seconds / cohort,
        "start-up s": first[0],
        "MiB a round": (held[-1] - held[half]) / max(1, len(held) - 1 - half),
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("CLIENTS", "ROUNDS", "METHOD"), help="measure here, and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(int(options.one[0]), int(options.one[1]), options.one[2])))
        return
    cases = [(10, 200, "fedavg"), (100, 200, "fedavg"), (1000, 200, "fedavg"), (10_000, 200, "fedavg")]
    cases += [(10_000, 200, method) for method in ("fedheal", "fedfe", "scaffold", "moon(mu=0.1)", "ditto")]
    columns = ("us a client", "start-up s", "MiB a round", "peak MiB")
    print(f"{'clients':>8s} {'rounds':>7s} {'method':14s} " + " ".join(f"{column:>12s}" for column in columns))
    for clients, rounds, method in cases:
        words = [sys.executable, __file__, "--one", str(clients), str(rounds), method]
        found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        figures = " ".join(
            f"{found[column]:12.{places}f}" for column, places in zip(columns, (0, 2, 3, 0), strict=True)
        )
        print(f"{clients:8d} {rounds:7d} {method:14s} {figures}", flush=True)


if __name__ == "__main__":
    main()
