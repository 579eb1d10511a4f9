"""The server's half: rounds of messages to sites, and `server_round` on what came back.

A site that does not answer in time, that answers with an error, or whose answer does not fit, is left out of the round with the
reason in its record. It is known by its name: when it comes back, with another node id perhaps, it goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from equipoise import seeds
from equipoise.data import Client, Federation, Protocol
from equipoise.data.own import by_number
from equipoise.engine import checkpoints
from equipoise.engine.checkpoints import Checkpoints, Moment
from equipoise.engine.checks import DEPLOYED, Answer, admitted, declared
from equipoise.engine.guard import DEPLOYED as DEPLOYED_GUARD
from equipoise.engine.guard import guarded
from equipoise.engine.loop import (
    Done,
    Judge,
    Rejection,
    RoundRecord,
    Run,
    as_believed,
    model_name,
    record_of,
    refuse_infinite,
)
from equipoise.flower import wire
from equipoise.flower.plan import Plan
from equipoise.grammar import list_of
from equipoise.method import Method
from equipoise.roles import Phase
from equipoise.rounds.evaluation import Score, scored_model
from equipoise.rounds.server import begin, broadcast_of, server_probe, server_round
from equipoise.runs.records import save
from equipoise.study.jobs import CHECKPOINTS, worst_and_average
from equipoise.task import Task
from equipoise.training import Training
from equipoise.types import EquipoiseError, Replies, Server

POLL = 1.0  # seconds between two looks at who is there
About = Mapping[str, object]  # what a site says of itself


def server_app(plan: Plan | None = None) -> ServerApp:
    """Flower's app of the server. Without a plan the run's configuration is one. The run is stored below `plan.out`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        agreed = plan or Plan.from_config(context.run_config)
        kept = checkpoints_of(agreed)
        folder = Path(kept.folder)
        if agreed.resume and not checkpoints.saved(folder):
            raise EquipoiseError(
                f"There is nothing to resume in `{folder}`: a run of other settings has its own checkpoints. Repeat all of the "
                "settings that the run began with, or leave `resume` out to begin anew."
            )
        try:
            result = federate(grid, agreed, on_round=_say, checkpoint=kept)
        finally:
            if not checkpoints.saved(folder):
                checkpoints.discard(folder)
        print(f"Records: {save(result, Path(agreed.out)).resolve()}", flush=True)
        for text in result.warnings:
            print(f"Note: {text}", flush=True)
        if len(result.rounds) < _total(result):
            advice = "Go on with the same command and --run-config resume=true, with all settings as they were."
            raise EquipoiseError(f"{result.warnings[-1]} {advice}")
        checkpoints.discard(folder)

    return app


def checkpoints_of(plan: Plan) -> Checkpoints:
    """A folder that belongs to this plan alone. Sites remember two states, so the server keeps every round."""
    model = None if plan.model is None else model_name(plan.model)
    settings = replace(plan, resume=False, method=str(plan.chosen), model=model)
    digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:8]
    return Checkpoints(Path(plan.out) / CHECKPOINTS / f"flower-seed{plan.seed}-{digest}", every=1, resume=plan.resume)


def _say(record: RoundRecord) -> None:
    scored = worst_and_average(record)
    standing = f": worst {100 * scored[0]:.2f} %, mean {100 * scored[1]:.2f} %" if scored else ""
    print(f"Round {record.round}, {len(record.clients)} sites, {record.seconds:.1f} s{standing}", flush=True)
    for rejection in record.rejected:
        print(f"  without `{rejection.client}`: {rejection.why}", flush=True)


def _total(result: Run) -> int:
    return int(str(result.settings["rounds"]))


# --------------------------------------------------------------------------- a whole run
def federate(
    grid: Grid,
    plan: Plan,
    on_round: Callable[[RoundRecord], None] | None = None,
    checkpoint: Checkpoints | None = None,
) -> Run:
    """All rounds of a plan with the sites that a grid reaches: the same value as `equipoise.run` gives.

    Where too few sites are left for `plan.patience` rounds on end the run ends early, with what it has and a warning. With
    `checkpoint` it can go on after it was ended, also as another run of Flower's.
    """
    with nullcontext() if checkpoint is None else checkpoints.held(Path(checkpoint.folder)):
        return _federate(grid, plan, on_round, checkpoint)


def _federate(
    grid: Grid, plan: Plan, on_round: Callable[[RoundRecord], None] | None, checkpoint: Checkpoints | None
) -> Run:
    desk = Desk(grid, plan)
    method = plan.chosen
    data = desk.assembled()
    task = Task.build(
        method, data, model=plan.model, training=data.protocol.training, buffers=plan.buffers, seed=plan.seed
    )
    plan.refuse_averaged_models(task)
    total = data.protocol.rounds if plan.rounds is None else plan.rounds
    part = data.protocol.participation if plan.participation is None else plan.participation
    count = max(1, round(part * len(data)))
    setting = task.setting(total, plan.seed)
    guard = DEPLOYED_GUARD if plan.guard else None
    judge = Judge(guarded(method, guard) if guard else method, task, DEPLOYED, guard, declared(task))
    start = Moment(begin(judge.method, task, count), {}, [], run=secrets.token_hex(8))
    facts = {
        "method": str(method), "data": data.fingerprint, "rounds": total, "participation": part, "seed": plan.seed,
        "training": asdict(task.training), "guard": plan.guard, "first model": checkpoints.fingerprint(start.server),
    }  # fmt: skip
    wrong: list[str] = []
    if checkpoint is not None:
        found, wrong = checkpoints.prepared(checkpoint, facts, total)
        start = found or start
    server, records, desk.run = start.server, list(start.records), start.run
    for record in records:
        desk.count(record.clients, record.round - 1)
    said = {text.split(":")[0]: text for text in (*task.notes, *wrong)} | dict(start.said)
    failed = 0
    began = time.perf_counter() - start.seconds
    while len(records) < total and failed < plan.patience:
        clock = time.perf_counter()
        r = server.memory.round
        here, left_out = desk.present(data.available(r))
        clients = seeds.participants(here, count, plan.seed, r)
        quorum = min(plan.min_sites or -(-len(clients) // 2), count)
        replies, after, rejected = _answers(desk, judge, server, clients, quorum, total)
        left_out += rejected
        if replies is None:
            failed += 1
            text = f"Round {r + 1}: fewer than {max(1, quorum)} sites answered; the round was "
            text += "skipped." if plan.too_few == "skip" else "repeated."
            print(text, flush=True)
            said[text] = text
            if plan.too_few == "repeat":
                _note(said, left_out)
                continue
            server = replace(server, memory=replace(server.memory, round=r + 1))
            record = RoundRecord(r + 1, (), (), {}, (), 0.0)
        else:
            failed = 0
            after, replies, notes = as_believed(guard, after, replies)
            server, result = server_round(judge.method, after, replies, setting)
            refuse_infinite(server, method, r)
            desk.count(replies.clients, r)
            said |= {text.split(":")[0]: text for text in (*notes, *result.warnings)}
            record = record_of(r + 1, Done(server, {}, replies.clients, result), (), 0.0, ())
        if len(records) == total - 1 or (r + 1) % plan.eval_every == 0:
            scores, unscored = _scores(desk, task, server, total)
            record = replace(record, scores=scores)
            left_out += unscored
        records.append(replace(record, rejected=tuple(left_out), seconds=time.perf_counter() - clock))
        if checkpoint is not None:
            moment = Moment(server, {}, records, said, time.perf_counter() - began, desk.run)
            checkpoints.write(Path(checkpoint.folder), moment, facts)
        if on_round:
            on_round(records[-1])
    warnings = list(said.values())
    if len(records) < total:
        text = f"The run stopped after {len(records)} of {total} rounds: {plan.patience} times on end too few sites answered."
        if not records:
            raise EquipoiseError(text)
        warnings.append(text)
    policies = {"buffers": plan.buffers, "eval_every": plan.eval_every, "device": "cpu"}
    watched = {"guard": asdict(judge.guard)} if judge.guard else {}
    limits = {"min_sites": plan.min_sites, "round_timeout": plan.round_timeout, "too_few": plan.too_few}
    return Run(
        method=method,
        federation=data,
        task=task,
        server=server,
        states={},  # they stay with the sites
        rounds=tuple(records),
        seed=plan.seed,
        participation=part,
        runner="flower",
        scored=scored_model(method, task),
        warnings=tuple(warnings),
        seconds=time.perf_counter() - began,
        settings={"rounds": total, "participation": part, **policies, **limits, **watched},
        model=model_name(plan.model or data.protocol.model),
    )


def _note(said: dict[str, str], rejected: Iterable[Rejection]) -> None:
    said |= {f"{one}": f"Left out of a round that was repeated: `{one.client}`, {one.why}" for one in rejected}


def _answers(
    desk: Desk, judge: Judge, server: Server, clients: Sequence[int], quorum: int, rounds: int
) -> tuple[Replies | None, Server, list[Rejection]]:
    """What the sites of a round answered, if enough did; the server after a probe; and who was left out."""
    rejected: list[Rejection] = []
    if judge.method.probes and clients:
        found, rejected = _sound(desk, judge, "probe", clients, server, rounds)
        if found is None or len(found.clients) < quorum:
            return None, server, rejected
        clients = found.clients
        server, found, _ = as_believed(judge.guard, server, found)
        server = server_probe(judge.method, server, found, judge.task.setting(rounds, desk.plan.seed))
    found, more = _sound(desk, judge, "train", clients, server, rounds)
    if found is None or len(found.clients) < max(1, quorum):
        return None, server, [*rejected, *more]
    return _summed(judge.method, found), server, [*rejected, *more]


def _sound(
    desk: Desk, judge: Judge, phase: Phase, clients: Sequence[int], server: Server, rounds: int
) -> tuple[Replies | None, list[Rejection]]:
    """The answers whose numbers can be true, as a simulation checks them."""
    kind = "train" if phase == "train" else "train.probe"
    found, rejected = desk.ask(kind, clients, server, judge.task, rounds)
    answers = [_answer(k, server.memory.round, found[k], trains=phase == "train") for k in sorted(found)]
    replies, refused = admitted(answers, judge.expects(server, clients, phase), judge.checks)
    return replies, [*rejected, *(Rejection(desk.names[client], f"{why}.") for client, why in refused)]


def _answer(client: int, r: int, content: RecordDict, trains: bool) -> Answer:
    """One site's answer, as it came."""
    reports, buffers = wire.tensors(content, "reports"), wire.tensors(content, "buffers")
    return Answer(client, r, reports, wire.tensors(content, "update") if trains else None, buffers)


def _summed(method: Method, replies: Replies) -> Replies:
    """Of a method that streams the sum alone, added up client by client as the inline runner does."""
    weights = method.weigh.raw(replies.reports) if method.streams else None
    if weights is None or replies.updates is None:
        return replies
    total = torch.zeros_like(replies.updates[0])
    for weight, update in zip(weights.to(total.dtype), replies.updates, strict=True):
        total += weight * update
    return replace(replies, updates=None, total=total)


def _scores(desk: Desk, task: Task, server: Server, rounds: int) -> tuple[tuple[Score, ...], list[Rejection]]:
    """The figures of every site that is there, on its own test data. Who was silent a moment ago is not waited for again."""
    tested = [
        k
        for k in desk.connected(range(len(desk.names)))
        if desk.tests[k] and desk.nodes[desk.names[k]] not in desk.silent
    ]
    answers, rejected = desk.ask("evaluate", tested, server, task, rounds)
    scores = []
    for k in sorted(answers):
        client = task.federation.clients[k]
        samples = int(str(wire.facts(answers[k])["samples"]))
        for metric, value in answers[k].metric_records["scores"].items():
            scores.append(Score(client.name, client.domain or client.name, "test", metric, float(str(value)), samples))
    return tuple(scores), [replace(one, why=f"its evaluation: {one.why}") for one in rejected]


# --------------------------------------------------------------------------- who is there
@dataclass
class Desk:
    """Where messages go out and answers come in: which node is which site, and which of its rounds counted last."""

    grid: Grid
    plan: Plan
    names: list[str] = field(default_factory=list)  # by number
    tests: list[int] = field(default_factory=list)
    about: dict[str, About] = field(default_factory=dict)  # what the sites said of themselves
    nodes: dict[str, int] = field(default_factory=dict)  # site -> node
    refused: set[int] = field(default_factory=set)  # nodes that cannot take part
    silent: set[int] = field(default_factory=set)  # nodes that did not answer their last message
    counted: dict[int, int] = field(default_factory=dict)
    run: str = ""  # by this name sites know the run, whichever of Flower's runs it is done in

    def assembled(self) -> Federation:
        """Wait for all sites, and give what they say of themselves as a federation without data."""
        deadline = time.monotonic() + self.plan.start_timeout
        places = self.plan.sites
        while True:
            refused = self._greet()
            if refused:
                raise EquipoiseError(f"A site cannot take part: {refused[0].why}")
            there = list_of(sorted(self.about)) or "none"
            if len(self.about) > places:
                raise EquipoiseError(f"{len(self.about)} sites came for {places} places: {there}. Set `sites`.")
            if len(self.about) == places:
                return self._seated(self.about)
            if time.monotonic() > deadline:
                limit = f"{self.plan.start_timeout:g} s"
                raise EquipoiseError(
                    f"{len(self.about)} of {places} sites came within {limit}: {there}. Start the others, or set `sites`."
                )
            time.sleep(POLL)

    def _seated(self, found: Mapping[str, About]) -> Federation:
        numbers = {name: int(str(about["number"])) for name, about in found.items()}
        dealt = sorted(numbers.values()) == list(range(len(found)))
        self.names = sorted(found, key=lambda name: numbers[name] if dealt else by_number(name))
        self.tests = [int(str(found[name]["test"])) for name in self.names]
        for what in ("classes", "shape", "model", "training", "rounds", "participation", "schema"):
            first, *others = self.names
            for name in others:
                if found[name][what] != found[first][what]:
                    raise EquipoiseError(
                        f"Sites must agree on `{what}`. Found {found[first][what]!r} at `{first}` and {found[name][what]!r} at "
                        f"`{name}`: give both the same schema.json and settings."
                    )
        return stand_in([found[name] for name in self.names], self.plan)

    def _greet(self) -> list[Rejection]:
        """Ask new nodes who they are. Who cannot take part is refused once, and not asked again.

        Flower counts a node as present for a while after it died. So a site that comes back as a new node takes the place of
        one that did not answer its last message, but never of one that did.
        """
        present = set(self.grid.get_node_ids())
        strangers = sorted(present - set(self.nodes.values()) - self.refused)
        answers, silent = self._exchange("query.hello", {node: RecordDict() for node in strangers})
        mistakes = {node: why for node, why in silent.items() if why != SILENT}
        rivals: dict[int, str] = {}
        for node, content in sorted(answers.items()):
            try:
                about = json.loads(str(wire.facts(content)["about"]))
                name = str(about["name"])
            except (EquipoiseError, ValueError, KeyError, TypeError):
                mistakes[node] = "it does not say which site it is."
                continue
            if self.nodes.get(name) in present - self.silent:
                rivals[node] = f"two nodes call themselves `{name}`. Name each with --node-config 'site=\"...\"'."
            elif self.names and name not in self.names:
                mistakes[node] = f"`{name}` is not one of the sites that the run began with."
            elif self.names and about != self.about[name]:
                mistakes[node] = f"the data of `{name}` are not those that the run began with."
            else:
                self.nodes[name] = node
                self.about[name] = about
        self.refused |= set(mistakes)
        return [Rejection(f"node {node}", why) for node, why in (rivals | mistakes).items()]

    def present(self, numbers: Iterable[int]) -> tuple[list[int], list[Rejection]]:
        """Which of these sites are connected now, and which are not. Waits for enough, for as long as a round may take."""
        wanted = list(numbers)
        needed = min(self.plan.min_sites or 1, len(wanted))
        deadline = time.monotonic() + self.plan.round_timeout
        refused: list[Rejection] = []
        while True:
            refused += self._greet()
            found = self.connected(wanted)
            if len(found) >= needed or time.monotonic() > deadline:
                away = [Rejection(self.names[k], "it is not connected.") for k in wanted if k not in found]
                return found, [*away, *refused]
            time.sleep(POLL)

    def connected(self, numbers: Iterable[int]) -> list[int]:
        """Which of these sites are connected at this moment."""
        here = set(self.grid.get_node_ids())
        return [k for k in numbers if self.nodes[self.names[k]] in here]

    def count(self, clients: Iterable[int], r: int) -> None:
        """The answers of these sites counted in round `r`."""
        self.counted |= dict.fromkeys(clients, r)

    def ask(
        self, kind: str, clients: Sequence[int], server: Server, task: Task, rounds: int
    ) -> tuple[dict[int, RecordDict], list[Rejection]]:
        """One message to each of these sites, and the answers that can be used."""
        broadcast = broadcast_of(server, rounds)
        evaluated = server.evaluated if kind == "evaluate" else None
        node_of = {self.nodes[self.names[k]]: k for k in clients}
        contents = {}
        for node, k in node_of.items():
            facts = {"round": broadcast.round, "rounds": rounds, "number": k, "sites": len(self.names)}
            said = ConfigRecord({**facts, "run": self.run, "counted": self.counted.get(k, -1)})
            contents[node] = RecordDict({wire.FACTS: said, **wire.packed(broadcast, task.layout, k, evaluated)})
        answers, silent = self._exchange(kind, contents)
        rejected = {node_of[node]: why for node, why in silent.items()}
        usable = {}
        for node, content in answers.items():
            try:
                _check(content, self.names[node_of[node]], broadcast.round, node_of[node], task, kind)
                usable[node_of[node]] = content
            except (EquipoiseError, ValueError, KeyError, TypeError, EOFError) as error:
                rejected[node_of[node]] = wire.mistake(error)
        return usable, [Rejection(self.names[k], rejected[k]) for k in sorted(rejected)]

    def _exchange(self, kind: str, contents: Mapping[int, RecordDict]) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """Send and receive within the time of a round: answers by node, and why others have none. The first answer counts."""
        if not contents:
            return {}, {}
        limit = self.plan.round_timeout
        messages = [Message(content, node, kind, ttl=limit) for node, content in contents.items()]
        answers: dict[int, RecordDict] = {}
        silent = dict.fromkeys(contents, SILENT)
        spoke: set[int] = set()
        for reply in self.grid.send_and_receive(messages, timeout=limit):
            node = reply.metadata.src_node_id
            if node not in silent:
                continue
            if reply.has_error():
                silent[node] = " ".join((reply.error.reason or f"error {reply.error.code}").split())[: wire.LONGEST]
                continue
            words = reply.content.config_records.get(wire.FACTS, ConfigRecord()).get(wire.ERROR)
            if words is not None:
                silent[node] = str(words)[: wire.LONGEST]
                spoke.add(node)
                continue
            answers[node] = reply.content
            del silent[node]
        self.silent = self.silent - set(contents) | set(silent) - spoke
        return answers, silent


SILENT = "it did not answer in time."


def _check(content: RecordDict, name: str, r: int, client: int, task: Task, kind: str) -> None:
    """Refuse an answer of another site or round, or one that does not fit the model."""
    said = wire.facts(content)
    if said["name"] != name:
        raise EquipoiseError(f"it answered as {said['name']!r}.")
    if said["round"] != r:
        raise EquipoiseError(f"it answered round {int(str(said['round'])) + 1} in round {r + 1}.")
    if kind != "evaluate":
        wire.reply_of(content, task.layout, client, trains=kind == "train")
        return
    if not all(isinstance(value, float) for value in content.metric_records["scores"].values()):
        raise EquipoiseError("its scores are not numbers.")
    if not str(said.get("samples", "")).isdecimal():
        raise EquipoiseError("it does not say on how many samples it was scored.")


# --------------------------------------------------------------------------- a federation without data
def stand_in(sites: Sequence[About], plan: Plan) -> Federation:
    """What the server knows of the sites' data: who they are, how many samples they have, and the shape of one."""
    first = sites[0]
    shape = tuple(int(size) for size in first["shape"])  # type: ignore[attr-defined]
    clients, start = [], 0
    for about in sites:
        sizes = [int(str(about[split])) for split in ("train", "test")]
        train, test = (
            torch.arange(start + before, start + before + size)
            for before, size in zip((0, sizes[0]), sizes, strict=True)
        )
        start += sum(sizes)
        clients.append(
            Client(str(about["name"]), train, test=test, domain=str(about["domain"]), joins=int(str(about["joins"])))
        )
    training = Training(**first["training"])  # type: ignore[arg-type]
    protocol = Protocol(
        int(str(first["rounds"])),
        float(str(first["participation"])),
        training,
        str(first["model"]),
        str(first["protocol"]),
    )
    notes = dict.fromkeys(str(note) for about in sites for note in about["notes"])  # type: ignore[attr-defined]
    return Federation(
        name=str(first["data"]),
        x=torch.zeros(1, *shape).expand(start, *shape),  # no data, and no memory for it
        y=torch.zeros(1, dtype=torch.long).expand(start),
        clients=tuple(clients),
        classes=tuple(map(str, first["classes"])),  # type: ignore[call-overload]
        protocol=protocol,
        notes=tuple(notes),
        digest=hashlib.sha256(json.dumps(list(sites), sort_keys=True).encode()).hexdigest(),
        elsewhere=True,
        schema=first["schema"],  # type: ignore[arg-type]
    )
