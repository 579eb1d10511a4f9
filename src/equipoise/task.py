"""A model and a federation brought together for one method.

A `Task` holds everything that clients and server compute with and that does not change from round to round: the wrapped
model as a function, which of its tensors are shared, and the data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise import seeds
from equipoise.data.federation import Federation
from equipoise.grammar import did_you_mean
from equipoise.losses import CROSS_ENTROPY, CrossEntropy, Loss, check_target, parse_loss
from equipoise.method import Method
from equipoise.models import Noise, adapt, build_model
from equipoise.models.adapt import Adapted
from equipoise.models.noise import hand_in_noise
from equipoise.models.pixels import store_by_pixel
from equipoise.roles import Mark, Wrap
from equipoise.training import Training
from equipoise.types import (
    PERSONAL_LOGITS,
    VIEW,
    EquipoiseError,
    Factored,
    Layout,
    Outputs,
    Samples,
    Server,
    Setting,
    Tensors,
)

# How a model is called: in training or evaluation; "single" is for batches of one sample, which have no statistics.
Mode = Literal["train", "single", "eval", "eval single"]
# What happens to a buffer: the server averages it ("average"), it stays with the client ("local"), or evaluation uses
# statistics of the batch in its place ("drop").
BufferPolicy = Literal["average", "local", "drop"]
ModelSource = str | nn.Module | Callable[[], nn.Module]  # text such as `mlp(hidden=(64,))`, a module, or its builder
EVALUATION_BATCH = 1024  # samples that are evaluated at a time


@dataclass(frozen=True, eq=False)
class Task:
    """What a run computes with and what does not change from round to round. Build it with `Task.build`."""

    federation: Federation  # the data of all clients
    training: Training  # settings of local training, as the method demands them
    modules: Mapping[Mode, nn.Module]  # the model in each mode; all of them share the same tensors
    layout: Layout  # of the shared parameters
    personal: Layout  # of the personal parameters, which the server mixes for each client
    private: frozenset[str]  # names of the private parameters, which stay with the client
    private_buffers: frozenset[str]  # names of the buffers that the method's wraps keep with the client
    policies: Mapping[str, BufferPolicy]  # buffer -> what happens to it
    noise: Mapping[str, tuple[int, ...]]  # place where the model takes noise -> shape of the noise for one sample
    noise_in_evaluation: frozenset[str]  # those of these places that take noise in evaluation, too
    initial_params: Tensors  # all parameters before the first round
    initial_buffers: Tensors  # all buffers before the first round
    batch_statistics: bool  # training uses statistics of the batch, so that batches must not be padded
    device: torch.device  # where clients train
    loss: Loss = CROSS_ENTROPY  # what clients minimise
    metrics: tuple[str, ...] = ()  # recorded beside the score and the loss
    notes: tuple[str, ...] = ()  # what a reader of the results should know about the wraps

    @classmethod
    def build(
        cls,
        method: Method,
        federation: Federation,
        *,
        model: ModelSource | None = None,
        training: Training | None = None,
        buffers: BufferPolicy | Mapping[str, BufferPolicy] = "average",
        seed: int = 0,
        device: str | torch.device = "cpu",
        loss: Loss | None = None,
        metrics: tuple[str, ...] = (),
    ) -> Task:
        """Wrap the model as the method demands, and sort its tensors into shared, personal and private ones.

        Args:
            method: its wraps change the model, and its demands change the settings of training.
            federation: the data. For a pooled method they are joined into one client.
            model: text such as `mlp(hidden=(64,))`, a module, or a function that builds one. Default: the data set's.
            training: settings of local training. Default: the data set's.
            buffers: what happens to buffers: one policy for all, or patterns of names such as `"*.running_mean"`, each
                with a policy. A buffer that no pattern matches is averaged.
            seed: the seed of the initial parameters.
            device: where clients train.
            loss: what clients minimise. Default: the data set's.
            metrics: names of `metrics.METRICS` to record beside the score and the loss.
        """
        chosen = parse_loss(federation.protocol.loss) if loss is None else loss
        check_loss(method, federation, chosen)
        if method.is_pooled:
            federation = federation.pooled()
        classes = chosen.count_outputs(len(federation.classes))
        network = _built(model or federation.protocol.model, federation, classes, seed)
        network = hand_in_noise(network)
        federation = _fit_samples(federation, network)
        example = federation.example()
        network = _adapted(network, example)
        spare = int(getattr(network, "spare_outputs", 0))
        wraps = sorted(method.wrap, key=lambda wrap: wrap.order)
        for wrap in wraps:
            network = _wrapped(network, wrap, classes, example, seed)
        _check_outputs(network, example, classes, spare if isinstance(chosen, CrossEntropy) else 0, chosen)
        marks: dict[str, Mark] = {}
        for wrap in wraps:  # a tensor that one wrap marks private stays so, whatever the others say
            marks |= {n: mark for n, mark in wrap.marks(network).items() if marks.get(n) != "private"}
        noise = _noise_shapes(network, example)
        # A frozen parameter is a constant of the model: neither trained nor sent.
        params = {name: value.detach().clone() for name, value in network.named_parameters() if value.requires_grad}
        values = {name: b.detach().clone() for name, b in network.named_buffers() if name not in noise}
        private = frozenset(name for name in params if marks.get(name) == "private")
        policies = {n: "local" if n in marks else _policy(n, buffers) for n in values}
        settings = (training or federation.protocol.training).change_as_demanded(method.training)
        settings.check_with(params)
        place = torch.device(device)
        if place.type != "cpu":
            groups = federation.groups
            there = None if groups is None else replace(groups, of=groups.of.to(place))
            federation = replace(federation, x=federation.x.to(place), y=federation.y.to(place), groups=there)
        places = {f"{name}.draws": module for name, module in network.named_modules() if isinstance(module, Noise)}
        return cls(
            federation=federation,
            training=settings,
            modules=_modes(network.to(place), policies),
            layout=Layout.of({name: value for name, value in params.items() if name not in marks}),
            personal=Layout.of({name: value for name, value in params.items() if marks.get(name) == "personal"}),
            private=private,
            private_buffers=frozenset(name for name in values if name in marks),
            policies=policies,
            noise=noise,
            noise_in_evaluation=frozenset(name for name, module in places.items() if module.in_evaluation),
            initial_params={name: value.to(place) for name, value in params.items()},
            initial_buffers={name: value.to(place) for name, value in values.items()},
            batch_statistics=any(isinstance(module, _BatchNorm) for module in network.modules()),
            device=place,
            loss=chosen,
            metrics=metrics,
            notes=tuple(note for wrap in wraps if (note := wrap.note(network))),
        )

    # ------------------------------------------------------------------ facts
    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.federation.classes)

    @cached_property
    def stacked(self) -> Callable[[Tensors, Tensor], Outputs] | None:
        """The model's own forward pass of many clients at once, `(params [m, ...], x [m, batch, ...])`; None if it has
        none."""
        return self._of_the_model("stacked")

    @cached_property
    def factored(self) -> Callable[[Tensors], Callable[[Tensor], Factored]] | None:
        """The model's own forward and backward pass of many clients at once; None if it has none (`models.small.MLP`
        has).

        `factored(params [m, ...])` returns a function of samples `[m, batch, ...]`, which does the forward pass. The
        parameters may change in place between two passes.
        """
        return self._of_the_model("factored")

    def _of_the_model(self, function: str) -> Callable[..., Any] | None:
        model = self.modules["train"]
        return getattr(model, function, None) if getattr(model, "stacks", False) else None

    @property
    def keeps_outputs(self) -> bool:
        """Whether a client's figures need the outputs for its single samples."""
        grouped = self.federation.groups is not None
        return self.has_two_classes or self.loss.target == "number" or grouped or bool(self.metrics)

    @property
    def has_two_classes(self) -> bool:
        """Whether one of two classes is predicted."""
        return self.classes == 2 and self.loss.target == "classes"

    @property
    def evaluates_in_batches(self) -> bool:
        """Whether evaluation depends on the whole batch: so it does when running statistics are dropped."""
        return "drop" in self.policies.values()

    def setting(self, rounds: int, seed: int) -> Setting:
        """The facts about the run that the parts of the server can use."""
        return Setting(
            rounds=rounds,
            num_clients=len(self.federation),
            num_classes=self.classes,
            num_domains=self.federation.domain_count,
            total_samples=self.federation.total_samples,
            lr=self.training.lr,
            layout=self.layout,
            seed=seed,
            personal=self.personal,
        )

    def server(self) -> Server:
        """The server before the first round. It works on the CPU, wherever the clients train."""
        buffers = {name: value.cpu() for name, value in self.initial_buffers.items()}
        return Server(self.layout.join(self.initial_params).cpu(), buffers)

    # ------------------------------------------------------------------ the model as a function
    def forward(
        self, params: Tensors, buffers: Tensors, x: Tensor, mode: Mode = "eval", noise: Tensors | None = None
    ) -> tuple[Outputs, Tensors]:
        """Run the model: its outputs, and its buffers after the pass. The arguments are not changed.

        `noise` holds the random draws for each place where the model takes noise.
        """
        if mode == "train":
            buffers = {name: value.clone() for name, value in buffers.items()}
        taken = {n: v for n, v in buffers.items() if n not in self._dropped} if mode == "eval" else buffers
        outputs: Outputs = functional_call(self.modules[mode], {**params, **taken, **(noise or {})}, (x,))
        return outputs, buffers

    @cached_property
    def _dropped(self) -> frozenset[str]:
        """Names of the buffers that evaluation does not use."""
        return frozenset(self.policies) - {name for name, _ in self.modules["eval"].named_buffers()}

    def apply(self, params: Tensors, buffers: Tensors, x: Tensor) -> Outputs:
        """The outputs in eval mode. A model that takes noise in evaluation gets the same draws for every batch."""
        noise = {
            name: seeds.uniform((x.shape[0], *self.noise[name]), "evaluation", name).to(x.device)
            for name in self.noise_in_evaluation
        }
        mode: Mode = "eval single" if self.evaluates_in_batches and x.shape[0] == 1 else "eval"
        return self.forward(params, buffers, x, mode, noise)[0]

    # ------------------------------------------------------------------ data
    @property
    def group_count(self) -> int:
        """The number of groups that samples are in; 0 if they are in none."""
        return 0 if self.federation.groups is None else len(self.federation.groups.names)

    def find_groups(self, samples: Samples) -> Tensor:
        """The groups of some samples, `[n]`."""
        assert self.federation.groups is not None
        return self.federation.groups.of[samples.positions]

    def chunks(self, samples: Samples) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Pieces `(x, y, valid)` of at most `EVALUATION_BATCH` samples, with x prepared for evaluation; valid is 0 for
        padding."""
        for start in range(0, samples.positions.shape[0], EVALUATION_BATCH):
            some = slice(start, start + EVALUATION_BATCH)
            index = samples.positions[some]
            x = self.federation.preparation.evaluation(self.federation.x[index])
            yield x, self.federation.y[index], None if samples.valid is None else samples.valid[some]

    @torch.no_grad()
    def scores(self, params: Tensors, buffers: Tensors, index: Tensor, personal: bool = False) -> dict[str, Tensor]:
        """Scores of each of the samples at these positions, by name, `[n]` each.

        `loss` is what the task minimises; the score has the name of `Loss.score`, and so has that of each further view
        of the model. `outputs [n, outputs]` are there where a client's figures need them: with two classes for the AUC,
        with numbers, and for further metrics. `personal` scores the personal model that a wrap keeps beside the global
        one, if there is one.
        """
        found: dict[str, list[Tensor]] = {}
        for x, y, _ in self.chunks(Samples(index, None)):
            stored, images = store_by_pixel(params, x)
            out = self.apply(stored, buffers, images)
            main = out.extra.get(PERSONAL_LOGITS, out.logits) if personal else out.logits
            views = {self.loss.score: main} | {
                f"{self.loss.score} of {name.removeprefix(VIEW)}": logits
                for name, logits in out.extra.items()
                if name.startswith(VIEW)
            }
            for name, logits in views.items():
                found.setdefault(name, []).append(self.loss.judge(logits, y))
            found.setdefault("loss", []).append(self.loss(main, y))
            if self.keeps_outputs:
                found.setdefault("outputs", []).append(main)
        return {name: torch.cat(values).cpu() for name, values in found.items()}


def check_loss(method: Method, federation: Federation, loss: Loss) -> None:
    """Refuse a loss that the data cannot be used with, and a method that needs another loss or groups of samples."""
    check_target(loss, federation.target)
    for part in method.parts:
        if "groups" in part.needs and federation.groups is None:
            raise EquipoiseError(
                f"`{part.name}` ({part.role}) of `{method}` needs samples that are marked with their groups. Name the column "
                "that marks them with --group, or give the groups as a third array to Federation.from_tensors."
            )
        if "two groups" in part.needs and federation.groups is not None and len(federation.groups.names) != 2:
            raise EquipoiseError(
                f"`{part.name}` ({part.role}) of `{method}` compares two groups. Found {len(federation.groups.names)}: join "
                "some, or use fedfb."
            )
    lacking = {"classes": loss.target != "classes", "class outputs": not isinstance(loss, CrossEntropy)}
    what = {"classes": "classes to predict", "class outputs": "one output of the model per class"}
    for part in method.parts:
        for need in part.needs:
            if lacking.get(need):
                other = "use --loss cross_entropy, or choose" if loss.target == "classes" else "choose"
                raise EquipoiseError(
                    f"`{part.name}` ({part.role}) of `{method}` needs {what[need]}, which loss `{loss}` does not have: {other} "
                    "a method that works on losses and updates alone, such as fedavg or qffl."
                )


def _built(model: ModelSource, federation: Federation, classes: int, seed: int) -> nn.Module:
    if isinstance(model, str):
        first = federation.protocol.torch_seed
        torch_seed = None if first is None else first + seed
        network = build_model(model, federation.input_shape, classes, seed, torch_seed)
    elif isinstance(model, nn.Module):
        network = copy.deepcopy(model)
    else:
        network = seeds.build_from_seed(model, seed, "model")
    if any(nn.parameter.is_lazy(value) for value in (*network.parameters(), *network.buffers())):
        raise EquipoiseError(
            f"Model `{_kind(network)}` has layers without a size, such as nn.LazyLinear. Give them their sizes: samples have "
            f"shape {federation.input_shape}."
        )
    return network


def _wrapped(network: nn.Module, wrap: Wrap, classes: int, example: Tensor, seed: int) -> nn.Module:
    return seeds.build_from_seed(lambda: wrap(network, classes, example), seed, "wrap", wrap.name)


def _tried(network: nn.Module, example: Tensor) -> object:
    """What a model returns for an example. A copy is used, so that the model does not change."""
    try:
        with torch.no_grad():
            return copy.deepcopy(network).eval()(example)
    except EquipoiseError:
        raise
    except Exception as error:  # of any kind: a model may be a user's own
        numbers = "floating-point" if example.is_floating_point() else "whole"
        why = (str(error) or type(error).__name__).split("\n")[0].rstrip(".")
        raise EquipoiseError(
            f"Model `{_kind(network)}` cannot take samples of {numbers} numbers and shape {tuple(example.shape[1:])}: {why}."
        ) from error


def _kind(network: nn.Module) -> str:
    """The name of the model's class, for messages."""
    return type(network.model if isinstance(network, Adapted) else network).__name__


def _fit_samples(federation: Federation, network: nn.Module) -> Federation:
    """The federation as the model takes it: samples of whole numbers become floating-point numbers, unless the model
    takes whole numbers, as one with an embedding does."""
    example = federation.example()
    if example.is_floating_point():
        return federation
    try:
        _tried(network, example)
    except EquipoiseError as refused:
        # Samples of a stand-in are views of a single one, and stay so.
        some = federation.x[:1] if federation.is_elsewhere else federation.x
        other = replace(federation, x=some.to(torch.get_default_dtype()).expand(federation.x.shape))
        try:
            _tried(network, other.example())
        except EquipoiseError:
            raise refused from None
        return other
    return federation


def _adapted(network: nn.Module, example: Tensor) -> nn.Module:
    """The model itself, or one that returns `Outputs` around a model that returns a plain tensor."""
    return adapt(network) if isinstance(_tried(network, example), Tensor) else network


def _check_outputs(network: nn.Module, example: Tensor, classes: int, spare: int, loss: Loss) -> None:
    out = _tried(network, example)
    kind = _kind(network)
    if not isinstance(out, Outputs):
        raise EquipoiseError(
            f"Model `{kind}` must return logits as a tensor, or equipoise.Outputs(logits, features). Found "
            f"{type(out).__name__}: let its forward return the logits."
        )
    said = "one per class" if isinstance(loss, CrossEntropy) else f"as loss `{loss}` needs them"
    if tuple(out.logits.shape) not in ((len(example), classes), (len(example), classes + spare)):
        raise EquipoiseError(
            f"Model `{kind}` must return outputs [batch, {classes}], {said}. Found {list(out.logits.shape)} for a "
            f"batch of {len(example)}: check the width of its last layer."
        )


def _noise_shapes(network: nn.Module, example: Tensor) -> dict[str, tuple[int, ...]]:
    """Run a copy of the model once to find the shape of the noise at each place where it takes some."""
    trial = copy.deepcopy(network).train()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.random.get_rng_state()
        trial(example)
        if not torch.equal(before, torch.random.get_rng_state()):
            inside = next(
                (type(m).__name__ for m in network.modules() if isinstance(getattr(m, "dropout", 0), float)), ""
            )
            cause = f"the dropout inside `{inside}`? Build it with dropout=0.0" if inside else "F.dropout?"
            raise EquipoiseError(
                f"Model `{_kind(network)}` draws random numbers of its own ({cause}), so that its runs could not be repeated. "
                "Use nn.Dropout modules, or equipoise.models.Noise."
            )
    return {f"{name}.draws": module.shape for name, module in trial.named_modules() if isinstance(module, Noise)}


def _policy(name: str, buffers: BufferPolicy | Mapping[str, BufferPolicy]) -> BufferPolicy:
    if isinstance(buffers, str):
        chosen = buffers
    else:
        chosen = next((policy for pattern, policy in buffers.items() if fnmatch(name, pattern)), "average")
    if chosen not in get_args(BufferPolicy):
        raise EquipoiseError(
            f"Buffer policy must be one of {', '.join(get_args(BufferPolicy))}. Found {chosen!r}."
            + did_you_mean(str(chosen), get_args(BufferPolicy))
        )
    return chosen


def _modes(network: nn.Module, policies: Mapping[str, BufferPolicy]) -> dict[Mode, nn.Module]:
    """The model in each mode, with shared tensors. A single sample has no batch statistics, so the running ones are
    used."""
    tensors = {id(t): t for t in (*network.parameters(), *network.buffers())}
    train, single, evaluation, single_evaluation = (copy.deepcopy(network, dict(tensors)) for _ in range(4))
    train.train()
    single.train()
    evaluation.eval()
    single_evaluation.eval()
    for module in single.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
    for name, module in evaluation.named_modules():
        if isinstance(module, _BatchNorm) and policies.get(f"{name}.running_mean".lstrip(".")) == "drop":
            # without running statistics, batch normalisation uses those of the batch
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return {"train": train, "single": single, "eval": evaluation, "eval single": single_evaluation}


def stack_copies(tensors: Tensors, count: int) -> Tensors:
    """The same tensors for each of `count` clients, without copying them."""
    return {name: value.expand(count, *value.shape) for name, value in tensors.items()}
