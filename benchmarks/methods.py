"""Seconds a round of every method on W1 (100 clients x 600 samples, perceptron, 10 a round), against FedAvg's in the same run.

Also the two cores against one, and the exact Fisher against a training epoch. `python benchmarks/methods.py` prints the tables.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from ours import federation_of
from work import WORK

from equipoise import run
from equipoise.method import METHODS

# Methods whose mathematics demands further passes, counted apart: name -> what they do besides local training.
APART = {
    "moon": "features by two frozen models once a round, a contrast a step",
    "fedequilibria": "exact Fisher of every sample once a round",
    "ditto": "a second model trained a round",
    "scaffold": "a force on every gradient",
    "feddyn": "forces on every gradient, clipped with it",
    "fedprox": "a force on every gradient",
    "fedproc": "prototypes, and a contrast a step",
    "fedproto": "prototypes, and a distance a step",
    "fpl": "prototypes, and a contrast a step",
    "fedtgp": "prototypes, a contrast a step, training on the server",
    "fedsa": "prototypes, three losses a step",
    "fedlsa": "a projection head, a contrast a step, training on the server",
    "fedrcl": "contrasts on every layer's features",
    "fdse": "a second set of layers",
}
LEFT_OUT = {"f2dc": "needs feature maps", "f2dc_modules": "needs feature maps", "centralised": "pools the data",
            "local_only": "no round", "fedsgd": "one step a round"}  # fmt: skip


def seconds(
    method: str, work: str, rounds: int, threads: int | None = None, runner: str = "auto", epochs: int | None = None
) -> float:
    """The median round, without the first one. Every client has been here before: start-up phases are over by then."""
    data = federation_of(
        work, replace(WORK[work], clients=WORK[work].cohort, epochs=epochs or WORK[work].epochs), rounds + 1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(method, data, eval_every=10**9, threads=threads, runner=runner)
    return statistics.median(record.seconds for record in result.rounds[1:])


def every_method(names: list[str], repetitions: int, rounds: int) -> None:
    print(f"W1, worker processes, medians of {repetitions} runs of {rounds} rounds, each beside a run of FedAvg\n")
    print(f"  {'method':16s} {'seconds':>8s} {'x FedAvg':>9s} {'spread':>13s}  besides local training")
    for name in names:
        ratios, times = [], []
        for _ in range(repetitions):
            plain = seconds("fedavg", "W1", rounds, runner="processes")
            times.append(seconds(name, "W1", rounds, runner="processes"))
            ratios.append(times[-1] / plain)
        spread = f"{min(ratios):.2f}..{max(ratios):.2f}"
        print(f"  {name:16s} {statistics.median(times):8.3f} {statistics.median(ratios):9.2f} {spread:>13s}"
              f"  {APART.get(name, '')}", flush=True)  # fmt: skip


def two_cores(repetitions: int) -> None:
    print("\nTwo cores against one, FedAvg")
    for work, rounds in (("W1", 4), ("W2", 2)):
        ratios = []
        for _ in range(repetitions):
            one = seconds("fedavg", work, rounds, threads=1, runner="vectorised" if work == "W1" else "inline")
            ratios.append(one / seconds("fedavg", work, rounds, runner="processes"))
        print(f"  {work}: {statistics.median(ratios):.2f} times ({min(ratios):.2f}..{max(ratios):.2f})", flush=True)


def fisher(repetitions: int) -> None:
    """What FedEquilibria's rounds cost beyond FedAvg's, which are one epoch here."""
    print("\nExact diagonal Fisher of 600 samples, against one epoch of training on them (batches of 32), one thread")
    for work in ("W1", "W2"):
        ratios = []
        for _ in range(repetitions):
            plain, more = (seconds(name, work, 2, 1, "inline", epochs=1) for name in ("fedavg", "fedequilibria"))
            ratios.append(more / plain - 1)
        print(f"  {work}: {statistics.median(ratios):.2f} epochs ({min(ratios):.2f}..{max(ratios):.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=[n for n in METHODS if n not in ("fedavg", *LEFT_OUT)])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    every_method(options.methods, options.repetitions, options.rounds)
    two_cores(options.repetitions)
    fisher(options.repetitions)


if __name__ == "__main__":
    main()
