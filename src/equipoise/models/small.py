"""Small models: logistic regression, a multi-layer perceptron, a convolutional network for the embedded digits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from equipoise.models.staged import Staged
from equipoise.types import EquipoiseError, Outputs


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


def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return MLP(prod(input_shape), (), classes)


def mlp(input_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (200, 200)) -> nn.Module:
    """A multi-layer perceptron with ReLU."""
    return MLP(prod(input_shape), hidden, classes)


def small_cnn(input_shape: tuple[int, ...], classes: int, width: int = 16) -> nn.Module:
    """Two 3x3 convolutions of `width` and `2 * width` channels with pooling between them, for images of 8x8 and up."""
    channels, height, breadth = images(input_shape, "small_cnn")
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
