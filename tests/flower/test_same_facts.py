"""A federation on Flower and a simulation leave the same facts behind: one loop writes them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from flwr.app import Array, ArrayRecord

from equipoise import EquipoiseError, Federation, load, save
from equipoise.engine.guard import DEPLOYMENT_GUARD
from equipoise.flower import Plan, client_app, federate
from equipoise.flower.server import place_checkpoints
from equipoise.method.plugins import load_plugins
from kit import Stop, blobs, quiet, stop_after
from kit.files import images_federation
from kit.flower import LoopGrid

# What a real federation has of its own: how strict it is, how long it waits, that its labels stay at the sites; and the
# checksums of all that.
OWN = {"runner", "checks", "limits", "seconds", "seconds_per_round", "digest", "data", "files", "sha256"}


def grid_of(plan, data, fault=None):
    return LoopGrid(client_app(plan, data=data), {7 * k + 1: {"partition-id": k} for k in range(len(data))}, fault)


def manifest_of(result, folder):
    return json.loads((save(result, folder) / "manifest.json").read_text())


@pytest.mark.parametrize("text", ["fedheal", "scaffold", "eagle(lstar_epochs=4)"])
def test_the_manifests_are_the_same(text, tmp_path):
    data = blobs()
    plan = Plan(method=text, sites=4, rounds=2, guard=True)
    real = manifest_of(federate(grid_of(plan, data), plan), tmp_path / "real")
    simulated = manifest_of(quiet(text, data, rounds=2, guard=DEPLOYMENT_GUARD), tmp_path / "simulated")
    assert real.keys() == simulated.keys()
    assert {name: value for name, value in real.items() if name not in OWN} == {
        name: value for name, value in simulated.items() if name not in OWN
    }
    assert real["checks"] == {"norm": 10.0, "loss": 1000.0, "quorum": None, "too_few": "repeat", "patience": 3}
    for name in ("classes", "sample", "preparation", "protocol"):
        assert real["data"][name] == simulated["data"][name], name


def test_an_image_run_stores_how_images_are_prepared(tmp_path):
    data = images_federation(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), pad=1, flip=True)
    plan = Plan(sites=3, rounds=2)
    result = federate(grid_of(plan, data), plan)
    simulated = quiet("fedavg", data, rounds=2, runner="inline")
    assert torch.equal(result.server.theta, simulated.server.theta)
    here, there = (load(save(one, tmp_path / name)) for name, one in (("here", result), ("there", simulated)))
    assert here.manifest["data"]["preparation"] == {"kind": "images", "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
    torch.testing.assert_close(here.logits(data.x[:5]), there.logits(data.x[:5]))


def test_sites_that_prepare_images_otherwise_do_not_take_part():
    plan = Plan(sites=3, rounds=1)
    grids = [grid_of(plan, images_federation(mean=(mean,) * 3)) for mean in (0.4, 0.5)]
    mixed = grids[0]
    answer = mixed.app
    last = list(mixed.contexts)[-1]
    mixed.app = lambda message, context: (grids[1].app if context.node_id == last else answer)(message, context)
    with pytest.raises(EquipoiseError, match=r"`preparation` is .* at `a` and .* at `c`"):
        federate(mixed, plan)


def lying(factor):
    """Site c1 reports so many times its gap, in the probe."""

    def fault(asked, answer):
        said = asked.content.config_records.get("equipoise")
        if asked.metadata.message_type == "train.probe" and said["number"] == 1:
            gap = dict(answer.content.array_records["reports"])
            gap["gap"] = Array(np.asarray(gap["gap"].numpy() * factor * (1 + said["round"])))
            answer.content["reports"] = ArrayRecord(gap)
        return answer

    return fault


def test_what_the_guard_cuts_in_a_probe_is_said_once_and_as_it_was_first():
    plan = Plan(method="eagle(lag=0, lstar_epochs=4)", sites=4, rounds=3, guard=True)
    said = []
    result = federate(grid_of(plan, blobs(), lying(100.0)), plan, on_note=said.append)
    cut = [text for text in result.warnings if text.startswith("guard:")]
    assert len(cut) == 1
    assert cut == [text for text in said if text.startswith("guard:")]
    assert cut[0] in result.rounds[0].warnings  # the first one, not the last


def test_a_changed_plugin_is_noticed_when_a_federation_goes_on(tmp_path):
    file = tmp_path / "own_rule_of_sites.py"
    file.write_text(
        "from equipoise.method import Method, register\n"
        "from equipoise.parts.weights import Uniform\n"
        "@register(title='mine', reference='none')\n"
        "def own_rule_of_sites() -> Method:\n"
        "    return Method(weigh=Uniform())\n"
    )
    load_plugins([file])
    plan = Plan(method="own_rule_of_sites", sites=4, rounds=3, out=str(tmp_path / "runs"))
    data = blobs()
    with pytest.raises(Stop):
        federate(grid_of(plan, data), plan, on_round=stop_after(1), checkpoint=place_checkpoints(plan))
    file.write_text(file.read_text() + "# changed\n")
    again = replace(plan, resume=True)
    with pytest.raises(EquipoiseError, match=r"code own_rule_of_sites\.py"):
        federate(grid_of(again, data), again, checkpoint=place_checkpoints(again))


def test_a_federation_that_goes_on_tells_only_its_new_rounds(tmp_path):
    plan = Plan(method="fedavg", sites=4, rounds=3, out=str(tmp_path / "runs"))
    data = blobs()
    with pytest.raises(Stop):
        federate(grid_of(plan, data), plan, on_round=stop_after(1), checkpoint=place_checkpoints(plan))
    again, told = replace(plan, resume=True), []
    result = federate(grid_of(again, data), again, on_round=told.append, checkpoint=place_checkpoints(again))
    assert [record.round for record in told] == [2, 3]
    assert [record.round for record in result.rounds] == [1, 2, 3]


def test_a_users_own_data_have_no_parameters_of_ours(tmp_path):
    """Whatever they are called: in a simulation, from a file, and over Flower."""
    own = replace(blobs(), name="scanners")
    assert str(quiet("qffl", own, rounds=1).method) == "qffl"
    rows = "\n".join(f"{k % 2},{'ab'[k % 2]},{k % 7},{k % 5}" for k in range(40))
    (tmp_path / "scanners.csv").write_text(f"label,client,x,y\n{rows}\n")
    assert str(quiet("qffl", str(tmp_path / "scanners.csv"), rounds=1).method) == "qffl"
    assert str(Plan(method="qffl", data=str(tmp_path / "scanners.csv")).chosen) == "qffl"
    assert str(quiet("qffl", "scanners", rounds=1).method) == str(Plan(method="qffl", data="scanners").chosen) != "qffl"
    assert quiet("afl", own, rounds=1).scored == "global, mean of the rounds' models"
    assert Federation.from_tensors({"a": (torch.ones(4, 2), torch.arange(4) % 2)}, name="digits").dataset == ""
