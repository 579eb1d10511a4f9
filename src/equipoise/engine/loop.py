"""A whole run in one process: rounds of `client_round` and `server_round`, with evaluation between them."""

from __future__ import annotations

import math
import time
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from equipoise import seeds
from equipoise.data import Federation, load_federation
from equipoise.data.federation import Split
from equipoise.engine import checkpoints
from equipoise.engine.checkpoints import Checkpoints, Moment
from equipoise.engine.checks import SIMULATED, Checks, Expected, Refusal, declared, expected, sound, sums_up
from equipoise.engine.guard import Guard, believed, guarded
from equipoise.engine.runners import Errand, Runner, RunnerName, choose, cores, opened
from equipoise.engine.states import ClientStates
from equipoise.grammar import require
from equipoise.method import Method, parse
from equipoise.method.plugins import code_of
from equipoise.metrics import Figures, figures
from equipoise.roles import Phase, Step
from equipoise.rounds.evaluation import Score, evaluate, scored_model
from equipoise.rounds.server import Aggregated, begin, broadcast_of, server_probe, server_round
from equipoise.task import BufferPolicy, ModelSource, Task
from equipoise.training import Training
from equipoise.types import (
    ClientState,
    EquipoiseError,
    EquipoiseWarning,
    Replies,
    Round,
    Server,
    Setting,
    State,
    Stepped,
)


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
    warnings: tuple[str, ...] = ()  # what was said in this round for the first time


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
    checks: Checks = SIMULATED,
    guard: Guard | None = None,
    checkpoint: Checkpoints | None = None,
    on_begin: Callable[[Run], None] | None = None,
    on_server: Callable[[Server], None] | None = None,
) -> Run:
    """Train a method on a federation. What is not given comes from the federation's protocol.

    `threads` is the number of cores to use, by default all of them; `on_begin` is called with the run before its first round,
    `on_server` with the server and `on_round` with the record after every round. Where clients have validation data, they are
    scored on it as well. `checks` says which answers count, `guard` limits what a lying loss can gain, `checkpoint` lets the
    run survive: see `docs/reliability.md`.

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
    served = served_method(chosen, checks, guard)
    settings = {
        "rounds": total, "participation": part, "buffers": buffers, "device": device, "eval_every": eval_every,
        **({"guard": asdict(guard)} if guard else {}),
    }  # fmt: skip
    start = Moment(begin(served, task, count), {}, [])
    begun = Run(
        method=chosen,
        federation=data,
        task=task,
        server=start.server,
        states={},
        rounds=(),
        seed=seed,
        participation=part,
        runner=name,
        scored=scored_model(chosen, task),
        settings=settings,
        model=model_name(model or data.protocol.model),
    )
    splits: tuple[Split, ...] = ("test", "validation") if any(len(c.validation) for c in data.clients) else ("test",)
    facts = {
        "method": str(chosen), "data": data.fingerprint, "model": begun.model, "seed": seed, **settings,
        "training": asdict(task.training), "runner": name, "first model": checkpoints.fingerprint(start.server),
        "checks": asdict(checks), **({"code": code} if (code := code_of(chosen)) else {}),
    }  # fmt: skip
    folder = None if checkpoint is None else Path(checkpoint.folder)
    with nullcontext() if folder is None else checkpoints.held(folder):
        notes = [*task.notes, *_overruled(chosen, training)]
        if checkpoint is not None:
            found, wrong = checkpoints.prepared(checkpoint, facts, total)
            start, notes = found or start, [*notes, *wrong]
        server, records, said = start.server, list(start.records), dict(start.said)
        states = ClientStates()
        states.update(start.states)
        began = time.perf_counter() - start.seconds
        if on_begin:
            on_begin(begun)
        for record in records:
            if on_round:
                on_round(record)

        def keep() -> None:
            """A checkpoint; only between two rounds, never of half a round."""
            if folder is not None and server.memory.round == len(records) > 0:
                moment = Moment(server, states, records, said, time.perf_counter() - began)
                checkpoints.write(folder, moment, facts)

        judge = Judge(served, task, checks, guard, declared(task))
        with opened(name, served, task, count, at_hand) as compute, _kept_on_interrupt(keep):
            for r in range(len(records), total):
                clock = time.perf_counter()
                clients = seeds.participants(task.federation.available(r), count, seed, r)
                done = one_round(judge, compute, server, states, clients, setting, seed)
                refuse_infinite(done.server, chosen, r)
                rejected = tuple(Rejection(_name(task, c), why) for c, why in done.refused)
                news = []
                for text in (
                    *notes,
                    *done.warnings,
                    *(f"{x.client} was left out: in round {r + 1} {x.why}" for x in rejected),
                ):
                    kind = text.split(":")[0]
                    if kind not in said:  # each kind of warning once
                        said[kind] = text
                        news.append(text)
                        warnings.warn(text, EquipoiseWarning, stacklevel=2)
                due = r == total - 1 or (r + 1) % eval_every == 0
                after = ChainMap(dict(done.kept), states)
                scores = evaluate(chosen, task, done.server, after, data, splits) if due else []
                if any(score.metric == "loss" and not math.isfinite(score.value) for score in scores):
                    raise _diverged(chosen, r)
                record = record_of(r + 1, done, scores, time.perf_counter() - clock, rejected)
                records.append(replace(record, warnings=tuple(news)))
                states.update(done.kept)
                server = done.server  # last: only then is the round over for `keep`
                _stop_without_updates(records, checks)
                if checkpoint is not None and ((r + 1) % checkpoint.every == 0 or r == total - 1):
                    keep()
                if on_server:
                    on_server(server)
                if on_round:
                    on_round(records[-1])
    seconds = time.perf_counter() - began
    return replace(
        begun, server=server, states=states, rounds=tuple(records), warnings=tuple(said.values()), seconds=seconds
    )


@contextmanager
def _kept_on_interrupt(keep: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C loses the round at work, not those before it."""
    try:
        yield
    except KeyboardInterrupt:
        keep()
        raise


@dataclass(frozen=True)
class EverySingleRow(Step):
    """Changes nothing, but looks at single updates: a runner then keeps them apart, so that their lengths can be checked."""

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        return Stepped(direction)


def served_method(method: Method, checks: Checks, guarding: Guard | None) -> Method:
    """The method as the server runs it: with the guard's caps, and with single updates where their lengths are checked."""
    if guarding is not None:
        method = guarded(method, guarding)
    if checks.norm is not None and method.streams:
        method = replace(method, step=(*method.step, EverySingleRow()))
    return method


@dataclass(frozen=True)
class Judge:
    """What decides which answers of a run count."""

    method: Method
    task: Task
    checks: Checks = SIMULATED
    guard: Guard | None = None
    samples: Mapping[int, float] = field(default_factory=dict)

    def expects(self, server: Server, clients: Sequence[int], phase: Phase) -> Expected:
        """What these clients should send."""
        return expected(self.method, self.task, server, clients, phase, self.samples)


@dataclass(frozen=True, eq=False)
class Done:
    """What one round came to. Without a result the model is the one before."""

    server: Server
    kept: Mapping[int, ClientState]  # what the clients that counted keep
    clients: tuple[int, ...]
    result: Aggregated | None
    refused: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()


def one_round(
    judge: Judge,
    compute: Runner,
    server: Server,
    states: Mapping[int, ClientState],
    clients: list[int],
    setting: Setting,
    seed: int,
) -> Done:
    """All phases of one round: start (for clients not seen before), probe (if the method asks), train.

    It commits whole or not at all: the server that comes out is the next one, or, with too few valid answers, the one that
    went in with only its round counted.
    """
    rounds = setting.rounds or 0
    method, checks = judge.method, judge.checks
    new = [c for c in clients if c not in states]
    mine = {c: states[c] for c in clients if c in states}
    if new:
        mine |= compute(Errand(new, broadcast_of(server, rounds), {}, seed, "start"))[1]
    refused: list[Refusal] = []
    for _ in range(checks.patience if checks.too_few == "repeat" else 1):
        before, asked = server, clients
        notes: tuple[str, ...] = ()
        if method.probes:
            replies, _kept, bad = answers(
                judge, compute, Errand(clients, broadcast_of(server, rounds), mine, seed, "probe")
            )
            refused += bad
            asked = list(replies.clients) if replies else []
            if replies is not None and len(asked) >= checks.quorum:
                before, replies, notes = as_believed(judge.guard, server, replies)
                before = server_probe(method, before, replies, setting)
        if len(asked) < checks.quorum:
            continue
        replies, kept, bad = answers(judge, compute, Errand(asked, broadcast_of(before, rounds), mine, seed, "train"))
        refused += bad
        if replies is None or len(replies.clients) < checks.quorum:
            continue
        before, replies, more = as_believed(judge.guard, before, replies)
        after, result = server_round(method, before, replies, setting)
        kept = {client: kept[client] for client in replies.clients}
        return Done(after, kept, replies.clients, result, tuple(refused), (*notes, *more, *result.warnings))
    if checks.too_few == "stop":
        if all(why.endswith("not finite") for _, why in refused):
            raise _diverged(method, server.memory.round)
        raise EquipoiseError(
            f"Round {server.memory.round + 1} has fewer than {checks.quorum} valid answers: "
            f"{'; '.join(f'{_name(judge.task, c)}: {why}' for c, why in refused[:3])}."
        )
    counted = replace(server, memory=replace(server.memory, round=server.memory.round + 1))
    text = f"no update: round {server.memory.round + 1} has fewer than {checks.quorum} valid answers"
    return Done(counted, {}, (), None, tuple(refused), (text,))


def answers(
    judge: Judge, compute: Runner, errand: Errand
) -> tuple[Replies | None, dict[int, ClientState], list[Refusal]]:
    """What the clients sent, without what does not count.

    Of a sum that is not finite the culprits are found by asking one by one; then the others are asked again, so that the sum
    is the one that it would have been without them.
    """
    wanted = judge.expects(Server(errand.broadcast.theta, errand.broadcast.buffers), errand.clients, errand.phase)
    replies, kept = compute(errand)
    good, refused = sound(replies, wanted, judge.checks)
    if replies.total is None:
        return good, kept, refused
    bad = {client for client, _ in refused}
    if not sums_up(replies):
        for client in errand.clients:
            if client not in bad and not sums_up(compute(errand._replace(clients=[client]))[0]):
                refused.append(Refusal(client, "the update is not finite"))
                bad.add(client)
    left = [client for client in errand.clients if client not in bad]
    if not bad:
        return replies, kept, refused
    if not left:
        return None, {}, sorted(refused)
    replies, kept = compute(errand._replace(clients=left))
    return replies, kept, sorted(refused)


def as_believed(guarding: Guard | None, server: Server, replies: Replies) -> tuple[Server, Replies, tuple[str, ...]]:
    """The reports as a guard, if there is one, believes them; the server that remembers it; and what it did."""
    return (server, replies, ()) if guarding is None else believed(guarding, server, replies)


def _name(task: Task, client: int) -> str:
    clients = task.federation.clients
    return clients[client].name if 0 <= client < len(clients) else f"client {client}"


def _stop_without_updates(records: Sequence[RoundRecord], checks: Checks) -> None:
    last = records[-checks.patience :]
    if len(last) == checks.patience and not any(record.clients for record in last):
        raise EquipoiseError(
            f"{checks.patience} rounds without an update: each had fewer than {checks.quorum} valid answers. The records "
            "of the rounds say why."
        )


def record_of(
    number: int, done: Done, scores: Sequence[Score], seconds: float, rejected: tuple[Rejection, ...]
) -> RoundRecord:
    """What a round's record holds."""
    if done.result is None:
        return RoundRecord(number, (), (), {}, tuple(scores), seconds, rejected)
    where = {name: tuple(value.double().reshape(-1).tolist()) for name, value in done.result.figures.items()}
    weights = tuple(done.result.weights.double().tolist())
    return RoundRecord(number, done.clients, weights, where, tuple(scores), seconds, rejected)


def model_name(model: ModelSource) -> str:
    """How a model is called in records: as it was written, or by its class or function."""
    if isinstance(model, str):
        return model
    return type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "own model")


def refuse_infinite(server: Server, method: Method, r: int) -> None:
    """A model that is not finite ends the run."""
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
