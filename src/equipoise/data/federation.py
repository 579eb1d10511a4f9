"""A federation: one pool of samples, and for each client the positions of its training, validation and test samples."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise import seeds
from equipoise.data import partitions
from equipoise.data.arrays import Arrays, Groups, Pool, standardise
from equipoise.data.clients import NOTHING, Client, Crowd, Identity, Integers, Split
from equipoise.data.remarks import remark_on_clients
from equipoise.errors import EquipoiseError
from equipoise.grammar import did_you_mean, join_words, require
from equipoise.losses import USUAL, Target
from equipoise.metrics import POOLED
from equipoise.training import Training

HoldOut = int | str | Sequence[str]  # how many clients never train; or names of clients or domains, or text with commas
SCORED_OF_CROWD = 1000  # clients of a crowd that are scored, unless a run says otherwise
NO_CLIENTS = "A federation needs at least one client. Found none."


@dataclass(frozen=True)
class Protocol:
    """How a data set is meant to be trained: what a run uses where the user says nothing."""

    rounds: int = 30  # federated rounds
    participation: float = 1.0  # share of the clients in each round
    training: Training = field(default_factory=Training)  # how a client trains in a round
    model: str = "linear"  # a network as text, such as "mlp(hidden=(64,))"
    name: str = "default"  # of the protocol, as records tell it
    note: str = ""  # what a reader of results should know about it
    loss: str = "cross_entropy"  # what clients minimise, as text
    # The first model is the one after `torch.manual_seed(this + the run's seed)`, as in a public code; None: ours.
    torch_seed: int | None = None


class Preparation:
    """Turns raw samples into what the model sees. This one does nothing; that of images normalises and augments.

    The augmentation is driven by `draws` uniform numbers per sample. They follow from the seed alone, so that the
    result does not depend on the runner.
    """

    draws: int = 0  # random numbers per sample

    def training(self, x: Tensor, draws: Tensor) -> Tensor:
        """Prepare a batch for training: `x [n, ...]`, `draws [n, self.draws]`."""
        return self.evaluation(x)

    def evaluation(self, x: Tensor) -> Tensor:
        """Prepare samples for evaluation: as for training, but without augmentation."""
        return x

    def describe(self) -> dict[str, object] | None:
        """What must be stored to prepare samples in the same way later, as JSON values; None if nothing must."""
        return None


@dataclass(frozen=True, eq=False)
class Federation:
    """Who holds what. `x` and `y` are one pool of samples; a client is a set of positions in it."""

    name: str
    x: Tensor  # [n, ...], the samples
    # Their targets: [n] positions in `classes`; [n] standardised floating-point numbers, `(number - centre) / spread`;
    # or [n, labels] floating-point zeros and ones.
    y: Tensor
    clients: tuple[Client, ...] | Crowd
    classes: tuple[str, ...]  # the names of the classes, of the labels, or of the one number to predict
    protocol: Protocol = field(default_factory=Protocol)  # how the data are meant to be trained
    preparation: Preparation = field(default_factory=Preparation)  # how samples become what the model sees
    notes: tuple[str, ...] = ()  # what a reader of results must know (generated data, smaller settings)
    digest: str = ""  # hash of the pool, if it is known already, so that a large pool on disk need not be read for it
    schema: Mapping[str, object] | None = None  # of tables and of a user's own data: label, classes and columns
    is_elsewhere: bool = False  # the data are at the clients, and the pool only has their shape
    dataset: str = ""  # the library's name for these data; empty for a user's own
    arguments: str = ""  # of the data set, as the user wrote them: "alpha=0.1"
    seed: int = 0  # of the data set
    unseen: tuple[Client, ...] = ()  # clients that are held out: they never train, and are only scored
    centre: float = 0.0  # of a number to predict: it is `centre + spread * y`
    spread: float = 1.0
    groups: Groups | None = None  # which group each sample is in; None: samples are in none
    # Draws the same data set with another seed, for data that are drawn anew for each seed of a run; None: they are not.
    redraw: Callable[[int], Federation] | None = None
    redrawn: bool = False  # these were drawn for the seed of a run
    # [n], the numbers to predict as they were given, where centre and spread come from the training clients: they are
    # found again if a client is held out. None where they were agreed on before, and for other targets.
    numbers: Tensor | None = None

    def __post_init__(self) -> None:
        if isinstance(self.clients, Crowd):  # which has looked at itself, and numbers its clients
            return
        twins = [name for name, count in Counter(c.name for c in (*self.clients, *self.unseen)).items() if count > 1]
        if twins:
            raise EquipoiseError(f"Client names must differ. Found `{twins[0]}` more than once.")
        if not self.clients:
            raise EquipoiseError(NO_CLIENTS)
        for client in self.clients:
            if len(client.train) == 0:
                raise EquipoiseError(f"Client `{client.name}` has no training samples. Leave it out, or give it some.")

    # ------------------------------------------------------------------ facts
    def __len__(self) -> int:
        return len(self.clients)

    @property
    def setting(self) -> str:
        """The library's name for these data with that of their preset, `pacs cpu`; empty for a user's own."""
        return f"{self.dataset} {self.protocol.name}" if self.dataset else ""

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains, in the order of the clients. A client without a domain is a domain of its own."""
        return tuple(dict.fromkeys(client.domain or client.name for client in self.clients))

    @property
    def domain_count(self) -> int:
        """The number of domains."""
        return len(self.clients) if isinstance(self.clients, Crowd) else len(self.domains)

    def count(self, split: Split) -> Integers:
        """How many samples of a split each client has, `[clients]`."""
        if isinstance(self.clients, Crowd):
            return self.clients.count(split)
        return np.array([len(client.split(split)) for client in self.clients])

    def available(self, round: int) -> Sequence[int]:
        """The numbers of the clients that can take part in a round. Rounds are counted from 0."""
        joins = self._joins
        if not joins.any():
            return range(len(self.clients))
        there = np.flatnonzero(joins <= round).tolist()
        if not there:
            raise EquipoiseError(f"No client can take part in round {round}: all join later. Let one join in round 0.")
        return there

    @cached_property
    def _joins(self) -> NDArray[np.int64]:
        return np.zeros(1, int) if isinstance(self.clients, Crowd) else np.array([c.joins for c in self.clients])

    @property
    def target(self) -> Target:
        """What is to be predicted: one of several classes, a number, or yes or no for each of several labels."""
        if self.y.dim() == 2:
            return "labels"
        return "number" if self.y.is_floating_point() else "classes"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample as the model sees it."""
        return tuple(self.example().shape[1:])

    @property
    def total_samples(self) -> int:
        """The number of training samples of all clients together."""
        return int(self.count("train").sum())

    def example(self) -> Tensor:
        """Two prepared samples, from which a model learns the shape of its input."""
        x = self.x[:2] if len(self.x) > 1 else self.x[[0, 0]]
        return self.preparation.evaluation(x)

    def class_counts(self, split: Split = "train", clients: Sequence[Client] | None = None) -> Tensor:
        """Samples of each class, or with each label, at each client, or at these, [clients, classes]; all samples for a
        number."""
        held = [self.y[client.split(split)] for client in (self.clients if clients is None else clients)]
        if self.target == "classes":
            return torch.stack([torch.bincount(y, minlength=len(self.classes)) for y in held])
        return torch.stack([y.sum(0).long() if y.dim() == 2 else torch.tensor([len(y)]) for y in held])

    @cached_property
    def training_positions(self) -> tuple[Integers | Identity, Integers, Integers]:
        """The training positions of all clients in one array, where each client's begin in it, and how many it has."""
        if isinstance(self.clients, Crowd):
            return Identity(), self.clients.starts, self.clients.train
        sizes = self.count("train")
        whole = torch.cat([client.train for client in self.clients]).cpu().numpy()
        return whole, np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes

    @cached_property
    def pool_digest(self) -> str:
        """A hash of all samples and labels. A federation that is made from this one has the same."""
        if self.digest:
            return self.digest
        digest = hashlib.sha256(repr((tuple(self.x.shape), str(self.x.dtype))).encode())
        for tensor in (self.x, self.y, *(() if self.groups is None else (self.groups.of,))):
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        return digest.hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the pool and of the partition: two runs with equal fingerprints used the same data."""
        digest = hashlib.sha256(repr((self.classes, self.pool_digest)).encode())
        if not isinstance(self.clients, Crowd):
            digest.update(repr([(client.name, client.domain, client.joins) for client in self.clients]).encode())
            if any(client.optimum is not None for client in self.clients):
                digest.update(repr([client.optimum for client in self.clients]).encode())
        digest.update(self.partition.encode())
        if self.unseen:
            held = [client.name for client in self.unseen]
            digest.update(repr((held, self._hash_positions([find_scored(c) for c in self.unseen]))).encode())
        return digest.hexdigest()[:16]

    @cached_property
    def partition(self) -> str:
        """A hash of who holds which samples, whatever the samples are."""
        if isinstance(self.clients, Crowd):
            return self.clients.digest
        return self._hash_positions([c.split(name) for c in self.clients for name in get_args(Split)])

    def _hash_positions(self, parts: Sequence[Tensor]) -> str:
        """A hash of parts of the pool. Where the data are elsewhere, only their sizes are known."""
        known = [torch.tensor([len(part)]) for part in parts] if self.is_elsewhere else parts
        return partitions.hash_partition(known)

    # ------------------------------------------------------------------ other federations made from this one
    def draw_for(self, seed: int) -> Federation:
        """The data of a run with this seed: drawn anew if the data set says `seed='run'`, otherwise these."""
        return self if self.redraw is None else replace(self.redraw(seed), redrawn=True)

    def with_validation(self, share: float = 0.2, seed: int = 0) -> Federation:
        """The same federation, where every client without a validation part sets aside a share of its training data.

        A client with a single sample cannot set one aside: it validates on the sample that it trains on.
        """
        if isinstance(self.clients, Crowd):  # its last training samples, because they lie side by side
            return replace(self, clients=self.clients.set_aside(share), digest=self.pool_digest)
        clients = tuple(_set_aside(client, share, seed) for client in self.clients)
        return replace(self, clients=clients, digest=self.pool_digest)

    def hold_out(self, which: HoldOut) -> Federation:
        """The same federation, in which some clients are `unseen`: they never train, and are only scored.

        `which` is how many, drawn by the seed of the data set; or the names of clients or of whole domains, in a list or
        separated by commas. A text that is a number is a number. Numbers to predict are standardised again, by those
        who are left, unless a schema says how.

        >>> from equipoise.data import load_federation
        >>> held = load_federation("gaussians").hold_out("client 1")
        >>> [client.name for client in held.clients], [client.name for client in held.unseen]
        (['client 0', 'client 2'], ['client 1'])
        """
        if isinstance(which, str) and which.strip().isdecimal():
            which = int(which)
        if which == 0:
            return self
        names = self._draw_held_out(which) if isinstance(which, int) else _split_names(which)
        if not names:
            return self
        if isinstance(self.clients, Crowd):
            raise EquipoiseError(
                f"Clients of a crowd cannot be held out: their samples lie side by side. Found hold_out={which!r}: build the "
                "federation without them."
            )
        held = {client.name for client in self.clients if {client.name, client.domain} & set(names)}
        known = dict.fromkeys((*(client.name for client in self.clients), *self.domains))
        for name in names:
            if name not in known:
                raise EquipoiseError(
                    f"There is no client and no domain `{name}` to hold out.{did_you_mean(name, known)} There are "
                    f"{join_words(list(known), 12)}."
                )
        if len(held) == len(self.clients):
            raise EquipoiseError(
                f"Nobody would be left to train: all {len(held)} clients are held out by {which!r}. Leave some of them in."
            )
        left = replace(
            self,
            clients=tuple(client for client in self.clients if client.name not in held),
            unseen=(*self.unseen, *(client for client in self.clients if client.name in held)),
            digest=self.pool_digest,
        )
        return left if self.numbers is None else left._standardise_again(self.numbers)

    def _standardise_again(self, numbers: Tensor) -> Federation:
        """The same federation, with numbers to predict that are centred and divided as its training clients ask for."""
        y, centre, spread = standardise(numbers, [client.train for client in self.clients])
        schema = None if self.schema is None else {**self.schema, "centre": centre, "spread": spread}
        return replace(self, y=y, centre=centre, spread=spread, schema=schema)

    def _draw_held_out(self, count: int) -> list[str]:
        """The names of `count` clients, drawn by the seed of the data set."""
        if isinstance(count, bool) or not 0 <= count < len(self.clients):
            raise EquipoiseError(
                f"hold_out must be from 0 to {len(self.clients) - 1}, so that somebody of the {len(self.clients)} clients "
                f"is left to train. Found {count!r}."
            )
        order = seeds.permutation(len(self.clients), self.seed, "held out").tolist()
        return [self.clients[k].name for k in order[:count]]

    def pooled(self) -> Federation:
        """The same data at one client that holds all of them: what the reference method `centralised` trains on."""
        train = torch.cat([client.train for client in self.clients])
        validation = torch.cat([client.validation for client in self.clients])
        return replace(self, clients=(Client(POOLED, train, validation),))

    # ------------------------------------------------------------------ a user's own arrays
    @classmethod
    def from_pool(
        cls,
        x: Tensor,
        y: Tensor,
        *,
        train: int | Sequence[int],
        test: int | Sequence[int],
        classes: int | Sequence[str],
        name: str = "own pool",
        protocol: Protocol | None = None,
        digest: str = "",
    ) -> Federation:
        """A federation of very many clients, whose samples lie one after the other: for each its training samples, then
        its test samples.

        `x [n, ...]` and `y [n]` may be memory-mapped (`torch.from_file`), and no client is made before it is needed.
        `train` and `test` are how many samples each client has: one number for all, or one per client. `classes` is the
        number of classes, or their names. `digest` names the content of the pool, so that it need not be read for a hash.
        Scores are those of a sample of the clients, see `docs/scale.md`.

        >>> pool = torch.randn(60, 3), torch.arange(60) % 2
        >>> federation = Federation.from_pool(*pool, train=4, test=2, classes=2)
        >>> len(federation), federation.clients[7].train, federation.clients[7].test
        (10, tensor([42, 43, 44, 45]), tensor([46, 47]))
        """
        if isinstance(train, int) and isinstance(test, int):
            require(train >= 1, "train", "at least 1", train)
            require(test >= 0, "test", "at least 0", test)
            held = [np.full(len(x) // (train + test), one, dtype=np.int64) for one in (train, test)]
        else:
            count = len(train) if not isinstance(train, int) else len(test) if not isinstance(test, int) else 0
            held = [np.broadcast_to(np.asarray(one, dtype=np.int64), (count,)) for one in (train, test)]
        sizes = held[0] + held[1]
        if not len(sizes) or int(sizes.sum()) != len(x) or len(x) != len(y):
            raise EquipoiseError(
                f"The clients' samples must be all of the pool: {int(sizes.sum())} are dealt out, x has {len(x)}, y {len(y)}."
            )
        names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
        crowd = Crowd(np.concatenate([[0], np.cumsum(sizes)[:-1]]), held[0], np.zeros_like(sizes), held[1])
        return cls(name, x, y, crowd, names, protocol or Protocol(), digest=digest)

    @classmethod
    def from_tensors(
        cls,
        train: Mapping[str, Arrays] | Sequence[tuple[str, Arrays]],
        *,
        test: Mapping[str, Arrays] | None = None,
        validation: Mapping[str, Arrays] | None = None,
        domains: Mapping[str, str] | None = None,
        classes: int | Sequence[str] | None = None,
        target: Target = "classes",
        joins: Mapping[str, int] | None = None,
        optima: Mapping[str, float] | None = None,
        test_share: float = 0.2,
        seed: int = 0,
        name: str = "own data",
        protocol: Protocol | None = None,
    ) -> Federation:
        """A federation of your own arrays: for each client samples `[n, ...]` and integer labels `[n]`.

        With `target="number"` the second array holds numbers to predict `[n]`, which are standardised by mean and
        standard deviation of all clients' training samples; with `target="labels"` zeros and ones `[n, labels]`.

        Samples of whole numbers (not bytes) stay whole numbers, for models that take tokens; other models get them as
        floating-point numbers.

        `validation` and `test` are held out in the same form. Without `test`, `test_share` of each client's samples is
        set aside for testing (none where it has a single one). `domains` gives each client's domain, `joins` the first
        round in which it can take part, `optima` the smallest loss that it can reach alone, where it knows it; `classes`
        is the number of classes, or their names. A third array per client puts its samples into groups, such as
        `["f", "m", "f"]`, which are compared and never enter the model.

        >>> import torch
        >>> x, y = torch.randn(20, 3), torch.arange(20) % 2
        >>> federation = Federation.from_tensors({"north": (x, y), "south": (x + 1, y)})
        >>> [(client.name, len(client.train), len(client.test)) for client in federation.clients]
        [('north', 16, 4), ('south', 16, 4)]
        """
        pairs = list(train.items()) if isinstance(train, Mapping) else list(train)
        if not pairs:
            raise EquipoiseError(NO_CLIENTS)
        require(0 <= test_share < 1, "test_share", "at least 0 and below 1", test_share)
        names = [client for client, _ in pairs]
        given = {"test": test, "validation": validation, "domains": domains, "joins": joins, "optima": optima}
        for what, other in given.items():
            for unknown in set(other or {}) - set(names):
                raise EquipoiseError(f"`{what}` names the client `{unknown}`, which is not in `train`.")
        pool = Pool(target)
        clients = []
        for client, arrays in pairs:
            index = pool.add(arrays, client, "training")
            held_out = (
                pool.add(validation[client], client, "validation") if validation and client in validation else NOTHING
            )
            tested = pool.add(test[client], client, "test") if test and client in test else NOTHING
            if not test and test_share > 0:
                index, tested = _divide(index, test_share, seed, client, "test")
            domain, joined = (domains or {}).get(client, ""), (joins or {}).get(client, 0)
            clients.append(Client(client, index, held_out, tested, domain, joined, (optima or {}).get(client)))
        x, y, class_names = pool.finish(classes)
        numbers, centre, spread = (y if target == "number" else None), 0.0, 1.0
        if numbers is not None:
            y, centre, spread = standardise(numbers, [c.train for c in clients])
        labels = {c.name: y[c.train] for c in clients} if target == "classes" else {}
        notes = remark_on_clients(labels, {c.name: len(c.test) for c in clients}, class_names, where={})
        plan = protocol or Protocol(loss=USUAL[target])
        return cls(
            name, x, y, tuple(clients), class_names, plan, notes=tuple(notes), centre=centre, spread=spread,
            groups=pool.name_groups(), numbers=numbers,
        )  # fmt: skip


def draw_scored(federation: Federation, count: int | None, seed: int) -> Sequence[int]:
    """The numbers of the clients that a run scores: `count` of them, drawn by the run's seed; all, if it is None and they
    are no crowd."""
    if count is None:
        count = SCORED_OF_CROWD if isinstance(federation.clients, Crowd) else len(federation)
    return (
        range(len(federation)) if count >= len(federation) else seeds.draw_few(len(federation), count, seed, "scored")
    )


def find_scored(client: Client) -> Tensor:
    """The positions of the samples on which a client that never trains is scored: its test data or, without any, all
    that it would have trained on."""
    return client.test if len(client.test) else client.train


def _split_names(which: str | Sequence[str]) -> list[str]:
    """The names in a list, or in a text that separates them by commas."""
    names = which.split(",") if isinstance(which, str) else which
    if not all(isinstance(name, str) for name in names):
        raise EquipoiseError(f"hold_out must be a number of clients, or names of clients or domains. Found {which!r}.")
    return [name.strip() for name in names if name.strip()]


def divide_clients(
    parts: Mapping[str, Tensor], shares: tuple[float, float, float], *path: int | str
) -> tuple[Client, ...]:
    """One client per named part, with its samples divided into training, validation and test ones by random draws that
    follow from `path`."""
    return tuple(
        Client(name, *partitions.split_three_ways(part, shares, *path, "split", name)) for name, part in parts.items()
    )


def number_parts(parts: Sequence[Tensor]) -> dict[str, Tensor]:
    """Names for parts that have none: `client 0`, `client 1` and so on."""
    return {f"client {k}": part for k, part in enumerate(parts)}


def _divide(index: Tensor, share: float, seed: int, *path: str) -> tuple[Tensor, Tensor]:
    """What stays and what is set aside: at least one sample each, if there are two."""
    if len(index) < 2:
        return index, NOTHING
    count = min(max(1, round(share * len(index))), len(index) - 1)
    order = seeds.permutation(len(index), seed, "split", *path)
    return index[order[count:].sort().values], index[order[:count].sort().values]


def _set_aside(client: Client, share: float, seed: int) -> Client:
    if len(client.validation):
        return client
    train, validation = _divide(client.train, share, seed, client.name, "validation")
    return replace(client, train=train, validation=validation if len(validation) else train)
