"""Digits: ten classes in four domains, from postal codes to house numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from equipoise.data.cache import PictureSet
from equipoise.data.domains import Preset, build_domain_federation, momentum_sgd
from equipoise.data.federation import Federation, Protocol
from equipoise.data.files import find_shards
from equipoise.data.generated import draw_digits
from equipoise.data.sources import Source, folder_part

CLASSES = tuple("0123456789")
DOMAINS = ("mnist", "usps", "svhn", "syn")
INPUT_SHAPE = (3, 32, 32)
MODEL = "resnet10"
# Domain -> training and test images of the complete data.
COMPLETE = {"mnist": (60_000, 10_000), "usps": (7_291, 2_007), "svhn": (73_257, 26_032), "syn": (10_000, 2_000)}
SAMPLES = {"mnist": 600, "usps": 72, "svhn": 732, "syn": 100}  # per client: 1 % of the complete training sets
GENERATED = 2_000  # images per split that stand in for SYN

SOURCES = {
    "mnist": Source("MNIST", "mnist", "https://huggingface.co/datasets/ylecun/mnist", "ylecun/mnist", "mnist"),
    "usps": Source("USPS", "usps", "https://huggingface.co/datasets/flwrlabs/usps", "flwrlabs/usps"),
    "svhn": Source(
        "SVHN", "svhn", "https://huggingface.co/datasets/ufldl-stanford/svhn", "ufldl-stanford/svhn", "cropped_digits"
    ),
}
SYN = Source(
    "SYN",
    "syn",
    "https://www.kaggle.com/datasets/prasunroy/synthetic-digits",
    layout="imgs_train and imgs_valid",
    generated=True,
)
NEEDS = (*SOURCES.values(), SYN)


def _clients(mnist: int, usps: int, svhn: int, syn: int) -> dict[str, tuple[int, int]]:
    counts = {"mnist": mnist, "usps": usps, "svhn": svhn, "syn": syn}
    return {domain: (count, SAMPLES[domain]) for domain, count in counts.items()}


PRESETS = {
    "fedheal": Preset(
        _clients(5, 5, 5, 5), 32, Protocol(200, 1.0, momentum_sgd(0.001, 64, 10), MODEL, "fedheal"), pad=4
    ),
    "fedequilibria": Preset(
        _clients(5, 5, 5, 5), 32, Protocol(200, 1.0, momentum_sgd(0.001, 64, 10), MODEL, "fedequilibria",
        "The paper does not give its transforms: FedHEAL's are used."), pad=4,
    ),
    "f2dc": Preset(
        _clients(3, 6, 6, 5), 32, Protocol(100, 1.0, momentum_sgd(0.01, 64, 10), MODEL, "f2dc"), pad=4, flip=True
    ),
    "cpu": Preset(
        {domain: (5, count // 2) for domain, count in SAMPLES.items()}, 16,
        Protocol(80, 1.0, momentum_sgd(0.01, 32, 5), "small_cnn(width=16)", "cpu",
        "Preset cpu: smaller than the papers' (16x16 pixels, a network of two convolutions, half the training images, 5 "
        "epochs, 80 rounds, 1,000 test images per domain). Presets fedheal, fedequilibria and f2dc are theirs."),
        pad=2, test=1_000,
    ),
}  # fmt: skip


def digits(preset: Literal["cpu", "fedheal", "fedequilibria", "f2dc"] = "cpu", seed: int = 0) -> Federation:
    """MNIST, USPS, SVHN and SYN: ten digits in four domains.

    Where SYN's files are missing, digits drawn with fonts take its place, and the domain is called `generated`.
    """
    chosen, notes = PRESETS[preset], []
    domains: dict[str, tuple[PictureSet, PictureSet]] = {
        name: (source.part("train", CLASSES), source.part("test", CLASSES)) for name, source in SOURCES.items()
    }
    if real := _synthetic():
        domains["syn"] = real
    else:
        domains["generated"] = (draw_digits("train", GENERATED), draw_digits("test", GENERATED))
        chosen = replace(chosen, clients={**chosen.clients, "generated": chosen.clients["syn"]})
        notes.append(
            f"The domain `generated` stands in for SYN: digits that Equipoise draws. SYN itself: {SYN.advice()}"
        )
    return build_domain_federation("digits", CLASSES, domains, chosen, seed, sizes=COMPLETE, notes=notes)


def _synthetic() -> tuple[PictureSet, PictureSet] | None:
    """SYN's training and test images, if its files are there: as Parquet, or as the image folders that its authors
    offer."""
    for place in SYN.places():
        if (place / "imgs_train").is_dir():
            train, test = (folder_part(f"syn/{name}", place / name, CLASSES) for name in ("imgs_train", "imgs_valid"))
            return train, test
        if find_shards(place, "train"):
            return SYN.part("train", CLASSES), SYN.part("test", CLASSES)
    return None
