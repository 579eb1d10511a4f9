"""Whole runs: participation, references, buffers, evaluation, records."""

import json

import pyarrow.parquet as pq
import pytest
import torch

from equipoise import Client, EquipoiseError, Federation, Outputs, Training, build_model, parse
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import run
from equipoise.metrics import figures, std
from equipoise.rounds.client import client_round
from equipoise.rounds.evaluation import evaluate
from equipoise.rounds.server import begin_server, make_broadcast, server_round
from equipoise.runs.reading import RECORDS
from equipoise.runs.writing import describe_run, save
from equipoise.task import Task
from kit import NormNet, blobs, pictures


def test_participation_is_drawn_from_the_seed_and_the_same_for_every_method():
    federation = blobs(sizes=(5, 6, 7, 8, 9, 10))
    a, b = (run(m, federation, participation=0.5, rounds=6) for m in ("fedavg", "fedheal"))
    cohorts = [r.clients for r in a.rounds]
    assert cohorts == [r.clients for r in b.rounds]
    assert all(len(c) == 3 for c in cohorts)
    assert len(set(cohorts)) > 1
    assert cohorts != [r.clients for r in run("fedavg", federation, participation=0.5, rounds=6, seed=1).rounds]
    assert len(run("fedavg", federation, participation=0.01, rounds=1).rounds[0].clients) == 1


def test_local_only_shares_nothing_and_scores_each_client_on_its_own():
    alone = run("local_only", blobs(), rounds=3)
    assert alone.task.layout.size == 0
    assert alone.scored == "personal"
    data = alone.federation
    for k, client in enumerate(data.clients):
        own = alone.states[k]["private parameters"]
        assert alone.values()[client.name] == pytest.approx(_accuracy(alone, own, client))
    # a client alone is a federation of one
    first = Federation("solo", data.x, data.y, data.clients[:1], data.classes, data.protocol)
    solo = run("fedavg", first, rounds=3)
    joined = solo.task.layout.join(alone.states[0]["private parameters"])
    torch.testing.assert_close(solo.server.theta, joined, rtol=1e-4, atol=1e-5)


def _accuracy(result, params, client):
    return float(result.task.scores(params, {}, client.test)["accuracy"].mean())


def test_centralised_is_fedavg_on_the_pool():
    federation = blobs()
    central = run("centralised", federation, rounds=2)
    pooled = run("fedavg", federation.pooled(), rounds=2)
    assert torch.equal(central.server.theta, pooled.server.theta)
    assert set(central.values()) == {c.name for c in federation.clients}  # scored at every client


@pytest.mark.parametrize("text", ["fedavg", "fedavg(weights='uniform')", "eagle(lstar_epochs=2)"])
def test_summing_updates_as_they_come_changes_nothing(text):
    federation = blobs()
    result = run(text, federation, model=NormNet, rounds=1, runner="inline")
    method = parse(text)
    task = Task.build(method, federation, model=NormNet)
    server = begin_server(method, task)
    _, states = client_round(method, task, range(4), make_broadcast(server, 1), {}, 0, "start")
    replies, _ = client_round(method, task, range(4), make_broadcast(server, 1), states, 0)
    after, whole = server_round(method, server, replies, task.setting(1, 0))
    torch.testing.assert_close(result.server.theta, after.theta)
    torch.testing.assert_close(result.server.buffers["body.1.running_var"], after.buffers["body.1.running_var"])
    assert result.rounds[0].weights == pytest.approx(whole.weights.tolist())


def test_fedavg_of_one_client_is_that_client():
    one = blobs(sizes=(20,))
    result = run("fedavg", one, rounds=1)
    from equipoise.rounds.client import client_round
    from equipoise.rounds.server import begin_server, make_broadcast

    method = parse("fedavg")
    replies, _ = client_round(method, result.task, [0], make_broadcast(begin_server(method, result.task), 1), {}, 0)
    torch.testing.assert_close(result.server.theta, begin_server(method, result.task).theta + replies.updates[0])


@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_buffer_policies(policy):
    result = run("fedavg", blobs(), model=NormNet, buffers=policy, rounds=3)
    running = result.server.buffers["body.1.running_mean"]
    initial = torch.zeros(5)
    if policy == "average":
        assert not torch.equal(running, initial)
        assert int(result.server.buffers["body.1.num_batches_tracked"]) > 0
        assert result.scored == "global"
    if policy == "local":
        assert torch.equal(running, initial)  # the server never sees them
        kept = [state["own buffers"]["body.1.running_mean"] for state in result.states.values()]
        assert not torch.equal(kept[0], kept[1])
        assert result.scored == "personal"
    if policy == "drop":
        assert torch.equal(running, initial)
        assert all("own buffers" not in state for state in result.states.values())
    assert figures(list(result.values().values())).avg > 0.4


def test_a_dropped_buffer_is_replaced_by_the_statistics_of_the_evaluated_batch():
    result = run("fedavg", blobs(), model=NormNet, buffers="drop", rounds=1)
    task, client = result.task, result.federation.clients[0]
    params = task.layout.split(result.server.theta)
    network = task.modules["train"]
    from torch.func import functional_call

    x = result.federation.x[client.test]
    buffers = {n: b.clone() for n, b in task.initial_buffers.items()}
    logits = functional_call(network, {**params, **buffers}, (x,)).logits
    expected = (logits.argmax(1) == result.federation.y[client.test]).float().mean()
    assert result.values()["c0"] == pytest.approx(float(expected))


def test_policies_may_differ_by_tensor():
    result = run("fedavg", blobs(), model=NormNet, buffers={"*running*": "local"}, rounds=1)
    assert result.task.policies["body.1.running_mean"] == "local"
    assert result.task.policies["body.1.num_batches_tracked"] == "average"
    with pytest.raises(EquipoiseError, match="Did you mean `average`"):
        run("fedavg", blobs(), model=NormNet, buffers="averages", rounds=1)


def test_reports_are_what_their_definitions_say():
    method = parse("fedfe + f2dc_modules(dfd=False, dfc=False)")
    federation = blobs()
    task = Task.build(method, federation)
    server = begin_server(method, task)
    replies, _ = client_round(method, task, [0, 2, 3], make_broadcast(server, 1), {}, 0)
    for i, k in enumerate((0, 2, 3)):
        exact = task.scores(task.layout.split(server.theta), {}, federation.clients[k].train)["loss"].mean()
        torch.testing.assert_close(replies.reports["loss"][i], exact)  # of the received model, before training
    method = parse("daa(counts='class')")
    task = Task.build(method, federation)
    replies, _ = client_round(method, task, [0, 2, 3], make_broadcast(begin_server(method, task), 1), {}, 0)
    assert torch.equal(replies.reports["class_counts"].long(), federation.class_counts()[[0, 2, 3]])
    assert replies.reports["samples"].tolist() == [23, 9, 31]


def test_buffers_are_averaged_by_samples_when_weights_are_no_simplex():
    method = parse("fedfe(lr=0.1)")
    task = Task.build(method, blobs(), model=NormNet)
    server = begin_server(method, task)
    replies, _ = client_round(method, task, [0, 1, 2], make_broadcast(server, 1), {}, 0)
    after, result = server_round(method, server, replies, task.setting(1, 0))
    shares = torch.tensor([23.0, 14.0, 9.0]) / 46
    expected = (shares @ replies.buffers["body.1.running_var"]).view(5)
    torch.testing.assert_close(after.buffers["body.1.running_var"], expected)
    assert not torch.allclose(result.weights.sum(), torch.tensor(1.0))


def test_dropped_buffers_work_with_every_report_and_with_one_sample():
    base = blobs()
    one = Client("one", base.clients[1].train[:1], base.clients[1].validation[:1], base.clients[1].test[:1])
    federation = Federation("odd", base.x, base.y, (base.clients[0], one, base.clients[2]), base.classes, base.protocol)
    for text in ("fedfe", "eagle(lstar_epochs=2)", "daa(counts='class')", "moon", "fedsa", "fedproto"):
        a, b = (
            run(text, federation, model=NormNet, buffers="drop", rounds=2, runner=r) for r in ("inline", "vectorised")
        )
        torch.testing.assert_close(a.server.theta, b.server.theta, rtol=1e-3, atol=1e-4)


def test_local_buffers_of_a_wrapped_model_are_the_clients_own():
    result = run("f2dc", pictures(), buffers="local", rounds=2)
    assert result.scored == "personal"
    client, task = result.federation.clients[1], result.task
    own = result.states[1]["own buffers"]
    exact = task.scores(task.layout.split(result.server.theta), own, client.test)["accuracy"].mean()
    assert result.values()[client.name] == pytest.approx(float(exact))


def test_a_private_model_that_diverges_is_noticed():
    with pytest.raises(EquipoiseError, match="the run diverged"):
        run("local_only", blobs(), training=Training(lr=1e30, epochs=5, batch=4), rounds=5)


def test_figures_are_over_clients_or_domains():
    result = run("fedavg", blobs(), rounds=1)
    assert result.figures("domain").avg == pytest.approx(sum(result.by_domain().values()) / 2)
    with pytest.raises(EquipoiseError, match="'client' or 'domain'"):
        result.figures("domains")


def test_the_method_overrules_the_run_and_says_so():
    with pytest.warns(match=r"f2dc.*trains with lr=0\.1, momentum=0\.0, whatever the run says"):
        run("f2dc(variant='released')", pictures(), training=Training(lr=0.001, momentum=0.9, batch=5), rounds=1)


def test_counters_take_the_largest_value():
    result = run("fedavg", blobs(), model=NormNet, rounds=1, training=Training(epochs=1, batch=8, lr=0.1))
    assert int(result.server.buffers["body.1.num_batches_tracked"]) == 4  # client 3: batches of 8, 8, 8 and 7


def test_clients_that_share_a_test_set_share_the_work(monkeypatch):
    from equipoise.task import Task

    base = blobs()
    shared = base.clients[0].test
    clients = tuple(Client(c.name, c.train, c.validation, shared, "d") for c in base.clients)
    federation = Federation("shared", base.x, base.y, clients, base.classes, base.protocol)
    result = run("fedavg", federation, rounds=1)
    sizes = []
    scores = Task.scores
    monkeypatch.setattr(
        Task, "scores", lambda self, p, b, i, own=False: sizes.append(len(i)) or scores(self, p, b, i, own)
    )
    found = evaluate(result.method, result.task, result.server, result.states, federation)
    assert sizes == [len(shared)]
    assert len({s.value for s in found if s.metric == "accuracy"}) == 1
    assert len([s for s in found if s.metric == "accuracy"]) == 4


def test_evaluation_happens_when_asked_and_at_the_end():
    result = run("fedavg", blobs(), rounds=5, eval_every=2)
    assert [bool(r.scores) for r in result.rounds] == [False, True, False, True, True]


def test_a_model_of_ones_own():
    class Pair(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(
        EquipoiseError, match=r"`Pair` must return logits as a tensor, or equipoise\.Outputs.*Found tuple"
    ):
        run("fedavg", blobs(), model=Pair(6, 3), rounds=1)

    class Wrong(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 7)

        def forward(self, x):
            return Outputs(self.layer(x), x)

    with pytest.raises(EquipoiseError, match=r"outputs \[batch, 3\].*Found \[2, 7\]"):
        run("fedavg", blobs(), model=Wrong(), rounds=1)


def test_a_run_that_diverges_says_so():
    with pytest.raises(EquipoiseError, match=r"not finite after round .* smaller learning rate"):
        run("fedavg", blobs(), training=Training(lr=1e30, epochs=5, batch=4), rounds=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds"),
        ({"participation": 0}, "participation"),
        ({"participation": 1.5}, "participation"),
        ({"eval_every": 0}, "eval_every"),
        ({"device": "tpu"}, "cpu, cuda or mps"),
        ({"runner": "fast"}, "auto, inline, vectorised, processes"),
        ({"model": "resnet1"}, "Unknown model `resnet1`"),
        ({"model": "mlp(classes=4)"}, "follows from the data"),
        ({"model": "small_cnn"}, "for images"),
    ],
)
def test_wrong_options_are_explained(options, message):
    with pytest.raises(EquipoiseError, match=message):
        run("fedavg", blobs(), **options)


def test_nobody_there_in_the_first_round():
    base = blobs()
    late = tuple(Client(c.name, c.train, c.validation, c.test, joins=3) for c in base.clients)
    with pytest.raises(EquipoiseError, match="Let one join in round 0"):
        run("fedavg", Federation("late", base.x, base.y, late, base.classes, base.protocol), rounds=1)


def test_the_fair_weights_are_recorded_with_their_reasons():
    result = run("fedequilibria(fim_scale='l2')", blobs(), rounds=2)
    record = result.rounds[-1]
    assert set(record.figures) == {"w_moo", "w_dist", "n_eff"}
    assert len(record.figures["w_moo"]) == len(record.weights) == 4
    assert 1 <= record.figures["n_eff"][0] <= 4 + 1e-9


def test_collapsed_weights_warn_once():
    with pytest.warns(match="min-norm weights rest on") as seen:
        run("fedequilibria", blobs(), rounds=6)
    assert len(seen) == 1


def test_figures():
    f = figures([0.9, 0.5, 0.7])
    assert (f.avg, f.min, f.max) == (pytest.approx(0.7), 0.5, 0.9)
    assert f.std == pytest.approx((0.08 / 3) ** 0.5)
    assert f.std1 == pytest.approx(0.2)
    assert std([89.84, 93.25, 79.54, 41.35], ddof=1) == pytest.approx(23.82, abs=0.005)
    assert std([94.44, 93.17, 79.07, 39.60], ddof=0) == pytest.approx(22.18, abs=0.005)
    assert std([96.04, 89.84, 88.04, 51.05], ddof=1) == pytest.approx(20.42, abs=0.005)
    assert str(std([1.0], ddof=1)) == "nan"
    assert str(figures([]).avg) == "nan"


def test_a_run_leaves_a_manifest_and_rows_per_client(tmp_path):
    result = run("fedheal(tau=0.4)", blobs(), rounds=2)
    place = save(result, tmp_path)
    kept = json.loads((place / "manifest.json").read_text())
    assert kept["method"] == "fedheal(tau=0.4)"
    assert kept["parameters"]["fedheal"]["beta"] == 0.4
    assert kept["data"]["fingerprint"] == result.federation.fingerprint
    assert kept["evaluated"] == {"model": "global", "split": "test"}
    assert (kept["rounds"], kept["seed"], kept["buffers"], kept["status"]) == (2, 0, "average", "finished")
    assert kept["training"]["momentum"] == 0.9
    assert kept["versions"]["torch"] == torch.__version__
    weights = pq.read_table(place / "weights.parquet").to_pylist()
    assert {row["figure"] for row in weights} == {"kept entries", "distance", "d", "Var(d)"}
    assert len(weights) == 2 * 4 * 4  # rounds, clients, figures
    last = [row["weight"] for row in weights if row["round"] == 2 and row["figure"] == "distance"]
    assert sum(last) == pytest.approx(1)
    table = pq.read_table(place / "records.parquet")
    assert table.schema.equals(RECORDS)
    assert table.num_rows == 2 * 4 * 2 * 3  # rounds, clients, metrics, splits
    last = [r for r in table.to_pylist() if r["round"] == 2 and r["split"] == "test"]
    final = {r["client"]: r["value"] for r in last if r["metric"] == "accuracy"}
    assert final == result.values()


def test_folder_names_tell_settings_apart(tmp_path):
    names = {
        run("fedavg", blobs(), rounds=1, seed=seed, training=Training(lr=lr)).settings.name
        for seed in (0, 1)
        for lr in (0.1, 0.2)
    }
    assert len(names) == 4
    assert Settings.of("fedavg", blobs(), rounds=1).name == run("fedavg", blobs(), rounds=1).settings.name
    assert describe_run(run("fedavg", blobs(), rounds=1))["schema"] == 1
    hostile = blobs()
    hostile = Federation("../../etc", hostile.x, hostile.y, hostile.clients, hostile.classes, hostile.protocol)
    place = save(run("fedavg", hostile, rounds=1), tmp_path)
    assert place.parent == tmp_path
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(EquipoiseError, match=r"Cannot write the run to .*Choose another folder"):
        save(run("fedavg", blobs(), rounds=1), blocked)


def test_private_and_shared_parameters_of_images():
    result = run("local_only", pictures(), rounds=1)
    assert result.task.private == frozenset(result.task.initial_params)


def test_a_model_with_noise_in_evaluation_is_reported_on_alike_by_every_runner():
    text = "fedfv + f2dc_modules(stochastic_eval=True, hidden=4)"
    a, b = (run(text, pictures(), rounds=2, runner=runner) for runner in ("inline", "vectorised"))
    torch.testing.assert_close(a.server.theta, b.server.theta, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fdse", "moon(projection=4)"])
def test_spare_outputs_stay_behind_every_wrap(method):
    result = run(method, pictures(), model="cnn(spare=2, hidden=8)", rounds=1)
    assert min(result.values().values()) >= 0
    if "projection" in method:  # it brings a head of its own
        return
    with pytest.raises(EquipoiseError, match=r"must return outputs \[batch, 3\]"):
        run(method, pictures(), model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 5)), rounds=1)


@pytest.mark.parametrize("bias", [True, False])
def test_a_perceptron_with_frozen_weights_or_without_bias_trains_the_rest(bias):
    network = build_model("mlp(hidden=(7,))", (6,), 3, seed=0)
    if bias:
        network.body[0].weight.requires_grad_(False)
    else:
        network.body[0] = torch.nn.Linear(6, 7, bias=False)
    result = run("fedavg", blobs(), model=network, rounds=2, runner="vectorised")
    assert ("body.0.weight" in result.task.layout.names) is not bias
    assert figures(list(result.values().values())).avg > 0.4


def test_what_clients_keep_does_not_hold_the_cohorts_memory():
    result = run("moon", blobs(), rounds=1, runner="vectorised")
    for state in result.states.values():
        for value in state["terms.model_contrast"].values():
            assert value.untyped_storage().nbytes() == value.numel() * value.element_size()
