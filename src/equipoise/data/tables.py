"""Turns rows of numbers and text into features, one client at a time, so that nothing leaks from one to another.

A schema says which columns there are and which levels (values) the text columns have. It is all that clients have to
agree on. How missing values are filled and numbers are scaled follows from a client's own training rows. A text that
the schema does not name is of the level "other", in which all features of its column are 0.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.grammar import Mistakes, did_you_mean, fit_to_type, join_words
from equipoise.losses import Target

MOST_LEVELS = 200  # a text column with more different values is hardly a category
Kind = Literal["number", "text", "empty"]  # what a column holds
WHOLE = re.compile(r"-?\d+")  # a whole number as text
LIMIT = 5  # what fewer rows than these have in common is not told outside of their site
FEW_LEVELS = 5  # a text column with no more different values may have numbers as the names of categories


@dataclass(frozen=True)
class Schema:
    """What the clients of a table agree on."""

    label: str  # the label column; the target columns, separated by commas, where no classes are predicted
    classes: tuple[str, ...]  # the names of the classes; otherwise the target columns
    columns: Mapping[str, tuple[str, ...] | None]  # the levels of a text column; None for a number
    target: Target = "classes"  # what is to be predicted
    centre: float = 0.0  # of a number to predict, which is standardised: `(number - centre) / spread`
    spread: float = 0.0  # 0: not known yet
    group: str = ""  # the column that puts rows into groups; empty: none does
    groups: tuple[str, ...] = ()  # the names of the groups

    @property
    def width(self) -> int:
        """How many features a row has."""
        return sum(1 if levels is None else len(levels) for levels in self.columns.values())

    def as_json(self) -> dict[str, object]:
        """The schema as JSON values, as `schema.json` holds it."""
        columns = {name: "number" if levels is None else list(levels) for name, levels in self.columns.items()}
        found: dict[str, object] = {"label": self.label, "classes": list(self.classes), "columns": columns}
        if self.target != "classes":
            found["target"] = self.target
        if self.group:
            found["group"] = {"column": self.group, "names": list(self.groups)}
        return found | ({"centre": self.centre, "spread": self.spread} if self.target == "number" else {})

    @classmethod
    def from_json(cls, found: Any) -> Schema:
        """The schema from what `as_json` gives."""
        columns = {
            str(name): None if kind == "number" else tuple(map(str, kind)) for name, kind in found["columns"].items()
        }
        target = fit_to_type(found.get("target", "classes"), Target, "target")
        scale = (float(found["centre"]), float(found["spread"])) if target == "number" else (0.0, 0.0)
        marks = found.get("group", {"column": "", "names": []})
        named = str(marks["column"]), tuple(map(str, marks["names"]))
        return cls(str(found["label"]), tuple(map(str, found["classes"])), columns, target, *scale, *named)  # type: ignore[arg-type]

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns that are to be predicted."""
        return (self.label,) if self.target == "classes" else self.classes

    @classmethod
    def read(cls, path: Path) -> Schema:
        """The schema in a file `schema.json` that a run or `equipoise deploy merge-schemas` wrote."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if "rows" in found:
                raise EquipoiseError(
                    f"`{path}` describes the data of one site. Join all sites' files first: equipoise deploy merge-schemas "
                    f"{path} ... -o schema.json."
                )
            return cls.from_json(found)
        except OSError as error:
            raise EquipoiseError(f"Cannot read the schema `{path}`: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EquipoiseError(
                f"`{path}` is not a schema: {type(error).__name__} {error}. A run writes one as `schema.json`."
            ) from None


@dataclass(frozen=True)
class Rows:
    """The rows of one client, or those of all clients in one file."""

    client: str  # its name; empty for those of all
    where: str  # where the rows come from, for messages
    table: pa.Table
    name_row: Callable[[int], str] = lambda row: f"row {row + 1}"  # a row, counted from 0, as a user finds it

    def __str__(self) -> str:
        return f"client `{self.client}` ({self.where})" if self.client else self.where

    def column(self, name: str) -> pa.ChunkedArray:
        """One column; an error that lists the columns if it is missing."""
        if name not in self._places:
            raise EquipoiseError(
                f"There is no column `{name}` at {self}.{did_you_mean(name, self.table.column_names)} It has: "
                f"{join_words(self.table.column_names, 12)}."
            )
        return self.table.column(self._places[name])

    @cached_property
    def _places(self) -> dict[str, int]:
        """Name -> place of each column. pyarrow lists all names anew whenever it is asked for one."""
        return {name: place for place, name in enumerate(self.table.column_names)}


# --------------------------------------------------------------------------- what the columns hold
def infer_schema(
    clients: Sequence[Rows],
    targets: Sequence[str],
    classes: Sequence[str],
    apart: Collection[str],
    fewest: int = 1,
) -> Schema:
    """The schema of clients' tables, without the columns that stand `apart` (the client's name and the like), and without
    levels of fewer than `fewest` rows."""
    names = [n for n in clients[0].table.column_names if n not in targets and n not in apart]
    for rows in clients:
        for extra in set(rows.table.column_names) - {*names, *targets, *apart}:
            raise EquipoiseError(
                f"Column `{extra}` is at {rows}, but not at {clients[0]}. Give all clients the same columns, or leave it out "
                f"with --ignore {extra}."
            )
    if not names:
        raise EquipoiseError(f"{clients[0]} has no column beside what is to be predicted: nothing to learn from.")
    return Schema(", ".join(targets), tuple(classes), {name: _levels(clients, name, fewest) for name in names})


def _levels(clients: Sequence[Rows], name: str, fewest: int) -> tuple[str, ...] | None:
    """The levels of a column that is text at every client; None for one that is a number at every client."""
    kinds = [(find_kind(rows, name), rows) for rows in clients]
    numbers, texts = ([rows for found, rows in kinds if found == kind] for kind in ("number", "text"))
    if numbers and texts:
        raise EquipoiseError(
            f"Column `{name}` is text at {texts[0]}, for example {_show_text(texts[0], name)}, and numbers at {numbers[0]}. "
            f"Make it one of the two everywhere, leave it out with --ignore {name}, or say which it is with --schema."
        )
    if not texts:
        return None
    found = Counter(as_text(v) for rows in texts for v in rows.column(name).to_pylist() if v is not None)
    if len(found) > MOST_LEVELS and _mostly_numbers(found):
        raise EquipoiseError(
            f"Column `{name}` holds numbers, but not only, for example {_show_text(texts[0], name)}. Write such values as "
            f"`?`, or leave the column out with --ignore {name}."
        )
    refuse_many_levels(len(found), name, f"{texts[0]}, for example")
    return tuple(sorted(level for level, count in found.items() if count >= fewest))


def refuse_many_levels(count: int, name: str, where: str) -> None:
    """Refuse a text column that has too many different values for a category."""
    if count > MOST_LEVELS:
        raise EquipoiseError(
            f"Text column `{name}` has {count} different values ({where}): too many for categories. Leave "
            f"it out with --ignore {name}, or group its values."
        )


def _show_text(rows: Rows, name: str) -> str:
    """The first value of a column that is no number, and where it stands."""
    values = rows.column(name).to_pylist()
    row = next(i for i, value in enumerate(values) if value is not None and read_number(value) is None)
    return f"{values[row]!r} in {rows.name_row(row)}"


def _mostly_numbers(texts: Collection[str]) -> bool:
    return sum(read_number(text) is not None for text in texts) > len(texts) / 2


def note_odd_texts(schema: Schema) -> list[str]:
    """Notes on columns of numbers that are taken for text, because some values are no numbers."""
    return [
        f"Column `{name}` is taken for text, with a feature per value, because of "
        f"{join_words([repr(level) for level in levels if read_number(level) is None])}. Write such values as `?`, and it "
        "holds numbers."
        for name, levels in schema.columns.items()
        if levels is not None and len(levels) > FEW_LEVELS and _mostly_numbers(levels)
    ]


def find_fraction(labels: Sequence[object]) -> object | None:
    """The first of these labels that is not a whole number, if all are numbers."""
    numbers = [read_number(label) for label in labels]
    if None in numbers:
        return None
    return next((label for label, n in zip(labels, numbers, strict=True) if n is not None and n % 1 != 0), None)


def find_kind(rows: Rows, name: str) -> Kind:
    """What a column holds at one client. A column without a single value is "empty": it fits either kind."""
    column = rows.column(name)
    if column.null_count == len(column):
        return "empty"
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text" if list_texts(column) else "number"
    raise EquipoiseError(
        f"Column `{name}` of {rows} holds {kind}: only numbers and text can be learnt from. Convert it, or leave it out with "
        f"--ignore {name}."
    )


def list_texts(column: pa.ChunkedArray) -> list[object]:
    """The different values of a column that cannot be read as numbers."""
    return [value for value in pc.unique(column).to_pylist() if value is not None and read_number(value) is None]


def read_number(value: object) -> float | None:
    """A value of a table as a number; None if it is none."""
    try:
        return float(str(value)) if not isinstance(value, bool) else float(value)
    except ValueError:
        return None


def order_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Names of classes in order: by size if all are whole numbers, otherwise alphabetically."""
    found = set(names)
    whole = all(WHOLE.fullmatch(name) for name in found)
    return tuple(sorted(found, key=int) if whole else sorted(found))


def as_text(value: object) -> str:
    """A level as text; whole numbers without a decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# --------------------------------------------------------------------------- features
def encode(rows: Rows, schema: Schema, train: Tensor) -> Tensor:
    """The features `[n, width]` of one client, whose training rows alone say how gaps are filled and numbers scaled.

    Missing numbers become the median; then numbers are scaled to mean 0 and standard deviation 1. A category becomes
    one column per level; a missing one becomes the most frequent level. A value that is no level of the schema counts
    as "other": it is 0 in the columns of all levels, as the reference level is where statisticians code categories. A
    column without a single value in the client's training rows is 0 throughout.
    """
    learnt = train.numpy()
    blocks = [
        _number(rows, name, learnt) if levels is None else _category(rows, name, levels, learnt)
        for name, levels in schema.columns.items()
    ]
    return torch.from_numpy(np.concatenate(blocks, 1).astype(np.float32))


def _number(rows: Rows, name: str, train: np.ndarray) -> np.ndarray:
    values = np.array([_finite(v, name, rows) for v in rows.column(name).to_pylist()], dtype=np.float64)
    known = values[train][~np.isnan(values[train])]
    if len(known) == 0:
        return np.zeros((len(values), 1))
    values = np.where(np.isnan(values), np.median(known), values)
    spread = values[train].std()
    return ((values - values[train].mean()) / (spread if spread > 0 else 1))[:, None]


def _finite(value: object, name: str, rows: Rows) -> float:
    if value is None:
        return np.nan
    number = read_number(value)
    if number is None:
        raise EquipoiseError(f"Column `{name}` is a number in the schema. Found {value!r} at {rows}.")
    if np.isinf(number):
        raise EquipoiseError(f"Column `{name}` must be finite. Found {value!r} at {rows}.")
    return number


def _category(rows: Rows, name: str, levels: tuple[str, ...], train: np.ndarray) -> np.ndarray:
    place = {level: i for i, level in enumerate(levels)}
    other = len(levels)
    texts = list_levels(rows, name)
    values = np.array([-1 if text is None else place.get(text, other) for text in texts])
    block = np.zeros((len(values), len(levels) + 1))
    known = values[train][values[train] >= 0]
    if len(known):
        values = np.where(values < 0, np.bincount(known).argmax(), values)
        block[np.arange(len(values)), values] = 1
    return block[:, :other]


def list_levels(rows: Rows, name: str) -> list[str | None]:
    """The value of every row in a column, as a level; None where it is missing."""
    return [None if v is None or v != v else as_text(v) for v in rows.column(name).to_pylist()]


# --------------------------------------------------------------------------- rows that do not fit a given schema
def list_misfits(rows: Rows, schema: Schema) -> list[str]:
    """Everything in which rows do not fit a schema, in words: columns that are missing, and text in place of numbers."""
    mistakes = Mistakes()
    there = dict.fromkeys(rows.table.column_names)
    unused = [name for name in there if name not in schema.columns and name not in schema.targets]
    for name, levels in schema.columns.items():
        with mistakes.noted():
            if name not in there:
                raise EquipoiseError(f"There is no column `{name}` at {rows}.{did_you_mean(name, unused)}")
            column = rows.column(name)
            if levels is None and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
                for value in list_texts(column)[:1]:
                    _finite(value, name, rows)
    return mistakes.found


def note_unknown_levels(rows: Rows, schema: Schema) -> list[str]:
    """A note on each text column with values that the schema does not name. The values themselves are not in it."""
    notes = []
    for name, levels in schema.columns.items():
        if levels is None:
            continue
        texts = [text for text in list_levels(rows, name) if text is not None]
        unknown = sum(text not in levels for text in texts)
        if unknown and unknown == len(texts):
            notes.append(
                f"No value of `{name}` at `{rows.client}` is one of the schema's levels: {join_words(list(levels), 12)}. All "
                "count as other. Are they coded otherwise?"
            )
        elif unknown:
            many = f"{unknown} of {len(texts)} rows" if unknown >= LIMIT else f"fewer than {LIMIT} rows"
            notes.append(
                f"Values of `{name}` at `{rows.client}` that the schema does not name ({many}): count as other."
            )
    return notes


def compare_schemas(schemas: Mapping[str, Schema]) -> list[str]:
    """Everything in which the schemas of two clients, given by their names, differ, in words."""
    (here, one), (there, other) = schemas.items()
    found = []
    if one.label != other.label:
        found.append(f"The label column is `{one.label}` at `{here}` and `{other.label}` at `{there}`.")
    if one.classes != other.classes:
        found.append(
            f"The classes are {join_words(list(one.classes), 12)} at `{here}` and {join_words(list(other.classes), 12)} at "
            f"`{there}`."
        )
    if (one.group, one.groups) != (other.group, other.groups):
        told = (f"`{s.group}` ({join_words(list(s.groups), 12)})" if s.group else "not marked" for s in (one, other))
        found.append(f"Groups are {next(told)} at `{here}` and {next(told)} at `{there}`. Give all sites one schema.")
    scales = [(schema.centre, schema.spread) for schema in (one, other)]
    if one.target == other.target == "number" and scales[0] != scales[1]:
        found.append(
            f"`{one.label}` is standardised by {scales[0]} at `{here}` and by {scales[1]} at `{there}`. Give all sites one "
            "schema."
        )
    for name in dict.fromkeys((*one.columns, *other.columns)):
        if name not in one.columns or name not in other.columns:
            holder, lacks = (here, there) if name in one.columns else (there, here)
            found.append(f"Column `{name}` is at `{holder}`, not at `{lacks}`.")
        elif one.columns[name] != other.columns[name]:
            told = (
                "numbers" if levels is None else f"text ({join_words(list(levels), 12)})"
                for levels in (one.columns[name], other.columns[name])
            )
            found.append(f"Column `{name}` holds {next(told)} at `{here}` and {next(told)} at `{there}`.")
    if not found and list(one.columns) != list(other.columns):
        found.append(f"The columns of `{here}` and `{there}` stand in another order.")
    return found
