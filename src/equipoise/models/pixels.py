"""How images lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.types import Tensors

NARROW = 8  # input channels below which a 1x1 convolution is not safe pixel by pixel


def store_by_pixel(params: Tensors, x: Tensor) -> tuple[Tensors, Tensor]:
    """A model's filters and its images, stored pixel by pixel where that is safe, and as they are elsewhere.

    Convolutions and pooling then take about two thirds of the time on a CPU. For one model at a time: `vmap` has no such
    memory format.

    The oneDNN of torch 2.13 writes past its buffers, and gives wrong gradients of the weights, in the backward pass of a
    1x1 convolution with a stride and fewer than eight input channels whose tensors are stored so, on CPUs without AVX-512.
    A layer passes its layout on to the next one, so a model with such filters stays as it is altogether.
    """
    if any(value.dim() == 4 and value.shape[1] < NARROW and value.shape[2:] == (1, 1) for value in params.values()):
        return params, x
    return {name: _by_pixel(value) for name, value in params.items()}, _by_pixel(x)


def _by_pixel(tensor: Tensor) -> Tensor:
    """Images or filters `[n, channels, height, width]`; other tensors as they are. A tensor with one channel counts as
    stored either way, and only a copy settles it."""
    if tensor.dim() != 4 or tensor.device.type != "cpu":
        return tensor
    return tensor.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)
