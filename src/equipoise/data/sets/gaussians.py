"""The synthetic data of EAGLE's paper: three clients, or two, with two classes in two dimensions."""

from __future__ import annotations

import math
from typing import Literal

import torch

from equipoise import seeds
from equipoise.data.clients import Client
from equipoise.data.federation import Federation, Protocol
from equipoise.grammar import require
from equipoise.training import Training

MEANS = (2.0, 0.5, 0.1)  # client k's classes lie around +-(mean, mean): easy, harder, nearly hopeless


def gaussians(rotate: int = 0, samples: int = 100, clients: Literal[2, 3] = 3, seed: int = 0) -> Federation:
    """Three clients with two Gaussian classes each, ever harder to tell apart; one client is rotated by 45 degrees.

    `rotate` is the number of that client. The paper's text says client 2, but its figures fit only client 0: in them,
    clients 1 and 2 share their optimum. The training, validation and test parts of a client have `samples` samples
    each, from the same distribution. `clients=2` leaves out the last one, as in the example of the paper's first figure
    (an easy client and one with noisier data; the paper does not give the numbers behind it).
    """
    require(rotate in range(clients), "rotate", "the number of a client", rotate)
    require(samples >= 2, "samples", "at least 2", samples)
    angle = math.pi / 4
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    x, y, owners = [], [], []
    for k, mean in enumerate(MEANS[:clients]):
        parts = []
        for part in ("train", "validation", "test"):
            label = torch.arange(samples) % 2
            noise = torch.randn(samples, 2, generator=seeds.generator(seed, "gaussians", k, part))
            points = noise + mean * (2.0 * label[:, None] - 1)
            x.append(points @ turn.T if k == rotate else points)
            y.append(label)
            start = samples * (len(x) - 1)
            parts.append(torch.arange(start, start + samples))
        train, validation, test = parts
        owners.append(Client(f"client {k}", train, validation, test, domain=f"mean {mean}"))
    protocol = Protocol(rounds=300, training=Training(steps=1, batch=None, lr=0.5), model="linear")
    return Federation("gaussians", torch.cat(x), torch.cat(y), tuple(owners), ("-1", "+1"), protocol)
