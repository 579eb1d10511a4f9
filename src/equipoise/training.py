"""The settings of local training: the optimizer, and how long a client trains in each round."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.grammar import Mistakes, Value, did_you_mean, fit_to_type, require
from equipoise.schedules import CONSTANT, Rate

# Optimizers that treat every entry by itself, so that the tensors of many clients can be stacked into one.
ELEMENTWISE = frozenset(
    {"SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "ASGD", "Rprop"}
)


@dataclass(frozen=True)
class Training:
    """The settings of local training. Every client begins each round with a fresh optimizer."""

    epochs: int = 1  # passes over the client's data per round
    steps: int | None = None  # optimizer steps per round; when given, it takes the place of `epochs`
    batch: int | None = 32  # samples per step; None: all of the client's samples
    lr: float = 0.01  # learning rate, which `schedule` changes over rounds
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "SGD"  # the name of a class in torch.optim
    clip: float | None = None  # upper bound on the norm of a client's gradient; None: no bound
    schedule: str = CONSTANT  # the learning rate over rounds, such as "warmup(rounds=5) + cosine": see `schedules.py`

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "epochs", "at least 1", self.epochs)
        require(self.steps is None or self.steps >= 1, "steps", "at least 1, or None", self.steps)
        require(self.batch is None or self.batch >= 1, "batch", "at least 1, or None for the full batch", self.batch)
        require(self.lr > 0, "lr", "above 0", self.lr)
        object.__setattr__(self, "schedule", self.rate.schedule)  # as text that is written in one way
        require(0 <= self.momentum < 1, "momentum", "at least 0 and below 1", self.momentum)
        require(self.weight_decay >= 0, "weight_decay", "at least 0", self.weight_decay)
        require(self.clip is None or self.clip > 0, "clip", "above 0, or None", self.clip)
        known = list_optimizers()
        if self.optimizer not in known:
            exact = {name.lower(): name for name in known}.get(self.optimizer.lower())
            if exact is None:
                raise EquipoiseError(f"torch.optim has no `{self.optimizer}`.{did_you_mean(self.optimizer, known)}")
            object.__setattr__(self, "optimizer", exact)
        if self.momentum and not has_momentum(self.optimizer):
            raise EquipoiseError(f"{self.optimizer} has no momentum. Found momentum={self.momentum}: set it to 0.")

    def change(self, changes: Mapping[str, Value]) -> Training:
        """The settings with some of them changed. A momentum that the new optimizer does not know is dropped, unless it
        is among the changes.

        >>> Training(momentum=0.9).change({"optimizer": "AdamW"}).momentum
        0.0
        """
        other = replace(self, momentum=0.0, **{n: v for n, v in changes.items() if n != "momentum"})  # type: ignore[arg-type]
        kept = self.momentum if has_momentum(other.optimizer) else 0.0
        return replace(other, momentum=changes.get("momentum", kept))  # type: ignore[arg-type]

    def change_as_demanded(self, demands: Iterable[tuple[str, Value]]) -> Training:
        """The settings with those that a method demands (FedSGD: one full-batch step) put in their place."""
        return replace(self, **dict(demands))  # type: ignore[arg-type]

    @property
    def rate(self) -> Rate:
        """The learning rate over rounds."""
        return Rate(self.lr, self.schedule)

    def describe(self) -> dict[str, Any]:
        """The settings by name. A schedule that changes nothing is left out, so that records stay as they were without."""
        found = asdict(self)
        if self.rate.is_constant:
            del found["schedule"]
        return found

    @property
    def is_plain_sgd(self) -> bool:
        """Whether the optimizer is stochastic gradient descent, with or without momentum."""
        return self.optimizer == "SGD"

    @property
    def stacks(self) -> bool:
        """Whether the optimizer can run on the stacked tensors of many clients."""
        return self.optimizer in ELEMENTWISE

    def check_with(self, params: Mapping[str, Tensor]) -> None:
        """Raise an error if the optimizer cannot train these parameters (Muon, for example, takes matrices only)."""
        try:
            self.build_optimizer(
                [value.detach()[None].requires_grad_() for value in params.values()] or [torch.zeros(1)]
            )
        except (ValueError, TypeError) as error:
            raise EquipoiseError(f"{self.optimizer} cannot train this model: {error}") from None

    def build_optimizer(self, tensors: Iterable[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimizer of these tensors with these settings."""
        kind = list_optimizers()[self.optimizer]
        options: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        accepted = inspect.signature(kind).parameters
        if self.momentum:
            options["momentum"] = self.momentum
        return kind(tensors, **{name: value for name, value in options.items() if name in accepted})


def has_momentum(optimizer: str) -> bool:
    """Whether an optimizer of torch has a setting `momentum`."""
    return "momentum" in inspect.signature(list_optimizers()[optimizer]).parameters


@functools.cache
def list_optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """The optimizers of torch that need only gradients, by name."""
    return {
        name: kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind)
        and issubclass(kind, torch.optim.Optimizer)
        and kind is not torch.optim.Optimizer
        and name not in {"LBFGS", "SparseAdam"}
    }


def check_training_changes(
    given: Mapping[str, object], mistakes: Mistakes, place: Callable[[str], str] = lambda _: ""
) -> dict[str, Any]:
    """The settings in `given` that are valid, converted to their types; what is wrong is noted in `mistakes`.

    Each setting is checked by itself; `place(name)` says where the user wrote it.
    """
    hints, names, found = get_type_hints(Training), [one.name for one in fields(Training)], {}
    for name, value in given.items():
        with mistakes.noted(place(name)):
            if name not in names:
                known = ", ".join(names)
                raise EquipoiseError(f"A training has no `{name}`.{did_you_mean(name, names)} Known: {known}.")
            optional = type(None) in get_args(hints[name])
            wanted = None if value == "full" and optional else fit_to_type(value, hints[name], name)
            Training(**{name: wanted})  # type: ignore[arg-type]
            found[name] = wanted
    if "epochs" in found and "steps" not in found:
        found["steps"] = None  # otherwise the data set's own number of steps would win
    return found
