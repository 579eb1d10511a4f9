"""Measures how long a start takes, and the share of loading and augmenting in an epoch: `python benchmarks/loading.py`.

The share is a ratio within one run: the time spent in `gather_samples` (indexing the pool, cropping, flipping,
normalising) and in drawing the augmentation, over the time of the local training around it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from equipoise import EquipoiseError, load_federation, parse
from equipoise.local import loop
from equipoise.rounds.client import client_round
from equipoise.rounds.server import begin_server, make_broadcast
from equipoise.task import Task

SAMPLES = 256  # per client: enough for a ratio, and quick with a network of full width
CASES = (
    ("digits", None),
    ("digits(preset='fedheal')", None),
    ("office-caltech", None),
    ("pacs", None),
    ("mnist-shards", None),
    ("emnist", "cnn"),
    ("emnist", "linear"),
)
START = """
import time
import torch
clock = time.perf_counter()
from equipoise import load_federation
data = load_federation("digits")
data.fingerprint, data.x[data.clients[0].train].sum()
print(time.perf_counter() - clock)
"""


class Clock:
    """Adds up the time that functions take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, function: Callable[..., object]) -> Callable[..., object]:
        """The function, with its time added to that of the others."""

        def call(*arguments: object) -> object:
            start = time.perf_counter()
            result = function(*arguments)
            self.seconds += time.perf_counter() - start
            return result

        return call


def measure_share(text: str, model: str | None) -> tuple[float, float]:
    """Seconds of one local epoch of some clients, and the share of it that loading and augmentation take."""
    data = load_federation(text)
    data = replace(data, clients=tuple(replace(c, train=c.train[:SAMPLES]) for c in data.clients))
    method = parse("fedavg")
    task = Task.build(method, data, model=model, training=replace(data.protocol.training, epochs=1))
    broadcast = make_broadcast(begin_server(method, task), 1)
    clients = list(range(0, len(data), max(1, len(data) // 4)))[:4]
    clock = Clock()
    before = loop.gather_samples, loop.draw_augmentation
    loop.gather_samples, loop.draw_augmentation = map(clock.watch, before)
    try:
        client_round(method, task, clients[:1], broadcast, {}, 0)  # warm up: pages of the pool, kernels
        clock.seconds = 0.0
        start = time.perf_counter()
        for client in clients:
            client_round(method, task, [client], broadcast, {}, 0)
        whole = time.perf_counter() - start
    finally:
        loop.gather_samples, loop.draw_augmentation = before
    return whole, clock.seconds / whole


def main() -> None:
    """Measure and print, where the data are at hand."""
    try:
        load_federation("digits")  # so that the cache is there
    except EquipoiseError as error:
        print(f"loading is not measured: {error}")
        return
    times = [
        float(subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    print(f"second start of digits, beyond importing torch: {min(times):.2f} s (best of 5; worst {max(times):.2f} s)")
    torch.set_num_threads(1)
    for text, model in CASES:
        whole, part = measure_share(text, model)
        figure = f"{100 * part:5.1f} % of local training ({whole:.2f} s)"
        print(f"{text:28s} {model or '':8s} loading and augmentation {figure}")


if __name__ == "__main__":
    main()
