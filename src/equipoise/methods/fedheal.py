"""FedHEAL: masks that hide inconsistent entries of updates (FPHL), and weights by the norm of masked updates (FAEL).

Chen, Huang and Ye, CVPR 2024. Paper and public code differ. `variant="paper"` follows the formulas wherever they can be
executed, and `variant="released"` follows the code. Each choice in which the two differ is a parameter of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

import torch
from torch import Tensor

from equipoise.method import (
    Method,
    Range,
    Round,
    Shape,
    Shaped,
    State,
    Step,
    Stepped,
    Weigh,
    Weighed,
    register,
    require,
)
from equipoise.parts.merges import MaskedMean, WeightedSum
from equipoise.parts.minnorm import min_norm_weights
from equipoise.parts.weights import BySamples, shares
from equipoise.updates import Updates, column_chunks, count_type, products

History = Literal["inclusive", "past"]  # whether the current round counts in a client's history of signs
Compare = Literal["ge", "gt"]  # how a share is compared with the threshold: `>=` or `>`
Distance = Literal["sq_l2", "l2", "tensor_l2_sum"]  # squared norm, norm, or sum over tensors of their norms


def votes_needed(tau: float, seen: int, compare: Compare) -> int:
    """The smallest count whose share of `seen` rounds passes the threshold `tau`. Differences up to 1e-12 count as
    equal.

    >>> votes_needed(0.3, 10, "ge"), votes_needed(0.3, 10, "gt")
    (3, 4)
    """
    return ceil((tau - 1e-12) * seen) if compare == "ge" else floor((tau + 1e-12) * seen) + 1


@dataclass(frozen=True)
class ConsistencyMask(Shape, gives=("mask",), remembers="how often each entry of its updates rose", by_columns=("up",)):
    """Keeps an entry of an update if its sign was the same in enough of the client's rounds (equations 5 to 8).

    The state holds, per client, the number of its rounds and `up [G]`, the number of rounds in which each entry rose.
    """

    tau: float  # the share of rounds with the same sign that an entry needs
    history: History = "inclusive"  # whether the current round counts, too
    compare: Compare = "ge"  # whether the share must reach the threshold or exceed it
    zero_rises: bool = True  # an entry that did not move counts as risen
    mask_buffers: bool = False  # whether running statistics are masked like parameters

    @property
    def includes_buffers(self) -> bool:
        """Whether running statistics are masked like parameters."""
        return self.mask_buffers

    def __call__(self, round: Round, state: State) -> Shaped:
        counts, rounds = state.rows("up"), state.rows("seen", default=torch.tensor(0))
        rows = round.updates.shaped
        mask = torch.empty(rows.shape, dtype=torch.bool, device=rows.device)
        after, seen_after = [], []
        for i, client in enumerate(round.clients):
            before = int(rounds[client])
            none = torch.zeros(rows.shape[1], dtype=torch.uint8, device=rows.device)
            past = counts.get(client, none).to(count_type(before + 1))
            after.append(self._vote(rows[i], past, before, mask[i]))
            seen_after.append(torch.tensor(before + 1))
        kept = {"up": counts.put(round.clients, after), "seen": rounds.put(round.clients, seen_after)}
        here = torch.tensor(mask.shape[1], dtype=torch.float64)
        share = round.columns.add_up(mask.count_nonzero(1).double()) / round.columns.add_up(here)
        return Shaped(round.updates.with_mask(mask), kept, figures={"kept entries": share})

    def _vote(self, row: Tensor, past: Tensor, before: int, mask: Tensor) -> Tensor:
        """Fill the mask `[G]` of one client, and return its next counts `[G]`. Works on chunks that fit into the
        cache."""
        seen = before + 1 if self.history == "inclusive" else before
        needed = votes_needed(self.tau, seen, self.compare) if seen else 0
        after = torch.empty_like(past)
        for columns in column_chunks(row[None]):
            rose = row[columns] >= 0 if self.zero_rises else row[columns] > 0
            up = torch.add(past[columns], rose.view(torch.uint8), out=after[columns])
            votes = up if self.history == "inclusive" else past[columns]
            if needed > seen:  # no entry can pass, and the threshold would overflow small integers
                mask[columns] = False
                continue
            risen, fallen = votes >= needed, votes <= seen - needed
            # The mask is `risen` where the entry rose, otherwise `fallen`.
            torch.bitwise_xor(fallen, (risen ^ fallen) & rose, out=mask[columns])
        return after


def equalising_weights(inner: Tensor) -> Tensor:
    """The weights `[m]` that minimise equation 10, the variance over clients of `d_m = ||U - w_m||^2`, exactly.

    `U = sum p_m w_m` with weights `p >= 0` that sum to one; `inner [m, m]` are the inner products of the updates. Since
    `d_m = ||U||^2 - 2 <U, D_m> + ||D_m||^2` in coordinates around the old model, the variance is a convex quadratic
    form in p, and its minimum that of a min-norm problem.

    >>> equalising_weights(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    inner = inner.double()
    apart = inner.diagonal()[:, None] - 2 * inner  # column j: d_m up to a constant, if client j has all the weight
    apart = apart - apart.mean(0)
    return min_norm_weights(apart.T @ apart)


@dataclass(frozen=True)
class EqualisingWeigh(Weigh, by_columns=()):
    """The weights that minimise the variance of the clients' distances to the new model (equation 10), without momentum.

    With masks the updates are the masked ones, as in equation 11.
    """

    def __call__(self, round: Round, state: State) -> Weighed:
        return Weighed(equalising_weights(round.updates.gram))


@dataclass(frozen=True)
class DistanceWatch(Step, by_columns=()):
    """Leaves the direction as it is, and tells the records `d_m = ||U - w_m||^2`, how far each client's model is from
    the new one, and the variance of these distances over clients: what FAEL is after."""

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        rows, columns = round.reported, round.columns
        here = columns.add_up(direction.double() @ direction.double())
        d = here - 2 * products(rows, direction, columns) + Updates(rows, columns=columns).squared_norms()
        return Stepped(direction, figures={"d": d, "Var(d)": d.var(correction=0)})


@dataclass(frozen=True)
class DistanceWeigh(Weigh, remembers="its weight and the weight's momentum", by_columns=()):
    """Gives more weight to clients whose masked update is long, with momentum (equations 11 to 13).

    `dp <- (1 - beta) dp + beta d / sum d` and `p <- p + dp`, normalised over the round's clients, where `d` is the
    length of each client's masked update.
    """

    beta: float  # weight of the current round in the momentum
    distance: Distance = "sq_l2"  # how the length of an update is measured
    init: Literal["size", "uniform"] = "size"  # a client's first weight: by samples, or equal
    carry: Literal["normalized", "raw"] = "normalized"  # whether the next round starts from normalised weights

    @property
    def needs(self) -> tuple[str, ...]:
        """The number of samples, if the first weights are by samples."""
        return ("samples",) if self.init == "size" else ()

    def __call__(self, round: Round, state: State) -> Weighed:
        weights, momenta = state.rows("p"), state.rows("dp")
        distance = self._distances(round)
        first = shares(round.reports["samples"].double() if self.init == "size" else torch.ones_like(distance))
        known = [client in weights for client in round.clients]
        p = torch.stack(
            [weights[c] if k else first[i] for i, (c, k) in enumerate(zip(round.clients, known, strict=True))]
        )
        dp = torch.stack(
            [momenta[c] if k else torch.zeros_like(p[0]) for c, k in zip(round.clients, known, strict=True)]
        )
        dp = (1 - self.beta) * dp + self.beta * shares(distance)
        p = p + dp
        normalised = p / p.sum()
        carried = normalised if self.carry == "normalized" else p
        kept = {"p": weights.put(round.clients, carried), "dp": momenta.put(round.clients, dp)}
        return Weighed(normalised, kept, figures={"distance": distance})

    def _distances(self, round: Round) -> Tensor:
        if self.distance == "tensor_l2_sum":
            return torch.stack([round.updates.squared_norms(s).sqrt() for s in round.parameter_slices]).sum(0)
        layout = round.setting.layout
        has_buffers = layout is not None and layout.parameter_size < layout.size
        squared = round.updates.squared_norms(round.parameters if has_buffers else slice(None))
        return squared.sqrt() if self.distance == "l2" else squared


@register(
    title="Masks that hide inconsistent entries of updates, weights by the norm of masked updates",
    reference="Chen, Huang, Ye, Fair federated learning under domain skew with local consistency and domain diversity, "
    "CVPR 2024",
    per_dataset={
        "digits": {"tau": 0.3},
        "office-caltech": {"tau": 0.4},
        "pacs": {"tau": 0.4},  # as FedEquilibria's tables run it; FedHEAL's own paper has no PACS
        "clinics": {"tau": 0.5},  # chosen by benchmarks/demo_parameters.py
    },
    ranges={"tau": Range(0.1, 0.9), "beta": Range(0.1, 1.0)},
    side="server",
)
def fedheal(
    tau: float = 0.3,
    beta: float = 0.4,
    variant: Literal["paper", "released"] = "paper",
    fphl: bool = True,
    fael: bool | Literal["exact"] = True,
    history: Literal["inclusive", "past"] | None = None,
    compare: Literal["ge", "gt"] | None = None,
    distance: Literal["sq_l2", "l2", "tensor_l2_sum"] | None = None,
    init: Literal["size", "uniform"] | None = None,
    carry: Literal["normalized", "raw"] | None = None,
    mask_buffers: bool | None = None,
    zero_rises: bool | None = None,
) -> Method:
    """Inconsistent entries of updates are masked (FPHL), and clients weighed by the norm of masked updates (FAEL).

    `tau` is the share of a client's rounds in which an entry must have had its current sign to be kept. `beta` is the
    weight of the current round in the momentum of the weights. `fphl=False` or `fael=False` leaves out one of the two
    halves, as in the paper's ablation; `fael="exact"` solves equation 10, which the paper's weights approximate, in
    every round. The other parameters are choices in which paper and public code differ; what is
    None follows the variant. `history`: whether the current round counts in the share. `compare`: whether the share
    must reach tau or exceed it. `distance`: how the norm is measured. `init`: a client's first weight. `carry`: whether
    weights are kept normalised. `mask_buffers`: whether running statistics are masked. `zero_rises`: whether an entry
    that did not move counts as risen.
    """
    require(0 <= tau <= 1, "tau", "between 0 and 1", tau)
    require(0 <= beta <= 1, "beta", "between 0 and 1", beta)
    paper = variant == "paper"
    mask = ConsistencyMask(
        tau,
        history or ("inclusive" if paper else "past"),
        compare or ("ge" if paper else "gt"),
        zero_rises=paper if zero_rises is None else zero_rises,
        mask_buffers=not paper if mask_buffers is None else mask_buffers,
    )
    weigh = DistanceWeigh(
        beta,
        distance or ("sq_l2" if paper else "tensor_l2_sum"),
        init or ("size" if paper else "uniform"),
        carry or ("normalized" if paper else "raw"),
    )
    return Method(
        shape=(mask,) if fphl else (),
        weigh=EqualisingWeigh() if fael == "exact" else weigh if fael else BySamples(),
        merge=MaskedMean() if fphl else WeightedSum(),
        step=(DistanceWatch(),) if fael else (),
    )
