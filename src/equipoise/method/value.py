"""`Method`: a value made of parts for nine roles. `+` combines two methods."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypeVar

from equipoise.grammar import Call, Value
from equipoise.parts.merges import WeightedSum
from equipoise.parts.reports import SampleCount
from equipoise.parts.selections import UniformDraw
from equipoise.parts.weights import BySamples
from equipoise.roles import (
    SINGLE,
    SLOTS,
    Merge,
    Part,
    Phase,
    Report,
    Select,
    Shape,
    Share,
    Step,
    Term,
    Weigh,
    Wrap,
    is_at_least_as_specific,
)
from equipoise.schedules import Rate
from equipoise.types import REPORTS, EquipoiseError

Kind = TypeVar("Kind", bound=Part)
Single = TypeVar("Single", Select, Weigh, Merge)

ROLES = tuple(SLOTS)  # the names of the nine roles, in the order in which a round meets them
# What a part may need -> what it is and where to find it, for the error of a method that lacks it.
SOURCES = {
    "mask": "a consistency mask: add `fedheal`, whose masks it belongs to",
    "non-negative weights": "weights that cannot be negative: combine it with another weighting",
    "shared weight": "a weight from the server: add `eagle`, whose `share` sends it",
    "decoupled features": "F2DC's modules: add `f2dc_modules`",
}
# Needs that the model, the data or the loss must meet, not a part. "classes" are targets that are classes, "class
# outputs" one output of the model for each of them, "groups" marks that put samples into groups.
FROM_OUTSIDE = frozenset({"feature map", "validation", "classes", "class outputs", "groups", "two groups"})


@dataclass(frozen=True, kw_only=True)
class Method:
    """A federated learning method: the parts for each of the nine roles. What is not given is FedAvg's.

    >>> from equipoise.methods import fedavg, fedheal
    >>> str(fedavg() + fedheal(tau=0.3))
    'fedavg + fedheal(tau=0.3)'
    """

    select: Select = UniformDraw()  # chooses who takes part in a round
    wrap: tuple[Wrap, ...] = ()  # change the model, and say which of its tensors are not shared
    terms: tuple[Term, ...] = ()  # change the local objective
    reports: tuple[Report, ...] = (SampleCount(),)  # what clients send besides their updates
    shape: tuple[Shape, ...] = ()  # edit the updates before they are weighed
    weigh: Weigh = BySamples()  # finds one weight per client
    merge: Merge = WeightedSum()  # makes one direction from updates and weights
    step: tuple[Step, ...] = ()  # edit the direction before it is added to the model
    share: tuple[Share, ...] = ()  # what clients receive beside the next model
    training: tuple[tuple[str, Value], ...] = ()
    """Settings of local training that the method demands: pairs of a field of `Training` and its value."""
    is_pooled: bool = False
    """Whether all data are trained on in one place, as a reference. This is possible in simulations only."""
    calls: tuple[Call, ...] = field(default=(), compare=False)
    """The names and arguments from which the method was built."""
    built: tuple[object, ...] = field(default=(), compare=False, repr=False)
    """What these calls built. A method that was changed by hand afterwards differs from it."""

    def __post_init__(self) -> None:
        for role in ROLES:
            _refuse_strangers(role, getattr(self, role))
        if not any(isinstance(report, SampleCount) for report in self.reports):
            object.__setattr__(self, "reports", (SampleCount(), *self.reports))
        for role in ROLES:
            if role not in SINGLE:
                _refuse_twins(role, getattr(self, role))
        _refuse_unknown_reports(self.reports)
        asks: object = self.select.asks
        if isinstance(asks, str):  # its letters would pass for names
            raise EquipoiseError(f"`{self.select.name}`: asks is a tuple of names. Write asks = ({asks!r},).")
        written = f"`{_joined(self.calls)}`" if self.calls else "this method"
        given = {name for part in self.parts for name in part.gives}
        for part in self.parts:
            for need in (*part.needs, *(part.asks if isinstance(part, Select) else ())):
                if need not in given and need not in FROM_OUTSIDE:
                    kind = f"the report `{need}`" if need in REPORTS else f"`{need}`"
                    source = SOURCES.get(
                        need, f"{kind}: add a part that gives it{' to `reports`' if need in REPORTS else ''}"
                    )
                    raise EquipoiseError(f"`{part.name}` ({part.role}) needs {source}. No part of {written} gives it.")
            part.check_company(self.parts)
        _refuse_rivals(self.share)
        for share in self.share:
            if "probe" in share.phases and share.reads_updates:
                raise EquipoiseError(
                    f"`{share.name}` (share) works after a probe, when there are no updates yet. Give it "
                    "`reads_updates = False`."
                )
        if self.weigh.rank == 2 and not self.merge.uses_weights:
            raise EquipoiseError(
                f"`{self.merge.name}` (merge) finds its own weights, so `{self.weigh.name}` (weigh) would do nothing in "
                f"{written}. Keep one of the two."
            )

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in the order in which a round meets them."""
        return (
            self.select,
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
        """For each role, the parts that are not FedAvg's."""
        plain = Method().parts
        return {role: tuple(p for p in self.parts if p.role == role and p not in plain) for role in ROLES}

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The learning rates of its parts."""
        return tuple(value for part in self.parts for value in vars(part).values() if isinstance(value, Rate))

    @property
    def probes(self) -> bool:
        """Whether clients report on the received model in a probe before they train."""
        return any("probe" in report.phases for report in self.reports)

    def list_reports(self, phase: Phase) -> tuple[Report, ...]:
        """The reports that clients make in this phase.

        Candidates make those that the selection asks for. Where no part needs such a report after training, too, it is
        not made again.
        """
        asked = set(self.select.asks)
        if phase == "select":
            return tuple(report for report in self.reports if asked & set(report.gives))
        needed = {need for part in self.parts for need in part.needs}
        return tuple(
            report
            for report in self.reports
            if phase in report.phases and not (asked and set(report.gives) <= asked - needed)
        )

    @property
    def streams(self) -> bool:
        """Whether the server needs only a weighted sum of the updates, with weights that depend on each client's own
        reports."""
        return reason_for_rows(self) is None

    @property
    def works_by_columns(self) -> bool:
        """Whether each part of the server is right if it is given some of the parameters only: see
        `Part.by_columns`."""
        server = (self.select, *self.shape, self.weigh, self.merge, *self.step, *self.share)
        return all(part.by_columns is not None for part in server)

    @property
    def validates(self) -> bool:
        """Whether clients need validation data."""
        return any("validation" in part.needs for part in self.parts)

    @property
    def is_as_written(self) -> bool:
        """Whether `calls` describe the method completely: it was built by name, and not changed by hand."""
        return bool(self.calls) and self.built == self._content

    @property
    def _content(self) -> tuple[object, ...]:
        return tuple(getattr(self, one.name) for one in fields(self) if one.compare)

    def __add__(self, other: Method) -> Method:
        """Combine two methods: join their parts in order, role by role.

        Of two selections, weightings or merges, the one of higher rank is used; two different ones of the same rank are
        an error.
        """
        both = Method(
            select=_explicit(self.select, other.select, self, other),
            wrap=_union(self.wrap, other.wrap),
            terms=_union(self.terms, other.terms),
            reports=_union(self.reports, other.reports),
            shape=tuple(sorted(_union(self.shape, other.shape), key=lambda shape: not shape.comes_first)),
            weigh=_explicit(self.weigh, other.weigh, self, other),
            merge=_explicit(self.merge, other.merge, self, other),
            step=tuple(sorted(_union(self.step, other.step), key=lambda step: step.comes_last)),
            share=_union(self.share, other.share),
            training=_agreed_training(self, other),
            is_pooled=self.is_pooled or other.is_pooled,
            calls=(*self.calls, *other.calls),
        )
        return both.remember_calls() if self.is_as_written and other.is_as_written else both

    def remember_calls(self) -> Method:
        """Mark this method, in place, as exactly what its calls built; it is returned."""
        object.__setattr__(self, "built", self._content)  # safe: nobody else has this value yet
        return self

    def __str__(self) -> str:
        if self.is_as_written:
            return _joined(self.calls)
        plain = {f.name: f.default for f in fields(Method)}
        inside = [f"{name}={getattr(self, name)!r}" for name in ROLES if getattr(self, name) != plain[name]]
        return f"Method({', '.join(inside)})"


def reason_for_rows(method: Method) -> str | None:
    """Why the server must see the single updates, in words; None if a weighted sum of them is enough."""
    if method.shape:
        return f"`{method.shape[0].name}` edits single updates before they are summed"
    if type(method.merge).__call__ is not WeightedSum.__call__:
        return f"`{method.merge.name}` merges single updates otherwise than by a weighted sum"
    if type(method.weigh).raw is Weigh.raw or not is_at_least_as_specific(method.weigh, "raw", "__call__"):
        return f"`{method.weigh.name}` finds the weights at the server, from each client's reports or updates"
    readers = [step.name for step in method.step if step.reads_updates]
    readers += [share.name for share in method.share if share.reads_updates]
    readers += [method.select.name] if method.select.reads_updates else []
    return f"`{readers[0]}` looks at single updates" if readers else None


def _joined(calls: tuple[Call, ...]) -> str:
    return " + ".join(map(str, calls))


def _refuse_strangers(role: str, found: object) -> None:
    """Raise an error if something given for a role is not a part that plays it."""
    kind = SLOTS[role]
    if role not in SINGLE and not isinstance(found, tuple):
        raise EquipoiseError(f"`{role}` takes parts in a tuple, such as {role}=(MyPart(),). Found {found!r}.")
    for part in found if isinstance(found, tuple) else (found,):
        if not isinstance(part, kind):
            other = f", which plays `{part.role}`" if isinstance(part, Part) else ""
            made = " Call the class: parts are values." if isinstance(part, type) else ""
            raise EquipoiseError(f"`{role}` takes parts that are a {kind.__name__}. Found {part!r}{other}.{made}")


def _refuse_twins(role: str, parts: tuple[Part, ...]) -> None:
    seen: dict[str, Part] = {}
    for part in parts:
        if part.key in seen:
            raise EquipoiseError(
                f"Two parts called `{part.name}` stand in `{role}`: {seen[part.key]!r} and {part!r}. Keep one of them."
            )
        seen[part.key] = part


def _refuse_unknown_reports(reports: tuple[Report, ...]) -> None:
    """Raise an error if a report is not in the table `REPORTS`, or if two parts give it."""
    giver: dict[str, Report] = {}
    for part in reports:
        for name in part.gives:
            if name not in REPORTS:
                raise EquipoiseError(
                    f"`{part.name}` (reports) gives `{name}`, which is not in the table of reports. Define it first: "
                    f"define_report({name!r}, '[m]', 'what it means')."
                )
            if name in giver:
                raise EquipoiseError(f"`{giver[name].name}` and `{part.name}` both report `{name}`. Keep one of them.")
            giver[name] = part


def _refuse_rivals(parts: tuple[Share, ...]) -> None:
    """Raise an error if two parts send the same thing: one would overwrite the other."""
    sender: dict[str, Share] = {}
    for part in parts:
        for name in part.gives:
            if name in sender:
                raise EquipoiseError(
                    f"`{sender[name].name}` and `{part.name}` both send down {name}. Keep one of them."
                )
            sender[name] = part


def _union(first: tuple[Kind, ...], second: tuple[Kind, ...]) -> tuple[Kind, ...]:
    return first + tuple(part for part in second if part not in first)


def _explicit(a: Single, b: Single, left: Method, right: Method) -> Single:
    if a == b or a.rank > b.rank:
        return a
    if b.rank > a.rank:
        return b
    raise EquipoiseError(
        f"`{left}` and `{right}` both set `{a.role}`: {a!r} and {b!r}. A round has one {a.role} part only: "
        f"keep one of the two methods, or choose with dataclasses.replace(method, {a.role}=...)."
    )


def _agreed_training(left: Method, right: Method) -> tuple[tuple[str, Value], ...]:
    both = dict(left.training)
    for name, value in right.training:
        if name in both and both[name] != value:
            raise EquipoiseError(f"`{left}` trains with {name}={both[name]!r}, `{right}` with {name}={value!r}.")
        both[name] = value
    return tuple(both.items())
