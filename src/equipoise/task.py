"""A model and a federation, brought together for one method: what the two halves of a round compute with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise import seeds
from equipoise.data.federation import Federation
from equipoise.grammar import did_you_mean
from equipoise.method import Method
from equipoise.models import Noise, build_model
from equipoise.models.noise import hand_in_noise
from equipoise.roles import Mark, Wrap
from equipoise.training import Training
from equipoise.types import EquipoiseError, Layout, Outputs, Samples, Server, Setting, Tensors

Mode = Literal["train", "single", "eval"]
BufferPolicy = Literal["average", "local", "drop"]
ModelSource = str | nn.Module | Callable[[], nn.Module]
EVALUATION_BATCH = 1024
PERSONAL_LOGITS = "personal logits"  # in `Outputs.extra`: of a personal model that stands beside the global one


@dataclass(frozen=True, eq=False)
class Task:
    """Everything about a run that does not change from round to round. Build it with `Task.build`."""

    federation: Federation
    training: Training
    modules: Mapping[Mode, nn.Module]  # one structure a mode, all with the same tensors
    layout: Layout  # of the shared parameters
    personal: Layout  # parameters that the server mixes for each client
    private: frozenset[str]  # parameters that stay with the client
    policies: Mapping[str, BufferPolicy]  # of every buffer
    noise: Mapping[str, tuple[int, ...]]  # where the model takes noise, and its shape for one sample
    noise_in_evaluation: frozenset[str]
    initial_params: Tensors
    initial_buffers: Tensors
    batch_statistics: bool  # training mixes the samples of a batch: no padding
    device: torch.device
    notes: tuple[str, ...] = ()  # what a reader of the results should know

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
    ) -> Task:
        """Wrap the model as the method asks, and sort its tensors into shared, personal and private ones."""
        if method.pooled:
            federation = federation.pooled()
        network = _built(model or federation.protocol.model, federation, seed)
        network = hand_in_noise(network)
        example = federation.example()
        classes = len(federation.classes)
        wraps = sorted(method.wrap, key=lambda wrap: wrap.order)
        for wrap in wraps:
            network = _wrapped(network, wrap, classes, example, seed)
        _check_outputs(network, example, classes)
        marks: dict[str, Mark] = {}
        for wrap in wraps:  # what one wrap keeps private, another does not make personal
            marks |= {n: mark for n, mark in wrap.marks(network).items() if marks.get(n) != "private"}
        noise = _noise_shapes(network, example)
        params = {name: value.detach().clone() for name, value in network.named_parameters()}
        values = {name: b.detach().clone() for name, b in network.named_buffers() if name not in noise}
        private = frozenset(name for name in params if marks.get(name) == "private")
        policies = {n: "local" if n in marks else _policy(n, buffers) for n in values}
        settings = (training or federation.protocol.training).demanded(method.training)
        place = torch.device(device)
        return cls(
            federation
            if place.type == "cpu"
            else replace(federation, x=federation.x.to(place), y=federation.y.to(place)),
            settings,
            _modes(network.to(place), policies),
            Layout.of({name: value for name, value in params.items() if name not in marks}),
            Layout.of({name: value for name, value in params.items() if marks.get(name) == "personal"}),
            private,
            policies,
            noise,
            frozenset(
                f"{n}.draws"
                for n, module in network.named_modules()
                if isinstance(module, Noise) and module.in_evaluation
            ),
            {name: value.to(place) for name, value in params.items()},
            {name: value.to(place) for name, value in values.items()},
            any(isinstance(module, _BatchNorm) for module in network.modules()),
            place,
            tuple(note for wrap in wraps if (note := wrap.note(network))),
        )

    # ------------------------------------------------------------------ facts
    @property
    def classes(self) -> int:
        return len(self.federation.classes)

    @property
    def evaluates_in_batches(self) -> bool:
        """Whether evaluation, too, mixes the samples of a batch (buffers that are dropped)."""
        return "drop" in self.policies.values()

    def setting(self, rounds: int, seed: int) -> Setting:
        """The facts that the server's parts may ask for."""
        return Setting(
            rounds=rounds,
            num_clients=len(self.federation),
            num_classes=self.classes,
            num_domains=len(self.federation.domains),
            total_samples=self.federation.total_samples,
            lr=self.training.lr,
            layout=self.layout,
            seed=seed,
            personal=self.personal,
        )

    def server(self) -> Server:
        """The server before the first round."""
        return Server(self.layout.join(self.initial_params), dict(self.initial_buffers))

    # ------------------------------------------------------------------ the model as a function
    def forward(
        self, params: Tensors, buffers: Tensors, x: Tensor, mode: Mode = "eval", noise: Tensors | None = None
    ) -> tuple[Outputs, Tensors]:
        """Outputs, and the buffers after the pass. The arguments are left as they are."""
        if mode == "train" or self.evaluates_in_batches:
            buffers = {name: value.clone() for name, value in buffers.items()}
        outputs: Outputs = functional_call(self.modules[mode], {**params, **buffers, **(noise or {})}, (x,))
        return outputs, buffers

    def apply(self, params: Tensors, buffers: Tensors, x: Tensor) -> Outputs:
        """Outputs in eval mode. A model that takes noise even there gets the same draws for every batch."""
        noise = {
            name: seeds.uniform((x.shape[0], *self.noise[name]), "evaluation", name).to(x.device)
            for name in self.noise_in_evaluation
        }
        return self.forward(params, buffers, x, "eval", noise)[0]

    # ------------------------------------------------------------------ data
    def chunks(self, samples: Samples) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Prepared samples, their labels and which of them are real, a bounded number at a time."""
        for start in range(0, samples.positions.shape[0], EVALUATION_BATCH):
            some = slice(start, start + EVALUATION_BATCH)
            index = samples.positions[some]
            x = self.federation.preparation.evaluation(self.federation.x[index])
            yield x, self.federation.y[index], None if samples.valid is None else samples.valid[some]

    @torch.no_grad()
    def scores(self, params: Tensors, buffers: Tensors, index: Tensor, personal: bool = False) -> dict[str, Tensor]:
        """For each sample: its `loss`, whether it was `accuracy` 1 or 0, and the same for every extra view of the model.

        Where a wrap keeps a personal model beside the global one, `personal` scores that.
        """
        found: dict[str, list[Tensor]] = {}
        for x, y, _ in self.chunks(Samples(index, None)):
            out = self.apply(params, buffers, x)
            main = out.extra.get(PERSONAL_LOGITS, out.logits) if personal else out.logits
            views = {"accuracy": main} | {
                f"accuracy of {name.removeprefix('view ')}": logits
                for name, logits in out.extra.items()
                if name.startswith("view ")
            }
            for name, logits in views.items():
                found.setdefault(name, []).append((logits.argmax(1) == y).float())
            found.setdefault("loss", []).append(F.cross_entropy(main, y, reduction="none"))
        return {name: torch.cat(values) for name, values in found.items()}


def _built(model: ModelSource, federation: Federation, seed: int) -> nn.Module:
    if isinstance(model, str):
        return build_model(model, federation.input_shape, len(federation.classes), seed)
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    return seeds.initialised(model, seed, "model")


def _wrapped(network: nn.Module, wrap: Wrap, classes: int, example: Tensor, seed: int) -> nn.Module:
    return seeds.initialised(lambda: wrap(network, classes, example), seed, "wrap", wrap.key)


def _check_outputs(network: nn.Module, example: Tensor, classes: int) -> None:
    with torch.no_grad():
        out = copy.deepcopy(network).eval()(example)
    kind = type(network).__name__
    if not isinstance(out, Outputs):
        raise EquipoiseError(
            f"Model `{kind}` must return equipoise.Outputs(logits, features). Found {type(out).__name__}: "
            "wrap it with equipoise.models.adapt(model)."
        )
    if tuple(out.logits.shape) != (len(example), classes):
        raise EquipoiseError(
            f"Model `{kind}` must return logits [batch, {classes}], one per class. Found {list(out.logits.shape)} for a "
            f"batch of {len(example)}: check the width of its last layer."
        )


def _noise_shapes(network: nn.Module, example: Tensor) -> dict[str, tuple[int, ...]]:
    """Run the model once, so that its places of noise learn their shapes."""
    places = {name: module for name, module in network.named_modules() if isinstance(module, Noise)}
    if places:
        trial = copy.deepcopy(network).train()
        with torch.no_grad():
            trial(example)
        found = {name: module.shape for name, module in trial.named_modules() if isinstance(module, Noise)}
        return {f"{name}.draws" if name else "draws": found[name] for name in places}
    return {}


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
    """The same tensors in three structures: training, training on a single sample, evaluation."""
    tensors = {id(t): t for t in (*network.parameters(), *network.buffers())}
    train, single, evaluation = (copy.deepcopy(network, dict(tensors)) for _ in range(3))
    train.train()
    single.train()
    evaluation.eval()
    for module in single.modules():
        if isinstance(module, _BatchNorm):
            module.eval()  # one sample has no statistics: use the running ones
    for name, module in evaluation.named_modules():
        if isinstance(module, _BatchNorm) and policies.get(f"{name}.running_mean".lstrip(".")) == "drop":
            module.train()  # no running statistics: use those of the batch
    return {"train": train, "single": single, "eval": evaluation}


def stacked(tensors: Tensors, count: int) -> Tensors:
    """The same tensors for each of `count` clients, without copying them."""
    return {name: value.expand(count, *value.shape) for name, value in tensors.items()}


def together(each: Sequence[Tensors]) -> Tensors:
    """Tensors of several clients with a leading client axis."""
    return {name: torch.stack([one[name] for one in each]) for name in each[0]} if each else {}
