"""Projections that remove conflicts between updates, among a round's clients and with absent clients (FedFV, FedFE).

Two updates conflict if their inner product is negative. Only inner products are needed: a projected update is a row of
coefficients over the reported updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from equipoise import seeds
from equipoise.columns import Columns
from equipoise.roles import Shape, Step
from equipoise.types import Round, Shaped, State, Stepped
from equipoise.updates import gram, products

Order = Literal["ascending", "descending", "random"]


def project_conflicts(gram: Tensor, order: Tensor, projected: Tensor) -> Tensor:
    """The coefficients `[m, m]` of the updates after projection, from their inner products `gram [m, m]`.

    Each update k for which `projected [m]` is True goes through all others j in `order [m]`. Wherever the two conflict,
    its component along the *original* update j is removed.

    >>> opposed = torch.tensor([[1.0, -1.0], [-1.0, 2.0]])
    >>> project_conflicts(opposed, torch.tensor([0, 1]), torch.tensor([True, True]))
    tensor([[1.0000, 0.5000],
            [1.0000, 1.0000]], dtype=torch.float64)
    """
    gram = gram.double()
    m = len(gram)
    coefficients = torch.eye(m, dtype=torch.float64, device=gram.device)
    for j in order.tolist():
        if gram[j, j] <= 0:
            continue
        along = coefficients @ gram[:, j]
        conflict = projected & (along < 0)
        conflict[j] = False
        coefficients[:, j] -= torch.where(conflict, along / gram[j, j], 0.0)
    return coefficients


@dataclass(frozen=True)
class InternalConflicts(Shape, needs=("loss",), by_columns=()):
    """Removes from the clients' updates what conflicts with the updates of others, except for the clients that are
    kept.

    The updates of others are gone through in the order of the clients' losses. The records tell with how many others
    each client's update conflicts before that.
    """

    alpha: float = 0.1  # the share of clients, those with the largest losses, whose updates are kept as they are
    order: Order = "ascending"  # of the losses
    project_first: int | None = None  # project the updates of only the first so many clients, in place of `alpha`

    def __call__(self, round: Round, state: State) -> Shaped:
        loss = round.reports["loss"]
        ascending = torch.argsort(loss, stable=True)
        order = {
            "ascending": lambda: ascending,
            "descending": lambda: torch.argsort(loss, descending=True, stable=True),
            "random": lambda: seeds.permutation(len(loss), round.setting.seed, "projections", round.round),
        }[self.order]()
        projected = torch.ones(len(loss), dtype=torch.bool)
        if self.project_first is not None:
            projected[order[self.project_first :]] = False
        elif self.alpha > 0:
            projected[ascending[ceil((len(loss) - 1) * (1 - self.alpha)) :]] = False
        inner = round.updates.gram
        return Shaped(
            round.updates.with_coefficients(project_conflicts(inner, order, projected)),
            figures={"internal conflicts": (inner < 0).sum(1).double()},
        )


@dataclass(frozen=True)
class ExternalConflicts(Step, by_columns=("updates",)):
    """Removes from the direction what conflicts with the last updates of recently absent clients.

    These are clients that last took part 1 to `tau` rounds ago. Round by round, the oldest first, the direction's
    component along the sum of those updates that conflict with it is removed. The server keeps the updates of `tau`
    rounds. The records tell how many absent clients the direction conflicts with before that.
    """

    tau: int  # how many rounds back; 0: the direction is left as it is

    @property
    def remembers(self) -> str:
        """Each client's last update, unless `tau` is 0."""
        return "its last update" if self.tau else ""

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        if self.tau == 0:
            return Stepped(direction)
        past, seen = state.rows("updates"), state.rows("seen")
        now = torch.tensor(round.round)
        rows = past.put(round.clients, round.reported)
        seen = seen.put(round.clients, [now] * len(round.clients))
        conflicts = torch.tensor(0.0)
        if round.round >= self.tau:
            absent = [c for c in past if 1 <= round.round - int(seen[c]) <= self.tau]
            if absent:
                age = [round.round - int(seen[c]) for c in absent]
                direction, conflicts = _project_against(direction, past.take(absent), age, round.columns)
        recent = [c for c in rows if round.round - int(seen[c]) < self.tau]
        kept = {"updates": rows.only(recent), "seen": seen.only(recent)}
        return Stepped(direction, kept, figures={"external conflicts": conflicts})


def _project_against(direction: Tensor, rows: Tensor, age: list[int], columns: Columns) -> tuple[Tensor, Tensor]:
    """One projection per past round: the direction after it, and with how many of the rows it was in conflict before.

    All inner products are computed first, so that the rows are read only once.
    """
    along = products(rows, direction, columns)
    between = gram(rows, columns)
    ages = torch.tensor(age)
    given_up = torch.zeros(len(age), dtype=torch.float64)
    for i in sorted(set(age), reverse=True):
        current = along - between @ given_up
        conflict = ((ages == i) & (current < 0)).double()
        product, length = conflict @ current, conflict @ between @ conflict
        if product < 0 and length > 0:
            given_up += product / length * conflict
    return direction - given_up.to(direction.dtype) @ rows, (along < 0).sum().double()
