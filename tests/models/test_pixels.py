"""Narrow convolutional networks in a process of their own: a library that writes past its buffers may abort it."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch
from torch import nn

from equipoise import Federation, Training, client_round, parse
from equipoise.models import build_model
from equipoise.rounds.server import begin_server, make_broadcast
from equipoise.task import Task


class Strided(nn.Module):
    def __init__(self, channels, inside, outside, kernel, stride):
        super().__init__()
        self.first = nn.Conv2d(channels, inside, 3, padding=1)
        self.second = nn.Conv2d(inside, outside, kernel, stride, padding=kernel // 2)
        self.head = nn.Linear(outside, 3)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu().mean((2, 3)))


def gradient(dtype, channels, side, model, seed):
    torch.set_default_dtype(dtype)
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(16, channels, side, side, generator=draw, dtype=torch.float64).to(dtype)
    data = Federation.from_tensors({"a": (x, torch.arange(16) % 3)}, test_share=0)
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float32)
    network = build_model(model, (channels, side, side), 3, seed) if isinstance(model, str) else Strided(channels, *model)
    torch.set_default_dtype(dtype)
    task = Task.build(parse("fedavg"), data, model=network.to(dtype), training=Training(batch=16, steps=1, lr=1.0))
    server = begin_server(parse("fedavg"), task)
    return -client_round(parse("fedavg"), task, [0], make_broadcast(server, 1), {}, 0)[0].updates[0].double()


shapes = [(2, 4), (3, 6), (6, 12), (7, 5), (8, 16), (1, 3)]
strides = [(kernel, stride) for kernel in (1, 3) for stride in (1, 2, 3)]
cases = [(1 + i % 3, 4 + i, (*shape, *stride)) for i, shape in enumerate(shapes) for stride in strides]
cases += [(3, 8, f"resnet10(width={width})") for width in (2, 3, 7, 8)]
for number, case in enumerate(cases):
    for threads in (1, 2) if number % 5 == 0 else (1,):
        torch.set_num_threads(threads)
        single, double = (gradient(dtype, *case, number) for dtype in (torch.float32, torch.float64))
        error = float((single - double).norm() / double.norm())
        assert error < 2e-4, f"{case} with {threads} threads: the gradient is off by {error:.1e}"
print(len(cases), "networks")
"""


@pytest.mark.parametrize("instructions", ["DEFAULT", "AVX2"])
def test_gradients_of_narrow_networks(instructions):
    """The faulty routine is chosen on CPUs without AVX-512, and elsewhere where oneDNN is told to do without."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert "40 networks" in found.stdout
