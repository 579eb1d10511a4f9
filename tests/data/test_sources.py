"""Data sets in files: found, downloaded, or explained in one line; damaged files are named."""

import gzip
import http.server
import shutil
import sys
import threading
from functools import partial

import numpy as np
import pytest

from equipoise import EquipoiseError, load_federation
from equipoise.data import sources
from equipoise.data.catalogue import say_availability
from equipoise.data.sets import cifar10, heart
from equipoise.data.sources import Source, folder_part, load_pictures, trains
from kit.files import image_table, pixels, write_folder, write_images

LETTERS = ("a", "b", "c")


# --------------------------------------------------------------------------- what is not there
def test_a_data_folder_that_does_not_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(EquipoiseError, match=r"nowhere` does not exist. Set EQUIPOISE_DATA or --data-dir"):
        load_federation("digits")


def test_what_cannot_be_downloaded_is_explained(empty_data, monkeypatch):
    with pytest.raises(EquipoiseError) as error:
        load_federation("office-caltech")
    text = str(error.value)
    assert text.startswith("Office-Caltech-10 is not there (looked in `")
    assert str(empty_data / "office_caltech_10") in text
    assert (
        "put `<domain>/<class>/<image>` into a folder `office_caltech_10` below the one that EQUIPOISE_DATA names"
        in text
    )
    assert "\n" not in text
    monkeypatch.delenv("EQUIPOISE_DATA")
    with pytest.raises(EquipoiseError, match="into a folder `emnist_byclass` below the one that EQUIPOISE_DATA names"):
        load_federation("emnist")
    assert say_availability("office-caltech") == "Office-Caltech-10: not here"
    assert say_availability("digits").startswith("MNIST: downloaded when needed")
    assert say_availability("digits").endswith("SYN: generated")
    assert say_availability("scanners") == "none needed"


def test_without_the_library_for_downloads(empty_data, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        EquipoiseError, match=r"CIFAR-10 is not there.*let Equipoise download it: `pip install '.\[data\]'`"
    ):
        load_federation("cifar10")


def test_without_a_network(empty_data, monkeypatch):
    pytest.importorskip("datasets", reason="the library for downloads is not installed")
    monkeypatch.setattr(sources, "_online", lambda: False)
    with pytest.raises(EquipoiseError, match=r"hub cannot be reached from here. CIFAR-10 is not there"):
        load_federation("cifar10")
    with pytest.raises(EquipoiseError, match="no file or folder `some/thing` here, either"):
        load_federation("some/thing")


# --------------------------------------------------------------------------- downloads, with a stand-in for the hub
@pytest.fixture
def hub(monkeypatch):
    """A hub that holds what the test puts into it."""
    datasets = pytest.importorskip("datasets", reason="the library for downloads is not installed")
    held, asked = {}, []

    def load(name, config=None):
        asked.append((name, config))
        if name not in held:
            raise ConnectionError(f"Couldn't find {name}\nsecond line")
        return datasets.DatasetDict(
            {split: datasets.Dataset(datasets.table.InMemoryTable(table)) for split, table in held[name].items()}
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(sources, "_online", lambda: True)
    held["asked"] = asked
    return held


def cifar_table(count, colour=True, **columns):
    return image_table(
        pixels(count, 32, colour), [i % 10 for i in range(count)], cifar10.CLASSES, column="img", **columns
    )


def test_a_missing_data_set_is_downloaded_once(empty_data, hub):
    hub["uoft-cs/cifar10"] = {"train": cifar_table(2000), "test": cifar_table(10), "extra": cifar_table(5)}
    first = load_federation("cifar10")
    assert len(first) == 100
    assert {len(c.train) for c in first.clients} == {16}
    again = load_federation("cifar10")
    assert again.fingerprint == first.fingerprint
    assert hub["asked"] == [("uoft-cs/cifar10", "plain_text")]
    kept = sources.downloads() / "cifar10"
    assert {path.name for path in kept.iterdir()} == {"train-00000-of-00001.parquet", "test-00000-of-00001.parquet"}


def test_a_failed_download_leaves_nothing(empty_data, hub):
    with pytest.raises(
        EquipoiseError, match=r"Cannot download `uoft-cs/cifar10`.*Couldn't find uoft-cs/cifar10\. CIFAR-10 is not"
    ):
        load_federation("cifar10")
    assert not (sources.downloads() / "cifar10").exists()
    hub["uoft-cs/cifar10"] = {"test": cifar_table(10)}
    with pytest.raises(EquipoiseError, match="download of CIFAR-10 has no split `train`"):
        load_federation("cifar10")


def test_domains_of_one_table_become_folders(empty_data, hub):
    from equipoise.data.sets.pacs import CLASSES, DOMAINS

    count = 100
    owner = [DOMAINS[i % 4] for i in range(4 * count)]
    labels = [i // 4 % 7 for i in range(4 * count)]
    table = image_table(pixels(4 * count, 8, True), labels, CLASSES, domain=owner)
    hub["flwrlabs/pacs"] = {"train": table}
    source = Source("PACS", "pacs", "home", "flwrlabs/pacs")
    part = source.part("test", CLASSES, domain="cartoon")
    assert len(part.load().images) == 20  # two of every ten
    assert {path.name for path in (sources.downloads() / "pacs").iterdir()} == set(DOMAINS)


def test_an_id_of_the_hub_is_a_data_set(empty_data, hub):
    hub["some/thing"] = {"train": cifar_table(60), "test": cifar_table(20)}
    from equipoise.data.own import own

    found = own("some/thing:first", partition="dirichlet(clients=4, alpha=5.0)")
    assert len(found) == 4
    assert found.classes == cifar10.CLASSES
    assert hub["asked"] == [("some/thing", "first")]
    assert sum(len(c.train) + len(c.validation) + len(c.test) for c in found.clients) == 80
    with pytest.raises(EquipoiseError, match=r"no client column `client`.*--partition"):
        own("some/thing:first")


def test_plain_files_are_downloaded(empty_data, real_files, monkeypatch):
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(real_files))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        names = [f"processed.{domain}.data" for domain in heart.DOMAINS]
        source = Source("Heart", "heart_disease", "home", addresses=tuple(f"{address}/{name}" for name in names))
        monkeypatch.setattr(heart, "SOURCE", source)
        assert len(load_federation("heart")) == 4
        server.shutdown()
    gone = Source("Heart", "other", "home", addresses=(f"{address}/nothing",))
    with pytest.raises(EquipoiseError, match=r"Cannot download http.*nothing: .*Heart is not there .*get it from home"):
        gone.fetch()


@pytest.fixture
def real_files(tmp_path):
    """Four small files as the hospitals' are."""
    folder = tmp_path / "served"
    folder.mkdir()
    row = "63,1,{},145,{},1,2,150,0,2.3,3,0,6,{}"
    for domain in heart.DOMAINS:
        lines = [row.format(1 + i % 4, "?" if i % 3 else 0, i % 2) for i in range(12)]
        (folder / f"processed.{domain}.data").write_text("\n".join(lines))
    return folder


# --------------------------------------------------------------------------- damaged files
def test_truncated_and_empty_files_are_named(empty_data):
    good = write_images(empty_data / "cifar10" / "train-00000-of-00001.parquet", pixels(10, 32, True), range(10))
    content = good.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"PAR1 nonsense PAR1"):
        good.write_bytes(damaged)
        with pytest.raises(
            EquipoiseError, match=r"Cannot read `.*train-00000-of-00001\.parquet` .*Is it complete"
        ) as error:
            load_federation("cifar10")
        assert "\n" not in str(error.value)


def test_a_flipped_byte_in_an_image_is_named(empty_data):
    table = image_table(pixels(3, 32, True), [0, 1, 2])
    contents = [row["bytes"] for row in table["image"].to_pylist()]
    contents[1] = contents[1][:60] + bytes(40) + contents[1][100:]
    path = write_images(empty_data / "cifar10" / "train-00000-of-00001.parquet", contents, [0, 1, 2])
    with pytest.raises(EquipoiseError, match=rf"Cannot read the image in row 1 of `{path}`"):
        load_federation("cifar10")


def test_a_missing_shard_is_said(empty_data):
    write_images(empty_data / "cifar10" / "train-00000-of-00002.parquet", pixels(4, 32, True), range(4))
    with pytest.raises(EquipoiseError, match=r"has 1 of the 2 files `train-\*\.parquet`"):
        load_federation("cifar10")


def test_wrong_labels_and_columns_are_named(empty_data):
    path = empty_data / "cifar10" / "train-00000-of-00001.parquet"
    write_images(path, pixels(3, 32, True), [0, 10, 2])
    with pytest.raises(EquipoiseError, match=r"Labels must lie in 0 \.\. 9\. Found 10 in row 1 of"):
        load_federation("cifar10")
    import pyarrow.parquet as pq

    pq.write_table(image_table(pixels(2), [0, 1]).drop_columns("label"), path)
    with pytest.raises(EquipoiseError, match=r"must have a column of images and a column `label`. Found: image"):
        load_federation("cifar10")


def test_classes_in_another_order_are_recognised(tmp_path):
    path = write_images(tmp_path / "train-1.parquet", pixels(3), [0, 1, 2], names=("c", "a", "b"))
    assert load_pictures([path], LETTERS).labels.tolist() == [2, 0, 1]


# --------------------------------------------------------------------------- the layouts that people have
def test_image_folders_are_split_as_in_the_papers(tmp_path):
    write_folder(tmp_path, "amazon", {"a": pixels(12), "b": pixels(11, seed=1)})
    train = folder_part("amazon/train", tmp_path / "amazon", LETTERS, trains)
    assert len(train.files) == 19  # 23 images: 8, 8 and 3
    assert [i for i in range(23) if not trains(i)] == [8, 9, 18, 19]
    assert train.load().labels[:11] == [0] * 10 + [1]
    with pytest.raises(EquipoiseError, match=r"one folder a class \(c, d\)\. Found `a`"):
        folder_part("x", tmp_path / "amazon", ("c", "d"))


def test_office_caltech_from_image_folders(empty_data):
    from equipoise.data.sets.office_caltech import CLASSES, DOMAINS

    for d, domain in enumerate(DOMAINS):
        write_folder(
            empty_data / "office_caltech_10", domain, {c: pixels(100 if d < 2 else 13, 6, seed=d) for c in CLASSES}
        )
    federation = load_federation("office-caltech")
    assert len(federation) == 10
    assert any("amazon has 800 training and 200 test images here" in note for note in federation.notes)


def test_real_synthetic_digits_take_their_place(empty_data, monkeypatch):
    from equipoise.data.sets import digits
    from equipoise.data.sets.digits import CLASSES, SAMPLES

    monkeypatch.setattr(digits, "GENERATED", 500)
    for name, samples in SAMPLES.items():
        for split, count in (("train", 5 * samples + 10), ("test", 30)):
            if name == "syn":
                folder = {"train": "imgs_train", "test": "imgs_valid"}[split]
                write_folder(empty_data / "syn", folder, {c: pixels(max(3, count // 10), 6, True) for c in CLASSES})
            else:
                labels = [i % 10 for i in range(count)]
                write_images(empty_data / name / f"{split}-00000-of-00001.parquet", pixels(count, 6), labels, CLASSES)
    federation = load_federation("digits")
    assert federation.domains == ("mnist", "usps", "svhn", "syn")
    assert not any("generated" in note for note in federation.notes)
    shutil.rmtree(empty_data / "syn")
    without = load_federation("digits")
    assert without.domains == ("mnist", "usps", "svhn", "generated")
    assert any("`generated` stands in for SYN" in note for note in without.notes)
    assert [c.name for c in without.clients][-1] == "generated 5"


def test_emnist_as_nist_offers_it(empty_data):
    folder = empty_data / "emnist_byclass"
    folder.mkdir()
    images = pixels(2500, 28)
    labels = np.arange(2500, dtype=np.uint8) % 62
    header = lambda code, *sizes: bytes([0, 0, 8, code]) + np.array(sizes, ">u4").tobytes()  # noqa: E731
    images_file = folder / "emnist-byclass-test-images-idx3-ubyte.gz"
    labels_file = folder / "emnist-byclass-test-labels-idx1-ubyte.gz"
    images_file.write_bytes(gzip.compress(header(3, 2500, 28, 28) + images.tobytes()))
    labels_file.write_bytes(gzip.compress(header(1, 2500) + labels.tobytes()))
    federation = load_federation("emnist(alpha=5.0)")
    assert (federation.x[7, 0].numpy() == images[7].T).all()  # NIST's images lie on their side
    assert federation.y[:3].tolist() == [0, 1, 2]
    images_file.write_bytes(images_file.read_bytes()[:1000])
    with pytest.raises(EquipoiseError, match=r"Cannot read `.*images-idx3-ubyte.gz`"):
        load_federation("emnist")


def test_real_ambiguous_digits_take_their_place(empty_data):
    digits = tuple("0123456789")
    for name, count in (("mnist", 5000), ("ambiguous_mnist", 4500)):
        labels = [i % 10 for i in range(count)]
        write_images(empty_data / name / "train-00000-of-00001.parquet", pixels(count, 6), labels, digits)
    federation = load_federation("dirty-mnist")
    assert not any("generated" in note for note in federation.notes)
    shares = [float((torch_cat(c) >= 5000).float().mean()) for c in federation.clients]
    assert shares == [0, 0.25, 0.5, 0.75, 1]


def torch_cat(client):
    import torch

    return torch.cat([client.train, client.validation, client.test])


def test_a_line_of_heart_disease_that_is_too_short(empty_data, real_files):
    shutil.copytree(real_files, empty_data / "heart_disease")
    path = empty_data / "heart_disease" / "processed.va.data"
    path.write_text("63,1,1,145,233,1,2\n")
    with pytest.raises(EquipoiseError, match=r"Line 1 of `.*processed.va.data` must have 14 values. Found 7"):
        load_federation("heart")
    path.write_text("63,1,1,145,x,1,2,150,0,2.3,3,0,6,0\n")
    with pytest.raises(EquipoiseError, match=r"processed.va.data` must hold numbers"):
        load_federation("heart")
