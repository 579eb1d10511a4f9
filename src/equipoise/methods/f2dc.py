"""F2DC, feature decoupling and calibration. Wang et al., arXiv 2603.14238.

Features are split into domain-robust and domain-related ones, the latter are calibrated, and models are averaged with
domain-aware weights. Paper and public code differ. `variant="paper"` evaluates without noise, uses domain-aware weights
and the run's optimizer. `variant="released"` follows the code: it has noise in evaluation, too, weighs by samples, and
trains by SGD with rate 0.1, without momentum and weight decay.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.method import (
    EquipoiseError,
    Local,
    Mark,
    Method,
    Outputs,
    PerClient,
    Range,
    Round,
    Scored,
    State,
    Term,
    Value,
    Weigh,
    Weighed,
    Wrap,
    register,
    require,
)
from equipoise.models import MLP, Noise, Staged
from equipoise.parts.reports import ClassCounts
from equipoise.parts.weights import BySamples

REFERENCE = "Wang et al., Domain-skewed federated learning with feature decoupling and calibration, arXiv 2603.14238"
# The paper's feature maps have 512 channels, those of small networks 32, of one pixel in `clinics`. On these the paper's
# losses drown the others, down to features of zero: `benchmarks/demo_parameters.py` chose smaller ones on the validation
# data of `clinics`, and the small presets take them over.
CHOSEN: dict[str, Value] = {"hidden": 16, "tau": 1.0, "lam1": 0.1}
SMALL: dict[str, dict[str, Value]] = {
    "scanners": {"hidden": 16},
    "clinics": CHOSEN,
    "digits cpu": CHOSEN,
    "office-caltech cpu": CHOSEN,
    "pacs cpu": CHOSEN,
}
NoiseKind = Literal["logistic", "double_logistic"]  # one logistic draw per entry, or the difference of two
# How the global model is scored when the modules stay with the clients: without them, with the mean of all clients'
# modules, or with the mean of those of the domain's clients.
View = Literal["bypass", "mean_modules", "domain_modules"]


# --------------------------------------------------------------------------- modules
def convolutions(channels: int, hidden: int, depth: int) -> nn.Sequential:
    """The network of both the decoupler and the corrector: `depth` 3x3 convolutions without bias.

    `channels` maps go in and come out, with `hidden` maps in between; batch normalisation and ReLU stand between the
    convolutions.
    """
    widths = [channels, *[hidden] * (depth - 1)]
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(hidden, channels, 3, padding=1, bias=False))


class RelaxedMask(nn.Module):
    """A relaxed Bernoulli mask from scores S: `sigmoid((S + logistic noise) / sigma)` (equation 3)."""

    def __init__(self, sigma: float, noise: NoiseKind, stochastic_eval: bool) -> None:
        super().__init__()
        self.sigma = sigma
        self.stochastic_eval = stochastic_eval
        # Gumbel noise on both outcomes amounts to one logistic draw; the formula as printed subtracts two of them.
        self.noises = nn.ModuleList(Noise(stochastic_eval) for _ in range(2 if noise == "double_logistic" else 1))

    def forward(self, scores: Tensor) -> Tensor:
        """A mask of the shape of `scores`, with entries in (0, 1)."""
        if self.training or self.stochastic_eval:
            for sign, noise in zip((1, -1), self.noises, strict=False):
                scores = scores + sign * torch.logit(noise(scores), eps=1e-7)
        return torch.sigmoid(scores / self.sigma)


class Decoupled(nn.Module):
    """A staged model with a decoupler, a corrector and an auxiliary head after some of its stages."""

    def __init__(
        self, model: Staged, places: tuple[int, ...], maps: tuple[Tensor, ...], classes: int, settings: Decoupling
    ) -> None:
        super().__init__()
        self.model = model
        self.places = places
        self.bypass = settings.eval_view == "bypass" and not settings.share_modules
        self.decouplers, self.correctors = nn.ModuleDict(), nn.ModuleDict()
        self.masks, self.auxiliary = nn.ModuleDict(), nn.ModuleDict()
        for j in places:
            channels = maps[j].shape[1]
            self.decouplers[str(j)] = convolutions(channels, settings.hidden, settings.depth)
            self.masks[str(j)] = RelaxedMask(settings.sigma, settings.noise, settings.stochastic_eval)
            if settings.correct:
                self.correctors[str(j)] = convolutions(channels, settings.hidden, settings.depth)
            self.auxiliary[str(j)] = nn.Linear(self.pool(j, maps[j]).shape[1], classes)

    def pool(self, place: int, map: Tensor) -> Tensor:
        """The feature vector of a map after the stage `place`: the model's own pooling after the last, otherwise the
        mean."""
        return self.model.pool(map) if place == len(self.model.stages) - 1 else map.mean((2, 3))

    def forward(self, x: Tensor) -> Outputs:
        """The model's outputs; the decoupled features and their auxiliary logits are in `extra`."""
        layers: list[Tensor] = []
        extra: dict[str, Tensor] = {}
        for j, stage in enumerate(self.model.stages):
            x = stage(x)
            if j in self.places and not (self.bypass and not self.training):
                x, found = self.decouple(j, x)
                extra |= found
            layers.append(x)
        features = self.model.pool(x)
        return Outputs(self.model.head(features), features, x, tuple(layers), extra)

    def decouple(self, j: int, f: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The recombined map of stage `j`, and the entries of `Outputs.extra` for the losses and the views.

        With the mask M, the map `f` is split into `f+ = M f` and `f- = (1 - M) f`; the calibrated map is
        `f* = f- + (1 - M) corrector(f-)`, and the recombined one `f+ + f*`. `extra` holds the pooled features `l+`,
        `l-` and `l*`, and the auxiliary head's logits of each.
        """
        key = str(j)
        mask = self.masks[key](self.decouplers[key](f))
        plus, minus = mask * f, (1 - mask) * f
        star = minus + (1 - mask) * self.correctors[key](minus) if key in self.correctors else minus
        pooled = {"+": self.pool(j, plus), "-": self.pool(j, minus), "*": self.pool(j, star)}
        extra = {f"l{sign} {j}": feature for sign, feature in pooled.items()}
        extra |= {f"aux{sign} {j}": self.auxiliary[key](feature) for sign, feature in pooled.items()}
        if not self.training and j == len(self.model.stages) - 1:  # table 7: each feature through the main head
            extra |= {f"view f{sign}": self.model.head(feature) for sign, feature in pooled.items()}
            if torch.is_grad_enabled():  # for Grad-CAM (figure 2); scores need no maps, which would stay in memory
                extra |= {f"map of f{sign}": map for sign, map in (("+", plus), ("-", minus), ("*", star))}
        return plus + star, extra


@dataclass(frozen=True)
class Decoupling(Wrap, needs=("feature map", "class outputs"), gives=("decoupled features",)):
    """Adds F2DC's modules after the chosen stages of a staged model."""

    layers: tuple[int, ...] = (-1,)  # positions of the stages
    sigma: float = 0.1  # temperature of the mask
    hidden: int = 50  # hidden channels of decoupler and corrector
    depth: Literal[2, 3] = 3  # convolutions of decoupler and corrector
    noise: NoiseKind = "logistic"  # noise of the mask
    correct: bool = True  # whether there are correctors
    stochastic_eval: bool = False  # whether the mask has noise in evaluation, too
    share_modules: bool = True  # whether the modules are shared; otherwise they are private
    eval_view: View = "bypass"  # how the global model is scored when the modules are private

    @property
    def scores(self) -> Scored:
        """The global model, unless the modules are private and `eval_view` says otherwise."""
        if self.share_modules:
            return "global"
        views: dict[View, Scored] = {"bypass": "global", "mean_modules": "mean", "domain_modules": "domain"}
        return views[self.eval_view]

    def __call__(self, model: nn.Module, classes: int, example: Tensor) -> nn.Module:
        if isinstance(model, MLP) and len(model.body):
            model = model.in_stages()
        if not isinstance(model, Staged):
            raise EquipoiseError(
                f"f2dc works on feature maps, and the model `{type(model).__name__}` shows none. Use one that is "
                "equipoise.models.Staged (small_cnn, for example) or a perceptron with hidden layers (mlp), or give yours "
                "stages, a pooling and a head."
            )
        stages = len(model.stages)
        for j in self.layers:
            require(-stages <= j < stages, "layers", f"positions of the model's {stages} stages", self.layers)
        places = tuple(sorted({j % stages for j in self.layers}))
        model.eval()
        with torch.no_grad():
            maps = model(example).layers
        return Decoupled(model, places, maps, classes, self)

    def marks(self, model: nn.Module) -> dict[str, Mark]:
        """The modules are private, unless they are shared."""
        if self.share_modules:
            return {}
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        return {name: "private" for name in names if name.split(".")[0] in ("decouplers", "correctors", "auxiliary")}


def places_of(local: Local) -> list[str]:
    """The stages that have modules, as they are named in `Outputs.extra`."""
    return [name.removeprefix("l+ ") for name in local.out.extra if name.startswith("l+ ")]


@dataclass(frozen=True)
class DecouplingLoss(Term, needs=("decoupled features",)):
    """`lam1` times equation 5: `cos(l+, l-) / tau + CE(m(l+), y) + CE(m(l-), yhat)`, averaged over the stages.

    It separates the two features: the auxiliary head `m` should read the label `y` from `l+`, and from `l-` the most
    likely wrong class `yhat`.
    """

    tau: float  # temperature of the cosine
    lam1: float  # weight of the loss
    yhat_from: Literal["main", "minus"] = "main"  # whose logits give the wrong class: the main head's, or those of `l-`

    def loss(self, local: Local) -> Tensor:
        """The weighted losses `[batch]`."""
        extra, places = local.out.extra, places_of(local)
        total = torch.zeros(())
        for j in places:
            confidence = local.out.logits if self.yhat_from == "main" else extra[f"aux- {j}"]
            label = F.one_hot(local.y, confidence.shape[1]) > 0
            wrong = torch.where(label, -torch.inf, confidence.detach()).argmax(1)
            total = (
                total
                + F.cosine_similarity(extra[f"l+ {j}"], extra[f"l- {j}"]) / self.tau
                + F.cross_entropy(extra[f"aux+ {j}"], local.y, reduction="none")
                + F.cross_entropy(extra[f"aux- {j}"], wrong, reduction="none")
            )
        return self.lam1 * total / len(places)


@dataclass(frozen=True)
class CalibrationLoss(Term, needs=("decoupled features",)):
    """`lam2` times equation 7: the auxiliary head should read the label from the calibrated feature `l*`."""

    lam2: float  # weight of the loss

    def loss(self, local: Local) -> Tensor:
        """The weighted losses `[batch]`, averaged over the stages."""
        places = places_of(local)
        losses = [F.cross_entropy(local.out.extra[f"aux* {j}"], local.y, reduction="none") for j in places]
        return self.lam2 * torch.stack(losses).sum(0) / len(places)


# --------------------------------------------------------------------------- aggregation
@dataclass(frozen=True)
class DomainAware(Weigh, by_columns=()):
    """Weights proportional to `sigmoid(a n_k/N - b d_k)`, normalised over the round's clients (equations 10 and 11).

    `n_k/N` is the client's share of all samples, and `d_k` measures how far its share of each class is from `1/Q`, for
    Q domains.
    """

    a: float = 1.0  # factor on the share of samples
    b: float = 0.4  # factor on the distance
    # The client's share of each class: approximated by its share of all samples, as in the paper, or counted.
    counts: Literal["size", "class"] = "size"

    @property
    def needs(self) -> tuple[str, ...]:
        """The number of samples, and the class counts if shares per class are counted."""
        return ("samples",) if self.counts == "size" else ("samples", "class_counts")

    @property
    def remembers(self) -> str:
        """Each client's class counts, if shares per class are counted."""
        return "its samples of each class" if self.counts == "class" else ""

    def __call__(self, round: Round, state: State) -> Weighed:
        who = "domain-aware aggregation"
        samples = round.reports["samples"].double()
        share = samples / round.known("total_samples", who)
        ideal = 1 / round.known("num_domains", who)
        kept: dict[str, PerClient] = {}
        if self.counts == "size":  # the paper's approximation: every class has the client's share of all samples
            classes = round.known("num_classes", who)
            discrepancy = (classes / 2) ** 0.5 * (share - ideal).abs()
        else:
            counts = round.reports["class_counts"].double()
            known = state.rows("counts").put(round.clients, counts.clone())
            totals = known.take(known).sum(0)
            present = totals > 0
            shares = counts[:, present] / totals[present]
            discrepancy = (0.5 * (shares - ideal).square().sum(1)).sqrt()
            kept = {"counts": known}
        strength = torch.sigmoid(self.a * share - self.b * discrepancy)
        return Weighed(strength / strength.sum(), kept, figures={"samples": samples, "discrepancy": discrepancy})


MODULE_RANGES = {
    "sigma": Range(0.03, 0.5, log=True),
    "tau": Range(0.03, 0.5, log=True),
    "lam1": Range(0.1, 1.5),
    "lam2": Range(0.1, 1.5),
}
WEIGHT_RANGES = {"a": Range(0.1, 2.0), "b": Range(0.05, 1.0)}


@register(
    title="Domain-aware weights, F2DC's aggregation alone",
    reference=REFERENCE,
    ranges=WEIGHT_RANGES,
    side="server",
)
def daa(a: float = 1.0, b: float = 0.4, counts: Literal["size", "class"] = "size") -> Method:
    """Weights proportional to `sigmoid(a n_k/N - b d_k)`, for any local method.

    `n_k/N` is the client's share of all samples, and `d_k` measures how far its share of each class is from `1/Q`, for
    Q domains. `counts="class"` counts the shares per class; `"size"` takes the share of all samples for each of them.
    """
    return Method(reports=(ClassCounts(),) if counts == "class" else (), weigh=DomainAware(a, b, counts))


# --------------------------------------------------------------------------- the method
@register(
    title="F2DC's two modules and losses, to plug into another method",
    reference=REFERENCE,
    per_dataset=SMALL,
    ranges=MODULE_RANGES,
    side="client",
)
def f2dc_modules(
    sigma: float = 0.1,
    tau: float = 0.06,
    lam1: float = 0.8,
    lam2: float = 1.0,
    dfd: bool = True,
    dfc: bool = True,
    layers: tuple[int, ...] = (-1,),
    hidden: int = 50,
    depth: Literal[2, 3] = 3,
    noise: Literal["logistic", "double_logistic"] = "logistic",
    yhat_from: Literal["main", "minus"] = "main",
    share_modules: bool = True,
    eval_view: Literal["bypass", "mean_modules", "domain_modules"] = "bypass",
    stochastic_eval: bool = False,
) -> Method:
    """F2DC's decoupler (`dfd`) and corrector (`dfc`) with their losses, to be added to another method.

    The other method keeps its own terms, weights and merge. `sigma` is the temperature of the mask, `tau` that of the
    cosine; `lam1` and `lam2` weigh the losses of decoupler and corrector. The modules stand after the stages `layers`,
    and have `depth` convolutions with `hidden` channels. `noise="double_logistic"` is equation 3 to the letter.
    `yhat_from` says whose logits give the strongest wrong class: the main head's, or those of f-. With
    `share_modules=False` the modules stay with the clients, and `eval_view` says how the global model is scored.
    `stochastic_eval` keeps the noise in evaluation.
    """
    require(sigma > 0, "sigma", "above 0", sigma)
    require(tau > 0, "tau", "above 0", tau)
    require(lam1 >= 0, "lam1", "at least 0", lam1)
    require(lam2 >= 0, "lam2", "at least 0", lam2)
    require(hidden >= 1, "hidden", "at least 1", hidden)
    require(len(layers) > 0, "layers", "at least one stage", layers)
    if not (dfd or dfc):
        return Method()
    wrap = Decoupling(layers, sigma, hidden, depth, noise, dfc, stochastic_eval, share_modules, eval_view)
    separate, calibrate = DecouplingLoss(tau, lam1, yhat_from), CalibrationLoss(lam2)
    return Method(wrap=(wrap,), terms=((separate,) if dfd else ()) + ((calibrate,) if dfc else ()))


@register(
    title="Feature decoupling and calibration, domain-aware aggregation",
    reference=REFERENCE,
    per_dataset=SMALL,
    ranges={**MODULE_RANGES, **WEIGHT_RANGES},
)
def f2dc(
    sigma: float = 0.1,
    tau: float = 0.06,
    lam1: float = 0.8,
    lam2: float = 1.0,
    a: float = 1.0,
    b: float = 0.4,
    dfd: bool = True,
    dfc: bool = True,
    daa: bool | None = None,
    variant: Literal["paper", "released"] = "paper",
    layers: tuple[int, ...] = (-1,),
    hidden: int = 50,
    depth: Literal[2, 3] = 3,
    noise: Literal["logistic", "double_logistic"] = "logistic",
    yhat_from: Literal["main", "minus"] = "main",
    share_modules: bool = True,
    eval_view: Literal["bypass", "mean_modules", "domain_modules"] = "bypass",
    stochastic_eval: bool | None = None,
    daa_counts: Literal["size", "class"] = "size",
) -> Method:
    """Decoupled and calibrated features, with domain-aware weights.

    `dfd`, `dfc` and `daa` switch decoupler, corrector and domain-aware weights on or off, as in table 6 of the paper.
    `a` and `b` are the factors of these weights, and `daa_counts` how they find shares per class. The other parameters
    are those of `f2dc_modules`. `variant="released"` follows the public code, which evaluates with noise, weighs by
    samples and trains by plain SGD with rate 0.1. `daa` and `stochastic_eval` follow the variant if they are None.
    """
    released = variant == "released"
    aware = not released if daa is None else daa
    noisy = released if stochastic_eval is None else stochastic_eval
    modules = f2dc_modules(
        sigma, tau, lam1, lam2, dfd, dfc, layers, hidden, depth, noise, yhat_from, share_modules, eval_view, noisy
    )
    plain = (("optimizer", "SGD"), ("lr", 0.1), ("momentum", 0.0), ("weight_decay", 0.0)) if released else ()
    return Method(
        wrap=modules.wrap,
        terms=modules.terms,
        reports=(ClassCounts(),) if aware and daa_counts == "class" else (),
        weigh=DomainAware(a, b, daa_counts) if aware else BySamples(),
        training=plain,
    )
