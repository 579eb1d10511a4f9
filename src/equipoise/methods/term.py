"""TERM, tilted empirical risk minimization: weights tilted towards large losses. Li et al., ICLR 2021."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from equipoise.method import Method, Range, Round, State, Weigh, Weighed, register, require
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.weights import shares


@dataclass(frozen=True)
class Tilted(Weigh, needs=("samples", "loss"), by_columns=()):
    """Weights proportional to `p_k exp(t F_k)`, with the client's share of samples `p_k` and its loss `F_k`."""

    t: float  # the tilt

    def __call__(self, round: Round, state: State) -> Weighed:
        loss = round.reports["loss"].double()
        usual = shares(round.reports["samples"].double())
        return Weighed(torch.softmax(usual.log() + self.t * loss, 0), figures={"loss": loss})


@register(
    title="Weights tilted towards large losses",
    reference="Li, Beirami, Sanjabi, Smith, Tilted empirical risk minimization, ICLR 2021",
    ranges={"t": Range(0.01, 5.0, log=True)},
    side="server",
)
def term(t: float = 0.1) -> Method:
    """Weights proportional to `p_k exp(t F_k)`, with shares of samples `p_k` and losses `F_k` of the received model.

    `t=0` is FedAvg; the larger `t`, the more the client with the largest loss counts.
    """
    require(t >= 0, "t", "at least 0", t)
    return Method(reports=(GlobalLoss(),), weigh=Tilted(t))
