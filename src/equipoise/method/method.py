"""A method is a value made of eight roles. `+` combines two, `parse` reads one from text."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ParamSpec, TypeVar

from equipoise.grammar import Call, Entry, Registry, Value, parse_calls
from equipoise.parts.merges import WeightedSum
from equipoise.parts.reports import SampleCount
from equipoise.parts.weights import BySamples
from equipoise.roles import Merge, Part, Report, Shape, Share, Step, Term, Weigh, Wrap
from equipoise.types import REPORTS, EquipoiseError

P = ParamSpec("P")
Kind = TypeVar("Kind", bound=Part)
Single = TypeVar("Single", Weigh, Merge)

CHAINS = ("wrap", "terms", "reports", "shape", "step", "share")
ROLES = ("wrap", "terms", "reports", "shape", "weigh", "merge", "step", "share")

# Where to find what a part may need, for the message of an impossible combination.
SOURCES = {
    "mask": "a consistency mask: add `fedheal`, whose masks it belongs to",
    "non-negative weights": "weights that cannot be negative: combine it with another weighting",
    "shared weight": "a weight from the server: add `eagle`, whose `share` sends it",
    "decoupled features": "F2DC's modules: add `f2dc_modules`",
}


@dataclass(frozen=True, kw_only=True)
class Method:
    """One value per role; what is not given is FedAvg's.

    >>> from equipoise.methods import fedavg, fedheal
    >>> str(fedavg() + fedheal(tau=0.3))
    'fedavg + fedheal(tau=0.3)'
    """

    wrap: tuple[Wrap, ...] = ()
    terms: tuple[Term, ...] = ()
    reports: tuple[Report, ...] = (SampleCount(),)
    shape: tuple[Shape, ...] = ()
    weigh: Weigh = BySamples()
    merge: Merge = WeightedSum()
    step: tuple[Step, ...] = ()
    share: tuple[Share, ...] = ()
    training: tuple[tuple[str, Value], ...] = ()  # what the method demands of the local optimiser, by name
    pooled: bool = False  # train on all clients' data in one place: a reference for simulations only
    calls: tuple[Call, ...] = field(default=(), compare=False)  # how it was written

    def __post_init__(self) -> None:
        if not any(isinstance(report, SampleCount) for report in self.reports):
            object.__setattr__(self, "reports", (SampleCount(), *self.reports))
        for role in CHAINS:
            _refuse_twins(role, getattr(self, role))
        written = f"`{' + '.join(map(str, self.calls))}`" if self.calls else "this method"  # str() would build it again
        given = {name for part in self.parts for name in part.gives}
        for part in self.parts:
            for need in part.needs:
                if need not in given and need not in FROM_OUTSIDE:
                    kind = f"the report `{need}`" if need in REPORTS else f"`{need}`"
                    source = SOURCES.get(
                        need, f"{kind}: add a part that gives it{' to `reports`' if need in REPORTS else ''}"
                    )
                    raise EquipoiseError(f"`{part.key}` ({part.role}) needs {source}. No part of {written} gives it.")
        _refuse_rivals(self.share)
        if self.weigh.rank == 2 and not self.merge.weighs:
            raise EquipoiseError(
                f"`{self.merge.key}` (merge) finds its own weights, so `{self.weigh.key}` (weigh) would do nothing in "
                f"{written}. Keep one of the two."
            )

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in the order in which a round meets them."""
        return (
            *self.wrap,
            *self.terms,
            *self.reports,
            *self.shape,
            self.weigh,
            self.merge,
            *self.step,
            *self.share,
        )

    @property
    def own_parts(self) -> dict[str, tuple[Part, ...]]:
        """For each role the parts that are not FedAvg's."""
        plain = Method().parts
        return {role: tuple(p for p in self.parts if p.role == role and p not in plain) for role in ROLES}

    @property
    def probes(self) -> bool:
        """Whether clients report on the received model before they train."""
        return any("probe" in report.phases for report in self.reports)

    @property
    def streams(self) -> bool:
        """Whether the server needs only a weighted sum of the updates, with weights that each client's reports give."""
        sums = type(self.weigh).raw is not Weigh.raw and isinstance(self.merge, WeightedSum)
        return sums and not self.shape and all(step.streams for step in self.step)

    @property
    def keeps_updates(self) -> bool:
        """Whether the server's state holds rows of the updates."""
        return any(part.keeps_updates for part in self.parts)

    @property
    def validates(self) -> bool:
        """Whether clients need a validation part."""
        return any("validation" in part.needs for part in self.parts)

    def __add__(self, other: Method) -> Method:
        """Join the chains in order; of two weightings or merges, the explicit one. Two explicit ones are an error."""
        return Method(
            wrap=_union(self.wrap, other.wrap),
            terms=_union(self.terms, other.terms),
            reports=_union(self.reports, other.reports),
            shape=_union(self.shape, other.shape),
            weigh=_explicit(self.weigh, other.weigh, self, other),
            merge=_explicit(self.merge, other.merge, self, other),
            step=tuple(sorted(_union(self.step, other.step), key=lambda step: step.last)),
            share=_union(self.share, other.share),
            training=_agreed_training(self, other),
            pooled=self.pooled or other.pooled,
            calls=(*self.calls, *other.calls),
        )

    def __str__(self) -> str:
        if self.calls and _rebuilt(self.calls) == self:
            return " + ".join(map(str, self.calls))
        plain = {f.name: f.default for f in fields(Method)}
        inside = [f"{name}={getattr(self, name)!r}" for name in ROLES if getattr(self, name) != plain[name]]
        return f"Method({', '.join(inside)})"

    def for_data(self, dataset: str) -> Method:
        """The same method with the parameters that its paper (or, for embedded data, we) chose for this data set, wherever
        none was given."""
        if not self.calls or _rebuilt(self.calls) != self:
            return self
        return _rebuilt(tuple(_with_defaults_for(call, dataset) for call in self.calls))

    def describe(self) -> dict[str, dict[str, Value]]:
        """Every parameter of every call, given or default: what a manifest keeps. Nothing for a method changed by hand."""
        if not self.calls or _rebuilt(self.calls) != self:
            return {}
        return {call.name: METHODS[call.name].check(dict(_complete(call).arguments)) for call in self.calls}


FROM_OUTSIDE = frozenset({"feature map", "validation"})  # of the model and of the data: checked where those are known


def _refuse_twins(role: str, parts: tuple[Part, ...]) -> None:
    seen: dict[str, Part] = {}
    for part in parts:
        if part.key in seen:
            raise EquipoiseError(
                f"Two parts called `{part.key}` stand in `{role}`: {seen[part.key]!r} and {part!r}. Keep one of them."
            )
        seen[part.key] = part


def _refuse_rivals(parts: tuple[Share, ...]) -> None:
    """Two parts that send down the same thing would overwrite each other."""
    sender: dict[str, Share] = {}
    for part in parts:
        for name in part.gives:
            if name in sender:
                raise EquipoiseError(f"`{sender[name].key}` and `{part.key}` both send down {name}. Keep one of them.")
            sender[name] = part


def _union(first: tuple[Kind, ...], second: tuple[Kind, ...]) -> tuple[Kind, ...]:
    return first + tuple(part for part in second if part not in first)


def _explicit(a: Single, b: Single, left: Method, right: Method) -> Single:
    if a == b or a.rank > b.rank:
        return a
    if b.rank > a.rank:
        return b
    raise EquipoiseError(
        f"`{left}` and `{right}` both set `{a.role}`: {a!r} and {b!r}. One model can be merged in one way only: "
        f"keep one of the two methods, or choose with dataclasses.replace(method, {a.role}=...)."
    )


def _agreed_training(left: Method, right: Method) -> tuple[tuple[str, Value], ...]:
    both = dict(left.training)
    for name, value in right.training:
        if name in both and both[name] != value:
            raise EquipoiseError(f"`{left}` trains with {name}={both[name]!r}, `{right}` with {name}={value!r}.")
        both[name] = value
    return tuple(both.items())


# --------------------------------------------------------------------------- named methods
METHODS: Registry[Method] = Registry("method")


def register(
    *, title: str, reference: str, per_dataset: Mapping[str, Mapping[str, Value]] | None = None
) -> Callable[[Callable[P, Method]], Callable[P, Method]]:
    """Give a method a name, so that `parse`, the command line and `str` know it.

    `per_dataset` holds parameters for data sets where they differ from the defaults: the paper's, or ours for embedded
    data. A run uses them where the user gives none, and records them.
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


def _build(call: Call) -> Method:
    entry = METHODS.find(call.name)
    arguments = entry.check(dict(call.arguments))
    return replace(entry.function(**arguments), calls=(Call(call.name, tuple(arguments.items())),))


def _rebuilt(calls: tuple[Call, ...]) -> Method:
    return functools.reduce(operator.add, map(_build, calls))


def _with_defaults_for(call: Call, dataset: str) -> Call:
    defaults = METHODS.find(call.name).per_dataset.get(dataset, {})
    return Call(call.name, tuple({**defaults, **dict(call.arguments)}.items()))


def _complete(call: Call) -> Call:
    defaults = {name: p.default for name, p in METHODS.find(call.name).parameters.items()}
    return Call(call.name, tuple({**defaults, **dict(call.arguments)}.items()))


def parse(text: str) -> Method:
    """A method from text, for the command line and for TOML.

    >>> parse("fedheal(tau=0.3)").weigh.beta
    0.4
    >>> parse("fedheel")
    Traceback (most recent call last):
    equipoise.types.EquipoiseError: Unknown method `fedheel`. Did you mean `fedheal`? `equipoise methods` lists them all.
    """
    if not isinstance(text, str):
        raise EquipoiseError(f"A method is read from text such as 'fedheal(tau=0.3)'. Found {text!r}.")
    return _rebuilt(tuple(parse_calls(text)))
