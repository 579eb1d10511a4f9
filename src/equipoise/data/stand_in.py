"""A federation without data: what sites tell the server about their data, and what the server builds from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import torch

from equipoise.data.federation import Client, Federation, Protocol
from equipoise.data.images import rebuild_preparation
from equipoise.errors import EquipoiseError
from equipoise.training import Training

About = Mapping[str, object]  # what a site tells about itself and its data
# What must be the same at all sites.
AGREED = ("classes", "shape", "dtype", "model", "training", "rounds", "participation", "preparation", "schema")


def describe_site(data: Federation, client: Client, training: Training, number: int) -> dict[str, object]:
    """What a site tells the server: who it is, and what its data look like. No sample is in it.

    `number` is the site's part of a data set that is dealt out; -1 if the site brings its own data.
    """
    return {
        "name": client.name,
        "domain": client.domain,
        "number": number,
        "joins": client.joins,
        "train": len(client.train),
        "test": len(client.test),
        "classes": list(data.classes),
        "shape": list(data.x.shape[1:]),
        "dtype": str(data.x.dtype).removeprefix("torch."),
        "preparation": data.preparation.describe(),
        "model": data.protocol.model,
        "rounds": data.protocol.rounds,
        "participation": data.protocol.participation,
        "protocol": data.protocol.name,
        "training": asdict(training),
        "data": data.name if number >= 0 else "own data",
        "notes": list(data.notes),
        "schema": data.schema,
    }


def seat_site(data: Federation, client: Client, number: int, sites: int) -> Federation:
    """The site's data as a federation of `sites` clients, in which the site is client `number` and the others are empty
    seats.

    The number matters because a client's random draws follow from it.
    """
    others = replace(client, train=client.train[:1], test=client.test[:0], joins=0)
    seats = tuple(replace(others, name=f"seat {k}") if k != number else client for k in range(sites))
    return replace(data, clients=seats)


def refuse_disagreement(sites: Mapping[str, About]) -> None:
    """Refuse sites that do not train the same model on samples of one kind."""
    first, *others = sites
    for what in AGREED:
        for name in others:
            if sites[name][what] != sites[first][what]:
                raise EquipoiseError(
                    f"Sites must agree on `{what}`. Found {sites[first][what]!r} at `{first}` and {sites[name][what]!r} at "
                    f"`{name}`: give both the same schema.json and settings."
                )


def build_stand_in(sites: Sequence[About]) -> Federation:
    """The federation as the server knows it: who the sites are, how many samples they have, and the shape of one."""
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
    protocol = Protocol(
        int(str(first["rounds"])),
        float(str(first["participation"])),
        Training(**first["training"]),  # type: ignore[arg-type]
        str(first["model"]),
        str(first["protocol"]),
    )
    notes = dict.fromkeys(str(note) for about in sites for note in about["notes"])  # type: ignore[attr-defined]
    empty = torch.zeros(1, *shape, dtype=getattr(torch, str(first["dtype"])))
    return Federation(
        name=str(first["data"]),
        x=empty.expand(start, *shape),  # no data: all samples are views of one that is zero
        y=torch.zeros(1, dtype=torch.long).expand(start),
        clients=tuple(clients),
        classes=tuple(map(str, first["classes"])),  # type: ignore[call-overload]
        protocol=protocol,
        preparation=rebuild_preparation(first["preparation"]),  # type: ignore[arg-type]
        notes=tuple(notes),
        digest=hashlib.sha256(json.dumps(list(sites), sort_keys=True).encode()).hexdigest(),
        is_elsewhere=True,
        schema=first["schema"],  # type: ignore[arg-type]
    )
