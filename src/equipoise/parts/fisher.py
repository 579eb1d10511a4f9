"""The diagonal of the empirical Fisher matrix: the mean over samples of the squared gradient of the loss, exactly.

One forward and one backward pass give the input of every layer and the gradient of its output. A rule per type of layer
computes from the two the sum over samples of the squared gradient of each sample. Models that these rules do not cover
are differentiated sample by sample with `vmap(grad)`, which is slower, and those with layers that `vmap` does not know
one sample after the other, which is slower still.
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
from equipoise.losses import CROSS_ENTROPY, Loss
from equipoise.models.pixels import store_by_pixel
from equipoise.models.vectorising import refuse_fallbacks
from equipoise.roles import Report
from equipoise.types import EquipoiseError, Samples, Tensors, Trained

SAMPLES_AT_ONCE = 256
IMAGES_AT_ONCE = 64  # with more of them, a network's feature maps no longer fit a processor's cache
COLUMNS_AT_ONCE = 64  # of a product in a convolution's rule, where it has fewer channels
ENTRIES_AT_ONCE = 1 << 20  # entries of a convolution's per-sample gradients held at once: 4 MB

# Whether the rules hold for a model. It depends on its structure, not on weights or samples, so one trial is enough.
_TRIED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

# (layer, its tensors, its input, the gradient of its output) -> for each of its parameters, the sum over samples of the
# squared gradient.
Rule = Callable[[Any, Tensors, Tensor, Tensor], Tensors]


def _linear(layer: nn.Linear, own: Tensors, inputs: Tensor, gradient: Tensor) -> Tensors:
    if inputs.dim() == 2:
        sums = {"weight": gradient.square().T @ inputs.square(), "bias": gradient.square().sum(0)}
    else:  # the layer is applied to several positions of each sample
        inputs, gradient = inputs.flatten(1, -2), gradient.flatten(1, -2)
        sums = {"weight": (gradient.mT @ inputs).square().sum(0), "bias": gradient.sum(1).square().sum(0)}
    return {name: sums[name] for name in own}


def _convolution(layer: nn.Conv2d, own: Tensors, inputs: Tensor, gradient: Tensor) -> Tensors:
    """The gradient of each sample's loss, a few offsets of the kernel at a time, squared and added up in the cache.

    At an offset, the weight's gradient is the product of the output's gradient and of the inputs that the offset meets.
    Offsets of a layer with few channels are taken together, because a product with few columns is slow.
    """
    assert not isinstance(layer.padding, str)  # `_rule` leaves such layers to `_by_samples`
    (high, wide), (down, across), (above, left) = gradient.shape[2:], layer.stride, layer.padding
    outputs, channels, rows, columns = own["weight"].shape
    places = F.pad(inputs.permute(0, 2, 3, 1), (0, 0, left, left, above, above))  # [n, height, width, in]
    delta = gradient.permute(0, 2, 3, 1)  # [n, high, wide, out]
    bias = delta.sum((1, 2)).square().sum(0)
    starts = [(row * layer.dilation[0], column * layer.dilation[1]) for row in range(rows) for column in range(columns)]
    together = max(1, COLUMNS_AT_ONCE // channels)
    spare = places.shape[2] - wide
    in_place = (down, across) == (1, 1) and together == 1 and 4 * spare <= wide
    if in_place:  # with zeros at the ends of its rows, the gradient meets the inputs of an offset where they lie
        delta = F.pad(delta, (0, 0, 0, spare))
    delta = delta.flatten(1, 2).contiguous()  # [n, places, out]
    if in_place:
        delta = delta[:, : delta.shape[1] - spare]

    def meet(some: Tensor, y: int, x: int) -> Tensor:
        if in_place:
            return some.flatten(1, 2)[:, y * some.shape[2] + x :][:, : delta.shape[1]]
        return some[:, y : y + down * (high - 1) + 1 : down, x : x + across * (wide - 1) + 1 : across].flatten(1, 2)

    sums = own["weight"].new_zeros(outputs, len(starts), channels)
    size = max(1, ENTRIES_AT_ONCE // (outputs * channels * together))
    for some, turned in zip(places.split(size), delta.mT.split(size), strict=True):
        for first in range(0, len(starts), together):
            met = [meet(some, *start) for start in starts[first : first + together]]
            one = torch.bmm(turned, met[0] if len(met) == 1 else torch.cat(met, 2))
            _add_squares(sums[:, first : first + together], one.unflatten(2, (len(met), channels)))
    found = {"weight": sums.mT.reshape(own["weight"].shape), "bias": bias}
    return {name: found[name] for name in own}


def _add_squares(total: Tensor, single: Tensor) -> None:
    """Add to `total` the squares of `single [n, ...]`, which is overwritten, summed over n."""
    if len(single) == 1:
        total.addcmul_(single[0], single[0])
    else:
        total += single.square_().sum(0)


def _normalisation(layer: nn.Module, own: Tensors, normalised: Tensor, gradient: Tensor) -> Tensors:
    """The rule of an affine map per channel, `weight * normalised + bias`."""
    places = (*gradient.shape[:2], -1)
    product, gradient = (normalised * gradient).reshape(places), gradient.reshape(places)
    return {"weight": product.sum(2).square().sum(0), "bias": gradient.sum(2).square().sum(0)}


def _batch_norm(layer: nn.BatchNorm2d, own: Tensors, inputs: Tensor, gradient: Tensor) -> Tensors:
    """The rule of `weight * (inputs - mean) / deviation + bias`, which need not normalise the inputs for it."""
    over = tuple(range(2, inputs.dim()))
    product, plain = inputs * gradient, gradient
    if over:
        product, plain = product.sum(over), plain.sum(over)
    slope = (product - own["running_mean"] * plain) * torch.rsqrt(own["running_var"] + layer.eps)
    return {"weight": slope.square().sum(0), "bias": plain.square().sum(0)}


def _group_norm(layer: nn.GroupNorm, own: Tensors, inputs: Tensor, gradient: Tensor) -> Tensors:
    return _normalisation(layer, own, F.group_norm(inputs, layer.num_groups, eps=layer.eps), gradient)


# Type of layer -> its rule.
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


def squared_gradient_sums(
    model: nn.Module, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, loss: Loss = CROSS_ENTROPY
) -> Tensors:
    """For each parameter, the sum over samples of the squared gradient of the sample's loss."""
    holds = _TRIED.get(model)
    if holds is None:
        holds, tells = rules_hold(model, params, buffers, x, y, loss)
        if tells:
            _TRIED[model] = holds
    return (_by_layers if holds else _by_samples)(model, params, buffers, x, y, loss)


def rules_hold(
    model: nn.Module, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, loss: Loss = CROSS_ENTROPY
) -> tuple[bool, bool]:
    """Whether the rules give the right result for this model; and whether the trial, on two of the samples, was
    conclusive.

    The rules fail if a layer is called twice or shares its weights, if samples do not lie along its first axis, if its
    output is overwritten in place, or if a parameter is used without calling its layer. A trial is not conclusive with
    a single sample, or if the gradient of a parameter is zero or infinite.
    """
    if any(_rule(layer) is None for layer in _layers(model).values()):
        return False, True
    try:
        quick = _by_layers(model, params, buffers, x[:2], y[:2], loss)
    except (RuntimeError, IndexError, KeyError):
        return False, True
    exact = _by_samples(model, params, buffers, x[:2], y[:2], loss)
    tells = len(x) > 1 and all(0 < float(value.sum()) < torch.inf for value in exact.values())
    same = all(torch.allclose(quick[n], exact[n], rtol=1e-3, atol=1e-5 * float(exact[n].max())) for n in params)
    return same, tells


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in model.named_modules() if list(layer.parameters(recurse=False))}


def _by_layers(
    model: nn.Module, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, loss: Loss = CROSS_ENTROPY
) -> Tensors:
    layers = _layers(model)
    seen: list[tuple[str, Tensor, Tensor]] = []  # layer, input, output
    stored, images = store_by_pixel(params, x)
    tracked = {name: value.detach().requires_grad_() for name, value in stored.items()}
    with ExitStack() as hooks, torch.enable_grad():
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(lambda _, i, o, name=name: seen.append((name, i[0], o))))
        logits = functional_call(model, {**tracked, **buffers}, (images,)).logits
        total = loss(logits, y).sum()
        outputs = [output for _, _, output in seen]
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(total, outputs, allow_unused=True)
    sums = {name: torch.zeros_like(value) for name, value in params.items()}
    for (name, inputs, _), gradient in zip(seen, gradients, strict=True):
        if gradient is None:  # the loss does not depend on the layer
            continue
        prefix = f"{name}." if name else ""
        own = {n.removeprefix(prefix): t for n, t in {**params, **buffers}.items() if n.rpartition(".")[0] == name}
        rule = _rule(layers[name])
        assert rule is not None
        for tensor, value in rule(layers[name], own, inputs.detach(), gradient).items():
            if prefix + tensor in sums:
                sums[prefix + tensor] += value
    return sums


def _by_samples(
    model: nn.Module, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, loss: Loss = CROSS_ENTROPY
) -> Tensors:
    def of_one(params: Tensors, x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(model, {**params, **buffers}, (x[None],)).logits
        return loss(logits, y[None]).sum()

    try:
        with refuse_fallbacks():
            gradients: Tensors = vmap(grad(of_one), in_dims=(None, 0, 0), chunk_size=32)(params, x, y)
    except (RuntimeError, UserWarning):  # a layer that `vmap` cannot compute, such as nn.GRU
        ones = [_squared_mean_gradient(model, params, buffers, x[i : i + 1], y[i : i + 1], loss) for i in range(len(x))]
        return {name: torch.stack([one[name] for one in ones]).sum(0) for name in params}
    return {name: value.square().sum(0) for name, value in gradients.items()}


@dataclass(frozen=True)
class Fisher(Report, gives=("fisher",)):
    """Reports `fisher [G]`, the diagonal of the empirical Fisher matrix at the trained model, in eval mode."""

    stacks = False

    fim: Literal["sample", "batch"] = "sample"  # square the gradient of each sample, or that of each batch
    samples: int | None = None  # how many of the client's samples are used, drawn at random; None: all of them
    batch: int = 64  # size of a batch with `fim="batch"`

    def __call__(self, trained: Trained) -> Tensors:
        index = trained.train.positions
        if self.samples is not None and self.samples < len(index):
            index = index[seeds.permutation(len(index), *trained.seed, "fisher")[: self.samples].to(index.device)]
        model = trained.model, trained.params, trained.buffers
        total = torch.zeros(trained.layout.size, device=index.device)
        for part in torch.split(index, SAMPLES_AT_ONCE if self.fim == "sample" else self.batch):
            for x, y, _ in trained.chunks(Samples(part, None)):
                if self.fim == "sample":
                    size = IMAGES_AT_ONCE if x.dim() == 4 else SAMPLES_AT_ONCE
                    for some, labels in zip(x.split(size), y.split(size), strict=True):
                        total += trained.layout.join(squared_gradient_sums(*model, some, labels, trained.loss))
                else:  # a batch counts by its size: the last one may be smaller
                    total += len(y) * trained.layout.join(_squared_mean_gradient(*model, x, y, trained.loss))
        return {"fisher": total / len(index)}


def _squared_mean_gradient(
    model: nn.Module, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, loss: Loss
) -> Tensors:
    tracked = {name: value.detach().requires_grad_() for name, value in params.items()}
    with torch.enable_grad():
        logits = functional_call(model, {**tracked, **buffers}, (x,)).logits
        gradients = torch.autograd.grad(loss(logits, y).mean(), list(tracked.values()), allow_unused=True)
    zeros = (torch.zeros_like(value) for value in tracked.values())
    return {
        name: (zero if gradient is None else gradient).square()
        for name, gradient, zero in zip(tracked, gradients, zeros, strict=True)
    }
