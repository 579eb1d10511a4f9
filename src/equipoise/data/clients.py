"""Clients: who holds which samples of a federation's pool. A `Crowd` is very many of them, made when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import EquipoiseError

Split = Literal["train", "validation", "test"]
Integers = NDArray[np.int64]
NOTHING = torch.zeros(0, dtype=torch.long)


@dataclass(frozen=True, eq=False)
class Client:
    """A data owner: its name, and the positions of its samples in the federation's pool.

    Clients of one domain may share a test set: they then hold the same tensor.
    """

    name: str
    train: Tensor  # positions of its training samples
    validation: Tensor = NOTHING  # positions of its validation samples
    test: Tensor = NOTHING  # positions of its test samples
    domain: str = ""  # the kind of data that it holds; empty: it is a domain of its own
    joins: int = 0  # the first round in which it can take part, counted from 0
    optimum: float | None = None  # the smallest loss that it can reach alone, if it knows it (EAGLE's L*)

    def split(self, name: Split) -> Tensor:
        """The positions of its training, validation or test samples."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]


@dataclass(frozen=True, eq=False)
class Crowd(Sequence[Client]):
    """Clients whose samples lie one after the other in the pool: for each, training, validation and test samples.

    No client is made before it is asked for, so that a million of them take a few arrays.
    """

    starts: Integers  # [N], where each client's samples begin
    train: Integers  # [N], how many training samples it has
    validation: Integers  # [N]
    test: Integers  # [N]

    def __post_init__(self) -> None:
        if len(self.train) and int(self.train.min()) < 1:
            number = int(self.train.argmin())
            raise EquipoiseError(f"Client `client {number}` has no training samples. Leave it out, or give it some.")

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, number: int) -> Client: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Client]: ...
    def __getitem__(self, number: int | slice) -> Client | Sequence[Client]:
        if isinstance(number, slice):
            return [self[k] for k in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        number %= len(self)
        a, b, c, d = np.cumsum(
            [self.starts[number], self.train[number], self.validation[number], self.test[number]]
        ).tolist()
        return Client(f"client {number}", torch.arange(a, b), torch.arange(b, c), torch.arange(c, d))

    def __iter__(self) -> Iterator[Client]:
        return (self[number] for number in range(len(self)))

    def count(self, split: Split) -> Integers:  # type: ignore[override]  # nobody counts equal clients
        """How many samples of a split each client has, `[N]`."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]

    def set_aside(self, share: float) -> Crowd:
        """The same clients, where each without validation samples takes the last of its training samples for it: at
        least one."""
        if int(self.train.min()) < 2:
            raise EquipoiseError("Clients of one sample cannot set one aside for validation: give each of them two.")
        taken = np.clip(np.rint(share * self.train).astype(np.int64), 1, self.train - 1)
        taken = np.where(self.validation > 0, 0, taken)
        return replace(self, train=self.train - taken, validation=self.validation + taken)

    @property
    def digest(self) -> str:
        """A hash of who holds what."""
        found = hashlib.sha256()
        for array in (self.starts, self.train, self.validation, self.test):
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()


class Identity:
    """An array in which each position holds itself, without memory."""

    def __getitem__(self, index: Integers) -> Integers:
        return index
