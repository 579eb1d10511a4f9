import numpy as np
import pytest
import torch

from equipoise import Client, EquipoiseError, Federation, load_federation
from equipoise.data.sets.scanners import scan
from kit import blobs

X, Y = torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({"a": (X, Y), "b": (X, Y + 5)}, {"classes": 3}, r"Labels must lie in 0 .. 2 .*Found 5 in .*`b`"),
        ({"a": (X, -Y)}, {}, "Found -1 in .*`a`"),
        ({"a": (X, Y), "b": (X[:, :2], Y)}, {}, r"one shape. Found \(2,\) in .*`b`.*\(4,\) in .*`a`"),
        ({"a": (X, Y), "b": (X.where(X > -1, torch.nan), Y)}, {}, "NaN or infinity in sample .*`b`"),
        ({"a": (X, Y), "b": (X[:0], Y[:0])}, {}, "no samples in .*`b`"),
        ({"a": (X, Y[:5])}, {}, r"one per sample. Found \(5,\) for 10 samples in .*`a`"),
        ({"a": (X, Y + 0.5)}, {}, "classes 0, 1, 2, .*Found 0.5.*`a`"),
        ([("a", (X, Y)), ("a", (X, Y))], {}, "must differ. Found `a`"),
        ({"a": (X, Y)}, {"test": {"c": (X, Y)}}, "`test` names the client `c`"),
        ({}, {}, "at least one client"),
        ({"a": ([["x"]], [0])}, {}, "Cannot read .*`a`"),
        ({"a": (X.to(torch.complex64), Y)}, {}, "real numbers.*complex64.*`a`"),
        ({"a": (1.0, 0)}, {}, "samples .*`a`"),
    ],
)
def test_bad_input_names_the_client(data, options, message):
    with pytest.raises(EquipoiseError, match=message):
        Federation.from_tensors(data, **options)


def test_arrays_of_many_kinds():
    federation = Federation.from_tensors(
        {"a": (X.numpy(), Y.tolist()), "b": (X.double(), Y.float())}, classes=["r", "g", "b"]
    )
    assert federation.x.dtype == torch.float32
    assert federation.classes == ("r", "g", "b")
    assert federation.y.dtype == torch.long
    for kind, kept in {
        np.uint8: torch.float32,
        bool: torch.float32,
        np.float16: torch.float32,
        np.int32: torch.int64,
    }.items():
        plain = Federation.from_tensors({"a": (np.ones((4, 3), dtype=kind), np.arange(4))})
        assert plain.x.dtype == kept
    assert Federation.from_tensors({"a": (torch.arange(4.0), [0, 1, 0, 1])}).input_shape == (1,)
    with pytest.raises(EquipoiseError, match="test_share"):
        Federation.from_tensors({"a": (X, Y)}, test_share=2.0)
    assert len(Federation.from_tensors({"a": (X, Y)}, test_share=0).clients[0].test) == 0


def test_test_data_is_set_aside_when_none_is_given():
    federation = Federation.from_tensors({"a": (X, Y), "one": (X[:1], Y[:1])}, test_share=0.3)
    a, one = federation.clients
    assert (len(a.train), len(a.test)) == (7, 3)
    assert not set(a.train.tolist()) & set(a.test.tolist())
    assert (len(one.train), len(one.test)) == (1, 0)
    again = Federation.from_tensors({"a": (X, Y), "one": (X[:1], Y[:1])}, test_share=0.3)
    assert again.fingerprint == federation.fingerprint
    other = Federation.from_tensors({"a": (X, Y), "one": (X[:1], Y[:1])}, test_share=0.3, seed=1)
    assert other.fingerprint != federation.fingerprint


def test_a_client_with_one_sample_validates_on_it():
    client = Federation.from_tensors({"one": (X[:1], Y[:1])}).with_validation().clients[0]
    assert client.train.tolist() == client.validation.tolist() == [0]


def test_facts():
    federation = blobs()
    assert federation.domains == ("d0", "d1")
    assert federation.total_samples == 23 + 14 + 9 + 31
    assert federation.class_counts().sum().item() == federation.total_samples
    assert federation.input_shape == (6,)
    assert len(federation.pooled().clients[0].train) == federation.total_samples
    assert Federation.from_tensors({"a": (X, Y)}).domains == ("a",)


def test_a_client_without_training_data_is_refused():
    with pytest.raises(EquipoiseError, match="`a` has no training samples"):
        Federation("f", X, Y, (Client("a", torch.zeros(0, dtype=torch.long)),), ("0", "1", "2"))


def test_scanners():
    federation = load_federation("scanners")
    assert len(federation) == 12
    assert federation.domains == ("clean", "inverted", "noisy", "rotated")
    sizes = [len(client.train) for client in federation.clients]
    assert len(set(sizes)) > 6
    used = torch.cat([torch.cat([c.train, c.validation]) for c in federation.clients])
    assert len(used) == len(set(used.tolist()))  # clients share nothing
    assert all(not set(c.test.tolist()) & set(used.tolist()) for c in federation.clients)
    assert federation.x.min() >= 0
    assert federation.x.max() <= 1
    assert load_federation("scanners").fingerprint == federation.fingerprint
    assert load_federation("scanners(seed=1)").fingerprint != federation.fingerprint
    assert (federation.class_counts() > 0).float().mean() > 0.9


def test_the_four_scanners_differ():
    image = torch.zeros(1, 8, 8)
    image[0, 0, :] = 1
    assert torch.equal(scan(image, "inverted", 0, "x"), 1 - image)
    assert scan(image, "rotated", 0, "x").unique().tolist() == pytest.approx([0.35, 0.65])
    assert torch.equal(scan(image, "clean", 0, "x"), image)
    assert not torch.equal(scan(image, "noisy", 0, "x"), image)


def test_gaussians_in_both_readings():
    default, other = load_federation("gaussians"), load_federation("gaussians(rotate=2)")
    for federation, rotated in ((default, 0), (other, 2)):
        for k, client in enumerate(federation.clients):
            x, y = federation.x[client.train], federation.y[client.train]
            gap = x[y == 1].mean(0) - x[y == 0].mean(0)
            mean = (2.0, 0.5, 0.1)[k]
            expected = torch.tensor([0.0, 2 * mean * 2**0.5]) if k == rotated else torch.tensor([2 * mean, 2 * mean])
            assert (gap - expected).abs().max() < 0.6
    assert [len(c.train) for c in default.clients] == [100, 100, 100]
    with pytest.raises(EquipoiseError, match="rotate"):
        load_federation("gaussians(rotate=3)")


def test_unknown_names_are_corrected():
    with pytest.raises(EquipoiseError, match="Did you mean `scanners`"):
        load_federation("scaners")
    with pytest.raises(EquipoiseError, match="one data set"):
        load_federation("scanners + gaussians")
