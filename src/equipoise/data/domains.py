"""What the domain-skew benchmarks share: clients that each hold a part of one domain, and one test set per domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise import seeds
from equipoise.data.cache import PictureSet, open_pool
from equipoise.data.clients import Client
from equipoise.data.federation import Federation, Protocol
from equipoise.data.files import find_images
from equipoise.data.images import IMAGENET, Images
from equipoise.data.partitions import of_domain, stratified
from equipoise.data.sources import Source, folder_part, trains
from equipoise.training import Training

Domains = Mapping[str, tuple[PictureSet, PictureSet]]  # domain -> its training and its test images


@dataclass(frozen=True)
class Preset:
    """How a domain-skew benchmark is dealt out and trained: a paper's protocol, or a smaller one of the library.

    Clients hold a fixed number of samples, not a share of the data, because a user's files may be incomplete.
    """

    clients: Mapping[str, tuple[int, int]]  # domain -> how many clients, and training samples of each
    size: int  # side of the square images, in pixels
    protocol: Protocol
    pad: int = 0  # black pixels around a training image before it is cropped at random
    flip: bool = False  # whether training images are mirrored at random
    test: int | None = None  # the largest test set of a domain; None: all test images
    split: Literal["files", "per class"] = "files"  # that of the files, or a new one: 80 % of each class train


def momentum_sgd(lr: float, batch: int, epochs: int) -> Training:
    """Local training with the optimizer that FedHEAL, FedEquilibria and F2DC share."""
    return Training(lr=lr, batch=batch, epochs=epochs, momentum=0.9, weight_decay=1e-5)


def build_domain_federation(
    name: str,
    classes: Sequence[str],
    domains: Domains,
    preset: Preset,
    seed: int,
    complete: bool = False,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    notes: Sequence[str] = (),
) -> Federation:
    """A federation with clients of every domain, as a preset deals them out.

    With `complete` every client holds every class. `sizes` are the numbers of training and test images in the complete
    data: a note says where the files at hand have others.
    """
    images = open_pool(name, [part for pair in domains.values() for part in pair], preset.size)
    clients, partial = [], []
    for domain, (train_part, test_part) in domains.items():
        train, test = images.parts[train_part.name], images.parts[test_part.name]
        known = (sizes or {}).get(domain, (len(train), len(test)))
        if known != (len(train), len(test)):
            partial.append(
                f"{domain} has {len(train):,} training and {len(test):,} test images here; complete it has {known[0]:,} and "
                f"{known[1]:,}."
            )
        if preset.split == "per class":
            train, test = _anew(torch.cat([train, test]), images.y, name, domain)
        if preset.test is not None and preset.test < len(test):
            test = test[stratified(images.y[test], preset.test, name, domain, "test")]
        count, samples = preset.clients[domain]
        parts = of_domain(images.y[train], count, samples, seed, name, domain, complete=complete)
        clients += [Client(f"{domain} {k + 1}", train[part], test=test, domain=domain) for k, part in enumerate(parts)]
    return Federation(
        name,
        images.x,
        images.y,
        tuple(clients),
        tuple(classes),
        preset.protocol,
        Images(*IMAGENET, pad=preset.pad, flip=preset.flip),
        (*([preset.protocol.note] if preset.protocol.note else []), *notes, *partial, *images.notes),
        images.digest,
    )


def _anew(positions: Tensor, y: Tensor, name: str, domain: str) -> tuple[Tensor, Tensor]:
    """Split the images of a domain anew: of each class the first 80 % in a fixed random order train."""
    train, test = [], []
    for label in y[positions].unique().tolist():
        members = positions[y[positions] == label]
        order = members[seeds.permutation(len(members), name, domain, "split", label)]
        cut = int(0.8 * len(members))
        train.append(order[:cut])
        test.append(order[cut:])
    return torch.cat(train), torch.cat(test)


def objects(source: Source, domains: Sequence[str], classes: Sequence[str]) -> Domains:
    """The training and test images of each domain: from Parquet files, or from image folders by class, which are split
    as in the papers."""
    found = {}
    for domain in domains:
        folder = next((p / domain for p in source.places() if find_images(p / domain)), None)
        if folder:
            train = folder_part(f"{domain}/train", folder, classes, trains)
            test = folder_part(f"{domain}/test", folder, classes, lambda i: not trains(i))
        else:
            train, test = (source.part(split, classes, f"{domain}/{split}", domain) for split in ("train", "test"))
        found[domain] = (train, test)
    return found
