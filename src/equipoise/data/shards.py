"""What the shard benchmarks of FedFE and FedFV share: two shards per client, and each client is tested on its own
classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.data.cache import open_pool
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


def build_shard_federation(
    name: str, source: Source, classes: Sequence[str], clients: int, preset: Shards, preparation: Images, seed: int
) -> Federation:
    """A federation of the training set, sorted by class, cut into two shards per client and dealt out at random."""
    part = source.part("train", classes)
    images = open_pool(source.folder, [part])
    parts = shards(images.y, clients, 2, seed)
    held = divide_clients(number_parts(parts), preset.shares, seed, name)
    notes = (*([preset.protocol.note] if preset.protocol.note else []), *images.notes)
    return Federation(
        name, images.x, images.y, held, tuple(classes), preset.protocol, preparation, notes, images.digest
    )
