"""Anchors: points in feature space that stand for classes. Distances, a loss with a margin, a net that learns them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise import seeds
from equipoise.types import EquipoiseError, State, Tensors


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances `[n, C]` between `a [n, F]` and `b [C, F]`, with a finite gradient where points coincide."""
    return ((a[:, None] - b[None]).square().sum(-1) + 1e-12).sqrt()


def margin_losses(points: Tensor, anchors: Tensor, y: Tensor, margin: Tensor | float) -> Tensor:
    """The cross-entropy `[n]` of the logits `-(||point - anchor_c|| + margin [c = y])`.

    So each of the points `[n, F]` must be nearer to its own class's anchor than to any other, by the margin.
    """
    logits = -(distances(points, anchors) + margin * F.one_hot(y, len(anchors)))
    return F.cross_entropy(logits, y, reduction="none")


def nearest_others(anchors: Tensor, known: Tensor) -> Tensor:
    """For each class, the distance from its anchor to the nearest anchor of another known class, `[C]`.

    `known [C]` is 1 for known classes. The distance is infinite for an unknown class, and if no other class is known.
    """
    between = known[:, None] * known[None] * (1 - torch.eye(len(anchors)).to(known))
    return torch.where(between > 0, distances(anchors, anchors), torch.inf).amin(1)


def mean_gap(anchors: Tensor, known: Tensor) -> Tensor:
    """The mean of `nearest_others` over the known classes; zero if fewer than two are known.

    >>> mean_gap(torch.tensor([[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]]), torch.tensor([1.0, 1.0, 0.0]))
    tensor(5.)
    """
    nearest = nearest_others(anchors, known)
    found = nearest.isfinite()
    return torch.where(found, nearest, 0.0).sum() / found.sum().clamp(min=1)


def linear_head(tensors: Tensors, who: str) -> tuple[Tensor, Tensor | None]:
    """Weight `[C, F]` and bias `[C]` of the model's classifier, the outermost linear layer called `head`.

    `who` is the method that needs it, for the error if there is no such layer.
    """
    weights = [name for name in tensors if f".{name}".endswith(".head.weight") and tensors[name].dim() == 2]
    if not weights:
        raise EquipoiseError(
            f"{who} needs a model whose classifier is a linear layer called `head`. Found {', '.join(tensors)}: call yours "
            "`head`, or use one of `equipoise models`."
        )
    weight = min(weights, key=lambda name: name.count("."))
    return tensors[weight], tensors.get(weight.removesuffix("weight") + "bias")


class AnchorNet(nn.Module):
    """Makes one anchor per class: a learned vector per class, passed through a perceptron with one hidden layer."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(classes, width))
        self.net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
        """The anchors `[C, width]`."""
        return self.net(self.start)


def train_anchors(
    classes: int,
    width: int,
    state: State,
    seed: tuple[int | str, ...],
    like: Tensor,
    losses: Callable[[AnchorNet, int], Tensor],
    steps: int,
    lr: float,
) -> tuple[Tensor, Tensors]:
    """Continue to train the server's `AnchorNet` by SGD. Returns the anchors `[C, width]` and the net's tensors.

    Args:
        classes: number of anchors.
        width: length of each anchor.
        state: the net's tensors of the round before. In the first round it is empty, and the net is drawn from `seed`.
        seed: the seed path of the net's first tensors.
        like: a tensor whose type and device the net gets.
        losses: `losses(net, step)` is the loss of one step; `net()` gives the current anchors.
        steps: number of SGD steps.
        lr: learning rate.
    """
    net = seeds.build_from_seed(lambda: AnchorNet(classes, width), *seed).to(like)
    net.load_state_dict({name: state.get(name, value) for name, value in net.state_dict().items()})
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    with torch.enable_grad():
        for step in range(steps):
            gradients = torch.autograd.grad(losses(net, step), list(net.parameters()))
            for param, gradient in zip(net.parameters(), gradients, strict=True):
                param.grad = gradient
            optimizer.step()
        anchors: Tensor = net()
    return anchors.detach(), {name: value.detach() for name, value in net.named_parameters()}
