"""The benchmarks on real data: sizes as in the papers, partitions as their protocols say, and a few rounds of training."""

import importlib

import pytest
import torch

from equipoise import EquipoiseError, load_federation, run
from equipoise.data.catalogue import DATASETS, list_presets
from equipoise.data.generated import blend_digits, draw_digits
from kit import quiet
from kit.files import pixels, write_images

DOMAIN_SETS = ("digits", "office-caltech", "pacs")
REAL = (*DOMAIN_SETS, "emnist", "dirty-mnist", "mnist-shards", "fmnist3", "heart")
MODULES = [*REAL, "cifar10"]


@pytest.fixture
def cifar(empty_data):
    """Files of CIFAR-10's layout, with generated content."""
    count = 2000
    labels = [i % 10 for i in range(count)]
    for split in ("train", "test"):
        write_images(
            empty_data / "cifar10" / f"{split}-00000-of-00001.parquet", pixels(count, 32, True), labels, column="img"
        )


# --------------------------------------------------------------------------- what each module says of itself
@pytest.mark.parametrize("name", MODULES)
def test_modules_export_their_facts(name):
    module = importlib.import_module(f"equipoise.data.sets.{name.replace('-', '_')}")
    assert set(list_presets(name)) == set(module.PRESETS)
    assert "cpu" in module.PRESETS
    assert len(module.CLASSES) >= 2
    assert isinstance(module.DOMAINS, tuple)
    assert module.MODEL
    assert module.NEEDS
    for protocol in module.PRESETS.values():
        assert getattr(protocol, "protocol", protocol).rounds >= 1


@pytest.mark.parametrize("name", REAL)
def test_loaded_data_agree_with_what_the_module_says(name, real_data):
    module = importlib.import_module(f"equipoise.data.sets.{name.replace('-', '_')}")
    federation = load_federation(name)
    assert federation.name == name
    assert federation.classes == module.CLASSES
    assert len(federation.input_shape) == len(module.INPUT_SHAPE)
    assert federation.protocol.name == "cpu"
    if federation.x.dtype == torch.uint8:
        assert federation.digest
    train = torch.cat([c.train for c in federation.clients])
    tested = torch.cat([torch.cat([c.test, c.validation]) for c in federation.clients])
    assert not set(train.tolist()) & set(tested.tolist())
    assert load_federation(name).fingerprint == federation.fingerprint
    assert load_federation(f"{name}(seed=1)").fingerprint != federation.fingerprint
    assert (federation.class_counts() > 0).any(0).all()


@pytest.mark.parametrize("name", REAL)
def test_it_trains_with_fedavg_and_a_fair_method(name, real_data):
    fair = {
        "emnist": "eagle(lstar_epochs=2)",
        "dirty-mnist": "eagle(lstar_epochs=1)",
        "fmnist3": "fedfe",
        "mnist-shards": "fedfe",
    }
    model = {"digits": "resnet10(width=2)", "office-caltech": "resnet10(width=2)", "pacs": "resnet10(width=2)"}
    data = load_federation(name)
    few = tuple(c for c in data.clients if c.name.endswith(("1", "a")) or len(data) <= 10)[:6]
    from dataclasses import replace

    small = replace(data, clients=tuple(replace(c, train=c.train[:40], test=c.test[:40]) for c in few))
    for method in ("fedavg", fair.get(name, "fedheal")):
        result = run(
            method,
            small,
            rounds=1,
            participation=1.0,
            model=model.get(name),
            training=replace(data.protocol.training, epochs=1),
        )
        assert set(result.values()) == {c.name for c in few}


# --------------------------------------------------------------------------- sizes as in the papers
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("office-caltech", {"amazon": 190, "caltech": 224, "dslr": 30, "webcam": 58}),
        ("pacs(preset='f2dc')", {"art_painting": 408, "cartoon": 468, "photo": 334, "sketch": 785}),
        ("pacs(preset='fedequilibria')", {"photo": 337, "art_painting": 411, "cartoon": 471, "sketch": 788}),
    ],
)
def test_test_sets_have_the_papers_sizes(name, sizes, real_data, monkeypatch):
    from equipoise.data import domains

    real = domains.open_pool
    monkeypatch.setattr(domains, "open_pool", lambda pool, parts, size: real(pool, parts, 32))  # small images will do
    federation = load_federation(name)
    assert {c.domain: len(c.test) for c in federation.clients} == sizes
    assert len({id(c.test) for c in federation.clients}) == 4  # one test set a domain, scored once


ALLOCATION = {
    "digits(preset='fedheal')": {"mnist": [600] * 5, "usps": [72] * 5, "svhn": [732] * 5, "generated": [100] * 5},
    "digits(preset='fedequilibria')": {"mnist": [600] * 5, "usps": [72] * 5, "svhn": [732] * 5, "generated": [100] * 5},
    "digits(preset='f2dc')": {"mnist": [600] * 3, "usps": [72] * 6, "svhn": [732] * 6, "generated": [100] * 5},
    "digits": {"mnist": [300] * 5, "usps": [36] * 5, "svhn": [366] * 5, "generated": [50] * 5},
    "office-caltech(preset='fedheal')": {"amazon": [76] * 5, "caltech": [89] * 5, "dslr": [12] * 5, "webcam": [23] * 5},
    "office-caltech(preset='fedequilibria')": {
        "amazon": [76] * 5,
        "caltech": [89] * 5,
        "dslr": [12] * 5,
        "webcam": [23] * 5,
    },
    "office-caltech(preset='f2dc')": {"amazon": [153] * 2, "caltech": [179] * 3, "dslr": [25] * 3, "webcam": [47] * 2},
    "pacs(preset='f2dc')": {"photo": [400] * 2, "art_painting": [492] * 3, "cartoon": [562] * 2, "sketch": [943] * 3},
    "pacs(preset='fedequilibria')": {
        "photo": [133] * 5,
        "art_painting": [163] * 5,
        "cartoon": [187] * 5,
        "sketch": [314] * 5,
    },
}


@pytest.mark.parametrize("name", ALLOCATION)
def test_clients_hold_what_the_protocols_say(name, real_data, monkeypatch):
    from equipoise.data import domains
    from equipoise.data.sets import digits

    real, sizes = domains.open_pool, []

    def small(pool, parts, size):
        sizes.append(size)
        return real(pool, parts, {"digits": 16}.get(pool, 32))

    monkeypatch.setattr(domains, "open_pool", small)
    federation = load_federation(name)
    if (real_data / digits.SYN.folder).exists():
        pytest.skip("SYN itself is here: the domain is not generated")
    held = {}
    for client in federation.clients:
        held.setdefault(client.domain, []).append(len(client.train))
    assert held == ALLOCATION[name]
    if not name.startswith("digits"):
        assert (federation.class_counts() > 0).all()  # every class at every client
    elif name != "digits":
        assert {len(c.test) for c in federation.clients} == {10_000, 2_007, 2_120, 2_000}
    expected = {"fedheal": 192, "fedequilibria": 192, "f2dc": 32} if name.startswith("office") else {}
    expected |= {"fedequilibria": 128, "f2dc": 128} if name.startswith("pacs") else {}
    preset = name.split("'")[1] if "'" in name else "cpu"
    assert sizes == [expected.get(preset, 16 if preset == "cpu" else 32)]


@pytest.mark.parametrize(
    ("name", "lr", "batch", "epochs", "rounds", "model", "draws"),
    [
        ("digits(preset='fedheal')", 0.001, 64, 10, 200, "resnet10", 2),
        ("digits(preset='fedequilibria')", 0.001, 64, 10, 200, "resnet10", 2),
        ("digits(preset='f2dc')", 0.01, 64, 10, 100, "resnet10", 3),
        ("office-caltech(preset='fedheal')", 0.001, 16, 10, 200, "resnet10", 1),
        ("office-caltech(preset='fedequilibria')", 0.001, 16, 5, 200, "resnet12", 1),
        ("office-caltech(preset='f2dc')", 0.01, 64, 10, 100, "resnet10", 3),
        ("pacs(preset='fedequilibria')", 0.001, 16, 5, 200, "resnet12", 3),
        ("pacs(preset='f2dc')", 0.01, 64, 10, 100, "resnet10", 3),
        ("fmnist3(preset='fedfv')", 0.1, None, 1, 201, "linear(double_softmax=True, zero_bias=True)", 0),
        ("fmnist3(preset='fedfe')", 0.1, 400, 1, 1000, "linear", 0),
        (
            "mnist-shards(preset='fedfv')",
            0.1,
            None,
            1,
            1001,
            "cnn(padded=False, double_softmax=True, spare=52, variant='released')",
            0,
        ),
        ("mnist-shards(preset='fedfe')", 0.1, 10, 1, 1000, "cnn(padded=False)", 0),
        ("emnist(preset='eagle')", 0.5, None, 1, 10_000, "linear", 0),
    ],
)
def test_protocols_are_the_papers(name, lr, batch, epochs, rounds, model, draws, real_data, monkeypatch):
    from equipoise.data import domains

    real = domains.open_pool
    monkeypatch.setattr(domains, "open_pool", lambda pool, parts, size: real(pool, parts, {"digits": 16}.get(pool, 32)))
    federation = load_federation(name)
    protocol = federation.protocol
    training = protocol.training
    assert (training.lr, training.batch, training.epochs, protocol.rounds, protocol.model) == (
        lr,
        batch,
        epochs,
        rounds,
        model,
    )
    assert federation.preparation.draws == draws
    if name.startswith(DOMAIN_SETS):
        assert (training.momentum, training.weight_decay, protocol.participation) == (0.9, 1e-5, 1.0)


def test_what_is_smaller_is_said(real_data):
    for name in DOMAIN_SETS:
        assert "Preset cpu:" in load_federation(name).notes[0]
    from equipoise.data.sets.digits import COMPLETE

    full = load_federation("digits(preset='f2dc')")
    found = next(len(c.test) for c in full.clients if c.domain == "svhn")
    said = any(note.startswith("svhn has ") for note in full.notes)
    assert said == (found != COMPLETE["svhn"][1])
    assert not any(note.startswith("mnist has ") for note in full.notes)


# --------------------------------------------------------------------------- the label-skew benchmarks
def test_emnist(real_data):
    federation = load_federation("emnist(alpha=2000.0)")
    sizes = [len(c.train) + len(c.validation) + len(c.test) for c in federation.clients]
    assert sum(sizes) == 20_000
    assert max(sizes) - min(sizes) < 400
    skewed = load_federation("emnist")
    counts = skewed.class_counts().float()
    assert (counts.amax(0) / counts.sum(0)).mean() > 0.6  # most of a class lies with one client
    client = skewed.clients[0]
    whole = sum(len(client.split(s)) for s in ("train", "validation", "test"))
    assert len(client.train) == pytest.approx(0.6 * whole, abs=1)
    assert len(client.test) == pytest.approx(0.2 * whole, abs=1)
    with pytest.raises(EquipoiseError, match="`alpha` must be above 0"):
        load_federation("emnist(alpha=0)")


def test_mnist_shards_and_fmnist3(real_data):
    federation = load_federation("mnist-shards")
    assert len(federation) == 200
    assert {(len(c.train), len(c.validation), len(c.test)) for c in federation.clients} == {(240, 0, 60)}
    assert (federation.class_counts() > 0).sum(1).max() <= 4  # a shard may cross from one class into the next
    three = load_federation("fmnist3(preset='fedfv')")
    assert [(len(c.train), len(c.validation), len(c.test)) for c in three.clients] == [(5600, 700, 700)] * 3
    assert torch.equal(three.class_counts(), 5600 * torch.eye(3).long())
    x = three.preparation.evaluation(three.x[:60_000])  # scaled by all training images, of the other classes, too
    assert x.mean().abs() < 1e-3
    assert x.std(0).median() == pytest.approx(1, abs=0.01)


def test_cifar10_in_files_of_its_layout(cifar):
    federation = load_federation("cifar10")
    assert len(federation) == 100
    assert federation.input_shape == (3, 32, 32)
    assert {(len(c.train), len(c.test)) for c in federation.clients} == {(16, 2)}
    assert federation.class_counts().gt(0).sum(1).max() == 2
    result = run("fedfe", load_federation("cifar10(preset='fedfv')"), rounds=2)
    assert len(result.rounds[0].clients) == 10
    assert result.settings.model_name == "mlp(double_softmax=True)"
    assert sum(v.numel() for v in result.task.initial_params.values()) == 656_810


def test_dirty_mnist_is_ever_more_ambiguous(real_data):
    federation = load_federation("dirty-mnist")
    assert [len(c.train) for c in federation.clients] == [960] * 5
    assert [c.name for c in federation.clients] == [f"{p} % ambiguous" for p in (0, 25, 50, 75, 100)]
    everything = [torch.cat([c.train, c.validation, c.test]) for c in federation.clients]
    assert [float((index >= 60_000).float().mean()) for index in everything] == [0, 0.25, 0.5, 0.75, 1]


# --------------------------------------------------------------------------- hospitals
def test_heart(real_data):
    federation = load_federation("heart")
    assert [c.name for c in federation.clients] == ["cleveland", "hungarian", "switzerland", "va"]
    assert [len(c.train) + len(c.test) for c in federation.clients] == [303, 294, 123, 200]
    assert federation.input_shape == (25,)
    assert torch.isfinite(federation.x).all()
    ill = [int(federation.y[torch.cat([c.train, c.test])].sum()) for c in federation.clients]
    assert ill == [139, 106, 115, 149]  # as UCI's description counts them
    cholesterol = 1 + 2 + 4 + 1  # age, sex, chest pain, blood pressure stand before it
    swiss = federation.clients[2]
    assert (federation.x[swiss.train, cholesterol] == 0).all()  # never measured there
    result = run("fedavg", federation, rounds=10, eval_every=10)
    assert set(result.values("auc")) == set(result.values())
    assert result.values("auc")["cleveland"] > 0.8
    assert run("fedavg", federation, rounds=1, model="mlp(hidden=(16,))").values("auc")


# --------------------------------------------------------------------------- generated images
def test_generated_digits_are_reproducible_and_varied():
    one, two, other = (
        draw_digits("train", 30).load(),
        draw_digits("train", 30).load(),
        draw_digits("test", 30).load(),
    )
    assert all((a == b).all() for a, b in zip(one.images, two.images, strict=True))
    assert any((a != b).any() for a, b in zip(one.images, other.images, strict=True))
    assert {image.shape for image in one.images} == {(32, 32, 3)}
    assert list(one.labels) == [i % 10 for i in range(30)]
    assert len({image.tobytes() for image in one.images}) == 30


def test_generated_digits_can_be_told_apart():
    """A linear model on the pixels' brightness does far better than chance: the label is what is drawn."""
    import numpy as np
    from sklearn.linear_model import RidgeClassifier

    parts = [draw_digits(split, count).load() for split, count in (("train", 600), ("test", 200))]
    x, xt = (
        np.abs(np.stack([i.mean(2) - np.median(i.mean(2)) for i in p.images])).reshape(len(p.images), -1) for p in parts
    )
    assert RidgeClassifier(alpha=1e6).fit(x, parts[0].labels).score(xt, parts[1].labels) > 0.25


def test_blends_show_two_digits_and_are_labelled_as_either():
    import numpy as np

    images = np.zeros((20, 4, 4), np.uint8)
    labels = np.arange(20) % 4
    for i, label in enumerate(labels):
        images[i, label] = 200  # the class is the bright row
    mixed, chosen = blend_digits(images, labels, 400)
    rows = (mixed.max(2) > 0).sum(1)
    assert (rows == 2).all()
    assert all(mixed[i, chosen[i]].max() > 0 for i in range(400))
    brighter = np.array([mixed[i].max(1).argmax() for i in range(400)])
    assert 0.4 < (brighter == chosen).mean() < 0.6  # the label is a fair draw
    assert mixed.max() == 255


def test_data_sets_have_different_names():
    assert len(DATASETS) == 14
    with pytest.raises(EquipoiseError, match="Did you mean `office-caltech`"):
        load_federation("office-caltec")
    assert load_federation("gaussians(rotate=1)").name == "gaussians"


def test_the_example_of_two_clients():
    """Loss parity harms the easy client of EAGLE's first figure; gap parity does not."""
    gaps = quiet("eagle", "gaussians(clients=2)")
    afl = quiet("afl", "gaussians(clients=2)")
    mine, theirs = (result.values("loss", "train") for result in (gaps, afl))
    assert mine["client 0"] < 0.6 * theirs["client 0"]
    first, second = gaps.rounds[-1].figures["gap"]
    assert first == pytest.approx(second, abs=0.02)
    with pytest.raises(EquipoiseError, match="`rotate` must be the number of a client"):
        load_federation("gaussians(clients=2, rotate=2)")
