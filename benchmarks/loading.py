"""How long a start takes, and which part of a training epoch goes into loading and augmenting: `python benchmarks/loading.py`.

The share is a ratio within one run: the time spent in `loop.samples` (indexing the pool, cropping, flipping, normalising)
and in drawing the augmentation, over the time of the local training around it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import torch

from equipoise import EquipoiseError, load_federation, parse
from equipoise.local import loop
from equipoise.rounds.server import begin, broadcast_of, client_round
from equipoise.task import Task

SAMPLES = 256  # of a client: enough for a ratio, and quick with a network of full width
SETTINGS = (
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


def timed(function, spent):
    """The function, with the time it takes added to `spent`."""

    def wrapper(*args):
        clock = time.perf_counter()
        result = function(*args)
        spent[0] += time.perf_counter() - clock
        return result

    return wrapper


def share(text: str, model: str | None) -> tuple[float, float]:
    """Seconds of one local epoch of some clients, and the share of it that loading and augmentation take."""
    data = load_federation(text)
    data = replace(data, clients=tuple(replace(c, train=c.train[:SAMPLES]) for c in data.clients))
    training = replace(data.protocol.training, epochs=1)
    task = Task.build(parse("fedavg"), data, model=model, training=training)
    method = parse("fedavg")
    broadcast = broadcast_of(begin(method, task), 1)
    clients = list(range(0, len(data), max(1, len(data) // 4)))[:4]
    spent = [0.0]
    before = loop.samples, loop.augmentation
    loop.samples, loop.augmentation = (timed(function, spent) for function in before)
    try:
        client_round(method, task, clients[:1], broadcast, {}, 0)  # warm up: pages of the pool, kernels
        spent[0] = 0.0
        clock = time.perf_counter()
        for client in clients:
            client_round(method, task, [client], broadcast, {}, 0)
        whole = time.perf_counter() - clock
    finally:
        loop.samples, loop.augmentation = before
    return whole, spent[0] / whole


def main() -> None:
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
    for text, model in SETTINGS:
        whole, part = share(text, model)
        print(
            f"{text:28s} {model or '':8s} loading and augmentation {100 * part:5.1f} % of local training ({whole:.2f} s)"
        )


if __name__ == "__main__":
    main()
