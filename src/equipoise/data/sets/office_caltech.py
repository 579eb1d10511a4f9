"""Office-Caltech-10: ten kinds of objects, as a shop, a photo collection, a good camera and a webcam show them."""

from __future__ import annotations

from typing import Literal

from equipoise.data.domains import Preset, build_domain_federation, momentum_sgd, objects
from equipoise.data.federation import Federation, Protocol
from equipoise.data.sources import Source

CLASSES = (
    "back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug", "projector",
)  # fmt: skip
DOMAINS = ("amazon", "caltech", "dslr", "webcam")
INPUT_SHAPE = (3, 32, 32)
MODEL = "resnet10"
# Domain -> training and test images of the complete data.
COMPLETE = {"amazon": (768, 190), "caltech": (899, 224), "dslr": (127, 30), "webcam": (237, 58)}
SOURCE = Source(
    "Office-Caltech-10",
    "office_caltech_10",
    "https://people.eecs.berkeley.edu/~jhoffman/domainadapt/ (GFK's selection of ten classes)",
    layout="<domain>/<class>/<image>",
)
NEEDS = (SOURCE,)
TENTH = {"amazon": (5, 76), "caltech": (5, 89), "dslr": (5, 12), "webcam": (5, 23)}  # five clients with 10 % each

PRESETS = {
    "fedheal": Preset(TENTH, 192, Protocol(200, 1.0, momentum_sgd(0.001, 16, 10), MODEL, "fedheal"), flip=True),
    "fedequilibria": Preset(
        TENTH, 192, Protocol(200, 1.0, momentum_sgd(0.001, 16, 5), "resnet12", "fedequilibria",
        "The paper does not give its transforms: FedHEAL's are used."), flip=True,
    ),
    "f2dc": Preset(
        {"amazon": (2, 153), "caltech": (3, 179), "dslr": (3, 25), "webcam": (2, 47)}, 32,
        Protocol(100, 1.0, momentum_sgd(0.01, 64, 10), MODEL, "f2dc"), pad=4, flip=True,
    ),
    "cpu": Preset(
        {"amazon": (2, 153), "caltech": (3, 179), "dslr": (3, 25), "webcam": (2, 47)}, 16,
        Protocol(60, 1.0, momentum_sgd(0.01, 16, 10), "small_cnn(width=16)", "cpu",
        "Preset cpu: F2DC's clients and images, but smaller (16x16 pixels, a network of two convolutions, 60 rounds). "
        "Presets fedheal, fedequilibria and f2dc are the papers'."), pad=2, flip=True,
    ),
}  # fmt: skip


def office_caltech(preset: Literal["cpu", "fedheal", "fedequilibria", "f2dc"] = "cpu", seed: int = 0) -> Federation:
    """Amazon, Caltech, DSLR and webcam: ten kinds of objects in four domains of very unequal size."""
    domains = objects(SOURCE, DOMAINS, CLASSES)
    return build_domain_federation(
        "office-caltech", CLASSES, domains, PRESETS[preset], seed, complete=True, sizes=COMPLETE
    )
