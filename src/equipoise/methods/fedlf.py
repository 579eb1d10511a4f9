"""FedLF: tensor by tensor a direction that hurts nobody, and that levels the losses. Pan et al., AAAI 2024."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise.method import Method, register
from equipoise.parts.minnorm import min_norm_weights
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.steps import LengthOfMean
from equipoise.parts.weights import Uniform
from equipoise.roles import Merge, Shape
from equipoise.types import Merged, PerClient, Round, Shaped, State
from equipoise.updates import gram

NOTHING = 1e-12  # a direction shorter than this, relative to the longest update, is none


def levelling(loss: Tensor) -> Tensor:
    """Coefficients of the updates in the direction that lowers `-cos(1, F)`, the unevenness of the losses.

    >>> levelling(torch.tensor([1.0, 3.0])), levelling(torch.tensor([2.0, 2.0])).abs().max() < 1e-6
    (tensor([-0.1342,  0.0447]), tensor(True))
    """
    even = torch.full_like(loss, len(loss) ** -0.5)
    length = torch.linalg.vector_norm(loss).clamp(min=torch.finfo(loss.dtype).tiny)
    direction = loss / length
    return (direction @ even * direction - even) / length


@dataclass(frozen=True)
class RecentAbsentees(Shape):
    """Adds the last updates of clients that are absent now but were seen lately: within `seen / present` rounds."""

    def __call__(self, round: Round, state: State) -> Shaped:
        rows, last = state.get("updates", PerClient()), state.get("last", PerClient())
        assert isinstance(rows, PerClient)
        assert isinstance(last, PerClient)
        window = len({*rows, *round.clients}) // len(round.clients)
        absent = [c for c in rows if c not in round.clients and round.round - int(last[c]) <= window]
        after = rows.put(round.clients, round.updates.shaped)
        seen = last.put(round.clients, [torch.tensor(round.round)] * len(round.clients))
        updates = round.updates.with_absent(rows.take(absent)) if absent else round.updates
        return Shaped(updates, {"updates": after, "last": seen})


@dataclass(frozen=True)
class LayerwiseFair(Merge):
    """In each tensor the min-norm point of the clients' updates, the levelling direction, and absent clients' updates.

    A tensor where it vanishes is joined with the next one (the last with the one before) and solved again. `scaled` first
    brings all vectors of a tensor to their mean length, as the authors' code does, and joins nothing.
    """

    weighs: ClassVar[bool] = False

    scaled: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        return ("loss",)

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        layout = round.setting.layout
        assert layout is not None  # aggregate fills it
        rows = round.updates.shaped
        m = len(rows)
        level = levelling(round.reports["loss"].double())
        everyone = torch.eye(m, dtype=torch.float64)
        # Coefficients of the vectors over the clients' rows; level losses have no levelling direction.
        basis = (
            torch.cat([everyone, level[None]])
            if float(level.norm() * round.reports["loss"].norm()) > 1e-9
            else everyone
        )
        direction = torch.zeros_like(rows[0])
        used = torch.zeros(m, len(layout.slices), dtype=torch.float64)
        first, last = 0, 0
        while last < len(layout.slices):
            place = slice(layout.slices[first].start, layout.slices[last].stop)
            found, share = self._solve(rows, round.updates.absent, basis, place)
            vanished = bool(found.norm() <= NOTHING * torch.linalg.vector_norm(rows[:, place], dim=1).max())
            last += 1
            if vanished and not self.scaled and bool(rows[:, place].any()):
                if last < len(layout.slices):
                    continue  # join the next tensor
                if first > 0:
                    first -= 1  # no tensor follows: join the one before
                    last = len(layout.slices) - 1
                    continue
            direction[place] = found
            used[:, first:last] = share[:, None]
            first = last
        return Merged(direction, used.to(rows.dtype))

    def _solve(self, rows: Tensor, absent: Tensor | None, basis: Tensor, place: slice) -> tuple[Tensor, Tensor]:
        """The direction in some columns, and how much of each client's update is in it."""
        here = rows[:, place]
        m = len(rows)
        if absent is not None:
            here = torch.cat([here, absent[:, place]])
            extra = torch.eye(len(here), dtype=torch.float64)[m:]
            basis = torch.cat([torch.nn.functional.pad(basis, (0, len(absent))), extra])
        products = basis @ gram(here) @ basis.T
        lengths = products.diagonal().clamp(min=0).sqrt()
        moved = lengths > 0
        share = torch.zeros(len(basis), dtype=torch.float64)
        if moved.any():
            scale = lengths[moved].mean() / lengths[moved] if self.scaled else torch.ones_like(lengths[moved])
            inner = products[moved][:, moved] * scale[:, None] * scale[None]
            share[moved] = min_norm_weights(inner) * scale
        coefficients = share @ basis
        return coefficients.to(rows.dtype) @ here, coefficients[:m]


@register(
    title="Tensor by tensor a direction that hurts nobody and levels the losses",
    reference="Pan et al., FedLF: layer-wise fair federated learning, AAAI 2024",
)
def fedlf(variant: Literal["paper", "released"] = "paper", absentees: bool = True) -> Method:
    """`variant="released"` scales the vectors of a tensor to their mean length first, as the authors' code does.
    `absentees=False` heeds only the clients that are present."""
    return Method(
        reports=(GlobalLoss(),),
        shape=(RecentAbsentees(),) if absentees else (),
        weigh=Uniform(),
        merge=LayerwiseFair(scaled=variant == "released"),
        step=(LengthOfMean(),),
    )
