"""W4: one round of FedHEAL's Digits protocol on a ResNet, beside plain loops of torch: `python benchmarks/resnet.py`.

Four clients with 256 images of 32x32 pixels, ResNet-10 of width 64, one epoch of SGD with momentum and batches of 64.
Equipoise is measured beside a loop as the released codes of the papers write it (one process, all threads), the same loop
in two processes, and the arithmetic limit: the operations of a round divided by the machine's largest speed.
Then the methods' rounds are measured beside FedAvg's. Everything is interleaved, so that a change of the machine's speed
meets all.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import multiprocessing.synchronize
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from equipoise import Client, Federation, Protocol, Training, run
from equipoise.engine.runners import count_cores
from equipoise.models import build_model

CLIENTS, SAMPLES, BATCH, SIDE = 4, 256, 64, 32
TRAINING = Training(epochs=1, batch=BATCH, lr=0.001, momentum=0.9, weight_decay=1e-5)
METHODS = ("fedheal", "f2dc", "fedfe", "fedfv", "moon", "ditto", "scaffold", "fedequilibria")


def draw_images() -> tuple[Tensor, Tensor]:
    """Random images and labels of all clients, `[clients, samples, ...]`."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, SAMPLES, 3, SIDE, SIDE, generator=draw)
    return x, torch.randint(0, 10, (CLIENTS, SAMPLES), generator=draw)


def build_federation(rounds: int) -> Federation:
    """The work as a federation, without test data: only training counts here."""
    x, y = draw_images()
    places = torch.arange(CLIENTS * SAMPLES).view(CLIENTS, SAMPLES)
    clients = tuple(Client(f"client {k}", places[k]) for k in range(CLIENTS))
    protocol = Protocol(rounds=rounds, training=TRAINING, model="resnet10")
    return Federation("W4", x.flatten(0, 1), y.flatten(), clients, tuple("0123456789"), protocol)


# --------------------------------------------------------------------------- what is measured
def time_ours(method: str, rounds: int) -> float:
    """Seconds of Equipoise's median round, without the first one, with the runner that it chooses by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(method, build_federation(rounds + 1), eval_every=10**9, train_scores=False)
    return statistics.median(record.seconds for record in result.rounds[1:])


def train_client(network: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """One local epoch as the released codes write it."""
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-5)
    for index in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(network(x[index]).logits, y[index]).backward()
        optimizer.step()
    return network.state_dict()


def average(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of the clients' models, tensor by tensor."""
    return {name: torch.stack([state[name].float() for state in states]).mean(0) for name in states[0]}


def time_loop(rounds: int) -> float:
    """Seconds of the median round of a loop over clients in this process, with all threads."""
    network, (x, y) = build_model("resnet10", (3, SIDE, SIDE), 10), draw_images()
    seconds = []
    for _ in range(rounds + 1):
        clock = time.perf_counter()
        states = [train_client(copy.deepcopy(network), x[k], y[k]) for k in range(CLIENTS)]
        network.load_state_dict(average(states))
        seconds.append(time.perf_counter() - clock)
    return statistics.median(seconds[1:])


def _work(clients: list[int], rounds: int, barrier: multiprocessing.synchronize.Barrier) -> None:
    torch.set_num_threads(1)
    network, (x, y) = build_model("resnet10", (3, SIDE, SIDE), 10), draw_images()
    for _ in range(rounds + 1):
        barrier.wait()
        for k in clients:
            train_client(copy.deepcopy(network), x[k], y[k])
        barrier.wait()


def time_two_processes(rounds: int) -> float:
    """Seconds of the median round of the same loop in two processes with a thread each. Models are not even exchanged."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    workers = [context.Process(target=_work, args=(mine, rounds, barrier)) for mine in ([0, 1], [2, 3])]
    for worker in workers:
        worker.start()
    seconds = []
    for _ in range(rounds + 1):
        barrier.wait()
        clock = time.perf_counter()
        barrier.wait()
        seconds.append(time.perf_counter() - clock)
    for worker in workers:
        worker.join()
    return statistics.median(seconds[1:])


def count_operations() -> float:
    """The floating-point operations of one round: forward and backward passes of all images."""
    network, (x, y) = build_model("resnet10", (3, SIDE, SIDE), 10), draw_images()
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(x[0, :2]).logits, y[0, :2]).backward()
    return counter.get_total_flops() / 2 * CLIENTS * SAMPLES


def measure_speed() -> float:
    """Floating-point operations per second, all threads, the best of several large matrix products and convolutions.

    They come from different libraries: on some processors the convolutions are the quicker ones.
    """
    a, x, w = torch.randn(2048, 2048), torch.randn(BATCH, 256, 16, 16), torch.randn(256, 256, 3, 3)
    works: list[tuple[Callable[[], object], float]] = [
        (lambda: a @ a, 2 * 2048**3),
        (lambda: F.conv2d(x, w, padding=1), 2 * BATCH * 256 * 256 * 9 * 16 * 16),
    ]
    best = 0.0
    for work, operations in 8 * works:
        clock = time.perf_counter()
        work()
        best = max(best, operations / (time.perf_counter() - clock))
    return best


# --------------------------------------------------------------------------- tables
def compare_loops(repetitions: int, rounds: int) -> None:
    """Equipoise beside the loops and the limit."""
    limit = count_operations() / measure_speed()
    ways: dict[str, Callable[[int], float]] = {
        "equipoise": lambda rounds: time_ours("fedavg", rounds),
        "released codes' loop, all threads": time_loop,
        "the same in two processes": time_two_processes,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repetitions):
        for name, measure in ways.items():
            times[name].append(measure(rounds))
    print(f"W4, FedAvg, {count_cores()} cores, medians of {repetitions} x {rounds} rounds, interleaved\n")
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, times["equipoise"], strict=True))
        print(f"  {name:36s} {statistics.median(found):7.2f} s  {ratio:5.2f} x equipoise", flush=True)
    print(f"  {'arithmetic limit':36s} {limit:7.2f} s  ({count_operations() / 1e12:.2f} TFLOP)")


def compare_methods(names: list[str], repetitions: int, rounds: int) -> None:
    """Every method beside FedAvg. What FedEquilibria costs more is its exact Fisher, in epochs: FedAvg's round is one."""
    print(f"\nMethods beside FedAvg, medians of {repetitions} x {rounds} rounds\n")
    for name in names:
        ratios = []
        for _ in range(repetitions):
            plain = time_ours("fedavg", rounds)
            ratios.append(time_ours(name, rounds) / plain)
        print(
            f"  {name:16s} {statistics.median(ratios):5.2f} x FedAvg ({min(ratios):.2f}..{max(ratios):.2f})", flush=True
        )


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=("loops", "methods"), help="one of the two tables")
    options = parser.parse_args()
    if options.only != "methods":
        compare_loops(options.repetitions, options.rounds)
    if options.only != "loops":
        compare_methods(options.methods, options.repetitions, options.rounds)


if __name__ == "__main__":
    main()
