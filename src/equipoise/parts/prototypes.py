"""Class prototypes: what clients report, what the server remembers and sends down, and the pull towards them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.roles import Report, Share, Term
from equipoise.types import Local, Remembered, Round, Sent, State, Tensors, Trained

LAST_PROTOTYPES = "its last prototypes"  # what parts that use `last_prototypes` remember of a client


def class_means(trained: Trained) -> tuple[Tensor, Tensor]:
    """Mean feature of each class `[C, F]` (zero where the client has none) and the samples behind it `[C]`: the trained
    model in eval mode on the whole training data."""
    sums, counts = torch.zeros(()), torch.zeros(())
    for x, y, valid in trained.chunks(trained.train):
        features = trained.apply(trained.params, trained.buffers, x).features
        member = F.one_hot(y, trained.classes).to(features.dtype)
        member = member if valid is None else member * valid[:, None]
        sums, counts = sums + member.mT @ features, counts + member.sum(0)
    return sums / counts.clamp(min=1)[:, None], counts


@dataclass(frozen=True)
class ClassMeans(Report, gives=("prototypes", "prototype_counts")):
    """`prototypes` and `prototype_counts`."""

    def __call__(self, trained: Trained) -> Tensors:
        means, counts = class_means(trained)
        return {"prototypes": means, "prototype_counts": counts}


def last_prototypes(round: Round, state: State) -> tuple[Tensor, Tensor, Remembered]:
    """Prototypes `[n, C, F]` and counts `[n, C]` of all clients seen so far, each as it last reported them."""
    means = state.rows("prototypes").put(round.clients, round.reports["prototypes"])
    counts = state.rows("counts").put(round.clients, round.reports["prototype_counts"])
    return means.take(means), counts.take(counts), {"prototypes": means, "counts": counts}


def mean_prototypes(prototypes: Tensor, counts: Tensor, by: Literal["owners", "counts"] = "owners") -> Tensor:
    """One prototype per class `[C, F]`: the mean over its owners, each alike or by its number of samples."""
    weights = counts if by == "counts" else (counts > 0).to(counts.dtype)
    return torch.einsum("nc,ncf->cf", weights, prototypes) / weights.sum(0).clamp(min=1)[:, None]


@dataclass(frozen=True)
class PrototypeShare(
    Share, needs=("prototypes", "prototype_counts"), gives=("shared prototypes",), remembers=LAST_PROTOTYPES
):
    """Sends down one prototype per class (`prototypes [C, F]`), and which of them exist (`prototype_known [C]`)."""

    reads_updates: ClassVar[bool] = False


@dataclass(frozen=True)
class MeanPrototypes(PrototypeShare):
    """The mean over the clients that own the class."""

    by: Literal["owners", "counts"] = "owners"

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        prototypes, counts, memory = last_prototypes(round, state)
        known = (counts.sum(0) > 0).to(prototypes.dtype)
        return Sent({"prototypes": mean_prototypes(prototypes, counts, self.by), "prototype_known": known}, memory)


@dataclass(frozen=True)
class ToPrototype(Term, needs=("shared prototypes",)):
    """`lam` times the mean square, over the feature's entries, of its distance from the prototype of its class.

    Nothing for a class without a prototype, and nothing in the first round, when there are none.
    """

    lam: float

    def loss(self, local: Local) -> Tensor | None:
        shared = local.received.shared
        if "prototypes" not in shared or not self.lam:
            return None
        error = (local.out.features - shared["prototypes"][local.y]).square().mean(1)
        return self.lam * shared["prototype_known"][local.y] * error
