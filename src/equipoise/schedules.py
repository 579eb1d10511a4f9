"""Learning rates over rounds, as text: `warmup(rounds=5) + cosine(end=0.01)`.

A schedule is a function of the round that gives a factor on a learning rate, and is found by its name. `+` means "then":
each schedule but the last says in `rounds` how long it lasts. The last one lasts until the run ends; if it says in
`rounds` when it is over, its final factor stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from equipoise.errors import EquipoiseError
from equipoise.grammar import Call, Entry, Registry, Value, parse_calls, require

CONSTANT = "constant"  # the text of the schedule that changes nothing
SCHEDULES: Registry[float] = Registry("schedule", listed=False)  # all registered schedules, by name
Function = TypeVar("Function", bound=Callable[..., float])


def register_schedule(function: Function) -> Function:
    """A decorator that registers a schedule under the function's name.

    Its first two parameters are `round`, the rounds that it has lasted so far, and `rounds`, how many it lasts in all; the
    others are set in the text. It returns the factor on the learning rate in that round, and is also asked for
    `round == rounds` where its final factor stays.

    >>> @register_schedule
    ... def halving(round: int, rounds: int, every: int = 10) -> float:
    ...     return 0.5 ** (round // every)
    >>> Rate(0.8, "halving(every=2)").tabulate(5)
    [0.8, 0.8, 0.4, 0.4, 0.2]
    >>> SCHEDULES.pop("halving").name
    'halving'
    """
    entry = Entry(function.__name__, function)
    if list(entry.parameters)[:2] != ["round", "rounds"]:
        raise EquipoiseError(
            f"A schedule is a function of `round`, `rounds` and its own parameters. Found `{entry.name}` with "
            f"{', '.join(entry.parameters) or 'none'}."
        )
    if entry.name in SCHEDULES and _is_ours(SCHEDULES[entry.name].function) and not _is_ours(function):
        raise EquipoiseError(f"`{entry.name}` is a schedule of Equipoise. Give your own another name.")
    SCHEDULES[entry.name] = entry
    return function


def _is_ours(function: Callable[..., float]) -> bool:
    return function.__module__ == __name__


@register_schedule
def constant(round: int, rounds: int, factor: float = 1.0) -> float:
    """The same rate in every round."""
    return factor


@register_schedule
def warmup(round: int, rounds: int) -> float:
    """A rate that grows evenly: `1/rounds` of it in the first round, all of it in the last."""
    return min(1.0, (round + 1) / rounds)


@register_schedule
def cosine(round: int, rounds: int, end: float = 0.0) -> float:
    """Half a wave of a cosine, from 1 down to `end`, which it would reach one round after its last."""
    return end + (1 - end) * (1 + math.cos(math.pi * round / rounds)) / 2


@register_schedule
def linear(round: int, rounds: int, end: float = 0.0) -> float:
    """A straight line from 1 to `end`, which it would reach one round after its last."""
    return 1 + (end - 1) * round / rounds


@register_schedule
def step(round: int, rounds: int, every: int = 10, factor: float = 0.1) -> float:
    """Multiplies the rate by `factor` after every `every` rounds."""
    require(every >= 1, "every", "at least 1", every)
    return float(factor ** (round // every))


@register_schedule
def exponential(round: int, rounds: int, factor: float = 0.99) -> float:
    """Multiplies the rate by `factor` after every round."""
    return float(factor**round)


# --------------------------------------------------------------------------- reading
@dataclass(frozen=True)
class Stage:
    """One of the schedules that follow each other."""

    entry: Entry[float]  # the function by name
    arguments: tuple[tuple[str, Value], ...]  # its own parameters
    rounds: int | None  # how long it lasts; None: until the run ends

    def find_factor(self, round: int, rounds: int) -> float:
        """The factor on the rate in this of its rounds, counted from 0."""
        try:
            factor = self.entry.function(round, rounds, **dict(self.arguments))
        except ArithmeticError:  # an overflow or a division by zero
            return math.nan
        if isinstance(factor, bool) or not isinstance(factor, (int, float)):
            raise EquipoiseError(f"The schedule `{self.entry.name}` must return a number. Found {factor!r}.")
        return float(factor)

    def __str__(self) -> str:
        length = () if self.rounds is None else (("rounds", self.rounds),)
        return str(Call(self.entry.name, (*length, *self.arguments)))


def parse_schedule(text: str) -> tuple[Stage, ...]:
    """The schedules that follow each other in a text.

    >>> [stage.rounds for stage in parse_schedule("warmup(rounds=5) + cosine(end=0.01)")]
    [5, None]
    >>> parse_schedule("cosin")
    Traceback (most recent call last):
    equipoise.EquipoiseError: Unknown schedule `cosin`. Did you mean `cosine`? There are constant, warmup, cosine, linear, \
step, exponential.
    """
    calls = parse_calls(text, "warmup(rounds=5) + cosine(end=0.01)")
    stages = [_build_stage(call) for call in calls]
    for before, after in pairwise(stages):
        if before.rounds is None:
            raise EquipoiseError(
                f"`{before}` must say after how many rounds `{after}` begins: write {before.entry.name}(rounds=...) in "
                f"`{text}`."
            )
    return tuple(stages)


def _build_stage(call: Call) -> Stage:
    entry = SCHEDULES.find(call.name)
    if "round" in dict(call.arguments):
        raise EquipoiseError(f"`round` is counted by the run, not set. Found `{call}`.")
    given = entry.check(dict(call.arguments))
    rounds = given.pop("rounds", None)
    if rounds is not None and not (isinstance(rounds, int) and not isinstance(rounds, bool) and rounds >= 1):
        raise EquipoiseError(f"`{call.name}` lasts a whole number of rounds, at least 1. Found rounds={rounds!r}.")
    missing = [n for n, p in entry.parameters.items() if p.default is p.empty and n not in (*given, "round", "rounds")]
    if missing:
        raise EquipoiseError(f"`{call.name}` needs `{missing[0]}`: write {call.name}({missing[0]}=...).")
    return Stage(entry, tuple(given.items()), rounds)


# --------------------------------------------------------------------------- rates
@dataclass(frozen=True)
class Rate:
    """A learning rate that follows a schedule.

    >>> [round(rate, 3) for rate in Rate(0.1, "warmup(rounds=2) + cosine").tabulate(6)]
    [0.05, 0.1, 0.1, 0.085, 0.05, 0.015]
    """

    base: float  # the rate that the schedule's factors multiply
    schedule: str = CONSTANT

    def __post_init__(self) -> None:
        if not self.is_constant:
            object.__setattr__(self, "schedule", " + ".join(map(str, parse_schedule(self.schedule))))

    @property
    def is_constant(self) -> bool:
        """Whether it is the same in every round."""
        return self.schedule == CONSTANT

    @property
    def functions(self) -> tuple[Callable[..., float], ...]:
        """The functions that the schedule names."""
        return tuple(stage.entry.function for stage in parse_schedule(self.schedule))

    def at(self, round: int, rounds: int) -> float:
        """The rate in this round, counted from 0, of a run of `rounds` rounds. An error if no run can train with it."""
        return self.base if self.is_constant else self._find(parse_schedule(self.schedule), round, rounds)

    def check(self, rounds: int) -> None:
        """Refuse a schedule by which a run of so many rounds cannot train. The error names the first such round."""
        if not self.is_constant:
            self.tabulate(rounds)

    def tabulate(self, rounds: int) -> list[float]:
        """The rates of all rounds of a run. An error names the first round in which no run can train."""
        if self.is_constant:
            return [self.base] * rounds
        stages = parse_schedule(self.schedule)
        return [self._find(stages, round, rounds) for round in range(rounds)]

    def _find(self, stages: Sequence[Stage], round: int, rounds: int) -> float:
        """The rate in this round, by the stage at work in it."""
        begin = 0
        for stage in stages[:-1]:
            assert stage.rounds is not None
            if round < begin + stage.rounds:
                break
            begin += stage.rounds
        else:
            stage = stages[-1]
        length = max(1, rounds - begin) if stage.rounds is None else stage.rounds
        rate = self.base * stage.find_factor(min(round - begin, length), length)
        if not (math.isfinite(rate) and rate > 0):
            raise EquipoiseError(
                f"The schedule `{self.schedule}` gives the learning rate {rate:g} in round {round + 1} of {rounds}: a rate "
                f"must be above 0 and finite. `{stage}` is at work there: give it another end, or let the run end before."
            )
        return rate
