"""FedEquilibria: min-norm weights of the clients' Fisher diagonals, mixed with weights by the norm of the updates.

Anonymous authors, under review. Where the paper is unclear, it was read as follows. Its text and its algorithm give the
update opposite signs; here an update is the local minus the global model, and is added. The Fisher diagonal squares the
gradients of single samples, at the locally trained model and in eval mode. Only parameters count, not buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.method import Method, Range, Round, State, Weigh, Weighed, register, require
from equipoise.parts.fisher import Fisher
from equipoise.parts.minnorm import min_norm_weights
from equipoise.parts.weights import shares
from equipoise.updates import gram

COLLAPSED = 1.5  # a warning is given if the effective number of clients behind the min-norm weights is below this


@dataclass(frozen=True)
class Equilibrium(Weigh, by_columns=()):
    """The weights `w = t w_moo + (1 - t) w_dist` (equation 3).

    `w_moo` are the min-norm weights of the clients' Fisher diagonals; `w_dist` are the clients' shares of the norms of
    all updates.
    """

    t: float  # weight of `w_moo`
    moo: Literal["fisher", "update"] = "fisher"  # the vectors of the min-norm weights: Fisher diagonals, or updates
    fim_scale: Literal["none", "l2", "mean"] = "none"  # divisor of a Fisher diagonal: none, its norm, its mean

    @property
    def needs(self) -> tuple[str, ...]:
        """The Fisher diagonals, if they are used."""
        return ("fisher",) if self.moo == "fisher" and self.t > 0 else ()

    def __call__(self, round: Round, state: State) -> Weighed:
        drift = shares(round.updates.norms())  # equation 2
        if self.t == 0:
            return Weighed(drift, figures={"w_dist": drift})
        matrix = round.updates.gram if self.moo == "update" else self._fisher_gram(round)
        conflict = min_norm_weights(matrix)  # equation 1
        weights = self.t * conflict + (1 - self.t) * drift
        effective = 1 / conflict.square().sum()
        figures = {"w_moo": conflict, "w_dist": drift, "n_eff": effective}
        return Weighed(weights, figures=figures, warning=self._warning(effective, len(round.clients)))

    def _fisher_gram(self, round: Round) -> Tensor:
        fisher, columns = round.reports["fisher"], round.columns
        matrix = gram(fisher, columns)
        if self.fim_scale == "none":
            return matrix
        if self.fim_scale == "l2":
            scale = matrix.diagonal().sqrt()
        else:
            entries = fisher.new_tensor(float(fisher.shape[1]), dtype=torch.float64)
            scale = columns.add_up(fisher.double().sum(1)) / columns.add_up(entries)
        inverse = torch.where(scale > 0, 1 / scale.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
        return matrix * inverse[:, None] * inverse[None, :]

    def _warning(self, effective: Tensor, clients: int) -> str | None:
        if effective >= COLLAPSED or clients < 2:
            return None
        return (
            f"fedequilibria: the min-norm weights rest on {effective:.2f} of {clients} clients (effective number). The "
            "literal rule favours the client with the smallest Fisher norm; fim_scale='l2' spreads the weights."
        )


@register(
    title="Min-norm weights in Fisher space, mixed with weights by update length",
    reference="Anonymous authors, Fed-Equilibria: towards fair and robust federated learning under domain skew, under review",
    per_dataset={
        "digits": {"t": 0.7},
        "office-caltech": {"t": 0.3},
        "pacs": {"t": 0.8},
        "clinics": {"t": 0.3},  # chosen by benchmarks/demo_parameters.py for the literal rule
    },
    ranges={"t": Range(0.0, 1.0), "fim_scale": ("none", "l2", "mean")},
    side="server",
)
def fedequilibria(
    t: float = 0.7,
    moo: Literal["fisher", "update"] = "fisher",
    fim: Literal["sample", "batch"] = "sample",
    fim_samples: int | None = None,
    fim_batch: int = 64,
    fim_scale: Literal["none", "l2", "mean"] = "none",
) -> Method:
    """The weights `w = t w_moo + (1 - t) w_dist`: min-norm weights of Fisher diagonals, and shares of the updates'
    norms.

    `moo="update"` takes the min-norm weights of the updates instead. The paper's ablations are MOO_F (`t=1`), MOO_G
    (`t=1, moo="update"`) and DIST (`t=0`). `fim="sample"` squares the gradient of each sample, `fim="batch"` that of
    each batch of `fim_batch` samples; `fim_samples` uses so many random samples of a client instead of all. `fim_scale`
    divides each client's Fisher diagonal by its norm (`"l2"`) or its mean, which is not in the paper.
    """
    require(0 <= t <= 1, "t", "between 0 and 1", t)
    require(fim_samples is None or fim_samples >= 1, "fim_samples", "at least 1, or None for all", fim_samples)
    require(1 <= fim_batch <= 1024, "fim_batch", "between 1 and 1024", fim_batch)
    weigh = Equilibrium(t, moo, fim_scale)
    return Method(reports=(Fisher(fim, fim_samples, fim_batch),) if weigh.needs else (), weigh=weigh)
