"""What changed between two folders of runs."""

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise import EquipoiseError
from equipoise.cli import app
from equipoise.runs.reading import read_all
from equipoise.study.report.difference import draw_change, list_clients, list_rows, list_settings, match
from equipoise.study.report.figures import group_studies
from kit.made_runs import made

NAMES = ["a", "b", "c", "d"]
BASE = np.array([0.95, 0.93, 0.90, 0.60])


@pytest.fixture
def folders(tmp_path):
    """The new runs lift d by 5 points under qffl, and b by luck alone; they have a method more, and one fewer."""
    luck = [0.03, 0.0, -0.03]
    for seed in range(3):
        shift = 0.01 * seed
        for method in ("fedavg", "qffl", "afl"):
            made(tmp_path / "old", method, BASE + shift, seed=seed, names=NAMES)
        changed = BASE + shift + [0, luck[seed], 0, 0.05]
        for method, values in (("fedavg", BASE + shift), ("qffl", changed), ("term", BASE)):
            made(tmp_path / "new", method, values, seed=seed, names=NAMES)
    return tmp_path / "old", tmp_path / "new"


def compare(old, new):
    (pair,) = match(*(group_studies(read_all([folder])[0]) for folder in (old, new)))
    return pair


def test_changes_are_paired_by_seed(folders):
    pair = compare(*folders)
    rows = {(row[0], row[1]): row[2:] for row in list_rows(pair)}
    assert pair.methods == ["fedavg", "qffl"]
    assert rows["qffl", "MIN"] == ["61.0 ± 2.5", "66.0 ± 2.5", "+5.0 ± 0.0", "beyond the spread of seeds"]
    assert rows["fedavg", "MIN"][2:] == ["+0.0 ± 0.0", "no change"]
    assert rows["qffl", "levelling down"] == ["passed", "passed", "–", ""]
    assert list_clients(pair) == ["qffl: of 4 clients 1 rose (d +5.0)."]  # b is not named


def test_other_seeds_or_data_are_not_paired(folders, tmp_path):
    for seed in (7, 8):
        made(tmp_path / "later", "fedavg", BASE + 0.1, seed=seed, names=NAMES)
    apart = compare(folders[0], tmp_path / "later")
    assert list_rows(apart)[2][4:] == ["+9.0", "not paired: no seed in common"]
    made(tmp_path / "other", "fedavg", BASE, names=NAMES, rounds=9, model="mlp")
    pair = compare(folders[0], tmp_path / "other")
    assert list_settings(pair) == ["model: linear → mlp", "rounds: 1 → 9"]
    pair.new.any.manifest["data"]["fingerprint"] = "other samples"
    assert list_settings(pair)[0] == "the data differ: seeds are not paired"
    assert pair.find_seeds("fedavg") == []


def test_the_nearest_settings_are_compared(folders, tmp_path):
    made(tmp_path / "old", "fedavg", BASE, names=NAMES, model="mlp")
    made(tmp_path / "again", "fedavg", BASE, names=NAMES, model="mlp")
    assert list_settings(compare(folders[0], tmp_path / "again")) == []


def test_the_page_of_what_changed(folders, tmp_path):
    out = tmp_path / "changed.html"
    done = CliRunner().invoke(app, ["report", "--diff", *map(str, folders), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "made, before: afl leaves the worst client (d) at 61.0 %" in done.stdout
    assert "made, now: qffl lifts the worst client (d) from 61.0 to 66.0 %" in done.stdout
    told = r"qffl: AVG 85\.5 → 86\.8 \(\+1\.[23] ± 1\.9 points, within the spread of seeds\); MIN 61\.0 → 66\.0"
    assert re.search(told, done.stdout)
    assert "Only in the old runs: afl." in done.stdout
    text = out.read_text()
    assert "Only in the new runs: term." in text
    assert not re.search(r"https?://|<link|@import|url\(|\bsrc=|fetch\(|XMLHttp", text)
    assert "<option selected>qffl</option>" in text
    assert "| qffl | MIN | 61.0 ± 2.5 | 66.0 ± 2.5 | +5.0 ± 0.0 |" in out.with_suffix(".md").read_text()


def test_runs_of_other_data_have_nothing_to_compare(folders, tmp_path):
    made(tmp_path / "else", "fedavg", BASE, data="else")
    with pytest.raises(EquipoiseError, match="the old runs are of made, the new ones of else"):
        compare(folders[0], tmp_path / "else")


def test_other_clients_are_not_drawn_from_old_to_new(folders, tmp_path):
    made(tmp_path / "fewer", "fedavg", BASE[:2], names=NAMES[:2])
    pair = compare(folders[0], tmp_path / "fewer")
    assert draw_change(pair) is None
    assert list_clients(pair) == []
