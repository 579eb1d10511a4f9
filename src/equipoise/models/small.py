"""Small models: logistic regression, a multi-layer perceptron, and two convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from equipoise.grammar import require
from equipoise.models.staged import Staged
from equipoise.types import EquipoiseError, Outputs


class MLP(nn.Module):
    """Fully connected layers with ReLU between them; without hidden layers, multinomial logistic regression."""

    def __init__(self, inputs: int, hidden: Sequence[int], classes: int, double_softmax: bool = False) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = _head(widths[-1], classes, double_softmax)

    def forward(self, x: Tensor) -> Outputs:
        features = self.body(x.flatten(1))
        return Outputs(self.head(features), features)


def _head(width: int, outputs: int, double_softmax: bool) -> nn.Module:
    """The last layer. FedFV's release puts a softmax before a loss that has one of its own: `double_softmax` does so, too."""
    last = nn.Linear(width, outputs)
    return nn.Sequential(last, nn.Softmax(-1)) if double_softmax else last


def linear(input_shape: tuple[int, ...], classes: int, double_softmax: bool = False) -> nn.Module:
    """Multinomial logistic regression."""
    return MLP(prod(input_shape), (), classes, double_softmax)


def mlp(
    input_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (200, 200), double_softmax: bool = False
) -> nn.Module:
    """A multi-layer perceptron with ReLU; its default layers are those of FedFE and FedFV for CIFAR-10."""
    return MLP(prod(input_shape), hidden, classes, double_softmax)


def cnn(
    input_shape: tuple[int, ...],
    classes: int,
    padded: bool = True,
    hidden: int = 512,
    double_softmax: bool = False,
    spare: int = 0,
) -> nn.Module:
    """McMahan's network: 5x5 convolutions of 32 and 64 channels, each with pooling, a layer of 512; `padded=False` is FedFE's.

    `spare` outputs belong to no class: FedFV's release has 52 of them for the ten digits.
    """
    channels, height, breadth = images(input_shape, "cnn")
    require(spare >= 0, "spare", "at least 0", spare)
    padding = 2 if padded else 0
    smaller = [((side + 2 * padding - 4) // 2 + 2 * padding - 4) // 2 for side in (height, breadth)]
    if min(smaller) < 1:
        raise EquipoiseError(f"Images of {height}x{breadth} are too small for `cnn`: use `small_cnn`.")
    stages = [
        nn.Sequential(nn.Conv2d(a, b, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2))
        for a, b in ((channels, 32), (32, 64))
    ]
    neck = nn.Sequential(nn.Linear(64 * prod(smaller), hidden), nn.ReLU())
    model = Staged(stages, _head(hidden, classes + spare, double_softmax), pooling="flatten", neck=neck)
    model.spare_outputs = spare
    return model


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
