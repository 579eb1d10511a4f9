"""What the rows of a user's own tables are to be mapped to: classes, a number, or several labels of 0 and 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.data.arrays import Groups, mark_groups
from equipoise.data.files import list_class_names
from equipoise.data.missing import SPELT, mark_missing
from equipoise.data.pieces import Piece
from equipoise.data.tables import LIMIT, WHOLE, Schema, as_text, find_fraction, order_classes, read_number
from equipoise.errors import EquipoiseError
from equipoise.grammar import did_you_mean, join_words
from equipoise.losses import Target

MOST_CLASSES = 1_000  # a label column with more different values hardly holds classes
MOST_NUMBERS, ROWS_PER_NUMBER = 20, 4  # more numbers as labels, each in fewer rows on average, are hardly classes


@dataclass(frozen=True)
class Wanted:
    """The columns that are to be predicted, and what they are."""

    columns: tuple[str, ...]
    kind: Target

    @classmethod
    def of(cls, label: str | None, target: Sequence[str], fixed: Schema | None) -> Wanted:
        """What the options `label` and `target`, or a given schema, ask for."""
        if label and target:
            raise EquipoiseError(
                f"Classes are named with --label, numbers and labels of 0 and 1 with --target. Found label={label!r} and "
                f"target={tuple(target)!r}: give one of the two."
            )
        if target:
            return cls(tuple(target), "number" if len(target) == 1 else "labels")
        if fixed and fixed.target != "classes" and not label:
            return cls(fixed.classes, fixed.target)
        return cls((label or (fixed.label if fixed else "label"),), "classes")

    @property
    def label(self) -> str:
        """The columns as one text."""
        return ", ".join(self.columns)


def read_targets(pieces: Sequence[Piece], wanted: Wanted, fixed: Schema | None) -> tuple[Tensor, tuple[str, ...]]:
    """The target of every row, and the names of the classes, of the labels, or of the number.

    Classes are positions in their names `[n]`, numbers as they stand in the table `[n]`, labels zeros and ones
    `[n, labels]`.
    """
    if wanted.kind == "classes":
        return _read_classes(pieces, wanted.label, fixed)
    if fixed and fixed.classes != wanted.columns:
        raise EquipoiseError(
            f"The schema has the targets {join_words(fixed.classes, 12)}. Found {join_words(wanted.columns, 12)}: name the "
            "same ones with --target."
        )
    parsed = _parse_number if wanted.kind == "number" else _parse_label
    columns = [[v for piece in pieces for v in _read_column(piece, name, parsed)] for name in wanted.columns]
    found = torch.tensor(columns, dtype=torch.float64)
    return (found[0] if wanted.kind == "number" else found.T.float()), wanted.columns


def _read_column(piece: Piece, column: str, parsed: Callable[[object], float | str]) -> list[float]:
    """One target column of a piece as numbers. The first value that cannot be one is an error that says where it is."""
    place = describe_piece(piece)
    refuse_absent(piece, column, "target column", "--target")
    refuse_gaps(piece, column, "target")
    found = []
    for row, value in enumerate(piece.table[column].to_pylist()):
        number = parsed(value)
        if isinstance(number, str):
            raise EquipoiseError(
                f"Column `{column}` {number} Found {as_text(value)!r} in {piece.name_row(row)} of {place}."
            )
        found.append(number)
    return found


def note_classes(numbers: Tensor, column: str) -> list[str]:
    """A note if the numbers to predict are only 0 and 1, which are rather two classes."""
    if not bool(((numbers == 0) | (numbers == 1)).all()):
        return []
    return [f"Column `{column}` holds only 0 and 1, and is predicted as a number: for classes use --label {column}."]


def _parse_number(value: object) -> float | str:
    number = read_number(value)
    if number is None or not np.isfinite(number):
        return "is to be predicted as a number (--target), and must hold numbers. For classes, use --label."
    return number


def _parse_label(value: object) -> float | str:
    number = read_number(value)
    return number if number in (0.0, 1.0) else "is one of several labels (--target), and must hold 0 and 1."


# --------------------------------------------------------------------------- classes
def read_label_texts(pieces: Sequence[Piece], label: str) -> tuple[list[str], tuple[str, ...] | None]:
    """The label of every row, and the names of the classes where a file declares them."""
    texts: list[str] = []
    declared: tuple[str, ...] | None = None
    for piece in pieces:
        place = describe_piece(piece)
        refuse_absent(piece, label, "label column", "--label")
        refuse_gaps(piece, label, "label")
        values = piece.table[label].to_pylist()
        fraction = find_fraction(values)
        if fraction is not None:
            raise EquipoiseError(
                f"Labels must be classes. Found {str(fraction)!r} in column `{label}` of {place}. {_suggest_target(label)}"
            )
        names = list_class_names(piece.table, label)
        declared = declared or names
        texts += [names[v] if names and isinstance(v, int) and 0 <= v < len(names) else as_text(v) for v in values]
    return texts, declared


def _suggest_target(label: str) -> str:
    return f"To predict it as a number, name it with --target {label}."


def _read_classes(pieces: Sequence[Piece], label: str, fixed: Schema | None) -> tuple[Tensor, tuple[str, ...]]:
    """The class of every row, and the names of the classes."""
    texts, declared = read_label_texts(pieces, label)
    classes = fixed.classes if fixed else declared or order_classes(texts)
    unknown = sorted(set(texts) - set(classes))
    if unknown:
        raise EquipoiseError(
            f"Label {join_words([repr(one) for one in unknown])} is not one of the classes: "
            f"{join_words(list(classes), 12)}."
        )
    if len(set(texts)) < 2 and not fixed:  # with a schema, these may be the rows of one site among several
        raise EquipoiseError(f"Every row has the label {texts[0]!r}: there is nothing to learn.")
    if len(classes) > MOST_CLASSES:
        raise EquipoiseError(
            f"Column `{label}` has {len(classes)} different values: too many for classes. Name another one. "
            f"{_suggest_target(label)}"
        )
    whole = fixed is None and declared is None and all(WHOLE.fullmatch(text) for text in classes)
    if whole and len(classes) > max(MOST_NUMBERS, len(texts) / ROWS_PER_NUMBER):
        raise EquipoiseError(
            f"Column `{label}` has {len(classes)} different numbers in {len(texts)} rows, which look like measurements, not "
            f"classes. {_suggest_target(label)} If they are classes, give them names that are no numbers."
        )
    number = {name: i for i, name in enumerate(classes)}
    return torch.tensor([number[text] for text in texts]), classes


# --------------------------------------------------------------------------- groups
MOST_GROUPS = 20  # a column with more different values hardly marks groups


def read_groups(pieces: Sequence[Piece], column: str, fixed: Schema | None) -> Groups:
    """The groups that a column puts rows into. Those of a given schema are the only ones that there may be."""
    marks: list[str] = []
    for piece in pieces:
        refuse_absent(piece, column, "group column", "--group", pieces)
        refuse_gaps(piece, column, "group")
        marks += [as_text(value) for value in piece.table[column].to_pylist()]
    names = fixed.groups if fixed and fixed.group == column else None
    unknown = sorted(set(marks) - set(marks if names is None else names))
    if unknown:
        raise EquipoiseError(
            f"Group {join_words([repr(one) for one in unknown])} in column `{column}` is not one of the schema's: "
            f"{join_words(list(names or ()), 12)}. Recode these rows, or leave them out of the table; a schema names a group "
            f"if a site has {LIMIT} rows of it."
        )
    if len(set(marks)) > MOST_GROUPS:
        raise EquipoiseError(
            f"Column `{column}` has {len(set(marks))} different values: too many for groups. Join some, into age groups, say."
        )
    if names is None and len(set(marks)) < 2:
        raise EquipoiseError(
            f"Every row is in the group {marks[0]!r} of column `{column}`: there is nothing to compare."
        )
    return mark_groups(column, marks, names)


# --------------------------------------------------------------------------- columns that must be there
def describe_piece(piece: Piece) -> str:
    """Where a piece lies, and whose it is, for messages."""
    return piece.where + (f" (client `{piece.client}`)" if piece.client else "")


def refuse_absent(piece: Piece, column: str, what: str, option: str, pieces: Sequence[Piece] = ()) -> None:
    """Refuse a table without this column; `option` is how a user names it, and `pieces` are all tables."""
    columns = piece.table.column_names
    having = sum(column in one.table.column_names for one in pieces)
    if having and column not in columns:
        raise EquipoiseError(
            f"{describe_piece(piece)} has no {what} `{column}`, which {having} of the {len(pieces)} files have. Add it to "
            f"this file, or name with {option} a column that all have. Here are: {join_words(columns, 12)}."
        )
    if column not in columns:
        raise EquipoiseError(
            f"{describe_piece(piece)} has no {what} `{column}`.{did_you_mean(column, columns)} Name it with {option}. There "
            f"are: {join_words(columns, 12)}."
        )


def refuse_gaps(piece: Piece, column: str, what: str) -> None:
    """Refuse a table with rows that lack a value in this column, which says `what` they are."""
    gaps = np.flatnonzero(mark_missing(piece.table[column]))
    if len(gaps):
        others = f", and in {len(gaps) - 1} more rows" if len(gaps) > 1 else ""
        place = f"{piece.name_row(int(gaps[0]))} of {piece.where}"
        raise EquipoiseError(
            f"There is no {what} in column `{column}` in {place}{others} ({SPELT} count as missing). "
            "Fill it in, or leave such rows out with --drop-missing."
        )
