"""The memory format of images and filters."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.types import Tensors

NARROW = 8  # a 1x1 convolution with fewer input channels is not safe in this format


def store_by_pixel(params: Tensors, x: Tensor) -> tuple[Tensors, Tensor]:
    """A model's parameters and its images in the channels-last memory format (all channels of a pixel side by side).

    On a CPU, convolutions and pooling then take about two thirds of the time. It works for one model at a time, because
    `vmap` has no such memory format.

    A model with 1x1 convolutions of fewer than eight input channels is returned as it is. With the oneDNN of torch
    2.13, on CPUs without AVX-512, the backward pass of such a convolution with a stride writes beyond its buffers and
    gives wrong gradients in this format. As a layer passes its format on to the next one, no part of the model may use
    it.
    """
    if any(value.dim() == 4 and value.shape[1] < NARROW and value.shape[2:] == (1, 1) for value in params.values()):
        return params, x
    return {name: _by_pixel(value) for name, value in params.items()}, _by_pixel(x)


def _by_pixel(tensor: Tensor) -> Tensor:
    """A copy of images or filters `[n, channels, height, width]` in channels-last format; other tensors as they are.

    The copy is explicit, because torch takes a tensor with one channel to be in both formats.
    """
    if tensor.dim() != 4 or tensor.device.type != "cpu":
        return tensor
    return tensor.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)
