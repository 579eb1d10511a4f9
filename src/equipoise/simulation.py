"""A whole run in one process: rounds of `client_round` and `server_round`, with evaluation between them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from equipoise import seeds
from equipoise.data import Federation, load_federation
from equipoise.evaluation import Score, evaluate, scored_model
from equipoise.grammar import require
from equipoise.method import Method, parse
from equipoise.metrics import Figures, figures
from equipoise.round import Aggregated, begin, broadcast_of, server_probe, server_round
from equipoise.runners import RUNNERS, RunnerName, choose
from equipoise.task import BufferPolicy, ModelSource, Task
from equipoise.training import Training
from equipoise.types import ClientState, EquipoiseError, EquipoiseWarning, Server


@dataclass(frozen=True)
class RoundRecord:
    """What is known after one round. `scores` is empty in rounds that are not evaluated."""

    round: int  # counted from 1: rounds done
    clients: tuple[int, ...]
    weights: tuple[float, ...]
    figures: Mapping[str, tuple[float, ...]]  # what the weights came from, one value a client or one in all
    scores: tuple[Score, ...]
    seconds: float


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: the model, and everything that was measured on the way."""

    method: Method
    federation: Federation
    task: Task
    server: Server
    states: Mapping[int, ClientState]
    rounds: tuple[RoundRecord, ...]
    seed: int
    participation: float
    runner: str
    scored: str
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    settings: Mapping[str, object] = field(default_factory=dict)
    model: str = ""

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores of the last round."""
        return self.rounds[-1].scores

    def values(self, metric: str = "accuracy", split: str = "test") -> dict[str, float]:
        """The final value of a metric for each client, by name."""
        return {s.client: s.value for s in self.scores if s.metric == metric and s.split == split}

    def by_domain(self, metric: str = "accuracy", split: str = "test") -> dict[str, float]:
        """The final value of a metric for each domain: the mean over its clients."""
        found: dict[str, list[float]] = {}
        for s in self.scores:
            if s.metric == metric and s.split == split:
                found.setdefault(s.domain, []).append(s.value)
        return {domain: sum(values) / len(values) for domain, values in found.items()}

    def figures(self, by: str = "client") -> Figures:
        """AVG, STD, MIN and their kin of the final test accuracy, over clients or over domains."""
        values = self.values() if by == "client" else self.by_domain()
        return figures(list(values.values()))


def run(
    method: Method | str,
    federation: Federation | str,
    *,
    model: ModelSource | None = None,
    rounds: int | None = None,
    seed: int = 0,
    participation: float | None = None,
    training: Training | None = None,
    buffers: BufferPolicy | Mapping[str, BufferPolicy] = "average",
    runner: RunnerName = "auto",
    device: str = "cpu",
    eval_every: int = 1,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> Run:
    """Train a method on a federation. What is not given comes from the federation's protocol.

    >>> result = run("fedavg", "gaussians", rounds=2)
    >>> sorted(result.values()) == sorted(result.values("accuracy", "test"))
    True
    """
    data = load_federation(federation) if isinstance(federation, str) else federation
    chosen = (parse(method) if isinstance(method, str) else method).for_data(data.name)
    if chosen.validates:
        data = data.with_validation()
    protocol = data.protocol
    total = protocol.rounds if rounds is None else rounds
    part = protocol.participation if participation is None else participation
    check_options(total, part, eval_every, device)
    task = Task.build(chosen, data, model=model, training=training, buffers=buffers, seed=seed, device=device)
    count = max(1, round(part * len(task.federation)))
    name = choose(runner, task, count)
    setting = task.setting(total, seed)
    compute = RUNNERS[name]
    server = begin(chosen, task)
    states: dict[int, ClientState] = {}
    records: list[RoundRecord] = []
    said: list[str] = list(task.notes)
    for text in said:
        warnings.warn(text, EquipoiseWarning, stacklevel=2)
    began = time.perf_counter()
    for r in range(total):
        clock = time.perf_counter()
        available = [k for k, client in enumerate(task.federation.clients) if client.joins <= r]
        if not available:
            raise EquipoiseError(
                f"No client takes part in round {r}: every client joins later. Let one join in round 0."
            )
        clients = seeds.participants(available, count, seed, r)
        new = [c for c in clients if c not in states]
        if new:
            states |= compute(chosen, task, new, broadcast_of(server, total), {}, seed, "start")[1]
        if chosen.probes:
            replies, _ = compute(chosen, task, clients, broadcast_of(server, total), states, seed, "probe")
            server = server_probe(chosen, server, replies, setting)
        replies, kept = compute(chosen, task, clients, broadcast_of(server, total), states, seed, "train")
        server, result = server_round(chosen, server, replies, setting)
        states |= kept
        _check_finite(server, chosen, r)
        for text in result.warnings:
            kind = text.split(":")[0]
            if kind not in {s.split(":")[0] for s in said}:
                said.append(text)
                warnings.warn(text, EquipoiseWarning, stacklevel=2)
        last = r == total - 1
        scores = evaluate(chosen, task, server, states, data) if last or (r + 1) % eval_every == 0 else []
        record = _record(r + 1, replies.clients, result, scores, time.perf_counter() - clock)
        records.append(record)
        if on_round:
            on_round(record)
    seconds = time.perf_counter() - began
    settings = {"rounds": total, "participation": part, "buffers": buffers, "device": device, "eval_every": eval_every}
    return Run(
        chosen, data, task, server, states, tuple(records), seed, part, name, scored_model(chosen, task), tuple(said),
        seconds, settings, _model_name(model, data),
    )  # fmt: skip


def _record(
    number: int, clients: tuple[int, ...], result: Aggregated, scores: list[Score], seconds: float
) -> RoundRecord:
    where = {name: tuple(value.double().reshape(-1).tolist()) for name, value in result.figures.items()}
    return RoundRecord(number, clients, tuple(result.weights.double().tolist()), where, tuple(scores), seconds)


def _model_name(model: ModelSource | None, data: Federation) -> str:
    if model is None or isinstance(model, str):
        return model or data.protocol.model
    return type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "own model")


def _check_finite(server: Server, method: Method, r: int) -> None:
    if not bool(torch.isfinite(server.theta).all()):
        raise EquipoiseError(
            f"The model of `{method}` is not finite after round {r + 1}: the run diverged. Try a smaller learning rate."
        )


def check_options(rounds: int, participation: float, eval_every: int, device: str) -> None:
    """Refuse options that no run can have."""
    require(rounds >= 1, "rounds", "at least 1", rounds)
    require(0 < participation <= 1, "participation", "above 0 and at most 1", participation)
    require(eval_every >= 1, "eval_every", "at least 1", eval_every)
    kind = device.split(":")[0]
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in here:
        raise EquipoiseError(f"Device must be cpu, cuda or mps. Found {device!r}.")
    if not here[kind]:
        usable = ", ".join(name for name, present in here.items() if present)
        raise EquipoiseError(f"Device {device!r} is not available here. Usable: {usable}.")
