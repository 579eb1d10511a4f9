"""The library's only source of randomness.

Every draw belongs to a path such as ``(seed, "batches", round, client)`` and depends on nothing else, in particular not
on earlier draws. So a client's random numbers do not depend on which other clients take part, on the runner, or on the
order in which clients answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Built = TypeVar("Built")
Integers = NDArray[np.int64]
VERY_MANY = 1 << 17  # clients: an order of so many takes longer than a round of a few of them


def key(*path: int | str) -> int:
    """A 63-bit key that depends on every element of the path.

    >>> key(0, "batches", 1, 2) == key(0, "batches", 1, 2), key(0, "batches", 1, 2) == key(0, "batches", 2, 1)
    (True, False)
    """
    digest = hashlib.blake2b(repr(path).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*path: int | str) -> torch.Generator:
    """A random generator for this path. It is on the CPU, so that all devices get the same numbers."""
    return torch.Generator().manual_seed(key(*path))


def permutation(size: int, *path: int | str) -> Tensor:
    """A random order of ``0 .. size-1``."""
    return torch.randperm(size, generator=generator(*path))


def permutations(sizes: Integers, count: int, keys: Sequence[int]) -> Integers:
    """For each key, `count` random orders of ``0 .. size-1``, as an array `[keys, count, largest size]`.

    The orders of a key do not depend on the other keys: entries are sorted by a hash (SplitMix64) of the key, the
    number of the order and the entry. Entries at or beyond a key's own size come last.

    >>> permutations(np.array([3, 2]), 1, [key("a"), key("b")]).shape
    (2, 1, 3)
    """
    longest = int(sizes.max())
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        entry = np.arange(1, longest + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        repeat = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
        mixed = _mixed(np.array(keys, dtype=np.uint64)[:, None] + repeat)[:, :, None] + entry
        ranks = _mixed(mixed) >> np.uint64(1)
    ranks[np.broadcast_to(np.arange(longest)[None, None, :] >= sizes[:, None, None], ranks.shape)] = np.uint64(2**63)
    return ranks.argsort(axis=2, kind="stable")


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def shuffle_in_turn(sizes: Sequence[int], seed: int) -> list[list[int]]:
    """Orders of ``0 .. size-1`` that numpy's legacy generator gives one after the other from one seed.

    Public codes divide their data so: whoever wants their very splits needs the same draws.

    >>> shuffle_in_turn([3, 2], 0)
    [[2, 1, 0], [0, 1]]
    """
    draw = np.random.RandomState(seed)
    orders = [list(range(size)) for size in sizes]
    for order in orders:
        draw.shuffle(order)
    return orders


def uniform(shape: Sequence[int], *path: int | str) -> Tensor:
    """A tensor of this shape with uniform draws from [0, 1), on the CPU."""
    return torch.rand(tuple(shape), generator=generator(*path))


def draw_participants(available: Sequence[int], count: int, seed: int, round: int) -> list[int]:
    """The ids of `count` clients drawn for one round, in ascending order. They do not depend on the method.

    >>> draw_participants([0, 1, 2], 3, seed=0, round=7)
    [0, 1, 2]
    """
    if count >= len(available):
        return sorted(available)
    if len(available) > VERY_MANY:
        return sorted(available[i] for i in draw_few(len(available), count, seed, "participants", round))
    chosen = permutation(len(available), seed, "participants", round)[:count]
    return sorted(available[i] for i in chosen.tolist())


def draw_few(total: int, count: int, *path: int | str) -> list[int]:
    """`count` different numbers below `total`, in ascending order, without a list of all: for few of very many.

    >>> len(set(draw_few(10**9, 100, 0, "few")))
    100
    """
    draw, found = generator(*path), set[int]()
    while len(found) < min(count, total):
        found.update(torch.randint(total, (count - len(found),), generator=draw).tolist())
    return sorted(found)


def build_from_seed(build: Callable[[], Built], *path: int | str) -> Built:
    """Call `build` with torch's global generator seeded by this path, and restore the generator afterwards."""
    return build_from_torch_seed(build, key(*path))


def build_from_torch_seed(build: Callable[[], Built], seed: int) -> Built:
    """Call `build` after `torch.manual_seed(seed)`, as public codes do, and restore the generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
