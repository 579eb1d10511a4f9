"""Small models: logistic regression, a multi-layer perceptron, and two convolutional networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Literal, cast

import torch
from torch import Tensor, nn

from equipoise.grammar import require
from equipoise.models.staged import Staged
from equipoise.types import EquipoiseError, Factored, Factors, OutputGradient, Outputs, Tensors


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
        """Logits `[batch, classes]`, and the last hidden layer as features. Samples are flattened."""
        features = self.body(x.flatten(1))
        return Outputs(self.head(features), features)

    def in_stages(self) -> Staged:
        """The same network in stages, one per hidden layer, for methods that work on feature maps.

        The maps are 1x1, with one channel per unit. The layers are those of this network, not copies.
        """
        stages = []
        for i in range(0, len(self.body), 2):
            layer = cast(nn.Linear, self.body[i])
            stages.append(nn.Sequential(nn.Flatten(), layer, nn.ReLU(), nn.Unflatten(1, (layer.out_features, 1, 1))))
        return Staged(stages, self.head, pooling="flatten")

    # The following computes many networks at once, from parameters `[m, ...]` and samples `[m, batch, ...]`. It avoids
    # most of the cost of `vmap` and autograd.

    @property
    def stacks(self) -> bool:
        """Whether `stacked` and `factored` can be used: all layers are still plain ones with a bias, and none is
        frozen."""
        linear = [layer for layer in (*self.body, self.head) if not isinstance(layer, nn.ReLU)]
        plain = all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
        return plain and all(value.requires_grad for value in self.parameters())

    def stacked(self, params: Tensors, x: Tensor) -> Outputs:
        """The outputs of m networks, with a leading axis, from parameters `[m, ...]` and samples `[m, batch, ...]`."""
        return self.factored(params)(x).out

    def factored(self, params: Tensors) -> Callable[[Tensor], Factored]:
        """A function of samples `[m, batch, ...]` that does the forward pass of m networks with parameters `[m, ...]`.

        Its result also has the function for the backward pass, which gives gradients as factors.
        """
        names = [*(f"body.{i}" for i in range(0, len(self.body), 2)), "head"]
        weights = [params[f"{name}.weight"] for name in names]
        turned = [weight.mT for weight in weights]
        biases = [params[f"{name}.bias"].unsqueeze(1) for name in names]

        def forward(x: Tensor) -> Factored:
            inputs = [x.flatten(2)]  # the input of every layer
            for i in range(len(names) - 1):
                inputs.append(torch.baddbmm(biases[i], inputs[i], turned[i]).relu_())

            def back(gradient: OutputGradient) -> Factors:
                delta = gradient.logits
                layers = {"head": (delta, inputs[-1])}
                for i in range(len(names) - 1, 0, -1):
                    delta = torch.bmm(delta, weights[i])
                    if i == len(names) - 1 and gradient.features is not None:
                        delta += gradient.features
                    delta *= inputs[i].sign()  # the derivative of ReLU; twice as fast as a mask
                    layers[names[i - 1]] = (delta, inputs[i - 1])
                return layers

            return Factored(Outputs(torch.baddbmm(biases[-1], inputs[-1], turned[-1]), inputs[-1]), back)

        return forward


class Probabilities(nn.Module):
    """A model whose logits are replaced by their softmax, although the loss has a softmax itself, as in FedFV's public
    code."""

    def __init__(self, model: nn.Module, spare_outputs: int = 0) -> None:
        super().__init__()
        self.model = model
        self.spare_outputs = spare_outputs

    def forward(self, x: Tensor) -> Outputs:
        """The model's outputs, with probabilities in the place of logits."""
        out = self.model(x)
        return out._replace(logits=out.logits.softmax(-1))


def linear(
    input_shape: tuple[int, ...], classes: int, double_softmax: bool = False, zero_bias: bool = False
) -> nn.Module:
    """Multinomial logistic regression.

    `double_softmax` applies a softmax before the loss, which has one itself, and `zero_bias` begins with biases of zero,
    both as FedFV's public code does.
    """
    model = MLP(prod(input_shape), (), classes)
    if zero_bias:
        nn.init.zeros_(model.head.bias)
    return Probabilities(model) if double_softmax else model


def mlp(
    input_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (200, 200), double_softmax: bool = False
) -> nn.Module:
    """A multi-layer perceptron with ReLU; its default layers are those of FedFE and FedFV for CIFAR-10.

    `hidden` are the widths of the hidden layers. `double_softmax` applies a softmax before the loss, which has one
    itself, as FedFV's public code does.
    """
    require(all(width >= 1 for width in hidden), "hidden", "widths of at least 1", hidden)
    model = MLP(prod(input_shape), hidden, classes)
    return Probabilities(model) if double_softmax else model


def cnn(
    input_shape: tuple[int, ...],
    classes: int,
    padded: bool = True,
    hidden: int = 512,
    double_softmax: bool = False,
    spare: int = 0,
    variant: Literal["paper", "released"] = "paper",
) -> nn.Module:
    """McMahan's network: 5x5 convolutions of 32 and 64 channels, each with pooling, and a layer of 512.

    `padded=False` leaves out the padding, as in FedFE. `hidden` is the width of the last hidden layer. `double_softmax`
    applies a softmax before the loss, which has one itself, as FedFV's public code does. `spare` outputs belong to no
    class: that code has 52 of them for the ten digits. `variant="released"` has no ReLU behind the convolutions and one on
    the outputs, as that code does.
    """
    channels, height, breadth = images(input_shape, "cnn")
    require(spare >= 0, "spare", "at least 0", spare)
    padding = 2 if padded else 0
    smaller = [((side + 2 * padding - 4) // 2 + 2 * padding - 4) // 2 for side in (height, breadth)]
    if min(smaller) < 1:
        raise EquipoiseError(f"Images of {height}x{breadth} are too small for `cnn`: use `small_cnn`.")
    released = variant == "released"
    stages = [
        nn.Sequential(nn.Conv2d(a, b, 5, padding=padding), *([] if released else [nn.ReLU()]), nn.MaxPool2d(2))
        for a, b in ((channels, 32), (32, 64))
    ]
    neck = nn.Sequential(nn.Linear(64 * prod(smaller), hidden), nn.ReLU())
    head = nn.Linear(hidden, classes + spare)
    model = Staged(stages, nn.Sequential(head, nn.ReLU()) if released else head, pooling="flatten", neck=neck)
    model.spare_outputs = spare
    return Probabilities(model, spare) if double_softmax else model


def small_cnn(input_shape: tuple[int, ...], classes: int, width: int = 16) -> nn.Module:
    """Two 3x3 convolutions of `width` and `2 * width` channels with pooling between them, for images of 8x8 or more."""
    channels, height, breadth = images(input_shape, "small_cnn")
    require(width >= 1, "width", "at least 1", width)
    first = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
    head = nn.Linear(2 * width * (height // 2) * (breadth // 2), classes)
    return Staged([first, second], head, pooling="flatten")


def images(shape: tuple[int, ...], model: str) -> tuple[int, int, int]:
    """Channels, height and width of images; an error that names the model if samples have another shape."""
    if len(shape) != 3:
        raise EquipoiseError(
            f"Model `{model}` is for images [channels, height, width]. Found samples of shape {shape}: use `mlp` or `linear`."
        )
    return shape[0], shape[1], shape[2]
