"""What the shard benchmarks of FedFE and FedFV share: two shards per client, and each client is tested on its own
classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise import seeds
from equipoise.data.cache import open_pool
from equipoise.data.clients import Client
from equipoise.data.federation import Federation, Protocol, divide_clients, number_parts
from equipoise.data.images import Images
from equipoise.data.partitions import shards
from equipoise.data.sources import Source

# Shares of a client's samples for training, validation and test.
FEDFV = (0.8, 0.1, 0.1)
FEDFE = (0.8, 0.0, 0.2)  # on MNIST; the paper says nothing about its other two data sets


@dataclass(frozen=True)
class Shards:
    """A protocol, and how each client's samples are divided into training, validation and test ones."""

    protocol: Protocol
    shares: tuple[float, float, float] = FEDFV


# FedFV's public code seeds numpy and torch with these plus the seed of a run.
RELEASED_SPLIT, RELEASED_MODEL = 21, 12


def divide_as_released(parts: Mapping[str, Tensor], seed: int) -> tuple[Client, ...]:
    """One client per named part, divided as FedFV's public code does with this seed: 80 % train, the next 10 % test."""
    orders = seeds.shuffle_in_turn([len(part) for part in parts.values()], RELEASED_SPLIT + seed)
    clients = []
    for (name, part), order in zip(parts.items(), orders, strict=True):
        shuffled, n = part[order], len(part)
        train, test, validation = torch.tensor_split(shuffled, [int(0.8 * n), int(0.9 * n)])
        clients.append(Client(name, train, validation, test))
    return tuple(clients)


def build_shard_federation(
    name: str, source: Source, classes: Sequence[str], clients: int, preset: Shards, preparation: Images, seed: int
) -> Federation:
    """A federation of the training set, sorted by class, cut into two shards per client and dealt out at random."""
    part = source.part("train", classes)
    images = open_pool(source.folder, [part])
    parts = number_parts(shards(images.y, clients, 2, seed))
    released = preset.protocol.name == "fedfv"
    held = divide_as_released(parts, seed) if released else divide_clients(parts, preset.shares, seed, name)
    notes = (*([preset.protocol.note] if preset.protocol.note else []), *images.notes)
    return Federation(
        name, images.x, images.y, held, tuple(classes), preset.protocol, preparation, notes, images.digest
    )
