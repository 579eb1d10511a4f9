"""Edits of the direction before it is added to the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.roles import Step
from equipoise.types import Round, State, Stepped


@dataclass(frozen=True)
class ServerRate(Step):
    """The direction times a server learning rate."""

    reads_updates: ClassVar[bool] = False

    rate: float

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        return Stepped(direction * self.rate)


@dataclass(frozen=True)
class LengthOfMean(Step):
    """The direction, rescaled to the length of the plain mean of the updates as they came (FedFV).

    Opposite updates project each other to nothing (but for rounding); then the plain mean itself is taken.
    """

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        mean = round.reported.mean(0)
        length, wanted = direction.norm(), mean.norm()
        return Stepped(direction * (wanted / length) if length > 1e-6 * wanted else mean)
