"""Reads tables and finds images on disk. A file that cannot be read is an error that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.data.delimited import find_line, read_delimited
from equipoise.errors import EquipoiseError

IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})
TABLES = frozenset({".csv", ".tsv", ".parquet"})


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with a file into an error of one line that names it."""
    try:
        yield
    except FileNotFoundError:
        raise EquipoiseError(f"There is no file `{path}`.") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0].rstrip(". ")[:160]
        raise EquipoiseError(f"Cannot read `{path}` ({reason!r}). Is it complete? Fetch or export it again.") from None


def read_table(path: Path) -> pa.Table:
    """The rows of a Parquet, CSV or TSV file."""
    with _reading(path):
        if path.suffix.lower() == ".parquet":
            return pq.ParquetFile(path).read()  # reads one file alone, and no columns from the names of its folders
        return read_delimited(path)[0]


class Found(NamedTuple):
    """A table without its images."""

    table: pa.Table
    images: str | None = None  # the name of the column with images, if there is one
    notes: Sequence[str] = ()  # on how the file was read


def read_rows(path: Path) -> Found:
    """A table without its image column. Images are large: they are read later, and only if the cache does not hold
    them."""
    with _reading(path):
        if path.suffix.lower() != ".parquet":
            table, notes = read_delimited(path)
            return Found(table, notes=notes)
        with pq.ParquetFile(path) as file:
            images = find_image_column(file.schema_arrow.empty_table())
            return Found(file.read([name for name in file.schema_arrow.names if name != images]), images)


def name_row(path: Path, row: int) -> str:
    """A row of a table, counted from 0, as a user finds it: by its line in a text file, otherwise by its number from 1."""
    return f"row {row + 1}" if path.suffix.lower() == ".parquet" else f"line {find_line(path, row)}"


def find_shards(folder: Path, split: str) -> list[Path]:
    """The Parquet files of one split, `train-00000-of-00002.parquet` and so on. A missing one is an error."""
    found = sorted(folder.glob(f"{split}-*.parquet"))
    for path in found:
        total = re.search(r"-of-(\d+)$", path.stem)
        if total and len(found) != int(total[1]):
            raise EquipoiseError(
                f"`{folder}` has {len(found)} of the {int(total[1])} files `{split}-*.parquet`. Fetch the missing ones."
            )
    return found


def find_images(folder: Path) -> list[Path]:
    """All images below a folder, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGES and path.is_file())


def read_features(table: pa.Table) -> dict[str, Any]:
    """What the Hugging Face libraries wrote about the columns into the file; empty if they did not."""
    kept = (table.schema.metadata or {}).get(b"huggingface")
    try:
        return dict(json.loads(kept)["info"]["features"]) if kept else {}
    except (ValueError, KeyError, TypeError):
        return {}


def find_image_column(table: pa.Table) -> str | None:
    """The column that holds encoded images, if there is one."""
    for name, feature in read_features(table).items():
        if isinstance(feature, dict) and feature.get("_type") == "Image" and name in table.column_names:
            return str(name)
    for field in table.schema:
        holds_bytes = pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
        if holds_bytes or pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            return str(field.name)
    return None


def list_images(table: pa.Table, column: str, path: Path) -> list[bytes | Path]:
    """The encoded images of a column. A row with a path instead of bytes points to a file beside the table, or in a folder
    there: one that leads elsewhere is refused."""
    found: list[bytes | Path] = []
    for number, value in enumerate(table[column].to_pylist()):
        parts: dict[str, Any] = {"bytes": value} if isinstance(value, bytes) else value or {}
        if parts.get("bytes") is None and not parts.get("path"):
            raise EquipoiseError(f"There is no image in column `{column}` in {name_row(path, number)} of `{path}`.")
        found.append(_find_beside(path, str(parts["path"]), number) if parts.get("bytes") is None else parts["bytes"])
    return found


def _find_beside(table: Path, name: str, number: int) -> Path:
    """The file that a row of a table names. It must lie in the table's folder."""
    file = table.parent / name
    if not file.resolve().is_relative_to(table.parent.resolve()):
        raise EquipoiseError(
            f"The image in {name_row(table, number)} of `{table}` lies outside of the table's folder. Move it there."
        )
    return file


def list_class_names(table: pa.Table, label: str) -> tuple[str, ...] | None:
    """The names behind integer labels, where the file has them."""
    names = read_features(table).get(label, {}).get("names")
    return tuple(map(str, names)) if names else None
