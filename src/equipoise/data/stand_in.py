"""A federation without data: what sites tell the server about their data, and what the server builds from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

import torch

from equipoise.data.arrays import Groups
from equipoise.data.federation import NOTHING, Client, Federation, Protocol, Split
from equipoise.data.images import rebuild_preparation
from equipoise.data.tables import Schema, compare_schemas
from equipoise.errors import EquipoiseError
from equipoise.training import Training

About = Mapping[str, object]  # what a site tells about itself and its data
SPLITS: tuple[Split, ...] = get_args(Split)
# What must be the same at all sites. The first three follow from a schema, where there is one.
AGREED = (
    "classes", "shape", "dtype", "model", "training", "rounds", "participation", "preparation", "target", "loss", "spread",
    "groups",
)  # fmt: skip


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
        about: dict[str, object] = json.loads(text)
        build_stand_in([about])
        list_disagreements({"": about, " ": about})
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise EquipoiseError(
            f"What it tells of itself cannot be read ({type(error).__name__} {error}): server and sites must have the same "
            "version of Equipoise."
        ) from None
    return about


def build_stand_in(sites: Sequence[About]) -> Federation:
    """The federation as the server knows it: who the sites are, how many samples they have, and the shape of one."""
    first = sites[0]
    shape = tuple(int(size) for size in first["shape"])  # type: ignore[attr-defined]
    clients, start = [], 0
    for about in sites:
        sizes = [int(str(about[split])) for split in SPLITS]
        train, validation, test = torch.arange(start, start + sum(sizes)).split(sizes)
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
        groups=_stand_in_groups(first["groups"], start),
    )


def _stand_in_groups(told: object, samples: int) -> Groups | None:
    """Groups as the sites name them, with all samples in the first one."""
    if told is None:
        return None
    name, *names = map(str, told)  # type: ignore[call-overload]
    return Groups(name, tuple(names), torch.zeros(1, dtype=torch.long).expand(samples))


def zero_targets(target: str, names: int, samples: int) -> torch.Tensor:
    """Targets of a kind (`Federation.target`), all zero, as views of one: `names` is the number of labels."""
    if target == "labels":
        return torch.zeros(1, names).expand(samples, names)
    return torch.zeros(1, dtype=torch.long if target == "classes" else torch.get_default_dtype()).expand(samples)
