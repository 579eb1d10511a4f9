"""Names with parameters, written as text: `eagle(lam=0.1) + fedheal(tau=0.3)`, `mlp(hidden=(64,))`.

Methods, models and data sets are named in this way, on the command line and in TOML files. Arguments are Python
literals, given by keyword. This file parses such text, checks it against the signature of the function that is named,
and words the errors.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from equipoise.errors import EquipoiseError

Built = TypeVar("Built")
Value = object  # a Python literal
LARGEST = 2**63 - 1  # the largest whole number of 64 bits


@dataclass(frozen=True)
class Call:
    """A name and the arguments given to it. `str` writes it as it would be parsed."""

    name: str
    arguments: tuple[tuple[str, Value], ...] = ()  # (parameter, value), in the order given

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.arguments)
        return f"{self.name}({inside})" if inside else self.name


ALIKE = 0.7  # of two names: the share of letters that they have in common, in the same order
ALIKE_IF_SHORT = 0.6  # the same for names of at most four letters, of which one wrong letter is a larger share
MOST = 100  # letters of a name that are compared
STEM = 3  # letters that a name must have to be taken for the beginning or a word of another


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A hint to append to an error: the choice that is most like `word`, or an empty text if none is like it.

    >>> did_you_mean("fedheel", ["fedheal", "fedavg"])
    ' Did you mean `fedheal`?'
    >>> did_you_mean("Label", ["age", "class_label"]), did_you_mean("client", ["clinical", "age"])
    (' Did you mean `class_label`?', '')
    """
    likeness = {choice: _liken(word[:MOST].lower(), choice.lower()) for choice in choices}
    best = max(likeness, key=lambda choice: likeness[choice], default="")
    return f" Did you mean `{best}`?" if likeness.get(best, 0) else ""


def _liken(a: str, b: str) -> float:
    """How much two names are alike, from 0 (not at all) to 1."""
    short, long = sorted((a, b), key=len)
    share = difflib.SequenceMatcher(None, a, b).ratio()
    is_part = len(short) >= STEM and (long.startswith(short) or short in re.split(r"[\W_]+", long))
    return share if is_part or share >= (ALIKE if len(long) > 4 else ALIKE_IF_SHORT) else 0.0


def show(text: str, most: int = 200) -> str:
    """A text in one line of a message: cut off after `most` letters, and with odd letters as escapes.

    >>> show("a\\nb" + 10 * "c", 6)
    'a\\\\nbccc...'
    """
    letters = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[:most])
    return "".join(letters) + "..." * (len(text) > most)


def show_value(value: Value) -> str:
    """A value in one line of a message."""
    try:
        return show(repr(value))
    except (ValueError, RecursionError):  # Python writes no number of thousands of digits
        return f"a {type(value).__name__} that is too long to be shown"


def join_words(words: Sequence[str], most: int = 5) -> str:
    """The first `most` words joined by commas, and how many more there are.

    >>> join_words(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    shown = ", ".join(words[:most])
    return f"{shown} and {len(words) - most} more" if len(words) > most else shown


def say_count(count: int, noun: str) -> str:
    """A number of things in words.

    >>> say_count(1, "client"), say_count(0, "round"), say_count(12, "seed")
    ('1 client', '0 rounds', '12 seeds')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def split_list(text: str) -> list[str]:
    """Split a list at its commas, except for those inside brackets.

    >>> split_list("fedavg, fedheal(tau=0.3, beta=0.4),moon + fedheal")
    ['fedavg', 'fedheal(tau=0.3, beta=0.4)', 'moon + fedheal']
    """
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def parse_calls(text: str, example: str = "eagle(lam=0.1) + fedheal") -> list[Call]:
    """The calls in a text such as `name(parameter=value) + name`. Errors show the example.

    >>> [str(call) for call in parse_calls("fedprox(mu=0.01) + fedheal")]
    ['fedprox(mu=0.01)', 'fedheal']
    """
    try:
        return _calls(ast.parse(text.strip(), mode="eval").body, text, example)
    except EquipoiseError:
        raise
    except SyntaxError as error:
        why = error.msg
    except UnicodeError:
        why = "it holds half a letter (a lone surrogate)"
    except (RecursionError, MemoryError):
        why = "it has too many terms, or brackets inside brackets"
    except ValueError as error:
        why = str(error)
    raise EquipoiseError(f"Cannot read `{show(text)}`: {why}. Write for example `{example}`.")


def parse_one(text: str, kind: str, example: str) -> Call:
    """The one call in a text; an error that speaks of `kind` if there are several. Errors show the example.

    >>> parse_one("mlp(hidden=(64,))", "model", "linear").name
    'mlp'
    """
    calls = parse_calls(text, example)
    if len(calls) != 1:
        raise EquipoiseError(f"Name one {kind}. Found `{show(text)}`.")
    return calls[0]


def _calls(node: ast.expr, text: str, example: str) -> list[Call]:
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [*_calls(left, text, example), *_calls(right, text, example)]
        case ast.Name(id=name):
            return [Call(name)]
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            names = [keyword.arg for keyword in keywords]
            if len(set(names)) < len(names):
                raise EquipoiseError(f"A parameter is given twice in `{show(text)}`.")
            return [Call(name, tuple((_argument_name(k, text), _literal(k.value, name, text)) for k in keywords))]
        case ast.Call(func=ast.Name(id=name)):
            raise EquipoiseError(
                f"Arguments go by keyword, as in `{show(name)}(parameter=value)`. Found `{show(text)}`."
            )
    joined = " joined by `+`" if "+" in example else ""
    raise EquipoiseError(f"Cannot read `{show(text)}`. Write names{joined}, for example `{example}`.")


def _argument_name(keyword: ast.keyword, text: str) -> str:
    if keyword.arg is None:
        raise EquipoiseError(f"`**` cannot be used in `{show(text)}`: write each argument as `parameter=value`.")
    return keyword.arg


def _literal(node: ast.expr, name: str, text: str) -> Value:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        shown = show(ast.unparse(node))
        raise EquipoiseError(
            f"Arguments of `{show(name)}` must be plain values; found `{shown}` in `{show(text)}`. Text needs quotes: "
            f"'{shown}'."
        ) from None


# --------------------------------------------------------------------------- checking arguments against a signature
@dataclass(frozen=True)
class Range:
    """Numbers among which tuning searches for a parameter, both ends included. Two whole ends: whole numbers only.

    >>> str(Range(0.01, 1.0, log=True))
    '0.01 to 1.0, by orders of magnitude'
    """

    low: float
    high: float
    log: bool = False  # search evenly over orders of magnitude

    def __post_init__(self) -> None:
        require(self.low < self.high, "high", f"above low={self.low}", self.high)
        require(self.low > 0 or not self.log, "low", "above 0 for a range of magnitudes", self.low)

    def __str__(self) -> str:
        return f"{self.low} to {self.high}" + (", by orders of magnitude" if self.log else "")

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Searched = Range | tuple[Value, ...]  # among what tuning searches for a parameter: numbers, or these values
Side = Literal["client", "server"]  # what a method changes: the clients' local training, or the server's rule


@dataclass(frozen=True)
class Entry(Generic[Built]):
    """A function that builds something by name, and what the documentation says about it."""

    name: str
    function: Callable[..., Built]
    title: str = ""  # what it is, in one line
    reference: str = ""  # the paper
    per_dataset: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)  # data set, or preset -> own defaults
    ranges: Mapping[str, Searched] = field(default_factory=dict)  # parameter -> among what tuning searches
    side: Side | None = None  # what a method adds to a composition that tuning tries

    def find_defaults(self, dataset: str) -> dict[str, Value]:
        """Its own defaults for a data set such as `pacs`, or for a preset of one, such as `pacs cpu`."""
        return {**self.per_dataset.get(dataset.partition(" ")[0], {}), **self.per_dataset.get(dataset, {})}

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters of the function, by name."""
        return dict(inspect.signature(self.function).parameters)

    def check(self, arguments: Mapping[str, Value]) -> dict[str, Value]:
        """The arguments, with numbers converted to their declared type. An error names the first one that does not
        fit."""
        # The parameters of a class are those of its __init__. What a user's own code does not annotate can be anything.
        hints = typing.get_type_hints(self.function.__init__ if inspect.isclass(self.function) else self.function)
        for name in arguments:
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                hint = did_you_mean(name, self.parameters)
                raise EquipoiseError(f"`{self.name}` has no parameter `{show(name)}`.{hint} Its parameters: {known}.")
        return {
            name: fit_to_type(value, hints[name], f"{self.name}({name})") if name in hints else value
            for name, value in arguments.items()
        }


def fit_to_type(value: Value, kind: object, where: str) -> Value:
    """`value` converted to the annotated type `kind` (an int may stand for a float).

    If it does not fit, an error says what the parameter `where` must be.
    """
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for option in sorted(options, key=lambda o: o is not type(None)):  # None first: the error is the other's
            try:
                return fit_to_type(value, option, where)
            except EquipoiseError as error:
                mistake = error
        raise mistake if len([o for o in options if o is not type(None)]) == 1 else _unfit(value, kind, where)
    if origin is Literal:
        if value in options and type(value) in {type(option) for option in options}:
            return value
        hint = did_you_mean(value, [o for o in options if isinstance(o, str)]) if isinstance(value, str) else ""
        raise EquipoiseError(
            f"{where} must be one of {', '.join(map(repr, options))}. Found {show_value(value)}.{hint}"
        )
    if origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(fit_to_type(item, options[0], where) for item in value)
        raise _unfit(value, kind, where)
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise EquipoiseError(f"{where} must be a number that 64 bits can hold. Found {show_value(value)}.")
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is None or kind is type(None):
        if value is None:
            return None
    elif isinstance(kind, type) and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise _unfit(value, kind, where)


def _unfit(value: Value, kind: object, where: str) -> EquipoiseError:
    names = {"float": "a number", "int": "a whole number", "str": "text in quotes", "bool": "True or False"}
    wanted = names.get(getattr(kind, "__name__", ""), str(kind).replace("NoneType", "None"))
    return EquipoiseError(f"{where} must be {wanted}. Found {show_value(value)}.")


def require(condition: bool, parameter: str, rule: str, value: Value) -> None:
    """Raise an error if a parameter is out of its range: if `condition` is False.

    >>> require(False, "tau", "between 0 and 1", 1.5)
    Traceback (most recent call last):
    equipoise.EquipoiseError: Parameter `tau` must be between 0 and 1. Found tau=1.5.
    """
    if not condition:
        raise EquipoiseError(f"Parameter `{parameter}` must be {rule}. Found {parameter}={show_value(value)}.")


class Mistakes:
    """Collects errors, so that a user is told about all of them at once.

    >>> mistakes = Mistakes()
    >>> with mistakes.noted("plan.toml:3"):
    ...     require(False, "rounds", "at least 1", 0)
    >>> with mistakes.noted("plan.toml:5"):
    ...     require(False, "lr", "above 0", -1.0)
    >>> print(*mistakes.found, sep="\\n")
    plan.toml:3: Parameter `rounds` must be at least 1. Found rounds=0.
    plan.toml:5: Parameter `lr` must be above 0. Found lr=-1.0.
    """

    def __init__(self) -> None:
        self.found: list[str] = []  # the messages so far

    @contextmanager
    def noted(self, where: str = "") -> Iterator[None]:
        """A context that notes an `EquipoiseError` raised inside it, with the place `where`, instead of passing it
        on."""
        try:
            yield
        except EquipoiseError as error:
            self.found.append(f"{where}: {error}" if where else str(error))

    def refuse(self) -> None:
        """Raise one error with all messages, if there are any."""
        if self.found:
            several = f"{len(self.found)} mistakes:\n" if len(self.found) > 1 else ""
            raise EquipoiseError(several + "\n".join(dict.fromkeys(self.found)))


class Registry(dict[str, Entry[Built]]):
    """Builders by name. `kind` says in messages what they build, such as "method"."""

    def __init__(self, kind: str, listed: bool = True) -> None:
        """`listed`: whether there is a command `equipoise KINDs` that lists them, which an error can point to."""
        super().__init__()
        self.kind = kind
        self.listed = listed

    def find(self, name: str) -> Entry[Built]:
        """The entry of this name; an error with the nearest known name if there is none."""
        if name not in self:
            all_of_them = (
                f"`equipoise {self.kind}s` lists them all." if self.listed else f"There are {', '.join(self)}."
            )
            raise EquipoiseError(f"Unknown {self.kind} `{show(name)}`.{did_you_mean(name, self)} {all_of_them}")
        return self[name]
