"""A whole run in one process: rounds of `client_round` and `server_round`, with evaluation between them."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from equipoise import seeds
from equipoise.data import Federation, load_federation
from equipoise.data.federation import Split
from equipoise.evaluation import Score, evaluate, scored_model
from equipoise.grammar import require
from equipoise.method import Method, parse
from equipoise.metrics import Figures, figures
from equipoise.round import Aggregated, begin, broadcast_of, server_probe, server_round
from equipoise.runners import Errand, Runner, RunnerName, choose, cores, opened
from equipoise.states import ClientStates
from equipoise.task import BufferPolicy, ModelSource, Task
from equipoise.training import Training
from equipoise.types import ClientState, EquipoiseError, EquipoiseWarning, Server, Setting


@dataclass(frozen=True)
class Rejection:
    """A client's answer that did not count in a round."""

    client: str
    why: str


@dataclass(frozen=True)
class RoundRecord:
    """What is known after one round. `scores` is empty in rounds that are not evaluated."""

    round: int  # counted from 1: rounds done
    clients: tuple[int, ...]
    weights: tuple[float, ...]
    figures: Mapping[str, tuple[float, ...]]  # what the weights came from, one value a client or one in all
    scores: tuple[Score, ...]
    seconds: float
    rejected: tuple[Rejection, ...] = ()  # answers that did not count, and why


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
        if by not in ("client", "domain"):
            raise EquipoiseError(
                f"Figures are over each client or each domain. Found by={by!r}: say 'client' or 'domain'."
            )
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
    threads: int | None = None,
    on_round: Callable[[RoundRecord], None] | None = None,
    on_begin: Callable[[Run], None] | None = None,
) -> Run:
    """Train a method on a federation. What is not given comes from the federation's protocol.

    `threads` is the number of cores to use, by default all of them; `on_begin` is called with the run before its first round,
    `on_round` after every round. Where clients have validation data, they are scored on it as well.

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
    at_hand = threads or cores()
    name = choose(runner, chosen, task, count, total, at_hand)
    setting = task.setting(total, seed)
    server = begin(chosen, task, count)
    states = ClientStates()
    records: list[RoundRecord] = []
    said: dict[str, str] = {}
    splits: tuple[Split, ...] = ("test", "validation") if any(len(c.validation) for c in data.clients) else ("test",)
    settings = {"rounds": total, "participation": part, "buffers": buffers, "device": device, "eval_every": eval_every}
    start = Run(
        method=chosen,
        federation=data,
        task=task,
        server=server,
        states=states,
        rounds=(),
        seed=seed,
        participation=part,
        runner=name,
        scored=scored_model(chosen, task),
        settings=settings,
        model=_model_name(model, data),
    )
    if on_begin:
        on_begin(start)
    overruled = _overruled(chosen, training)
    began = time.perf_counter()
    with opened(name, chosen, task, count, at_hand) as compute:
        for r in range(total):
            clock = time.perf_counter()
            clients = seeds.participants(task.federation.available(r), count, seed, r)
            server, kept, result = one_round(chosen, compute, server, states, clients, setting, seed)
            states.update(kept)
            _check_finite(server, chosen, r)
            for text in (*task.notes, *overruled, *result.warnings):
                kind = text.split(":")[0]
                if kind not in said:  # each kind of warning once
                    said[kind] = text
                    warnings.warn(text, EquipoiseWarning, stacklevel=2)
            due = r == total - 1 or (r + 1) % eval_every == 0
            scores = evaluate(chosen, task, server, states, data, splits) if due else []
            if any(score.metric == "loss" and not math.isfinite(score.value) for score in scores):
                raise _diverged(chosen, r)
            records.append(_record(r + 1, tuple(clients), result, scores, time.perf_counter() - clock))
            if on_round:
                on_round(records[-1])
    seconds = time.perf_counter() - began
    return replace(start, server=server, rounds=tuple(records), warnings=tuple(said.values()), seconds=seconds)


def one_round(
    method: Method,
    compute: Runner,
    server: Server,
    states: Mapping[int, ClientState],
    clients: list[int],
    setting: Setting,
    seed: int,
) -> tuple[Server, dict[int, ClientState], Aggregated]:
    """All phases of one round: start (for clients not seen before), probe (if the method asks), train.

    Gives the next server, what the round's clients keep, and what the server's rule made of the round.
    """
    rounds = setting.rounds or 0
    new = [c for c in clients if c not in states]
    mine = {c: states[c] for c in clients if c in states}
    if new:
        mine |= compute(Errand(new, broadcast_of(server, rounds), {}, seed, "start"))[1]
    if method.probes:
        replies, _ = compute(Errand(clients, broadcast_of(server, rounds), mine, seed, "probe"))
        server = server_probe(method, server, replies, setting)
    replies, kept = compute(Errand(clients, broadcast_of(server, rounds), mine, seed, "train"))
    server, result = server_round(method, server, replies, setting)
    return server, kept, result


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
        raise _diverged(method, r)


def _diverged(method: Method, r: int) -> EquipoiseError:
    return EquipoiseError(
        f"The model of `{method}` is not finite after round {r + 1}: the run diverged. Try a smaller learning rate."
    )


def _overruled(method: Method, training: Training | None) -> tuple[str, ...]:
    """What the user asked of the local optimiser, and the method does otherwise."""
    if training is None:
        return ()
    changed = [f"{name}={value!r}" for name, value in method.training if getattr(training, name) != value]
    return (f"{method}: trains with {', '.join(changed)}, whatever the run says.",) if changed else ()


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
