"""Which model is scored, and what stands beside it."""

import json

import pytest
import torch

from equipoise import Federation, Training, parse
from equipoise.engine.simulation import run
from equipoise.runs.writing import describe_run, save
from kit import NormNet, blobs, pictures


def accuracy(result, params, buffers, client, personal=False):
    return float(result.task.scores(params, buffers, client.test, personal)["accuracy"].mean())


def averaged(result, key):
    """The mean, by samples, of what the clients keep under this key."""
    sizes = torch.tensor([float(len(c.train)) for c in result.federation.clients])
    states = [result.states[k][key] for k in range(len(result.federation))]
    return {
        name: torch.einsum("k,k...->...", sizes / sizes.sum(), torch.stack([s[name].float() for s in states]))
        for name in states[0]
        if states[0][name].is_floating_point()
    }


def test_dittos_three_models():
    result = run("ditto(lam=0.5)", blobs(), rounds=3)
    assert result.scored == "personal"
    names = {s.metric for s in result.scores}
    others = ("", " of the averaged-personal model", " of the global model")
    assert names == {f"{what}{of}" for what in ("accuracy", "loss") for of in others}
    fedavg = run("fedavg", blobs(), rounds=3)
    assert result.values("accuracy of the global model") == pytest.approx(fedavg.values())
    shared = result.task.layout.split(result.server.theta)
    mean = averaged(result, "private parameters")
    for k, client in enumerate(result.federation.clients):
        own = {**shared, **result.states[k]["private parameters"]}
        assert result.values()[client.name] == pytest.approx(accuracy(result, own, {}, client, personal=True))
        one = accuracy(result, {**shared, **mean}, {}, client, personal=True)
        assert result.values("accuracy of the averaged-personal model")[client.name] == pytest.approx(one)


@pytest.mark.parametrize("model", ["personal", "averaged-personal", "global"])
def test_ditto_scores_the_model_that_was_asked_for(model):
    reference, result = run("ditto", blobs(), rounds=2), run(f"ditto(evaluate='{model}')", blobs(), rounds=2)
    assert result.scored == model
    assert torch.equal(reference.server.theta, result.server.theta)  # it changes what is scored, not what is trained
    found = "accuracy" if model == "personal" else f"accuracy of the {model} model"
    assert result.values() == reference.values(found)


def test_ditto_without_its_pull_trains_alone():
    """With lam = 0 the personal model is that of `local_only`, batch for batch."""
    personal, alone = run("ditto(lam=0)", blobs(), rounds=3), run("local_only", blobs(), rounds=3)
    for k in range(4):
        mine = personal.states[k]["private parameters"]
        for name, value in alone.states[k]["private parameters"].items():
            torch.testing.assert_close(mine[f"personal.{name}"], value, rtol=1e-4, atol=1e-5)
    assert personal.values() == pytest.approx(alone.values(), abs=0.051)


def test_a_strong_pull_keeps_the_personal_model_at_the_received_one():
    training = Training(epochs=5, batch=8, lr=0.01)
    near, far = (run(f"ditto(lam={lam})", blobs(), rounds=1, training=training) for lam in (30.0, 0.0))

    def distance(result):
        own, start = result.states[0]["private parameters"], result.task.initial_params
        return sum(float((value - start[name]).norm()) for name, value in own.items())

    assert distance(near) < 0.5 * distance(far)


@pytest.mark.parametrize("evaluate", ["personal", "averaged-personal"])
def test_fedbn_and_fdse_record_both_models(evaluate):
    other = {"personal": "averaged-personal", "averaged-personal": "personal"}[evaluate]
    for text, federation, model in (("fedbn", blobs(), NormNet), ("fdse", pictures(), None)):
        result = run(f"{text}(evaluate='{evaluate}')", federation, model=model, rounds=2)
        swapped = run(f"{text}(evaluate='{other}')", federation, model=model, rounds=2)
        assert (result.scored, swapped.scored) == (evaluate, other)
        assert result.values() == swapped.values(f"accuracy of the {evaluate} model")
        assert result.values(f"accuracy of the {other} model") == swapped.values()


def test_the_averaged_model_of_fedbn_has_the_mean_normalisation():
    result = run("fedbn(evaluate='averaged-personal')", blobs(), model=NormNet, rounds=2)
    shared = result.task.layout.split(result.server.theta)
    params = {**shared, **averaged(result, "private parameters")}
    buffers = {**result.server.buffers, **averaged(result, "own buffers")}
    for client in result.federation.clients:
        assert result.values()[client.name] == pytest.approx(accuracy(result, params, buffers, client))


def test_another_iterate_is_scored_and_the_last_recorded():
    for text, words in (("afl", "mean of the rounds' models"), ("feddyn", "mean of the local models")):
        result = run(text, blobs(), rounds=3)
        assert result.scored == f"global, {words}"
        task = result.task
        for client in result.federation.clients:
            mean = accuracy(result, task.layout.split(result.server.evaluated), {}, client)
            last = accuracy(result, task.layout.split(result.server.theta), {}, client)
            assert result.values()[client.name] == pytest.approx(mean)
            assert result.values("accuracy of the last model")[client.name] == pytest.approx(last)
    assert run("afl(evaluate='last')", blobs(), rounds=1).scored == "global"
    assert run("fedbn + afl", blobs(), model=NormNet, rounds=1).scored == "personal, mean of the rounds' models"


def test_the_manifest_says_which_model(tmp_path):
    result = run("ditto", blobs(), rounds=1)
    assert describe_run(result)["evaluated"] == {"model": "personal", "split": "test"}
    kept = json.loads((save(result, tmp_path) / "manifest.json").read_text())
    assert kept["evaluated"]["model"] == "personal"


def test_a_client_that_never_took_part_is_scored_too():
    base = blobs()
    first, *rest = base.clients
    late = type(first)(first.name, first.train, first.validation, first.test, first.domain, joins=9)
    federation = Federation(base.name, base.x, base.y, (late, *rest), base.classes, base.protocol)
    for text in ("ditto", "fedbn", "fdse", "local_only"):
        result = run(text, federation, model=NormNet, rounds=2)
        assert set(result.values()) == {c.name for c in base.clients}
        assert 0 not in result.states


@pytest.mark.parametrize(
    ("text", "swapped"),
    [("ditto + f2dc_modules", "f2dc_modules + ditto"), ("fdse + f2dc_modules", "f2dc_modules + fdse")],
)
def test_wraps_go_on_in_one_order_whatever_the_order_of_the_sum(text, swapped):
    a, b = (run(one, pictures(), rounds=1) for one in (text, swapped))
    assert torch.equal(a.server.theta, b.server.theta)
    assert {wrap.order for wrap in parse(text).wrap} == {wrap.order for wrap in parse(swapped).wrap}
