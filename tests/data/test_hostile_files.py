"""Files that are not what they seem: images that no program is started for, that are too large, or that lie elsewhere."""

import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from equipoise import EquipoiseError
from equipoise.data import cache
from equipoise.data.own import own


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))


def write_images(folder, count=3, size=9):
    draw = np.random.default_rng(0)
    for client in ("a", "b"):
        for name in ("cat", "dog"):
            (folder / client / name).mkdir(parents=True, exist_ok=True)
            for k in range(count):
                pixels = draw.integers(0, 255, (size + k, size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / client / name / f"{k}.png")
    return folder


def write_bomb(path, side):
    """A PNG of a few kilobytes that declares `side` x `side` black pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"\0" * ((side // 8 + 1) * min(side, 1000)))
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


@pytest.mark.parametrize("side", [11_000, 100_000])
def test_an_image_of_too_many_pixels_gives_one_line(tmp_path, side):
    """The first would be decoded by Pillow with a warning; the second it refuses."""
    folder = write_images(tmp_path / "data")
    write_bomb(folder / "a" / "cat" / "bomb.png", side)
    with pytest.raises(EquipoiseError, match=r"Cannot read the image .*bomb\.png`.* pixels") as caught:
        own(str(folder))
    assert "\n" not in str(caught.value)
    data = own(str(folder), skip_bad=True)
    assert any("bomb.png" in note for note in data.notes)


def test_no_file_reaches_an_interpreter(tmp_path, monkeypatch):
    """A PostScript file that is called an image is not one."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    folder = write_images(tmp_path / "data")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) print\n%%EOF\n"
    (folder / "a" / "cat" / "drawing.png").write_bytes(eps)
    with pytest.raises(EquipoiseError, match=r"drawing\.png`.*: it is not an image"):
        own(str(folder))


def test_a_chunk_is_bounded_in_memory_and_gives_the_same_pool(tmp_path, monkeypatch):
    folder = write_images(tmp_path / "data", count=7)
    whole = own(str(folder))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "again"))
    monkeypatch.setattr(cache, "CHUNK_BYTES", 500)
    sizes = []
    decoded = cache._decoded

    def watch(*arguments):
        sizes.append(len(decoded(*arguments)))
        return decoded(*arguments)

    monkeypatch.setattr(cache, "_decoded", watch)
    small = own(str(folder))
    assert max(sizes) < 7
    assert torch.equal(whole.x, small.x)
    assert whole.pool_digest == small.pool_digest


@pytest.mark.parametrize("name", ["../secret.png", "{root}/secret.png", "link.png"])
def test_a_table_names_no_image_outside_of_its_folder(tmp_path, name):
    folder = tmp_path / "data"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (9, 9), dtype=np.uint8)
    for place in (tmp_path / "secret.png", folder / "inside.png"):
        Image.fromarray(pixels).save(place)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    rows = [{"bytes": None, "path": one} for one in ["inside.png"] * 19 + [name.format(root=tmp_path)]]
    table = {"image": rows, "label": ["cat", "dog"] * 10, "client": ["a"] * 10 + ["b"] * 10}
    pq.write_table(pa.table(table), folder / "rows.parquet")
    with pytest.raises(EquipoiseError, match=r"image in row 20 of .*rows\.parquet` lies outside of the table's folder"):
        own(str(folder))
