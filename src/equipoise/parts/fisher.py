"""The diagonal of the empirical Fisher matrix, exactly: the mean over samples of the squared gradient of the loss.

One forward and one backward pass give every layer its input and the gradient of its output; a rule per kind of layer turns
the two into the sum over samples of squared per-sample gradients. A model with a parameter that no rule covers goes through
`vmap(grad)`, which is general and slower.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from equipoise import seeds
from equipoise.models.pixels import store_by_pixel
from equipoise.roles import Report
from equipoise.types import EquipoiseError, Samples, Tensors, Trained

SAMPLES_AT_ONCE = 256
ENTRIES_AT_ONCE = 1 << 24  # of the per-sample gradients of a convolution, or of its patches, that are held at a time

# Whether the rules hold depends on how a model is built, not on its weights or samples: one trial is enough.
_TRIED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

Rule = Callable[
    [Any, Tensors, Tensor, Tensor], Tensors
]  # (layer, its tensors, input, output gradient) -> sums of squares


def _linear(layer: nn.Linear, own: Tensors, inputs: Tensor, gradient: Tensor) -> Tensors:
    if inputs.dim() == 2:
        sums = {"weight": gradient.square().T @ inputs.square(), "bias": gradient.square().sum(0)}
    else:  # one sample passes the layer at several positions
        inputs, gradient = inputs.flatten(1, -2), gradient.flatten(1, -2)
        sums = {"weight": (gradient.mT @ inputs).square().sum(0), "bias": gradient.sum(1).square().sum(0)}
    return {name: sums[name] for name in own}


def _convolution(layer: nn.Conv2d, own: Tensors, inputs: Tensor, gradient: Tensor) -> Tensors:
    assert not isinstance(layer.padding, str)  # `_rule` leaves such layers to vmap
    gradient = gradient.flatten(2)
    weight = torch.zeros_like(own["weight"]).flatten(1)
    places = gradient.shape[2]
    size = max(1, ENTRIES_AT_ONCE // max(weight.numel(), weight.shape[1] * places))
    for start in range(0, len(inputs), size):
        some = slice(start, start + size)
        patches = F.unfold(
            inputs[some], layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )  # [n, in*k*k, places]
        weight += torch.bmm(gradient[some], patches.mT).square().sum(0)
    sums = {"weight": weight.view_as(own["weight"]), "bias": gradient.sum(2).square().sum(0)}
    return {name: sums[name] for name in own}


def _normalisation(layer: nn.Module, own: Tensors, normalised: Tensor, gradient: Tensor) -> Tensors:
    """An affine map of channels: `weight * normalised + bias`."""
    places = (*gradient.shape[:2], -1)
    product, gradient = (normalised * gradient).reshape(places), gradient.reshape(places)
    return {"weight": product.sum(2).square().sum(0), "bias": gradient.sum(2).square().sum(0)}


def _batch_norm(layer: nn.BatchNorm2d, own: Tensors, inputs: Tensor, gradient: Tensor) -> Tensors:
    mean, variance = own["running_mean"], own["running_var"]
    normalised = F.batch_norm(inputs, mean, variance, training=False, eps=layer.eps)
    return _normalisation(layer, own, normalised, gradient)


def _group_norm(layer: nn.GroupNorm, own: Tensors, inputs: Tensor, gradient: Tensor) -> Tensors:
    return _normalisation(layer, own, F.group_norm(inputs, layer.num_groups, eps=layer.eps), gradient)


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.GroupNorm: _group_norm,
}


def _rule(layer: nn.Module) -> Rule | None:
    rule = RULES.get(type(layer))
    if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) and (layer.training or layer.running_mean is None):
        raise EquipoiseError(
            "The Fisher matrix needs gradients of single samples, and BatchNorm without running statistics mixes them: keep "
            'the buffers (buffers="average" or "local"), or use another normalisation.'
        )
    if isinstance(layer, nn.Conv2d) and (
        layer.groups > 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros"
    ):
        return None
    return rule


def squared_gradient_sums(model: nn.Module, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Tensors:
    """For each parameter, the sum over samples of the squared gradient of that sample's cross-entropy."""
    holds = _TRIED.get(model)
    if holds is None:
        holds, tells = rules_hold(model, params, buffers, x, y)
        if tells:
            _TRIED[model] = holds
    return (_by_layers if holds else _by_vmap)(model, params, buffers, x, y)


def rules_hold(model: nn.Module, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> tuple[bool, bool]:
    """Whether the rules cover this model, tried on two of the samples; and whether these tell it for all others.

    They do not when a layer acts twice on the loss or shares its weights, when samples are not along its first axis, when its
    output is overwritten in place, or when a parameter is used without calling its layer.
    """
    if any(_rule(layer) is None for layer in _layers(model).values()):
        return False, True
    try:
        quick = _by_layers(model, params, buffers, x[:2], y[:2])
    except (RuntimeError, IndexError, KeyError):
        return False, True
    exact = _by_vmap(model, params, buffers, x[:2], y[:2])
    tells = len(x) > 1 and all(0 < float(value.sum()) < torch.inf for value in exact.values())
    same = all(torch.allclose(quick[n], exact[n], rtol=1e-3, atol=1e-5 * float(exact[n].max())) for n in params)
    return same, tells


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in model.named_modules() if list(layer.parameters(recurse=False))}


def _by_layers(model: nn.Module, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Tensors:
    layers = _layers(model)
    seen: list[tuple[str, Tensor, Tensor]] = []  # layer, input, output
    stored, images = store_by_pixel(params, x)
    tracked = {name: value.detach().requires_grad_() for name, value in stored.items()}
    with ExitStack() as hooks, torch.enable_grad():
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(lambda _, i, o, name=name: seen.append((name, i[0], o))))
        logits = functional_call(model, {**tracked, **buffers}, (images,)).logits
        loss = F.cross_entropy(logits, y, reduction="sum")
        outputs = [output for _, _, output in seen]
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(loss, outputs, allow_unused=True)
    sums = {name: torch.zeros_like(value) for name, value in params.items()}
    for (name, inputs, _), gradient in zip(seen, gradients, strict=True):
        if gradient is None:  # the layer does not act on the loss
            continue
        prefix = f"{name}." if name else ""
        own = {n.removeprefix(prefix): t for n, t in {**params, **buffers}.items() if n.rpartition(".")[0] == name}
        rule = _rule(layers[name])
        assert rule is not None
        for tensor, value in rule(layers[name], own, inputs.detach(), gradient).items():
            if prefix + tensor in sums:
                sums[prefix + tensor] += value
    return sums


def _by_vmap(model: nn.Module, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Tensors:
    def loss(params: Tensors, x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(model, {**params, **buffers}, (x[None],)).logits
        return F.cross_entropy(logits, y[None])

    gradients: Tensors = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=32)(params, x, y)
    return {name: value.square().sum(0) for name, value in gradients.items()}


@dataclass(frozen=True)
class Fisher(Report, gives=("fisher",)):
    """`fisher`: per-sample squared gradients (`fim="sample"`), or squares of batch gradients (`fim="batch"`)."""

    stacks = False

    fim: Literal["sample", "batch"] = "sample"
    samples: int | None = None  # a random part of the client's data; None: all of it
    batch: int = 64

    def __call__(self, trained: Trained) -> Tensors:
        index = trained.train.positions
        if self.samples is not None and self.samples < len(index):
            index = index[seeds.permutation(len(index), *trained.seed, "fisher")[: self.samples].to(index.device)]
        model = trained.model, trained.params, trained.buffers
        total = torch.zeros(trained.layout.size, device=index.device)
        for part in torch.split(index, SAMPLES_AT_ONCE if self.fim == "sample" else self.batch):
            for x, y, _ in trained.chunks(Samples(part, None)):
                if self.fim == "sample":
                    total += trained.layout.join(squared_gradient_sums(*model, x, y))
                else:  # a smaller last batch counts by its size
                    total += len(y) * trained.layout.join(_squared_mean_gradient(trained, x, y))
        return {"fisher": total / len(index)}


def _squared_mean_gradient(trained: Trained, x: Tensor, y: Tensor) -> Tensors:
    tracked = {name: value.detach().requires_grad_() for name, value in trained.params.items()}
    with torch.enable_grad():
        logits = functional_call(trained.model, {**tracked, **trained.buffers}, (x,)).logits
        gradients = torch.autograd.grad(F.cross_entropy(logits, y), list(tracked.values()), allow_unused=True)
    zeros = (torch.zeros_like(value) for value in tracked.values())
    return {
        name: (zero if gradient is None else gradient).square()
        for name, gradient, zero in zip(tracked, gradients, zeros, strict=True)
    }
