"""Handwritten digits as four kinds of scanners see them: a small federation that needs no download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise import seeds
from equipoise.data.clients import Client
from equipoise.data.federation import Federation, Protocol
from equipoise.training import Training

# Scanner -> training samples of each of its clients. The clean scanner dominates, as one large hospital would.
SIZES = {
    "clean": (160, 120, 80),
    "inverted": (100, 60, 40),
    "noisy": (90, 50, 30),
    "rotated": (60, 40, 20),
}
TEST = 400  # images that no client trains on; every scanner sees all of them
VALIDATION = 0.25  # validation samples of a client per training sample, on top of these
PROTOCOL = Protocol(
    rounds=30, training=Training(epochs=2, batch=20, lr=0.05, momentum=0.9, weight_decay=1e-5), model="small_cnn"
)


def scanners(seed: int = 0) -> Federation:
    """Twelve clients with four kinds of scanners: clean, inverted, blurred and noisy, rotated with low contrast."""
    return deal_scans("scanners", SIZES, VALIDATION, PROTOCOL, seed)


def deal_scans(
    name: str, sizes: Mapping[str, Sequence[int]], validation: float, protocol: Protocol, seed: int
) -> Federation:
    """Handwritten digits dealt out to clients, each image to one of them, as the scanner of its owner delivers it.

    `sizes` has the training samples of each scanner's clients. They get `validation` times as many validation samples
    on top; all clients of a scanner share a test set.
    """
    from sklearn.datasets import load_digits  # takes most of a second: imported only when it is needed

    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16
    labels = torch.from_numpy(digits.target).long()
    order = seeds.permutation(len(images), seed, "scanners")
    test, rest = order[:TEST], order[TEST:]
    x, y, clients, used, size = [], [], [], 0, 0
    for scanner, counts in sizes.items():
        views = [scan(images[test], scanner, seed, "test")]
        targets = [labels[test]]
        shared_test = torch.arange(size, size + TEST)
        size += TEST
        for number, count in enumerate(counts):
            extra = round(validation * count)
            taken = rest[used : used + count + extra]
            used += count + extra
            views.append(scan(images[taken], scanner, seed, str(number)))
            targets.append(labels[taken])
            train, held = torch.arange(size, size + count + extra).tensor_split([count])
            clients.append(Client(f"{scanner} {number + 1}", train, held, shared_test, domain=scanner))
            size += count + extra
        x += views
        y += targets
    pool = torch.cat(x)[:, None]
    return Federation(name, pool, torch.cat(y), tuple(clients), tuple("0123456789"), protocol)


def scan(images: Tensor, scanner: str, seed: int, part: str) -> Tensor:
    """Images `[n, 8, 8]` in [0, 1] as this scanner delivers them."""
    if scanner in ("clean", "upright"):
        return images
    if scanner == "sideways":
        return images.rot90(1, (1, 2))
    if scanner == "inverted":
        return 1 - images
    if scanner == "noisy":
        kernel = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16
        blurred = F.conv2d(images[:, None], kernel[None, None], padding=1)[:, 0]
        noise = torch.randn(images.shape, generator=seeds.generator(seed, "scanners", scanner, part))
        return (blurred + 0.2 * noise).clamp(0, 1)
    return 0.35 + 0.3 * images.rot90(1, (1, 2))  # rotated, low contrast
