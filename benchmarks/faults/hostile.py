"""What a hostile site can send over Flower: in place of an answer, of scores, or of the words by which it says who it is.

A round with such an answer must leave the model that a round without the site leaves, and the record must name the site.
"""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from equipoise.engine.result import RoundRecord, Run
from equipoise.flower import Plan, client_app, federate, wire
from faults.scene import make_federation
from faults.table import Row
from kit.flower import Fault, LoopGrid

SITES, VICTIM, ROUNDS = 4, 1, 3
INTRUDER = 999  # the node id of a site that comes while the run goes on
METHODS = ("fedavg", "scaffold")  # without and with a state at the sites
Spoil = Callable[[RecordDict, random.Random], None]  # changes the content of an answer


# --------------------------------------------------------------------------- in place of a trained model
def _write_header(shape: str, kind: str = "<f4") -> bytes:
    """The beginning of a file in NumPy's format that declares this shape, whatever follows."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _put_bytes(make: Callable[[random.Random], bytes]) -> Spoil:
    """Put other bytes into one of the arrays of the update or of the reports."""

    def spoil(content: RecordDict, draw: random.Random) -> None:
        where = draw.choice(["update", "reports"])
        arrays = dict(content.array_records[where])
        arrays[draw.choice(sorted(arrays))] = Array("float32", (1,), "numpy.ndarray", make(draw))
        content[where] = ArrayRecord(arrays)

    return spoil


def _save(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _say(name: str, value: object) -> Spoil:
    """Another plain value in the answer."""

    def spoil(content: RecordDict, draw: random.Random) -> None:
        content.config_records[wire.FACTS][name] = value  # type: ignore[assignment]

    return spoil


ANSWERS: dict[str, Spoil] = {
    "array that declares 3.3 TiB": _put_bytes(lambda draw: _write_header("(920000000000,)") + b"\0" * 64),
    "array that declares a little more": _put_bytes(lambda draw: _write_header("(17,)") + b"\0" * 64),
    "array with sizes below zero": _put_bytes(lambda draw: _write_header("(-4, -4)") + b"\0" * 64),
    "array of arrays as large as a disk": _put_bytes(
        lambda draw: _write_header("(1,)", "(1000000000000,)f4") + b"\0" * 64
    ),
    "array with a header of brackets": _put_bytes(lambda draw: _write_header("(" * 9000 + ")" * 9000)),
    "bytes that begin like a zip": _put_bytes(lambda draw: b"PK\x03\x04" + draw.randbytes(64)),
    "any bytes": _put_bytes(lambda draw: draw.randbytes(draw.randrange(200))),
    "array that is cut off": _put_bytes(lambda draw: _save(np.ones(50, np.float32))[: draw.randrange(320)]),
    "array of text": _put_bytes(lambda draw: _save(np.full(16, "x" * draw.randrange(1, 100)))),
    "array of complex numbers": _put_bytes(lambda draw: _save(np.ones(16, np.complex64))),
    "name of another kind": _say("name", [1.5, 2.5]),
    "round that is text": _say("round", "ninth"),
    "error of a million signs": _say(wire.ERROR, "\x1b[2J\u202e no \n" * 100_000),
}


# --------------------------------------------------------------------------- in place of scores
def _score(**values: object) -> Spoil:
    """Other scores on the test data; `accuracy` and `loss` are kept where they are not given."""

    def spoil(content: RecordDict, draw: random.Random) -> None:
        kept = dict(content.metric_records["test"])
        content["test"] = MetricRecord({**kept, **{name.replace("__", " "): v for name, v in values.items()}})  # type: ignore[dict-item]

    return spoil


def _score_too_much(content: RecordDict, draw: random.Random) -> None:
    content["test"] = MetricRecord({f"accuracy of {k}": 0.5 for k in range(5000)})


SCORES: dict[str, Spoil] = {
    "accuracy of 5500 %": _score(accuracy=55.0),
    "accuracy of -1e300": _score(accuracy=-1e300),
    "accuracy that is not a number": _score(accuracy=float("nan")),
    "loss below zero": _score(loss=-0.1),
    "loss of 1e300": _score(loss=1e300),
    "list of accuracies": _score(accuracy=[0.5, 0.5]),
    "score that nobody knows": _score(profit=0.5),
    "counts of a group that is not there": _score(**{"group n[7,0,0]": 3.0}),
    "5,000 scores": _score_too_much,
}


# --------------------------------------------------------------------------- in place of a greeting
def _describe(**changes: object) -> Spoil:
    """Another description of the site, in JSON."""

    def spoil(content: RecordDict, draw: random.Random) -> None:
        facts = content.config_records[wire.FACTS]
        about = {**json.loads(str(facts["about"])), "name": f"site {draw.randrange(10**6)}", **changes}
        facts["about"] = json.dumps(about)

    return spoil


def _describe_deeply(content: RecordDict, draw: random.Random) -> None:
    facts = content.config_records[wire.FACTS]
    depth = draw.choice([20, 500, 900, 100_000])
    facts["about"] = str(facts["about"])[:-1] + f', "more": {"[" * depth}{"]" * depth}}}'


GREETINGS: dict[str, Spoil] = {
    "greeting of nested lists": _describe_deeply,
    "greeting of 20 MB": _describe(notes=["x" * 20_000_000]),
    "10^12 samples": _describe(train=10**12),
    "-5 samples": _describe(test=-5),
    "1.5 samples": _describe(validation=1.5),
    "sample of 10^12 numbers": _describe(shape=[10**6, 10**6]),
    "half of a sign in the name": _describe(name="north\ud800"),
    "control signs in the name": _describe(name="north\x1b[2J\n"),
    "name of 10,000 letters": _describe(name="n" * 10_000),
    "spread below zero": _describe(spread=-1.0),
    "greeting without words": lambda content, draw: content.config_records[wire.FACTS].clear(),
}


# --------------------------------------------------------------------------- the runs
def _play(method: str, fault: Fault | None, intrudes: int | None = None) -> tuple[Run, str]:
    """A run of four sites in this process; a fifth one comes after the round `intrudes`, at 0 before the first. Also
    what was said meanwhile."""
    data = make_federation(SITES)
    plan = Plan(method=method, sites=SITES, rounds=ROUNDS)
    grid = LoopGrid(client_app(plan, data=data), {k + 1: {"partition-id": k} for k in range(SITES)}, fault)

    def intrude(record: RoundRecord) -> None:
        if record.round == intrudes:
            grid.contexts[INTRUDER] = Context(1, INTRUDER, {"partition-id": 0}, RecordDict(), {})

    if intrudes == 0:
        grid.contexts[INTRUDER] = Context(1, INTRUDER, {"partition-id": 0}, RecordDict(), {})
    said: list[str] = []
    return federate(grid, plan, on_round=intrude, on_note=said.append), "\n".join(said)


def _spoil_some(kind: str, spoil: Spoil, draw: random.Random) -> Fault:
    """A fault in one site's messages of this kind, in the second round."""

    def fault(asked: Message, answer: Message) -> Message | None:
        said = asked.content.config_records.get(wire.FACTS, ConfigRecord())
        whom = asked.metadata.dst_node_id == (INTRUDER if kind == "query.hello" else VICTIM + 1)
        if asked.metadata.message_type != kind or not whom or said.get("round", 1) != 1:
            return answer
        spoil(answer.content, draw)
        return answer

    return fault


def answer_as_hostile_site(times: int, kinds: dict[str, dict[str, Spoil]] | None = None, seed: int = 0) -> list[Row]:
    """Send everything of the three tables as often as `times` says, each in a run of its own."""
    tables = kinds or {"train": ANSWERS, "evaluate": SCORES, "query.hello": GREETINGS}
    without = {
        (method, kind): _play(
            method,
            _spoil_some(kind, _say(wire.ERROR, "no power"), random.Random(0)),
            1 if kind == "query.hello" else None,
        )[0]
        for method in METHODS
        for kind in tables
    }
    rows = []
    for kind, table in tables.items():
        for name, spoil in table.items():
            draw, equal, named = random.Random(f"{seed} {name}"), 0, 0
            for _ in range(times):
                method = draw.choice(METHODS)
                moment = draw.randrange(2) if kind == "query.hello" else None  # before or after the first round
                run, said = _play(method, _spoil_some(kind, spoil, draw), moment)
                known = without[method, kind]
                same_scores = [one.scores for one in run.rounds] == [one.scores for one in known.rounds]
                equal += torch.equal(run.server.theta, known.server.theta) and same_scores
                wrong = "c1" if kind != "query.hello" else f"node {INTRUDER}"
                told = [one.client for record in run.rounds for one in record.rejected]
                named += f"`{wrong}` cannot take part" in said if moment == 0 else told == [wrong]
            rows.append(Row(name, times, f"{equal} of {times} runs bit for bit as without the site, {named} named"))
    return rows
