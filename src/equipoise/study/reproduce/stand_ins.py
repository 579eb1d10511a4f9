"""Data that stand in for those of a paper: with them absolute values cannot be compared, only order and sign."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from equipoise.data import Federation
from equipoise.data.catalogue import list_sources
from equipoise.data.files import find_image_column, find_images, list_images

OFFICE_PIXELS = 128  # the shorter side of Office-Caltech's images that were reduced; the originals are larger


@dataclass(frozen=True)
class StandIn:
    """What of a data set can be another than the paper's, and how that shows."""

    text: str
    shows: Callable[[Federation], bool]


def _noted(words: str) -> Callable[[Federation], bool]:
    return lambda data: any(words in note for note in data.notes)


def _is_jpeg(data: Federation) -> bool:
    image = find_first_image(data.dataset)
    return image is not None and image.format == "JPEG"


def _is_reduced(data: Federation) -> bool:
    image = find_first_image(data.dataset)
    return image is not None and min(image.size) <= OFFICE_PIXELS


STAND_INS: dict[str, tuple[StandIn, ...]] = {
    "digits": (
        StandIn("SYN: digits drawn with fonts take its place (domain `generated`)", _noted("stands in for SYN")),
        StandIn("SVHN: a part of its images instead of its complete train and test splits", _noted("svhn has ")),
    ),
    "dirty-mnist": (
        StandIn("Ambiguous-MNIST: blends of two MNIST digits take its place", _noted("Ambiguous images are generated")),
    ),
    "emnist": (
        StandIn("EMNIST: 20,000 images of its test split; its train split is not used, and the paper names no subset",
                lambda _: True),
    ),
    "office-caltech": (
        StandIn(f"Office-Caltech-10: images whose shorter side was reduced to {OFFICE_PIXELS} pixels", _is_reduced),
    ),
    "cifar10": (StandIn("CIFAR-10: images that were encoded as JPEG, with loss", _is_jpeg),),
}  # fmt: skip


def find_stand_ins(federations: Iterable[Federation]) -> list[str]:
    """What stands in for missing data in these federations, in words, each once."""
    found: dict[str, None] = {}
    for data in federations:
        found |= {one.text: None for one in STAND_INS.get(data.dataset, ()) if one.shows(data)}
    return list(found)


def find_first_image(dataset: str) -> Image.Image | None:
    """The first image among the files of a data set; None if its files are not here or hold none."""
    places = [place for source in list_sources(dataset) for place in source.places() if place.is_dir()]
    for place in places:
        for table in sorted(place.rglob("*.parquet")):
            return _read_first_row(table)
        for image in find_images(place):
            return Image.open(image)
    return None


def _read_first_row(path: Path) -> Image.Image | None:
    with pq.ParquetFile(path) as file:
        column = find_image_column(file.schema_arrow.empty_table())
        if column is None:
            return None
        row = pa.Table.from_batches([next(file.iter_batches(1, columns=[column]))])
    image = list_images(row, column, path)[0]
    return Image.open(io.BytesIO(image) if isinstance(image, bytes) else image)
