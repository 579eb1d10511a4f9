"""What tuning searches: a part that changes local training x a rule of the server x their parameters x local training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from equipoise.data import Federation
from equipoise.engine.loop import begin_run
from equipoise.errors import EquipoiseError
from equipoise.grammar import Call, Range, Searched, Value, parse_calls
from equipoise.method import METHODS
from equipoise.method.registry import adapt_to_data
from equipoise.methods import parse
from equipoise.study.jobs import Job
from equipoise.training import Training

NOTHING = "nothing"  # in place of a part that changes local training
REFERENCE = "fedavg"  # what every method is judged against; in a sum it changes nothing
RATES = Range(0.125, 4.0, log=True)  # local learning rates, as multiples of the data set's own
LENGTHS = (0.5, 1.0, 2.0)  # local epochs or steps, and batches, as multiples of the data set's own


class Chooser(Protocol):
    """Chooses values by name, as a trial of Optuna does."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of these values."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """A number."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """A whole number."""


@dataclass(frozen=True)
class Part:
    """A method that can be a summand: what is given of its parameters stays as it is, the others are searched."""

    name: str
    given: tuple[tuple[str, Value], ...] = ()
    ranges: tuple[tuple[str, Searched], ...] = ()

    @classmethod
    def of(cls, call: Call) -> Part:
        """The part of a method that a user named, with or without parameters."""
        given = dict(call.arguments)
        ranges = METHODS.find(call.name).ranges
        return cls(call.name, call.arguments, tuple((n, r) for n, r in ranges.items() if n not in given))

    @property
    def call(self) -> Call:
        """The method with the parameters that are given alone."""
        return Call(self.name, self.given)

    def choose(self, chooser: Chooser) -> Call:
        """The method with parameters that the chooser chooses."""
        chosen = [(name, choose(chooser, f"{self.name}.{name}", searched)) for name, searched in self.ranges]
        return Call(self.name, (*self.given, *chosen))

    def list_defaults(self, dataset: str) -> dict[str, Value]:
        """The values that a run on this data set has without tuning, by the names under which they are searched."""
        entry = METHODS.find(self.name)
        usual = {n: p.default for n, p in entry.parameters.items()} | entry.find_defaults(dataset)
        return {f"{self.name}.{name}": keep_within(usual[name], searched) for name, searched in self.ranges}


ALONE = Part(NOTHING)  # local training stays as it is


@dataclass(frozen=True)
class Point:
    """One point of a space: a method and how its clients train."""

    method: str
    training: Training


@dataclass(frozen=True)
class Space:
    """All sums of one of the clients' parts and one of the server's rules that can be built."""

    clients: tuple[Part, ...]  # what changes local training; the first may be `ALONE`
    servers: tuple[Part, ...]
    training: tuple[tuple[str, Searched], ...]  # of the local training
    base: Training  # what of the local training is not searched
    dataset: str  # and its preset, for the parameters that methods have for it
    apart: frozenset[tuple[str, str]] = frozenset()  # sums that cannot be built, as names

    def choose(self, chooser: Chooser) -> Point | None:
        """The point that the chooser chooses; None if it cannot be built."""
        client, server = _pick(chooser, "client", self.clients), _pick(chooser, "server", self.servers)
        if (client.name, server.name) in self.apart:
            return None
        calls = [client.choose(chooser)] if client.name != NOTHING else []
        rule = server.choose(chooser)
        if not calls or _does_something(rule):
            calls.append(rule)
        changes = {name: choose(chooser, name, searched) for name, searched in self.training}
        training = replace(self.base, **changes)  # type: ignore[arg-type]
        try:
            method = adapt_to_data(parse(" + ".join(map(str, calls))), self.dataset)
        except EquipoiseError:  # some values of parameters do not go together
            return None
        return Point(str(method), training)

    def list_defaults(self) -> dict[str, Value]:
        """Local training as the data set has it and, of a space of one method, that method's own parameters."""
        usual = {name: keep_within(getattr(self.base, name), searched) for name, searched in self.training}
        if len(self.clients) > 1 or len(self.servers) > 1:
            return usual
        return usual | self.servers[0].list_defaults(self.dataset)


def _pick(chooser: Chooser, side: str, parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    name = chooser.suggest_categorical(side, [part.name for part in parts])
    return next(part for part in parts if part.name == name)


def _does_something(rule: Call) -> bool:
    """Whether a rule of the server differs from FedAvg's."""
    return rule.name != REFERENCE or dict(rule.arguments).get("weights", "samples") != "samples"


def choose(chooser: Chooser, name: str, searched: Searched) -> Value:
    """A value of a parameter. Numbers have three digits, so that commands stay readable."""
    if not isinstance(searched, Range):
        return chooser.suggest_categorical(name, list(searched))
    if searched.is_whole:
        return chooser.suggest_int(name, int(searched.low), int(searched.high), log=searched.log)
    return float(f"{chooser.suggest_float(name, searched.low, searched.high, log=searched.log):.3g}")


def keep_within(value: Value, searched: Searched) -> Value:
    """The value, or the nearest one that is searched."""
    if not isinstance(searched, Range):
        return value if value in searched else searched[0]
    assert isinstance(value, (int, float))
    return min(max(value, searched.low), searched.high)


# --------------------------------------------------------------------------- what can be searched on these data
def list_training(usual: Training) -> tuple[tuple[str, Searched], ...]:
    """What is searched of the local training, around what the data set comes with."""
    length = "epochs" if usual.steps is None else "steps"
    own = usual.epochs if usual.steps is None else usual.steps
    rates = Range(usual.lr * RATES.low, usual.lr * RATES.high, log=True)
    batches = () if usual.batch is None else _multiples(usual.batch)
    several = {length: _multiples(own), "batch": batches}
    return (("lr", rates), *((name, values) for name, values in several.items() if len(values) > 1))


def _multiples(own: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, round(own * factor)) for factor in LENGTHS}))


def list_parts(names: Iterable[str]) -> tuple[list[Part], list[Part]]:
    """The parts that are named, of the clients and of the server; without names all that there are.

    A text may give parameters, such as `fedheal(tau=0.3)`, which are then not searched.
    """
    texts = list(names) or [name for name, entry in METHODS.items() if entry.side]
    sides: dict[str, list[Part]] = {"client": [], "server": []}
    for text in texts:
        for call in parse(text).calls:
            side = METHODS.find(call.name).side
            if side is None:
                known = ", ".join(name for name, entry in METHODS.items() if entry.side)
                raise EquipoiseError(
                    f"`{call.name}` does not say what it adds to a composition: leave it out of the methods, or give its "
                    f'`register` a side ("client" or "server"). Those that do: {known}.'
                )
            part = Part.of(call)
            if part not in sides[side]:
                sides[side].append(part)
    return sides["client"], sides["server"]


def find_unusable(parts: Iterable[Part], job: Job, data: Federation) -> dict[str, str]:
    """Which of the parts cannot be used with these data and this model, and why."""
    found = {}
    for part in parts:
        try:
            begin_run(replace(job, method=str(part.call)).settings(data))
        except EquipoiseError as error:
            found[part.name] = str(error)
    return found


def find_apart(clients: Iterable[Part], servers: Iterable[Part]) -> frozenset[tuple[str, str]]:
    """The sums that cannot be built, whatever their parameters."""
    found = set()
    for client in clients:
        for server in servers:
            try:
                parse(f"{client.call} + {server.call}")
            except EquipoiseError:
                found.add((client.name, server.name))
    return frozenset(found)


def build_compositions(names: Sequence[str], job: Job, data: Federation, unusable: Mapping[str, str]) -> Space:
    """The space of compositions, of the parts that are named, without those that are unusable here."""
    clients, servers = ([part for part in side if part.name not in unusable] for side in list_parts(names))
    if REFERENCE not in {part.name for part in servers}:
        servers.append(Part.of(Call(REFERENCE)))
    usual = job.training or data.protocol.training
    apart = find_apart(clients, servers)
    return Space((ALONE, *clients), tuple(servers), list_training(usual), usual, data.setting, apart)


def build_single(text: str, job: Job, data: Federation) -> Space:
    """The space of one method's own parameters and of local training."""
    (call,) = parse_calls(text)
    usual = job.training or data.protocol.training
    return Space((ALONE,), (Part.of(call),), list_training(usual), usual, data.setting)
