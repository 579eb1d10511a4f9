"""What a round costs as clients grow: a thousand and a million clients of 20 samples each, 100 of them per round.

    python benchmarks/crowd.py [--clients 1000,1000000] [--methods fedavg,fedheal,scaffold,ditto]

The samples lie in a memory-mapped file, which is made first. Each federation and method has a process of its own, so that
the largest resident memory is its own; federations take turns, because other work on the machine changes from minute to
minute. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SAMPLES, TEST, FEATURES, CLASSES, COHORT, ROUNDS, SCORED = 20, 4, 8, 2, 100, 20, 200


def make_pool(folder: Path, clients: int) -> None:
    """Write samples whose label depends on the features, otherwise for each client, in pieces of bounded size."""
    draw = np.random.default_rng(0)
    with (folder / "x").open("wb") as x, (folder / "y").open("wb") as y:
        for first in range(0, clients, 50_000):
            count = min(50_000, clients - first)
            samples = draw.standard_normal((count, SAMPLES, FEATURES), dtype=np.float32)
            bias = draw.standard_normal((count, 1), dtype=np.float32)
            labels = (samples[:, :, 0] + 0.5 * samples[:, :, 1] + 0.5 * bias > 0).astype(np.int64)
            samples.tofile(x)
            labels.tofile(y)


def measure(folder: Path, clients: int, method: str) -> dict[str, float]:
    """Start a run of a federation, do some rounds, and say how long they took and how much memory."""
    began = time.perf_counter()
    import torch

    from equipoise import Federation, Protocol, Training
    from equipoise.engine.settings import Settings
    from equipoise.engine.simulation import prepare_simulation, simulate

    imported = time.perf_counter()
    torch.set_num_threads(1)
    total = clients * SAMPLES
    x = torch.from_file(str(folder / "x"), size=total * FEATURES, dtype=torch.float32).view(total, FEATURES)
    y = torch.from_file(str(folder / "y"), size=total, dtype=torch.int64)
    protocol = Protocol(
        rounds=ROUNDS, training=Training(epochs=1, batch=8, lr=0.1), model="mlp(hidden=(32,))",
        participation=COHORT / clients,
    )  # fmt: skip
    data = Federation.from_pool(
        x, y, train=SAMPLES - TEST, test=TEST, classes=CLASSES, name="crowd", protocol=protocol, digest="crowd"
    )
    settings = Settings.of(method, data, eval_every=ROUNDS // 2, eval_clients=SCORED, runner="vectorised")
    settings.facts  # noqa: B018 - what a manifest needs, and a run's name
    begun = prepare_simulation(settings)
    started = time.perf_counter() - imported
    seconds = []
    simulate(begun, on_round=lambda record, _: seconds.append(record.seconds))
    plain = sorted(value for i, value in enumerate(seconds, 1) if i > 2 and i % (ROUNDS // 2))
    scored = sorted(value for i, value in enumerate(seconds, 1) if i % (ROUNDS // 2) == 0)
    return {
        "import": imported - began,
        "start": started,
        "round": plain[len(plain) // 2],
        "scored": scored[0],
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default="1000,1000000")
    parser.add_argument("--methods", default="fedavg,fedheal,scaffold,ditto")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        folder, clients, method = given.one
        print(json.dumps(measure(Path(folder), int(clients), method)))
        return
    counts = [int(count) for count in given.clients.split(",")]
    with tempfile.TemporaryDirectory() as place:
        for count in counts:
            folder = Path(place) / str(count)
            folder.mkdir()
            began = time.perf_counter()
            make_pool(folder, count)
            print(f"pool of {count:,} clients: {time.perf_counter() - began:.1f} s", file=sys.stderr)
        print(
            "| clients | method | start, s | round of 100, ms | with 200 scored, ms | memory, GB |\n|---|---|---|---|---|---|"
        )
        for method in given.methods.split(","):
            found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
            for _ in range(given.repeats):
                for count in counts:
                    words = [sys.executable, __file__, "--one", str(Path(place) / str(count)), str(count), method]
                    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)
                    found[count].append(json.loads(done.stdout.splitlines()[-1]))
            for count, runs in found.items():
                best = {name: min(run[name] for run in runs) for name in runs[0]}
                print(
                    f"| {count:,} | {method} | {best['start']:.1f} | {1000 * best['round']:.0f} | "
                    f"{1000 * best['scored']:.0f} | {best['memory']:.2f} |",
                    flush=True,
                )
    print(f"\nLoad of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
