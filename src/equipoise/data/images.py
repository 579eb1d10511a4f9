"""Images as uint8 tensors: batches of them are cropped, mirrored, normalised, coloured and resized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.data.federation import Preparation

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation that the papers normalise with


@dataclass(frozen=True, eq=False)
class Images(Preparation):
    """Turns uint8 images `[n, channels, height, width]` into normalised floats; training crops and mirrors at
    random."""

    mean: Sequence[float] | Tensor = (0.0,)  # for pixels in [0, 1], one number per channel or per pixel
    std: Sequence[float] | Tensor = (1.0,)  # the same, for the standard deviation
    pad: int = 0  # black pixels around a training image before a part of its own size is cut out
    flip: bool = False  # whether every training image is mirrored with a chance of one half

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Random numbers per sample: two place the crop, one decides on the mirror image."""
        return 2 * bool(self.pad) + self.flip

    def training(self, x: Tensor, draws: Tensor) -> Tensor:
        """Crop and mirror a batch as its draws say, and normalise it."""
        if self.pad:
            x = crop(x, self.pad, draws[:, 0], draws[:, 1])
        if self.flip:
            x = flip(x, draws[:, -1])
        return self.evaluation(x)

    def evaluation(self, x: Tensor) -> Tensor:
        """Normalise images."""
        mean, std = (self._shaped(value, x.device) for value in (self.mean, self.std))
        return x.float().mul_(1 / (255 * std)).sub_(mean / std)

    def describe(self) -> dict[str, object]:
        """Mean and standard deviation as JSON values. Cropping and mirroring, which belong to training, are left
        out."""
        plain = {
            name: value.tolist() if isinstance(value, Tensor) else list(value)
            for name, value in (("mean", self.mean), ("std", self.std))
        }
        return {"kind": "images", **plain}

    def _shaped(self, value: Sequence[float] | Tensor, device: torch.device) -> Tensor:
        tensor = torch.as_tensor(value, dtype=torch.float32, device=device)
        return tensor.view(-1, 1, 1) if tensor.dim() == 1 else tensor


def rebuild_preparation(facts: Mapping[str, Any] | None) -> Preparation:
    """The preparation that `Preparation.describe` has described."""
    if not facts:
        return Preparation()
    mean, std = (  # one number per channel stays as it is written; one per pixel becomes a tensor
        torch.tensor(value, dtype=torch.float64) if isinstance(value[0], list) else tuple(value)
        for value in (facts["mean"], facts["std"])
    )
    return Images(mean, std)


def crop(x: Tensor, pad: int, across: Tensor, down: Tensor) -> Tensor:
    """Each image with `pad` black pixels around it, cut back to its size at a place that the draws from [0, 1) choose."""
    height, width = x.shape[-2:]
    windows = F.pad(x, (pad, pad, pad, pad)).unfold(2, height, 1).unfold(3, width, 1)
    row, column = ((draw * (2 * pad + 1)).long() for draw in (down, across))
    return windows[torch.arange(len(x), device=x.device), :, row, column]


def flip(x: Tensor, draw: Tensor) -> Tensor:
    """Each image mirrored where its draw from [0, 1) is below a half."""
    return torch.where((draw < 0.5).view(-1, 1, 1, 1), x.flip(-1), x)


def add_colour(x: Tensor) -> Tensor:
    """Grey images with their channel repeated three times; colour images as they are."""
    return x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x


def resize(x: Tensor, size: int) -> Tensor:
    """uint8 images as squares of `size` pixels: linear interpolation, smoothed where they shrink, as in Pillow."""
    return F.interpolate(x, (size, size), mode="bilinear", antialias=True)
