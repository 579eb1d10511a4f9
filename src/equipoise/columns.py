"""Which columns of a round's updates this process holds, and how sums over all columns are found.

A parameter is a column of the stack of updates. In one process all columns are here, and everything below gives back
what it is given. A run over several processes (`engine/ranks.py`) gives each of them some of the columns, of all
clients: what a part does to each column by itself stays local, and only small sums travel.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Columns:
    """All columns are here."""

    def cut(self, rows: Tensor) -> Tensor:
        """The columns of `rows [..., G]` that are here, as a view."""
        return rows

    def whole(self, rows: Tensor) -> Tensor:
        """The inverse of `cut`: rows with all columns, `[..., G]`. All processes must ask for it."""
        return rows

    def add_up(self, partial: Tensor) -> Tensor:
        """A sum over all columns, from the sum over the columns that are here. All processes must ask for it."""
        return partial

    def length(self, rows: Tensor) -> Tensor:
        """The norm over all columns of `rows [..., G]`, of which the columns here are given."""
        return torch.linalg.vector_norm(rows, dim=-1)

    def clip(self, slices: Iterable[slice]) -> tuple[slice, ...]:
        """For each of these slices of all columns, what of it is here, counted from the first column that is here."""
        return tuple(slices)


ALL = Columns()
