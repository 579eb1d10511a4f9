"""FedProto: features are pulled towards global class prototypes. Tan et al., AAAI 2022.

In the paper clients exchange prototypes only. Here, as in the domain-skew benchmarks, models are averaged as well, and
the classifier of the global model is scored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from equipoise.method import Method, Range, Round, Sent, State, register, require
from equipoise.parts.prototypes import ClassMeans, MeanPrototypes, ToPrototype


@dataclass(frozen=True)
class ScalarPrototypes(MeanPrototypes, by_columns=()):
    """Prototypes in which all entries are replaced by their mean, as in the code of a public benchmark."""

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        means = round.reports["prototypes"]
        flat = {**round.reports, "prototypes": means.mean(-1, keepdim=True).expand_as(means)}
        return super().__call__(replace(round, reports=flat), theta, state)


@register(
    title="Features pulled towards global class prototypes",
    reference="Tan et al., FedProto: federated prototype learning across heterogeneous clients, AAAI 2022",
    ranges={"lam": Range(0.01, 5.0, log=True)},
    side="client",
)
def fedproto(
    lam: float = 1.0,
    average: Literal["owners", "counts"] = "owners",
    variant: Literal["paper", "released"] = "paper",
) -> Method:
    """Adds `lam/F ||feature - prototype of the class||^2` to the local loss, for features with F entries.

    `lam=0` is FedAvg. `average` says how the clients' prototypes are averaged: all clients that have samples of the
    class count equally, as in the authors' code, or by these samples, as in the paper's formula. `variant="released"`
    repeats an error in the code of a public benchmark, where all entries of a prototype are the same number.
    """
    require(lam >= 0, "lam", "at least 0", lam)
    share = ScalarPrototypes(average) if variant == "released" else MeanPrototypes(average)
    return Method(terms=(ToPrototype(lam),), reports=(ClassMeans(),), share=(share,))
