"""Optimizers of the server: they treat the direction as a gradient, and can be added to any method.

They change parameters only. Averaged buffers that a `shape` part sends through the rule (`Shape.includes_buffers`) are
left as they are. A round without answers does not call them, so that it leaves their moments alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise.roles import Step
from equipoise.schedules import Rate
from equipoise.types import Remembered, Round, State, Stepped


@dataclass(frozen=True)
class ServerOptimizer(Step):
    """What the optimizers of the server share: a rate over rounds, and that only parameters are changed."""

    reads_updates: ClassVar[bool] = False
    comes_last: ClassVar[int] = 1  # other steps make the direction, which it then takes for a gradient

    rate: Rate  # the server learning rate

    def move(self, direction: Tensor, state: State) -> tuple[Tensor, Remembered]:
        """The step `[G]` of the parameters before it is multiplied by the rate, and the moments to keep."""
        raise NotImplementedError

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        constant, size = self.rate.is_constant, round.parameters.stop
        rounds = 0 if constant else int(round.known("rounds", f"the schedule `{self.rate.schedule}`"))
        rate = self.rate.at(round.round, rounds)
        moved, kept = self.move(direction[:size], state)
        step = rate * moved
        whole = step if size == len(direction) else torch.cat([step, direction[size:]])
        return Stepped(
            whole, kept, figures={} if constant else {"server rate": torch.tensor(rate, dtype=torch.float64)}
        )


@dataclass(frozen=True)
class ServerMomentum(ServerOptimizer, by_columns=("moment",)):
    """Momentum: `b <- beta b + D`, and the model moves by `rate * b`, for the direction `D`.

    With `nesterov` it moves by `rate * (D + beta b)`. With `damped` everything is multiplied by `1 - beta`, which is the
    form `b <- beta b + (1 - beta) D`.
    """

    beta: float  # how much of the moment before is kept
    nesterov: bool = False  # look ahead along the moment
    damped: bool = False  # multiply by 1 - beta, so that the step keeps its length

    def move(self, direction: Tensor, state: State) -> tuple[Tensor, Remembered]:
        """The moment, or the direction and the moment ahead of it."""
        if self.beta == 0:
            return direction, {}
        gain = 1 - self.beta if self.damped else 1.0
        pushed = gain * direction
        moment = pushed.add(state.tensor("moment"), alpha=self.beta) if "moment" in state else pushed
        return pushed.add(moment, alpha=self.beta) if self.nesterov else moment, {"moment": moment}


@dataclass(frozen=True)
class AdaptiveStep(ServerOptimizer, by_columns=("v", "m")):
    """Steps of a length of their own in each coordinate: `rate * m / (sqrt(v) + tau)`, without bias correction.

    `m <- beta1 m + (1 - beta1) D` for the direction `D`. Adam: `v <- beta2 v + (1 - beta2) D^2`; Yogi:
    `v <- v - (1 - beta2) D^2 sign(v - D^2)`; Adagrad: `v <- v + D^2`.
    """

    rule: Literal["adam", "yogi", "adagrad"]
    beta1: float  # how much of the mean of directions before is kept
    beta2: float  # the same for the mean of their squares; Adagrad has none
    tau: float  # added to the root: the larger, the less the coordinates' steps differ from those of momentum
    first: float  # v before the first round

    def move(self, direction: Tensor, state: State) -> tuple[Tensor, Remembered]:
        """`m / (sqrt(v) + tau)`, after both have been brought up to date."""
        past = state.tensor("v") if "v" in state else torch.full_like(direction, self.first)
        squares, share = direction.square(), 1 - self.beta2
        match self.rule:
            case "adam":
                v = torch.lerp(past, squares, share)
            case "yogi":
                v = past - share * squares * torch.sign(past - squares)
            case "adagrad":
                v = squares.add_(past)
        kept: dict[str, Tensor] = {"v": v}
        mean = direction
        if self.beta1:  # otherwise the mean is the direction itself, and need not be kept
            mean = (1 - self.beta1) * direction
            mean = mean.add_(state.tensor("m"), alpha=self.beta1) if "m" in state else mean
            kept["m"] = mean
        return mean / v.sqrt().add_(self.tau), kept
