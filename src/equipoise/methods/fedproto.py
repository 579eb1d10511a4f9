"""FedProto: features are pulled towards global class prototypes. Tan et al., AAAI 2022.

In the original only prototypes travel. Here, as in the domain-skew benchmarks, models are averaged too, and the global
model's classifier is scored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from equipoise.method import Method, Round, Sent, State, register, require
from equipoise.parts.prototypes import ClassMeans, MeanPrototypes, ToPrototype


@dataclass(frozen=True)
class ScalarPrototypes(MeanPrototypes):
    """A prototype whose entries are all the mean of its entries, as a public benchmark's code computes it."""

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        means = round.reports["prototypes"]
        flat = {**round.reports, "prototypes": means.mean(-1, keepdim=True).expand_as(means)}
        return super().__call__(replace(round, reports=flat), theta, state)


@register(
    title="Features pulled towards global class prototypes",
    reference="Tan et al., FedProto: federated prototype learning across heterogeneous clients, AAAI 2022",
)
def fedproto(
    lam: float = 1.0,
    average: Literal["owners", "counts"] = "owners",
    variant: Literal["paper", "released"] = "paper",
) -> Method:
    """`lam=0` is FedAvg. `average` says how clients' prototypes become one: every owner alike (the authors' code), or by
    samples (the paper's formula). `variant="released"` repeats an error of a public benchmark's code, where a prototype
    is one number."""
    require(lam >= 0, "lam", "at least 0", lam)
    share = ScalarPrototypes(average) if variant == "released" else MeanPrototypes(average)
    return Method(terms=(ToPrototype(lam),), reports=(ClassMeans(),), share=(share,))
