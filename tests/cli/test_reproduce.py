"""`equipoise reproduce` as a user meets it, with a small paper of our own on embedded data."""

import json
from pathlib import Path

import pytest

from equipoise.engine.simulation import prepare_simulation
from equipoise.errors import EquipoiseError
from equipoise.runs.sums import write_manifest
from equipoise.study.jobs import run_and_record
from equipoise.study.reproduce.entries import find_entries
from equipoise.study.reproduce.plan import build_plan, find_run
from kit.command import invoke

PAPER = """
title = "Small"
reference = "Nobody, Nothing, 2026"
claims = ["EAGLE is fair."]
protocol = ["Three clients."]
unaffordable = "Nothing."
"""
TABLE = """
title = "Table 1: three clients"
over = "clients"
ddof = 1
columns = ["accuracy", "max_gap", "var_gap"]
ordering = ["accuracy"]

[presets.paper]
data = "gaussians(seed={seed})"
seeds = [0]

[presets.cpu]
data = "gaussians(seed={seed})"
seeds = [0, 1]
rounds = 4
note = "Four rounds."

[[rows]]
name = "FedAvg"
method = "fedavg"
published = { accuracy = 0.9, accuracy_sd = 0.01, var_gap = 0.5 }

[[rows]]
name = "EAGLE"
method = "eagle(lam=2.0)"
published = { accuracy = 0.8 }

[[rows]]
name = "Secret"
cannot = "its rule is not public"
published = { accuracy = 0.99 }

[[rows]]
name = "alone"
method = "local_only"
ours = true

[[claims]]
text = "EAGLE lowers the worst gap"
column = "max_gap"
row = "EAGLE"
beats = ["FedAvg"]

[[errata]]
row = "FedAvg"
column = "var_gap"
text = "a typing error"
instead = 0.05
"""
DIGITS = """
title = "Table 2: digits"
columns = ["AVG"]
[presets.cpu]
data = "office-caltech(preset='cpu')"
seeds = 1
[[rows]]
name = "FedAvg"
method = "fedavg"
"""


@pytest.fixture
def papers(tmp_path, monkeypatch):
    folder = tmp_path / "papers"
    (folder / "small").mkdir(parents=True)
    (folder / "small" / "paper.toml").write_text(PAPER)
    (folder / "small" / "table1.toml").write_text(TABLE)
    (folder / "small" / "table2_digits.toml").write_text(DIGITS)
    monkeypatch.setattr("equipoise.study.reproduce.entries.find_papers_folder", lambda: folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    return folder


def read_result(tmp_path, preset="cpu"):
    return json.loads((tmp_path / "runs" / "reproduced" / f"small-table1-{preset}.json").read_text())


def test_the_list_says_what_each_needs_and_whether_it_is_here(papers):
    done = invoke("reproduce")
    assert "small:table1" in done.output
    assert "none needed" in done.output
    assert "paper 3, cpu 6" in done.output
    assert "not here" in done.output


def do_runs(rows=(), seeds=None):
    """Do the runs of the table here, where the command would start worker processes."""
    plan = build_plan(find_entries("small:table1")[0], "cpu", seeds)
    for planned in plan.choose(rows):
        if find_run(planned, Path("runs")).run is None:
            run_and_record(planned.job, prepare_simulation(planned.settings), Path("runs"))


def test_the_command_runs_what_is_missing(papers, tmp_path):
    do_runs(("EAGLE",))
    done = invoke("reproduce", "small:table1", "--only", "FedAvg", "--seeds", "1", "--workers", "1")
    assert done.exit_code == 0, done.output
    assert "1 of 3 runs to do" in done.output  # local training, for the gaps, is there already
    assert len(list((tmp_path / "runs").glob("gaussians-*"))) == 5
    result = read_result(tmp_path)
    assert result["claims"][0]["state"] == "undecided"  # with one seed
    assert "one seed, points the" in result["claims"][0]["why"]


def test_a_table_puts_ours_beside_the_published_and_says_what_a_reader_must_know(papers, tmp_path):
    do_runs(("FedAvg",), (0,))
    invoke("reproduce", "small:table1", "--stored")
    early = read_result(tmp_path)
    assert early["claims"][0]["state"] == "not run"
    assert early["missing"]["FedAvg"] == "not run for 1 of 2 runs"
    do_runs()
    done = invoke("reproduce", "small:table1")
    assert "0 of 6 runs to do" in done.output
    result = read_result(tmp_path)
    assert set(result["cells"]["EAGLE"]["var_gap"]) == {"0", "1"}
    assert result["cells"]["FedAvg"]["accuracy"]["0"] == early["cells"]["FedAvg"]["accuracy"]["0"]
    assert result["cells"]["alone"]["max_gap"] == {"0": 0.0, "1": 0.0}
    assert result["verdict"] in ("holds", "does not hold", "undecided")
    assert result["missing"] == {"Secret": "its rule is not public"}
    assert result["label"].startswith("Preset cpu: smaller than the paper's protocol")
    assert "Four rounds." in result["label"]
    assert result["absolute"].startswith("No verdict on absolute values")
    assert result["orders"][0]["column"] == "accuracy"
    words = " ".join(done.output.split())
    for text in (
        "preset cpu",
        "0.900 (sd 0.010)",
        "0.500 [a]",
        "a typing error",
        "unknown: ",
        "its rule is not public",
    ):
        assert text in words
    page = (tmp_path / "runs" / "reproduced" / "small-table1-cpu.md").read_text()
    assert "preset cpu" in page
    assert "| Secret | – (0.990) |" in page


def test_one_seed_of_all_methods_comes_first(papers, monkeypatch):
    asked = []
    monkeypatch.setattr("equipoise.cli.reproduce.do_runs", lambda jobs, *_: (asked.extend(jobs), [], False))
    invoke("reproduce", "small:table1")
    assert [job.seed for job in asked] == [0, 0, 0, 1, 1, 1]
    assert [job.method for job in asked[:3]] == ["fedavg", "eagle(lam=2.0)", "local_only"]


def test_a_run_that_failed_is_told(papers, tmp_path):
    do_runs(("FedAvg",), (0,))
    place = next((tmp_path / "runs").glob("gaussians-fedavg-*"))
    facts = json.loads((place / "manifest.json").read_text())
    write_manifest(place, {**facts, "status": "failed", "why": "the power went"})
    invoke("reproduce", "small:table1", "--stored", "--seeds", "1")
    assert read_result(tmp_path)["missing"]["FedAvg"] == "failed: the power went"


def test_a_dry_run_trains_nothing_that_it_keeps(papers, tmp_path):
    done = invoke("reproduce", "small:table1", "--dry-run", "--preset", "cpu")
    assert "6 of 6 runs to do: about " in done.output
    assert "Secret is left out: its rule is not public." in done.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["smal:table1"], "There is no paper `smal`. Did you mean `small`?"),
        (["small:tabel1"], "`small` has no `tabel1`. Did you mean `table1`?"),
        (["small:table1", "--only", "FedAvgg"], "no row `FedAvgg`. Did you mean `FedAvg`?"),
        (["small", "--only", "FedAvg"], "--only names rows of one table"),
        (["small:table1", "--preset", "gpu"], "--preset must be one of"),
        (["small:table2", "--preset", "paper"], "has no preset `paper`. It has: cpu."),
        (["small:table1", "--seeds", "many"], "--seeds must be a number"),
        (["small:table2"], "put `<domain>/<class>/<image>` into a folder `office_caltech_10`"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(papers, words, complaint):
    with pytest.raises(EquipoiseError) as found:
        invoke("reproduce", *words)
    assert complaint in str(found.value)
