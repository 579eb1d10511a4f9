"""Published runs of others, given back: FLamby's Fed-Heart-Disease and the Fashion-MNIST records of FedFV's authors.

They need the real data sets, which `EQUIPOISE_DATA` names; without them these tests are skipped.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from equipoise import load_federation
from equipoise.methods import parse
from equipoise.models import build_model
from equipoise.task import Task
from kit import quiet

EXAMPLES = Path(__file__).parents[1] / "examples"
FLAMBY = json.loads((EXAMPLES / "flamby_heart.json").read_text())["accuracy"]
FEDFV = json.loads((EXAMPLES / "fedfv_records.json").read_text())["fmnist"]
needs_real_data = pytest.mark.usefixtures("real_data")
PATIENT = 1 / np.array([104, 89, 16, 45])  # what one test patient of each hospital is worth


def flamby(method, seed, preset="flamby", lr=None, **options):
    data = load_federation(f"heart(preset='{preset}')")
    training = replace(data.protocol.training, lr=lr or data.protocol.training.lr)
    run = quiet(method, data, seed=seed, training=training, eval_every=1000, train_scores=False, **options)
    return np.array(list({**run.values(), **run.values(split="unseen")}.values()))


@needs_real_data
def test_flambys_data():
    data = load_federation("heart(preset='flamby')")
    assert [len(client.train) for client in data.clients] == [199, 172, 30, 85]
    assert [len(client.test) for client in data.clients] == [104, 89, 16, 45]
    assert data.x.shape == (740, 13)
    first = data.x[data.clients[0].train]
    torch.testing.assert_close(first.mean(0), torch.zeros(13), atol=1e-5, rtol=0)
    torch.testing.assert_close(first.std(0), torch.ones(13), atol=1e-3, rtol=0)


@needs_real_data
@pytest.mark.parametrize(
    ("name", "method", "lr"),
    [
        ("FedAvg100", "fedavg", 0.001),
        ("FedProx100", "fedprox(mu=0.01)", 0.001),
        ("Scaffold100", "scaffold(weights='samples')", 0.001),
        ("FedAdam100", "fedadam", 0.01),
        ("FedYogi100", "fedyogi", 0.003162),
        ("FedAdagrad100", "fedadagrad(lr=0.316228)", 0.003162),
    ],
)
def test_flambys_strategies_come_back_to_a_patient(name, method, lr):
    """Batches are drawn otherwise, so that a patient at the border may be told otherwise."""
    for seed in (42, 44):
        off = np.abs(flamby(method, seed, lr=lr) - FLAMBY[name][str(seed)])
        assert (off < 1.01 * PATIENT + 1e-4).all(), (name, seed, off / PATIENT)


@needs_real_data
def test_flambys_cyclic_training_is_that_of_the_first_hospital_alone():
    """Its public code gives every hospital a model of its own, and scores the first one's: four turns of 100 steps."""
    found = flamby("fedavg", 42, lr=0.01, rounds=4, hold_out="hungarian,switzerland,va")
    assert found == pytest.approx(FLAMBY["Cyclic100"]["42"], abs=1e-4)


@needs_real_data
def test_flambys_pooled_training_comes_back():
    assert flamby("centralised", 43, "flamby-pooled") == pytest.approx(FLAMBY["Pooled Training"]["43"], abs=1.01 / 104)


@needs_real_data
def test_the_first_model_is_that_of_torchs_seed():
    task = Task.build(parse("fedavg"), load_federation("heart(preset='flamby')"), seed=42)
    torch.manual_seed(42)
    layer = nn.Linear(13, 1)
    assert torch.equal(task.initial_params["head.weight"], layer.weight)
    assert torch.equal(task.initial_params["head.bias"], layer.bias)


@needs_real_data
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fedfvs_records_come_back_exactly():
    """One method and seed; `docs/papers/outside_truths.md` has the others, which take minutes."""
    record = FEDFV["fedavg_N0_r200_b-1_e1_lr0.1_p1.0"]
    data = "fmnist3(preset='fedfv', seed='run')"
    run = quiet("fedavg(weights='uniform')", data, seed=0, eval_every=1000, train_scores=False)
    found = 100 * np.array(list(run.values().values()))
    assert round(found.mean(), 3) == record["mean"][0]
    assert round(found.std(), 3) == record["std_ddof0"][0]


def test_the_released_network_has_its_relus_elsewhere():
    torch.manual_seed(12)
    text = "cnn(padded=False, double_softmax=True, spare=52, variant='released')"
    model = build_model(text, (1, 28, 28), 10, torch_seed=12)
    torch.manual_seed(12)
    first, second = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
    hidden, last = nn.Linear(1024, 512), nn.Linear(512, 62)
    x = torch.randn(3, 1, 28, 28)
    maps = nn.functional.max_pool2d(second(nn.functional.max_pool2d(first(x), 2)), 2).flatten(1)
    expected = last(hidden(maps).relu()).relu().softmax(1)
    torch.testing.assert_close(model(x).logits, expected)
