"""FedDyn, dynamic regularisation: a linear and a quadratic local term align the clients' optima with the global one.

Acar et al., ICLR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.method import (
    Beginning,
    ClientState,
    Method,
    Range,
    Received,
    Round,
    State,
    Step,
    Stepped,
    Tensors,
    Term,
    Trained,
    register,
    require,
)
from equipoise.parts.terms import Proximal
from equipoise.parts.weights import Uniform


@dataclass(frozen=True)
class LinearTerm(Term):
    """Adds `-<g_k, x>` to the local loss, by its gradient `-g_k`. After the round `g_k <- g_k - alpha (x - theta)`."""

    alpha: float  # strength of the regularisation

    def start(self, beginning: Beginning) -> list[Tensors]:
        """`g_k = 0` for every client."""
        zero = torch.zeros_like(beginning.received.layout.join(beginning.received.params))
        return [{"gradient": zero} for _ in beginning.clients]

    def force(self, received: Received, states: ClientState) -> Tensors:
        """The gradient `-g_k` of the term."""
        return received.layout.split(-states[self.key]["gradient"])

    def finish(self, trained: Trained) -> Tensors:
        """The next `g_k`."""
        moved = trained.layout.join(trained.params) - trained.layout.join(trained.received.params)
        return {"gradient": trained.states[self.key]["gradient"] - self.alpha * moved}


@dataclass(frozen=True)
class DriftCorrection(Step, by_columns=("drift",)):
    """`theta <- mean of local models - h / alpha`, after `h <- h - alpha/N * sum of the updates`, for N clients.

    The state is `-h / alpha`: the sum of all updates so far, divided by N. It does not depend on alpha.
    """

    evaluate: Literal["mean", "server"] = "mean"  # which model is scored: the mean of the local models, or theta

    @property
    def scored_iterate(self) -> str | None:
        """The scored model in words, if it is not theta."""
        return "mean of the local models" if self.evaluate == "mean" else None

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        moved = round.reported.sum(0) / round.known("num_clients", "feddyn")
        drift = state.tensor("drift", torch.zeros_like(moved)) + moved
        mean = round.theta + direction if self.evaluate == "mean" else None
        return Stepped(direction + drift, {"drift": drift}, mean)


@register(
    title="Local terms that align the clients' optima with the global one",
    reference="Acar et al., Federated learning based on dynamic regularization, ICLR 2021",
    ranges={"alpha": Range(0.001, 0.3, log=True)},
    side="client",
)
def feddyn(
    alpha: float = 0.01,
    clip: float | None = 10.0,
    evaluate: Literal["mean", "server"] = "mean",
    variant: Literal["paper", "released"] = "paper",
) -> Method:
    """Local losses get the terms `-<g_k, x> + alpha/2 ||x - theta||^2`, which align local optima with the global one.

    `alpha` is the strength of these terms. `clip` bounds the norm of the gradient, as in the authors' code. `evaluate`
    says which model is scored: the mean of the local models, or the server's, which goes beyond that mean.
    `variant="released"` follows the public code of the domain-skew benchmarks, where the terms have no gradient: it is
    FedAvg.
    """
    require(alpha > 0, "alpha", "above 0", alpha)
    require(clip is None or clip > 0, "clip", "above 0, or None", clip)
    if variant == "released":
        return Method()
    return Method(
        terms=(Proximal(alpha), LinearTerm(alpha)),
        weigh=Uniform(),
        step=(DriftCorrection(evaluate),),
        training=(("clip", clip),) if clip is not None else (),
    )
