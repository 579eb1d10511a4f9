"""Rounds over several processes: speed beside other runners, bytes sent, and the memory of the server's half.

    python benchmarks/distributed.py [--work W1,W2,W4] [--repeats 3] [--server] [--fit]

Starts `torchrun` with two processes for each figure of the runner `distributed`, and takes turns with the runners `inline`
(one thread) and `processes` (two workers), because other work on the machine changes from minute to minute. Bytes are
counted where they are handed to torch.distributed. `--server` measures instead the server's half of a round with 100
clients and 4.9 million parameters, `--fit` does so for several sizes and fits a model of its time. Prints tables in
Markdown.
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
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import nnls

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "peers"))

ROUNDS = {"W1": 4, "W2": 2, "W4": 2}
CLIENTS, PARAMETERS = 100, 4_900_000  # of the server's half
RULES = ("fedavg", "fedheal", "fedfv", "fedequilibria(t=1, moo='update')")
GRID = tuple((clients, size) for clients in (10, 40, 100) for size in (500_000, 2_000_000, PARAMETERS))  # of `--fit`


# --------------------------------------------------------------------------- what is measured, in processes of its own
def build(work: str, rounds: int) -> Any:
    if work == "W4":
        from resnet import build_federation as build_images

        return build_images(rounds)
    from ours import build_federation
    from work import WORK

    return build_federation(work, WORK[work], rounds)


def count_bytes() -> dict[str, int]:
    """Count what this process hands to torch.distributed from now on."""
    sent = {"bytes": 0}
    send, gather = dist.isend, dist.distributed_c10d.all_gather

    def counted_send(tensor: torch.Tensor, *rest: Any, **named: Any) -> Any:
        sent["bytes"] += tensor.nbytes
        return send(tensor, *rest, **named)

    def counted_gather(found: list[torch.Tensor], tensor: torch.Tensor, *rest: Any, **named: Any) -> Any:
        sent["bytes"] += tensor.nbytes * (len(found) - 1)
        return gather(found, tensor, *rest, **named)

    dist.isend = counted_send
    dist.all_gather = dist.distributed_c10d.all_gather = counted_gather
    return sent


def time_rounds(work: str, method: str, runner: str) -> None:
    """Print the seconds of the median round, without the first, and the bytes that this process sent per round."""
    from equipoise import run

    sent = count_bytes() if runner == "distributed" else {"bytes": 0}
    marks: list[int] = []
    rounds = ROUNDS[work] + 1
    threads = 1 if runner == "inline" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(
            method, build(work, rounds), eval_every=10**9, train_scores=False, runner=runner, threads=threads,
            on_round=lambda _: marks.append(sent["bytes"]),
        )  # fmt: skip
    found = {
        "seconds": statistics.median(record.seconds for record in result.rounds[1:]),
        "bytes": (marks[-2] - marks[0]) / (len(marks) - 2) if len(marks) > 2 else 0,  # the last round has scores
        "parameters": len(result.server.theta),
        "clients": len(result.rounds[0].clients),
    }
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(found), flush=True)


def time_server(method: str, clients: int, size: int) -> None:
    """Print the seconds and the memory of the server's half, in one process or in one of several."""
    from equipoise import Layout, parse
    from equipoise.columns import ALL
    from equipoise.engine.ranks import Ranks, SplitColumns, is_started_by_torchrun
    from equipoise.rounds.server import server_round
    from equipoise.types import Replies, Server, Setting

    torch.set_num_threads(1)
    ranks = Ranks.join() if is_started_by_torchrun() else None
    columns = ALL if ranks is None else SplitColumns(ranks, size)
    mine = [k for k in range(clients) if ranks is None or k % ranks.size == ranks.rank]
    draw = torch.Generator().manual_seed(0)
    rows = {k: torch.randn(size, generator=draw) for k in mine}
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    if ranks is None:
        updates = torch.stack([rows.pop(k) for k in mine])
    else:
        pieces = [columns.piece(rank, size) for rank in range(ranks.size)]  # type: ignore[attr-defined]
        updates = ranks.exchange(rows, [k % ranks.size for k in range(clients)], pieces, torch.float32)
        rows.clear()
    exchanged = time.perf_counter()
    reports = {"samples": torch.full((clients,), 10.0), "loss": torch.rand(clients, generator=draw)}
    setting = Setting(rounds=10, num_clients=clients, layout=Layout.of({"theta": (size,)}), lr=0.1)
    server = Server(torch.zeros(size), {})
    replies = Replies(tuple(range(clients)), reports, updates, columns=columns)
    server_round(parse(method), server, replies, setting)
    found = {
        "exchange": exchanged - began,
        "step": time.perf_counter() - exchanged,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "rows": base / 2**20,
    }
    if ranks is None or ranks.leads:
        print(json.dumps(found), flush=True)


# --------------------------------------------------------------------------- how
def measure(count: int, *words: str) -> dict[str, float]:
    """Run a measurement in a process of its own, or in `count` that torchrun starts."""
    launch = [sys.executable]
    if count > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*launch, __file__, *words], capture_output=True, text=True, env=environment, timeout=1800)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare_runners(works: list[str], repeats: int) -> None:
    print(
        "| work | method | inline, 1 thread, s | processes, 2 workers | distributed, 2 processes | MB sent | least | |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for work in works:
        for method in ("fedavg", "fedheal"):
            found: dict[str, list[dict[str, float]]] = {}
            for _ in range(repeats):
                for runner, count in (("inline", 1), ("processes", 1), ("distributed", 2)):
                    found.setdefault(runner, []).append(measure(count, "--one", work, method, runner))
            ratios = {
                runner: [a["seconds"] / b["seconds"] for a, b in zip(found["inline"], found[runner], strict=True)]
                for runner in ("processes", "distributed")
            }
            told = {
                runner: f"{statistics.median(some):.2f} ({min(some):.2f}–{max(some):.2f})"
                for runner, some in ratios.items()
            }
            one = found["distributed"][-1]
            rows = 1 if method == "fedavg" else one["clients"] / 2  # that leave one of two processes: halves of them
            least = 4 * one["parameters"] * (rows + 1) / 2
            base = statistics.median(run["seconds"] for run in found["inline"])
            print(
                f"| {work} | {method} | {base:.3f} | {told['processes']} | {told['distributed']} | {one['bytes'] / 1e6:.2f} | "
                f"{least / 1e6:.2f} | {one['bytes'] / least:.2f} times |",
                flush=True,
            )


def measure_server(counts: list[int], clients: int) -> None:
    print(f"{clients} clients x {PARAMETERS / 1e6} M parameters\n")
    print("| method | processes | exchange, s | step, s | memory per process, GB |")
    print("|---|---|---|---|---|")
    for method in RULES:
        for count in counts:
            found = measure(count, "--one-server", method, str(clients), str(PARAMETERS))
            print(
                f"| {method} | {count} | {found['exchange']:.1f} | {found['step']:.1f} | {found['memory']:.2f} |",
                flush=True,
            )


def fit_model(counts: list[int], rules: tuple[str, ...]) -> None:
    """Fit the times of the server's half to what they should follow from: bytes that are sent, rows that are read, and for
    rules with a Gram matrix products of rows. Coefficients are not negative; what is left over is told."""
    found = {
        (rule, count, clients, size): measure(count, "--one-server", rule, str(clients), str(size))
        for rule in rules
        for clients, size in GRID
        for count in counts
    }
    moved = {key: 4 * key[2] * key[3] * (key[1] - 1) / key[1] ** 2 for key in found}  # bytes that one process sends
    spread = [key for key in found if key[1] > 1]
    _tell_fit("exchange", [[1.0, moved[key]] for key in spread], [found[key]["exchange"] for key in spread])
    for rule in rules:
        mine = [key for key in found if key[0] == rule]
        rows = [key[2] * key[3] / key[1] for key in mine]
        squares = [key[2] * n if rule not in ("fedavg", "fedheal") else 0.0 for key, n in zip(mine, rows, strict=True)]
        terms = [[1.0, n, square] for n, square in zip(rows, squares, strict=True)]
        _tell_fit(f"step of {rule}", terms, [found[key]["step"] for key in mine])


def _tell_fit(name: str, terms: list[list[float]], seconds: list[float]) -> None:
    """Fit relative errors, so that small rounds count as much as large ones, and print the coefficients."""
    design, truth = np.array(terms), np.array(seconds)
    found, _ = nnls(design / truth[:, None], np.ones(len(truth)))
    off = np.abs(design @ found / truth - 1)
    told = ", ".join(f"{value:.3g}" for value in found)
    print(f"| {name} | {told} | {100 * np.median(off):.0f} % | {100 * off.max():.0f} % | {len(truth)} |", flush=True)


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="W1,W2,W4")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--one-server", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        time_rounds(*given.one)
    elif given.one_server:
        time_server(given.one_server[0], *map(int, given.one_server[1:]))
    else:
        counts = [int(count) for count in given.processes.split(",")]
        if given.server:
            measure_server(counts, given.clients)
        elif given.fit:
            print("| what | constant s, s per byte or row, s per product | median error | largest | points |")
            print("|---|---|---|---|---|")
            fit_model(counts, RULES[:3])
        else:
            compare_runners(given.work.split(","), given.repeats)
        print(f"\nLoad of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
