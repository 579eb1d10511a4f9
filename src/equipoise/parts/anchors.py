"""Points that stand for classes: distances between them, losses with a margin, and small server models that make them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise import seeds
from equipoise.types import EquipoiseError, State, Tensors


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances `[n, C]`, with a finite slope where two points coincide."""
    return ((a[:, None] - b[None]).square().sum(-1) + 1e-12).sqrt()


def margin_losses(points: Tensor, anchors: Tensor, y: Tensor, margin: Tensor | float) -> Tensor:
    """Cross-entropy `[n]` of the logits `-(||point - anchor_c|| + margin [c = y])`."""
    logits = -(distances(points, anchors) + margin * F.one_hot(y, len(anchors)))
    return F.cross_entropy(logits, y, reduction="none")


def nearest_others(anchors: Tensor, known: Tensor) -> Tensor:
    """For each class the distance to the nearest other known one; infinite for a class that is unknown or alone."""
    between = known[:, None] * known[None] * (1 - torch.eye(len(anchors)).to(known))
    return torch.where(between > 0, distances(anchors, anchors), torch.inf).amin(1)


def mean_gap(anchors: Tensor, known: Tensor) -> Tensor:
    """Mean over the known classes of the distance to the nearest other one; zero when there are no two.

    >>> mean_gap(torch.tensor([[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]]), torch.tensor([1.0, 1.0, 0.0]))
    tensor(5.)
    """
    nearest = nearest_others(anchors, known)
    found = nearest.isfinite()
    return torch.where(found, nearest, 0.0).sum() / found.sum().clamp(min=1)


def linear_head(tensors: Tensors, who: str) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the model's classifier, a linear layer called `head` (the outermost one)."""
    weights = [name for name in tensors if f".{name}".endswith(".head.weight") and tensors[name].dim() == 2]
    if not weights:
        raise EquipoiseError(
            f"{who} needs a model whose classifier is a linear layer called `head`. Found {', '.join(tensors)}: name yours so, "
            "or use one of `equipoise models`."
        )
    weight = min(weights, key=lambda name: name.count("."))
    return tensors[weight], tensors.get(weight.removesuffix("weight") + "bias")


class AnchorNet(nn.Module):
    """A vector a class through a perceptron with one hidden layer."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(classes, width))
        self.net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
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
    """Go on training a server's `AnchorNet` by gradient steps: the anchors, and the net's tensors for next round.

    `losses(net, step)` gives the loss of one step; `net()` the anchors as they are.
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
