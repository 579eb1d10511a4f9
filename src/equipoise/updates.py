"""The stack of a round's updates, and the inner products between them.

Rules that only need inner products work on the m x m Gram matrix and on coefficients. The rows, which have one entry
per parameter, are read again only for the final sum (`combine`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from equipoise.columns import ALL, Columns

STILL = 1e-9  # an update this short, relative to the longest one, is taken for a rounding error
CHUNK = 1 << 19  # entries worked on at a time: 4 MB in float64, which fits into the cache


def column_chunks(rows: Tensor) -> Iterator[slice]:
    """Consecutive slices of columns. Work on `rows[:, slice]` stays in the cache and needs little additional memory."""
    width = max(1024, CHUNK // max(1, rows.shape[0]))
    for start in range(0, rows.shape[1], width):
        yield slice(start, min(start + width, rows.shape[1]))


def count_type(seen: int) -> torch.dtype:
    """The smallest integer type that can count this many rounds."""
    return torch.uint8 if seen < 256 else torch.int16 if seen < 32768 else torch.int32


def gram(rows: Tensor, columns: Columns = ALL) -> Tensor:
    """`rows @ rows.T` over all columns, `[m, m]` in float64: its entries may differ by many orders of magnitude.

    >>> gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[5., 2.],
            [2., 1.]], dtype=torch.float64)
    """
    total = rows.new_zeros(rows.shape[0], rows.shape[0], dtype=torch.float64)
    for some in column_chunks(rows):
        part = rows[:, some].double()
        total.addmm_(part, part.T)
    return columns.add_up(total)


def products(rows: Tensor, vector: Tensor, columns: Columns = ALL) -> Tensor:
    """`rows @ vector` over all columns, `[m]` in float64."""
    total = rows.new_zeros(rows.shape[0], dtype=torch.float64)
    for some in column_chunks(rows):
        total.addmv_(rows[:, some].double(), vector[some].double())
    return columns.add_up(total)


def _squared_norm(row: Tensor, mask: Tensor | None) -> Tensor:
    """Sums over chunks are taken in the row's own precision, or in float64 where they overflow; they are added up in
    float64."""
    total = row.new_zeros((), dtype=torch.float64)
    for start in range(0, row.shape[0], CHUNK):
        part = row[start : start + CHUNK]
        if mask is not None:
            part = mask[start : start + CHUNK].to(row.dtype).mul_(part)
        square = part @ part
        total += square if torch.isfinite(square) else part.double() @ part.double()
    return total


@dataclass(frozen=True)
class Updates:
    """The updates of a round, and what the `shape` parts did to them.

    The shaped updates are `coefficients @ rows`, or `mask * rows`, or `rows` themselves. They are not computed until
    someone asks for them.
    """

    rows: Tensor  # [m, G], one update per client
    coefficients: Tensor | None = None  # [m, m] float64, the shaped updates as combinations of the rows
    mask: Tensor | None = None  # [m, G] bool, which entries count
    absent: Tensor | None = None  # [h, G], remembered updates of absent clients, for merges that use them
    columns: Columns = ALL  # which columns are here; sums below are over all of them

    @cached_property
    def gram(self) -> Tensor:
        """Inner products of the shaped updates, `[m, m]` float64."""
        if self.mask is not None:
            return gram(self.shaped, self.columns)
        if self.coefficients is None:
            return gram(self.rows, self.columns)
        return self.coefficients @ self._row_gram @ self.coefficients.T

    @cached_property
    def _row_gram(self) -> Tensor:
        return gram(self.rows, self.columns)

    @property
    def shaped(self) -> Tensor:
        """The shaped updates as a matrix `[m, G]`. It may need as much memory as the rows, so avoid it where you
        can."""
        if self.mask is not None:
            return self.rows * self.mask
        if self.coefficients is not None:
            return self.coefficients.to(self.rows.dtype) @ self.rows
        return self.rows

    def with_coefficients(self, coefficients: Tensor) -> Updates:
        """The updates `coefficients @ shaped`, for `coefficients [m, m]`.

        A Gram matrix that is already known is used again. Entries hidden by a mask stay hidden.
        """
        if self.mask is not None:
            return replace(self, rows=coefficients.to(self.rows.dtype) @ self.shaped)
        known = self.__dict__.get("gram") if self.coefficients is None else self.__dict__.get("_row_gram")
        product = coefficients if self.coefficients is None else coefficients @ self.coefficients
        result = replace(self, coefficients=product)
        if known is not None:
            result.__dict__["_row_gram"] = known
        return result

    def with_mask(self, mask: Tensor) -> Updates:
        """The updates with the entries hidden where `mask [m, G]` is False. A merge may treat hidden as absent, not as
        zero."""
        if self.coefficients is not None:
            return Updates(self.shaped, mask=mask, absent=self.absent, columns=self.columns)
        return replace(self, mask=mask if self.mask is None else self.mask & mask)

    def with_absent(self, rows: Tensor) -> Updates:
        """The updates with those of absent clients `[h, G]` beside them."""
        return replace(self, absent=rows)

    def squared_norms(self, some: slice = slice(None)) -> Tensor:
        """Squared norm of each shaped update, `[m]` float64: over all columns, or `some` (here, of `Round.slices`)."""
        if some == slice(None) and (self.coefficients is not None or "gram" in self.__dict__):
            return self.gram.diagonal()
        rows = (self.rows if self.coefficients is None else self.shaped)[:, some]
        masks = [None] * len(rows) if self.mask is None else self.mask[:, some]
        here = torch.stack([_squared_norm(row, mask) for row, mask in zip(rows, masks, strict=True)])
        return self.columns.add_up(here)

    def norms(self) -> Tensor:
        """Norm of each shaped update, `[m]` float64."""
        return self.squared_norms().clamp(min=0).sqrt()

    def combine(self, weights: Tensor) -> Tensor:
        """The sum of the shaped updates `[G]` with these weights `[m]`."""
        if self.coefficients is not None:
            weights = weights.double() @ self.coefficients
        weights = weights.to(self.rows.dtype)
        if self.mask is None:
            return weights @ self.rows
        result = torch.empty_like(self.rows[0])
        for some in column_chunks(self.rows):
            result[some] = weights @ self.mask[:, some].to(self.rows.dtype).mul_(self.rows[:, some])
        return result
