"""Finds a user's data in a folder, a table or a data set of the Hugging Face hub. They come in pieces, each with the
client and the split that its place in the folders tells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from equipoise.data.clients import Split
from equipoise.data.files import IMAGES, TABLES, find_images, list_images, name_row, read_rows, read_table
from equipoise.data.sources import downloads, find_hub_tables, store
from equipoise.errors import EquipoiseError
from equipoise.grammar import join_words

SPLITS: Mapping[str, Split] = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(:[\w.-]+)?")


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows that lie together on disk: a table, or image folders by class."""

    where: str  # its name in messages
    files: tuple[Path, ...]
    client: str | None  # None: a column of the table says who holds a row
    split: Split | None  # None: the rows are yet to be divided
    table: pa.Table  # the rows, without the images themselves
    images: Callable[[], Sequence[bytes | Path]] | None = None  # reads the images; None: the rows are features
    kept: Sequence[int] | None = None  # the numbers of these rows in the file; None: it has no others
    notes: Sequence[str] = ()  # on how the file was read

    def name_row(self, row: int) -> str:
        """One of these rows, as a user finds it in the file."""
        return name_row(self.files[0], row if self.kept is None else self.kept[row])


def find_pieces(path: str, notes: list[str]) -> list[Piece]:
    """All pieces of a data set. What is left out is named in `notes`."""
    root = Path(path).expanduser()
    if not root.exists() and HUB_ID.fullmatch(path):
        root = _from_hub(path)
    if not root.exists():
        raise EquipoiseError(f"There is no file or folder `{path}`.")
    ignored: list[str] = []
    if root.is_file():
        pieces = [_table(root, None, None)]
    else:
        tables, folders = _inside(root, ignored)
        if tables and folders:
            raise EquipoiseError(
                f"`{root}` has tables (`{tables[0].name}`) and folders (`{folders[0].name}`). Use one folder per client, "
                "or tables with a client column, not both."
            )
        pieces = _tables(tables, None) if tables else [p for folder in folders for p in _client_folder(folder, ignored)]
    if ignored:
        notes.append(f"Ignored, because they are neither images nor tables, or empty: {join_words(ignored)}.")
    notes += [note for piece in pieces for note in piece.notes]
    if not pieces:
        raise EquipoiseError(
            f"There is no data in `{root}`. Put one folder per client into it, with image folders by class, or a CSV or "
            "Parquet file."
        )
    return pieces


def find_site_pieces(path: str, site: str, notes: list[str]) -> list[Piece]:
    """The pieces of a single client, from a folder or table of its own."""
    root = Path(path).expanduser()
    if not root.exists():
        raise EquipoiseError(f"There is no file or folder `{path}` at site `{site}`.")
    ignored: list[str] = []
    pieces = [_table(root, site, None)] if root.is_file() else _client_folder(root, ignored, site)
    if ignored:
        notes.append(
            f"Ignored at `{site}`, because they are neither images nor tables, or empty: {join_words(ignored)}."
        )
    notes += [note for piece in pieces for note in piece.notes]
    return pieces


def _from_hub(name: str) -> Path:
    """A data set of the Hugging Face hub, downloaded once."""
    place = downloads() / "hub" / re.sub(r"[/:]", "--", name)
    if not place.exists():
        hub, _, config = name.partition(":")
        store(find_hub_tables(hub, config, f"There is no file or folder `{name}` here, either."), place)
    return place


def _inside(folder: Path, ignored: list[str]) -> tuple[list[Path], list[Path]]:
    """The tables and the folders in a folder. Other files, except images, are added to `ignored`."""
    visible = [path for path in sorted(folder.iterdir()) if not path.name.startswith((".", "__"))]
    tables = [path for path in visible if path.is_file() and path.suffix.lower() in TABLES]
    folders = [path for path in visible if path.is_dir()]
    known = TABLES | IMAGES
    ignored += [str(path) for path in visible if path.is_file() and path.suffix.lower() not in known]
    return tables, folders


def _split_of(name: str) -> Split | None:
    return SPLITS.get(re.split(r"[-_.]", name.lower())[0])


def _client_folder(folder: Path, ignored: list[str], client: str | None = None) -> list[Piece]:
    """What one client holds: tables, image folders by class, or one of these per split. The folder names the client."""
    name = client or folder.name
    tables, folders = _inside(folder, ignored)
    if tables:
        return _tables(tables, name)
    if folders and all(_split_of(inner.name) for inner in folders):
        pieces = []
        for inner in folders:
            tables, classes = _inside(inner, ignored)
            split = _split_of(inner.name)
            pieces += [_table(t, name, split) for t in tables] or _image_folders(inner, classes, name, split, ignored)
        return pieces
    return _image_folders(folder, folders, name, None, ignored)


def _tables(paths: Sequence[Path], client: str | None) -> list[Piece]:
    """The tables of one folder. If the name of one tells its split, the names of all must."""
    splits = [_split_of(path.stem) for path in paths]
    if any(splits) and not all(splits):
        unclear = paths[splits.index(None)]
        raise EquipoiseError(f"`{unclear}` lies beside files of a split. Name it train-*, validation-* or test-*, too.")
    return [_table(path, client, split) for path, split in zip(paths, splits, strict=True)]


def _table(path: Path, client: str | None, split: Split | None) -> Piece:
    table, images, notes = read_rows(path)
    names = table.column_names
    twin = next((name for name, count in Counter(names).items() if count > 1), None)
    if twin is not None:
        places = " and ".join(str(i + 1) for i, name in enumerate(names) if name == twin)
        raise EquipoiseError(f"`{path}` has several columns `{twin}` (columns {places}). Rename or remove all but one.")
    if len(table) == 0:
        raise EquipoiseError(f"`{path}` has no rows. Leave it out, or fill it.")

    def load() -> Sequence[bytes | Path]:
        assert images is not None
        return list_images(read_table(path), images, path)

    return Piece(f"`{path}`", (path,), client, split, table, load if images else None, notes=notes)


def _image_folders(
    folder: Path, classes: Sequence[Path], client: str, split: Split | None, ignored: list[str]
) -> list[Piece]:
    loose = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in IMAGES]
    if loose:
        raise EquipoiseError(
            f"`{loose[0]}` of client `{client}` lies in no folder of a class. Expected `<client>/<class>/<image>`."
        )
    files: list[Path] = []
    labels: list[str] = []
    for inner in classes:
        found = find_images(inner)
        if not found:
            ignored.append(str(inner))
        files += found
        labels += [inner.name] * len(found)
    if not files:
        raise EquipoiseError(
            f"There are no images or tables in `{folder}` (client `{client}`). Leave it out, or fill it."
        )
    return [Piece(f"`{folder}`", tuple(files), client, split, pa.table({"label": labels}), lambda: files)]
