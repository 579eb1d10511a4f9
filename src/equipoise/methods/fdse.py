"""FDSE, domain shift erasers: each layer is split into a shared extractor and an eraser that belongs to the client.

Wang et al., CVPR 2025. The extractors are merged by consensus, one tensor at a time. The erasers are mixed for each
client, by similarity.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil, exp
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise.method import (
    PERSONAL,
    Layout,
    Local,
    Mark,
    Merge,
    Merged,
    Method,
    Outputs,
    PerClient,
    Range,
    Round,
    Scored,
    Sent,
    Share,
    State,
    Term,
    Wrap,
    register,
    require,
)
from equipoise.parts.minnorm import min_norm_weights
from equipoise.parts.reports import PersonalTensors
from equipoise.parts.terms import unit
from equipoise.parts.weights import Uniform
from equipoise.updates import STILL, gram

ERASER = ("dse", "dse_norm")  # the modules of a split layer that are personal


# --------------------------------------------------------------------------- layers
class EntryByEntry(nn.Module):
    """Multiplies each entry by a learned number: a depthwise convolution for vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width).uniform_(-1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """`x * weight`, `[batch, width]`."""
        return x * self.weight


class SplitLayer(nn.Module):
    """Takes the place of a layer: a shared extractor makes half of the outputs, a depthwise eraser after it the other
    half.

    It has no biases, because the normalisation after each of them would remove them.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        norm: type[_BatchNorm]
        if isinstance(layer, nn.Conv2d):
            self.outputs, norm = layer.out_channels, nn.BatchNorm2d
            half = ceil(self.outputs / 2)
            same: dict[str, Any] = {
                name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
            }
            self.dfe: nn.Module = nn.Conv2d(layer.in_channels, half, bias=False, **same)
            self.dse: nn.Module = nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False)
        else:
            self.outputs, norm = layer.out_features, nn.BatchNorm1d
            half = ceil(self.outputs / 2)
            self.dfe = nn.Linear(layer.in_features, half, bias=False)
            self.dse = EntryByEntry(half)
        self.dse_norm, self.dfe_norm = norm(half), norm(self.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the shape that the replaced layer gives."""
        extracted = self.dse_norm(self.dfe(x))
        return self.dfe_norm(torch.cat([extracted, self.dse(extracted)], 1)[:, : self.outputs])


def split_layers(model: nn.Module) -> None:
    """Split the convolutions and linear layers of a model in place, except for grouped convolutions and the head."""
    for name, child in list(model.named_children()):
        if (isinstance(child, nn.Conv2d) and child.groups == 1) or (isinstance(child, nn.Linear) and name != "head"):
            setattr(model, name, SplitLayer(child))
        else:
            split_layers(child)


@dataclass(frozen=True)
class ShiftErasers(Wrap, gives=("personal tensors", "split layers")):
    """Splits the layers. The erasers' parameters are personal; their running statistics stay with the client."""

    order: ClassVar[int] = 0

    scored: Scored = "own"  # which model `accuracy` belongs to

    @property
    def scores(self) -> Scored:
        """Which model `accuracy` belongs to."""
        return self.scored

    def __call__(self, model: nn.Module, classes: int, example: Tensor) -> nn.Module:
        split_layers(model)
        return model

    def marks(self, model: nn.Module) -> dict[str, Mark]:
        """The tensors of all erasers are personal."""
        found: dict[str, Mark] = {}
        for place, layer in model.named_modules():
            if isinstance(layer, SplitLayer):
                names = [name for name, _ in (*layer.named_parameters(), *layer.named_buffers())]
                found |= {f"{place}.{name}": "personal" for name in names if name.split(".")[0] in ERASER}
        return found

    def note(self, model: nn.Module) -> str | None:
        """A note if the model has no layer to split."""
        if any(isinstance(layer, SplitLayer) for layer in model.modules()):
            return None
        return "fdse: the model has no layer to split before its head, so every client uses the same model."


# --------------------------------------------------------------------------- consistency of statistics
class WithStatistics(nn.Module):
    """A model that, in training, also outputs statistics of each split layer: in `extra`, as "running mean LAYER" and
    "running var LAYER".

    They are the mean and variance per channel of the inputs of the layer's last normalisation, averaged over batches as
    the normalisation does it. Gradients pass through the part of the current batch.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Outputs:
        """The model's outputs, with the statistics in `extra` when it trains."""
        if not self.training:
            out: Outputs = self.model(x)
            return out
        seen: dict[str, Tensor] = {}

        def watch(place: str) -> Callable[[_BatchNorm, tuple[Tensor, ...]], None]:
            def look(norm: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
                axes = [0, *range(2, inputs[0].dim())]
                variance, mean = torch.var_mean(inputs[0], axes, correction=0)
                for name, old, new in (("mean", norm.running_mean, mean), ("var", norm.running_var, variance)):
                    assert old is not None
                    rate = 0.1 if norm.momentum is None else norm.momentum
                    seen[f"running {name} {place}"] = (1 - rate) * old.detach() + rate * new

            return look

        with ExitStack() as hooks:
            for place, layer in self.model.named_modules():
                if isinstance(layer, SplitLayer):
                    hooks.enter_context(layer.dfe_norm.register_forward_pre_hook(watch(place)))
            out = self.model(x)
        return out._replace(extra={**out.extra, **seen})


@dataclass(frozen=True)
class LayerStatistics(Wrap, needs=("split layers",), gives=("layer statistics",)):
    """Encloses a model with split layers, so that it outputs their statistics in training."""

    order: ClassVar[int] = 2

    scored: Scored = "own"  # which model `accuracy` belongs to

    @property
    def scores(self) -> Scored:
        """Which model `accuracy` belongs to."""
        return self.scored

    def __call__(self, model: nn.Module, classes: int, example: Tensor) -> nn.Module:
        return WithStatistics(model)


def divergence(mean: Tensor, variance: Tensor, global_mean: Tensor, global_variance: Tensor) -> Tensor:
    """The KL divergence per channel, `KL(global || local)`, between two normal distributions `[channels]`.

    With variances `s`, `S` and means `m`, `M` of the local and the global one: `(ln(s/S) + (S + (M - m)^2)/s - 1) / 2`.
    """
    variance, global_variance = variance + 1e-5, global_variance + 1e-5
    distance = (global_variance + (global_mean - mean).square()) / variance
    return (variance.log() - global_variance.log() + distance - 1) / 2


@dataclass(frozen=True)
class ConsistentStatistics(Term, needs=("layer statistics",)):
    """Adds `lmbd sum_l omega_l KL_l` to the local loss, from the second round on.

    `KL_l` is the mean divergence over the channels of split layer l between the received statistics and the client's.
    The weights `omega_l` are proportional to `exp(beta l)` and sum to one.
    """

    lmbd: float  # weight of the term
    beta: float  # how much more later layers count
    whole_loss: ClassVar[bool] = True  # of statistics of batches, which are never padded

    def loss(self, local: Local) -> Tensor | None:
        """The weighted divergence, a scalar; None in the first round."""
        extra, buffers = local.out.extra, local.received.buffers
        places = [name.removeprefix("running mean ") for name in extra if name.startswith("running mean ")]
        if local.round == 0 or not places:
            return None
        weights = [exp(self.beta * i) for i in range(len(places))]
        total = torch.zeros(())
        for place, weight in zip(places, weights, strict=True):
            ending = f".{place}.dfe_norm.running_"
            prefix = next(name for name in buffers if ending in f".{name}").rpartition("running_")[0]
            known = buffers[f"{prefix}running_mean"], buffers[f"{prefix}running_var"]
            found = divergence(extra[f"running mean {place}"], extra[f"running var {place}"], *known)
            total = total + weight / sum(weights) * found.mean()
        return self.lmbd * total


# --------------------------------------------------------------------------- server
@dataclass(frozen=True)
class Consensus(Merge, by_columns=()):
    """For each tensor, the min-norm point of the clients' unit updates, times the mean norm of the updates.

    `d = mean_k ||D_k|| * sum_k lambda_k D_k/||D_k||`, with the `lambda` on the simplex that makes the sum shortest. A
    client that did not move in a tensor has no direction there, and is left out.
    """

    uses_weights: ClassVar[bool] = False

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        rows = round.updates.shaped
        direction = torch.zeros_like(rows[0])
        used = rows.new_zeros(len(rows), len(round.slices), dtype=torch.float64)
        inner = round.columns.add_up(torch.stack([gram(rows[:, columns]) for columns in round.slices]))
        for i, columns in enumerate(round.slices):
            products = inner[i]
            lengths = products.diagonal().sqrt()
            moved = lengths > STILL * lengths.max()
            if moved.any():
                inverse = 1 / lengths[moved]
                used[moved, i] = min_norm_weights(products[moved][:, moved] * inverse[:, None] * inverse[None])
                factors = lengths.mean() * used[moved, i] * inverse
                direction[columns] = factors.to(rows.dtype) @ rows[moved, columns]
        return Merged(direction, used.to(rows.dtype))


def mixed_by_similarity(rows: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """For each row of `[m, P]`, the mean of all rows with weights `softmax(cosine / tau)`; and the weights `[m, m]`."""
    directions = unit(rows)
    weights = torch.softmax(directions @ directions.mT / tau, 1)
    return weights @ rows, weights


@dataclass(frozen=True)
class SimilarityMix(
    Share,
    needs=(PERSONAL, "personal tensors"),
    gives=("shared personal tensors",),
    remembers="its erasers, mixed with the others'",
    by_columns=(),
):
    """Sends each participant its next personal tensors: the mean of all participants', weighted by similarity to its
    own.

    Each tensor is mixed by itself. An absent client keeps its last tensors, and a new client starts from the mean.
    """

    reads_updates: ClassVar[bool] = False

    tau: float  # temperature of the similarity

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        rows = round.reports[PERSONAL]
        layout = round.setting.personal or Layout(("personal",), ((rows.shape[1],),))
        mixed = torch.zeros_like(rows)
        for columns in layout.slices:
            mixed[:, columns] = mixed_by_similarity(rows[:, columns], self.tau)[0]
        after = PerClient(state.rows("personal").put(round.clients, mixed), mixed.mean(0))
        return Sent({PERSONAL: after}, {"personal": after})


@register(
    title="Layers split into a shared extractor and a domain-shift eraser per client",
    reference="Wang et al., Federated learning with domain shift eraser, CVPR 2025",
    per_dataset={"pacs": {"lmbd": 0.5, "beta": 0.001}, "office-caltech": {"lmbd": 0.05, "beta": 0.05}},
    ranges={"lmbd": Range(0.001, 0.5, log=True), "beta": Range(0.001, 0.5, log=True)},
    side="client",
)
def fdse(
    lmbd: float = 0.01,
    tau: float = 0.5,
    beta: float = 0.1,
    evaluate: Literal["personal", "averaged-personal"] = "personal",
) -> Method:
    """Each layer is split into a shared extractor and a personal eraser of domain shift.

    `lmbd` weighs the loss that keeps a client's layer statistics near the global ones, and `beta` says how much more
    later layers count in it. `tau` is the temperature with which erasers are mixed. `evaluate` says which model
    `accuracy` belongs to: with the client's own erasers, or with the mean of all. The other one is recorded as well.
    """
    require(lmbd >= 0, "lmbd", "at least 0", lmbd)
    require(tau > 0, "tau", "above 0", tau)
    scored: Scored = "own" if evaluate == "personal" else "mean"
    wraps: tuple[Wrap, ...] = (ShiftErasers(scored),)
    return Method(
        wrap=(*wraps, LayerStatistics(scored)) if lmbd else wraps,
        terms=(ConsistentStatistics(lmbd, beta),) if lmbd else (),
        reports=(PersonalTensors(),),
        weigh=Uniform(),
        merge=Consensus(),
        share=(SimilarityMix(tau),),
    )
