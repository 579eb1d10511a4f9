"""Reads text with a value per column (CSV, TSV): finds out how it is encoded and what separates values, and names what
is wrong by its line, as an editor counts."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from equipoise.errors import EquipoiseError
from equipoise.grammar import join_words

# What stands for "no value", with or without spaces around it.
MISSING = ["", "?", "-", "NA", "na", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NAN", "null", "NULL", "None"]
USUAL = {".csv": ",", ".tsv": "\t"}  # what separates values, by the ending of a file's name
SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}  # and how messages name them
LOOKED_AT = 20  # lines by which the separator is found
DECIMAL_COMMA = r"^[+-]?\d+(,\d+)?$"
LARGEST = (1 << 31) - 1  # bytes that pyarrow reads at a time


def read_delimited(path: Path) -> tuple[pa.Table, list[str]]:
    """The rows of a CSV or TSV file, and notes on how it was read.

    Spaces around names and values are removed. A column without a name is left out, as the index that pandas writes.
    """
    text, encoding = _decode(path)
    separator = find_separator(text, USUAL.get(path.suffix.lower(), ","))
    _refuse_open_quotation(path, text, separator)
    content = text.encode()
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(content),
            # One block: what a column holds must follow from all of its values, not from those of the first block.
            read_options=pyarrow.csv.ReadOptions(block_size=min(LARGEST, max(1 << 20, len(content) + 1))),
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(null_values=MISSING, strings_can_be_null=True),
        )
    except pa.ArrowInvalid:
        _refuse_uneven(path, text, separator)
        raise
    notes = [_note_latin(path, text)] if encoding == "Latin-1" else []
    names = [name.strip() for name in table.column_names]
    columns = [_clean(column) for column in table.columns]
    if separator == ";":
        decimal = [i for i, column in enumerate(columns) if _has_decimal_commas(column)]
        for i in decimal:
            columns[i] = pc.cast(pc.replace_substring(columns[i], ",", "."), pa.float64())
        if decimal:
            notes.append(f"Read as decimal commas in `{path.name}`: {join_words([f'`{names[i]}`' for i in decimal])}.")
    unnamed = [str(i + 1) for i, name in enumerate(names) if not name]
    if unnamed:
        notes.append(f"Left out of `{path.name}`, because it has no name: column {join_words(unnamed)}.")
    named = [i for i, name in enumerate(names) if name]
    return pa.Table.from_arrays([columns[i] for i in named], names=[names[i] for i in named]), notes


def find_line(path: Path, row: int) -> int:
    """The line in which a row begins: the header is line 1, row 0 comes after it, and blank lines are counted."""
    text, _ = _decode(path)
    records = _list_records(text, find_separator(text, USUAL.get(path.suffix.lower(), ",")))
    return next(islice(records, row + 1, None))[0]


def find_separator(text: str, usual: str) -> str:
    """What separates the values of a text: a comma, a semicolon or a tab.

    It is the one that gives the most columns, among those that give every line as many, if there are some. The usual
    one counts if nothing speaks for another.

    >>> find_separator("a;b\\n1,5;2\\n", ",")
    ';'
    """
    best, chosen = (False, 1), usual
    for separator in sorted(SEPARATORS, key=lambda one: one != usual):
        try:
            counts = [len(cells) for _, cells in islice(_list_records(text, separator), LOOKED_AT)]
        except csv.Error:  # a quotation that never ends
            continue
        standing = (len(set(counts)) == 1, counts[0]) if counts else (False, 0)
        if counts and counts[0] > 1 and standing > best:
            best, chosen = standing, separator
    return chosen


def _decode(path: Path) -> tuple[str, str]:
    """The text of a file, and its encoding.

    Text that is not UTF-8 is taken for Latin-1, in the version of Windows, which has a few more signs.
    """
    content = path.read_bytes()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding, codec = "UTF-16", "utf-16"
    else:
        encoding, codec = "UTF-8", "utf-8-sig"
    try:
        text = content.decode(codec)
    except UnicodeDecodeError:
        encoding = "Latin-1"
        try:
            text = content.decode("cp1252")
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            raise EquipoiseError(
                f"`{path}` is neither UTF-8 nor Latin-1 (line {line}). Save it as UTF-8: in a spreadsheet, as `CSV UTF-8`."
            ) from None
    if "\0" in text:
        raise EquipoiseError(f"`{path}` holds zero bytes: it is not text. Save it as a CSV file in UTF-8.")
    return text, encoding


def _note_latin(path: Path, text: str) -> str:
    strange = re.search(r"\w*[^\x00-\x7f]\w*", text)
    assert strange is not None  # text without such signs is UTF-8
    line = text.count("\n", 0, strange.start()) + 1
    return (
        f"`{path.name}` is not UTF-8. It was read as Latin-1, for example {strange[0]!r} in line {line}: if that is wrong, "
        "save it as UTF-8."
    )


def _list_records(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The values of each line that is not blank, and the line's number. A value in quotes may go on in the next line."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    begins = 1
    for cells in reader:
        if cells:
            yield begins, cells
        begins = reader.line_num + 1


def _refuse_uneven(path: Path, text: str, separator: str) -> None:
    """Refuse a line with more or fewer values than the header has names."""
    try:
        records = _list_records(text, separator)
        _, header = next(records)
        uneven = [(line, len(cells)) for line, cells in records if len(cells) != len(header)]
    except (StopIteration, csv.Error):
        return
    if uneven:
        line, count = uneven[0]
        more = f" ({len(uneven)} lines differ from the header)" if len(uneven) > 1 else ""
        raise EquipoiseError(
            f"Line {line} of `{path}` has {count} value{'s' * (count != 1)}, and the header names {len(header)} columns{more}. "
            f"Put a value that contains {SEPARATORS[separator]} into quotes, and fill up short lines."
        )


def _refuse_open_quotation(path: Path, text: str, separator: str) -> None:
    """Refuse a quotation that never ends: all lines after it would be one value."""
    if text.count('"') % 2 == 0:
        return
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for _ in reader:
            line = reader.line_num + 1
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise EquipoiseError(
                f"A quotation begins in line {line} of `{path}` and never ends. Close it, or write a lone quote as two."
            ) from None


def _clean(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without spaces around its texts, and without texts that stand for a missing value."""
    if not pa.types.is_string(column.type):
        return column
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(trimmed, value_set=pa.array(MISSING)), pa.scalar(None, pa.string()), trimmed)


def _has_decimal_commas(column: pa.ChunkedArray) -> bool:
    if not pa.types.is_string(column.type) or column.null_count == len(column):
        return False
    is_number = pc.all(pc.match_substring_regex(column, DECIMAL_COMMA)).as_py()
    return bool(is_number) and bool(pc.any(pc.match_substring(column, ",")).as_py())
