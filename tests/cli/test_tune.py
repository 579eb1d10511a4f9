"""The command `equipoise tune`, and the table [tune] of an experiment file."""

import json
import re
import shlex

import pytest

from equipoise import EquipoiseError
from equipoise.study.experiment import read_experiment
from kit.command import equipoise, invoke

WORDS = ("--trials", "4", "--rounds", "8", "--methods", "fedprox,fedheal", "--rivals", "qffl", "--seeds", "2")


def test_a_study_is_done_told_and_its_commands_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("tune", "gaussians", *WORDS, "-o", "found")
    assert done.exit_code == 0, done.stderr
    for part in (
        "compositions",
        "local_only",
        "Train it: equipoise run gaussians",
        "Deploy it: equipoise deploy init app",
    ):
        assert part in done.stdout
    (place,) = (tmp_path / "found").iterdir()
    assert (place / "tune.html").read_text().startswith("<!doctype html>")
    commands = json.loads((place / "tune.json").read_text())["commands"]
    for words in map(shlex.split, commands.values()):
        again = invoke(*words[1:])
        assert again.exit_code == 0, again.stderr


def test_an_experiment_file_can_ask_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        'data = ["gaussians"]\nrounds = 8\n[tune]\ntrials = 4\nmethods = ["fedprox"]\nrivals = []\nseeds = 2\n'
    )
    done = invoke("run", "mine.toml")
    assert done.exit_code == 0, done.stderr
    assert "Deploy it" in done.stdout


def test_mistakes_in_the_table_are_named_with_their_line(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('data = ["gaussians"]\n[tune]\ntrails = 4\nobjective = "best"\n')
    with pytest.raises(EquipoiseError) as said:
        read_experiment(file)
    assert "mine.toml:3: A tuning has no `trails`. Did you mean `trials`?" in str(said.value)
    assert "mine.toml:4: objective must be one of 'worst', 'worst10', 'pareto'" in str(said.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--trials", "4", "--minutes", "3"), "one of the two"),
        (("--methods", "fedheel"), "Did you mean `fedheal`?"),
        (("--methods", "ditto"), "does not say what it adds"),
        (("--objective", "best"), "objective must be one of"),
    ],
)
def test_mistakes_on_the_command_line_are_refused(tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EquipoiseError, match=re.escape(expected)):
        invoke("tune", "gaussians", *words)
    assert not list(tmp_path.iterdir())


def test_a_mistake_is_said_without_a_trace(tmp_path):
    done = equipoise("tune", "gaussians", "--trials", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "too small for one rung" in done.stderr
    assert "Traceback" not in done.stderr
