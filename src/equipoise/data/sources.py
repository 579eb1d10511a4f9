"""Where the files of data sets are found: in the data folder, among earlier downloads, or on the Hugging Face hub."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from equipoise.data.cache import Pictures, PictureSet, find_cache_folder
from equipoise.data.files import find_image_column, find_images, find_shards, list_class_names, list_images, read_table
from equipoise.errors import EquipoiseError

VARIABLE = "EQUIPOISE_DATA"
EXTRA = "`pip install '.[data]'` in a checkout of Equipoise"
TEST_OF_TEN = 8  # the papers' split of a sorted list: of every ten images the first eight train


def find_data_folder() -> Path | None:
    """The folder that the variable `EQUIPOISE_DATA` names; None if it is not set."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise EquipoiseError(
            f"The data folder `{folder}` does not exist. Set {VARIABLE} or --data-dir to one that does."
        )
    return folder


@dataclass(frozen=True)
class Source:
    """A data set in files: where it lies below the data folder, and where it comes from."""

    title: str  # its name in messages
    folder: str  # its folder below the data folder
    home: str  # the web page where a person finds it
    hub: str = ""  # its id on the Hugging Face hub
    config: str = ""  # its configuration on the hub
    addresses: tuple[str, ...] = ()  # of its files, if it is not on the hub
    splits: tuple[str, ...] = ("train", "test")  # that are downloaded
    layout: str = "{split}-*.parquet"  # the files that a user puts into the folder, as messages name them
    generated: bool = False  # whether generated images stand in for it where it is missing

    # ------------------------------------------------------------------ finding
    def places(self) -> list[Path]:
        """Where its files may be: first in the data folder, then among the downloads."""
        bases = [base for base in (find_data_folder(), downloads()) if base]
        return [base / self.folder for base in bases]

    def part(self, split: str, classes: Sequence[str], name: str | None = None, domain: str = "") -> PictureSet:
        """The images of one split (of one domain), downloaded if they are not here."""
        files = self._files(split, domain)
        if not files:
            self.fetch()
            files = self._files(split, domain)
        if not files:
            raise EquipoiseError(f"The download of {self.title} has no split `{split}`: {self.advice(split)}")
        return PictureSet(name or f"{self.folder}/{split}", tuple(files), partial(load_pictures, files, tuple(classes)))

    def _files(self, split: str, domain: str) -> list[Path]:
        return next((found for place in self.places() if (found := find_shards(place / domain, split))), [])

    @property
    def is_here(self) -> bool:
        """Whether its folder is here."""
        return any(place.is_dir() for place in self.places())

    @property
    def otherwise(self) -> str:
        """What happens if it is not here, in words."""
        return "generated" if self.generated else "downloaded when needed" if self.hub or self.addresses else "not here"

    def advice(self, split: str = "train") -> str:
        """Where to get it and where to put it. Reports show this, too, so that it names no path of this machine."""
        files = self.layout.format(split=split)
        return f"get it from {self.home} and put `{files}` into a folder `{self.folder}` below the one that {VARIABLE} names."

    # ------------------------------------------------------------------ fetching
    def fetch(self) -> None:
        """Download it; an error says what to do if that is not possible."""
        looked = ", ".join(f"`{place}`" for place in self.places())
        otherwise = f"{self.title} is not there (looked in {looked}): {self.advice()}"
        if self.addresses:
            fetch_files(self.addresses, downloads() / self.folder, otherwise)
        elif self.hub:
            tables = find_hub_tables(self.hub, self.config, otherwise)
            keep = {split: table for split, table in tables.items() if split in self.splits}
            store(self.arranged(keep), downloads() / self.folder)
        else:
            raise EquipoiseError(otherwise)

    def arranged(self, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """The hub's tables by the path that they get here. One with a column `domain` becomes one folder per domain."""
        found: dict[str, pa.Table] = {}
        for split, table in tables.items():
            if "domain" not in table.column_names:
                found[split] = table
                continue
            for domain in sorted(set(table["domain"].to_pylist())):
                own = table.filter(pc.equal(table["domain"], domain))
                train = np.arange(len(own)) % 10 < TEST_OF_TEN
                found[f"{domain}/train"], found[f"{domain}/test"] = own.filter(train), own.filter(~train)
        return found


def downloads() -> Path:
    """Where downloaded data sets are kept."""
    return find_cache_folder() / "downloads"


def find_hub_tables(name: str, config: str, otherwise: str) -> dict[str, pa.Table]:
    """The splits of a data set on the Hugging Face hub. `otherwise` says what to do if that fails."""
    try:
        import datasets
    except ImportError:
        raise EquipoiseError(f"{otherwise} Or let Equipoise download it: {EXTRA}.") from None
    if not _online():
        raise EquipoiseError(f"Cannot download `{name}`: the Hugging Face hub cannot be reached from here. {otherwise}")
    try:
        found = datasets.load_dataset(name, config or None)
    except Exception as error:  # whatever the network, the hub or the data set's author did
        reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")[:200]
        raise EquipoiseError(f"Cannot download `{name}` from the Hugging Face hub: {reason}. {otherwise}") from None
    return {
        str(split): datasets.table.embed_table_storage(part.with_format("arrow")[:]) for split, part in found.items()
    }


def _online() -> bool:
    """Whether the hub's name can be resolved. Without a network its libraries would go on trying for half a minute."""
    if urllib.request.getproxies().get("https"):
        return True
    address = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.getaddrinfo(address.hostname, address.port or 443)
    except OSError:
        return False
    return True


def store(tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Write tables into a folder as `<path>-00000-of-00001.parquet`, all of them or none."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        for path, table in tables.items():
            target = unfinished / f"{path}-00000-of-00001.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, target)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except OSError as error:
        raise EquipoiseError(
            f"Cannot keep the download in `{folder}`: {error.strerror}. Set EQUIPOISE_CACHE to a folder you may write to."
        ) from None


def fetch_files(addresses: Sequence[str], folder: Path, otherwise: str) -> None:
    """Download plain files into a folder. `otherwise` says what to do if that fails."""
    for address in addresses:
        name = address.rpartition("/")[2]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with urllib.request.urlopen(address, timeout=30) as answer:  # only addresses that the library itself lists
                content = answer.read()
            unfinished = folder / f".{name}"
            unfinished.write_bytes(content)
            unfinished.rename(folder / name)
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or error
            raise EquipoiseError(f"Cannot download {address}: {reason}. {otherwise}") from None


# --------------------------------------------------------------------------- images with labels
def load_pictures(files: Sequence[Path], classes: tuple[str, ...]) -> Pictures:
    """The images of Parquet files, with labels as positions in `classes`."""
    images: list[bytes | Path] = []
    labels: list[np.ndarray] = []
    names: list[str] = []
    for path in files:
        table = read_table(path)
        column = find_image_column(table)
        if column is None or "label" not in table.column_names:
            raise EquipoiseError(
                f"`{path}` must have a column of images and a column `label`. Found: {', '.join(table.column_names)}."
            )
        images += list_images(table, column, path)
        labels.append(_positions(table, classes, path))
        names += [f"in row {row} of `{path}`" for row in range(len(table))]
    return Pictures(images, np.concatenate(labels), names.__getitem__)


def _positions(table: pa.Table, classes: tuple[str, ...], path: Path) -> np.ndarray:
    known = list_class_names(table, "label")
    values = table["label"].to_pylist()
    if known and set(known) == set(classes):  # the file may list the same classes in another order
        values = [
            value if value is None or not 0 <= value < len(known) else classes.index(known[value]) for value in values
        ]
    wrong = [
        (row, value) for row, value in enumerate(values) if not isinstance(value, int) or not 0 <= value < len(classes)
    ]
    if wrong:
        row, value = wrong[0]
        raise EquipoiseError(f"Labels must lie in 0 .. {len(classes) - 1}. Found {value!r} in row {row} of `{path}`.")
    return np.asarray(values, dtype=np.int64)


def folder_part(
    name: str, folder: Path, classes: Sequence[str], chosen: Callable[[int], bool] = lambda i: True
) -> PictureSet:
    """Images in one sub-folder per class; of the sorted list, those whose number is `chosen`."""
    files = [path for i, path in enumerate(find_images(folder)) if chosen(i)]
    unknown = sorted({path.relative_to(folder).parts[0] for path in files} - set(classes))
    if unknown:
        raise EquipoiseError(f"`{folder}` must have one folder a class ({', '.join(classes)}). Found `{unknown[0]}`.")

    def load() -> Pictures:
        labels = [classes.index(path.relative_to(folder).parts[0]) for path in files]
        return Pictures(files, labels, lambda i: f"`{files[i]}`")

    return PictureSet(name, tuple(files), load)


def trains(i: int) -> bool:
    """Whether image `i` of a sorted list belongs to the training part of the papers' split."""
    return i % 10 < TEST_OF_TEN
