"""Partitions: every sample to at most one client, reproducible, and a quick refusal of what cannot be."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import EquipoiseError
from equipoise.data.partitions import (
    PARTITIONS,
    by_id,
    classes,
    deal,
    dirichlet,
    hash_partition,
    iid,
    of_domain,
    quantity,
    shards,
    split_three_ways,
    stratified,
)  # fmt: skip

LABELS = torch.arange(600) % 10
RULES = (
    "iid(clients=7)", "dirichlet(clients=7, alpha=0.3)", "shards(clients=7, per_client=3)", "classes(clients=7, per_client=3)",
    "quantity(clients=7, alpha=1.0)",
)  # fmt: skip


@pytest.mark.parametrize("text", RULES)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_every_sample_belongs_to_at_most_one_client(text, seed):
    rule = text[:-1] + f", seed={seed})"
    parts = deal(rule, LABELS)
    everyone = torch.cat(parts).tolist()
    assert len(parts) == 7
    assert len(everyone) == len(set(everyone))
    assert set(everyone) <= set(range(600))
    left = 600 % 21 if text.startswith("shards") else 0  # equal shards leave a few samples over
    assert len(everyone) == 600 - left
    assert min(map(len, parts)) >= 2
    assert hash_partition(deal(rule, LABELS)) == hash_partition(parts)


@pytest.mark.parametrize("text", RULES)
def test_another_seed_is_another_partition(text):
    first, second = (hash_partition(deal(text[:-1] + f", seed={seed})", LABELS)) for seed in (0, 1))
    assert first != second


def test_fingerprints_tell_apart_who_holds_what():
    a, b = torch.tensor([1, 2]), torch.tensor([3])
    assert len({hash_partition(p) for p in ([a, b], [b, a], [torch.cat([a, b])], [a.flip(0), b], [a, b, b[:0]])}) == 5


def test_iid_parts_are_of_one_size():
    assert sorted(len(p) for p in iid(LABELS[:23], clients=5)) == [4, 4, 5, 5, 5]


def test_dirichlet_follows_its_distribution():
    """Shares of a class have mean 1/K and the variance of a Dirichlet distribution, (K-1) / (K^2 (K alpha + 1))."""
    labels, k, alpha = torch.zeros(20_000, dtype=torch.long), 4, 0.5
    shares = np.array([[len(p) / 20_000 for p in dirichlet(labels, k, alpha, 1, seed)] for seed in range(400)])
    assert shares.mean(0) == pytest.approx([0.25] * 4, abs=0.05)
    assert shares.var() == pytest.approx((k - 1) / (k**2 * (k * alpha + 1)), rel=0.12)
    assert np.std([[len(p) for p in dirichlet(LABELS, 6, 2000.0, seed=s)] for s in range(3)]) < 5  # nearly equal


def test_shards_hold_few_classes_and_are_equal():
    parts = shards(LABELS, clients=30, per_client=2)
    assert {len(p) for p in parts} == {20}
    assert max(len(LABELS[p].unique()) for p in parts) == 2


def test_classes_per_client():
    parts = classes(LABELS, clients=12, per_client=3)
    assert {len(LABELS[p].unique()) for p in parts} == {3}
    holders = torch.stack([torch.bincount(LABELS[p], minlength=10) > 0 for p in parts]).sum(0)
    assert int(holders.max() - holders.min()) <= 1
    assert sorted(torch.cat(parts).tolist()) == list(range(600))


def test_natural_ids():
    found = by_id(["b", "a", "b", "c"])
    assert {name: index.tolist() for name, index in found.items()} == {"a": [1], "b": [0, 2], "c": [3]}


def test_domain_parts_are_disjoint_and_complete_when_asked():
    labels = torch.cat([torch.zeros(90), torch.full((5,), 1), torch.full((5,), 2)]).long()
    plain = of_domain(labels, 5, 12, 0, "x")
    assert len(set(torch.cat(plain).tolist())) == 60
    assert any(len(labels[p].unique()) < 3 for p in plain)
    complete = of_domain(labels, 5, 12, 0, "x", complete=True)
    assert [len(p) for p in complete] == [12] * 5
    assert all(len(labels[p].unique()) == 3 for p in complete)
    assert all(len(set(p.tolist())) == 12 for p in complete)
    assert sum(len(set(a.tolist()) - set(b.tolist())) for a, b in zip(plain, complete, strict=True)) <= 10


@given(count=st.integers(10, 600), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_stratified_keeps_the_shares(count, seed):
    labels = torch.cat([torch.full((n,), i) for i, n in enumerate((300, 200, 70, 30))])
    chosen = stratified(labels, count, seed)
    assert len(chosen) == len(set(chosen.tolist())) == count
    exact = torch.tensor([300, 200, 70, 30]) * count / 600
    assert (torch.bincount(labels[chosen], minlength=4) - exact).abs().max() < 1


@given(size=st.integers(1, 60), shares=st.sampled_from([(0.6, 0.2, 0.2), (0.8, 0.0, 0.2), (0.1, 0.1, 0.8)]))
@settings(max_examples=60, deadline=None)
def test_three_ways(size, shares):
    index = torch.arange(100, 100 + size)
    parts = split_three_ways(index, shares, "path")
    assert sorted(torch.cat(parts).tolist()) == index.tolist()
    assert len(parts[0]) >= 1
    if size >= 10:
        assert [len(p) for p in parts] == pytest.approx([s * size for s in shares], abs=1)


def test_of_few_samples_a_test_part_comes_first():
    assert [len(p) for p in split_three_ways(torch.arange(2), (0.6, 0.2, 0.2), 0)] == [1, 0, 1]
    labels = torch.tensor([0] * 10 + [1] * 5)
    train, _, test = split_three_ways(torch.arange(15), (0.6, 0.2, 0.2), 0, labels=labels)
    assert torch.bincount(labels[test]).tolist() == [2, 1]
    assert torch.bincount(labels[train]).tolist() == [6, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet(clients=500, alpha=0.3, min_size=10)", "need 5000 samples. Found 600: ask for at most 60 clients"),
        ("dirichlet(clients=50, alpha=0.001, min_size=10)", "None of 100 draws .* use a larger alpha, fewer clients"),
        ("dirichlet(alpha=0)", "`alpha` must be above 0"),
        ("dirichlet(clients=0)", "`clients` must be at least 1"),
        ("iid(clients=601)", "ask for at most 600 clients"),
        ("quantity(clients=60, alpha=0.01, min_size=5)", "None of 100 draws"),
        ("shards(clients=301, per_client=2)", "cannot be cut into 602 shards. Ask for at most 300 clients"),
        ("classes(clients=3, per_client=2)", "leave some of the 10 classes to nobody. Ask for at least 5 clients"),
        ("classes(per_client=11)", "`per_client` must be between 1 and 10"),
        ("classes(clients=700, per_client=10)", "Class 0 has 60 samples for 700 clients"),
        ("dirichlett(clients=3)", "Did you mean `dirichlet`.* There are iid, dirichlet"),
        ("iid(labels=3)", "follow from the data"),
        ("iid + shards", "Name one partition"),
    ],
)
def test_impossible_requests_fail_at_once_and_say_why(text, message):
    clock = time.perf_counter()
    with pytest.raises(EquipoiseError, match=message):
        deal(text, LABELS)
    assert time.perf_counter() - clock < 10


def test_a_domain_with_too_few_samples():
    with pytest.raises(EquipoiseError, match=r"need 60 samples of digits/svhn\. Found 50: ask for at most 4 clients"):
        of_domain(torch.zeros(50).long(), 5, 12, 0, "digits", "svhn")
    with pytest.raises(EquipoiseError, match="cannot show all 10 classes"):
        of_domain(LABELS, 2, 5, 0, "x", complete=True)


# --------------------------------------------------------------------------- against Flower's partitioners
FLOWER = pytest.mark.filterwarnings("ignore::FutureWarning")  # of the libraries below it


def _flower(partitioner, labels, clients):
    datasets = pytest.importorskip("datasets")
    partitioner.dataset = datasets.Dataset.from_dict({"label": labels, "row": list(range(len(labels)))})
    return [torch.tensor(partitioner.load_partition(k)["row"]) for k in range(clients)]


@FLOWER
def test_flower_agrees_on_natural_ids_and_iid_sizes():
    flower = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
    names = [f"c{int(i)}" for i in LABELS[:50]]
    theirs = _flower(flower.NaturalIdPartitioner("label"), names, 10)
    assert sorted(sorted(p.tolist()) for p in theirs) == sorted(p.tolist() for p in by_id(names).values())
    theirs = _flower(flower.IidPartitioner(7), LABELS.tolist(), 7)
    assert sorted(map(len, theirs)) == sorted(map(len, iid(LABELS, 7)))


@FLOWER
def test_flower_agrees_on_shards_and_classes():
    flower = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
    theirs = _flower(flower.ShardPartitioner(30, "label", num_shards_per_partition=2, seed=1), LABELS.tolist(), 30)
    ours = shards(LABELS, 30, 2)
    assert sorted(map(len, theirs)) == sorted(map(len, ours))
    shard_of = torch.argsort(torch.argsort(LABELS, stable=True)) // 10  # a shard: ten neighbours in the sorted list
    for parts in (ours, theirs):
        counts = torch.stack([torch.bincount(shard_of[p], minlength=60) for p in parts])
        assert ((counts == 0) | (counts == 10)).all()
    theirs = _flower(flower.PathologicalPartitioner(10, "label", 3, "first-deterministic"), LABELS.tolist(), 10)
    ours = classes(LABELS, 10, 3)
    assert sum(map(len, theirs)) == sum(map(len, ours)) == 600
    assert {len(LABELS[p].unique()) for p in theirs} == {len(LABELS[p].unique()) for p in ours} == {3}


@FLOWER
def test_flower_agrees_on_the_skew_of_dirichlet():
    flower = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")

    def skew(parts):  # mean largest share of a class at one client
        counts = torch.stack([torch.bincount(LABELS[p], minlength=10) for p in parts]).double()
        return float((counts / counts.sum(0)).amax(0).mean())

    theirs, ours = [], []
    for seed in range(12):
        rule = flower.DirichletPartitioner(5, "label", 0.5, min_partition_size=2, self_balancing=False, seed=seed)
        theirs.append(skew(_flower(rule, LABELS.tolist(), 5)))
        ours.append(skew(dirichlet(LABELS, 5, 0.5, seed=seed)))
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=0.06)


def test_quantity_changes_sizes_not_classes():
    parts = quantity(LABELS, clients=4, alpha=1.0)
    assert len({len(p) for p in parts}) > 1
    biggest = max(parts, key=len)
    shares = torch.bincount(LABELS[biggest], minlength=10) / len(biggest)
    assert (shares - 0.1).abs().max() < 0.08


def test_all_rules_are_named():
    assert set(PARTITIONS) == {"iid", "dirichlet", "shards", "classes", "quantity"}
