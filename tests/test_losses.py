"""Losses: their gradients against autograd, their metrics against scikit-learn, and every runner and method with them."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as reference
import torch
import torch.nn.functional as F

from equipoise import EquipoiseError, Federation, Training, load, run, save
from equipoise.losses import LOSSES, Binary, CrossEntropy, Huber, parse_loss
from equipoise.methods import METHODS
from equipoise.metrics import METRICS, average_precision, measure_errors
from equipoise.study.experiment import read_experiment
from kit.rows import QUICK

TEXTS = {
    "cross_entropy": "classes",
    "cross_entropy(weights=(1.0, 2.0), smoothing=0.2)": "classes",
    "binary": "classes",
    "binary(weight=3.0, threshold=0.3)": "classes",
    "multilabel": "labels",
    "squared": "number",
    "absolute": "number",
    "huber(delta=0.5)": "number",
}


def clients(target, sizes=(30, 24, 17)):
    draw = torch.Generator().manual_seed(0)
    found = {}
    for k, n in enumerate(sizes):
        x = torch.randn(n, 4, generator=draw) + k
        y = {
            "classes": (x[:, 0] > k).long(),
            "labels": (x[:, :3] > k).long(),
            "number": 1000 + 300 * x[:, 0] - 50 * x[:, 1],
        }[target]
        found[f"c{k}"] = (x, y)
    return Federation.from_tensors(found, target=target)


def targets(target, *shape):
    draw = torch.Generator().manual_seed(1)
    if target == "number":
        return torch.randn(*shape, generator=draw)
    return torch.randint(0, 2, (*shape, 3) if target == "labels" else shape, generator=draw).to(
        torch.float32 if target == "labels" else torch.long
    )


@pytest.mark.parametrize("text", TEXTS)
def test_the_written_gradient_is_that_of_autograd(text):
    loss, y = parse_loss(text), targets(TEXTS[text], 3, 5)
    names = 3 if TEXTS[text] == "labels" else 2
    outputs = torch.randn(3, 5, loss.count_outputs(names), generator=torch.Generator().manual_seed(2)).requires_grad_()
    losses = loss(outputs, y)
    (gradient,) = torch.autograd.grad(losses.sum(), outputs)
    again, delta = loss.differentiate(outputs.detach(), y)
    assert losses.shape == (3, 5)
    torch.testing.assert_close(again, losses.detach())
    torch.testing.assert_close(delta, gradient)
    torch.testing.assert_close(loss(outputs[0], y[0]), losses[0])  # stacked or not, it is the same


def test_losses_against_torch_and_by_hand():
    outputs, y = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5]]), torch.tensor([2, 1])
    weights = torch.tensor([1.0, 2.0, 4.0])
    plain = F.cross_entropy(outputs, y, reduction="none")
    torch.testing.assert_close(CrossEntropy(weights=(1.0, 2.0, 4.0))(outputs, y), plain * weights[y])
    smooth = F.cross_entropy(outputs, y, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(CrossEntropy(smoothing=0.1)(outputs, y), smooth)
    # half of 0.5 squared; then 1 * (3 - 1/2)
    torch.testing.assert_close(Huber(1.0)(torch.tensor([[0.5], [3.0]]), torch.zeros(2)), torch.tensor([0.125, 2.5]))
    # a logit of 0 is a probability of one half: below the threshold 0.6 it is no
    assert Binary(threshold=0.6).decide(torch.tensor([[0.0], [1.0]])).tolist() == [0, 1]


def test_two_outputs_and_one_are_the_same_model():
    odds, y = torch.randn(20, 1), torch.randint(0, 2, (20,))
    both = torch.cat([torch.zeros(20, 1), odds], 1)
    torch.testing.assert_close(Binary()(odds, y), CrossEntropy()(both, y))
    torch.testing.assert_close(Binary().measure_margins(odds), CrossEntropy().measure_margins(both))


@pytest.mark.parametrize("text", TEXTS)
def test_text_and_back(text):
    assert str(parse_loss(text)) == text
    assert parse_loss(text).name in LOSSES


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hubert", "Unknown loss `hubert`. Did you mean `huber`?"),
        ("", "Write for example `huber(delta=1)`."),
        ("3", "Cannot read `3`. Write names, for example `huber(delta=1)`."),
        ("huber(delta=0)", "`delta` must be above 0"),
        ("binary(threshold=1.0)", "`threshold` must be above 0 and below 1"),
        ("cross_entropy(smoothing=1.0)", "`smoothing` must be at least 0 and below 1"),
        ("cross_entropy(weights=(1.0, 0.0))", "`weights` must be above 0"),
        ("cross_entropy(weights=(1.0, 1.0, 1.0))", "has 3 weights for 2 classes"),
        ("squared", "Loss `squared` needs a number (--target with one column) to predict. The data have classes"),
    ],
)
def test_mistakes(text, words):
    with pytest.raises(EquipoiseError) as found:
        run("fedavg", clients("classes"), loss=text, rounds=1)
    assert words in str(found.value)


# --------------------------------------------------------------------------- whole runs
@pytest.mark.parametrize("text", TEXTS)
def test_runners_agree_and_the_loss_falls(text):
    data, training = clients(TEXTS[text]), Training(lr=0.05, batch=8)
    results = {
        (model, runner): run("fedavg", data, loss=text, rounds=8, model=model, runner=runner, training=training)
        for model in ("mlp(hidden=(8,))", "linear")
        for runner in ("inline", "vectorised")
    }
    for model in ("mlp(hidden=(8,))", "linear"):
        one, other = results[model, "inline"], results[model, "vectorised"]
        torch.testing.assert_close(one.server.theta, other.server.theta, rtol=1e-4, atol=1e-5)
        first = [s.value for s in one.rounds[0].scores if s.metric == "loss" and s.split == "train"]
        assert np.mean(list(one.values("loss", "train").values())) < np.mean(first)


@pytest.mark.parametrize("text", TEXTS)
def test_steps_in_factors_and_by_autograd_agree(text):
    """A term that changes nothing makes the steps in factors ask autograd for the gradient at the outputs."""
    data = clients(TEXTS[text])
    fast, slow = (
        run(method, data, loss=text, rounds=2, model="mlp(hidden=(8,))", training=Training(lr=0.05, batch=8, steps=5))
        for method in ("fedavg", "ditto(lam=0.0)")
    )
    torch.testing.assert_close(fast.server.theta, slow.server.theta[: len(fast.server.theta)], rtol=1e-3, atol=1e-5)


NEED_CLASSES = {"f2dc", "f2dc_modules", "fedproc", "fedproto", "fedrcl", "fedsa", "fedtgp", "fpl", "fedlsa"}


@pytest.mark.filterwarnings("ignore::equipoise.EquipoiseWarning")
@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("fairfed", "fedfb")])
def test_every_method_runs_on_numbers_or_says_why_not(name):
    def start():
        return run(QUICK.get(name, name), clients("number"), rounds=2, model="mlp(hidden=(8,))")

    if name in NEED_CLASSES:
        with pytest.raises(
            EquipoiseError, match=r"needs (classes to predict|one output of the model per class), which loss"
        ):
            start()
    else:
        assert np.isfinite(list(start().values("loss").values())).all()


def test_one_output_is_refused_where_each_class_needs_one():
    with pytest.raises(
        EquipoiseError, match=r"`anchor_losses` \(terms\) of `fedsa.*` needs one output .* --loss cross_entropy"
    ):
        run("fedsa", clients("classes"), loss="binary", rounds=1)
    assert run("fedproto", clients("classes"), loss="binary", rounds=2).values()  # prototypes need only classes


def test_numbers_are_told_in_their_own_units(tmp_path):
    data = clients("number")
    result = run("fedavg", data, rounds=30, model="linear", training=Training(lr=0.05, batch=8))
    client = data.clients[1]
    trained = load(save(result, tmp_path))
    said = np.array(trained.predict(data.x[client.test]))
    truth = 1000 + 300 * data.x[client.test, 0].numpy() - 50 * data.x[client.test, 1].numpy()
    assert result.values("mae")["c1"] == pytest.approx(np.abs(said - truth).mean(), rel=1e-3)
    assert result.values("r2")["c1"] == pytest.approx(reference.r2_score(truth, said), rel=1e-3)
    assert result.values()["c1"] == pytest.approx(1 - ((said - truth) ** 2).mean() / data.spread**2, rel=1e-3)
    assert result.settings.facts["score"] == "explained"


def test_several_labels_come_back_by_name(tmp_path):
    data = clients("labels")
    result = run("fedavg", data, rounds=1, metrics=("f1", "auc"))
    assert {"f1", "auc"} <= {s.metric for s in result.scores}
    for row in load(save(result, tmp_path)).predict(data.x[:4]):
        assert set(row) <= set(data.classes)


def test_plain_runs_keep_their_digest():
    """A run with cross-entropy is the run that it always was: its folder keeps its name."""
    assert not {"loss", "score", "metrics"} & set(run("fedavg", clients("classes"), rounds=1).settings.facts)


# --------------------------------------------------------------------------- metrics
def test_metrics_against_scikit_learn():
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 2, (50, 3)).astype(bool)
    margins = np.round(draw.normal(size=(50, 3)) + truth, 1)  # with ties
    chosen = margins > 0
    pairs = {
        "precision": reference.precision_score(truth, chosen, average="macro"),
        "recall": reference.recall_score(truth, chosen, average="macro"),
        "f1": reference.f1_score(truth, chosen, average="macro"),
        "auc": reference.roc_auc_score(truth, margins, average="macro"),
        "pr_auc": reference.average_precision_score(truth, margins, average="macro"),
    }
    for name, wanted in pairs.items():
        assert METRICS[name](margins, chosen, truth) == pytest.approx(wanted)


def test_metrics_of_several_classes_against_scikit_learn():
    data = Federation.from_tensors({c: (torch.randn(60, 4), torch.arange(60) % 3) for c in "ab"}, test_share=0.5)
    result = run("fedavg", data, rounds=1, metrics=tuple(METRICS))
    task, index = result.task, data.clients[0].test
    outputs = task.apply(task.layout.split(result.server.theta), {}, data.x[index]).logits
    said, true = outputs.argmax(1).numpy(), data.y[index].numpy()
    share = outputs.softmax(1).numpy()
    assert result.values("f1")["a"] == pytest.approx(reference.f1_score(true, said, average="macro"))
    assert result.values("auc")["a"] == pytest.approx(reference.roc_auc_score(true, share, multi_class="ovr"))


def test_metrics_where_they_are_not_defined():
    nobody, somebody = np.zeros((4, 1), dtype=bool), np.array([[True], [True], [True], [True]])
    margins = np.arange(4.0)[:, None]
    assert np.isnan(METRICS["recall"](margins, somebody, nobody))
    assert np.isnan(METRICS["auc"](margins, somebody, somebody))  # there is nobody to be better than
    assert METRICS["precision"](margins, nobody, somebody) == 0
    assert average_precision([1.0, 1.0], [0, 1]) == 0.5  # a tie is taken together
    assert "r2" not in measure_errors([1.0, 2.0], [3.0, 3.0])


def test_an_experiment_file_names_a_loss(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        'methods = ["fedavg"]\ndata = ["gaussians"]\nseeds = 1\nloss = "binary(weight=2.0)"\nmetrics = ["f1"]\n'
    )
    experiment = read_experiment(file)
    settings = experiment.jobs[0].settings(experiment.data["gaussians"])
    assert settings.facts["loss"] == "binary(weight=2.0)"
    assert settings.facts["metrics"] == ["f1"]
    file.write_text('methods = ["fedavg"]\ndata = ["gaussians"]\nloss = "binari"\n')
    with pytest.raises(EquipoiseError, match=r"study.toml:3: Unknown loss `binari`. Did you mean `binary`\?"):
        read_experiment(file)


def test_a_protocol_names_a_loss():
    data = clients("classes")
    data = replace(data, protocol=replace(data.protocol, loss="binary"))
    result = run("fedavg", data, rounds=1)
    assert result.settings.facts["loss"] == "binary"
    assert result.task.layout.shapes[-1] == (1,)  # one output
    assert run("fedavg", data, rounds=1, loss="cross_entropy").task.layout.shapes[-1] == (2,)
