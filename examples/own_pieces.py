"""A selection, a step, a schedule and a weighting of one's own, which `docs/new_method.md` explains."""

from dataclasses import dataclass

import torch

from equipoise.method import Method, Select, Selected, Step, Stepped, Weigh, Weighed, register, register_schedule
from equipoise.parts.gaps import LossGap
from equipoise.parts.reports import GlobalLoss


@dataclass(frozen=True)
class WidestGap(Select):
    asks = ("gap",)

    def __call__(self, turnout, state):
        gaps = dict(zip(turnout.candidates, turnout.reports["gap"].tolist(), strict=True))
        widest = sorted(gaps, key=gaps.get)[-turnout.places :]
        return Selected(widest, others="a smaller gap", values=gaps)


@register(title="The clients with the widest gaps take part", reference="an example")
def widest_gap(epochs: int = 20) -> Method:
    return Method(select=WidestGap(), reports=(LossGap(split="train", epochs=epochs),))


@dataclass(frozen=True)
class Nesterov(Step):
    beta: float
    reads_updates = False  # the sum of the updates is enough

    def __call__(self, round, direction, state):
        moment = direction + self.beta * state.tensor("moment", torch.zeros_like(direction))
        return Stepped(direction + self.beta * moment, {"moment": moment})


@register(title="Nesterov momentum at the server", reference="an example")
def nesterov(beta: float = 0.9) -> Method:
    return Method(step=(Nesterov(beta),))


@register_schedule
def gentle(round: int, rounds: int, warm: int = 3) -> float:
    """Grows evenly over `warm` rounds, and then falls with the root of the rounds."""
    return min((round + 1) / warm, (warm / (round + 1)) ** 0.5)


@dataclass(frozen=True)
class PowerShares(Weigh, needs=("loss",)):
    q: float

    def __call__(self, round, state):
        power = round.reports["loss"].double() ** self.q
        return Weighed(power / power.sum(), figures={"loss": round.reports["loss"]})


@register(title="Weights by a power of the loss, with sum one", reference="an example")
def qffl_shares(q: float = 1.0) -> Method:
    return Method(reports=(GlobalLoss(),), weigh=PowerShares(q))
