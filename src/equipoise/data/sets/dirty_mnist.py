"""Dirty MNIST: five clients whose handwritten digits are more and more ambiguous, as in the paper of EAGLE."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import torch

from equipoise import seeds
from equipoise.data.cache import Pictures, PictureSet, open_pool
from equipoise.data.federation import Federation, Protocol, divide_clients
from equipoise.data.files import find_shards
from equipoise.data.generated import blend_digits
from equipoise.data.images import Images
from equipoise.data.sets.digits import SOURCES
from equipoise.data.sources import Source
from equipoise.training import Training

CLASSES = tuple("0123456789")
DOMAINS = ()
INPUT_SHAPE = (1, 28, 28)
MODEL = "cnn"
AMBIGUOUS = (0.0, 0.25, 0.5, 0.75, 1.0)  # share of ambiguous images at each client
SAMPLES = 1_600  # per client
SHARES = (0.6, 0.2, 0.2)
BLENDS = 6_000  # generated ambiguous images
VERSION = "2"  # raise it when the blends change: the cache then makes them again
SOURCE = Source(
    "Ambiguous-MNIST",
    "ambiguous_mnist",
    "https://github.com/BlackHC/ddu_dirty_mnist",
    layout="train-*.parquet (columns image and label)",
    generated=True,
)
NEEDS = (SOURCES["mnist"], SOURCE)

PRESETS = {
    "eagle": Protocol(
        10_000, 1.0, Training(steps=1, batch=None, lr=0.1), MODEL, "eagle",
        "The paper gives neither the network nor the learning rate: McMahan's network and 0.1 are ours.",
    ),
    "cpu": Protocol(
        15, 1.0, Training(epochs=1, batch=32, lr=0.05), "small_cnn", "cpu",
        "Preset cpu: a small network, batches of 32, 15 rounds. Preset eagle is nearer to the paper.",
    ),
}  # fmt: skip


def dirty_mnist(preset: Literal["cpu", "eagle"] = "cpu", seed: int = 0) -> Federation:
    """Five clients with 1,600 handwritten digits each, of which 0, 25, 50, 75 and 100 % are ambiguous.

    Where the files of Ambiguous-MNIST are missing, *generated* images take its place: blends of two digits, labelled as
    either of them.
    """
    clean = SOURCES["mnist"].part("train", CLASSES)
    real = any(find_shards(place, "train") for place in SOURCE.places())
    ambiguous = SOURCE.part("train", CLASSES, "ambiguous/train") if real else _generated(clean)
    images = open_pool("dirty-mnist", [clean, ambiguous])
    pools = [images.parts[part.name] for part in (clean, ambiguous)]
    if not real:
        pools[0] = pools[0][: len(pools[0]) // 2]  # the blends are made from the other half
    orders = [
        places[seeds.permutation(len(places), seed, "dirty-mnist", part.name)]
        for places, part in zip(pools, (clean, ambiguous), strict=True)
    ]
    parts, used = {}, [0, 0]
    for share in AMBIGUOUS:
        dirty = round(share * SAMPLES)
        counts = (SAMPLES - dirty, dirty)
        taken = [order[start : start + count] for order, start, count in zip(orders, used, counts, strict=True)]
        used = [start + count for start, count in zip(used, counts, strict=True)]
        parts[f"{round(100 * share)} % ambiguous"] = torch.cat(taken)
    protocol = PRESETS[preset]
    stand_in = f"Ambiguous images are generated: blends of two MNIST digits. Ambiguous-MNIST itself: {SOURCE.advice()}"
    return Federation(
        "dirty-mnist", images.x, images.y, divide_clients(parts, SHARES, seed, "dirty-mnist"), CLASSES, protocol, Images(),
        (protocol.note, *([] if real else [stand_in]), *images.notes), images.digest,
    )  # fmt: skip


def _generated(clean: PictureSet) -> PictureSet:
    return PictureSet("generated/train", clean.files, partial(_blends, clean), VERSION)


def _blends(clean: PictureSet) -> Pictures:
    whole = open_pool("mnist", [clean])
    half = len(whole.y) // 2
    mixed, labels = blend_digits(whole.x[half:, 0].numpy(), whole.y[half:].numpy(), BLENDS)
    return Pictures(list(mixed), np.asarray(labels), lambda i: f"generated digit {i}")
