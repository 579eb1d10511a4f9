"""PACS: seven kinds of objects as photos, art paintings, cartoons and sketches."""

from __future__ import annotations

from typing import Literal

from equipoise.data.domains import Preset, build_domain_federation, momentum_sgd, objects
from equipoise.data.federation import Federation, Protocol
from equipoise.data.sources import Source

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
INPUT_SHAPE = (3, 32, 32)
MODEL = "resnet10"
# Domain -> training and test images of the complete data.
COMPLETE = {"photo": (1336, 334), "art_painting": (1640, 408), "cartoon": (1876, 468), "sketch": (3144, 785)}
SOURCE = Source(
    "PACS", "pacs", "https://huggingface.co/datasets/flwrlabs/pacs", "flwrlabs/pacs", layout="<domain>/<class>/<image>"
)
NEEDS = (SOURCE,)

PRESETS = {
    "fedequilibria": Preset(
        {"photo": (5, 133), "art_painting": (5, 163), "cartoon": (5, 187), "sketch": (5, 314)}, 128,
        Protocol(200, 1.0, momentum_sgd(0.001, 16, 5), "resnet12", "fedequilibria",
        "The paper does not give its transforms: F2DC's are used."), pad=4, flip=True, split="per class",
    ),
    "f2dc": Preset(
        {"photo": (2, 400), "art_painting": (3, 492), "cartoon": (2, 562), "sketch": (3, 943)}, 128,
        Protocol(100, 1.0, momentum_sgd(0.01, 64, 10), MODEL, "f2dc"), pad=4, flip=True,
    ),
    "cpu": Preset(
        {"photo": (2, 133), "art_painting": (3, 164), "cartoon": (2, 187), "sketch": (3, 314)}, 16,
        Protocol(250, 1.0, momentum_sgd(0.03, 32, 1), "small_cnn(width=16)", "cpu",
        "Preset cpu: F2DC's clients, but smaller (16x16 pixels, a network of two convolutions, a third of the training "
        "images, 1 epoch, 250 rounds). Presets fedequilibria and f2dc are the papers'."), pad=2, flip=True,
    ),
}  # fmt: skip


def pacs(preset: Literal["cpu", "fedequilibria", "f2dc"] = "cpu", seed: int = 0) -> Federation:
    """Photos, art paintings, cartoons and sketches: seven kinds of objects in four domains."""
    domains = objects(SOURCE, DOMAINS, CLASSES)
    return build_domain_federation("pacs", CLASSES, domains, PRESETS[preset], seed, complete=True, sizes=COMPLETE)
