"""Bad answers: not finite, of a wrong shape, type or round, with wrong reports, sent twice, or by an unknown client."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import torch

from equipoise.engine.checks import Answer
from faults.scene import Scene
from faults.table import Row

METHODS = ("fedavg", "fedheal", "fedfe", "fedequilibria")  # a sum, tensors one by one, a memory of updates, Fisher
CLIENTS = 10
ORDERS = 100  # random orders of arrival

Spoil = Callable[[Answer, random.Random], Answer]


def _change_update(answer: Answer, change: Callable[[torch.Tensor], torch.Tensor]) -> Answer:
    return replace(answer, update=change(answer.update.clone()))


def _put_into_update(value: float) -> Spoil:
    """Spoil one entry of the update, wherever."""

    def spoil(answer: Answer, draw: random.Random) -> Answer:
        update = answer.update.clone()
        update[draw.randrange(len(update))] = value
        return replace(answer, update=update)

    return spoil


def _put_into_reports(answer: Answer, name: str, value: object) -> Answer:
    return replace(answer, reports={**answer.reports, name: value})


BAD: dict[str, Spoil] = {
    "all NaN": lambda a, _: _change_update(a, lambda u: u * math.nan),
    "one NaN": _put_into_update(math.nan),
    "one Inf": _put_into_update(math.inf),
    "one -Inf": _put_into_update(-math.inf),
    "1e30 in one value": _put_into_update(1e30),
    "huge norm": lambda a, d: _change_update(a, lambda u: u * 10 ** d.uniform(3, 30)),
    "wrong shape": lambda a, d: replace(a, update=torch.ones(*([1] * d.randint(0, 2)), d.choice([1, 2, 1000]))),
    "wrong type": lambda a, d: _change_update(
        a, lambda u: u.to(d.choice([torch.int64, torch.complex64, torch.bool, torch.uint8]))
    ),
    "no update": lambda a, _: replace(a, update=None),
    "missing report": lambda a, _: replace(a, reports={n: v for n, v in a.reports.items() if n != "samples"}),
    "unknown report": lambda a, _: _put_into_reports(a, "../../etc/passwd", torch.zeros(())),
    "NaN in a report": lambda a, _: _put_into_reports(a, "samples", math.nan),
    "samples 0, negative, 1e12 or text": lambda a, d: _put_into_reports(
        a, "samples", d.choice([0, -899, 1e12, 1.5, "many"])
    ),
    "stale round": lambda a, d: replace(a, round=a.round - d.randint(1, 5)),
    "future round": lambda a, d: replace(a, round=a.round + d.randint(1, 5)),
    "unknown client": lambda a, d: replace(a, client=1000 + d.randrange(1000)),
}


def send_bad_answers(count: int, seed: int = 0) -> list[Row]:
    """Send each kind of bad answer as often as its share of `count`, in several methods and from random clients."""
    scenes = [Scene.build(method, CLIENTS) for method in METHODS]
    each = -(-count // (len(BAD) + 1))
    rows = _spoil_answers(scenes, each, seed)
    draw, equal = random.Random(seed), 0
    for _ in range(each):
        scene = draw.choice(scenes)
        sent = [*scene.answers, draw.choice(scene.answers)]
        draw.shuffle(sent)
        equal += scene.finish(sent)[0] == scene.finish(scene.answers)[0]
    rows.append(Row("duplicate", each, f"{equal} of {each} counted once, bit for bit"))
    hashes = set()
    for _ in range(ORDERS):
        sent = list(scenes[1].answers)
        draw.shuffle(sent)
        hashes.add(scenes[1].finish(sent)[0])
    rows.append(Row("order of arrival", ORDERS, f"{len(hashes)} hash of the model"))
    return rows


def _spoil_answers(scenes: list[Scene], each: int, seed: int) -> list[Row]:
    """A round with a bad answer must leave the model that a round without the client leaves."""
    without = [
        [scene.finish([a for a in scene.answers if a.client != victim])[0] for victim in range(CLIENTS)]
        for scene in scenes
    ]
    rows = []
    for fault, spoil in BAD.items():
        draw, equal, named = random.Random(f"{seed} {fault}"), 0, 0
        for _ in range(each):
            which, victim = draw.randrange(len(scenes)), draw.randrange(CLIENTS)
            scene = scenes[which]
            bad = spoil(scene.answers[victim], draw)
            sent = [bad if a.client == victim else a for a in scene.answers]
            draw.shuffle(sent)
            found, refused = scene.finish(sent)
            equal += found == without[which][victim]
            named += [refusal.client for refusal in refused] == [bad.client]
        rows.append(Row(fault, each, f"{equal} of {each} rounds bit for bit as without the client, {named} named"))
    return rows
