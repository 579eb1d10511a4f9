"""Partitions: rules that deal samples out to clients, reproducible from a seed. Each gives one index array per client.

Every rule uses each sample at most once (but for `of_domain` with `complete`), and all samples where it can. A request
that no partition can meet is an error that says what would be possible.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from equipoise import seeds
from equipoise.errors import EquipoiseError
from equipoise.grammar import Entry, Registry, parse_one, require

Parts = list[Tensor]  # one index array per client
ATTEMPTS = 100  # draws of a random partition, until every client has the smallest size that was asked for


def hash_partition(parts: Sequence[Tensor]) -> str:
    """A hash of a partition: equal hashes mean that every client holds the same samples in the same order.

    >>> hash_partition([torch.tensor([0, 1])]) == hash_partition([torch.tensor([0]), torch.tensor([1])])
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(part.numpy()).data)
    return digest.hexdigest()[:16]


# --------------------------------------------------------------------------- rules
def iid(labels: Tensor, clients: int = 10, seed: int = 0) -> Parts:
    """Every client gets a random part of the same size."""
    _enough(len(labels), clients)
    return _cut(seeds.permutation(len(labels), seed, "iid"), _even(len(labels), clients))


def quantity(labels: Tensor, clients: int = 10, alpha: float = 0.5, min_size: int = 2, seed: int = 0) -> Parts:
    """Random parts of unequal size: the shares are one draw from a Dirichlet distribution."""
    require(alpha > 0, "alpha", "above 0", alpha)
    _enough(len(labels), clients, min_size)

    def attempt(number: int) -> Parts:
        share = _dirichlet(alpha, (clients,), seed, "quantity", number)
        order = seeds.permutation(len(labels), seed, "quantity", "order")
        return _cut(order, _rounded(share * len(labels)))

    return _at_least(min_size, attempt, f"quantity(clients={clients}, alpha={alpha})", len(labels) // clients)


def dirichlet(labels: Tensor, clients: int = 10, alpha: float = 0.5, min_size: int = 2, seed: int = 0) -> Parts:
    """Every class is split by its own draw from a Dirichlet distribution; the smaller `alpha`, the more unequally."""
    require(alpha > 0, "alpha", "above 0", alpha)
    _enough(len(labels), clients, min_size)

    def attempt(number: int) -> Parts:
        mine: list[Parts] = [[] for _ in range(clients)]
        for label in labels.unique().tolist():
            members = _shuffled((labels == label).nonzero()[:, 0], seed, "dirichlet", number, label, "order")
            share = _dirichlet(alpha, (clients,), seed, "dirichlet", number, label)
            for k, part in enumerate(_cut(members, _rounded(share * len(members)))):
                mine[k].append(part)
        return [torch.cat(parts) for parts in mine]

    return _at_least(min_size, attempt, f"dirichlet(clients={clients}, alpha={alpha})", len(labels) // clients)


def shards(labels: Tensor, clients: int = 100, per_client: int = 2, seed: int = 0) -> Parts:
    """Samples sorted by class and cut into equal shards, of which every client draws `per_client`."""
    require(per_client >= 1, "per_client", "at least 1", per_client)
    count = clients * per_client
    size = len(labels) // max(1, count)
    if size == 0:
        raise EquipoiseError(
            f"{len(labels)} samples cannot be cut into {count} shards. Ask for at most {len(labels) // per_client} clients."
        )
    order = torch.argsort(labels, stable=True)[: count * size].view(count, size)
    return list(order[seeds.permutation(count, seed, "shards")].view(clients, per_client * size))


def classes(labels: Tensor, clients: int = 10, per_client: int = 2, seed: int = 0) -> Parts:
    """Every client holds `per_client` classes, each of them shared equally among those who hold it."""
    present = labels.unique().tolist()
    require(
        1 <= per_client <= len(present),
        "per_client",
        f"between 1 and {len(present)}, the classes there are",
        per_client,
    )
    if clients * per_client < len(present):
        raise EquipoiseError(
            f"{clients} clients with {per_client} classes each leave some of the {len(present)} classes to nobody. "
            f"Ask for at least {-(-len(present) // per_client)} clients."
        )
    # Classes are dealt in turn, in a shuffled order: the numbers of clients that hold them differ by one at most.
    order = [present[i] for i in seeds.permutation(len(present), seed, "classes").tolist()]
    held = [[order[(k * per_client + i) % len(order)] for i in range(per_client)] for k in range(clients)]
    mine: list[Parts] = [[] for _ in range(clients)]
    for label in present:
        members = _shuffled((labels == label).nonzero()[:, 0], seed, "classes", label)
        holders = [k for k in range(clients) if label in held[k]]
        if len(members) < len(holders):
            raise EquipoiseError(
                f"Class {label} has {len(members)} samples for {len(holders)} clients that hold it. Ask for fewer clients."
            )
        for k, part in zip(holders, _cut(members, _even(len(members), len(holders))), strict=True):
            mine[k].append(part)
    return [torch.cat(parts) for parts in mine]


def by_id(ids: Sequence[str]) -> dict[str, Tensor]:
    """The positions of the samples by the name of their owner, sorted by name."""
    found: dict[str, list[int]] = {}
    for position, name in enumerate(ids):
        found.setdefault(name, []).append(position)
    return {name: torch.tensor(found[name]) for name in sorted(found)}


def of_domain(labels: Tensor, clients: int, samples: int, seed: int, *path: str, complete: bool = False) -> Parts:
    """Clients of one domain: disjoint random parts of `samples` each.

    `complete` gives every client at least one sample of every class. As in the papers' code, a sample of a missing
    class is drawn from the whole domain, and replaces one of a class that has two or more: clients may then share a few
    samples.
    """
    if clients * samples > len(labels):
        raise EquipoiseError(
            f"{clients} clients with {samples} samples each need {clients * samples} samples of {'/'.join(path)}. "
            f"Found {len(labels)}: ask for at most {len(labels) // max(1, samples)} clients."
        )
    order = seeds.permutation(len(labels), seed, "domain", *path)
    parts = list(order[: clients * samples].view(clients, samples))
    if complete:
        parts = [_completed(part, labels, seeds.generator(seed, "complete", *path, k)) for k, part in enumerate(parts)]
    return parts


def _completed(part: Tensor, labels: Tensor, draw: torch.Generator) -> Tensor:
    part = part.clone()
    counts = torch.bincount(labels[part], minlength=int(labels.max()) + 1)
    for missing in [label for label in labels.unique().tolist() if counts[label] == 0]:
        spare = (counts[labels[part]] >= 2).nonzero()[:, 0]
        if len(spare) == 0:
            raise EquipoiseError(
                f"{len(part)} samples cannot show all {len(labels.unique())} classes. Give clients more."
            )
        place = spare[torch.randint(len(spare), (1,), generator=draw)]
        candidates = (labels == missing).nonzero()[:, 0]
        counts[labels[part[place]]] -= 1
        counts[missing] += 1
        part[place] = candidates[torch.randint(len(candidates), (1,), generator=draw)]
    return part


def stratified(labels: Tensor, count: int, *path: int | str) -> Tensor:
    """`count` random positions, in ascending order, in which every class has its share, to the nearest whole sample."""
    require(0 < count <= len(labels), "count", f"between 1 and {len(labels)}", count)
    present, sizes = labels.unique(return_counts=True)
    quotas = _rounded(sizes.double() * count / len(labels))
    chosen = [
        _shuffled((labels == label).nonzero()[:, 0], *path, label)[:quota]
        for label, quota in zip(present.tolist(), quotas, strict=True)
    ]
    return torch.cat(chosen).sort().values


def split_three_ways(
    index: Tensor, shares: tuple[float, float, float], *path: int | str, labels: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Divide one client's samples at random into training, validation and test parts; with `labels`, class by class.

    The training part is never empty. With few samples, the test part is filled before the validation part.
    """
    if labels is not None:
        by_class = [split_three_ways(index[labels == c], shares, *path, c) for c in labels.unique().tolist()]
        train, validation, test = (torch.cat(parts).sort().values for parts in zip(*by_class, strict=True))
        return train, validation, test
    wanted = torch.tensor([shares[0], shares[2], shares[1]], dtype=torch.float64)
    sizes = _rounded(wanted * len(index) / wanted.sum())
    if sizes[0] == 0 and len(index):
        largest = max((1, 2), key=lambda i: sizes[i])
        sizes[0], sizes[largest] = 1, sizes[largest] - 1
    train, test, validation = (part.sort().values for part in _cut(_shuffled(index, *path), sizes))
    return train, validation, test


# --------------------------------------------------------------------------- steps that the rules share
def _enough(samples: int, clients: int, min_size: int = 1) -> None:
    require(clients >= 1, "clients", "at least 1", clients)
    require(min_size >= 1, "min_size", "at least 1", min_size)
    if samples < clients * min_size:
        raise EquipoiseError(
            f"{clients} clients with at least {min_size} samples each need {clients * min_size} samples. Found {samples}: "
            f"ask for at most {samples // min_size} clients."
        )


def _at_least(min_size: int, attempt: Callable[[int], Parts], what: str, fair: int) -> Parts:
    """The first of `ATTEMPTS` draws in which every client has at least `min_size` samples."""
    best = 0
    for number in range(ATTEMPTS):
        parts = attempt(number)
        smallest = min(map(len, parts))
        if smallest >= min_size:
            return parts
        best = max(best, smallest)
    smaller = f" or min_size={best}" if best else ""
    raise EquipoiseError(
        f"None of {ATTEMPTS} draws of {what} gave every client {min_size} samples; at best the smallest got {best}. Equal "
        f"parts would have {fair} each: use a larger alpha, fewer clients{smaller}."
    )


def _dirichlet(alpha: float, shape: tuple[int, ...], *path: int | str) -> Tensor:
    draw = np.random.Generator(np.random.PCG64(seeds.key(*path)))
    return torch.from_numpy(draw.dirichlet(np.full(shape, alpha)))


def _shuffled(index: Tensor, *path: int | str) -> Tensor:
    return index[seeds.permutation(len(index), *path)]


def _even(total: int, count: int) -> list[int]:
    return [total // count + (i < total % count) for i in range(count)]


def _rounded(sizes: Tensor) -> list[int]:
    """Sizes rounded to whole numbers with the same sum: those with the largest remainders are rounded up."""
    total = round(float(sizes.sum()))
    whole = sizes.floor().long()
    left = total - int(whole.sum())
    up = torch.argsort(sizes - whole, descending=True, stable=True)[:left]
    whole[up] += 1
    return whole.tolist()


def _cut(index: Tensor, sizes: Sequence[int]) -> Parts:
    return list(torch.split(index, list(sizes)))


# --------------------------------------------------------------------------- by name
PARTITIONS: Registry[Parts] = Registry("partition", listed=False)
for _rule in (iid, dirichlet, shards, classes, quantity):
    PARTITIONS[_rule.__name__] = Entry(_rule.__name__, _rule, (_rule.__doc__ or "").split("\n")[0])


def deal(text: str, labels: Tensor) -> Parts:
    """A partition from text such as `dirichlet(clients=10, alpha=0.1)`.

    >>> [len(part) for part in deal("iid(clients=3)", torch.zeros(10))]
    [4, 3, 3]
    """
    call = parse_one(text, "partition", "dirichlet(clients=10, alpha=0.5)")
    entry = PARTITIONS.find(call.name)
    arguments = dict(call.arguments)
    if "labels" in arguments:
        raise EquipoiseError(f"`labels` of a partition follow from the data. Leave them out of `{text}`.")
    return entry.function(labels, **entry.check(arguments))
