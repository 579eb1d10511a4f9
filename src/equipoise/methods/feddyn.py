"""FedDyn: a linear and a quadratic local term align the clients' optima with the global one. Acar et al., ICLR 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.method import (
    Beginning,
    ClientState,
    Method,
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
    """`-<g_k, x>`, by its gradient; after the round `g_k <- g_k - alpha (x - theta)`."""

    alpha: float

    def start(self, beginning: Beginning) -> list[Tensors]:
        zero = torch.zeros_like(beginning.received.layout.join(beginning.received.params))
        return [{"gradient": zero} for _ in beginning.clients]

    def force(self, received: Received, states: ClientState) -> Tensors:
        return received.layout.split(-states[self.key]["gradient"])

    def finish(self, trained: Trained) -> Tensors:
        moved = trained.layout.join(trained.params) - trained.layout.join(trained.received.params)
        return {"gradient": trained.states[self.key]["gradient"] - self.alpha * moved}


@dataclass(frozen=True)
class DriftCorrection(Step):
    """`theta <- mean of local models - h / alpha` with `h <- h - alpha/N sum of updates`.

    Kept as `-h / alpha`, the sum of all updates over N, in which alpha does not occur.
    """

    evaluate: Literal["mean", "server"] = "mean"

    @property
    def scored_iterate(self) -> str | None:
        return "mean of the local models" if self.evaluate == "mean" else None

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        moved = round.reported.sum(0) / round.known("num_clients", "feddyn")
        drift = state.tensor("drift", torch.zeros_like(moved)) + moved
        mean = round.theta + direction if self.evaluate == "mean" else None
        return Stepped(direction + drift, {"drift": drift}, mean)


@register(
    title="Local terms that align the clients' optima with the global one",
    reference="Acar et al., Federated learning based on dynamic regularization, ICLR 2021",
)
def feddyn(
    alpha: float = 0.01,
    clip: float | None = 10.0,
    evaluate: Literal["mean", "server"] = "mean",
    variant: Literal["paper", "released"] = "paper",
) -> Method:
    """`clip` bounds the gradient's norm, as the authors' code does. `evaluate` says which model is scored: the mean of the
    local models, or the server's, which reaches beyond it. `variant="released"` is what the domain-skew benchmarks' public
    code amounts to: its regulariser has no gradient, so it is FedAvg."""
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
