"""Server steps for 20 clients x 4.9 million parameters (ResNet-10): time against the arithmetic they cannot avoid, and memory.

`python benchmarks/server_steps.py` prints the table; every rule runs in a process of its own, so that its memory can be told.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch

from equipoise import aggregate, parse
from equipoise.parts.minnorm import min_norm_weights
from equipoise.updates import gram

CLIENTS, PARAMETERS, REPETITIONS = 20, 4_903_242, 5
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


def inputs() -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    theta = torch.randn(PARAMETERS, generator=draw)
    updates = torch.randn(CLIENTS, PARAMETERS, generator=draw).mul_(0.01)
    uniform = torch.rand(CLIENTS, generator=draw)
    reports = {"samples": 100 + 500 * uniform, "loss": 0.5 + uniform, "gap": uniform - 0.5}
    return theta, updates, reports


def timed(call, repetitions: int = REPETITIONS) -> list[float]:
    call()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def memory() -> float:
    """Peak memory of this process so far, in gigabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def one(rule: str) -> dict[str, object]:
    """A first round, then the times of the second (which has history); memory beyond the inputs."""
    method = parse(rule)
    theta, updates, reports = inputs()
    if "fisher" in method.weigh.needs:
        reports["fisher"] = updates.square()
    facts = {"num_clients": CLIENTS, "rounds": 100, "num_classes": 10, "num_domains": 4, "total_samples": 7520}
    facts |= {"clients": list(range(CLIENTS)), "reports": reports, "copy": False}  # nobody writes into the updates
    before = memory()
    server = aggregate(method, theta, updates, **facts).server
    first = memory() - before
    times = timed(lambda: aggregate(method, theta, updates, server=server, **facts))
    held = sum(
        tensor.numel() * tensor.element_size()
        for state in server.parts.values()
        for value in state.values()
        for tensor in (value.values() if hasattr(value, "values") and not isinstance(value, torch.Tensor) else [value])
    )
    return {"times": times, "memory": memory() - before, "first": first, "state": held / 1e9}


def limits() -> dict[str, list[float]]:
    """The arithmetic: one weighted sum, one Gram product in each precision, two passes over the rows."""
    _, updates, _ = inputs()
    weights = torch.full((CLIENTS,), 1 / CLIENTS)
    return {
        "sum": timed(lambda: weights @ updates),
        "gram32": timed(lambda: updates @ updates.T),
        "gram64": timed(lambda: gram(updates)),
    }


def min_norm(clients: int) -> list[float]:
    """Weights from the inner products of Fisher-like vectors: positive, of very different lengths, nearly parallel."""
    draw = torch.Generator().manual_seed(0)
    common = torch.rand(4000, generator=draw, dtype=torch.float64).square()
    own = torch.rand(clients, 4000, generator=draw, dtype=torch.float64).square()
    rows = (common + own) * (0.1 + 10 * torch.rand(clients, 1, generator=draw, dtype=torch.float64))
    products = rows @ rows.T
    return timed(lambda: min_norm_weights(products), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", help="measure one rule in this process, and print JSON")
    parser.add_argument("--limits", action="store_true")
    options = parser.parse_args()
    if options.rule or options.limits:
        print(json.dumps(one(options.rule) if options.rule else limits()))
        return

    def measured(*words: str) -> dict:
        done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    floor = {name: statistics.median(times) for name, times in measured("--limits").items()}
    print(f"{CLIENTS} clients x {PARAMETERS:,} parameters, {torch.get_num_threads()} threads, median of {REPETITIONS}")
    for name, seconds in floor.items():
        print(f"  {name:40s} {seconds:7.3f} s")
    print(
        f"\n  {'rule':40s} {'seconds':>8s} {'spread':>14s} {'limit':>9s} {'ratio':>6s} {'memory GB':>10s} {'state GB':>9s}"
    )
    for rule, against in RULES.items():
        found = measured("--rule", rule)
        seconds = statistics.median(found["times"])
        limit = {"sum": floor["sum"], "gram64": floor["gram64"] + 2 * floor["sum"]}.get(against, 0.6)
        spread = f"{min(found['times']):.3f}..{max(found['times']):.3f}"
        figures = f"{seconds:8.3f} {spread:>14s} {limit:9.3f} {seconds / limit:6.2f}"
        figures += f" {found['memory']:10.2f} {found['state']:9.2f}"
        print(f"  {rule:40s} {figures}", flush=True)
    times = min_norm(1000)
    print(f"\n  min-norm weights of 1,000 Fisher-like clients: {statistics.median(times):.3f} s (at most 0.5)")


if __name__ == "__main__":
    main()
