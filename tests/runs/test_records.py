"""Run folders: written while a run goes, read whatever happened to it, and the model back from them."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from equipoise import EquipoiseError, EquipoiseWarning, Guard, load, load_federation, run
from equipoise.engine.result import Rejection
from equipoise.engine.simulation import prepare_simulation
from equipoise.runs.loading import measure
from equipoise.runs.reading import find_runs, read, read_all
from equipoise.runs.sums import write_manifest
from equipoise.runs.writing import Recorder, save
from equipoise.study.experiment import read_experiment
from equipoise.study.jobs import Job, find_finished, list_jobs, summarise
from equipoise.study.workers import Failure, execute_all
from kit import NormNet, Stop, blobs, pictures, quiet, recorded, stop_after

JOB = Job("fedavg", "gaussians", rounds=3)


def test_rounds_are_readable_before_the_run_ends(tmp_path):
    seen = []

    def look(record):
        (place,) = tmp_path.iterdir()
        seen.append((read(place).manifest["status"], read(place).rounds_done, len(read(place).curve()[0])))

    _, place = recorded(JOB, tmp_path, look)
    assert seen == [("running", 1, 1), ("running", 2, 2), ("running", 3, 3)]
    assert read(place).is_finished
    assert {p.name for p in place.iterdir()} == {
        "manifest.json",
        "records.parquet",
        "weights.parquet",
        "model.safetensors",
    }


def test_rejections_and_warnings_are_in_the_manifest_while_the_run_goes(tmp_path):
    result = run("fedavg", blobs(), rounds=3)
    first, second, third = result.rounds
    refused = {"rejected": (Rejection("c1", "not finite"),), "warnings": ("c1 was left out: not finite",)}
    recorder = Recorder(result, tmp_path)
    facts = lambda: read(recorder.place).manifest  # noqa: E731
    assert (facts()["rejected"], facts()["warnings"]) == ([], [])
    recorder.add(first)
    recorder.add(replace(second, **refused))
    assert facts()["status"] == "running"
    assert facts()["rejected"] == [{"round": 2, "client": "c1", "why": "not finite"}]
    recorder.add(replace(third, rejected=(Rejection("c2", "too long"),)))
    recorder.fail("the disk is full")
    assert [one["round"] for one in facts()["rejected"]] == [2, 3]
    assert facts()["warnings"] == ["c1 was left out: not finite"]
    assert (facts()["status"], facts()["why"]) == ("failed", "the disk is full")


def test_a_warning_is_in_the_record_of_the_round_that_gave_it(tmp_path):
    said = []
    with pytest.warns(EquipoiseWarning, match="min-norm weights"):
        found = run("fedequilibria", blobs(), rounds=2, on_round=lambda record: said.append(record.warnings))
    assert [text for some in said for text in some] == list(found.warnings)
    assert said[0]
    assert said[1] == ()


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    result = run("fedavg", blobs(), rounds=1)
    first = Recorder(result, tmp_path)
    with pytest.raises(EquipoiseError, match=r"Another process is at work on .*blobs.*: wait for it") as error:
        Recorder(result, tmp_path)
    assert "\n" not in str(error.value)
    assert read(first.place).manifest["status"] == "running"  # and nothing of it was touched
    first.add(result.rounds[0])
    assert first.finish(result) == save(result, tmp_path)  # the lock went with its holder
    second = Recorder(result, tmp_path)
    second.fail("why not")
    assert not (second.place / "lock").exists()
    Recorder(result, tmp_path).fail("again")
    Recorder(run("fedavg", blobs(), rounds=1, seed=1), tmp_path).fail("other settings have a folder of their own")


def test_a_killed_run_shows_what_it_did_and_is_done_again(tmp_path):
    script = (
        "from pathlib import Path; from equipoise.study.jobs import Job, run_and_record; import equipoise, time\n"
        "from equipoise.engine.simulation import prepare_simulation\n"
        "job = Job('fedavg', 'gaussians', rounds=50)\n"
        "begun = prepare_simulation(job.settings(equipoise.load_federation('gaussians')))\n"
        "run_and_record(job, begun, Path('.'), lambda r: time.sleep(0.1))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    end = time.monotonic() + 120
    while time.monotonic() < end and not any(f.stat().st_size > 3000 for f in tmp_path.glob("*/records.arrows")):
        time.sleep(0.05)
    with pytest.raises(EquipoiseError, match="Another process is at work"):
        recorded(replace(JOB, rounds=50), tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (place,) = tmp_path.iterdir()
    cut = read(place)
    assert not cut.is_finished
    assert 1 <= cut.rounds_done < 50
    stream = place / "records.arrows"
    os.truncate(stream, stream.stat().st_size - 7)  # cut off in the middle of a batch
    assert len(read(place).curve()[0]) >= 1
    with pytest.raises(EquipoiseError, match="holds no finished run: its status is running"):
        load(place)
    todo = replace(JOB, rounds=50)
    settings = todo.settings(load_federation("gaussians"))
    assert find_finished(todo, settings, tmp_path) is None
    assert recorded(todo, tmp_path)[1] == place
    assert find_finished(todo, settings, tmp_path) == place
    wants_more = replace(todo, keep=("conflicts",))
    assert find_finished(wants_more, settings, tmp_path) is None


def hashes(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("end", [1, 3])
def test_a_finished_run_stays_until_its_successor_is_whole(tmp_path, end):
    _, place = recorded(JOB, tmp_path)
    before = hashes(tmp_path)
    with pytest.raises(Stop):
        recorded(JOB, tmp_path, stop_after(end))
    assert hashes(tmp_path) == before
    seen = []
    _result, again = recorded(JOB, tmp_path, lambda record: seen.append(read(place).is_finished))
    assert seen == [True] * 3
    assert again == place
    assert read(place).is_finished
    after = hashes(tmp_path)
    assert set(after) == set(before)
    model = place.relative_to(tmp_path) / "model.safetensors"
    assert after[model] == before[model]
    assert find_runs([tmp_path]) == [place]


def test_a_kill_during_a_second_run_leaves_the_finished_one(tmp_path):
    _, place = recorded(JOB, tmp_path)
    before = hashes(place)
    begun = prepare_simulation(JOB.settings(load_federation("gaussians")))
    recorder = Recorder(begun, tmp_path)  # as if the process were killed here
    recorder.lock.close()
    recorder._close()
    assert hashes(place) == before
    assert find_runs([tmp_path]) == [place]


def test_finished_runs_are_skipped_and_other_settings_kept_apart(tmp_path):
    todo = list_jobs(["fedavg", "qffl"], load_federation("gaussians"), [0, 1], JOB)
    first = list(execute_all(todo, tmp_path, lambda step: None, 1))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/manifest.json")}
    again = list(execute_all(todo, tmp_path, lambda step: pytest.fail("a run was done twice"), 1))
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/manifest.json")} == before
    assert again == first
    longer = list(execute_all([replace(todo[0], rounds=4)], tmp_path, lambda step: None, 1))
    assert longer[0].folder not in {one.folder for one in first}


def test_a_run_that_fails_says_so_in_its_folder(tmp_path):
    (failed,) = execute_all([replace(JOB, training=None, live=("nothing",))], tmp_path, lambda step: None, 1)
    assert isinstance(failed, Failure)
    (place,) = tmp_path.iterdir()
    assert read(place).manifest["status"] == "failed"
    assert "A live view is one of mlflow, tensorboard" in read(place).manifest["why"]


def test_outcomes_come_from_the_folder(tmp_path):
    result = run("fedavg", blobs(), rounds=2)
    found = summarise(read(save(result, tmp_path)), "blobs")
    assert found.by_domain == pytest.approx(result.by_domain())
    rounds, values = read(found.folder).curve("loss", "validation")
    assert rounds.tolist() == [1, 2]
    assert values.shape == (2, 4)


def test_a_guarded_run_has_a_folder_of_its_own(tmp_path):
    plain, guarded = (save(run("qffl(q=1)", blobs(), rounds=1, guard=guard), tmp_path) for guard in (None, Guard()))
    assert plain != guarded
    assert read(plain).manifest["guard"] is None
    assert read(guarded).manifest["guard"] == {"share": 2.0, "clip": 3.0, "climb": 2.0, "length": 3.0}


def test_rejected_updates_and_costs_are_in_the_manifest(tmp_path):
    with pytest.warns(EquipoiseWarning, match="min-norm weights"):
        result = run("fedequilibria", blobs(), rounds=1)
    rejected = replace(result.rounds[0], rejected=(Rejection("c1", "not finite"),))
    facts = read(save(replace(result, rounds=(rejected,)), tmp_path)).manifest
    assert facts["rejected"] == [{"round": 1, "client": "c1", "why": "not finite"}]
    weights = 6 * 7 + 7 + 7 * 3 + 3  # an MLP 6-7-3
    assert facts["cost"]["parameters"] == weights
    reports = 1 + weights  # samples and Fisher
    assert facts["cost"]["upload"] >= 4 * (weights + reports)
    assert facts["cost"]["flops"] > 0


@pytest.mark.parametrize("method", ["fedavg", "local_only", "ditto", "f2dc", "fdse"])
def test_the_model_comes_back(method, tmp_path):
    data = pictures()
    result = run(method, data, rounds=1)
    trained = load(save(result, tmp_path))
    assert trained.classes == data.classes
    assert len(trained.predict(data.x[:3])) == 3
    accuracy = {one.client: one.score for one in measure(trained, data)}
    assert accuracy == pytest.approx(result.values())
    for one in measure(trained, data):
        assert one.loss == pytest.approx(result.values("loss")[one.client], rel=1e-4)
    with pytest.raises(EquipoiseError, match=r"Samples must be \[n, 1, 8, 8\]"):
        trained.logits(torch.zeros(2, 3))
    with pytest.raises(EquipoiseError, match="no client `c9`"):
        trained.logits(data.x[:2], "c9")
    with pytest.raises(EquipoiseError, match="knows the classes"):
        measure(trained, replace(data, classes=("x", "y", "z")))


def leave_out_sums(place):
    """Write a manifest as an earlier version did, without checksums: what it says."""
    facts = {name: value for name, value in read(place).manifest.items() if name not in ("files", "sha256")}
    (place / "manifest.json").write_text(json.dumps(facts))
    return facts


def test_what_cannot_be_read_is_one_line(tmp_path):
    good = save(run("fedavg", blobs(), rounds=1), tmp_path)
    facts = leave_out_sums(good)
    wrong = {
        "newer": {"manifest.json": json.dumps({**facts, "schema": 99})},
        "foreign": {"manifest.json": '{"schema": 1, "name": "something else"}'},
        "cut": {"manifest.json": json.dumps(facts)[:100]},
        "empty": {"manifest.json": json.dumps(facts)},
        "torn": {"manifest.json": json.dumps(facts), "records.parquet": "PAR1", "weights.parquet": "PAR1"},
    }
    for name, files in wrong.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    runs, said = read_all([tmp_path])
    assert [one.place for one in runs] == [good]
    assert len(said) == 5
    assert all("\n" not in line for line in said)
    for words in ("newer Equipoise", "lacks `", "has no records.parquet", "cut off or damaged", "not a manifest"):
        assert sum(words in line for line in said) == 1
    pq.write_table(pq.read_table(good / "weights.parquet"), good / "records.parquet")
    with pytest.raises(EquipoiseError, match="other columns"):
        read(good)
    with pytest.raises(EquipoiseError, match="There is no"):
        find_runs([tmp_path / "nowhere"])
    (tmp_path / "bare").mkdir()
    with pytest.raises(EquipoiseError, match="holds none"):
        find_runs([tmp_path / "bare"])


def test_an_experiment_file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        "methods = ['fedavg', 'moon + fedheal']\ndata = ['gaussians', 'gaussians(rotate=1)']\nseeds = [0, 5]\nrounds = 2\n"
        "keep = ['conflicts', 'separators']\nwith_validation = true\n"
        "[grid.fedheal]\ntau = [0.2, 0.3]\nbeta = [0.4]\n[training]\nlr = 0.3\nbatch = 'full'\n"
    )
    experiment = read_experiment(path)
    todo = experiment.jobs
    assert len(todo) == 3 * 2 * 2
    assert list(experiment.data) == ["gaussians", "gaussians(rotate=1)"]
    assert {job.method for job in todo} == {
        "fedavg", "moon + fedheal(tau=0.2, beta=0.4)", "moon + fedheal(tau=0.3, beta=0.4)"
    }  # fmt: skip
    assert {(job.seed, job.rounds, job.training.lr, job.training.batch) for job in todo} == {
        (0, 2, 0.3, None),
        (5, 2, 0.3, None),
    }
    assert all(job.keep == ("conflicts", "separators") and job.with_validation for job in todo)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methods = [", "is not TOML"),
        ("method = ['fedavg']", "Did you mean `methods`"),
        ("methods = ['fedavg']\ndata = []", "must give `data`"),
        ("methods = ['fedavg']\ndata = ['gaussians']\n[grid.fedheal]\ntau = [0.1]", "not among the methods"),
        ("methods = ['fedavg']\ndata = ['gaussians']\n[training]\nlearning = 1", "has no `learning`"),
        ("methods = ['fedavg']\ndata = ['gaussians']\nrounds = 'ten'", "rounds must be a whole number"),
        ("methods = ['fedavg']\ndata = ['gaussians']\nseeds = []", "seeds must be"),
        (
            "methods = ['fedavg']\ndata = ['gaussians']\nkeep = ['conflict']",
            "Unknown thing to keep `conflict`. Did you mean `conflicts`",
        ),
        ("methods = ['fedavg']\ndata = ['gaussians']\ngrid = 3", "`grid` must be a table"),
    ],
)
def test_mistakes_in_an_experiment_file(text, message, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(EquipoiseError, match=message):
        read_experiment(path)


def test_a_run_on_all_data_together_is_read_back(tmp_path):
    data = blobs()
    done = quiet("centralised", data)
    run = read(save(done, tmp_path))
    assert run.is_finished
    assert set(run.weights["client"].to_pylist()) == {"pooled"}
    assert run.clients == [client.name for client in data.clients]
    assert run.curve()[1][-1].tolist() == pytest.approx(list(done.values().values()))


def test_curves_have_a_column_per_client(tmp_path):
    result = run("fedavg", blobs(), rounds=2, eval_every=2)
    rounds, values = read(save(result, tmp_path)).curve()
    assert rounds.tolist() == [2]
    np.testing.assert_allclose(values[-1], list(result.values().values()))


def test_a_run_that_stopped_early_is_not_called_finished(tmp_path):
    whole = run("fedavg", blobs(), rounds=3)
    short = replace(whole, rounds=whole.rounds[:1], stopped="The run stopped after 1 of 3 rounds: too few sites.")
    facts = read(save(short, tmp_path)).manifest
    assert (facts["status"], facts["why"]) == ("stopped", short.stopped)
    assert read(save(whole, tmp_path)).manifest["status"] == "finished"


def test_a_model_of_which_parts_stayed_at_the_sites_is_not_loaded(tmp_path):
    place = save(run("fedbn", blobs(), model=NormNet, rounds=1), tmp_path)
    write_manifest(place, {**read(place).manifest, "runner": "flower"})
    with pytest.raises(EquipoiseError, match="stayed at the sites"):
        load(place, model=NormNet)
