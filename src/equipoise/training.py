"""How a client trains between two messages."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from equipoise.grammar import Value, did_you_mean, require
from equipoise.types import EquipoiseError

# Optimisers that treat every entry by itself, so that the tensors of many clients can be stacked into one.
ELEMENTWISE = frozenset(
    {"SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "ASGD", "Rprop"}
)


@dataclass(frozen=True)
class Training:
    """Local training: a fresh optimiser each round, over `epochs` of the data or over a number of `steps`."""

    epochs: int = 1
    steps: int | None = None  # when given, it counts instead of the epochs
    batch: int | None = 32  # None: the full batch
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "SGD"  # any class of torch.optim
    clip: float | None = None  # largest norm of a client's gradient

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "epochs", "at least 1", self.epochs)
        require(self.steps is None or self.steps >= 1, "steps", "at least 1, or None", self.steps)
        require(self.batch is None or self.batch >= 1, "batch", "at least 1, or None for the full batch", self.batch)
        require(self.lr > 0, "lr", "above 0", self.lr)
        require(0 <= self.momentum < 1, "momentum", "at least 0 and below 1", self.momentum)
        require(self.weight_decay >= 0, "weight_decay", "at least 0", self.weight_decay)
        require(self.clip is None or self.clip > 0, "clip", "above 0, or None", self.clip)
        known = optimisers()
        if self.optimizer not in known:
            exact = {name.lower(): name for name in known}.get(self.optimizer.lower())
            if exact is None:
                raise EquipoiseError(f"torch.optim has no `{self.optimizer}`.{did_you_mean(self.optimizer, known)}")
            object.__setattr__(self, "optimizer", exact)
        if self.momentum and "momentum" not in inspect.signature(known[self.optimizer]).parameters:
            raise EquipoiseError(f"{self.optimizer} has no momentum. Found momentum={self.momentum}: set it to 0.")

    def demanded(self, demands: Iterable[tuple[str, Value]]) -> Training:
        """With what a method demands (FedSGD: one full-batch step)."""
        return replace(self, **dict(demands))  # type: ignore[arg-type]

    @property
    def plain(self) -> bool:
        """Stochastic gradient descent, with momentum or without."""
        return self.optimizer == "SGD"

    @property
    def stacks(self) -> bool:
        """Whether the optimiser can run on the stacked tensors of many clients."""
        return self.optimizer in ELEMENTWISE

    def check_with(self, params: Mapping[str, Tensor]) -> None:
        """Refuse an optimiser that cannot train these parameters (Muon wants matrices only)."""
        try:
            self.optimiser([value.detach()[None].requires_grad_() for value in params.values()] or [torch.zeros(1)])
        except (ValueError, TypeError) as error:
            raise EquipoiseError(f"{self.optimizer} cannot train this model: {error}") from None

    def optimiser(self, tensors: Iterable[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimiser of these settings."""
        kind = optimisers()[self.optimizer]
        options: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        accepted = inspect.signature(kind).parameters
        if self.momentum:
            options["momentum"] = self.momentum
        return kind(tensors, **{name: value for name, value in options.items() if name in accepted})


@functools.cache
def optimisers() -> dict[str, type[torch.optim.Optimizer]]:
    """The optimisers of torch that need nothing but gradients."""
    return {
        name: kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind)
        and issubclass(kind, torch.optim.Optimizer)
        and kind is not torch.optim.Optimizer
        and name not in {"LBFGS", "SparseAdam"}
    }
