"""Shards of a study: which of its runs one of several machines does. A run belongs to exactly one shard."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from equipoise.errors import EquipoiseError

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shard:
    """The share of machine `number` of `count`, counted from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that `--shard` names.

        >>> Shard.parse("2/3").take("abcdefg")
        ['b', 'e']
        """
        found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", text)
        number, count = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= number <= count:
            raise EquipoiseError(
                f"--shard must be i/n with i from 1 to n, such as 2/8 for the second of eight machines. Found {text!r}."
            )
        return cls(number, count)

    def take(self, items: Sequence[Item]) -> list[Item]:
        """Every n-th item, from the i-th on, so that each machine gets some of every method."""
        return list(items[self.number - 1 :: self.count])

    @property
    def is_whole(self) -> bool:
        """Whether one machine does everything."""
        return self.count == 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"
