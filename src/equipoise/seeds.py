"""The only source of randomness.

Every draw comes from a path such as ``(seed, "batches", round, client)``. Nothing depends on what was drawn before,
so a client's numbers do not depend on its cohort, on the runner, or on the order in which clients answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Built = TypeVar("Built")


def key(*path: int | str) -> int:
    """A 63-bit key that depends on every element of the path.

    >>> key(0, "batches", 1, 2) == key(0, "batches", 1, 2), key(0, "batches", 1, 2) == key(0, "batches", 2, 1)
    (True, False)
    """
    digest = hashlib.blake2b(repr(path).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*path: int | str) -> torch.Generator:
    """A generator on the CPU (so that every device sees the same numbers) that belongs to this path alone."""
    return torch.Generator().manual_seed(key(*path))


def permutation(size: int, *path: int | str) -> Tensor:
    """A random order of ``0 .. size-1``."""
    return torch.randperm(size, generator=generator(*path))


def uniform(shape: Sequence[int], *path: int | str) -> Tensor:
    """Uniform draws from [0, 1)."""
    return torch.rand(tuple(shape), generator=generator(*path))


def participants(available: Sequence[int], count: int, seed: int, round: int) -> list[int]:
    """The clients of one round, in ascending order: the same for every method of a comparison.

    >>> participants([0, 1, 2], 3, seed=0, round=7)
    [0, 1, 2]
    """
    if count >= len(available):
        return sorted(available)
    chosen = permutation(len(available), seed, "participants", round)[:count]
    return sorted(available[i] for i in chosen.tolist())


def initialised(build: Callable[[], Built], *path: int | str) -> Built:
    """Call a builder that draws from torch's global generator, and leave that generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(*path))
        return build()
