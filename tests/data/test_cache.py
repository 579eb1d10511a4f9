"""Decoded once, safe against killed writers and changed sources, and honest about what was done to the images."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise import EquipoiseError
from equipoise.data import cache
from equipoise.data.cache import Pictures, PictureSet, open_pool
from kit.files import pixels, png


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))


def part(name, images, labels=None, files=()):
    labels = [i % 3 for i in range(len(images))] if labels is None else labels
    return PictureSet(name, tuple(files), lambda: Pictures(list(images), labels, lambda i: f"`{name} {i}`"))


def forbid_decoding(monkeypatch):
    monkeypatch.setattr(cache, "_pixels", lambda image: pytest.fail("decoded again"))


def test_a_pool_holds_what_the_images_hold(monkeypatch):
    a, b = pixels(5), pixels(4, seed=1)
    parts = [part("a/train", [png(i) for i in a]), part("b/train", list(b))]
    first = open_pool("p", parts)
    assert torch.equal(first.x[:, 0], torch.from_numpy(np.concatenate([a, b])))
    assert first.y.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 0]
    assert {name: index.tolist() for name, index in first.parts.items()} == {
        "a/train": [0, 1, 2, 3, 4],
        "b/train": [5, 6, 7, 8],
    }
    assert first.notes == ()
    forbid_decoding(monkeypatch)
    again = open_pool("p", parts)
    assert torch.equal(again.x, first.x)
    assert again.digest == first.digest


def test_the_pool_is_mapped_and_cannot_change_the_file():
    images = pixels(5)
    found = open_pool("p", [part("a", list(images))])
    found.x.zero_()
    assert torch.equal(open_pool("p", [part("a", list(images))]).x[:, 0], torch.from_numpy(images))


def test_mixed_images_become_alike_and_that_is_said():
    parts = [
        part("grey", list(pixels(2, 8))),
        part("large", list(pixels(2, 64, colour=True))),
        part("fits", list(pixels(1, 32))),
    ]
    found = open_pool("p", parts)
    assert found.x.shape == (5, 3, 32, 32)
    assert found.notes == (
        "Images smaller than 32x32 were enlarged to it: grey.",
        "Images larger than 32x32 were reduced to it: large.",
        "Grey images were given three channels: grey, fits.",
    )
    assert torch.equal(found.x[0, 0], found.x[0, 2])
    assert open_pool("p", parts, size=16).x.shape == (5, 3, 16, 16)


def test_kinds_of_images(tmp_path):
    deep = tmp_path / "deep.png"
    Image.fromarray(np.array([[0, 65535], [32768, 255]], dtype=np.uint16)).save(deep)
    found = open_pool("p", [part("a", [deep])])
    assert found.x[0, 0].tolist() == [[0, 255], [128, 0]]
    palette = tmp_path / "palette.gif"
    Image.fromarray(pixels(1, 8, colour=True)[0]).quantize(4).save(palette)
    see_through = tmp_path / "alpha.png"
    Image.fromarray(np.full((8, 8, 4), 200, np.uint8)).save(see_through)
    assert open_pool("q", [part("b", [palette, see_through])]).x.shape == (2, 3, 8, 8)


def test_a_changed_source_is_decoded_again(tmp_path):
    path = tmp_path / "a.png"
    images = pixels(2)
    path.write_bytes(png(images[0]))
    parts = [part("a", [path], files=[path])]
    before = open_pool("p", parts)
    path.write_bytes(png(images[1]) + b" ")
    after = open_pool("p", parts)
    assert torch.equal(after.x[0, 0], torch.from_numpy(images[1]))
    assert torch.equal(before.x[0, 0], torch.from_numpy(images[0]))  # whoever has the old one open keeps it
    assert after.digest != before.digest
    assert len(list((tmp_path / "cache" / "pools").iterdir())) == 1  # the old one is gone


@pytest.mark.parametrize("damage", ["truncate", "remove", "garbage"])
def test_a_damaged_cache_is_written_again(tmp_path, damage):
    parts = [part("a", list(pixels(5)))]
    expected = open_pool("p", parts).x.clone()
    (place,) = (tmp_path / "cache" / "pools").iterdir()
    if damage == "truncate":
        with (place / "x").open("r+b") as file:
            file.truncate(10)
    elif damage == "remove":
        (place / "y.npy").unlink()
    else:
        (place / "pool.json").write_text("{")
    assert torch.equal(open_pool("p", parts).x, expected)


WRITER = """
import time
import numpy as np
from equipoise.data import cache
real = cache._pixels
def slow(image):
    print("decoding", flush=True)
    time.sleep(0.2)
    return real(image)
cache._pixels = slow
images = [np.zeros((8, 8), np.uint8)] * 50
cache.open_pool("p", [cache.PictureSet("a", (), lambda: cache.Pictures(images, [0] * 50, str))])
"""


def test_a_killed_writer_leaves_nothing_half_done(tmp_path, monkeypatch):
    writer = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, env=dict(os.environ))
    assert writer.stdout.readline().strip() == b"decoding"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    pools = tmp_path / "cache" / "pools"
    (left,) = pools.iterdir()
    assert left.name.startswith(".")  # not a pool
    found = open_pool("p", [part("a", [np.ones((8, 8), np.uint8)] * 50, [0] * 50)])
    assert int(found.x.sum()) == 50 * 64
    os.utime(left, (time.time() - 2 * cache.ABANDONED,) * 2)
    open_pool("p", [part("a", [np.ones((8, 8), np.uint8)] * 50, [0] * 50)], size=4)
    # another pool does not touch it; the same one does when it is written again
    shutil_target = next(
        p for p in pools.iterdir() if not p.name.startswith(".") and left.name.startswith(f".{p.name}-")
    )
    (shutil_target / "pool.json").unlink()
    open_pool("p", [part("a", [np.ones((8, 8), np.uint8)] * 50, [0] * 50)])
    assert not left.exists()


def test_a_bad_image_is_named(tmp_path):
    half = tmp_path / "half.png"
    half.write_bytes(png(pixels(1, 40)[0])[:200])
    for bad, reason in (
        (b"no image", "it is not an image"),
        (half, "truncated|broken"),
        (tmp_path / "gone.png", "No such file"),
    ):
        with pytest.raises(EquipoiseError, match=rf"Cannot read the image `a 1`: .*({reason}).*--skip-bad"):
            open_pool("p", [part("a", [png(pixels(1)[0]), bad])])


def test_bad_images_are_skipped_only_when_asked_and_named():
    images = [b"bad", *[png(i) for i in pixels(3)], b"worse"]
    found = open_pool("p", [part("a", images, [0, 1, 2, 0, 1])], skip_bad=True)
    assert found.y.tolist() == [cache.UNREAD, 1, 2, 0, cache.UNREAD]
    assert found.notes == ("Left out, because they cannot be read: 2 images (`a 0`, `a 4`).",)
    with pytest.raises(EquipoiseError, match="not one readable image in a"):
        open_pool("q", [part("a", [b"bad"])], skip_bad=True)


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("EQUIPOISE_CACHE", str(blocked))
    with pytest.raises(EquipoiseError, match="Set EQUIPOISE_CACHE to a folder you may write to"):
        open_pool("p", [part("a", list(pixels(1)))])


def test_a_full_disk_is_one_line_and_leaves_no_pool(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(EquipoiseError, match=r"Cannot write the cache .*No space left on device"):
        open_pool("p", [part("a", list(pixels(3)))])
    assert list((tmp_path / "cache" / "pools").iterdir()) == []


def test_where_the_cache_lies(tmp_path, monkeypatch):
    assert cache.find_cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("EQUIPOISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.find_cache_folder() == tmp_path / "xdg" / "equipoise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.find_cache_folder() == tmp_path / ".cache" / "equipoise"


def test_generated_parts_have_a_version():
    one = PictureSet("a", (), lambda: Pictures(list(pixels(2)), [0, 1], str), "1")
    two = PictureSet("a", (), lambda: Pictures(list(pixels(2, seed=5)), [0, 1], str), "2")
    assert open_pool("p", [one]).digest != open_pool("p", [two]).digest
