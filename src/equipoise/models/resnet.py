"""The residual networks of the domain-skew benchmarks, of any width.

They have a 3x3 convolution without pooling, four stages of basic blocks with 1, 2, 4 and 8 times `width` channels, the
mean over the last feature map, and a linear head. They are not the networks for ImageNet, and ResNet-12 is not the one
of few-shot learning.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.grammar import require
from equipoise.models.small import images
from equipoise.models.staged import Staged

Norm = Literal["batch", "group"]  # batch or group normalisation
GROUPS = 8  # of group normalisation


def _norm(kind: Norm, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(GROUPS, channels)


class Block(nn.Module):
    """A basic block: two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False), _norm(norm, width), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), _norm(norm, width))
        self.shortcut = (
            nn.Sequential()
            if stride == 1 and channels == width
            else nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), _norm(norm, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps `[batch, width, height / stride, width / stride]` from `[batch, channels, height, width]`."""
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


def _resnet(
    name: str, input_shape: tuple[int, ...], classes: int, blocks: tuple[int, ...], width: int, norm: Norm
) -> Staged:
    channels, _, _ = images(input_shape, name)
    require(width >= 1, "width", "at least 1", width)
    require(norm == "batch" or width % GROUPS == 0, "width", f"a multiple of {GROUPS} with group norm", width)
    stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), _norm(norm, width), nn.ReLU())
    stages: list[nn.Module] = []
    inside = width
    for number, count in enumerate(blocks):
        outside = width * 2**number
        rows = [
            Block(inside if i == 0 else outside, outside, 2 if number and i == 0 else 1, norm) for i in range(count)
        ]
        stages.append(nn.Sequential(*([stem] if number == 0 else []), *rows))
        inside = outside
    return Staged(stages, nn.Linear(inside, classes))


def resnet10(
    input_shape: tuple[int, ...], classes: int, width: int = 64, norm: Literal["batch", "group"] = "batch"
) -> nn.Module:
    """ResNet-10: four stages of one block each. `norm="group"` has no running statistics, which can differ by
    client."""
    return _resnet("resnet10", input_shape, classes, (1, 1, 1, 1), width, norm)


def resnet12(
    input_shape: tuple[int, ...], classes: int, width: int = 64, norm: Literal["batch", "group"] = "batch"
) -> nn.Module:
    """ResNet-12: four stages of 2, 1, 1 and 1 blocks. `norm="group"` has no running statistics, which can differ by
    client."""
    return _resnet("resnet12", input_shape, classes, (2, 1, 1, 1), width, norm)
