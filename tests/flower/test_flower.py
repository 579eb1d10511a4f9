"""Flower gives what a simulation gives: every method, through real messages in one process."""

import csv
import json
import logging
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from equipoise import EquipoiseError, EquipoiseWarning, Federation, run
from equipoise.flower import Plan, client_app, federate, server_app, wire
from equipoise.method import METHODS
from equipoise.runs.reading import read_all
from equipoise.runs.writing import describe_run, save
from equipoise.study.report.figures import group_studies
from equipoise.study.report.verdict import choose_by_validation, judge_all
from kit import NormNet, blobs, pictures
from kit.flower import LoopGrid
from kit.rows import QUICK, needs_groups, needs_images

FEDERATED = [name for name in METHODS if name != "centralised"]
MORE = [
    "eagle(apply='server', lstar_epochs=4)",
    "ditto + fedlsa(width=8, server_epochs=5)",
    "fdse + f2dc_modules",
    "fedheal(variant='released')",
    "afl(lambda_first=True, evaluate='last')",
    "eagle(lstar_epochs=4) + fedheal",
]


def simulated(text, data, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EquipoiseWarning)
        return run(text, data, runner="inline", **options)


def grid_of(plan, data, fault=None):
    nodes = {100 - 7 * k: {"partition-id": k} for k in range(len(data))}
    return LoopGrid(client_app(plan, data=data), nodes, fault)


def on_flower(text, data, fault=None, **options):
    plan = Plan(method=text, sites=len(data), **options)
    return federate(grid_of(plan, data, fault), plan)


def scores_of(result, split):
    return {
        (record.round, s.client, s.domain, s.metric, s.samples): s.value
        for record in result.rounds
        for s in record.scores
        if s.split == split
    }


def same(flower, simulation, tolerance=1e-5):
    torch.testing.assert_close(flower.server.theta, simulation.server.theta, rtol=tolerance, atol=tolerance)
    for name, value in simulation.server.buffers.items():
        torch.testing.assert_close(flower.server.buffers[name], value, rtol=tolerance, atol=tolerance)
    for metric in ("accuracy", "loss"):
        for split in ("test", "validation"):
            assert flower.values(metric, split) == pytest.approx(simulation.values(metric, split), abs=1e-4)
    for a, b in zip(flower.rounds, simulation.rounds, strict=True):
        assert (a.round, a.clients) == (b.round, b.clients)
        assert a.weights == pytest.approx(b.weights, abs=1e-5)
        assert a.rejected == ()


@pytest.mark.parametrize("text", [*(QUICK.get(name, name) for name in FEDERATED), *MORE])
def test_every_method_gives_what_a_simulation_gives(text):
    data = pictures() if needs_images(text) else blobs(grouped=needs_groups(text))
    for participation in (1.0, 0.5):
        options = {"participation": participation, "rounds": 3}
        same(on_flower(text, data, **options), simulated(text, data, **options))


@pytest.mark.parametrize("text", ["fedavg", "fedbn", "fdse", "scaffold"])
def test_buffers_travel(text):
    options = {"model": NormNet, "rounds": 2}
    same(on_flower(text, blobs(), **options), simulated(text, blobs(), **options))


@pytest.mark.parametrize("buffers", ["local", "drop"])
def test_buffer_policies(buffers):
    options = {"model": NormNet, "rounds": 2, "buffers": buffers}
    same(on_flower("fedavg", blobs(), **options), simulated("fedavg", blobs(), **options))


@pytest.mark.parametrize("text", ["fedavg", "qffl", "fedheal", "eagle(lstar_epochs=4)"])
def test_bit_for_bit_with_a_linear_model(text):
    options = {"model": "linear", "rounds": 4, "seed": 3}
    flower, simulation = on_flower(text, blobs(), **options), simulated(text, blobs(), **options)
    assert torch.equal(flower.server.theta, simulation.server.theta)
    assert [r.weights for r in flower.rounds] == [r.weights for r in simulation.rounds]


def test_the_run_folder_is_that_of_a_simulation(tmp_path):
    flower, simulation = (f("qffl", blobs(), rounds=2) for f in (on_flower, simulated))
    a, b = save(flower, tmp_path / "a"), save(simulation, tmp_path / "b")
    assert sorted(p.name for p in a.iterdir()) == sorted(p.name for p in b.iterdir())
    one, other = (json.loads((place / "manifest.json").read_text()) for place in (a, b))
    assert set(other) <= set(one)
    for key in ("method", "parameters", "training", "seed", "rounds", "evaluated", "model"):
        assert one[key] == other[key]
    assert [site.pop("classes") for site in one["data"]["clients"]] == [None] * 4  # labels stay at the sites
    assert one["data"]["clients"] == [{k: v for k, v in c.items() if k != "classes"} for c in other["data"]["clients"]]
    assert one["runner"] == "flower"


def test_the_server_never_sees_a_sample():
    result = on_flower("fedavg", blobs(), rounds=1)
    assert not result.federation.x.any()
    assert result.federation.x.untyped_storage().nbytes() == 6 * 4  # one sample of zeros, not one a sample


def test_only_a_clients_own_row_goes_down():
    seen = []

    def watch(asked, answer):
        if asked.metadata.message_type == "train":
            seen.append(asked.content.array_records["own"])
        return answer

    on_flower("eagle(lstar_epochs=4)", blobs(), watch, rounds=1)
    assert len(seen) == 4
    assert all(value.numpy().shape == () for record in seen for value in record.values())
    assert all(record for record in seen)


# --------------------------------------------------------------------------- sites that fail
def breaking(node_round, how):
    """A fault in the training answers of one partition in one round."""

    def fault(asked, answer):
        number, r = node_round
        said = asked.content.config_records.get(wire.FACTS)
        if asked.metadata.message_type != "train" or said["number"] != number or said["round"] != r:
            return answer
        return how(asked, answer)

    return fault


def with_update(change):
    def how(asked, answer):
        answer.content["update"] = ArrayRecord(change(dict(answer.content.array_records["update"])))
        return answer

    return how


def renamed(asked, answer):
    answer.content.config_records[wire.FACTS]["name"] = "c0"
    return answer


def stale(asked, answer):
    answer.content.config_records[wire.FACTS]["round"] = 0
    return answer


def without_arrays(asked, answer):
    del answer.content["update"]
    return answer


def with_report(change):
    def how(asked, answer):
        answer.content["reports"] = ArrayRecord(change(dict(answer.content.array_records["reports"])))
        return answer

    return how


FAULTS = {
    "report `samples` is not the number that the client first gave": with_report(
        lambda a: {**a, "samples": Array(np.array(1e6))}
    ),
    "report `samples` is not a whole number above zero": with_report(lambda a: {**a, "samples": Array(np.array(-5.0))}),
    "reports without control": with_report(lambda a: {name: value for name, value in a.items() if name != "control"}),
    "unknown reports: more": with_report(lambda a: {**a, "more": Array(np.array(1.0))}),
    "report `control` has shape [1], not": with_report(lambda a: {**a, "control": Array(np.ones(1, np.float32))}),
    "times as long as the median one": with_update(lambda a: {n: Array(v.numpy() * 1e6) for n, v in a.items()}),
    "it did not answer in time": lambda asked, answer: None,
    "the disk of c1 is full": lambda asked, answer: Message(Error(0, "the disk of\nc1 is full"), reply_to=asked),
    "tensors without": with_update(lambda arrays: dict(list(arrays.items())[1:])),
    "is not finite": with_update(lambda a: {n: Array(v.numpy() * float("nan")) for n, v in a.items()}),
    "has shape": with_update(lambda a: {n: Array(v.numpy()[..., :1]) for n, v in a.items()}),
    "it answered as 'c0'": renamed,
    "it answered round 1 in round 2": stale,
    "has no arrays `update`": without_arrays,
    "not numbers": with_update(lambda a: {n: Array(np.full(v.numpy().shape, "x")) for n, v in a.items()}),
}


@pytest.mark.parametrize("why", FAULTS)
def test_a_bad_answer_is_left_out_and_leaves_no_trace(why):
    """The round is what it would have been without that site; its own state, too, goes on from before that round."""
    result = on_flower("scaffold", blobs(), breaking((1, 1), FAULTS[why]), rounds=3)
    (rejection,) = result.rounds[1].rejected
    assert rejection.client == "c1"
    assert why in rejection.why
    assert [record.clients for record in result.rounds] == [(0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3)]
    silent = on_flower("scaffold", blobs(), breaking((1, 1), lambda *_: None), rounds=3)
    assert torch.equal(result.server.theta, silent.server.theta)


def test_an_odd_evaluation_ends_no_run():
    for split in ("test", "validation"):

        def without(asked, answer, split=split):
            if asked.metadata.message_type == "evaluate" and answer.content.config_records[wire.FACTS]["name"] == "c1":
                del answer.content[split]
            return answer

        result = on_flower("fedavg", blobs(), without, rounds=2)
        assert {score.client for score in result.rounds[-1].scores} == {"c0", "c2", "c3"}
        assert f"its {split} scores are missing" in result.rounds[-1].rejected[0].why


def test_an_odd_greeting_is_told_in_words():
    def changed(change):
        def fault(asked, answer):
            if asked.metadata.message_type == "query.hello":
                change(answer.content.config_records[wire.FACTS])
            return answer

        return fault

    def rewrite(**new):
        def change(facts):
            about = {**json.loads(facts["about"]), **new}
            facts["about"] = json.dumps({name: value for name, value in about.items() if value != "gone"})

        return change

    for change in (
        lambda facts: facts.pop("about"),
        rewrite(validation="gone"),
        rewrite(schema=[3]),
        rewrite(train="many"),
        rewrite(shape=["x"]),
        lambda facts: facts.update(about="[]"),
    ):
        with pytest.raises(EquipoiseError, match="it does not say which site it is") as caught:
            on_flower("fedavg", blobs(), changed(change), rounds=2)
        assert str(caught.value).count("cannot take part") == 4  # all of them, and not only the first


def test_what_each_site_gained_is_one_section_of_the_report(tmp_path):
    for text in ("qffl", "fedavg", "local_only"):
        save(on_flower(text, blobs(), rounds=2), tmp_path)
    (study,) = group_studies(read_all([tmp_path])[0])
    assert list(study.runs) == ["fedavg", "qffl", "local_only"]
    assert [verdict.method for verdict in judge_all(study)] == ["qffl"]
    assert choose_by_validation(study) is not None  # sites score their validation data, as a simulation does


def test_an_answer_that_comes_twice_counts_once():
    class Twice(LoopGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return [reply for reply in super().send_and_receive(messages, timeout=timeout) for _ in range(2)]

    data, plan = blobs(), Plan(method="fedheal", sites=4, rounds=2)
    twice = Twice(client_app(plan, data=data), {k: {"partition-id": k} for k in range(4)})
    assert torch.equal(federate(twice, plan).server.theta, on_flower("fedheal", data, rounds=2).server.theta)


def test_a_sites_own_mistake_reaches_the_record_in_words(monkeypatch):
    import equipoise.flower.site as site

    honest = site.client_round

    def failing(method, task, clients, broadcast, *rest):
        if clients == [2] and broadcast.round == 1:
            raise EquipoiseError("Column `age` is gone.")
        return honest(method, task, clients, broadcast, *rest)

    monkeypatch.setattr(site, "client_round", failing)
    result = on_flower("fedavg", blobs(), rounds=2)
    assert [(r.client, r.why) for r in result.rounds[1].rejected] == [("c2", "Column `age` is gone.")]


def test_a_site_that_comes_back_as_another_node_is_known_by_its_name():
    data = blobs()
    plan = Plan(method="fedavg", sites=4, rounds=4)
    grid = grid_of(plan, data)
    seen = []

    def change(record):
        seen.append(record)
        if record.round == 1:
            grid.gone = grid.contexts.pop(93)
        if record.round == 2:
            grid.contexts[555] = Context(1, 555, dict(grid.gone.node_config), RecordDict(), {})

    result = federate(grid, plan, on_round=change)
    assert [record.clients for record in result.rounds] == [(0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert [(r.client, r.why) for r in result.rounds[1].rejected] == [("c1", "it is not connected.")]
    assert set(result.values()) == {"c0", "c1", "c2", "c3"}
    assert seen == list(result.rounds)


def test_nobody_takes_the_place_of_a_site_that_is_there():
    plan = Plan(method="fedavg", sites=4, rounds=2)
    grid = grid_of(plan, blobs())

    def intrude(record):
        grid.contexts[1] = Context(1, 1, {"partition-id": 0}, RecordDict(), {})

    result = federate(grid, plan, on_round=intrude)
    (rejection,) = result.rounds[1].rejected
    assert rejection.client == "node 1"
    assert "two nodes call themselves `c0`" in rejection.why
    assert result.rounds[1].clients == (0, 1, 2, 3)


def failing_in(r):
    """Every site says that it cannot train in this round."""

    def fault(asked, answer):
        said = asked.content.config_records.get(wire.FACTS)
        if asked.metadata.message_type != "train" or said["round"] != r:
            return answer
        return Message(RecordDict({wire.FACTS: ConfigRecord({wire.ERROR: "no power"})}), reply_to=asked)

    return fault


def test_a_round_with_too_few_answers_is_repeated():
    tries = []

    def fault(asked, answer):
        said = asked.content.config_records.get(wire.FACTS)
        if asked.metadata.message_type == "train" and said["round"] == 1 and len(tries) < 4:
            tries.append(said["number"])
            return None
        return answer

    result = on_flower("scaffold", blobs(), fault, rounds=3, min_sites=3)
    assert torch.equal(result.server.theta, on_flower("scaffold", blobs(), rounds=3).server.theta)
    assert "Round 2 was repeated: 0 of 4 clients gave a valid answer, and it needs 3" in result.warnings[0]
    assert len(result.rounds) == 3


def test_a_round_with_too_few_answers_can_be_skipped():
    result = on_flower("fedavg", blobs(), failing_in(1), rounds=3, too_few="skip")
    assert [len(record.clients) for record in result.rounds] == [4, 0, 4]
    assert len(result.rounds[1].rejected) == 4
    one = on_flower("fedavg", blobs(), rounds=1)
    assert result.rounds[1].scores == one.rounds[0].scores  # the model did not move
    assert any("skipped" in text for text in result.warnings)


def test_a_run_that_cannot_go_on_stops_with_what_it_has():
    result = on_flower("fedavg", blobs(), failing_in(2), rounds=5, patience=2)
    assert len(result.rounds) == 2
    assert "stopped after 2 of 5 rounds" in result.warnings[-1]
    with pytest.raises(EquipoiseError, match="stopped after 0 of 5 rounds"):
        on_flower("fedavg", blobs(), failing_in(0), rounds=5)


def test_a_run_does_not_begin_without_its_sites():
    plan = Plan(sites=5, start_timeout=0.01)
    with pytest.raises(EquipoiseError, match=r"4 of 5 sites came within 0\.01 s: c0, c1, c2, c3"):
        federate(grid_of(plan, blobs()), plan)
    plan = Plan(sites=3)
    with pytest.raises(EquipoiseError, match="4 sites came for 3 places"):
        federate(grid_of(plan, blobs()), plan)


# --------------------------------------------------------------------------- the sites' own data
def write_tables(folder):
    data = blobs()
    for client in data.clients:
        with (folder / f"{client.name}.csv").open("w") as file:
            writer = csv.writer(file)
            writer.writerow([*(f"f{i}" for i in range(6)), "label"])
            for position in torch.cat([client.train, client.validation, client.test]).tolist():
                writer.writerow([*data.x[position].tolist(), "abc"[int(data.y[position])]])
    columns = {f"f{i}": "number" for i in range(6)}
    (folder / "schema.json").write_text(json.dumps({"label": "label", "classes": list("abc"), "columns": columns}))
    return [client.name for client in data.clients]


def test_sites_with_tables_of_their_own(tmp_path):
    """Each site reads its own file alone, and all together are what a simulation of the four files is."""
    names = write_tables(tmp_path)
    plan = Plan(method="qffl", sites=4, rounds=2, training={"lr": 0.1})
    nodes = {k + 1: {"site": name, "data": str(tmp_path / f"{name}.csv")} for k, name in enumerate(reversed(names))}
    result = federate(LoopGrid(client_app(plan, schema=tmp_path / "schema.json"), nodes), plan)
    assert [client.name for client in result.federation.clients] == names
    together = tmp_path / "together"
    for name in names:
        (together / name).mkdir(parents=True)
        (together / name / "rows.csv").write_bytes((tmp_path / f"{name}.csv").read_bytes())
    from equipoise.data.own import own

    whole = own(str(together), schema=str(tmp_path / "schema.json"))
    training = replace(whole.protocol.training, lr=0.1)
    simulation = simulated("qffl", whole, rounds=2, training=training)
    same(result, simulation)
    assert result.federation.schema == whole.schema
    for split in ("validation", "test"):
        there = scores_of(simulation, split)
        assert there, split
        assert scores_of(result, split) == pytest.approx(there, abs=1e-6)
    rows = {name: len((tmp_path / f"{name}.csv").read_text().splitlines()) - 1 for name in names}
    for known in (result.federation, whole):  # every row is in one split, here and there
        for client in known.clients:
            held = torch.cat([client.train, client.validation, client.test])
            assert len(held) == rows[client.name]
            assert known.is_elsewhere or len(held.unique()) == len(held)
    facts = [describe_run(one)["data"]["clients"] for one in (result, simulation)]
    sizes = [[{key: c[key] for key in ("name", "train", "validation", "test")} for c in one] for one in facts]
    assert sizes[0] == sizes[1]


def test_sites_that_do_not_fit_are_told(tmp_path):
    names = write_tables(tmp_path)
    plan = Plan(sites=2, rounds=1, start_timeout=0.01)
    nodes = {1: {"site": "x", "data": str(tmp_path / "nothing.csv")}}
    said = []
    with pytest.raises(EquipoiseError) as caught:
        federate(LoopGrid(client_app(plan), nodes), plan, on_note=said.append)
    assert re.fullmatch(
        "The run cannot begin.\n"
        r"- `x` cannot take part: There is no file or folder .*nothing.csv` at site `x`.\n"
        r"- 0 of 2 sites came within 0.01 s: none. Start the others, or set `sites`.",
        str(caught.value),
    )
    assert "`x` cannot take part" in said[0]  # before the others have come
    for config, words in (({}, "This site has no data"), ({"partition-id": 9}, "must lie in 0 .. 3")):
        data = blobs() if config else None
        with pytest.raises(EquipoiseError, match=words):
            federate(LoopGrid(client_app(plan, data=data), {1: config}), plan)
    other = tmp_path / "other.json"
    other.write_text((tmp_path / "schema.json").read_text().replace('"c"]', '"c", "d"]'))
    nodes = {
        k: {"site": names[k], "data": str(tmp_path / f"{names[k]}.csv"), "schema": str(tmp_path / file)}
        for k, file in enumerate(("schema.json", "other.json"))
    }
    with pytest.raises(
        EquipoiseError, match=r"classes are a, b, c at `c0` and a, b, c, d at `c1`\.\n.*the same schema\.json"
    ):
        federate(LoopGrid(client_app(plan), nodes), plan)


def test_all_mismatches_of_all_sites_are_said_at_once(tmp_path):
    """Two mistakes at one site, one at another, and none at the others: one error tells the three, in words."""
    names = write_tables(tmp_path)
    for name, old, new in (("c1", "f2", "F2"), ("c1", ",a", ",z"), ("c3", "f0,f1", "f0,other")):
        file = tmp_path / f"{name}.csv"
        file.write_text(file.read_text().replace(old, new))
    plan = Plan(sites=4, rounds=1)
    nodes = {k + 1: {"site": name, "data": str(tmp_path / f"{name}.csv")} for k, name in enumerate(names)}
    grid = LoopGrid(client_app(plan, schema=tmp_path / "schema.json"), nodes)
    with pytest.raises(EquipoiseError) as caught:
        federate(grid, plan)
    text = str(caught.value)
    assert "`c1` cannot take part: 2 mistakes:" in text
    assert "Label (withheld) is not one of the classes: a, b, c." in text
    assert re.search(r"There is no column `f2` at client `c1` \(.*c1\.csv`\)\. Did you mean `F2`\?", text)
    assert "`c3` cannot take part: There is no column `f1` at client `c3`" in text
    assert "`c0` cannot" not in text
    assert set(grid.kinds) == {"query.hello"}  # before the first round


def test_two_nodes_of_one_name_are_said_once_and_do_not_begin(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.flower.desk.POLL", 0.01)
    names = write_tables(tmp_path)
    nodes = {k: {"site": names[k // 2], "data": str(tmp_path / f"{names[k // 2]}.csv")} for k in range(3)}
    plan, said = Plan(sites=3, rounds=1, start_timeout=0.5), []
    with pytest.raises(EquipoiseError, match="two nodes call themselves `c0`"):
        federate(LoopGrid(client_app(plan, schema=tmp_path / "schema.json"), nodes), plan, on_note=said.append)
    assert len(said) == 1


def test_a_site_that_mends_its_data_while_others_are_awaited_takes_part(tmp_path):
    names = write_tables(tmp_path)
    good = (tmp_path / "c1.csv").read_text()
    (tmp_path / "c1.csv").write_text(good.replace("f2", "g2"))
    plan = Plan(sites=4, rounds=1)
    nodes = {k + 1: {"site": name, "data": str(tmp_path / f"{name}.csv")} for k, name in enumerate(names)}
    grid = LoopGrid(client_app(plan, schema=tmp_path / "schema.json"), {k: nodes[k] for k in (1, 2, 3)})

    def mend(text):
        (tmp_path / "c1.csv").write_text(good)
        grid.replace(2, 22)
        grid.contexts[4] = Context(1, 4, dict(nodes[4]), RecordDict(), {})

    result = federate(grid, plan, on_note=lambda text: mend(text) if "cannot take part" in text else None)
    assert result.rounds[0].clients == (0, 1, 2, 3)


def test_the_log_tells_a_mistake_without_a_stack_trace(tmp_path, caplog):
    """Flower logs every error of an app with its stack trace; a user's mistake is told in words."""
    plan = Plan(sites=9, start_timeout=0.01, out=str(tmp_path))
    grid, empty = grid_of(plan, blobs()), Context(1, 0, {}, RecordDict(), {})
    flower = logging.getLogger("flwr")
    flower.propagate = True
    try:
        for error in (EquipoiseError, ZeroDivisionError):
            try:
                server_app(plan)(grid, empty) if error is EquipoiseError else 1 / 0
            except error as found:
                flower.error("%s raised an exception", "ServerApp", exc_info=found)
    finally:
        flower.propagate = False
    mistake, bug = caplog.text.split("ERROR")[1:]
    assert "4 of 9 sites came within 0.01 s" in mistake
    assert "Traceback" not in mistake
    assert "Traceback" in bug


# --------------------------------------------------------------------------- the plan
def test_a_plan_from_a_configuration():
    plan = Plan.from_config(
        {"method": "eagle + fedheal", "sites": 3, "round-timeout": 5, "batch": "full", "lr": 1, "model": ""}
    )
    assert plan == Plan(method="eagle + fedheal", sites=3, round_timeout=5.0, training={"batch": None, "lr": 1.0})
    for config, words in (
        ({"methd": "x"}, "Unknown setting `methd`. Did you mean `method`"),
        ({"rounds": "many"}, "Setting `rounds` must be"),
        ({"sites": 0}, "Parameter `sites` must be at least 1"),
        ({"sites": 3, "min-sites": 4}, "from 1 to 3"),
        ({"method": "centralised"}, "no data leaves its site"),
        ({"too-few": "wait"}, "must be one of 'repeat', 'skip'"),
        ({"method": "qffl", "protection": "secure-aggregation"}, "does not work under secure aggregation"),
    ):
        with pytest.raises(EquipoiseError, match=words):
            Plan.from_config(config)


def test_a_model_that_is_averaged_over_private_tensors_is_refused():
    with pytest.raises(EquipoiseError, match="never leave their sites"):
        on_flower("ditto(evaluate='averaged-personal')", blobs(), rounds=1)


def test_nothing_is_pickled():
    """An array of objects can be neither sent nor read."""
    with pytest.raises(ValueError, match="allow_pickle"):
        Array(np.array([{}], dtype=object))
    record = wire.pack_arrays(
        {"a": torch.tensor(1.5), "b": torch.zeros(0, 3), "c": torch.tensor([True]), "d": torch.arange(3)}
    )
    back = wire.unpack_arrays(RecordDict({"x": record}), "x")
    assert back["a"].shape == ()
    assert back["b"].shape == (0, 3)
    assert back["c"].dtype == torch.bool
    assert back["d"].tolist() == [0, 1, 2]


# --------------------------------------------------------------------------- other targets, and groups
def numbers():
    draw = torch.Generator().manual_seed(3)
    clients = {}
    for k in range(3):
        x = torch.randn(40 + 5 * k, 3, generator=draw)
        clients[f"c{k}"] = (x, 100 + 20 * x[:, 0] + k)
    return Federation.from_tensors(clients, target="number", test_share=0.3)


@pytest.mark.parametrize("loss", ["", "huber(delta=0.5)"])
def test_numbers_are_predicted_as_in_a_simulation(loss):
    flower = on_flower("qffl", numbers(), rounds=2, loss=loss)
    same(flower, simulated("qffl", numbers(), rounds=2, loss=loss or None))
    assert flower.values("mae").keys() == {"c0", "c1", "c2"}
    assert flower.settings.facts["loss"] == (loss or "squared")


def test_metrics_are_asked_of_sites():
    flower = on_flower("fedavg", blobs(), rounds=1, metrics="f1, pr_auc")
    same(flower, simulated("fedavg", blobs(), rounds=1, metrics=("f1", "pr_auc")))
    assert flower.values("f1").keys() == flower.values().keys()


@pytest.mark.parametrize("text", ["fedfb(alpha=1.0)", "fairfed + fedfb"])
def test_sites_send_counts_of_groups_and_withhold_small_ones(text):
    data = blobs(grouped=True)
    tests = data.clients[0].test
    of = data.groups.of.clone()
    of[tests] = 0
    of[tests[:4]] = 1  # the first site has four test samples of the second group
    data = replace(data, groups=replace(data.groups, of=of))
    flower, simulation = on_flower(text, data, rounds=2), simulated(text, data, rounds=2)
    torch.testing.assert_close(flower.server.theta, simulation.server.theta)
    told, whole = scores_of(flower, "test"), scores_of(simulation, "test")
    withheld = {key for key in whole if key not in told}
    assert {(key[1], key[3].partition("[")[2][0]) for key in withheld} == {("c0", "1")}
    for key, value in told.items():
        assert value == pytest.approx(whole[key], rel=1e-5)


def test_sites_must_have_the_same_groups():
    data = blobs(grouped=True)
    plan = Plan(method="fedavg", sites=4, rounds=1)

    def change(asked, answer):
        facts = wire.read_facts(answer.content) if wire.FACTS in answer.content else {}
        if "about" in facts:
            about = json.loads(str(facts["about"]))
            if about["name"] == "c2":
                about["groups"] = None
            answer.content[wire.FACTS]["about"] = json.dumps(about)
        return answer

    with pytest.raises(EquipoiseError, match=r"`groups` is .*'group', '0', '1'.* at `c0` and None at `c2`"):
        federate(grid_of(plan, data, change), plan)
