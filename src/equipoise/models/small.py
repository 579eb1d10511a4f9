"""Small models: logistic regression, a multi-layer perceptron, a convolutional network for the embedded digits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from equipoise.grammar import require
from equipoise.models.staged import Staged
from equipoise.types import EquipoiseError, Factored, Outputs, Tensors


class MLP(nn.Module):
    """Fully connected layers with ReLU between them; without hidden layers, multinomial logistic regression."""

    def __init__(self, inputs: int, hidden: Sequence[int], classes: int) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Outputs:
        features = self.body(x.flatten(1))
        return Outputs(self.head(features), features)

    # The same for many networks at once, which saves most of what `vmap` and autograd cost: parameters `[m, ...]`, samples
    # `[m, batch, ...]`.

    def stacked(self, params: Tensors, x: Tensor) -> Outputs:
        """Outputs with a leading client axis."""
        features = self._stacked_layers(params, x)[-1]
        return Outputs(_stacked_linear("head", params, features), features)

    def factored(
        self, params: Tensors, x: Tensor, y: Tensor, keep: Tensor | None, scale: Callable[[Tensor], Tensor]
    ) -> Factored:
        """The gradient of `scale(loss)` times the mean cross-entropy of each batch; `scale` maps the losses `[m]`."""
        inputs = self._stacked_layers(params, x)
        logarithms = torch.log_softmax(_stacked_linear("head", params, inputs[-1]), 2)
        share = torch.full_like(y, 1 / y.shape[1], dtype=x.dtype) if keep is None else keep / keep.sum(1, keepdim=True)
        loss = -(logarithms.gather(2, y.unsqueeze(2)).squeeze(2) * share).sum(1)
        delta = logarithms.exp_().scatter_add_(2, y.unsqueeze(2), -torch.ones_like(share).unsqueeze(2))
        delta.mul_((share * scale(loss).unsqueeze(1)).unsqueeze(2))
        names = [*(f"body.{i}" for i in range(0, len(self.body), 2)), "head"]
        layers = {"head": (delta, inputs[-1])}
        for i in range(len(names) - 1, 0, -1):
            delta = torch.bmm(delta, params[f"{names[i]}.weight"]).mul_(inputs[i] > 0)
            layers[names[i - 1]] = (delta, inputs[i - 1])
        return Factored(loss, layers)

    def _stacked_layers(self, params: Tensors, x: Tensor) -> list[Tensor]:
        """What each layer sees."""
        seen = [x.flatten(2)]
        for i in range(0, len(self.body), 2):
            seen.append(torch.relu_(_stacked_linear(f"body.{i}", params, seen[-1])))
        return seen


def _stacked_linear(name: str, params: Tensors, x: Tensor) -> Tensor:
    return torch.baddbmm(params[f"{name}.bias"].unsqueeze(1), x, params[f"{name}.weight"].mT)


def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return MLP(prod(input_shape), (), classes)


def mlp(input_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (200, 200)) -> nn.Module:
    """A multi-layer perceptron with ReLU."""
    require(all(width >= 1 for width in hidden), "hidden", "widths of at least 1", hidden)
    return MLP(prod(input_shape), hidden, classes)


def small_cnn(input_shape: tuple[int, ...], classes: int, width: int = 16) -> nn.Module:
    """Two 3x3 convolutions of `width` and `2 * width` channels with pooling between them, for images of 8x8 and up."""
    channels, height, breadth = images(input_shape, "small_cnn")
    require(width >= 1, "width", "at least 1", width)
    first = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
    head = nn.Linear(2 * width * (height // 2) * (breadth // 2), classes)
    return Staged([first, second], head, pooling="flatten")


def images(shape: tuple[int, ...], model: str) -> tuple[int, int, int]:
    """Channels, height and width, or an error that says what the model is for."""
    if len(shape) != 3:
        raise EquipoiseError(
            f"Model `{model}` is for images [channels, height, width]. Found samples of shape {shape}: use `mlp` or `linear`."
        )
    return shape[0], shape[1], shape[2]
