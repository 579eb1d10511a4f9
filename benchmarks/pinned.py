"""Checks that a change of the code changes no numbers, by hashes of short runs of every method in every runner.

`python benchmarks/pinned.py record before.json` writes the hashes. `python benchmarks/pinned.py compare before.json
after.json` names every run whose model, scores or records are not the same bit for bit. Hashes depend on the machine's
arithmetic, so both files must come from one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import equipoise as eq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

QUICK = {  # the same methods with less work in a round
    "eagle": "eagle(lstar_epochs=6)",
    "fedlsa": "fedlsa(width=8, server_epochs=5)",
    "fedtgp": "fedtgp(server_epochs=3)",
}
COMBINATIONS = (
    "fedavg(weights='uniform')",
    "fedheal(variant='released')",
    "fedequilibria(t=1, moo='update')",
    "fedfe(order='random', tau=3)",
    "eagle(lag=0, lstar_epochs=4)",
    "eagle(apply='server', lstar_epochs=4)",
    "feddyn(evaluate='server')",
    "moon + fedheal",
    "scaffold + qffl",
    "feddyn + afl",
    "fedbn + afl",
    "eagle(lstar_epochs=4) + fedheal",
)
ON_IMAGES = ("f2dc_modules + fpl", "f2dc_modules + fedheal", "f2dc(share_modules=False, eval_view='mean_modules')")
RUNNERS = ("inline", "vectorised", "processes", "flower")
ROUNDS = 3


def images() -> eq.Federation:
    """Four clients of unequal size in two domains with small pictures, and a network with batch normalisation."""
    draw = torch.Generator().manual_seed(0)
    train, held, tested, domains = {}, {}, {}, {}
    for k, size in enumerate((26, 20, 12, 18)):
        for store, count in ((train, size), (held, 6), (tested, 12)):
            y = torch.arange(count) % 3
            store[f"c{k}"] = (torch.rand(count, 1, 8, 8, generator=draw) + y[:, None, None, None] * 0.3, y)
        domains[f"c{k}"] = f"d{k // 2}"
    training = eq.Training(epochs=1, batch=8, lr=0.01, momentum=0.9)
    return eq.Federation.from_tensors(
        train, test=tested, validation=held, domains=domains, classes=3, name="images",
        protocol=eq.Protocol(rounds=ROUNDS, training=training, model="resnet10(width=8)"),
    )  # fmt: skip


def federation_of(name: str) -> eq.Federation:
    return images() if name == "images" else eq.load_federation(name)


def everything() -> Iterator[tuple[str, str, str]]:
    """(data, method, runner) of every run."""
    names = [QUICK.get(name, name) for name in eq.methods.METHODS]
    for data in ("gaussians", "scanners", "images"):
        for method in (*names, *COMBINATIONS, *(ON_IMAGES if data != "gaussians" else ())):
            if "f2dc" in method and data == "gaussians":
                continue  # works on feature maps
            for runner in RUNNERS:
                if method != "centralised" or runner != "flower":
                    yield data, method, runner


def done(data: str, method: str, runner: str) -> Any:
    """The run. Participation is partial on scanners, so that absent clients are part of it."""
    torch.set_num_threads(1)
    federation = federation_of(data)
    share = 0.5 if data == "scanners" else 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if runner != "flower":
            return eq.run(method, federation, rounds=ROUNDS, participation=share, runner=runner, threads=2)
        from equipoise.flower import Plan, client_app, federate
        from kit.flower import LoopGrid

        plan = Plan(method=method, sites=len(federation), rounds=ROUNDS, participation=share)
        if data == "scanners":
            plan = Plan(method=method, data=data, sites=len(federation), rounds=ROUNDS, participation=share)
        nodes = {100 - 7 * k: {"partition-id": k} for k in range(len(federation))}
        return federate(LoopGrid(client_app(plan, data=federation), nodes), plan)


def hashed(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr((str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def told(run: Any) -> dict[str, object]:
    """What a run came to. What clients keep is hashed without its names, which may change."""
    server = run.server
    model = [server.theta, *(server.buffers[name] for name in sorted(server.buffers))]
    model += [] if server.evaluated is None else [server.evaluated]
    kept = sorted(
        hashed([value]) for state in run.states.values() for part in state.values() for value in part.values()
    )
    scores = [
        (record.round, s.client, s.domain, s.split, s.metric, s.value.hex(), s.samples)
        for record in run.rounds
        for s in record.scores
    ]
    records = [
        (record.round, record.clients, [w.hex() for w in record.weights],
         {name: [v.hex() for v in values] for name, values in sorted(record.figures.items())})
        for record in run.rounds
    ]  # fmt: skip
    return {
        "model": hashed(model),
        "kept": hashlib.sha256(repr(kept).encode()).hexdigest()[:16],
        "scores": hashlib.sha256(repr(sorted(scores)).encode()).hexdigest()[:16],
        "records": hashlib.sha256(repr(records).encode()).hexdigest()[:16],
        "warnings": sorted(run.warnings),
    }


def one(what: tuple[str, str, str]) -> tuple[str, dict[str, object]]:
    try:
        found = told(done(*what))
    except Exception as error:  # a refusal is a result, too
        found = {"error": f"{type(error).__name__}: {error}"}
    return " | ".join(what), found


def record(path: Path, workers: int) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    todo = [what for what in everything() if " | ".join(what) not in found]
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, maxtasksperchild=40) as pool:
        alone = [what for what in todo if what[2] != "processes"]
        for number, (name, result) in enumerate(pool.imap_unordered(one, alone), 1):
            found[name] = result
            if number % 25 == 0:
                path.write_text(json.dumps(found, indent=1, sort_keys=True))
                print(f"{number} of {len(alone)} after {time.monotonic() - began:.0f} s", flush=True)
    for what in todo:  # these start workers of their own
        if what[2] == "processes":
            name, found[name] = one(what)
            path.write_text(json.dumps(found, indent=1, sort_keys=True))
    path.write_text(json.dumps(found, indent=1, sort_keys=True))
    print(f"{len(found)} runs in {time.monotonic() - began:.0f} s: {path}")


def compare(before: Path, after: Path) -> int:
    a, b = (json.loads(path.read_text()) for path in (before, after))
    differ = 0
    for name in sorted({*a, *b}):
        one, other = a.get(name), b.get(name)
        if one is None or other is None:
            words = ["only in " + (str(after) if one is None else str(before))]
        else:
            words = [
                f"{key}: {one.get(key)} -> {other.get(key)}"
                for key in {**one, **other}
                if one.get(key) != other.get(key)
            ]
        if words:
            differ += 1
            print(f"{name}: {'; '.join(words)}")
    print(f"{len(a)} runs before, {len(b)} after, {differ} differ.")
    return int(differ > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("path", type=Path)
    recording.add_argument("--workers", type=int, default=2)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "record":
        record(chosen.path, chosen.workers)
    else:
        sys.exit(compare(chosen.before, chosen.after))
