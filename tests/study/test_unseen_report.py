"""Clients that are held out stand apart: in figures, tables, the page and the files beside it."""

import csv
import io
import json

import numpy as np
import pytest

from equipoise import EquipoiseError, compare, save
from equipoise.runs.reading import read
from equipoise.study.experiment import read_experiment
from equipoise.study.report.figures import group_studies
from equipoise.study.report.page import write
from equipoise.study.report.plots import PLOTS
from equipoise.study.report.summary import summarise
from equipoise.study.report.tables import write_clients
from equipoise.study.report.unseen import list_left_out, list_unseen_columns, list_unseen_rows
from kit import blobs, quiet
from kit.command import equipoise


@pytest.fixture(scope="module")
def left_out(tmp_path_factory):
    """Two methods, each with either domain held out."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        read(save(quiet(method, blobs(), rounds=2, seed=seed, hold_out=which), folder))
        for which in ("d0", "d1")
        for method in ("fedavg", "fedheal", "select_in_turn")
        for seed in (0, 1)
    ]


def test_figures_over_clients_do_not_have_them(left_out):
    study, other = group_studies(left_out)  # another domain held out is another study
    assert (study.name, other.name) == ("blobs, unseen: d0", "blobs, unseen: d1")
    run = study.runs["fedavg"][0]
    seen, unseen = run.curve()[1][-1], run.curve(split="unseen")[1][-1]
    assert (len(seen), len(unseen)) == (2, 2)
    assert study.per_seed("fedavg", "AVG")[0] == pytest.approx(seen.mean())
    mean = np.mean([r.curve(split="unseen")[1][-1].mean() for r in study.runs["fedavg"].values()])
    assert study.table["fedavg"]["AVG unseen"].mean == pytest.approx(mean)


def test_they_have_a_table_of_their_own(left_out):
    study = group_studies(left_out)[0]
    assert list_unseen_columns(study) == ["method", "c0", "c1", "AVG", "MIN"]
    rows = {row[0]: row[1:] for row in list_unseen_rows(study)}
    assert set(rows) == {"fedavg", "fedheal", "select_in_turn"}
    values = 100 * np.stack([r.curve(split="unseen")[1][-1] for r in study.runs["fedheal"].values()])
    assert rows["fedheal"][0].startswith(f"{values[:, 0].mean():.1f} ±")
    assert rows["fedheal"][3].startswith(f"{values.min(1).mean():.1f} ±")
    head, table = list_left_out(group_studies(left_out))
    assert head == ["method", "d0", "d1", "mean"]
    both = [study.table["fedavg"]["AVG unseen"].mean for study in group_studies(left_out)]
    assert table[0][-1] == f"{100 * sum(both) / 2:.1f}"
    assert list_left_out(group_studies(left_out)[:1]) is None


def test_the_page_and_the_files_beside_it_show_them_apart(left_out, tmp_path):
    files = {path.suffix: path.read_text() for path in write(left_out, tmp_path / "report.html")}
    assert files[".html"].count(">Unseen clients</h2>") == 2
    assert "Left out in turn" in files[".html"]
    assert "### Unseen clients" in files[".md"]
    assert files[".tex"].count(r"\begin{tabular}") == 4
    rows = list(csv.DictReader(io.StringIO(write_clients(group_studies(left_out)[0]))))
    assert {row["client"] for row in rows if row["held_out"]} == {"c0", "c1"}
    assert {row["client"] for row in rows if not row["held_out"]} == {"c2", "c3"}
    study = group_studies(left_out)[0]
    assert len(PLOTS["unseen"](study).panels) == 2
    assert "AVG unseen" in json.dumps(summarise(study))


def test_without_them_nothing_is_said_of_them(tmp_path):
    run = read(save(quiet("fedavg", blobs(), rounds=1), tmp_path / "runs"))
    files = {path.suffix: path.read_text() for path in write([run], tmp_path / "report.html")}
    assert "nseen" not in files[".html"].split("<body>")[1].split("<script>")[0]
    assert "Unseen" not in files[".md"]
    assert list_unseen_rows(group_studies([run])[0]) == []
    assert PLOTS["unseen"](group_studies([run])[0]) is None


def test_participation_has_a_panel_per_selection(tmp_path):
    runs = [
        read(save(quiet(text, blobs(), rounds=4, participation=0.5), tmp_path))
        for text in ("fedavg", "fedheal", "select_in_turn")
    ]
    chart = PLOTS["participation"](group_studies(runs)[0])
    assert [panel.title for panel in chart.panels] == ["fedavg, fedheal", "select_in_turn"]
    assert "its turn comes later" in chart.caption


def test_a_comparison_in_python_has_a_second_table():
    found = compare(["fedavg", "fedheal"], blobs(), seeds=1, rounds=1, hold_out=["c1"])
    assert list(found.unseen.columns) == ["c1", "AVG", "STD", "MIN"]
    assert "Clients that are held out of training:" in str(found)
    assert compare("fedavg", blobs(), seeds=1, rounds=1).unseen is None


def test_on_the_command_line(tmp_path):
    done = equipoise("run", "gaussians", "--hold-out", "client 1", "--rounds", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "client 1 (unseen)" in done.stdout
    assert "over unseen" in done.stdout
    for which, words in (("client 9", "Did you mean"), ("3", "hold_out must be from 0 to 2")):
        wrong = equipoise("run", "gaussians", "--hold-out", which, cwd=tmp_path)
        assert wrong.returncode != 0
        assert words in wrong.stderr
        assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize(("value", "held"), [("2", 2), ("'client 1'", 1), ("['client 0', 'client 2']", 2)])
def test_in_an_experiment_file(value, held, tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(f"methods = ['fedavg']\ndata = ['gaussians']\nseeds = 1\nhold_out = {value}\n")
    experiment = read_experiment(path)
    settings = experiment.jobs[0].settings(experiment.data["gaussians"])
    assert len(settings.federation.unseen) == held


def test_a_wrong_name_in_an_experiment_file_is_told_with_its_line(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text("methods = ['fedavg']\ndata = ['gaussians']\nseeds = 1\nhold_out = 'cleint 1'\n")
    with pytest.raises(EquipoiseError, match=r"study.toml:4: There is no client and no domain `cleint 1`.*`client 1`"):
        read_experiment(path)
