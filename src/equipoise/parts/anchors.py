"""Points that stand for classes: distances between them, losses with a margin, and small server models that make them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

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
    between = known[:, None] * known[None] * (1 - torch.eye(len(anchors), dtype=known.dtype))
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
    losses: Callable[[Callable[[], Tensor], int], Tensor],
    steps: int,
    lr: float,
) -> tuple[Tensor, Tensors]:
    """Go on training a server's `AnchorNet` by gradient steps: the anchors, and the net's tensors for next round.

    `losses(anchors, step)` gives the loss of one step; `anchors()` the anchors as they are.
    """
    net = seeds.initialised(lambda: AnchorNet(classes, width), *seed).to(like)
    params: Tensors = {}
    for name, value in net.named_parameters():
        kept = state.get(name, value)
        assert isinstance(kept, Tensor)
        params[name] = kept.detach().clone().requires_grad_()
    optimiser = torch.optim.SGD(params.values(), lr=lr)
    with torch.enable_grad():
        for step in range(steps):
            loss = losses(lambda: functional_call(net, params, ()), step)
            for param, gradient in zip(params.values(), torch.autograd.grad(loss, list(params.values())), strict=True):
                param.grad = gradient
            optimiser.step()
    kept_params = {name: value.detach() for name, value in params.items()}
    return functional_call(net, kept_params, ()).detach(), kept_params
