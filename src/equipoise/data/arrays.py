"""A user's own arrays, checked and collected into one pool of samples; and the groups that samples are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.grammar import join_words
from equipoise.losses import Target

# Samples [n, ...], labels [n] and, if samples are in groups, groups [n].
Arrays = (
    tuple["Tensor | ArrayLike", "Tensor | ArrayLike"] | tuple["Tensor | ArrayLike", "Tensor | ArrayLike", ArrayLike]
)
WHOLE = (torch.int64, torch.int32, torch.int16)  # types of samples that may be tokens; bytes are taken for pictures


@dataclass(frozen=True, eq=False)
class Groups:
    """Which group each sample is in. Groups never enter the model: they are there to be compared."""

    name: str  # what they are groups of: a column, such as "sex"
    names: tuple[str, ...]  # of the groups
    of: Tensor  # [n], for each sample of the pool the position of its group in `names`


def standardise(numbers: Tensor, train: Sequence[Tensor]) -> tuple[Tensor, float, float]:
    """Numbers to predict `[n]`, shifted and divided as the training samples of all clients together ask for; and the
    two values by which that was done. `train` has the positions of each client's training samples.

    Both are rounded to three digits, so that an agreed schema tells no more than that about the data.
    """
    known = torch.cat([numbers[positions] for positions in train]).double()
    centre, spread = (_round_to_digits(float(value)) for value in (known.mean(), known.std(unbiased=False)))
    if not spread > 0:
        raise EquipoiseError(f"Every number to predict is {float(known[0]):g}: there is nothing to learn.")
    return ((numbers.double() - centre) / spread).to(torch.get_default_dtype()), centre, spread


def mark_groups(name: str, marks: Sequence[str], names: Sequence[str] | None = None) -> Groups:
    """Groups from one mark per sample; `names` are those that there may be, by default those that occur, in order."""
    known = tuple(sorted(set(marks))) if names is None else tuple(names)
    place = {mark: i for i, mark in enumerate(known)}
    return Groups(name, known, torch.tensor([place[mark] for mark in marks]))


def _round_to_digits(value: float) -> float:
    return float(f"{value:.3g}")


class Pool:
    """Collects the clients' arrays. One that does not fit is refused with the name of its client."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.x: list[Tensor] = []
        self.y: list[Tensor] = []
        self.owners: list[tuple[str, str]] = []
        self.groups: list[list[str]] = []
        self.size = 0

    def add(self, arrays: Arrays, client: str, what: str) -> Tensor:
        where = f"the {what} data of client `{client}`"
        try:
            x, y = (v if isinstance(v, Tensor) else torch.from_numpy(np.asarray(v)) for v in arrays[:2])
        except (TypeError, ValueError) as error:
            raise EquipoiseError(f"Cannot read {where}: give (samples, labels) as arrays of numbers. {error}") from None
        if x.dim() > 0 and len(x) == 0:
            raise EquipoiseError(f"There are no samples in {where}. Leave the client out, or give it some.")
        if x.is_complex() or x.dim() == 0 or y.dim() == 0:
            shape = f"{x.dtype} {tuple(x.shape)}"
            raise EquipoiseError(f"Give samples [n, ...] of real numbers and labels [n]. Found {shape} in {where}.")
        x = x.to(torch.long if x.dtype in WHOLE else torch.get_default_dtype())
        x = x if x.dim() > 1 else x[:, None]
        y = self._check_targets(y, len(x), where)
        if not bool(torch.isfinite(x).all()):
            row = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0])
            raise EquipoiseError(f"Features must be finite. Found NaN or infinity in sample {row} of {where}.")
        if self.x and x.shape[1:] != self.x[0].shape[1:]:
            first = self.owners[0][1]
            raise EquipoiseError(
                f"All samples must have one shape. Found {tuple(x.shape[1:])} in {where}, "
                f"and {tuple(self.x[0].shape[1:])} in {first}."
            )
        self.x.append(x)
        self.y.append(y)
        self.owners.append((client, where))
        if len(arrays) > 2:
            marks = [str(mark) for mark in np.asarray(arrays[2]).tolist()]
            if len(marks) != len(x):
                raise EquipoiseError(
                    f"Groups must be one per sample. Found {len(marks)} for {len(x)} samples in {where}."
                )
            self.groups.append(marks)
        self.size += len(x)
        return torch.arange(self.size - len(x), self.size)

    def _check_targets(self, y: Tensor, samples: int, where: str) -> Tensor:
        wide = self.target == "labels"
        if y.dim() != 1 + wide or len(y) != samples:
            wanted = "a row of labels" if wide else "one"
            raise EquipoiseError(
                f"Labels must be {wanted} per sample. Found {tuple(y.shape)} for {samples} samples in {where}."
            )
        if self.target == "number":
            if not bool(torch.isfinite(y).all()):
                raise EquipoiseError(f"Numbers to predict must be finite. Found NaN or infinity in {where}.")
            return y.to(torch.get_default_dtype())
        if wide:
            if not bool(((y == 0) | (y == 1)).all()):
                raise EquipoiseError(f"Labels must be 0 or 1. Found {y[(y != 0) & (y != 1)][0].item()} in {where}.")
            return y.to(torch.get_default_dtype())
        if y.is_floating_point() and not bool((y == y.round()).all()):
            raise EquipoiseError(
                f"Labels must be classes 0, 1, 2, ... Found {y[y != y.round()][0].item()} in {where}. For numbers to "
                'predict, say target="number".'
            )
        return y.long()

    def finish(self, classes: int | Sequence[str] | None) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        if self.target != "classes":
            return torch.cat(self.x), torch.cat(self.y), self._name_targets(classes)
        highest = max(int(y.max()) for y in self.y)
        names = [str(i) for i in range(highest + 1)] if classes is None else classes
        names = [str(i) for i in range(names)] if isinstance(names, int) else list(names)
        for y, (_, where) in zip(self.y, self.owners, strict=True):
            wrong = y[(y < 0) | (y >= len(names))]
            if len(wrong):
                raise EquipoiseError(
                    f"Labels must lie in 0 .. {len(names) - 1} ({len(names)} classes). Found {int(wrong[0])} in {where}."
                )
        return torch.cat(self.x), torch.cat(self.y), tuple(names)

    def name_groups(self) -> Groups | None:
        """The groups of all samples, if every client gave some."""
        if not self.groups:
            return None
        if len(self.groups) < len(self.x):
            raise EquipoiseError("Some arrays have groups, and others do not. Give (samples, labels, groups) for all.")
        return mark_groups("group", [mark for marks in self.groups for mark in marks])

    def _name_targets(self, given: int | Sequence[str] | None) -> tuple[str, ...]:
        """The names of the labels, or of the number to predict."""
        if self.target == "number":
            return ("number",) if given is None or isinstance(given, int) else tuple(given)
        widths = {y.shape[1] for y in self.y}
        if len(widths) > 1:
            raise EquipoiseError(
                f"All clients must have the same labels. Found {join_words(sorted(map(str, widths)))}."
            )
        names = tuple(f"label {i}" for i in range(widths.pop()))
        return names if given is None or isinstance(given, int) else tuple(given)
