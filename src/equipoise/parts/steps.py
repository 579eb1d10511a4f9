"""Steps: edits of the direction before it is added to the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.roles import Step
from equipoise.types import Round, State, Stepped


@dataclass(frozen=True)
class ServerRate(Step, by_columns=()):
    """Multiplies the direction by a server learning rate."""

    reads_updates: ClassVar[bool] = False

    rate: float  # the server learning rate

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        return Stepped(direction * self.rate)


@dataclass(frozen=True)
class LengthOfMean(Step, by_columns=()):
    """Rescales the direction to the norm of the plain mean of the reported updates (FedFV).

    If projections have removed everything but rounding errors, as with two opposite updates, the plain mean itself is
    used.
    """

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        mean = round.reported.mean(0)
        length, wanted = round.columns.length(direction), round.columns.length(mean)
        return Stepped(direction * (wanted / length) if length > 1e-6 * wanted else mean)
