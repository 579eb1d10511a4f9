"""A SuperLink and SuperNodes, started as processes on this machine: plain, and with TLS and authenticated nodes."""

import json
import shutil
from importlib.util import find_spec

import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from equipoise import run
from equipoise.flower import Plan
from equipoise.flower.deploy import write_app
from loopback import Loopback, make_node_key

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
    found = {(row["round"], row["client"], row["metric"]): row["value"] for row in rows}
    for record in expected.rounds:
        for score in (score for score in record.scores if score.split == "test"):
            assert found[record.round, score.client, score.metric] == pytest.approx(score.value, abs=1e-6)
    weights = pq.read_table(place / "weights.parquet").to_pylist()
    assert [row["weight"] for row in weights if row["round"] == 1] == pytest.approx(list(expected.rounds[0].weights))
    assert torch.isfinite(expected.server.theta).all()


def test_a_plain_federation_gives_what_a_simulation_gives(tmp_path):
    write_app(
        tmp_path / "app", Plan(method="qffl(q=1)", data="gaussians", sites=3, rounds=1, out=str(tmp_path / "runs"))
    )
    with Loopback(tmp_path / "federation") as here:
        here.start_superlink()
        for k in range(3):
            here.start_supernode(f"node{k}", f"partition-id={k}")
        place = finished(here, tmp_path / "app", tmp_path / "runs")
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
    """Two known nodes train; a third, whose key nobody registered, is not let in."""
    write_app(tmp_path / "app", Plan(method="fedavg", data="gaussians", sites=2, rounds=1, out=str(tmp_path / "runs")))
    with Loopback(tmp_path / "federation", tls=True, authentication=True) as here:
        here.start_superlink()
        for k, name in enumerate(("a", "b", "stranger")):
            key = tmp_path / name
            make_node_key(key)
            if name != "stranger":
                assert "registered successfully" in here.register(key)
            here.start_supernode(name, f"partition-id={k}", key)
        place = finished(here, tmp_path / "app", tmp_path / "runs")
        assert here.running["a"].poll() is None
        assert here.running["stranger"].poll() is not None, here.read_log("stranger")
    manifest = json.loads((place / "manifest.json").read_text())
    assert len(manifest["data"]["clients"]) == 2
    rows = pq.read_table(place / "records.parquet").to_pylist()
    assert len({row["client"] for row in rows}) == 2
