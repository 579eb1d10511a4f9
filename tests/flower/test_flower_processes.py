"""A SuperLink and SuperNodes, started as processes on this machine: plain, and with TLS and authenticated nodes."""

import json
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from equipoise import run
from equipoise.data.own import own
from equipoise.engine.guard import DEPLOYMENT_GUARD
from equipoise.flower import Plan
from equipoise.flower.deploy import write_app
from kit.command import invoke
from kit.sites import LABEL, write_site
from loopback import Loopback, Tap, find_free_port, make_node_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SECONDS = 600  # far more than a run takes; a run that hangs fails
NEEDED = [name for name in ("openssl", "ssh-keygen") if shutil.which(name) is None]


def finished(here, app, runs):
    """The one run folder that the run left in `runs`."""
    said = list(here.run(app, SECONDS))
    places = list(runs.glob("*/manifest.json"))
    assert len(places) == 1, "\n".join([*said, here.read_log("superlink")[-3000:]])
    return places[0].parent


def same_as_simulated(place, method, **options):
    manifest = json.loads((place / "manifest.json").read_text())
    assert (manifest["method"], manifest["runner"]) == (method, "flower")
    expected = run(method, "gaussians", runner="inline", **options)
    rows = pq.read_table(place / "records.parquet").to_pylist()
    found = {(row["round"], row["client"], row["split"], row["metric"]): row["value"] for row in rows}
    for record in expected.rounds:
        for score in record.scores:
            there = found[record.round, score.client, score.split, score.metric]
            assert there == pytest.approx(score.value, abs=1e-6)
    weights = pq.read_table(place / "weights.parquet").to_pylist()
    assert [row["weight"] for row in weights if row["round"] == 1] == pytest.approx(list(expected.rounds[0].weights))
    assert torch.isfinite(expected.server.theta).all()


def count_answers(here):
    """How many answers of sites the SuperLink has taken."""
    return here.read_log("superlink").count("[Fleet.PushMessages] Push replies")


def test_a_plain_federation_gives_what_a_simulation_gives(tmp_path):
    """In plain text, whoever listens on the way can say once more what a site said."""
    write_app(
        tmp_path / "app", Plan(method="qffl(q=1)", data="gaussians", sites=3, rounds=1, out=str(tmp_path / "runs"))
    )
    with Loopback(tmp_path / "federation") as here:
        here.start_superlink()
        tap = Tap(here.port)
        for k in range(3):
            here.start_supernode(f"node{k}", f"partition-id={k}", tap=tap if k == 0 else None)
        place = finished(here, tmp_path / "app", tmp_path / "runs")
        tap.close()
        taken = count_answers(here)
        tap.replay()
        assert count_answers(here) > taken
    same_as_simulated(place, "qffl(q=1.0)", rounds=1)


@pytest.mark.skipif(find_spec("ray") is None, reason="there is no Ray: pip install 'equipoise[flower-simulation]'")
def test_the_same_folder_in_flower_s_simulation_engine(tmp_path):
    """What runs on SuperNodes runs, unchanged, where Ray plays the sites."""
    plan = Plan(method="scaffold", data="gaussians", sites=3, rounds=2, out=str(tmp_path / "runs"))
    write_app(tmp_path / "app", plan)
    with Loopback(tmp_path / "federation", simulated=3) as here:
        here.start_superlink()
        place = finished(here, tmp_path / "app", tmp_path / "runs")
    same_as_simulated(place, "scaffold", rounds=2)


@pytest.mark.skipif(bool(NEEDED), reason=f"there is no {' or '.join(NEEDED)} here to make certificates and keys with")
def test_tls_and_authenticated_nodes(tmp_path):
    """Two known nodes train; a third, whose key nobody registered, is not let in. What one of the two said, said once more
    by somebody on the way, is not heard."""
    write_app(tmp_path / "app", Plan(method="fedavg", data="gaussians", sites=2, rounds=1, out=str(tmp_path / "runs")))
    with Loopback(tmp_path / "federation", tls=True, authentication=True) as here:
        here.start_superlink()
        tap = Tap(here.port)
        for k, name in enumerate(("a", "b", "stranger")):
            key = tmp_path / name
            make_node_key(key)
            if name != "stranger":
                assert "registered successfully" in here.register(key)
            here.start_supernode(name, f"partition-id={k}", key, tap if name == "a" else None)
        place = finished(here, tmp_path / "app", tmp_path / "runs")
        assert here.running["a"].poll() is None
        tap.close()
        taken = count_answers(here)
        assert sum(map(len, tap.heard)) > 10_000
        tap.replay()
        assert count_answers(here) == taken
        assert here.running["stranger"].poll() is not None, here.read_log("stranger")
    manifest = json.loads((place / "manifest.json").read_text())
    assert len(manifest["data"]["clients"]) == 2
    rows = pq.read_table(place / "records.parquet").to_pylist()
    assert len({row["client"] for row in rows}) == 2


@pytest.mark.skipif(bool(NEEDED), reason=f"there is no {' or '.join(NEEDED)} here to make certificates and keys with")
def test_neither_plain_text_nor_another_s_name_is_let_in(tmp_path):
    """A node without encryption reaches nothing, and a registered node cannot take the name of another."""
    plan = Plan(method="fedavg", data="gaussians", sites=3, rounds=1, start_timeout=45, out=str(tmp_path / "runs"))
    write_app(tmp_path / "app", plan)
    with Loopback(tmp_path / "federation", tls=True, authentication=True) as here:
        here.start_superlink()
        for name, part in (("a", 0), ("b", 1), ("thief", 0)):
            make_node_key(tmp_path / name)
            assert "registered successfully" in here.register(tmp_path / name)
            here.start_supernode(name, f"partition-id={part}", tmp_path / name)
        here.tls = False  # from here on nodes speak plain text
        here.start_supernode("plain", "partition-id=2")
        told = "\n".join(here.run(tmp_path / "app", SECONDS, superlink="here"))
        logs = {name: here.read_log(name) for name in ("a", "b", "plain")}
    assert "two nodes call themselves `client 0`" in told
    assert [name for name, log in logs.items() if "Sent successfully" in log] == ["a", "b"]
    assert "Connection attempt failed" in logs["plain"]
    assert not list((tmp_path / "runs").glob("*/manifest.json"))


def test_three_hospitals_join_by_the_commands_that_deploy_init_prints(tmp_path, monkeypatch):
    """Schemas at the sites, one schema of all, an app, and a run by the printed commands, with a model of the user's own
    and without the rows that lack a value. Its validation and test scores are those of a simulation of the three files.
    Sites that do not fit are all told in words before that."""
    monkeypatch.chdir(tmp_path)
    names = ("north", "east", "south")
    for name in names:
        write_site(tmp_path, name)
        invoke("schema", f"{name}.csv", "-o", f"{name}.json", "--label", LABEL, "--ignore", "id")
    invoke("deploy", "merge-schemas", *(f"{name}.json" for name in names))
    agreed = json.loads(Path("schema.json").read_text())
    agreed["columns"]["weight"] = "number"  # which no site has
    Path("other.json").write_text(json.dumps(agreed))
    Path("hospital_net.py").write_text(
        "from torch import nn\n\ndef Net(input_shape, classes):\n    return nn.Linear(input_shape[0], classes)\n"
    )
    with Loopback(tmp_path / "federation") as here:
        words = ("--sites", "3", "--rounds", "1", "--model", "hospital_net.py:Net", "--drop-missing", "--address",
                 here.address, "--site-state", "")  # fmt: skip
        wrong, said = ([*invoke("deploy", "init", app, "--schema", schema, *words).output.splitlines()]
                       for app, schema in (("wrong", "other.json"), ("app", "schema.json")))  # fmt: skip
        lines = [line.strip() for line in said if line.startswith("   ")]
        (tmp_path / "federation" / "home" / "config.toml").write_text("\n".join(known_server(lines)))
        (server,) = (line for line in lines if line.startswith("flower-superlink"))
        here.start("superlink", *shlex.split(server))
        here.wait_for_superlink()
        nodes = [line for line in lines if line.startswith("flower-supernode")]
        for k, (name, line) in enumerate(zip(names, nodes, strict=True), 1):
            mine = line.replace(f"/path/to/site{k}.csv", str(tmp_path / f"{name}.csv")).replace(f"site{k}", name)
            mine = re.sub(r"--port \d+", f"--port {find_free_port()}", mine)  # other tests may use the printed ones
            here.start(name, *shlex.split(mine))
        told = "\n".join(here.run(tmp_path / "wrong", SECONDS, superlink="federation"))
        for name in names:
            assert f"`{name}` cannot take part: There is no column `weight` at client `{name}`" in told
        assert "Traceback" not in told
        assert wrong != said
        output = list(here.run(tmp_path / "app", SECONDS, f'out="{tmp_path / "runs"}"', superlink="federation"))
    places = list((tmp_path / "runs").glob("*/manifest.json"))
    assert len(places) == 1, "\n".join(output)
    for name in names:
        (tmp_path / "together" / name).mkdir(parents=True)
        shutil.copy(tmp_path / f"{name}.csv", tmp_path / "together" / name / "rows.csv")
    together = own(str(tmp_path / "together"), schema=str(tmp_path / "schema.json"), drop_missing=True)
    simulated = run("fedavg", together, rounds=1, model="hospital_net.py:Net", runner="inline", guard=DEPLOYMENT_GUARD)
    expected = {(s.client, s.split, s.metric): s.value for s in simulated.scores}
    assert {split for _, split, _ in expected} == {"test", "validation", "train"}
    rows = pq.read_table(places[0].parent / "records.parquet").to_pylist()
    found = {(row["client"], row["split"], row["metric"]): row["value"] for row in rows}
    assert found == pytest.approx(expected, abs=1e-6)
    clients = json.loads(places[0].read_text())["data"]["clients"]
    assert [sum(client[split] for split in ("train", "validation", "test")) for client in clients] == [57, 57, 57]


def known_server(lines):
    """The lines that go into Flower's config.toml."""
    return [line for line in lines if line.startswith(("[superlink", "address = ", "insecure = "))]
