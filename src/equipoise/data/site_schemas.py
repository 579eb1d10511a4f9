"""What each site tells of its table before a federation begins, and the schema that all sites' files make together.

A site's file names its columns, what each of them holds, and the levels of its text columns, with counts. Every count
is rounded down to a multiple of a limit, and a level of fewer rows than the limit is not named. So a rare value stays at
its site, and no small count follows from the difference of others. No number of a numeric column is in the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from equipoise.data.tables import (
    LIMIT,
    Kind,
    Rows,
    Schema,
    find_kind,
    list_levels,
    list_texts,
    order_classes,
    refuse_many_levels,
)
from equipoise.errors import EquipoiseError
from equipoise.grammar import Mistakes, did_you_mean, join_words, require


@dataclass(frozen=True)
class Column:
    """One column at one site. All counts are rounded down."""

    kind: Kind
    missing: int = 0  # rows without a value
    levels: Mapping[str, int] = field(default_factory=dict)  # of a text column: the rows of each level that is named
    other: int = 0  # of a text column: rows whose level is not named


@dataclass(frozen=True)
class SiteSchema:
    """What one site tells of its table. All counts are rounded down to a multiple of `limit`."""

    label: str  # the label column
    rows: int
    classes: Mapping[str, int]  # rows of each class; all classes are named, also those of few rows
    columns: Mapping[str, Column]
    limit: int = LIMIT

    def as_json(self) -> dict[str, object]:
        """The content of a site's file."""

        def describe(column: Column) -> dict[str, object]:
            found: dict[str, object] = {"kind": column.kind, "missing": column.missing}
            return found | ({"levels": dict(column.levels), "other": column.other} if column.kind == "text" else {})

        return {
            "counts": f"rounded down to multiples of {self.limit}: 0 means fewer than {self.limit}",
            "limit": self.limit,
            "rows": self.rows,
            "label": self.label,
            "classes": dict(self.classes),
            "columns": {name: describe(column) for name, column in self.columns.items()},
        }

    @classmethod
    def read(cls, path: Path) -> SiteSchema:
        """The content of a file that `equipoise schema` wrote."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            columns = {
                str(name): Column(
                    one["kind"], int(one["missing"]), _counts(one.get("levels", {})), int(one.get("other", 0))
                )
                for name, one in found["columns"].items()
            }
            return cls(str(found["label"]), int(found["rows"]), _counts(found["classes"]), columns, int(found["limit"]))
        except OSError as error:
            raise EquipoiseError(f"Cannot read `{path}`: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EquipoiseError(
                f"`{path}` is not what a site tells of its data: {type(error).__name__} {error}. Write it at the site: "
                "equipoise schema site.csv -o site.json."
            ) from None


def _counts(found: Mapping[str, object]) -> dict[str, int]:
    return {str(name): int(str(count)) for name, count in found.items()}


# --------------------------------------------------------------------------- at a site
def describe_rows(
    rows: Rows, label: str, labels: Sequence[str], apart: Collection[str], limit: int
) -> tuple[SiteSchema, list[str]]:
    """What a site tells of its rows, and notes for the site itself, which may quote its values.

    `labels` are the labels of the rows; columns that stand `apart` are left out.
    """
    require(limit >= 1, "limit", "at least 1", limit)
    mistakes, notes = Mistakes(), list[str]()
    columns: dict[str, Column] = {}
    for name in rows.table.column_names:
        if name != label and name not in apart:
            with mistakes.noted():
                columns[name] = _describe_column(rows, name, limit, notes)
    classes = Counter(labels)
    if max(classes.values()) < limit:  # a column of names or numbers of persons, most likely
        mistakes.found.append(
            f"No value of the label column `{label}` has {limit} rows. Name the right one with --label."
        )
    mistakes.refuse()
    told = {name: _round_down(classes[name], limit) for name in order_classes(classes)}
    return SiteSchema(label, _round_down(len(labels), limit), told, columns, limit), notes


def _describe_column(rows: Rows, name: str, limit: int, notes: list[str]) -> Column:
    kind = find_kind(rows, name)
    values = list_levels(rows, name)
    present = Counter(value for value in values if value is not None)
    missing = _round_down(values.count(None), limit)
    if kind != "text":
        return Column(kind, missing)
    refuse_many_levels(len(present), name, str(rows))
    named = {level: _round_down(present[level], limit) for level in sorted(present) if present[level] >= limit}
    rare = len(present) - len(named)
    odd = list_texts(rows.column(name))
    if not named:
        notes.append(
            f"Column `{name}`: no value has {limit} rows, so none is named, and nothing can be learnt from it. Leave it out "
            f"with --ignore {name}."
        )
    elif rare:
        notes.append(
            f"Column `{name}`: {rare} of {len(present)} values are not named, because they have fewer than {limit} rows. They "
            "will count as other."
        )
    few = sum(present[str(value)] for value in odd)
    if 2 * few < present.total():
        notes.append(
            f"Column `{name}` is text because {few} of {present.total()} values are no numbers, for example {odd[0]!r}. "
            "Correct them, or leave them empty, if it should be a number."
        )
    return Column(kind, missing, named, _round_down(sum(present[one] for one in present if one not in named), limit))


def _round_down(count: int, limit: int) -> int:
    return count - count % limit


# --------------------------------------------------------------------------- where all sites' files come together
def merge_files(paths: Sequence[Path], ignore: Collection[str] = (), group: str = "") -> tuple[Schema, list[str]]:
    """The schema of all sites, from the files that they wrote, and notes on what a reader should look at.

    Levels and classes are those of all sites together. Everything in which files contradict each other is one error,
    which names the files. Columns in `ignore` are left out; the text column `group` puts rows into groups, and is no
    feature.
    """
    mistakes, notes = Mistakes(), list[str]()
    sites: dict[str, SiteSchema] = {}
    for path in paths:
        with mistakes.noted():
            sites[str(path)] = SiteSchema.read(path)
    labels = _files_by({file: site.label for file, site in sites.items()})
    if len(labels) > 1:
        told = "; ".join(f"`{label}` in {join_words(files)}" for label, files in labels.items())
        mistakes.found.append(f"The label columns differ: {told}. Name the same one at each site, with --label.")
    classes = _join({file: site.classes for file, site in sites.items()}, "Classes", notes)
    if sites and len(classes) < 2:
        mistakes.found.append(
            f"All files together have the class {join_words(list(classes))}: there is nothing to learn."
        )
    columns: dict[str, tuple[str, ...] | None] = {}
    for name in dict.fromkeys(name for site in sites.values() for name in site.columns):
        if name in ignore:
            continue
        with mistakes.noted():
            kind = _reconcile(name, sites, name == group)
            levels = {file: site.columns[name].levels for file, site in sites.items()}
            if kind == "empty" or (kind == "text" and not any(levels.values())):
                notes.append(f"Column `{name}` is left out: no file names a value of it.")
            else:
                columns[name] = _join(levels, f"Levels of `{name}`", notes) if kind == "text" else None
                refuse_many_levels(len(columns[name] or ()), name, "all files together")
    groups = columns.pop(group, None) if group else ()
    known = [name for site in sites.values() for name in site.columns]
    if (
        group and not groups and not (group in known and mistakes.found)
    ):  # otherwise what is wrong with it is said above
        mistakes.found.append(
            f"There is no text column `{group}` to put rows into groups.{did_you_mean(group, known)} It must be at all sites."
        )
    if sites and not columns and any(site.columns for site in sites.values()) and not mistakes.found:
        mistakes.found.append("No column is left to learn from.")
    if mistakes.found:
        mistakes.found += notes  # whoever has to ask the sites anyway asks them about these, too
    mistakes.refuse()
    return Schema(next(iter(labels)), order_classes(classes), columns, group=group, groups=groups or ()), notes


def _files_by(told: Mapping[str, str]) -> dict[str, list[str]]:
    """What files tell -> the files that tell it."""
    found: dict[str, list[str]] = {}
    for file, what in told.items():
        found.setdefault(what, []).append(f"`{file}`")
    return found


def _reconcile(name: str, sites: Mapping[str, SiteSchema], is_group: bool = False) -> Kind:
    """What a column holds at all sites; an error that names the files if they contradict each other. That of groups must
    have values everywhere."""
    there = [file for file, site in sites.items() if name in site.columns]
    absent = [file for file in sites if file not in there]
    if absent:
        near = did_you_mean(
            name, [one for file in absent for one in sites[file].columns if one not in sites[there[0]].columns]
        )
        rest = (
            ", or name with --group a column that all have: every row must be in a group."
            if is_group
            else f" (it may be empty), or leave it out with --ignore {name}."
        )
        raise EquipoiseError(
            f"Column `{name}` is in {join_words([f'`{file}`' for file in there])}, not in "
            f"{join_words([f'`{file}`' for file in absent])}.{near} Give it the same name everywhere, add it where it is "
            f"missing{rest}"
        )
    kinds = _files_by({file: site.columns[name].kind for file, site in sites.items()})
    kinds.pop("empty", None)  # a column without values fits either kind
    if len(kinds) > 1:
        levels = [level for file, site in sites.items() for level in site.columns[name].levels]
        example = f", for example {levels[0]!r}," if levels else ""
        raise EquipoiseError(
            f"Column `{name}` is text in {join_words(kinds['text'])}{example} and numbers in {join_words(kinds['number'])}. "
            f"Make it one of the two everywhere, or leave it out with --ignore {name}."
        )
    return "empty" if not kinds else "text" if "text" in kinds else "number"


def _join(told: Mapping[str, Mapping[str, int]], what: str, notes: list[str]) -> tuple[str, ...]:
    """All levels that files name, in order. A note tells which of them are in one file alone."""
    holders = {level: [file for file in told if level in told[file]] for levels in told.values() for level in levels}
    alone = _files_by({level: files[0] for level, files in holders.items() if len(files) == 1})
    if len(told) > 1:
        notes += [
            f"{what} in `{file}` alone: {join_words(levels, 12)}. Are they coded as elsewhere?"
            for file, levels in alone.items()
        ]
    return tuple(sorted(holders))
