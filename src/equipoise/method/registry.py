"""Methods by name: `register` gives a method a name, `parse` builds one from text."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ParamSpec

from equipoise.errors import EquipoiseError
from equipoise.grammar import Call, Entry, Registry, Value, parse_calls
from equipoise.method.value import Method

P = ParamSpec("P")

METHODS: Registry[Method] = Registry("method")


def register(
    *, title: str, reference: str, per_dataset: Mapping[str, Mapping[str, Value]] | None = None
) -> Callable[[Callable[P, Method]], Callable[P, Method]]:
    """Give a method a name, so that `parse`, the command line and `str` know it.

    `per_dataset` holds parameters for data sets of the library where they differ from the defaults: the paper's, or ours for
    embedded data. A run uses them where the user gives none, and records them.
    """

    def decorate(function: Callable[P, Method]) -> Callable[P, Method]:
        name = function.__name__
        known = METHODS[name].function.__module__ if name in METHODS else ""
        if known.startswith("equipoise.") and not function.__module__.startswith("equipoise."):
            raise EquipoiseError(f"`{name}` is a method of Equipoise. Give your own another name.")
        entry = Entry(name, function, title, reference, per_dataset or {})
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
    """A method from text, for the command line and for TOML.

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
    """The same method with the parameters that its paper (or, for embedded data, we) chose for this data set of the library,
    wherever none was given. A user's own data, whose `dataset` is empty, change nothing."""
    if not dataset or not method.is_as_written:
        return method
    return _build_sum(tuple(_with_defaults_for(call, dataset) for call in method.calls))


def describe(method: Method) -> dict[str, dict[str, Value]]:
    """Every parameter of every call, given or default: what a manifest keeps. Nothing for a method changed by hand."""
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
    defaults = METHODS.find(call.name).per_dataset.get(dataset, {})
    return Call(call.name, tuple({**defaults, **dict(call.arguments)}.items()))


def _complete(call: Call) -> Call:
    defaults = {name: p.default for name, p in METHODS.find(call.name).parameters.items()}
    return Call(call.name, tuple({**defaults, **dict(call.arguments)}.items()))
