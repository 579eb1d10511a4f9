"""FedHEAL: masks of inconsistent updates (FPHL) and weights by masked distance (FAEL). Chen, Huang, Ye, CVPR 2024.

`variant="paper"` is what the formulas say wherever they can be executed; `variant="released"` is what the public code
computes. Every choice in which the two differ is a parameter of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

import torch
from torch import Tensor

from equipoise.method import Method, Round, Shape, Shaped, State, Weigh, Weighed, register, require
from equipoise.parts.merges import MaskedMean, WeightedSum
from equipoise.parts.weights import BySamples, shares
from equipoise.updates import column_chunks

History = Literal["inclusive", "past"]
Compare = Literal["ge", "gt"]
Distance = Literal["sq_l2", "l2", "tensor_l2_sum"]


def votes_needed(tau: float, seen: int, compare: Compare) -> int:
    """The least count whose share of `seen` passes the threshold, with ties decided to within 1e-12.

    >>> votes_needed(0.3, 10, "ge"), votes_needed(0.3, 10, "gt")
    (3, 4)
    """
    return ceil((tau - 1e-12) * seen) if compare == "ge" else floor((tau + 1e-12) * seen) + 1


def count_type(seen: int) -> torch.dtype:
    """The smallest integers that count this many rounds."""
    return torch.uint8 if seen < 256 else torch.int16 if seen < 32768 else torch.int32


@dataclass(frozen=True)
class ConsistencyMask(Shape, gives=("mask",), remembers="how often each entry of its updates rose"):
    """Keeps an entry of an update if its sign agrees with enough of the client's own past (eq. 5-8).

    Per client, `up [G]` counts the rounds in which each entry rose, in the smallest integers that hold the count.
    """

    tau: float
    history: History = "inclusive"
    compare: Compare = "ge"
    zero_rises: bool = True  # an entry that did not move counts as risen
    mask_buffers: bool = False

    @property
    def includes_buffers(self) -> bool:
        return self.mask_buffers

    def measure_consistency(self, state: State) -> Tensor | None:
        up, seen = state.rows("up"), state.rows("seen")
        return torch.cat([torch.maximum(up[k].double(), seen[k] - up[k].double()) / seen[k] for k in up])

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
        return Shaped(round.updates.with_mask(mask), kept)

    def _vote(self, row: Tensor, past: Tensor, before: int, mask: Tensor) -> Tensor:
        """Fill one client's mask, and give its next counts. In pieces that stay in the cache, and in whole bytes."""
        seen = before + 1 if self.history == "inclusive" else before
        needed = votes_needed(self.tau, seen, self.compare) if seen else 0
        after = torch.empty_like(past)
        for columns in column_chunks(row[None]):
            rose = row[columns] >= 0 if self.zero_rises else row[columns] > 0
            up = torch.add(past[columns], rose.view(torch.uint8), out=after[columns])
            votes = up if self.history == "inclusive" else past[columns]
            if needed > seen:  # nobody can pass; in small integers the threshold would wrap around
                mask[columns] = False
                continue
            risen, fallen = votes >= needed, votes <= seen - needed
            torch.bitwise_xor(fallen, (risen ^ fallen) & rose, out=mask[columns])  # `risen` where the entry rose
        return after


@dataclass(frozen=True)
class DistanceWeigh(Weigh, remembers="its weight and the weight's momentum"):
    """More weight to clients whose masked update is long, with momentum (eq. 11-13)."""

    beta: float
    distance: Distance = "sq_l2"
    init: Literal["size", "uniform"] = "size"
    carry: Literal["normalized", "raw"] = "normalized"

    @property
    def needs(self) -> tuple[str, ...]:
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
        layout = round.setting.layout
        assert layout is not None  # aggregate fills it
        columns = slice(0, layout.parameter_size)
        if self.distance == "tensor_l2_sum":
            return torch.stack([round.updates.squared_norms(s).sqrt() for s in layout.parameter_slices]).sum(0)
        squared = round.updates.squared_norms(slice(None) if layout.parameter_size == layout.size else columns)
        return squared.sqrt() if self.distance == "l2" else squared


@register(
    title="Masks of inconsistent updates, weights by masked distance",
    reference="Chen, Huang, Ye, Fair federated learning under domain skew with local consistency and domain diversity, "
    "CVPR 2024",
    per_dataset={"digits": {"tau": 0.3}, "office-caltech": {"tau": 0.4}},
)
def fedheal(
    tau: float = 0.3,
    beta: float = 0.4,
    variant: Literal["paper", "released"] = "paper",
    fphl: bool = True,
    fael: bool = True,
    history: Literal["inclusive", "past"] | None = None,
    compare: Literal["ge", "gt"] | None = None,
    distance: Literal["sq_l2", "l2", "tensor_l2_sum"] | None = None,
    init: Literal["size", "uniform"] | None = None,
    carry: Literal["normalized", "raw"] | None = None,
    mask_buffers: bool | None = None,
    zero_rises: bool | None = None,
) -> Method:
    """`fphl=False` or `fael=False` leaves one of the two halves out (the paper's ablation). A choice left at None follows
    the variant."""
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
        weigh=weigh if fael else BySamples(),
        merge=MaskedMean() if fphl else WeightedSum(),
    )
