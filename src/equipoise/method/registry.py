"""Methods by name: `register` gives a method a name, and `parse` builds a method from text."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ParamSpec

from equipoise.errors import EquipoiseError
from equipoise.grammar import Call, Entry, Range, Registry, Searched, Side, Value, parse_calls
from equipoise.method.value import Method

P = ParamSpec("P")

METHODS: Registry[Method] = Registry("method")  # all registered methods, by name


def register(
    *,
    title: str,
    reference: str,
    per_dataset: Mapping[str, Mapping[str, Value]] | None = None,
    ranges: Mapping[str, Searched] | None = None,
    side: Side | None = None,
) -> Callable[[Callable[P, Method]], Callable[P, Method]]:
    """A decorator that registers the function which builds a method, under the function's name.

    `parse`, the command line and `str` then know the method, and its parameters are checked against the signature.

    Args:
        title: what the method does, in one line.
        reference: the paper.
        per_dataset: name of a data set of the library (`pacs`), or of one of its presets (`pacs cpu`) -> parameters that
            take the place of the defaults there. They are the paper's, or for embedded data and small presets ours. A run
            uses them where the user gives none, and records them.
        ranges: parameter -> among what `equipoise tune` searches: `Range(0.01, 1.0, log=True)`, or a tuple of values.
            Parameters that are not named keep their defaults.
        side: what the method adds to compositions that `equipoise tune` tries: "client" if it changes local training,
            "server" if it is a rule of the server; None: it is no part of compositions.
    """

    def decorate(function: Callable[P, Method]) -> Callable[P, Method]:
        name = function.__name__
        known = METHODS[name].function.__module__ if name in METHODS else ""
        if known.startswith("equipoise.") and not function.__module__.startswith("equipoise."):
            raise EquipoiseError(f"`{name}` is a method of Equipoise. Give your own another name.")
        entry = Entry(name, function, title, reference, per_dataset or {}, ranges or {}, side)
        for parameter, searched in entry.ranges.items():
            ends = (searched.low, searched.high) if isinstance(searched, Range) else searched
            for value in ends:
                entry.check({parameter: value})
        METHODS[name] = entry

        @functools.wraps(function)
        def build(*args: P.args, **kwargs: P.kwargs) -> Method:
            given = dict(zip(entry.parameters, args, strict=False)) | kwargs
            if len(args) > len(entry.parameters):
                raise EquipoiseError(f"`{name}` takes {len(entry.parameters)} parameters. Found {len(args)}.")
            if len(given) < len(args) + len(kwargs):
                twice = next(parameter for parameter in kwargs if parameter in list(entry.parameters)[: len(args)])
                raise EquipoiseError(f"`{name}` was given `{twice}` twice: by position and by name.")
            return _build(Call(name, tuple(given.items())))

        return build

    return decorate


def parse(text: str) -> Method:
    """Build a method from text such as `moon(mu=5) + fedheal`.

    >>> from equipoise.methods import parse
    >>> parse("fedheal(tau=0.3)").weigh.beta
    0.4
    >>> parse("fedheel")
    Traceback (most recent call last):
    equipoise.EquipoiseError: Unknown method `fedheel`. Did you mean `fedheal`? `equipoise methods` lists them all.
    """
    if not isinstance(text, str):
        raise EquipoiseError(f"A method is read from text such as 'fedheal(tau=0.3)'. Found {text!r}.")
    return _build_sum(tuple(parse_calls(text)))


def adapt_to_data(method: Method, dataset: str) -> Method:
    """The method with the parameters that it registered for this data set of the library (`Federation.setting`), where the
    user gave none.

    For a user's own data, whose `dataset` is empty, and for a method that was changed by hand, nothing changes.
    """
    if not dataset or not method.is_as_written:
        return method
    return _build_sum(tuple(_with_defaults_for(call, dataset) for call in method.calls))


def describe(method: Method) -> dict[str, dict[str, Value]]:
    """Name -> all parameters, given or default, for the manifest of a run. Empty for a method that was changed by
    hand."""
    if not method.is_as_written:
        return {}
    return {call.name: METHODS[call.name].check(dict(_complete(call).arguments)) for call in method.calls}


def _build(call: Call) -> Method:
    entry = METHODS.find(call.name)
    arguments = entry.check(dict(call.arguments))
    return replace(entry.function(**arguments), calls=(Call(call.name, tuple(arguments.items())),)).remember_calls()


def _build_sum(calls: tuple[Call, ...]) -> Method:
    return functools.reduce(operator.add, map(_build, calls))


def _with_defaults_for(call: Call, dataset: str) -> Call:
    defaults = METHODS.find(call.name).find_defaults(dataset)
    return Call(call.name, tuple({**defaults, **dict(call.arguments)}.items()))


def _complete(call: Call) -> Call:
    defaults = {name: p.default for name, p in METHODS.find(call.name).parameters.items()}
    return Call(call.name, tuple({**defaults, **dict(call.arguments)}.items()))
