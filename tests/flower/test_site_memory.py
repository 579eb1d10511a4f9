"""A SuperNode that is started again goes on where it was, and so does a server that was killed: the bits are the same."""

import errno
import random
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from flwr.app import Context, RecordDict

from equipoise import EquipoiseError
from equipoise.engine import site_states
from equipoise.engine.checkpoints import Checkpoints, find_saved
from equipoise.flower import Plan, client_app, federate, server_app
from equipoise.flower.server import place_checkpoints
from equipoise.runs.reading import read
from kit import NormNet, Stop, blobs, stop_after
from kit.flower import LoopGrid

STATEFUL = ["scaffold", "moon", "ditto", "eagle(lstar_epochs=4)", "feddyn"]


def grid_of(plan, data=None):
    data = data or blobs()
    return LoopGrid(client_app(plan, data=data), {100 - 7 * k: {"partition-id": k} for k in range(len(data))})


def restarted(grid, nodes=None):
    """Nodes that were started again: they have their configuration, and nothing else."""
    for node in nodes or list(grid.contexts):
        grid.contexts[node] = Context(1, node, dict(grid.contexts[node].node_config), RecordDict(), {})


def trained(plan, restart=False, data=None):
    grid = grid_of(plan, data)
    return federate(grid, plan, on_round=lambda record: restarted(grid) if restart else None)


@pytest.mark.parametrize("text", STATEFUL)
def test_sites_that_are_restarted_after_every_round_go_on_bit_for_bit(text, tmp_path):
    plan = Plan(method=text, sites=4, rounds=3, participation=0.75, site_state=str(tmp_path))
    whole, again = trained(plan), trained(plan, restart=True)
    assert torch.equal(whole.server.theta, again.server.theta)
    assert [r.scores for r in whole.rounds] == [r.scores for r in again.rounds]
    assert [r.weights for r in whole.rounds] == [r.weights for r in again.rounds]


def test_buffers_of_their_own_survive_too(tmp_path):
    plan = Plan(method="fedbn", sites=4, rounds=2, model=NormNet, site_state=str(tmp_path))
    assert [r.scores for r in trained(plan).rounds] == [r.scores for r in trained(plan, restart=True).rounds]


def test_without_a_folder_a_restart_is_felt():
    """So the tests above can fail."""
    plan = Plan(method="scaffold", sites=4, rounds=4)
    assert not torch.equal(trained(plan).server.theta, trained(plan, restart=True).server.theta)


def test_the_node_s_own_folder_goes_before_the_plan_s(tmp_path):
    plan = Plan(method="scaffold", sites=4, rounds=2, site_state=str(tmp_path / "plan"))
    grid = grid_of(plan)
    for context in grid.contexts.values():
        context.node_config["state"] = str(tmp_path / "mine")
    federate(grid, plan)
    assert {path.name for path in tmp_path.iterdir()} == {"mine"}
    assert len(list((tmp_path / "mine").glob("*/*/round-*"))) == 4 * 2  # a site keeps the state before and after


def test_a_method_without_states_writes_nothing(tmp_path):
    trained(Plan(method="fedavg", sites=4, rounds=2, site_state=str(tmp_path / "states")))
    assert not (tmp_path / "states").exists()


def away(grid, record, back):
    """The site c1 is away in round 2, and comes back as node `back`."""
    if record.round == 1:
        grid.gone = grid.contexts.pop(93)
    if record.round == 2:
        grid.contexts[back] = grid.gone if back == 93 else Context(1, back, {"partition-id": 1}, RecordDict(), {})


def test_state_and_history_follow_the_name_not_the_node(tmp_path):
    """A site that comes back with another node id, and an empty context, is what one is that only lost its connection."""
    plan = Plan(method="scaffold", sites=4, rounds=4, site_state=str(tmp_path))
    found = []
    for back in (93, 555):
        grid = grid_of(plan)
        found.append(federate(grid, plan, on_round=lambda record, grid=grid, back=back: away(grid, record, back)))
    same, other = found
    assert torch.equal(same.server.theta, other.server.theta)
    assert [r.clients for r in other.rounds] == [(0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert [r.scores for r in same.rounds] == [r.scores for r in other.rounds]
    assert {s.client for s in other.rounds[-1].scores} == {"c0", "c1", "c2", "c3"}


def test_states_of_another_run_are_not_used(tmp_path):
    """A run has a name of its own: what an earlier one left behind changes nothing."""
    plan = Plan(method="scaffold", sites=4, rounds=2, site_state=str(tmp_path))
    first = trained(plan)
    assert torch.equal(first.server.theta, trained(plan, restart=True).server.theta)
    for _ in range(3):
        trained(replace(plan, rounds=1))
    assert all(len(list(site.iterdir())) == site_states.RUNS for site in tmp_path.iterdir())


def test_a_spoilt_state_is_said_and_not_used(tmp_path):
    plan = Plan(method="scaffold", sites=4, rounds=3, site_state=str(tmp_path))
    grid = grid_of(plan)

    def spoil(record):
        if record.round == 1:
            restarted(grid, [93])
            folder = tmp_path / site_states._hashed("c1")
            for path in folder.glob("*/round-00000001/tensors.safetensors"):
                path.write_bytes(path.read_bytes()[:-1])

    result = federate(grid, plan, on_round=spoil)
    assert result.rounds[1].clients == (0, 2, 3)
    why = {r.why for r in result.rounds[1].rejected if r.client == "c1"}
    assert any("is corrupt: the checksum of tensors.safetensors differs" in text for text in why)
    assert any("To begin anew, remove" in text for text in why)


def test_a_full_disk_at_a_site_costs_it_the_round_and_nothing_else(tmp_path, monkeypatch):
    plan = Plan(method="scaffold", sites=4, rounds=3, site_state=str(tmp_path))
    real = site_states.write_tensors

    def full(place, tensors, facts):
        if facts["site"] == "c1" and facts["rounds"] == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(place, tensors, facts)

    monkeypatch.setattr(site_states, "write_tensors", full)
    result = trained(plan, restart=True)
    assert [r.clients for r in result.rounds] == [(0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3)]
    assert "No space left on device. Free some space" in result.rounds[1].rejected[0].why


HOSTILE = [
    "../../x",
    "/etc/passwd", "a\x00b", "C:\\x", "con", "~", "..", ".", "", "\u202etxt", "=cmd()", "<script>", "a/b/c", "x" * 5000,
    "\ud800", "run\n", "$(id)", "%2e%2e%2f", "\\\\host\\share", "..\\..\\x",
]  # fmt: skip


def test_hostile_names_never_become_paths(tmp_path):
    """Two hundred names of sites and runs: whatever is written lies in the folder, under names of ours."""
    draw = random.Random(0)
    root = tmp_path / "deep" / "inside"
    for k in range(200):
        run, site = ("".join(draw.choices(HOSTILE, k=2)) + str(k) for _ in range(2))
        place = site_states.place_states(str(root), run, site)
        site_states.store_states(place, "r", "s", {1: {"part": {"x": torch.ones(1)}}})
        assert site_states.load_state(place, "r", "s", 1)["part"]["x"].item() == 1
    assert {path.name for path in tmp_path.iterdir()} == {"deep"}
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"inside"}
    names = {part for path in root.rglob("*") for part in path.relative_to(root).parts}
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") and ".." not in name for name in names)


# --------------------------------------------------------------------------- the server
@pytest.mark.parametrize("text", ["scaffold", "eagle(lstar_epochs=4)", "afl"])
def test_a_server_that_was_killed_goes_on_bit_for_bit(text, tmp_path):
    """As another run of Flower's, with sites that were restarted as well."""
    plan = Plan(method=text, sites=4, rounds=3, site_state=str(tmp_path / "sites"), out=str(tmp_path / "runs"))
    whole = trained(plan)
    with pytest.raises(Stop):
        federate(grid_of(plan), plan, on_round=stop_after(1), checkpoint=place_checkpoints(plan))
    again = replace(plan, resume=True)
    result = federate(grid_of(again), again, checkpoint=place_checkpoints(again))
    assert torch.equal(whole.server.theta, result.server.theta)
    assert [r.scores for r in whole.rounds] == [r.scores for r in result.rounds]
    assert [r.round for r in result.rounds] == [1, 2, 3]


def test_a_server_killed_between_training_and_its_checkpoint_goes_on_bit_for_bit(tmp_path, monkeypatch):
    """The sites are a round ahead of it: they begin that round again from the state before."""
    from equipoise.engine import checkpoints

    plan = Plan(method="scaffold", sites=4, rounds=3, site_state=str(tmp_path / "sites"), out=str(tmp_path / "runs"))
    whole = trained(plan)
    real = checkpoints.write

    def write(folder, moment, facts):
        if moment.round == 2:
            raise Stop
        return real(folder, moment, facts)

    monkeypatch.setattr(checkpoints, "write", write)
    with pytest.raises(Stop):
        federate(grid_of(plan), plan, checkpoint=place_checkpoints(plan))
    monkeypatch.undo()
    again = replace(plan, resume=True)
    result = federate(grid_of(again), again, checkpoint=place_checkpoints(again))
    assert torch.equal(whole.server.theta, result.server.theta)


def test_an_unfinished_federation_is_not_overwritten(tmp_path):
    plan = Plan(method="fedavg", sites=4, rounds=3, out=str(tmp_path))
    with pytest.raises(Stop):
        federate(grid_of(plan), plan, on_round=stop_after(1), checkpoint=place_checkpoints(plan))
    with pytest.raises(EquipoiseError, match=r"--run-config resume=true"):
        federate(grid_of(plan), plan, checkpoint=place_checkpoints(plan))
    folder = place_checkpoints(plan).folder
    with pytest.raises(EquipoiseError, match="belongs to another run: rounds 3 there, 4 here"):
        federate(grid_of(plan), replace(plan, rounds=4), checkpoint=Checkpoints(folder, resume=True))
    assert len(find_saved(folder)) == 1


def test_the_app_keeps_what_is_unfinished_and_clears_up_after_itself(tmp_path):
    """All sites fail in round 2; when they are well again, the same app goes on, and leaves one whole run."""
    plan = Plan(
        method="scaffold", sites=4, rounds=3, patience=1, site_state=str(tmp_path / "sites"), out=str(tmp_path / "runs")
    )
    empty = Context(1, 0, {}, RecordDict(), {})
    ill = grid_of(plan)
    ill.fault = lambda asked, answer: (
        None if asked.content.config_records.get("equipoise", {}).get("round") == 1 else answer
    )
    with pytest.raises(
        EquipoiseError, match=r"stopped after 1 of 3 rounds.* Go on with the same command and --run-config resume=true"
    ):
        server_app(plan)(ill, empty)
    (folder,) = (tmp_path / "runs" / ".checkpoints").iterdir()
    assert len(find_saved(folder)) == 1
    again = replace(plan, resume=True)
    server_app(again)(grid_of(again), empty)
    assert not (tmp_path / "runs" / ".checkpoints").exists()
    (place,) = (tmp_path / "runs").iterdir()
    recorded = read(place)
    assert recorded.rounds_done == 3
    whole = trained(replace(plan, out=str(tmp_path / "whole")))
    assert {row["value"] for row in recorded.records.to_pylist() if row["round"] == 3} == {
        s.value for s in whole.scores
    }
    with pytest.raises(EquipoiseError, match="0 of 9 sites"):
        server_app(replace(plan, sites=9, start_timeout=0.01))(LoopGrid(client_app(plan, data=blobs()), {}), empty)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {place.name}
