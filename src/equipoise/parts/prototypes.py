"""Class prototypes, the mean features per class: reported by clients, combined by the server, used in a local loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.roles import Report, Share, Term
from equipoise.types import Local, Remembered, Round, Sent, State, Tensors, Trained

LAST_PROTOTYPES = "its last prototypes"  # `Part.remembers` of parts that use `last_prototypes`


def class_means(trained: Trained) -> tuple[Tensor, Tensor]:
    """The client's mean feature per class `[C, F]`, and the number of samples behind each `[C]`.

    They are those of the trained model, in eval mode, on all training data. The mean is zero where a client has no
    sample.
    """
    sums, counts = torch.zeros(()), torch.zeros(())
    for x, y, valid in trained.chunks(trained.train):
        features = trained.apply(trained.params, trained.buffers, x).features
        member = F.one_hot(y, trained.classes).to(features.dtype)
        member = member if valid is None else member * valid[:, None]
        sums, counts = sums + member.mT @ features, counts + member.sum(0)
    return sums / counts.clamp(min=1)[:, None], counts


@dataclass(frozen=True)
class ClassMeans(Report, gives=("prototypes", "prototype_counts"), needs=("classes",)):
    """Reports `prototypes [C, F]`, the mean feature per class, and `prototype_counts [C]`, the samples behind them."""

    def __call__(self, trained: Trained) -> Tensors:
        means, counts = class_means(trained)
        return {"prototypes": means, "prototype_counts": counts}


def last_prototypes(round: Round, state: State) -> tuple[Tensor, Tensor, Remembered]:
    """The last prototypes `[n, C, F]` and counts `[n, C]` of all n clients that ever took part, and the next state."""
    means = state.rows("prototypes").put(round.clients, round.reports["prototypes"])
    counts = state.rows("counts").put(round.clients, round.reports["prototype_counts"])
    return means.take(means), counts.take(counts), {"prototypes": means, "counts": counts}


def mean_prototypes(prototypes: Tensor, counts: Tensor, by: Literal["owners", "counts"] = "owners") -> Tensor:
    """One prototype per class `[C, F]`: the mean over the clients that have samples of the class.

    They count equally (`by="owners"`), or by their number of samples of the class (`by="counts"`).
    """
    weights = counts if by == "counts" else (counts > 0).to(counts.dtype)
    return torch.einsum("nc,ncf->cf", weights, prototypes) / weights.sum(0).clamp(min=1)[:, None]


@dataclass(frozen=True)
class PrototypeShare(
    Share, needs=("prototypes", "prototype_counts"), gives=("shared prototypes",), remembers=LAST_PROTOTYPES
):
    """The base of parts that send one prototype per class to the clients.

    They send `prototypes [C, F]`, and `prototype_known [C]`, which is 1 for the classes that have a prototype.
    """

    reads_updates: ClassVar[bool] = False


@dataclass(frozen=True)
class MeanPrototypes(PrototypeShare, by_columns=()):
    """Sends, for each class, the mean of the last prototypes of the clients that have samples of it."""

    by: Literal["owners", "counts"] = "owners"  # whether these clients count equally, or by their samples of the class

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        prototypes, counts, memory = last_prototypes(round, state)
        known = (counts.sum(0) > 0).to(prototypes.dtype)
        return Sent({"prototypes": mean_prototypes(prototypes, counts, self.by), "prototype_known": known}, memory)


@dataclass(frozen=True)
class ToPrototype(Term, needs=("shared prototypes",)):
    """Adds `lam/F ||feature - prototype of the class||^2` to the loss of each sample, for features with F entries.

    It is zero for a class without a prototype, and in the first round, when there are none.
    """

    lam: float  # weight of the term

    def loss(self, local: Local) -> Tensor | None:
        """The weighted squared distances `[batch]`; None in the first round."""
        shared = local.received.shared
        if "prototypes" not in shared or not self.lam:
            return None
        error = (local.out.features - shared["prototypes"][local.y]).square().mean(1)
        return self.lam * shared["prototype_known"][local.y] * error
