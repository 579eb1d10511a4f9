"""The area under the ROC curve, against scikit-learn's, and where it is reported."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from equipoise import Federation, run
from equipoise.metrics import auc


@given(seed=st.integers(0, 10_000), size=st.integers(2, 60), ties=st.booleans())
@settings(max_examples=60, deadline=None)
def test_it_is_what_scikit_learn_computes(seed, size, ties):
    draw = torch.Generator().manual_seed(seed)
    margins = torch.randn(size, generator=draw)
    margins = margins.round() if ties else margins
    y = torch.randint(0, 2, (size,), generator=draw)
    y[0], y[1] = 0, 1
    assert auc(margins, y) == pytest.approx(roc_auc_score(y.numpy(), margins.numpy()), abs=1e-12)


def test_by_hand():
    assert auc(torch.tensor([0.0, 1.0]), torch.tensor([0, 1])) == 1
    assert auc(torch.tensor([1.0, 0.0]), torch.tensor([0, 1])) == 0
    assert auc(torch.tensor([1.0, 1.0]), torch.tensor([0, 1])) == 0.5


def two_classes(last):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    data = {"a": (x, torch.arange(40) % 2), "b": (x, torch.arange(40) % 2)}
    return Federation.from_tensors(data, test={"a": data["a"], "b": (x[:5], last)}, classes=2)


def test_a_client_tested_on_one_class_has_none():
    result = run("fedavg", two_classes(torch.ones(5)), rounds=1)
    assert set(result.values()) == {"a", "b"}
    assert set(result.values("auc")) == {"a"}
    assert "margin" not in {score.metric for score in result.scores}


def test_it_is_that_of_the_models_own_margins():
    data = two_classes(torch.tensor([0, 1, 0, 1, 1]))
    result = run("fedavg", data, rounds=1, model="linear")
    client = data.clients[0]
    logits = result.task.apply(result.task.layout.split(result.server.theta), {}, data.x[client.test]).logits
    expected = roc_auc_score(data.y[client.test].numpy(), (logits[:, 1] - logits[:, 0]).detach().numpy())
    assert result.values("auc")["a"] == pytest.approx(expected, abs=1e-9)


def test_three_classes_have_none():
    x = torch.randn(30, 3)
    result = run("fedavg", Federation.from_tensors({"a": (x, torch.arange(30) % 3)}), rounds=1)
    assert result.values("auc") == {}
