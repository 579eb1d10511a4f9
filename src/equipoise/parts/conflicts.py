"""Projections against conflicting updates, among a round's clients (FedFV, FedFE) and against absent ones.

Both work on inner products: an update is a row of coefficients over the reported ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from equipoise import seeds
from equipoise.roles import Shape, Step
from equipoise.types import Round, Shaped, State, Stepped
from equipoise.updates import gram, products

Order = Literal["ascending", "descending", "random"]


def project_conflicts(gram: Tensor, order: Tensor, projected: Tensor) -> Tensor:
    """Coefficients `[m, m]` of the projected updates.

    Each projected update k goes through all others j in `order` and, wherever the two conflict, gives up its part along
    the *original* update j.

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
class InternalConflicts(Shape, needs=("loss",)):
    """Projects the updates of all but the kept clients, in the order of their losses.

    `alpha` keeps the share of clients with the largest losses as they are; `project_first=n` instead projects the first n
    of the order.
    """

    alpha: float = 0.1
    order: Order = "ascending"
    project_first: int | None = None

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
        return Shaped(round.updates.with_coefficients(project_conflicts(round.updates.gram, order, projected)))


@dataclass(frozen=True)
class ExternalConflicts(Step):
    """Projects the direction against the last updates of clients that were seen 1 to `tau` rounds ago, but not now.

    Oldest round first; of each round, against the sum of those updates that conflict. Keeps the rows of `tau` rounds.
    """

    tau: int

    @property
    def remembers(self) -> str:
        return "its last update" if self.tau else ""

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        if self.tau == 0:
            return Stepped(direction)
        past, seen = state.rows("updates"), state.rows("seen")
        now = torch.tensor(round.round)
        rows = past.put(round.clients, round.reported)
        seen = seen.put(round.clients, [now] * len(round.clients))
        if round.round >= self.tau:
            absent = [c for c in past if 1 <= round.round - int(seen[c]) <= self.tau]
            if absent:
                age = [round.round - int(seen[c]) for c in absent]
                direction = _project_against(direction, torch.stack([past[c] for c in absent]), age)
        recent = [c for c in rows if round.round - int(seen[c]) < self.tau]
        return Stepped(direction, {"updates": rows.only(recent), "seen": seen.only(recent)})


def _project_against(direction: Tensor, rows: Tensor, age: list[int]) -> Tensor:
    """One projection a past round, with all inner products taken beforehand."""
    along = products(rows, direction)
    between = gram(rows)
    ages = torch.tensor(age)
    given_up = torch.zeros(len(age), dtype=torch.float64)
    for i in sorted(set(age), reverse=True):
        current = along - between @ given_up
        conflict = ((ages == i) & (current < 0)).double()
        product, length = conflict @ current, conflict @ between @ conflict
        if product < 0 and length > 0:
            given_up += product / length * conflict
    return direction - given_up.to(direction.dtype) @ rows
