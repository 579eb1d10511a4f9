"""The stack of a round's updates, and the inner products between them.

What needs inner products works on the m x m Gram matrix and on coefficients; the G-long rows are read again only by the
final `combine`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

STILL = 1e-9  # an update this short, relative to the longest one, is rounding and not a direction
CHUNK = 1 << 19  # entries worked on at a time: 4 MB in float64, which stays in the cache


def column_chunks(rows: Tensor) -> Iterator[slice]:
    """Slices of columns, so that work on `rows[:, slice]` stays in the cache and needs little memory beside the rows."""
    width = max(1024, CHUNK // max(1, rows.shape[0]))
    for start in range(0, rows.shape[1], width):
        yield slice(start, min(start + width, rows.shape[1]))


def gram(rows: Tensor) -> Tensor:
    """`rows @ rows.T` accumulated in float64: entries may span many decades.

    >>> gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[5., 2.],
            [2., 1.]], dtype=torch.float64)
    """
    total = rows.new_zeros(rows.shape[0], rows.shape[0], dtype=torch.float64)
    for columns in column_chunks(rows):
        part = rows[:, columns].double()
        total.addmm_(part, part.T)
    return total


def products(rows: Tensor, vector: Tensor) -> Tensor:
    """`rows @ vector`, accumulated in float64."""
    total = rows.new_zeros(rows.shape[0], dtype=torch.float64)
    for columns in column_chunks(rows):
        total.addmv_(rows[:, columns].double(), vector[columns].double())
    return total


def _squared_norm(row: Tensor, mask: Tensor | None) -> Tensor:
    """Short sums in the row's own precision, long ones in float64."""
    total = row.new_zeros((), dtype=torch.float64)
    for start in range(0, row.shape[0], CHUNK):
        part = row[start : start + CHUNK]
        if mask is not None:
            part = mask[start : start + CHUNK].to(row.dtype).mul_(part)
        total += part @ part
    return total


@dataclass(frozen=True)
class Updates:
    """Updates `rows [m, G]` and what the `shape` parts made of them, without building the result.

    The shaped updates are `coefficients @ rows`, or `mask * rows`, or just `rows`.
    """

    rows: Tensor
    coefficients: Tensor | None = None  # [m, m] float64
    mask: Tensor | None = None  # [m, G] bool
    absent: Tensor | None = None  # [h, G], remembered updates of clients that are not here, for rules that heed them

    @cached_property
    def gram(self) -> Tensor:
        """Inner products of the shaped updates, [m, m] float64."""
        if self.mask is not None:
            return gram(self.shaped)
        if self.coefficients is None:
            return gram(self.rows)
        return self.coefficients @ self._row_gram @ self.coefficients.T

    @cached_property
    def _row_gram(self) -> Tensor:
        return gram(self.rows)

    @property
    def shaped(self) -> Tensor:
        """The shaped updates as a matrix. Costs memory: rules that can, avoid it."""
        if self.mask is not None:
            return self.rows * self.mask
        if self.coefficients is not None:
            return self.coefficients.to(self.rows.dtype) @ self.rows
        return self.rows

    def with_coefficients(self, coefficients: Tensor) -> Updates:
        """`coefficients @ self`, sharing the Gram matrix that is already known. Entries that a mask hides stay hidden."""
        if self.mask is not None:
            return replace(self, rows=coefficients.to(self.rows.dtype) @ self.shaped)
        known = self.__dict__.get("gram") if self.coefficients is None else self.__dict__.get("_row_gram")
        product = coefficients if self.coefficients is None else coefficients @ self.coefficients
        result = replace(self, coefficients=product)
        if known is not None:
            result.__dict__["_row_gram"] = known
        return result

    def with_mask(self, mask: Tensor) -> Updates:
        """Entries where `mask` is False count as absent, not as zero: `merge` may renormalise over the rest."""
        if self.coefficients is not None:
            return Updates(self.shaped, mask=mask, absent=self.absent)
        return replace(self, mask=mask if self.mask is None else self.mask & mask)

    def with_absent(self, rows: Tensor) -> Updates:
        """With updates of absent clients beside those of the round."""
        return replace(self, absent=rows)

    def squared_norms(self, columns: slice = slice(None)) -> Tensor:
        """Squared length of each shaped update, over `columns`, [m] float64."""
        if columns == slice(None) and (self.coefficients is not None or "gram" in self.__dict__):
            return self.gram.diagonal()
        rows = (self.rows if self.coefficients is None else self.shaped)[:, columns]
        masks = [None] * len(rows) if self.mask is None else self.mask[:, columns]
        return torch.stack([_squared_norm(row, mask) for row, mask in zip(rows, masks, strict=True)])

    def norms(self) -> Tensor:
        """Length of each shaped update, [m] float64."""
        return self.squared_norms().clamp(min=0).sqrt()

    def combine(self, weights: Tensor) -> Tensor:
        """Weighted sum of the shaped updates, [G]."""
        if self.coefficients is not None:
            weights = weights.double() @ self.coefficients
        weights = weights.to(self.rows.dtype)
        if self.mask is None:
            return weights @ self.rows
        result = torch.empty_like(self.rows[0])
        for columns in column_chunks(self.rows):
            result[columns] = weights @ self.mask[:, columns].to(self.rows.dtype).mul_(self.rows[:, columns])
        return result
