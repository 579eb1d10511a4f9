"""The loop over rounds. In each it finds out who takes part, asks for answers, checks and guards them, does the
server's half, scores the model, and writes a record and perhaps a checkpoint.

There is only this one loop: a simulation and a federation of real sites differ in their desk alone.
"""

from __future__ import annotations

import math
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from equipoise.convergence import EVALUATIONS, STRETCHES
from equipoise.engine import checkpoints
from equipoise.engine.checkpoints import Checkpoints, Snapshot, hash_model
from equipoise.engine.checks import Refusal
from equipoise.engine.desk import Desk
from equipoise.engine.folders import lock_folder
from equipoise.engine.judge import Judge
from equipoise.engine.result import Rejection, RoundRecord, Run, Selection, judge_records
from equipoise.engine.selection import choose_clients
from equipoise.engine.settings import Settings
from equipoise.engine.states import ClientStates
from equipoise.method import Method
from equipoise.roles import Phase
from equipoise.rounds.evaluation import Score, name_scored_model
from equipoise.rounds.server import Aggregated, begin_server, server_probe, server_round
from equipoise.task import Task
from equipoise.types import ClientState, EquipoiseError, Replies, Server, Tensors

LOOK_EVERY = 10  # rounds between two looks at whether a run has converged


def begin_run(settings: Settings, runner: str = "", device: str | None = None) -> Run:
    """The run before its first round: its task is built, and its server holds the first model.

    `device` is where this process trains; default: where the settings say.
    """
    method = settings.method
    task = Task.build(
        method,
        settings.federation,
        model=settings.model,
        training=settings.training,
        buffers=settings.buffers,
        seed=settings.seed,
        device=device or settings.device,
        loss=settings.loss,
        metrics=settings.metrics,
    )
    return Run(
        settings=settings,
        task=task,
        server=begin_server(method, task, settings.cohort),
        states={},
        rounds=(),
        runner=runner,
        scored=name_scored_model(method, task),
    )


def proceed(
    begun: Run,
    desk: Desk,
    *,
    checkpoint: Checkpoints | None = None,
    on_round: Callable[[RoundRecord, Server], None] | None = None,
    on_earlier: Callable[[RoundRecord], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    on_repeat: Callable[[int, Sequence[Rejection]], None] | None = None,
) -> Run:
    """Do all rounds of a run.

    `on_round` is called after each round with its record and the server. If the run goes on from a checkpoint,
    `on_earlier` is called with the records of the rounds before it. `on_note` is called with what a reader of the
    results should know, once per kind of note; `on_repeat` with the number of a round that is to be repeated, each time
    that it had too few answers, and those that did not count.

    After too few answers in as many tries in a row as the checks have patience for, the run ends early and says so in
    `stopped`. So does a run that pauses, as its checkpoints ask for.
    """
    folder = None if checkpoint is None else Path(checkpoint.folder)
    with nullcontext() if folder is None or not desk.leads else lock_folder(folder):
        notes = [*begun.task.notes, *begun.settings.notes]
        start = Snapshot(begun.server, {}, [])
        facts = {**begun.settings.facts, "runner": begun.runner, "first model": hash_model(begun.server)}
        if checkpoint is not None:
            led = desk.lead(lambda: checkpoints.resume_or_clear(checkpoint, facts, begun.settings.rounds))
            found, wrong = led if led is not None else (None, [])
            start, notes = desk.deal_out(found or start), [*notes, *wrong]
        loop = _Loop(begun, desk, start, on_note, None if checkpoint is None else checkpoint.pause)
        for earlier in loop.records:
            if on_earlier:
                on_earlier(earlier)
        loop.say(notes)

        def keep() -> None:
            """Write a checkpoint, but only between two rounds, never of half a round."""
            if folder is not None and loop.server.memory.round == len(loop.records) > 0:
                snapshot = loop.snapshot()
                desk.lead(lambda: checkpoints.write(folder, snapshot, facts))

        # Several processes are interrupted at different places: they cannot write one together.
        with _kept_on_interrupt(keep) if desk.is_alone else nullcontext():
            while loop.goes_on:
                record = loop.play()
                if record is None:  # too few answers: the round is repeated
                    if on_repeat:
                        on_repeat(loop.server.memory.round + 1, loop.refused)
                    continue
                done = record.round
                if checkpoint is not None and (checkpoint.is_due(done) or done == begun.settings.rounds):
                    keep()
                if on_round:
                    on_round(record, loop.server)
        return loop.end()


@contextmanager
def _kept_on_interrupt(keep: Callable[[], None]) -> Iterator[None]:
    """On Ctrl-C, write a checkpoint first: only the round at work is lost."""
    try:
        yield
    except KeyboardInterrupt:
        keep()
        raise


class _Loop:
    """A run in progress: all that changes from round to round."""

    def __init__(
        self, begun: Run, desk: Desk, start: Snapshot, on_note: Callable[[str], None] | None, pause: int | None
    ) -> None:
        self.begun, self.desk, self.on_note, self.pause = begun, desk, on_note, pause
        self.settings: Settings = begun.settings
        self.judge = Judge.of(begun)
        self.server, self.records, self.said = start.server, list(start.records), dict(start.said)
        self.states = ClientStates()
        self.states.update(start.states)
        self.began = time.perf_counter() - start.seconds
        self.failed = 0  # tries in a row without an update
        self.refused: Sequence[Rejection] = ()  # the answers that did not count in the last try
        self.name = desk.open(start.run, self.records)

    @property
    def goes_on(self) -> bool:
        return (
            len(self.records) < self.settings.rounds
            and self.failed < self.settings.checks.patience
            and not self.is_paused
            and not self.is_flat
        )

    @property
    def is_paused(self) -> bool:
        """Whether the round is done after which the run is to pause."""
        return self.pause is not None and len(self.records) >= self.pause

    @property
    def is_flat(self) -> bool:
        """Whether the run is to end because it has converged. Looked at every ten rounds: more looks, more false ones."""
        done = len(self.records)
        if not self.settings.until_flat or done == 0 or done % LOOK_EVERY or not self.records[-1].scores:
            return False
        recent = [record for record in self.records[-(done // STRETCHES[0]) :] if record.scores]
        return len(recent) >= EVALUATIONS and judge_records(self.records).state == "flat"

    def say(self, texts: Sequence[str]) -> list[str]:
        """Say texts of a kind that was not said before, and return them. The words before the colon are the kind."""
        news = []
        for text in texts:
            kind = text.split(":")[0]
            if kind not in self.said:
                self.said[kind] = text
                news.append(text)
                if self.on_note:
                    self.on_note(text)
        return news

    def snapshot(self) -> Snapshot:
        seconds = time.perf_counter() - self.began
        server, states = self.desk.bring_together(self.server, self.states)
        return Snapshot(server, states, self.records, self.said, seconds, self.name)

    def play(self) -> RoundRecord | None:
        """Do one round. None means that it had too few answers and is to be repeated."""
        clock = time.perf_counter()
        r, settings = self.server.memory.round, self.settings
        present, away = self.desk.find_present(self.begun.task.federation.available(r))
        chosen = choose_clients(
            self.judge, self.desk, self.server, self.states, present, settings.cohort, settings.seed
        )
        known = ChainMap(dict(chosen.started), self.states)
        done = play_round(self.judge, self.desk, chosen.server, known, chosen.clients, settings.seed, chosen.refused)
        refuse_infinite(done.server, settings.method, r)
        rejected = [*away, *(Rejection(self.judge.name_of(one.client), one.why) for one in done.refused)]
        news = [
            *chosen.notes,
            *done.notes,
            *(f"{one.client} was left out: in round {r + 1} {one.why}" for one in rejected),
        ]
        self.failed = 0 if done.result is not None else self.failed + 1
        self.refused = tuple(rejected)
        if done.result is None and settings.checks.too_few == "repeat":
            self.say(news)
            return None
        self.desk.count(done.clients, r)  # before scoring: clients score with their state after this round
        scores: Sequence[Score] = ()
        if r == settings.rounds - 1 or (r + 1) % settings.eval_every == 0:
            scores, unscored = self.desk.score(done.server, done.kept, known)
            rejected += [replace(one, why=f"its evaluation: {one.why}") for one in unscored]
            if any(score.metric == "loss" and not math.isfinite(score.value) for score in scores):
                raise _diverged(settings.method, r)
        seconds = time.perf_counter() - clock
        record = _record(
            r + 1, done, scores, seconds, rejected, self.say(news), chosen.selection, self.judge.find_rate(r)
        )
        self.records.append(record)
        self.states.update({**chosen.started, **done.kept})
        self.server = done.server  # last: only then is the round over
        return record

    def end(self) -> Run:
        """The run as it is now."""
        stopped, total = "", self.settings.rounds
        if len(self.records) < total and self.failed >= self.settings.checks.patience:
            stopped = (
                f"The run stopped after {len(self.records)} of {total} rounds: {self.failed} times on end too few clients "
                "answered."
            )
            if not self.records:
                raise EquipoiseError(f"{stopped} {' '.join(list(self.said.values())[-3:])}")
            self.say([stopped])
        elif len(self.records) < total and not self.is_flat:
            stopped = f"The run is paused after {len(self.records)} of {total} rounds."
        server, states = self.desk.bring_together(self.server, self.states)
        return replace(
            self.begun,
            server=server,
            states=states,
            rounds=tuple(self.records),
            warnings=tuple(self.said.values()),
            seconds=time.perf_counter() - self.began,
            stopped=stopped,
        )


# --------------------------------------------------------------------------- one round
@dataclass(frozen=True, eq=False)
class Done:
    """The outcome of one round."""

    server: Server  # after the round
    kept: Mapping[int, ClientState]  # what the clients that counted keep
    clients: tuple[int, ...]  # that counted
    result: Aggregated | None  # None: too few answered, and the model is the one before the round
    refused: tuple[Refusal, ...] = ()  # answers that did not count, and why
    notes: tuple[str, ...] = ()  # what a reader of the results should know


class _Probed(NamedTuple):
    """The figures of a probe, by the order of the clients that answered it."""

    clients: tuple[int, ...]
    figures: Tensors  # [m] or [] each

    def find_figures(self, clients: Sequence[int]) -> Tensors:
        """The figures of those clients that also trained."""
        rows = [self.clients.index(client) for client in clients] if self.clients else []
        return {name: value[rows] if value.dim() else value for name, value in self.figures.items()}


def play_round(
    judge: Judge,
    desk: Desk,
    server: Server,
    states: Mapping[int, ClientState],
    clients: Sequence[int],
    seed: int,
    refused_before: Sequence[Refusal] = (),
) -> Done:
    """Do all phases of one round: start (for clients not seen before), probe (if the method asks for it), train.

    `refused_before` are answers of candidates that did not count, before the round's clients were selected.

    The round counts as a whole or not at all: the server that comes out is the next one or, with too few valid answers,
    the one that went in (with its round counted, where such rounds are skipped).
    """
    method, checks, setting = judge.method, judge.checks, judge.setting
    quorum = checks.find_quorum(len(clients))
    setting = setting._replace(lr=judge.find_rate(server.memory.round))
    refused = list(refused_before)
    notes: list[str] = []
    before, asked = server, list(clients)
    probed = _Probed((), {})
    mine = {c: states[c] for c in clients if c in states}

    def ask(phase: Phase, some: Sequence[int]) -> tuple[Replies | None, Mapping[int, ClientState]]:
        heard = judge.ask(desk, before, mine, some, seed, phase)
        refused.extend(heard.refused)
        return heard.replies, heard.kept

    new = [c for c in clients if c not in states]
    if new:
        mine |= ask("start", new)[1]
    if method.probes and asked:
        replies, _ = ask("probe", asked)
        asked = [] if replies is None else list(replies.clients)
        if replies is not None and len(asked) >= quorum:
            before, replies, clipped = judge.believe(before, replies)
            notes += clipped
            before, figures = server_probe(method, before, replies, setting)
            probed = _Probed(replies.clients, figures)
    if len(asked) >= quorum:
        replies, kept = ask("train", asked)
        asked = [] if replies is None else list(replies.clients)
        if replies is not None and len(asked) >= quorum:
            before, replies, clipped = judge.believe(before, replies)
            after, result = server_round(method, before, replies, setting)
            result = replace(result, figures={**probed.find_figures(replies.clients), **result.figures})
            kept = {client: kept[client] for client in replies.clients if client in kept}
            return Done(after, kept, replies.clients, result, tuple(refused), (*notes, *clipped, *result.warnings))
    return _without_update(judge, server, len(clients), len(asked), quorum, refused)


def _without_update(
    judge: Judge, server: Server, asked: int, valid: int, quorum: int, refused: Sequence[Refusal]
) -> Done:
    """The outcome of a round with too few valid answers."""
    r, checks = server.memory.round, judge.checks
    if refused and valid == 0 and all(one.is_not_finite for one in refused) and checks.too_few == "stop":
        raise _diverged(judge.method, r)
    reasons = "; ".join(f"{judge.name_of(one.client)}: {one.why}" for one in refused[:3])
    text = f"{valid} of {asked} clients gave a valid answer, and it needs {quorum}" + (
        f" ({reasons})" if reasons else ""
    )
    if checks.too_few == "stop":
        raise EquipoiseError(f"Round {r + 1} cannot be done: {text}.")
    if checks.too_few == "repeat":
        return Done(server, {}, (), None, tuple(refused), (f"Round {r + 1} was repeated: {text}.",))
    counted = replace(server, memory=replace(server.memory, round=r + 1))
    return Done(counted, {}, (), None, tuple(refused), (f"Round {r + 1} was skipped: {text}.",))


def _record(
    number: int,
    done: Done,
    scores: Sequence[Score],
    seconds: float,
    rejected: Sequence[Rejection],
    news: Sequence[str],
    selection: Selection,
    rate: float,
) -> RoundRecord:
    """The record of a round."""
    weights: tuple[float, ...] = ()
    figures: dict[str, tuple[float, ...]] = {}
    if done.result is not None:
        weights = tuple(done.result.weights.double().tolist())
        figures = {name: tuple(value.double().reshape(-1).tolist()) for name, value in done.result.figures.items()}
    return RoundRecord(
        number, done.clients, weights, figures, tuple(scores), seconds, tuple(rejected), tuple(news), selection, rate
    )


def refuse_infinite(server: Server, method: Method, r: int) -> None:
    """End the run with an error if the model is not finite."""
    if not bool(torch.isfinite(server.theta).all()):
        raise _diverged(method, r)


def _diverged(method: Method, r: int) -> EquipoiseError:
    return EquipoiseError(
        f"The model of `{method}` is not finite after round {r + 1}: the run diverged. Try a smaller learning rate."
    )
