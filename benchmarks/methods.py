"""Measures seconds per round of every method, beside FedAvg's: `python benchmarks/methods.py`.

The work is W1 of `peers/work.py`, but with 10 clients, which all take part: 600 samples each, and a perceptron. It also
measures two cores against one, and the exact Fisher information against a training epoch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from ours import build_federation
from work import WORK

from equipoise import run
from equipoise.engine.runners import RunnerName
from equipoise.methods import METHODS

# Methods whose mathematics demands more than local training: name -> what they do besides.
BESIDES = {
    "moon": "features by two frozen models once per round, a contrast per step",
    "fedequilibria": "exact Fisher of every sample once per round",
    "ditto": "a second model trained in every round",
    "scaffold": "a force on every gradient",
    "feddyn": "forces on every gradient, clipped with it",
    "fedprox": "a force on every gradient",
    "fedproc": "prototypes, and a contrast per step",
    "fedproto": "prototypes, and a distance per step",
    "fpl": "prototypes, and a contrast per step",
    "fedtgp": "prototypes, a contrast per step, training on the server",
    "fedsa": "prototypes, three losses per step",
    "fedlsa": "a projection head, a contrast per step, training on the server",
    "fedrcl": "contrasts on every layer's features",
    "fdse": "a second set of layers",
}
LEFT_OUT = {"f2dc": "needs feature maps", "f2dc_modules": "needs feature maps", "centralised": "pools the data",
            "local_only": "no round", "fedsgd": "one step per round"}  # fmt: skip


def time_round(
    method: str, name: str, rounds: int, runner: RunnerName, threads: int | None = None, epochs: int | None = None
) -> float:
    """Seconds of the median round, without the first one. All clients take part in all rounds: what a method does when
    it meets a client for the first time is over by then."""
    work = WORK[name]
    data = build_federation(name, replace(work, clients=work.cohort, epochs=epochs or work.epochs), rounds + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(method, data, eval_every=10**9, threads=threads, runner=runner)
    return statistics.median(record.seconds for record in result.rounds[1:])


def compare_methods(names: list[str], repetitions: int, rounds: int) -> None:
    """Every method against FedAvg beside it, so that a change of the machine's speed meets both."""
    print(f"W1, worker processes, medians of {repetitions} runs of {rounds} rounds, each beside a run of FedAvg\n")
    print(f"  {'method':16s} {'seconds':>8s} {'x FedAvg':>9s} {'spread':>13s}  besides local training")
    for name in names:
        ratios, times = [], []
        for _ in range(repetitions):
            plain = time_round("fedavg", "W1", rounds, "processes")
            times.append(time_round(name, "W1", rounds, "processes"))
            ratios.append(times[-1] / plain)
        spread = f"{min(ratios):.2f}..{max(ratios):.2f}"
        print(f"  {name:16s} {statistics.median(times):8.3f} {statistics.median(ratios):9.2f} {spread:>13s}"
              f"  {BESIDES.get(name, '')}", flush=True)  # fmt: skip


def compare_cores(repetitions: int) -> None:
    """What a second core gains: worker processes against the faster way to use one."""
    print("\nTwo cores against one, FedAvg")
    for work, rounds in (("W1", 4), ("W2", 2)):
        ratios = []
        for _ in range(repetitions):
            one = time_round("fedavg", work, rounds, "vectorised" if work == "W1" else "inline", threads=1)
            ratios.append(one / time_round("fedavg", work, rounds, "processes"))
        print(f"  {work}: {statistics.median(ratios):.2f} times ({min(ratios):.2f}..{max(ratios):.2f})", flush=True)


def time_fisher(repetitions: int) -> None:
    """What FedEquilibria's rounds cost beyond FedAvg's, which are one epoch here."""
    print("\nExact diagonal Fisher of 600 samples, against one epoch of training on them (batches of 32), one thread")
    for work in ("W1", "W2"):
        ratios = []
        for _ in range(repetitions):
            plain = time_round("fedavg", work, 2, "inline", threads=1, epochs=1)
            more = time_round("fedequilibria", work, 2, "inline", threads=1, epochs=1)
            ratios.append(more / plain - 1)
        print(f"  {work}: {statistics.median(ratios):.2f} epochs ({min(ratios):.2f}..{max(ratios):.2f})", flush=True)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=[n for n in METHODS if n not in ("fedavg", *LEFT_OUT)])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    compare_methods(options.methods, options.repetitions, options.rounds)
    compare_cores(options.repetitions)
    time_fisher(options.repetitions)


if __name__ == "__main__":
    main()
