"""Faults, injected, and the figure reached for each: `python benchmarks/faults.py`.

Bad updates by the thousand, liars, runs killed with SIGKILL at random moments and resumed, spoilt checkpoints, a disk that is
full, a second process, dead and hung workers. Prints one Markdown table. The tests use the same pieces, fewer times.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from equipoise import EquipoiseError, EquipoiseWarning, Federation, Method, Protocol, Training, parse, run, server_round
from equipoise import guard as guards
from equipoise.engine.checkpoints import Checkpoints, fingerprint, latest, read, saved
from equipoise.engine.checks import DEPLOYED, SIMULATED, Answer, Expected, Refusal, admitted, declared, expected, sound
from equipoise.engine.guard import Guard
from equipoise.engine.runners import Errand, opened
from equipoise.engine.runners.processes import without_main
from equipoise.method import METHODS
from equipoise.rounds.server import begin, broadcast_of, client_round
from equipoise.runs.records import read as read_run
from equipoise.task import ModelSource, Task
from equipoise.types import Replies, Round, Server, Setting
from equipoise.updates import Updates

if TYPE_CHECKING:
    from loopback import Loopback

SIZES = (23, 14, 9, 31)
LIES = 40  # rounds with a liar


def federation(clients: int, seed: int = 0, hard: int | None = None, width: int = 6) -> Federation:
    """Small clients with Gaussian classes; the classes of a `hard` one lie elsewhere."""
    draw = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(3, width, generator=draw)
    odd = 2 * torch.randn(3, width, generator=draw)

    def some(k: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % 3
        return (odd if k == hard else centres)[y] + torch.randn(count, width, generator=draw), y

    data = {f"c{k}": some(k, SIZES[k % len(SIZES)]) for k in range(clients)}
    test = {f"c{k}": some(k, 60) for k in range(clients)}
    protocol = Protocol(rounds=6, training=Training(epochs=2, batch=8, lr=0.1), model="mlp(hidden=(7,))")
    return Federation.from_tensors(data, test=test, classes=3, name="small", protocol=protocol)


# --------------------------------------------------------------------------- bad updates
@dataclass(frozen=True, eq=False)
class Scene:
    """A server in its second round, and the good answers of its clients."""

    method: Method
    server: Server
    setting: Setting
    wanted: Expected
    answers: tuple[Answer, ...]

    @classmethod
    def build(cls, method: str, clients: int, model: ModelSource | None = None) -> Scene:
        chosen = parse(method)
        task = Task.build(chosen, federation(clients), model=model)
        setting, who = task.setting(3, 0), list(range(clients))
        server = begin(chosen, task)
        states = client_round(chosen, task, who, broadcast_of(server, 3), {}, 0, "start")[1]
        for _ in range(2):
            before = server
            singles = [client_round(chosen, task, [c], broadcast_of(server, 3), states, 0) for c in who]
            wanted = expected(chosen, task, before, who, samples=declared(task))
            answers = tuple(
                Answer(
                    c,
                    before.memory.round,
                    {name: value[0] for name, value in reply.reports.items()},
                    reply.updates[0],
                    {name: value[0] for name, value in reply.buffers.items()},
                )
                for c, (reply, _) in zip(who, singles, strict=True)
                if reply.updates is not None
            )
            replies, refused = admitted(answers, wanted)
            assert replies is not None
            assert not refused
            states |= {c: state for _, kept in singles for c, state in kept.items()}
            server = server_round(chosen, before, replies, setting)[0]
        return cls(chosen, before, setting, wanted, answers)

    def after(self, sent: Sequence[Answer]) -> tuple[str, list[Refusal]]:
        """A hash of the next model, and what did not count."""
        replies, refused = admitted(sent, self.wanted, DEPLOYED)
        if replies is None:
            return fingerprint(self.server), refused
        return fingerprint(server_round(self.method, self.server, replies, self.setting)[0]), refused


def _with(answer: Answer, change: Callable[[torch.Tensor], torch.Tensor]) -> Answer:
    return replace(answer, update=change(answer.update.clone()))


def _put(value: float) -> Callable[[Answer, random.Random], Answer]:
    def one(answer: Answer, draw: random.Random) -> Answer:
        update = answer.update.clone()
        update[draw.randrange(len(update))] = value
        return replace(answer, update=update)

    return one


def _report(answer: Answer, name: str, value: object) -> Answer:
    return replace(answer, reports={**answer.reports, name: value})


BAD: dict[str, Callable[[Answer, random.Random], Answer]] = {
    "all NaN": lambda a, _: _with(a, lambda u: u * math.nan),
    "one NaN": _put(math.nan),
    "one Inf": _put(math.inf),
    "one -Inf": _put(-math.inf),
    "1e30 in one value": _put(1e30),
    "huge norm": lambda a, d: _with(a, lambda u: u * 10 ** d.uniform(3, 30)),
    "wrong shape": lambda a, d: replace(a, update=torch.ones(*([1] * d.randint(0, 2)), d.choice([1, 2, 1000]))),
    "wrong type": lambda a, d: _with(
        a, lambda u: u.to(d.choice([torch.int64, torch.complex64, torch.bool, torch.uint8]))
    ),
    "no update": lambda a, _: replace(a, update=None),
    "missing report": lambda a, _: replace(a, reports={n: v for n, v in a.reports.items() if n != "samples"}),
    "unknown report": lambda a, _: _report(a, "../../etc/passwd", torch.zeros(())),
    "NaN in a report": lambda a, _: _report(a, "samples", math.nan),
    "samples 0, negative, 1e12 or text": lambda a, d: _report(a, "samples", d.choice([0, -899, 1e12, 1.5, "many"])),
    "stale round": lambda a, d: replace(a, round=a.round - d.randint(1, 5)),
    "future round": lambda a, d: replace(a, round=a.round + d.randint(1, 5)),
    "unknown client": lambda a, d: replace(a, client=1000 + d.randrange(1000)),
}


@dataclass
class Row:
    """One line of the table."""

    fault: str
    times: int
    figure: str


def bad_updates(count: int, seed: int = 0) -> list[Row]:
    """Each kind of bad update as often as its share of `count`, in several methods and at random clients."""
    scenes = [Scene.build(method, 10) for method in ("fedavg", "fedheal", "fedfe", "fedequilibria")]
    without = [
        [scene.after([a for a in scene.answers if a.client != victim])[0] for victim in range(10)] for scene in scenes
    ]
    rows, each = [], -(-count // (len(BAD) + 1))
    for fault, spoil in BAD.items():
        draw, equal, named = random.Random(f"{seed} {fault}"), 0, 0
        for _ in range(each):
            which, victim = draw.randrange(len(scenes)), draw.randrange(10)
            scene = scenes[which]
            bad = spoil(scene.answers[victim], draw)
            sent = [bad if a.client == victim else a for a in scene.answers]
            draw.shuffle(sent)
            found, refused = scene.after(sent)
            equal += found == without[which][victim]
            named += [r.client for r in refused] == [bad.client]
        rows.append(Row(fault, each, f"{equal} of {each} rounds bit for bit as without the client, {named} named"))
    draw, equal = random.Random(seed), 0
    for _ in range(each):
        scene = draw.choice(scenes)
        sent = [*scene.answers, draw.choice(scene.answers)]
        draw.shuffle(sent)
        equal += scene.after(sent)[0] == scene.after(scene.answers)[0]
    rows.append(Row("duplicate", each, f"{equal} of {each} counted once, bit for bit"))
    hashes = set()
    for _ in range(100):
        sent = list(scenes[1].answers)
        draw.shuffle(sent)
        hashes.add(scenes[1].after(sent)[0])
    rows.append(Row("order of arrival", 100, f"{len(hashes)} hash of the model"))
    return rows


# --------------------------------------------------------------------------- odd losses
DRIVEN = (
    "qffl(q=1)", "qffl(q=2)", "qffl(q=5)", "fedfe(q=2)", "afl(lambda_first=True)", "afl(compat=True)", "term(t=5)",
    "gifair",
)  # fmt: skip
ODD = (0.0, -1.0, math.nan, math.inf, 1e-300, 1e300)


def odd_round(method: Method, draw: random.Random) -> tuple[Round | None, int]:
    """Clients of which each has an ordinary or an odd loss, as a round of those whose answers count; and how many do not."""
    m = draw.randint(2, 8)
    losses = [draw.choice(ODD) if draw.random() < 0.4 else 10 ** draw.uniform(-6, 6) for _ in range(m)]
    name = next(name for name in method.weigh.needs if name.startswith("loss"))
    reports = {"samples": torch.full((m,), 7.0), name: torch.tensor(losses, dtype=torch.float64)}
    wanted = Expected(0, frozenset(range(m)), {}, None, {}, torch.float64, {})
    replies, refused = sound(
        Replies(tuple(range(m)), reports, torch.ones(m, 2, dtype=torch.float64)), wanted, SIMULATED
    )
    if replies is None or replies.updates is None:
        return None, len(refused)
    theta, rows = torch.zeros(2, dtype=torch.float64), replies.updates
    setting = Setting(num_clients=m, lr=0.1)
    return Round(theta, rows, Updates(rows), replies.clients, replies.reports, 0, setting), len(refused)


def odd_losses(count: int, methods: Sequence[str] = DRIVEN, seed: int = 0) -> list[Row]:
    """Weights from losses of 0, -1, NaN, Inf, 1e-300 and 1e300 among ordinary ones."""
    rows = []
    for text in methods:
        method, draw, good, refused, worst = parse(text), random.Random(seed), 0, 0, 0.0
        for _ in range(count):
            found, odd = odd_round(method, draw)
            refused += odd
            if found is None:
                good += 1
                continue
            weights = method.weigh(found, {}).weights
            part = weights if method.weigh.simplex else weights / weights.sum()
            error = abs(float(part.sum()) - 1)
            good += bool(torch.isfinite(part).all()) and bool((weights >= 0).all()) and error <= 1e-12
            worst = max(worst, error)
        rows.append(
            Row(
                f"odd losses, {text}", count,
                f"{good} of {count} vectors give finite shares that are not negative and sum to 1 (at most {worst:.0e} off); "
                f"{refused} impossible losses refused",
            )
        )  # fmt: skip
    return rows


# --------------------------------------------------------------------------- liars
class Lie:
    """A runner in which some clients multiply what they report."""

    def __init__(self, factor: Callable[[int], float], liars: Sequence[int] = (0,), report: str = "loss") -> None:
        self.factor, self.liars, self.report = factor, liars, report

    def __call__(self, compute: Callable[[Errand], object]) -> Callable[[Errand], object]:
        def lying(errand: Errand) -> object:
            replies, kept = compute(errand)  # type: ignore[misc]
            if self.report in replies.reports:
                value = replies.reports[self.report].clone()
                for place, client in enumerate(replies.clients):
                    if client in self.liars:
                        value[place] = value[place].abs() * self.factor(errand.broadcast.round)
                replies = replace(replies, reports={**replies.reports, self.report: value})
            return replies, kept

        return lying


def lied(
    method: str,
    lie: Lie | None,
    guard: Guard | None,
    *,
    clients: int = 10,
    rounds: int = LIES,
    hard: int | None = 0,
    seed: int = 0,
) -> tuple[list[dict[int, float]], dict[str, float]]:
    """Shares of the weights in every round, and the final accuracies."""
    import equipoise.engine.loop as module

    real, sent = module.one_round, []

    def between(judge, compute, *rest):  # type: ignore[no-untyped-def]
        done = real(judge, compute if lie is None else lie(compute), *rest)
        sent.append(done.server.memory.shared.get("weight"))
        return done

    module.one_round = between
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EquipoiseWarning)
            data = federation(clients, seed=seed, hard=hard)
            found = run(method, data, rounds=rounds, guard=guard, runner="inline", seed=seed)
    finally:
        module.one_round = real
    shares = []
    for record in found.rounds:
        whole = sum(map(abs, record.weights))
        shares.append({c: abs(w) / whole for c, w in zip(record.clients, record.weights, strict=True)})
    for weights in (weights for weights in sent if weights is not None):  # EAGLE's, which clients put on their losses
        sizes = {c: abs(float(w)) for c, w in weights.items()}
        shares.append({c: w / sum(sizes.values()) for c, w in sizes.items()})
    return shares, found.values()


def _largest(shares: Sequence[dict[int, float]], clients: Sequence[int]) -> float:
    return max(sum(one.get(c, 0.0) for c in clients) for one in shares)


def _mean_without(values: dict[str, float], liars: Sequence[int]) -> float:
    honest = [value for name, value in values.items() if name not in {f"c{c}" for c in liars}]
    return 100 * sum(honest) / len(honest)


def spread(values: Sequence[float], digits: int = 3) -> str:
    """A mean, and the range where it is wider than a digit."""
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f}" + (f" ({low} to {high})" if low != high else "")


def liars(seeds: Sequence[int] = (0, 1, 2)) -> list[Row]:
    """What lying gains, with and without the guard: means over seeds, and ranges. The first liar's classes lie elsewhere:
    trusting it harms the others."""
    rows = []
    guard = guards.DEPLOYED
    honest = {g: [lied("qffl(q=5)", None, g, seed=seed)[1] for seed in seeds] for g in (None, guard)}
    for name, lie, who in (
        ("one of ten reports 100 times its loss", Lie(lambda _: 100.0), [0]),
        ("its report grows 5 % a round", Lie(lambda r: 1.05**r), [0]),
        ("two of ten report 100 times theirs", Lie(lambda _: 100.0, (0, 1)), [0, 1]),
    ):
        found = {g: [lied("qffl(q=5)", lie, g, seed=seed) for seed in seeds] for g in (None, guard)}
        share = {g: spread([_largest(shares, who) for shares, _ in runs]) for g, runs in found.items()}
        mean = {g: spread([_mean_without(values, who) for _, values in runs], 1) for g, runs in found.items()}
        truth = {g: spread([_mean_without(values, who) for values in runs], 1) for g, runs in honest.items()}
        lost = [_mean_without(honest[None][i], who) - _mean_without(found[guard][i][1], who) for i in range(len(seeds))]
        rows.append(
            Row(
                f"liar, qffl(q=5): {name}", len(seeds),
                f"largest share {share[None]} unguarded, {share[guard]} guarded; honest clients {mean[None]} % unguarded, "
                f"{mean[guard]} % guarded; when nobody lies {truth[None]} % and {truth[guard]} %; points that honest clients "
                f"lose to the guarded liar: {spread(lost, 1)}",
            )
        )  # fmt: skip
    for method in ("afl(gamma=0.1)", "term(t=1.0)", "fedfe(q=5)", "eagle(apply='server', lam=2.0, lstar_epochs=5)"):
        report = "gap" if "eagle" in method else "loss"
        lie = Lie(lambda _: 100.0, report=report)
        share = {
            g: spread([_largest(lied(method, lie, g, seed=seed)[0], [0]) for seed in seeds]) for g in (None, guard)
        }
        rows.append(
            Row(
                f"liar, {method}: 100 times its {report}", len(seeds),
                f"largest share {share[None]} unguarded, {share[guard]} guarded",
            )
        )  # fmt: skip
    for name, lie in (
        ("a high loss (gap times 100)", Lie(lambda _: 100.0, report="gap")),
        ("a low own optimum (gap plus 5)", PlusFive()),
    ):
        share = {
            g: spread([_largest(lied("eagle(lam=2.0, lstar_epochs=5)", lie, g, seed=seed)[0], [0]) for seed in seeds])
            for g in (None, guard)
        }
        rows.append(
            Row(
                f"liar, eagle(lam=2): {name}", len(seeds),
                f"largest share of EAGLE's weights {share[None]} unguarded, {share[guard]} guarded",
            )
        )  # fmt: skip
    return rows


class PlusFive(Lie):
    """A client whose own optimum is said to be lower than it is by five."""

    def __init__(self) -> None:
        super().__init__(lambda _: 1.0, report="gap")

    def __call__(self, compute: Callable[[Errand], object]) -> Callable[[Errand], object]:
        def lying(errand: Errand) -> object:
            replies, kept = compute(errand)  # type: ignore[misc]
            if "gap" in replies.reports:
                value = replies.reports["gap"].clone()
                value[[c in self.liars for c in replies.clients]] += 5.0
                replies = replace(replies, reports={**replies.reports, "gap": value})
            return replies, kept

        return lying


def cost_of_the_guard(q: float, ratio: float, clients: int = 10) -> tuple[float, float]:
    """The share of a client with `ratio` times the others' loss under q-weights, without and with the guard."""
    loss = torch.ones(clients, dtype=torch.float64)
    loss[0] = ratio
    heard = guards.within(loss, range(clients), guards.PerClient(), guards.DEPLOYED)
    free = loss**q / (loss**q).sum()
    limits = torch.full_like(free, guards.DEPLOYED.share / clients)
    return float(free[0]), float(guards.capped(heard**q / (heard**q).sum(), limits)[0])


def honest_costs() -> list[Row]:
    rows = []
    for q in (1.0, 2.0, 5.0):
        for ratio in (1.5, 2.5, 5.0):
            free, kept = cost_of_the_guard(q, ratio)
            rows.append(
                Row(
                    f"honest client with {ratio:g} times the others' loss, q = {q:g}", 1,
                    f"share {free:.3f} unguarded, {kept:.3f} guarded: it keeps {100 * kept / free:.0f} %",
                )
            )  # fmt: skip
    return rows


# --------------------------------------------------------------------------- kills
# The same method with less work in a round, where that changes nothing of what is kept.
QUICK = {
    "eagle": "eagle(lstar_epochs=5)",
    "fedlsa": "fedlsa(width=8, server_epochs=5)",
    "fedtgp": "fedtgp(server_epochs=3)",
}
KILLED = tuple(QUICK.get(name, name) for name in METHODS)


def images(clients: int, seed: int = 0) -> Federation:
    """Small clients with tiny images, for methods that look at feature maps."""
    draw = torch.Generator().manual_seed(seed)

    def some(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % 3
        return torch.rand(count, 1, 8, 8, generator=draw) + 0.3 * y[:, None, None, None], y

    data = {f"c{k}": some(SIZES[k % len(SIZES)]) for k in range(clients)}
    test = {f"c{k}": some(20) for k in range(clients)}
    protocol = Protocol(rounds=6, training=Training(epochs=1, batch=8, lr=0.05), model="small_cnn(width=4)")
    return Federation.from_tensors(data, test=test, classes=3, name="images", protocol=protocol)


def kept_going(pipe: Connection, method: str, folder: str, rounds: int) -> None:
    """A run that resumes where it can; it says when a round is over, and at last what came out."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data = images(4) if method.startswith("f2dc") else federation(4)
    found = run(
        method, data, rounds=rounds, participation=0.75, runner="inline",
        checkpoint=Checkpoints(folder, resume=True), on_round=lambda record: pipe.send(("round", time.monotonic())),
    )  # fmt: skip
    scores = [(s.client, s.metric, s.value) for r in found.rounds for s in r.scores]
    pipe.send(("result", f"{fingerprint(found.server)} {scores!r}"))


class Child:
    """A run in a process of its own. A server that has imported everything makes it by forking, within milliseconds."""

    def __init__(self, method: str, folder: Path, rounds: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["equipoise", "torch._dynamo"])  # the second comes with the first step
        self.pipe, there = context.Pipe()
        with without_main():
            self.process = context.Process(target=kept_going, args=(there, method, str(folder), rounds))
            self.process.start()
        there.close()

    def told(self) -> tuple[str, object]:
        """The next thing that it says."""
        if not self.pipe.poll(LONGEST):
            raise RuntimeError("A run says nothing any more.")
        return self.pipe.recv()  # type: ignore[no-any-return]

    def result(self) -> tuple[str, list[float]]:
        """What came out, and when its rounds were over."""
        times = []
        while True:
            kind, value = self.told()
            if kind == "result":
                self.process.join(LONGEST)
                return str(value), times
            times.append(float(str(value)))

    def kill(self) -> bool:
        """End it with SIGKILL; whether it was still at work."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(LONGEST)
        return self.process.exitcode == -signal.SIGKILL


LONGEST = 300.0  # seconds that a run may be silent: far more than it needs


def kills(count: int, seed: int = 0, rounds: int = 12, methods: Sequence[str] = KILLED) -> list[Row]:
    """SIGKILL at a moment drawn uniformly between a run's first checkpoint and its end, then resume. Methods take turns."""
    draw = random.Random(seed)
    equal = loaded = mid = 0
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as root:
        whole: dict[str, tuple[str, float]] = {}
        for number in range(count):
            method = methods[number % len(methods)]
            if method not in whole:
                result, times = Child(method, Path(root) / f"whole-{number}", rounds).result()
                whole[method] = result, times[-1] - times[0]
            result, seconds = whole[method]
            folder = Path(root) / f"killed-{number}"
            while True:
                child = Child(method, folder, rounds)
                child.told()  # the first round is over, and its checkpoint is there
                time.sleep(draw.uniform(0, seconds))
                if child.kill():
                    break
                shutil.rmtree(folder)  # it was quicker than its twin, and over: once more
            places = saved(folder)
            reached = int(places[-1].name[-8:])
            mid += reached < rounds
            loaded += all(_loads(place) for place in places)
            same = Child(method, folder, rounds).result()[0] == result
            equal += same
            wrong += [] if same else [method]
            shutil.rmtree(folder)
            outcome = "the same bits" if same else "OTHER BITS"
            say(f"kill {number + 1} of {count}: {method}, at round {reached} of {rounds}, {outcome}")
    others = f"; not so: {', '.join(wrong)}" if wrong else ""
    return [
        Row(
            "server killed (SIGKILL at a random moment), resumed", count,
            f"{equal} of {count} with the same bits of the model and the same scores, over {len(whole)} methods ({mid} killed "
            f"before the last checkpoint); every checkpoint on disk loaded in {loaded} of {count}{others}",
        )
    ]  # fmt: skip


def say(text: str) -> None:
    """How far the benchmark is."""
    print(text, file=sys.stderr, flush=True)


def _loads(place: Path) -> bool:
    try:
        read(place)
    except EquipoiseError:
        return False
    return True


# --------------------------------------------------------------------------- checkpoints
def kept_run(folder: Path, rounds: int = 3) -> str:
    """A short run with a checkpoint a round."""
    return fingerprint(
        run("scaffold", federation(4), rounds=rounds, runner="inline", checkpoint=Checkpoints(folder)).server
    )


def damaged(count: int, seed: int = 0) -> list[Row]:
    """Flipped bits and cut-off files in the newest checkpoint: the one before it is used."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "run"
        kept_run(folder)
        before, newest = saved(folder)
        good = fingerprint(read(before).server)
        files = sorted(newest.iterdir())
        found = {"bit flipped": 0, "truncated": 0}
        for kind in found:
            for _ in range(count):
                path = draw.choice(files)
                content = path.read_bytes()
                place = draw.randrange(len(content))
                if kind == "truncated":
                    path.write_bytes(content[:place])
                else:
                    spoilt = bytearray(content)
                    spoilt[place] ^= 1 << draw.randrange(8)
                    path.write_bytes(bytes(spoilt))
                moment, wrong = latest(folder, _settings(before))
                found[kind] += bool(moment and wrong and fingerprint(moment.server) == good)
                path.write_bytes(content)
    return [
        Row(f"checkpoint with a {kind}" if kind == "bit flipped" else f"checkpoint {kind}", count,
            f"{times} of {count} found out, and the one before it used")
        for kind, times in found.items()
    ]  # fmt: skip


def _settings(place: Path) -> dict[str, object]:
    import json

    return dict(json.loads((place / "state.json").read_text())["content"]["settings"])


def full_disk(count: int, seed: int = 0) -> list[Row]:
    """Files may not grow beyond a random limit: the writing fails somewhere."""
    draw = random.Random(seed)
    intact = said = 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for _ in range(count):
            with tempfile.TemporaryDirectory() as root:
                folder = Path(root) / "run"
                kept_run(folder, rounds=2)
                states = {p.name: fingerprint(read(p).server) for p in saved(folder)}
                shutil.rmtree(saved(folder)[-1])  # an unfinished run, at round 1
                resource.setrlimit(resource.RLIMIT_FSIZE, (draw.randrange(1, 3000), before[1]))
                try:
                    run(
                        "scaffold",
                        federation(4),
                        rounds=2,
                        runner="inline",
                        checkpoint=Checkpoints(folder, resume=True),
                    )
                except EquipoiseError as error:
                    said += "is kept" in str(error)
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, before)
                left = saved(folder)
                intact += len(left) == 1 and fingerprint(read(left[0]).server) == states[left[0].name]
    finally:
        signal.signal(signal.SIGXFSZ, handler)
    return [
        Row(
            "disk full while a checkpoint is written",
            count,
            f"{intact} of {count} kept the last good one, {said} said so",
        )
    ]


def second_process(count: int) -> list[Row]:
    refused, slowest = 0, 0.0
    for _ in range(count):
        with tempfile.TemporaryDirectory() as root:
            first = Child("fedavg", Path(root), rounds=100_000)
            try:
                first.told()
                clock = time.perf_counter()
                try:
                    run("fedavg", federation(4), rounds=2, checkpoint=Checkpoints(root))
                except EquipoiseError as error:
                    refused += "Another process" in str(error)
                slowest = max(slowest, time.perf_counter() - clock)
            finally:
                first.kill()
    return [Row("two processes, one folder", count, f"{refused} of {count} refused, within {slowest:.2f} s")]


# --------------------------------------------------------------------------- workers
def dead_workers(count: int) -> list[Row]:
    """A worker process that is killed while it works ends the run with one line."""
    said, slowest = 0, 0.0
    for _ in range(count):
        method = parse("fedavg")
        task = Task.build(method, federation(4))
        with opened("processes", method, task, 4, 2) as compute:
            errand = Errand([0, 1, 2, 3], broadcast_of(begin(method, task), 1), {}, 0, "train")
            compute(errand)
            os.kill(compute.workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
            clock = time.perf_counter()
            try:
                compute(errand)
            except EquipoiseError as error:
                said += "ended" in str(error)
            slowest = max(slowest, time.perf_counter() - clock)
    return [Row("worker process killed", count, f"{said} of {count} end with one line, within {slowest:.2f} s")]


# --------------------------------------------------------------------------- real sites
TIMEOUT = 25  # seconds that a round waits for answers
SITES = 3


def _federation(folder: Path, method: str, rounds: int) -> Loopback:
    """A SuperLink and three SuperNodes, each with a part of the synthetic data."""
    from equipoise.flower import Plan
    from equipoise.flower.deploy import write_app
    from loopback import Loopback

    plan = Plan(
        method=method, data="gaussians", sites=SITES, rounds=rounds, min_sites=2, round_timeout=TIMEOUT, eval_every=rounds,
        site_state=str(folder / "states"), out=str(folder / "runs"),
    )  # fmt: skip
    write_app(folder / "app", plan)
    return Loopback(folder / "federation")


def _up(here: Loopback) -> None:
    here.superlink()
    for k in range(SITES):
        here.supernode(f"site{k}", f"partition-id={k}")


def _told(here: Loopback, folder: Path, rounds: int, config: str = "") -> Iterator[tuple[int, int, float]]:
    """Each round as it is over: its number, how many sites counted, and its seconds."""
    for line in here.run(folder / "app", rounds * 5 * TIMEOUT, config):
        found = re.match(r"Round (\d+), (\d+) sites, ([\d.]+) s", line)
        if found:
            say(f"          {line}")
            yield int(found[1]), int(found[2]), float(found[3])


def lost_sites(rounds: int = 6) -> list[Row]:
    """One site hangs (SIGSTOP), goes on, and is later killed (SIGKILL) and started again, on a real SuperLink."""
    counted: dict[int, int] = {}
    over: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as root, _federation(Path(root), "scaffold", rounds) as here:
        _up(here)
        for r, sites, seconds in _told(here, Path(root), rounds):
            counted[r] = sites
            if r == 1:
                here.signal("site1", signal.SIGSTOP)
            elif r == 2:
                over["hung"] = seconds - TIMEOUT
                here.signal("site1", signal.SIGCONT)
            elif r == 3:
                here.end("site1", signal.SIGKILL)
            elif r == 4:
                over["killed"] = seconds - TIMEOUT
                here.supernode("site1", "partition-id=1")
    rows = []
    for fault, r, back in (("hung", 2, range(3, 4)), ("killed", 4, range(5, rounds + 1))):
        again = next((one for one in back if counted.get(one) == SITES), None)
        rows.append(
            Row(
                f"site {fault} ({'SIGSTOP' if fault == 'hung' else 'SIGKILL'}) on a SuperLink, 1 of {SITES}", 1,
                f"the round ended {over[fault]:.1f} s after the limit of {TIMEOUT} s, with {counted[r]} sites; "
                + (f"it counted again in round {again}" if again else f"it had not counted again by round {back[-1]}"),
            )
        )  # fmt: skip
    return rows


def lost_server(rounds: int = 3) -> list[Row]:
    """SuperLink, server and sites are all killed in the middle; all are started again, and the run is resumed."""
    with tempfile.TemporaryDirectory() as root, _federation(Path(root), "scaffold", rounds) as here:
        _up(here)
        before = 0
        for r, _, _ in _told(here, Path(root), rounds):
            before = r
            for name in [*(f"site{k}" for k in range(SITES)), "superlink"]:
                here.end(name, signal.SIGKILL)
            break
        _up(here)
        after = [r for r, _, _ in _told(here, Path(root), rounds, "resume=true")]
        places = list((Path(root) / "runs").glob("*/manifest.json"))
        found = read_run(places[0].parent) if places else None
    wanted = run("scaffold", "gaussians", rounds=rounds, runner="inline", eval_every=rounds)
    scores = {} if found is None else {
        (row["client"], row["metric"]): row["value"] for row in found.records.to_pylist() if row["round"] == rounds
    }  # fmt: skip
    off = max(
        (abs(scores.get((s.client, s.metric), math.inf) - s.value) for s in wanted.scores if s.split == "test"),
        default=math.inf,
    )
    return [
        Row(
            "SuperLink, server and sites killed (SIGKILL), resumed", 1,
            f"killed after round {before}, went on with rounds {', '.join(map(str, after))}; final scores are "
            + (f"{off:.0e} off those" if off else "exactly those")
            + " of an uninterrupted simulation",
        )
    ]  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = ["| fault | injected | figure reached |", "|---|---:|---|"]
    return "\n".join([*lines, *(f"| {row.fault} | {row.times} | {row.figure} |" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1700, help="bad updates")
    parser.add_argument(
        "--losses", type=int, default=10_000, help="vectors of odd losses, for each loss-driven weighting"
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds of every liar")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--damages", type=int, default=500, help="flipped bits, and as many cut-off files")
    parser.add_argument("--others", type=int, default=10, help="times of every other fault")
    parser.add_argument("--only", default="", help="stages, separated by commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stages: dict[str, Callable[[], list[Row]]] = {
        "updates": lambda: bad_updates(options.updates),
        "kills": lambda: kills(options.kills),
        "damages": lambda: damaged(options.damages),
        "disk": lambda: full_disk(options.others),
        "two": lambda: second_process(options.others),
        "workers": lambda: dead_workers(options.others),
        "losses": lambda: odd_losses(options.losses),
        "liars": lambda: liars(range(options.seeds)),
        "honest": honest_costs,
        "sites": lost_sites,
        "server": lost_server,
    }
    rows: list[Row] = []
    for number, name in enumerate(chosen := [name for name in options.only.split(",") if name] or list(stages), 1):
        clock = time.perf_counter()
        found = stages[name]()
        rows += found
        say(f"{time.perf_counter() - clock:6.1f} s  {name}, stage {number} of {len(chosen)}")
        say("\n".join(f"          {row.fault}: {row.figure}" for row in found))
    print(table(rows))


if __name__ == "__main__":
    from faults import main as start  # processes that it starts know its functions by the name of the module

    start()
