"""EMNIST ByClass: 62 handwritten characters, split unequally over ten clients, as in the paper of EAGLE."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Literal

import numpy as np
import torch

from equipoise.data.cache import Pictures, PictureSet, open_pool
from equipoise.data.federation import Federation, Protocol, divide_clients, number_parts
from equipoise.data.images import Images
from equipoise.data.partitions import dirichlet, stratified
from equipoise.data.sources import Source
from equipoise.errors import EquipoiseError
from equipoise.training import Training

CLASSES = tuple(digits + ascii_uppercase + ascii_lowercase)
DOMAINS = ()
INPUT_SHAPE = (1, 28, 28)
MODEL = "linear"
CLIENTS, IMAGES = 10, 20_000
SHARES = (0.6, 0.2, 0.2)
SOURCE = Source(
    "EMNIST ByClass",
    "emnist_byclass",
    "https://www.nist.gov/itl/products-and-services/emnist-dataset (the `gzip` archive)",
    layout="emnist-byclass-test-images-idx3-ubyte.gz and emnist-byclass-test-labels-idx1-ubyte.gz",
)
NEEDS = (SOURCE,)
FULL_BATCH = Training(steps=1, batch=None, lr=0.5)

PRESETS = {
    "eagle": Protocol(
        10_000, 1.0, FULL_BATCH, MODEL, "eagle", "The paper tunes its learning rates and does not list them."
    ),
    "cpu": Protocol(
        300,
        1.0,
        FULL_BATCH,
        MODEL,
        "cpu",
        "Preset cpu: 300 rounds instead of 10,000. Preset eagle has the paper's number.",
    ),
}


def emnist(alpha: float = 0.1, preset: Literal["cpu", "eagle"] = "cpu", seed: int = 0) -> Federation:
    """62 handwritten characters over ten clients, every class split by its own Dirichlet draw.

    The images are a fixed stratified choice of 20,000 from the official test split. The paper's alphas are 0.1, 0.5, 1
    and 2000, its models `linear` and `cnn`, and its seeds 0, 42, 100 and 200, for the partition (`seed` here) and for
    the run.
    """
    images = open_pool("emnist", [_part()])
    parts = dirichlet(images.y, CLIENTS, alpha, min_size=10, seed=seed)
    clients = divide_clients(number_parts(parts), SHARES, seed, "emnist")
    protocol = PRESETS[preset]
    return Federation(
        "emnist",
        images.x,
        images.y,
        clients,
        CLASSES,
        protocol,
        Images(),
        (protocol.note, *images.notes),
        images.digest,
    )


def _part() -> PictureSet:
    """The chosen images of the official test split, whose files are Parquet or as NIST offers them."""
    whole = None
    for place in SOURCE.places():
        files = [place / name for name in SOURCE.layout.split(" and ")]
        if all(path.exists() for path in files):
            whole = PictureSet("emnist/test", tuple(files), partial(_idx, *files))
    whole = whole or SOURCE.part("test", CLASSES, "emnist/test")
    return PictureSet(whole.name, whole.files, partial(_chosen, whole), str(IMAGES))


def _chosen(whole: PictureSet) -> Pictures:
    pictures = whole.load()
    labels = torch.tensor(pictures.labels, dtype=torch.long)
    kept = stratified(labels, min(IMAGES, len(labels)), "emnist", "images").tolist()
    return Pictures([pictures.images[i] for i in kept], labels[kept].numpy(), lambda i: pictures.name(kept[i]))


def _idx(images: Path, labels: Path) -> Pictures:
    """The images of NIST's files, which have a header of big-endian sizes, then bytes. Images are stored transposed."""
    pixels, numbers = (_array(path) for path in (images, labels))
    if pixels.ndim != 3 or len(pixels) != len(numbers):
        raise EquipoiseError(f"`{images}` and `{labels}` do not belong together. Fetch them again.")
    return Pictures(list(pixels.transpose(0, 2, 1)), numbers, lambda i: f"number {i} of `{images}`")


def _array(path: Path) -> np.ndarray:
    try:
        content = gzip.decompress(path.read_bytes())
        shape = np.frombuffer(content, ">u4", content[3], 4)
        return np.frombuffer(bytearray(content), np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise EquipoiseError(f"Cannot read `{path}`: {error}. Fetch it again.") from None
