"""FedNova: updates are divided by how far a client's steps could carry it. Wang et al., NeurIPS 2020.

A client that does more steps goes further, so that FedAvg minimises another objective than the one it says. FedNova
divides each update by its normaliser `a_k`, the sum of the weights with which the client's gradients enter the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from equipoise.grammar import Value
from equipoise.method import (
    EquipoiseError,
    Method,
    Part,
    Report,
    Round,
    State,
    Tensors,
    Trained,
    Weigh,
    Weighed,
    register,
    require,
)
from equipoise.parts.reports import LocalSteps, effective_steps
from equipoise.parts.terms import Proximal
from equipoise.parts.weights import shares


@dataclass(frozen=True)
class Normaliser(Report, gives=("normaliser",)):
    """Reports `normaliser`, `a_k`: the number of steps for plain SGD, and its like with momentum or a proximal term."""

    runs_model = False

    mu: float = 0.0  # weight of the proximal term

    def check_company(self, parts: Sequence[Part]) -> None:
        """It must know the proximal term of the method."""
        for part in parts:
            if isinstance(part, Proximal) and part.mu != self.mu:
                raise EquipoiseError(
                    f"fednova(mu={self.mu!r}) would divide updates wrongly beside a proximal term of weight {part.mu!r}: "
                    f"write fednova(mu={part.mu!r}), which has that term."
                )

    def __call__(self, trained: Trained) -> Tensors:
        steps = trained.steps.to(torch.get_default_dtype())
        if not self.mu:
            return {"normaliser": effective_steps(steps, trained.momentum)}
        pull = trained.lr * self.mu
        require(pull < 1, "mu", f"below 1 / lr = {1 / trained.lr:g}: beyond it the proximal term overshoots", self.mu)
        return {"normaliser": (1 - (1 - pull) ** steps) / pull}


@dataclass(frozen=True)
class NormalisedWeights(Weigh, needs=("samples", "steps", "normaliser"), by_columns=()):
    """The weights `p_k t / a_k`: shares `p_k` of the samples, normalisers `a_k`, and their mean `t = sum_j p_j a_j`.

    They do not sum to one. With a proximal term the mean is that of the steps.
    """

    by_steps: bool = False  # whether `t` is the mean number of steps instead

    @property
    def is_convex(self) -> bool:
        """False: the weights do not sum to one."""
        return False

    def __call__(self, round: Round, state: State) -> Weighed:
        share, a = shares(round.reports["samples"].double()), round.reports["normaliser"].double()
        length = (share * (round.reports["steps"].double() if self.by_steps else a)).sum()
        return Weighed(share * length / a, figures={"normaliser": a})


@register(
    title="Updates divided by how far a client's steps carry it",
    reference="Wang, Liu, Liang, Joshi, Poor, Tackling the objective inconsistency problem in heterogeneous federated "
    "optimization, NeurIPS 2020",
)
def fednova(mu: float = 0.0) -> Method:
    """The direction is `t sum_k p_k D_k / a_k`, with normalisers `a_k` of the updates `D_k`, and their mean `t`.

    So clients that do more steps do not pull the model further. The optimizer is SGD, with the run's momentum. `mu` is the
    weight of a proximal term; with one, clients train without momentum. With equal numbers of steps it is FedAvg.
    """
    require(mu >= 0, "mu", "at least 0", mu)
    demands: dict[str, Value] = {"optimizer": "SGD", **({"momentum": 0.0} if mu else {})}
    return Method(
        terms=(Proximal(mu),) if mu else (),
        reports=(LocalSteps(), Normaliser(mu)),
        weigh=NormalisedWeights(by_steps=mu > 0),
        training=tuple(demands.items()),
    )
