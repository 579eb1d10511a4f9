"""A run that is stopped goes on bit for bit, and a checkpoint is whole or not there."""

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import equipoise.engine.checkpoints as module
import faults
from equipoise import EquipoiseError, EquipoiseWarning, Training
from equipoise.engine import folders
from equipoise.engine.checkpoints import Checkpoints, Snapshot, _find_latest, find_saved, hash_model, write
from equipoise.engine.folders import lock_folder
from equipoise.engine.guard import DEPLOYMENT_GUARD
from equipoise.engine.simulation import run
from equipoise.engine.states import ClientStates
from equipoise.runs.writing import save
from equipoise.study.jobs import Job, place_checkpoints
from equipoise.types import Memory, PerClient, Server
from kit import NormNet, Stop, blobs, pictures, quiet, recorded, stop_after
from kit.rows import ROWS, needs_groups, needs_images


def stopped_and_resumed(text, federation, folder, *, at=2, rounds=4, every=1, **options):
    """The run that stopped and went on."""
    with pytest.raises(Stop):
        quiet(
            text, federation, rounds=rounds, checkpoint=Checkpoints(folder, every), on_round=stop_after(at), **options
        )
    return quiet(text, federation, rounds=rounds, checkpoint=Checkpoints(folder, every, resume=True), **options)


def same_bits(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, PerClient):
        rest = a.default is b.default is None or same_bits(a.default, b.default)
        return rest and list(a) == list(b) and all(same_bits(a[c], b[c]) for c in a)
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


def without_seconds(records):
    return [replace(record, seconds=0.0) for record in records]


def equal_runs(a, b):
    assert same_bits({"theta": a.server.theta, **a.server.buffers}, {"theta": b.server.theta, **b.server.buffers})
    assert (a.server.evaluated is None) == (b.server.evaluated is None)
    assert a.server.evaluated is None or same_bits(a.server.evaluated, b.server.evaluated)
    assert a.server.memory.round == b.server.memory.round
    assert same_bits(dict(a.server.memory.parts), dict(b.server.memory.parts))
    assert same_bits(dict(a.server.memory.shared), dict(b.server.memory.shared))
    assert same_bits(dict(a.states), dict(b.states))
    assert without_seconds(a.rounds) == without_seconds(b.rounds)
    assert a.warnings == b.warnings


@pytest.mark.parametrize("text", ROWS)
def test_every_method_goes_on_bit_for_bit(text, tmp_path):
    """With partial participation: states and memories of clients that were absent matter."""
    federation = pictures() if needs_images(text) else blobs(grouped=needs_groups(text))
    options = {"participation": 0.75, "runner": "inline"}
    whole = quiet(text, federation, rounds=4, **options)
    equal_runs(whole, stopped_and_resumed(text, federation, tmp_path, **options))


@pytest.mark.parametrize(
    "options", [{"model": NormNet}, {"runner": "vectorised"}, {"guard": DEPLOYMENT_GUARD}, {"eval_every": 3}]
)
def test_other_settings_go_on_bit_for_bit(options, tmp_path):
    options = {"runner": "inline", **options}
    whole = quiet("fedfe", blobs(), rounds=4, **options)
    equal_runs(whole, stopped_and_resumed("fedfe", blobs(), tmp_path, **options))


def test_rounds_since_the_last_checkpoint_are_done_again(tmp_path):
    whole = quiet("scaffold", blobs(), rounds=7, runner="inline")
    heard = []
    with pytest.raises(Stop):
        quiet(
            "scaffold", blobs(), rounds=7, runner="inline", checkpoint=Checkpoints(tmp_path, 3), on_round=stop_after(5)
        )
    assert [path.name for path in find_saved(tmp_path)] == ["round-00000003"]
    found = quiet(
        "scaffold", blobs(), rounds=7, runner="inline", checkpoint=Checkpoints(tmp_path, 3, resume=True),
        on_round=lambda record: heard.append(record.round),
    )  # fmt: skip
    equal_runs(whole, found)
    assert heard == [1, 2, 3, 4, 5, 6, 7]  # who listens hears of all rounds
    assert [path.name for path in find_saved(tmp_path)] == ["round-00000006", "round-00000007"]


def test_a_finished_run_is_not_done_again(tmp_path):
    first = quiet("fedavg", blobs(), rounds=2, checkpoint=Checkpoints(tmp_path))
    again = quiet("fedavg", blobs(), rounds=2, checkpoint=Checkpoints(tmp_path, resume=True))
    equal_runs(first, again)
    equal_runs(first, quiet("fedavg", blobs(), rounds=2, checkpoint=Checkpoints(tmp_path)))  # and may be started over


def test_spilled_states_are_kept_too(tmp_path, monkeypatch):
    import equipoise.engine.loop as simulation

    whole = quiet("local_only", blobs(), rounds=4, runner="inline")
    monkeypatch.setattr(simulation, "ClientStates", lambda: ClientStates(limit=1))
    monkeypatch.setattr(module, "PIECE", 1)  # a file a client
    found = stopped_and_resumed("local_only", blobs(), tmp_path, runner="inline")
    assert len(list(find_saved(tmp_path)[-1].glob("clients-*"))) == 4
    equal_runs(whole, found)


def test_every_kind_of_value_comes_back(tmp_path):
    shared = torch.arange(4.0)
    server = Server(
        torch.tensor([1.5, float("nan"), float("inf")]),
        {"count": torch.tensor(7), "mean|odd name/..": torch.ones(2, dtype=torch.float64)},
        Memory(3, {"part": {"rows": PerClient({5: shared, 2: shared[1:]}, torch.tensor(0.5)), "none": PerClient()}},
               {"half": torch.ones(2, dtype=torch.bfloat16), "view": shared.view(2, 2).T}),
        shared,
    )  # fmt: skip
    states = {4: {"part": {"a": torch.tensor([True, False])}, "empty": {}}}
    write(tmp_path, Snapshot(server, states, []), {"seed": 1})
    found = module.read(find_saved(tmp_path)[0], {"seed": 1})
    assert same_bits(dict(server.memory.parts), dict(found.server.memory.parts))
    assert same_bits(dict(server.memory.shared), dict(found.server.memory.shared))
    assert same_bits(server.buffers, found.server.buffers)
    assert hash_model(found.server) == hash_model(server)
    assert same_bits(states, dict(found.states))
    assert found.server.memory.round == 3


# --------------------------------------------------------------------------- what can be wrong with files
@pytest.fixture
def three(tmp_path):
    """The folder of a run of three rounds that could go on: of these the last two checkpoints are there."""
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        quiet("scaffold", blobs(), rounds=4, runner="inline", checkpoint=Checkpoints(folder), on_round=stop_after(3))
    return folder


def settings_of(place):
    return json.loads((place / "state.json").read_text())["content"]["facts"]


@pytest.mark.parametrize("kind", ["flip", "cut", "missing", "empty", "newer", "no json", "pickle"])
def test_of_a_bad_checkpoint_the_one_before_is_used(three, kind):
    older, newest = find_saved(three)
    path = newest / "state.json"
    if kind == "flip":
        path = newest / "server.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif kind == "missing":
        (newest / "clients-00000.safetensors").unlink()
    elif kind == "newer":
        path.write_text(path.read_text().replace('"format": 2', '"format": 3', 1))
    else:
        path.write_bytes({"empty": b"", "no json": b"[1]", "pickle": b"\x80\x04cos\nsystem\n."}[kind])
    whole = quiet("scaffold", blobs(), rounds=4, runner="inline")
    with pytest.warns(EquipoiseWarning, match=r"round-00000003.*The one before it is used") as said:
        found = run("scaffold", blobs(), rounds=4, runner="inline", checkpoint=Checkpoints(three, resume=True))
    assert len([w for w in said if "round-00000003" in str(w.message)]) == 1
    assert "\n" not in str(said[0].message)
    assert same_bits(whole.server.theta, found.server.theta)
    assert [path.name[:22] for path in three.glob("unusable-*")] == [
        "unusable-round-0000000"
    ]  # out of the way, not lost
    assert older.name not in {path.name for path in find_saved(three)}


def test_every_flipped_bit_and_every_cut_is_found_out():
    for row in faults.damage_checkpoints(100):
        assert row.figure.startswith("100 of 100")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"seed": 1}, "seed 0 there, 1 here"),
        ({"training": Training(lr=0.3)}, "training lr 0.1 there, 0.3 here"),
        ({"model": "mlp(hidden=(9,))"}, "first model"),
        ({"rounds": 9}, "rounds 4 there, 9 here"),
        ({"guard": DEPLOYMENT_GUARD}, "guard None there"),
        ({"federation": blobs(seed=1)}, "data fingerprint '.*' there"),
        ({"method": "fedavg"}, "method 'scaffold' there, 'fedavg' here"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_what_differs(three, change, what):
    options = {"method": "scaffold", "federation": blobs(), "rounds": 4, "runner": "inline", **change}
    with pytest.raises(EquipoiseError, match=what) as error:
        run(**options, checkpoint=Checkpoints(three, resume=True))
    assert "\n" not in str(error.value)
    assert len(find_saved(three)) == 2  # nothing is lost


def test_an_unfinished_run_is_not_overwritten(three):
    with pytest.raises(EquipoiseError, match="holds an unfinished run, at round 3: add --resume"):
        run("scaffold", blobs(), rounds=4, runner="inline", checkpoint=Checkpoints(three))
    assert len(find_saved(three)) == 2


def test_without_a_checkpoint_a_run_begins_at_the_beginning(tmp_path):
    found = quiet("fedavg", blobs(), rounds=2, checkpoint=Checkpoints(tmp_path, resume=True))
    assert len(found.rounds) == 2


def test_a_full_disk_keeps_the_last_good_one():
    row = faults.fill_disk(5)[0]
    assert row.figure == "5 of 5 kept the last good one, 5 said so"


def test_a_write_that_fails_anywhere_leaves_whole_checkpoints(three, monkeypatch):
    """Each operation in turn fails: the folder holds good checkpoints alone."""
    settings = settings_of(find_saved(three)[-1])
    moment = module.read(find_saved(three)[-1])
    before = [hash_model(module.read(path).server) for path in find_saved(three)]
    for name in ("save_file", "_sync", "_sum", "_digest"):
        for skip in range(2):
            calls, real = [], getattr(folders, name)

            def fail(*args, real=real, calls=calls, skip=skip):
                calls.append(1)
                if len(calls) > skip:
                    raise OSError(28, "No space left on device")
                return real(*args)

            with monkeypatch.context() as patch:
                patch.setattr(folders, name, fail)
                records = [*moment.records, moment.records[-1]]
                if name in ("_sum", "_digest") and skip:
                    continue
                with pytest.raises(EquipoiseError, match=r"No space left.*round 3, is kept.*Free some space") as error:
                    write(three, replace(moment, records=records), settings)
                assert "\n" not in str(error.value)
            assert [hash_model(module.read(path).server) for path in find_saved(three)] == before
            assert not list(three.glob(".unfinished*"))


def test_a_second_process_is_refused(tmp_path):
    with lock_folder(tmp_path), pytest.raises(EquipoiseError, match="Another process is at work"):
        run("fedavg", blobs(), rounds=1, checkpoint=Checkpoints(tmp_path))
    quiet("fedavg", blobs(), rounds=1, checkpoint=Checkpoints(tmp_path))  # the lock is gone with its holder
    other = quiet("fedavg", blobs(), rounds=1, checkpoint=Checkpoints(tmp_path / "other"))
    assert len(other.rounds) == 1


def test_a_folder_that_cannot_be_written_is_found_before_the_first_round(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    begun = []
    with pytest.raises(EquipoiseError, match=r"Cannot write checkpoints to .* Choose another"):
        run("fedavg", blobs(), rounds=1, checkpoint=Checkpoints(blocked / "x"), on_round=begun.append)
    assert not begun


@pytest.mark.slow
def test_killed_runs_go_on_bit_for_bit():
    """SIGKILL at random moments; benchmarks/faults does fifty."""
    row = faults.kill_and_resume(3, seed=3, methods=("scaffold", "eagle(lstar_epochs=5)", "afl"))[0]
    assert row.figure.startswith("3 of 3 with the same bits of the model and the same scores, over 3 methods")


HOSTILE = [
    "../../x",
    "/etc/passwd",
    "a\x00b",
    "C:\\x",
    "con",
    "~",
    "..",
    "\u202etxt",
    "=cmd()",
    "<script>",
    "a/../../b",
    "x" * 300,
]


def test_names_of_clients_data_and_runs_are_never_paths(tmp_path):
    """Two hundred hostile names: checkpoints and run folders stay inside, under names of ours."""
    draw = random.Random(0)
    data, inside = blobs(), tmp_path / "inside"
    for turn in range(10):
        names = ["".join(draw.choices(HOSTILE, k=2)) + str(k) for k in range(20)]
        clients = tuple(replace(data.clients[k % 4], name=name) for k, name in enumerate(names))
        hostile = replace(data, clients=clients, name=draw.choice(HOSTILE) + str(turn))
        found = quiet("scaffold", hostile, rounds=1, participation=0.2, checkpoint=Checkpoints(inside / f"run{turn}"))
        save(found, inside / "runs")
        where = place_checkpoints(Job(method=draw.choice(HOSTILE), dataset=draw.choice(HOSTILE)), inside).folder
        assert where.resolve().parent == (inside / ".checkpoints").resolve()
    assert {path.name for path in tmp_path.iterdir()} == {"inside"}
    assert all(re.fullmatch(r"[A-Za-z0-9_.\-]+", path.name) and ".." not in path.name for path in inside.rglob("*"))


def test_an_output_folder_that_cannot_be_written_is_found_before_the_first_round(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    rounds = []
    with pytest.raises(EquipoiseError, match=r"Cannot write the run to .* Choose another"):
        recorded(Job(dataset="gaussians", rounds=1), blocked / "runs", rounds.append)
    assert rounds == []
    assert blocked.read_text() == ""


def test_nothing_is_ever_unpickled():
    source = Path(module.__file__).parents[1]
    for path in source.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "pickle.load", "torch.load(", "allow_pickle=True", "yaml.load", "marshal.load"):
            assert word not in text, f"{path.name} has {word}"


def test_latest_of_nothing(tmp_path):
    assert _find_latest(tmp_path, {}) == (None, [])
    with pytest.raises(EquipoiseError, match="at least 1"):
        Checkpoints(tmp_path, every=0)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("method", ["scaffold", "fedheal"])
def test_an_interrupt_during_evaluation_loses_that_round_alone(tmp_path, monkeypatch, method):
    from equipoise.engine import desk

    real, calls = desk.evaluate, []

    def evaluate(*args, **named):
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(desk, "evaluate", evaluate)
        with pytest.raises(KeyboardInterrupt):
            run(method, blobs(), rounds=6, checkpoint=Checkpoints(tmp_path / "c", 10))
    assert [place.name for place in find_saved(tmp_path / "c")][-1].endswith("3")
    resumed = run(method, blobs(), rounds=6, checkpoint=Checkpoints(tmp_path / "c", 10, resume=True))
    assert torch.equal(resumed.server.theta, run(method, blobs(), rounds=6).server.theta)
