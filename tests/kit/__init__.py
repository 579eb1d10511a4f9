"""What the tests share: small federations, random rounds, quiet runs, and the properties that every part must have."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import equipoise
from equipoise import (
    Aggregated,
    EquipoiseWarning,
    Federation,
    Layout,
    Method,
    Outputs,
    Protocol,
    Run,
    Training,
    client_round,
    load_federation,
    run,
    server_round,
)
from equipoise.engine import RoundRecord
from equipoise.roles import Term
from equipoise.rounds import begin_server, make_broadcast
from equipoise.study.jobs import Job, begin, run_and_record
from equipoise.task import Task
from equipoise.types import ClientState, Local, Received, Replies, Server, Tensors

EXAMPLES = json.loads((Path(__file__).parents[1] / "examples" / "worked_examples.json").read_text())


# --------------------------------------------------------------------------- federations
def blobs(
    sizes: tuple[int, ...] = (23, 14, 9, 31),
    classes: int = 3,
    width: int = 6,
    seed: int = 0,
    test: int = 20,
    grouped: bool = False,
) -> Federation:
    """Clients of unequal size with shifted Gaussian classes, two to a domain, with validation and test data; `grouped`
    puts every other pair of samples into the second of two groups."""
    draw = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(classes, width, generator=draw)
    train, held, tested, domains = {}, {}, {}, {}
    for k, size in enumerate(sizes):
        for store, count in ((train, size), (held, max(3, size // 3)), (tested, test)):
            y = torch.arange(count) % classes
            x = centres[y] + torch.randn(count, width, generator=draw) + 0.7 * k
            store[f"c{k}"] = (x, y, (torch.arange(count) // 2 % 2).tolist()) if grouped else (x, y)
        domains[f"c{k}"] = f"d{k // 2}"
    protocol = Protocol(rounds=3, training=Training(epochs=2, batch=8, lr=0.1, momentum=0.9), model="mlp(hidden=(7,))")
    return Federation.from_tensors(
        train, test=tested, validation=held, domains=domains, classes=classes, name="blobs", protocol=protocol
    )


def pictures(sizes: tuple[int, ...] = (13, 10, 6, 9), seed: int = 0) -> Federation:
    """Clients with tiny images, for models with feature maps."""
    draw = torch.Generator().manual_seed(seed)
    train, held, tested, domains = {}, {}, {}, {}
    for k, size in enumerate(sizes):
        for store, count in ((train, size), (held, 4), (tested, 8)):
            y = torch.arange(count) % 3
            store[f"c{k}"] = (torch.rand(count, 1, 8, 8, generator=draw) + y[:, None, None, None] * 0.3, y)
        domains[f"c{k}"] = f"d{k // 2}"
    protocol = Protocol(
        rounds=2, training=Training(epochs=1, batch=5, lr=0.05, momentum=0.9), model="small_cnn(width=4)"
    )
    return Federation.from_tensors(
        train, test=tested, validation=held, domains=domains, classes=3, name="pictures", protocol=protocol
    )


def in_double(federation: Federation) -> Federation:
    """The same in float64."""
    return replace(federation, x=federation.x.double())


@contextmanager
def same_numbers() -> Iterator[None]:
    """Torch's random numbers are the same ones in every process, so that a test passes or fails in each alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        yield


class NormNet(nn.Module):
    """A network with batch statistics."""

    def __init__(self, inputs: int = 6, classes: int = 3) -> None:
        super().__init__()
        with same_numbers():
            self.body = nn.Sequential(nn.Linear(inputs, 5), nn.BatchNorm1d(5), nn.ReLU())
            self.head = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Outputs:
        features = self.body(x)
        return Outputs(self.head(features), features)


class DropNet(nn.Module):
    """A network with dropout."""

    def __init__(self, inputs: int = 6, classes: int = 3) -> None:
        super().__init__()
        with same_numbers():
            self.body = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Dropout(0.5))
            self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Outputs:
        features = self.body(x)
        return Outputs(self.head(features), features)


# --------------------------------------------------------------------------- runs
def quiet(*args: object, **options: object) -> Run:
    """A run without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EquipoiseWarning)
        return run(*args, **options)


def recorded(job: Job, folder: Path, on_round: Callable[[RoundRecord], None] | None = None) -> tuple[Run, Path]:
    """A job done and stored below a folder."""
    begun = begin(job, job.settings(load_federation(job.dataset)))
    return run_and_record(job, begun, folder, on_round)


class Stop(Exception):  # noqa: N818 - it stands for a kill
    """A run that a test ends in its middle."""


def stop_after(rounds: int):
    """A callback that ends the run after so many rounds."""

    def on_round(record):
        if record.round == rounds:
            raise Stop

    return on_round


# --------------------------------------------------------------------------- the quadratic toy of the worked examples
class Point(nn.Module):
    """Two parameters; the features are the distance of a sample from them."""

    def __init__(self, start: tuple[float, ...] = (0.0, 0.0)) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Outputs:
        return Outputs(torch.zeros(x.shape[0], 2), x - self.w)


@dataclass(frozen=True)
class Quadratic(Term):
    """Replaces the base loss by `0.5 ||w - a||^2`, `a` being the sample."""

    def base(self, losses: Tensor, local: Local) -> Tensor:
        return 0.5 * local.out.features.square().sum(1)


class Bowl(nn.Module):
    """Two parameters, and logits whose cross-entropy with label 0 is `0.5 ||w - x||^2`: every loss of the library is then
    that of the worked examples, reported ones too."""

    def __init__(self, start: tuple[float, ...] = (0.0, 0.0)) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Outputs:
        loss = 0.5 * (x - self.w).square().sum(1)
        return Outputs(torch.stack([torch.zeros_like(loss), torch.log(torch.expm1(loss))], 1), x - self.w)


def quadratic_federation(counts: tuple[int, ...] = (10, 20, 30)) -> Federation:
    """Three clients with optima (1,0), (0,2), (-1,1)."""
    optima = ((1.0, 0.0), (0.0, 2.0), (-1.0, 1.0))
    data = {
        f"c{k}": (torch.tensor(a).repeat(n, 1), torch.zeros(n))
        for k, (a, n) in enumerate(zip(optima, counts, strict=True))
    }
    return Federation.from_tensors(data, test=data, classes=2, name="quadratic")


class Played(NamedTuple):
    """What stands after one round."""

    server: Server
    replies: Replies
    states: dict[int, ClientState]
    result: Aggregated


def played(
    method: Method,
    participants: Sequence[Sequence[int]],
    *,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    training: Training | None = None,
    states: dict[int, ClientState] | None = None,
    seed: int = 0,
) -> list[Played]:
    """Rounds with these participants, by default on the quadratic toy with two full-batch steps."""
    training = training or Training(steps=2, batch=None, lr=0.1)
    task = Task.build(method, federation or quadratic_federation(), model=model or Bowl(), training=training, seed=seed)
    setting = task.setting(len(participants), seed)
    server, kept, found = begin_server(method, task), dict(states or {}), []
    for clients in participants:
        broadcast = make_broadcast(server, len(participants))
        new = [c for c in clients if c not in kept]
        kept |= client_round(method, task, new, broadcast, {}, seed, "start")[1] if new else {}
        replies, after = client_round(method, task, list(clients), broadcast, kept, seed)
        kept |= after
        server, result = server_round(method, server, replies, setting)
        found.append(Played(server, replies, dict(kept), result))
    return found


def local_of(
    out: Outputs,
    y: Tensor,
    *,
    shared: Tensors | None = None,
    states: ClientState | None = None,
    params: Tensors | None = None,
    keep: Tensor | None = None,
    round: int = 0,
    rounds: int = 1,
) -> Local:
    """A local step with these outputs, for terms alone."""
    params = params or {}
    received = Received(params, {}, shared or {}, {}, Layout.of(params))
    return Local(out, torch.zeros(len(y)), y, keep, params, received, states or {}, 0, round, rounds, 0.1, None)


# --------------------------------------------------------------------------- random rounds for server rules
@dataclass(frozen=True)
class RandomRound:
    clients: tuple[int, ...]
    updates: Tensor
    reports: dict[str, Tensor]


G, CLASSES, WIDTH, PERSONAL = 37, 4, 6, 5
LAYOUT = {"body": (9,), "head.weight": (CLASSES, WIDTH), "head.bias": (CLASSES,)}
FACTS = {
    "num_clients": 6,
    "rounds": 8,
    "layout": LAYOUT,
    "num_classes": CLASSES,
    "num_domains": 3,
    "total_samples": 600,
}


def random_round(seed: int, clients: tuple[int, ...], size: int = G) -> RandomRound:
    """Updates with plenty of conflicts, and every report, in float64."""
    draw = torch.Generator().manual_seed(seed)
    m = len(clients)
    common = torch.randn(size, generator=draw, dtype=torch.float64)
    updates = 0.4 * common + torch.randn(m, size, generator=draw, dtype=torch.float64)
    counts = torch.tensor([[5.0 + (7 * c + 3 * j) % 11 for j in range(CLASSES)] for c in clients], dtype=torch.float64)
    uniform = lambda *shape: torch.rand(*shape, generator=draw, dtype=torch.float64)  # noqa: E731
    reports = {
        "samples": counts.sum(1),
        "class_counts": counts,
        "loss": 0.2 + 2 * uniform(m),
        "gap": uniform(m) - 0.3,
        "fisher": uniform(m, size).square() * (0.1 + uniform(m, 1)),
        "loss_trained": 0.1 + uniform(m),
        "control": uniform(m, size) - 0.5,
        "prototypes": uniform(m, CLASSES, WIDTH),
        "prototype_counts": (counts - 8).clamp(min=0),  # some clients lack some classes
        "personal": uniform(m, PERSONAL) - 0.5,
        "steps": (1 + 9 * uniform(m)).round(),
        "normaliser": 1 + 20 * uniform(m),
        "loss_valid": 0.2 + uniform(m),
        "loss_valid_trained": 0.1 + uniform(m),
    }
    return RandomRound(clients, updates, reports)


ROUNDS = tuple(
    random_round(seed, clients)
    for seed, clients in enumerate([(0, 1, 2, 3), (1, 3, 4, 5), (0, 2, 5), (0, 1, 2, 3, 4, 5), (4,), (2, 3), (0, 1, 4)])
)


def rolled(
    method: Method, rounds: tuple[RandomRound, ...] = ROUNDS, dtype: torch.dtype = torch.float64
) -> list[equipoise.Aggregated]:
    """A rule over several rounds with partial participation."""
    theta = torch.linspace(-1, 1, rounds[0].updates.shape[1], dtype=dtype)
    memory, results = None, []
    for one in rounds:
        reports = {name: value.to(dtype) for name, value in one.reports.items()}
        result = equipoise.aggregate(
            method, theta, one.updates.to(dtype), clients=one.clients, reports=reports, server=memory, **FACTS
        )
        theta, memory = result.theta, result.server
        results.append(result)
    return results
