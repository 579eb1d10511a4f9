"""A cache of decoded images: many files become one uint8 array on disk, which later starts only map into memory.

Such a pool is a folder with the pixels in `x`, the labels in `y.npy` and the rest in `pool.json`. It is written under
another name and renamed when it is complete, so that a writer that is killed leaves no half-written pool. It is written
again when one of its source files has changed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import struct
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from equipoise.data.images import add_colour, resize
from equipoise.errors import EquipoiseError
from equipoise.grammar import join_words

FORMAT = 1  # raise it when what is stored changes: old pools are then ignored
CHUNK = 1024  # images that are decoded and written at a time, at most
CHUNK_BYTES = 2**28  # of decoded pixels that are in memory at a time: a chunk ends with the image that exceeds it
MOST_PIXELS = 10**8  # of one image; a small file may declare far more than memory holds
# The formats that are read. Pillow knows others, and hands some of them to programs such as Ghostscript.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
MIXED_SIZE = 32  # images of different size are brought to this one, unless a size is given

UNREAD = -1  # the label of an image that could not be read
PNG = b"\x89PNG\r\n\x1a\n"
ABANDONED = 24 * 3600  # seconds after which an unfinished pool is taken for a killed writer's

Encoded = bytes | Path | np.ndarray  # a file's content, a file, or pixels [height, width] or [height, width, 3]


class Pictures(NamedTuple):
    """Images as they lie on disk, their labels, and how a message names one of them."""

    images: Sequence[Encoded]
    labels: Sequence[int] | np.ndarray
    name: Callable[[int], str]  # number of an image -> its name in messages


@dataclass(frozen=True)
class PictureSet:
    """Images that belong together (a split of a domain, say), read only when no pool holds them yet."""

    name: str
    files: tuple[Path, ...]  # what the images come from; another size or date means that a file has changed
    load: Callable[[], Pictures]  # reads the images
    version: str = ""  # of the code that generates or selects the images; another one means that they have changed


@dataclass(frozen=True, eq=False)
class Pool:
    """The images of several picture sets as one tensor. `x` is mapped from disk, not read into memory."""

    x: Tensor  # [n, channels, height, width], uint8
    y: Tensor  # [n]; -1 where the image could not be read and was to be skipped
    parts: dict[str, Tensor]  # name of a picture set -> the positions of its images
    digest: str  # hash of all pixels and labels
    notes: tuple[str, ...]  # what was done to the images


def find_cache_folder() -> Path:
    """The folder of the cache: `EQUIPOISE_CACHE`, or `equipoise` in the user's cache folder."""
    own = os.environ.get("EQUIPOISE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own).expanduser() if own else Path(home) / "equipoise"


def open_pool(name: str, parts: Sequence[PictureSet], size: int | None = None, skip_bad: bool = False) -> Pool:
    """The images of all parts as squares of `size` pixels, grey if all of them are and in colour otherwise.

    Without a size, images that all have the same size keep it, and others become squares of 32 pixels. `skip_bad`
    leaves unreadable images out and says which.
    """
    settings = (FORMAT, name, size, skip_bad, [part.name for part in parts])
    paths = [str(path.resolve()) for part in parts for path in part.files]
    key = hashlib.sha256(repr((settings, paths)).encode()).hexdigest()[:12]
    place = find_cache_folder() / "pools" / f"{re.sub(r'[^A-Za-z0-9.]+', '_', name)[:40]}-{key}"
    stamp = _stamp(parts)
    found = _opened(place, stamp)
    if found is None:
        _write(place, parts, size, skip_bad, stamp)
        found = _opened(place, stamp)
    if found is None:
        raise EquipoiseError(f"The cache `{place}` changed while it was read. Start again.")
    return found


def _stamp(parts: Sequence[PictureSet]) -> str:
    """A hash of the source files' sizes and dates. When it changes, the pool is written again."""
    files = [(path, path.stat()) for part in parts for path in part.files]
    facts = [(str(path), status.st_size, status.st_mtime_ns) for path, status in files]
    made = [part.version for part in parts]
    return hashlib.sha256(repr((facts, made)).encode()).hexdigest()[:16]


def _opened(place: Path, stamp: str) -> Pool | None:
    """The pool in a folder, or None when there is none, or it is damaged, or its sources have changed."""
    try:
        about = json.loads((place / "pool.json").read_text(encoding="utf-8"))
        if about["stamp"] != stamp:
            return None
        # mode "c" copies on write: nothing can change the file
        pixels = np.memmap(place / "x", dtype=np.uint8, mode="c", shape=tuple(about["shape"]))
        labels = np.load(place / "y.npy")
    except (OSError, ValueError, KeyError, EOFError):
        return None
    starts = np.cumsum([0, *about["parts"].values()]).tolist()
    if len(labels) != len(pixels) or starts[-1] != len(pixels):
        return None
    parts = {name: torch.arange(a, b) for name, (a, b) in zip(about["parts"], pairwise(starts), strict=True)}
    return Pool(torch.from_numpy(pixels), torch.from_numpy(labels), parts, about["digest"], tuple(about["notes"]))


def _write(place: Path, parts: Sequence[PictureSet], size: int | None, skip_bad: bool, stamp: str) -> None:
    loaded = {part.name: part.load() for part in parts}
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for left in place.parent.glob(f".{place.name}-*"):  # left by a writer that was killed
            if time.time() - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}-"))
    except OSError as error:
        raise EquipoiseError(
            f"Cannot write the cache `{place.parent}`: {error.strerror}. Set EQUIPOISE_CACHE to a folder you may write to."
        ) from None
    try:
        about = _fill(folder, loaded, size, skip_bad)
        (folder / "pool.json").write_text(json.dumps({**about, "stamp": stamp}, indent=1))
        _replace(folder, place)
    except OSError as error:
        raise EquipoiseError(f"Cannot write the cache `{place}`: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(folder: Path, place: Path) -> None:
    """Put a complete folder in its place. Readers that have the old one open keep it."""
    old = folder.with_name(folder.name + "-old")
    if place.exists():
        place.rename(old)
    try:
        folder.rename(place)
    except OSError:
        if not place.exists():
            raise  # otherwise another process has put the same pool there first
    shutil.rmtree(old, ignore_errors=True)


def _fill(folder: Path, loaded: Mapping[str, Pictures], size: int | None, skip_bad: bool) -> dict[str, Any]:
    """Write pixels and labels, and return what `pool.json` is to say of them."""
    shape = _survey(loaded.values(), size)
    digest = hashlib.sha256()
    labels: list[np.ndarray] = []
    bad: list[str] = []
    changed: dict[str, Counter[str]] = {"enlarged": Counter(), "reduced": Counter(), "coloured": Counter()}
    with (folder / "x").open("wb") as file:
        for name, pictures in loaded.items():
            y = np.array(pictures.labels, dtype=np.int64)
            start = 0
            while start < len(y):
                chunk = _decoded(pictures, start, skip_bad)
                unread = [start + i for i, image in enumerate(chunk) if image is None]
                y[unread] = UNREAD
                bad += map(pictures.name, unread)
                ready = _alike(chunk, shape, name.split("/")[0], changed).numpy()
                file.write(ready.data)
                digest.update(ready.data)
                start += len(chunk)
            labels.append(y)
    y = np.concatenate(labels)
    if not (y != UNREAD).any():
        raise EquipoiseError(f"There is not one readable image in {join_words(list(loaded))}.")
    np.save(folder / "y.npy", y)
    digest.update(y.data)
    return {
        "shape": [len(y), *shape],
        "parts": {name: len(pictures.images) for name, pictures in loaded.items()},
        "digest": digest.hexdigest(),
        "notes": _notes(changed, bad, "x".join(map(str, shape[1:]))),
    }


def _survey(loaded: Iterable[Pictures], size: int | None) -> tuple[int, int, int]:
    """The shape [channels, height, width] of a pool's images, found from the headers of the files."""
    shapes, colour = set(), False
    for pictures in loaded:
        for image in pictures.images:
            try:
                shape, has_colour = _header(image)
            except Exception:  # whatever a file that is no image leads to
                continue  # decoding will say which one
            shapes.add(shape)
            colour |= has_colour
    height, width = shapes.pop() if len(shapes) == 1 and size is None else [size or MIXED_SIZE] * 2
    return 3 if colour else 1, height, width


def _header(image: Encoded) -> tuple[tuple[int, int], bool]:
    """Height and width of an image, and whether it has colour."""
    if isinstance(image, np.ndarray):
        return (image.shape[0], image.shape[1]), image.ndim == 3
    if isinstance(image, bytes) and image[:8] == PNG and image[12:16] == b"IHDR":  # read without Pillow: most are PNG
        width, height = struct.unpack(">II", image[16:24])
        _refuse_large(width, height)
        return (height, width), image[25] not in (0, 4)
    with _open(image) as header:
        return (header.height, header.width), not _is_grey(header.mode)


@contextmanager
def _open(image: bytes | Path) -> Iterator[Image.Image]:
    """An image whose header was read. One of too many pixels is refused before they are decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below takes its place
        opened = Image.open(io.BytesIO(image) if isinstance(image, bytes) else image, formats=FORMATS)
    with opened as picture:
        _refuse_large(picture.width, picture.height)
        yield picture


def _refuse_large(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise EquipoiseError(f"it has {width} x {height} pixels, more than {MOST_PIXELS:,}: make it smaller")


def _is_grey(mode: str) -> bool:
    return mode in ("1", "L", "LA") or mode.startswith("I")


def _decoded(pictures: Pictures, start: int, skip_bad: bool) -> list[Tensor | None]:
    """The next chunk of images `[channels, height, width]`, None for those that cannot be read."""
    chunk: list[Tensor | None] = []
    decoded = 0
    for number, image in enumerate(pictures.images[start : start + CHUNK], start):
        try:
            chunk.append(_pixels(image))
        except Exception as error:  # whatever a file that is no image, cut off or too large leads to
            reason = "it is not an image" if "cannot identify" in str(error) else str(error).rstrip(".")
            if not skip_bad:
                raise EquipoiseError(
                    f"Cannot read the image {pictures.name(number)}: {reason}. Replace it, or leave such images out with "
                    "--skip-bad."
                ) from None
            chunk.append(None)
        decoded += 0 if chunk[-1] is None else chunk[-1].numel()
        if decoded > CHUNK_BYTES:
            break
    return chunk


def _pixels(image: Encoded) -> Tensor:
    """One image `[channels, height, width]`, with one channel (grey) or three."""
    array = image
    if not isinstance(array, np.ndarray):
        with _open(array) as picture:
            if picture.mode.startswith("I"):  # 16 bits per pixel, as some scanners write them
                array = (np.asarray(picture, dtype=np.uint32) >> 8).clip(0, 255).astype(np.uint8)
            else:
                array = np.array(picture.convert("L" if _is_grey(picture.mode) else "RGB"))
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor[None] if tensor.dim() == 2 else tensor.permute(2, 0, 1)


def _alike(
    chunk: Sequence[Tensor | None], shape: tuple[int, int, int], origin: str, changed: Mapping[str, Counter[str]]
) -> Tensor:
    """Images of any shapes as one tensor, black where an image could not be read.

    Images of one shape are converted together. `changed` counts what was done to how many images of an origin.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, image in enumerate(chunk):
        if image is not None:
            groups.setdefault(tuple(image.shape), []).append(i)
    whole = torch.zeros(len(chunk), *shape, dtype=torch.uint8)
    for (channels, *sides), members in groups.items():
        batch = torch.stack([image for i in members if (image := chunk[i]) is not None])
        if channels < shape[0]:
            changed["coloured"][origin] += len(members)
            batch = add_colour(batch)
        if tuple(sides) != shape[1:]:
            changed["enlarged" if min(sides) < shape[1] else "reduced"][origin] += len(members)
            batch = resize(batch, shape[1])
        whole[members] = batch
    return whole


def _notes(changed: Mapping[str, Counter[str]], bad: Sequence[str], size: str) -> list[str]:
    words = {
        "enlarged": f"Images smaller than {size} were enlarged to it",
        "reduced": f"Images larger than {size} were reduced to it",
        "coloured": "Grey images were given three channels",
    }
    notes = [f"{words[what]}: {join_words(list(counts))}." for what, counts in changed.items() if counts]
    if bad:
        notes.append(f"Left out, because they cannot be read: {len(bad)} images ({join_words(bad)}).")
    return notes
