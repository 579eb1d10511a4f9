"""A federation without data: what sites tell the server about their data, and what the server builds from it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch

from equipoise.data.arrays import Groups
from equipoise.data.clients import NOTHING, Client, Split
from equipoise.data.federation import Federation, Protocol
from equipoise.data.images import rebuild_preparation
from equipoise.data.tables import Schema, compare_schemas
from equipoise.errors import EquipoiseError
from equipoise.grammar import fit_to_type, require
from equipoise.losses import Target
from equipoise.training import Training

About = Mapping[str, object]  # what a site tells about itself and its data
SPLITS: tuple[Split, ...] = get_args(Split)
# What must be the same at all sites. The first three follow from a schema, where there is one.
AGREED = (
    "classes", "shape", "dtype", "model", "training", "rounds", "participation", "preparation", "target", "loss", "spread",
    "groups",
)  # fmt: skip

MOST_TOLD = 8 * 2**20  # characters in which a site may describe itself: about 200,000 levels of text columns
MOST_SAMPLES = 10**9  # in one split of one site; records count samples in 32 bits
MOST_NUMBERS = 10**8  # in one sample: a volume of 460 x 460 x 460
LONGEST_NAME = 200  # characters of a name, of a model and the like
DEEPEST = 10  # levels of lists within lists; honest descriptions have six
MANY = 10**6  # more rounds or sites than any run has
# Every number and every text that a site sends, with its range; texts are printable, and as long as a name at most.
NUMBERS: dict[str, tuple[type, float, float]] = {
    "number": (int, -1, MANY), "joins": (int, 0, MANY), "rounds": (int, 1, MANY), "participation": (float, 0, 1),
    "train": (int, 0, MOST_SAMPLES), "validation": (int, 0, MOST_SAMPLES), "test": (int, 0, MOST_SAMPLES),
    "centre": (float, -1e30, 1e30), "spread": (float, 0, 1e30), "seed": (int, -(2**63), 2**63 - 1),
}  # fmt: skip
TEXTS = ("name", "domain", "dtype", "model", "protocol", "loss", "data")


def describe_site(data: Federation, client: Client, training: Training, number: int) -> dict[str, object]:
    """What a site tells the server: who it is, and what its data look like. No sample is in it.

    `number` is the site's part of a data set that is dealt out; -1 if the site brings its own data.
    """
    return {
        "name": client.name,
        "domain": client.domain,
        "number": number,
        "joins": client.joins,
        **{split: len(client.split(split)) for split in SPLITS},
        "classes": list(data.classes),
        "shape": list(data.x.shape[1:]),
        "dtype": str(data.x.dtype).removeprefix("torch."),
        "preparation": data.preparation.describe(),
        "model": data.protocol.model,
        "rounds": data.protocol.rounds,
        "participation": data.protocol.participation,
        "protocol": data.protocol.name,
        "loss": data.protocol.loss,
        "target": data.target,
        "groups": None if data.groups is None else [data.groups.name, *data.groups.names],
        "centre": data.centre,
        "spread": data.spread,
        "training": training.describe(),
        "data": data.name if number >= 0 else "own data",
        "notes": list(data.notes),
        "schema": data.schema,
        "seed": data.seed,
    }


def seat_site(data: Federation, client: Client, number: int, sites: int) -> Federation:
    """The site's data as a federation of `sites` clients, in which the site is client `number` and the others are empty
    seats.

    The number matters because a client's random draws follow from it.
    """
    others = replace(client, train=client.train[:1], validation=NOTHING, test=NOTHING, joins=0)
    seats = tuple(replace(others, name=f"seat {k}") if k != number else client for k in range(sites))
    return replace(data, clients=seats)


def list_disagreements(sites: Mapping[str, About]) -> list[str]:
    """Everything in which sites do not train the same model on samples of one kind, in words. Each is compared with the
    first."""
    first, *others = sites or [""]
    found = []
    for name in others:
        one, other = sites[first], sites[name]
        schemas = {
            who: Schema.from_json(sites[who]["schema"]) for who in (first, name) if sites[who]["schema"] is not None
        }
        told = compare_schemas(schemas) if len(schemas) == 2 else []
        if len(schemas) == 1:
            told = [f"One of `{first}` and `{name}` brings its own data, the other has a part of a data set."]
        found += told
        for what in AGREED[3:] if told else AGREED:
            if one[what] != other[what]:
                found.append(f"`{what}` is {one[what]!r} at `{first}` and {other[what]!r} at `{name}`.")
    return found


def read_about(text: str) -> About:
    """What a site told the server, read from JSON. It is tried out, so that nothing in it can fail later."""
    try:
        require(len(text) <= MOST_TOLD, "about", f"at most {MOST_TOLD} characters", len(text))
        about: dict[str, object] = json.loads(text)
        _check_about(about)
        build_stand_in([about])
        list_disagreements({"": about, " ": about})
    except Exception as error:  # of any kind: the text comes from another machine
        raise EquipoiseError(
            f"What it tells of itself cannot be read ({type(error).__name__} {error}): server and sites must have the same "
            "version of Equipoise."
        ) from None
    return about


def _check_about(about: dict[str, object]) -> None:
    """Refuse what is of another type or out of range, before anything of that size is built."""
    _refuse_deep(about)
    json.dumps(about, ensure_ascii=False).encode()  # half of a sign (a lone surrogate) could not be written to a record
    for name, (kind, least, most) in NUMBERS.items():
        value: Any = fit_to_type(about[name], kind, name)
        require(least <= value <= most, name, f"from {least:g} to {most:g}", value)
    for name in TEXTS:
        text = str(fit_to_type(about[name], str, name))
        require(len(text) <= LONGEST_NAME and text.isprintable(), name, "a short text", text[:LONGEST_NAME])
    require(bool(about["name"]), "name", "a text", about["name"])
    fit_to_type(about["target"], Target, "target")
    shape: Any = fit_to_type(about["shape"], tuple[int, ...], "shape")
    fits = all(size >= 0 for size in shape) and math.prod(max(1, size) for size in shape) <= MOST_NUMBERS
    require(fits, "shape", f"that of a sample of at most {MOST_NUMBERS} numbers", shape)
    for name in ("classes", "notes", "groups"):
        fit_to_type([] if about[name] is None else about[name], tuple[str, ...], name)


def _refuse_deep(value: object) -> None:
    """Refuse lists within lists within lists, over which every function that descends into them would stumble."""
    level: list[object] = [value]
    for _ in range(DEEPEST):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [item for items in inner for item in items]
    require(not level, "about", f"at most {DEEPEST} levels deep", "more")


def build_stand_in(sites: Sequence[About]) -> Federation:
    """The federation as the server knows it: who the sites are, how many samples they have, and the shape of one."""
    first = sites[0]
    shape = tuple(int(size) for size in first["shape"])  # type: ignore[attr-defined]
    clients, start = [], 0
    for about in sites:
        sizes = [int(str(about[split])) for split in SPLITS]
        # No position per sample: how many there are is all that is known, and a site may claim a thousand million.
        train, validation, test = (torch.zeros(1, dtype=torch.long).expand(size) for size in sizes)
        start += sum(sizes)
        joins = int(str(about["joins"]))
        clients.append(Client(str(about["name"]), train, validation, test, str(about["domain"]), joins))
    protocol = Protocol(
        int(str(first["rounds"])),
        float(str(first["participation"])),
        Training(**first["training"]),  # type: ignore[arg-type]
        str(first["model"]),
        str(first["protocol"]),
        loss=str(first["loss"]),
    )
    notes = dict.fromkeys(str(note) for about in sites for note in about["notes"])  # type: ignore[attr-defined]
    empty = torch.zeros(1, *shape, dtype=getattr(torch, str(first["dtype"])))
    return Federation(
        name=str(first["data"]),
        x=empty.expand(start, *shape),  # no data: all samples are views of one that is zero
        y=zero_targets(str(first["target"]), len(first["classes"]), start),  # type: ignore[arg-type]
        clients=tuple(clients),
        classes=tuple(map(str, first["classes"])),  # type: ignore[call-overload]
        protocol=protocol,
        preparation=rebuild_preparation(first["preparation"]),  # type: ignore[arg-type]
        notes=tuple(notes),
        digest=hashlib.sha256(json.dumps(list(sites), sort_keys=True).encode()).hexdigest(),
        is_elsewhere=True,
        schema=first["schema"],  # type: ignore[arg-type]
        seed=int(str(first.get("seed", 0))),
        centre=float(str(first["centre"])),
        spread=float(str(first["spread"])),
        groups=_stand_in_groups(first, start),
    )


def list_groups(about: About) -> list[str]:
    """The names of the groups in which a site's samples are; empty if they are in none."""
    return [] if about["groups"] is None else list(map(str, about["groups"]))[1:]  # type: ignore[call-overload]


def _stand_in_groups(about: About, samples: int) -> Groups | None:
    """Groups as the sites name them, with all samples in the first one."""
    if about["groups"] is None:
        return None
    column = str(about["groups"][0])  # type: ignore[index]
    return Groups(column, tuple(list_groups(about)), torch.zeros(1, dtype=torch.long).expand(samples))


def zero_targets(target: str, names: int, samples: int) -> torch.Tensor:
    """Targets of a kind (`Federation.target`), all zero, as views of one: `names` is the number of labels."""
    if target == "labels":
        return torch.zeros(1, names).expand(samples, names)
    return torch.zeros(1, dtype=torch.long if target == "classes" else torch.get_default_dtype()).expand(samples)
