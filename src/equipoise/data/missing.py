"""Missing values in a user's tables: counted and named, and, if the user wants that, rows that have some left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.data.pieces import Piece
from equipoise.data.tables import as_text
from equipoise.errors import EquipoiseError
from equipoise.grammar import join_words

SPELT = "blank, `?`, `NA` and the like"  # what counts as missing, in messages
SHOWN = 20  # columns or clients that a note names at most


def mark_missing(column: pa.ChunkedArray) -> np.ndarray:
    """Which values of a column are missing, `[n]`."""
    return pc.is_null(column, nan_is_null=True).to_numpy()


def count_missing(pieces: Sequence[Piece], columns: Sequence[str]) -> dict[str, int]:
    """How many values are missing in each of these columns that lacks some."""
    found: Counter[str] = Counter()
    for piece in pieces:
        for name in set(columns) & set(piece.table.column_names):
            found[name] += int(mark_missing(piece.table[name]).sum())
    return {name: found[name] for name in columns if found[name]}


def note_missing(pieces: Sequence[Piece], columns: Sequence[str], counted: bool = True) -> list[str]:
    """A note on the missing values in these columns, if there are some. Without `counted` it has no numbers: a site does
    not tell them."""
    named = _list_missing(pieces, columns, counted)
    if not named:
        return []
    rows = sum(len(piece.table) for piece in pieces)
    return [
        f"Missing values ({SPELT}){f', of {rows} rows' if counted else ''}: {named}. Each client fills them from its own "
        "training rows; --drop-missing leaves such rows out."
    ]


def _list_missing(pieces: Sequence[Piece], columns: Sequence[str], counted: bool) -> str:
    """The columns that lack values, in words; if asked for, with how many."""
    found = count_missing(pieces, columns)
    return join_words([f"`{name}`" + (f" {count}" if counted else "") for name, count in found.items()], SHOWN)


def drop_missing(
    pieces: Sequence[Piece], columns: Sequence[str], owner: str | None, counted: bool = True
) -> tuple[list[Piece], list[str]]:
    """The pieces without rows that lack a value in one of these columns, and a note on how many rows were left out.

    `owner` is the column that names the client of a row; None: the rows belong to nobody yet. Without `counted` the note
    has no numbers.
    """
    kept, lost, held = [], Counter[str](), Counter[str]()
    for piece in pieces:
        if piece.images:
            raise EquipoiseError(f"--drop-missing is for tables, and {piece.where} holds images.")
        table = piece.table
        gaps = np.zeros(len(table), dtype=bool)
        for name in set(columns) & set(table.column_names):
            gaps |= mark_missing(table[name])
        names = np.array(_owners(piece, owner))
        held.update(names.tolist())
        lost.update(names[gaps].tolist())
        rows = np.flatnonzero(~gaps)
        if len(rows):
            kept.append(replace(piece, table=table.take(pa.array(rows)), kept=rows.tolist()))
    if not kept:
        raise EquipoiseError(
            f"Every row has a missing value, so that --drop-missing leaves none (missing: "
            f"{_list_missing(pieces, columns, counted)}). Leave out columns with "
            "many of them, with --ignore."
        )
    if not lost:
        return kept, []
    if not counted:
        return kept, [f"Rows{name} are left out, because a value is missing." for name in held if lost[name]]
    each = join_words([f"{lost[name]} of {held[name]}{name}" for name in held if lost[name]], SHOWN)
    return kept, [f"Rows left out, because a value is missing: {each}."]


def _owners(piece: Piece, owner: str | None) -> list[str]:
    """To whom each row belongs, as the end of a sentence."""
    if piece.client is not None:
        return [f" of `{piece.client}`"] * len(piece.table)
    if owner is None or owner not in piece.table.column_names:
        return [""] * len(piece.table)
    values = piece.table[owner].to_pylist()
    return [" without a client" if value is None else f" of `{as_text(value)}`" for value in values]
