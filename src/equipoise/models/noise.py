"""Random numbers inside a model, given to it as a tensor. Nothing here calls a random generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Noise(nn.Module):
    """A place where a model takes random numbers: uniform draws from [0, 1), one per entry of a tensor.

    The runner supplies `draws` through `functional_call`. Called without draws, as when a task is built, the module
    notes the shape that it will need and returns 0.5 everywhere.
    """

    draws: Tensor  # [batch, ...], empty until the runner supplies them

    def __init__(self, in_evaluation: bool = False) -> None:
        """`in_evaluation`: whether it needs draws in eval mode, too."""
        super().__init__()
        self.in_evaluation = in_evaluation
        self.register_buffer("draws", torch.empty(0), persistent=False)
        self.shape: tuple[int, ...] = ()

    def forward(self, like: Tensor) -> Tensor:
        """Draws of the shape of `like`."""
        if self.draws.numel() == 0:
            self.shape = tuple(like.shape[1:])
            return torch.full_like(like, 0.5)
        return self.draws


class Dropout(nn.Module):
    """Dropout whose random numbers the runner draws. When a task is built, it replaces `nn.Dropout` and its
    variants."""

    def __init__(self, p: float, channels: bool = False) -> None:
        """`p` is the probability of a zero. `channels`: whole channels are dropped, as in `nn.Dropout2d`."""
        super().__init__()
        self.p = p
        self.channels = channels
        self.noise = Noise()

    def forward(self, x: Tensor) -> Tensor:
        """`x` with entries (or channels) set to zero and the others divided by `1 - p`; in eval mode `x` itself."""
        if not self.training:
            return x
        like = x.flatten(2)[..., :1].view(*x.shape[:2], *[1] * (x.dim() - 2)) if self.channels else x
        return torch.where(self.noise(like) >= self.p, x / (1 - self.p), 0.0)


ENTRIES, CHANNELS = (nn.Dropout,), (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def hand_in_noise(model: nn.Module) -> nn.Module:
    """The model with every dropout replaced, in place, by one whose random numbers are given to it."""
    for name, child in list(model.named_children()):
        if isinstance(child, ENTRIES + CHANNELS):
            setattr(model, name, Dropout(child.p, isinstance(child, CHANNELS)) if child.p > 0 else nn.Identity())
        else:
            hand_in_noise(child)
    return model
