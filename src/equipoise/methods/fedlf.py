"""FedLF, layer-wise fairness: for each tensor, a direction that harms no client and makes the losses more equal.

Pan et al., AAAI 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.method import Merge, Merged, Method, Round, Shape, Shaped, State, register
from equipoise.parts.minnorm import min_norm_weights
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.steps import LengthOfMean
from equipoise.parts.weights import Uniform
from equipoise.updates import STILL, gram

VANISHED = 1e-6  # a min-norm point this short, relative to the updates, counts as zero (it comes from squared norms)


def levelling(loss: Tensor) -> Tensor:
    """Coefficients `[m]` of the updates in the direction that lowers `-cos(1, F)`, the unevenness of the losses F
    `[m]`. Where all losses are zero, they are equal, and there is no such direction.

    >>> levelling(torch.tensor([1.0, 3.0])), levelling(torch.tensor([2.0, 2.0])).abs().max() < 1e-6
    (tensor([-0.1342,  0.0447]), tensor(True))
    """
    even = torch.full_like(loss, len(loss) ** -0.5)
    length = torch.linalg.vector_norm(loss)
    if length <= torch.finfo(loss.dtype).tiny ** 0.5:  # zero: the inverse of a square could not be represented
        return torch.zeros_like(loss)
    direction = loss / length
    return (direction @ even * direction - even) / length


@dataclass(frozen=True)
class RecentAbsentees(Shape, remembers="its last update", by_columns=("updates",)):
    """Adds the last updates of recently absent clients.

    These are clients that last took part at most `seen / present` rounds ago: the number of clients that ever took
    part, divided by the number of this round's clients.
    """

    def __call__(self, round: Round, state: State) -> Shaped:
        rows, last = state.rows("updates"), state.rows("last")
        window = len({*rows, *round.clients}) // len(round.clients)
        absent = [c for c in rows if c not in round.clients and round.round - int(last[c]) <= window]
        after = rows.put(round.clients, round.updates.shaped)
        seen = last.put(round.clients, [torch.tensor(round.round)] * len(round.clients))
        updates = round.updates.with_absent(rows.take(absent)) if absent else round.updates
        return Shaped(updates, {"updates": after, "last": seen})


@dataclass(frozen=True)
class LayerwiseFair(Merge, needs=("loss",), by_columns=()):
    """For each tensor, the min-norm point of the clients' updates, absent clients' updates, and the levelling
    direction.

    A tensor in which this point is zero is joined with the next one (the last with the one before), and solved again.
    """

    uses_weights: ClassVar[bool] = False

    scaled: bool = False  # as in the authors' code: scale the vectors of a tensor to their mean norm, join nothing

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        slices, columns = round.slices, round.columns
        rows, absent = round.updates.shaped, round.updates.absent
        everyone = rows if absent is None else torch.cat([rows, absent])
        level = levelling(round.reports["loss"].double())
        level = F.pad(level, (0, len(everyone) - len(rows)))
        direction = torch.zeros_like(rows[0])
        used = rows.new_zeros(len(everyone), len(slices), dtype=torch.float64)
        places = [[i] for i in range(len(slices))]  # the tensors that are solved together
        whole = columns.length(everyone.flatten())
        i = 0
        while i < len(places):
            place = slice(slices[places[i][0]].start, slices[places[i][-1]].stop)
            here = everyone[:, place]
            products = gram(here, columns)
            share = self._solve(products, level, len(rows))
            found = share.to(here.dtype) @ here
            length = products.trace().sqrt()
            if (
                length > STILL * whole
                and columns.length(found) <= VANISHED * length
                and len(places) > 1
                and not self.scaled
            ):
                i = min(i, len(places) - 2)
                places[i : i + 2] = [places[i] + places[i + 1]]
                continue
            direction[place] = found
            used[:, places[i]] = share[:, None]
            i += 1
        return Merged(direction, used[: len(rows)].to(rows.dtype))

    def _solve(self, products: Tensor, level: Tensor, present: int) -> Tensor:
        """The coefficient of each update in the min-norm point, from their inner products."""
        lengths = products.diagonal().sqrt()
        moved = lengths > STILL * lengths.max()
        factor = moved.double()
        mean = lengths[:present].mean()
        if self.scaled:
            factor[moved] = mean / lengths[moved]
        row = level * factor  # the levelling direction, which is zero for equal losses
        length = (row @ products @ row).clamp(min=0).sqrt()
        levels = length > STILL * lengths.max()
        if self.scaled and levels:
            row = row * mean / length
        basis = torch.cat([torch.diag(factor), row[None]])
        counts = torch.cat([moved, levels[None]])
        share = basis.new_zeros(len(basis))
        if counts.any():
            share[counts] = min_norm_weights((basis @ products @ basis.T)[counts][:, counts])
        return share @ basis


@register(
    title="A direction per tensor that harms no client and makes the losses more equal",
    reference="Pan et al., FedLF: layer-wise fair federated learning, AAAI 2024",
)
def fedlf(variant: Literal["paper", "released"] = "paper", absentees: bool = True) -> Method:
    """For each tensor, the min-norm point of the clients' updates and of the direction that makes losses more equal.

    `variant="released"` first scales the vectors of a tensor to their mean norm, as the authors' code does.
    `absentees=False` leaves out the last updates of recently absent clients.
    """
    return Method(
        reports=(GlobalLoss(),),
        shape=(RecentAbsentees(),) if absentees else (),
        weigh=Uniform(),
        merge=LayerwiseFair(scaled=variant == "released"),
        step=(LengthOfMean(),),
    )
