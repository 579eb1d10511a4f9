"""Measures time and memory of the server's step for 20 clients x 4.9 million parameters (ResNet-10).

`python benchmarks/server_steps.py` prints the table. Times are set against the arithmetic that a rule cannot
avoid. Every rule runs in a process of its own, so that its memory can be measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from equipoise import aggregate, parse
from equipoise.parts.minnorm import min_norm_weights
from equipoise.types import Memory, PerClient
from equipoise.updates import gram

CLIENTS, PARAMETERS = 20, 4_903_242
# What each rule is held against: the arithmetic that it cannot avoid, or seconds.
RULES = {
    "fedavg": "sum",
    "fedavg(weights='uniform')": "sum",
    "daa": "sum",
    "eagle(lam=0.1, apply='server')": "sum",
    "fedequilibria(t=0)": "sum",
    "qffl(lr=0.1)": "sum",
    "afl": "sum",
    "term": "sum",
    "gifair": "sum",
    "fedequilibria": "gram64",
    "fedequilibria(t=1, moo='update')": "gram64",
    "fedfe(lr=0.1)": "gram64",
    "fedfv": "gram64",
    "fedmgda_plus": "gram64",
    "fedheal": "0.6 s",
    "fedheal(variant='released')": "0.6 s",
}


def draw_inputs() -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """The model, the updates, and the reports of the clients."""
    draw = torch.Generator().manual_seed(0)
    theta = torch.randn(PARAMETERS, generator=draw)
    updates = torch.randn(CLIENTS, PARAMETERS, generator=draw).mul_(0.01)
    uniform = torch.rand(CLIENTS, generator=draw)
    reports = {"samples": 100 + 500 * uniform, "loss": 0.5 + uniform, "gap": uniform - 0.5}
    return theta, updates, reports


def time_calls(call: Callable[[], object], repetitions: int) -> list[float]:
    """Seconds of each call, after one that pays for the start."""
    call()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def measure_peak() -> float:
    """Peak memory of this process so far, in gigabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def measure_rule(rule: str, repetitions: int) -> dict[str, object]:
    """A first round, then the times of the second (which has history); memory beyond the inputs."""
    method = parse(rule)
    theta, updates, reports = draw_inputs()
    if "fisher" in method.weigh.needs:
        reports["fisher"] = updates.square()
    step = partial(
        aggregate, method, theta, updates, clients=list(range(CLIENTS)), reports=reports, num_clients=CLIENTS,
        rounds=100, num_classes=10, num_domains=4, total_samples=7520, copy=False,
    )  # fmt: skip
    before = measure_peak()
    server = step().server
    first = measure_peak() - before
    times = time_calls(lambda: step(server=server), repetitions)
    return {"times": times, "memory": measure_peak() - before, "first": first, "state": measure_state(server) / 1e9}


def measure_state(server: Memory) -> int:
    """Bytes of all that the parts remember."""
    values = [value for state in server.parts.values() for value in state.values()]
    tensors = [row for value in values for row in (value.values() if isinstance(value, PerClient) else [value])]
    return sum(tensor.nbytes for tensor in tensors)


def measure_limits(repetitions: int) -> dict[str, list[float]]:
    """The arithmetic: one weighted sum, and one Gram product in each precision."""
    _, updates, _ = draw_inputs()
    weights = torch.full((CLIENTS,), 1 / CLIENTS)
    return {
        "sum": time_calls(lambda: weights @ updates, repetitions),
        "gram32": time_calls(lambda: updates @ updates.T, repetitions),
        "gram64": time_calls(lambda: gram(updates), repetitions),
    }


def time_min_norm(clients: int) -> list[float]:
    """Weights from the inner products of Fisher-like vectors: positive, of very different lengths, nearly parallel."""
    draw = torch.Generator().manual_seed(0)
    common = torch.rand(4000, generator=draw, dtype=torch.float64).square()
    own = torch.rand(clients, 4000, generator=draw, dtype=torch.float64).square()
    rows = (common + own) * (0.1 + 10 * torch.rand(clients, 1, generator=draw, dtype=torch.float64))
    products = rows @ rows.T
    return time_calls(lambda: min_norm_weights(products), 3)


def measure_apart(*words: str) -> dict:
    """What this script measures with these arguments in a process of its own."""
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", help="measure one rule in this process, and print JSON")
    parser.add_argument("--limits", action="store_true", help="measure the arithmetic in this process, and print JSON")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    count = options.repetitions
    if options.rule or options.limits:
        print(json.dumps(measure_rule(options.rule, count) if options.rule else measure_limits(count)))
        return
    again = ("--repetitions", str(count))
    floor = {name: statistics.median(times) for name, times in measure_apart("--limits", *again).items()}
    print(f"{CLIENTS} clients x {PARAMETERS:,} parameters, {torch.get_num_threads()} threads, median of {count}")
    for name, seconds in floor.items():
        print(f"  {name:40s} {seconds:7.3f} s")
    columns = f"{'seconds':>8s} {'spread':>14s} {'limit':>9s} {'ratio':>6s} {'memory GB':>10s} {'state GB':>9s}"
    print(f"\n  {'rule':40s} {columns}")
    for rule, against in RULES.items():
        found = measure_apart("--rule", rule, *again)
        seconds = statistics.median(found["times"])
        # Rules that compare updates cannot do without a Gram product and two passes over the rows.
        limit = {"sum": floor["sum"], "gram64": floor["gram64"] + 2 * floor["sum"]}.get(against, 0.6)
        spread = f"{min(found['times']):.3f}..{max(found['times']):.3f}"
        figures = f"{seconds:8.3f} {spread:>14s} {limit:9.3f} {seconds / limit:6.2f}"
        figures += f" {found['memory']:10.2f} {found['state']:9.2f}"
        print(f"  {rule:40s} {figures}", flush=True)
    times = time_min_norm(1000)
    print(f"\n  min-norm weights of 1,000 Fisher-like clients: {statistics.median(times):.3f} s (at most 0.5)")


if __name__ == "__main__":
    main()
