"""The command line as a user meets it: in a process of its own, and what it prints."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from equipoise.cli import _seeds, app
from equipoise.types import EquipoiseError


def equipoise(*words, cwd):
    return subprocess.run(
        [sys.executable, "-c", "from equipoise.cli import main; main()", *words],
        cwd=cwd, capture_output=True, text=True, timeout=300, env={"COLUMNS": "160", "PATH": "", "PYTHONWARNINGS": "error"},
    )  # fmt: skip


def invoke(*words):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, list(words), catch_exceptions=False)


def test_run_prints_clients_domains_and_figures(tmp_path):
    done = equipoise(
        "run", "scanners", "--method", "fedheal(tau=0.3)", "--rounds", "2", "--seed", "1", "--participation", "0.5", "--lr",
        "0.02", "--epochs", "1", "--batch", "full", "--device", "cpu", "--eval-every", "2", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in (
        "fedheal(tau=0.3) on scanners, global model",
        "rotated 3",
        "over clients",
        "over domains",
        "STD",
        "ddof 0",
        "MIN",
    ):
        assert word in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert {p.name for p in folder.iterdir()} == {"manifest.json", "records.parquet"}


def test_compare_prints_one_table_and_says_what_it_shows(tmp_path):
    done = equipoise(
        "compare", "scanners", "--methods", "fedavg,fedheal(tau=0.3, beta=0.4),fedequilibria", "--seeds", "2", "--rounds", "2",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "fedheal(tau=0.3, beta=0.4)" in done.stdout
    assert "±" in done.stdout
    assert "Under fedavg the worst domain reaches" in done.stdout
    assert "Try next" in done.stdout
    assert len(list((tmp_path / "runs").iterdir())) == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "scaners"), "Did you mean `scanners`"),
        (("run", "scanners", "--method", "fedheel"), "Did you mean `fedheal`"),
        (("run", "scanners", "--rounds", "0"), "`rounds` must be at least 1"),
        (("run", "scanners", "--batch", "ten"), "--batch must be a whole number"),
        (("run", "scanners", "--runner", "fast"), "--runner must be one of"),
        (("run", "scanners", "--device", "cuda"), "not available here"),
        (("run", "scanners", "--optimizer", "SDG"), "Did you mean `SGD`"),
        (("compare", "scanners", "--seeds", "x"), "--seeds must be"),
        (("compare", "scanners", "--methods", ","), "at least one method"),
        (("methods", "fedheel"), "Did you mean `fedheal`"),
    ],
)
def test_a_users_mistake_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    from equipoise import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["equipoise", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    text = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in text
    assert "Traceback" not in text
    assert text.startswith("Error:")


def test_methods_lists_all_and_one():
    listed = invoke("methods").output
    for name in ("fedavg", "fedequilibria", "eagle", "f2dc", "fedheal", "fedfe", "local_only", "centralised"):
        assert name in listed
    one = invoke("methods", "fedheal").output
    for word in ("tau", "0.3", "office-caltech", "CVPR 2024", "ConsistencyMask", "MaskedMean"):
        assert word in one


def test_the_table_of_roles_names_every_method_and_part():
    from equipoise.method import METHODS

    table = CliRunner(env={"COLUMNS": "260"}).invoke(app, ["methods", "--table"], catch_exceptions=False).output
    for name in METHODS:
        assert name in table
    for word in ("ControlVariates", "SimplexAscent", "Consensus", "SimilarityMix", "clip=10.0", "steps=1"):
        assert word in table


def test_all_stands_for_every_method(tmp_path, monkeypatch):
    from equipoise import experiment
    from equipoise.method import METHODS

    class EnoughError(Exception):
        pass

    def stop(todo, *_):
        raise EnoughError([job.method for job in todo])

    monkeypatch.setattr(experiment, "execute_all", stop)
    with pytest.raises(EnoughError) as found:
        invoke("compare", "scanners", "--methods", "all", "--seeds", "1", "--out", str(tmp_path))
    assert found.value.args[0] == list(METHODS)


def test_other_models_of_a_run_are_shown(tmp_path):
    done = equipoise("run", "gaussians", "--method", "ditto", "--rounds", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in (
        "ditto on gaussians, personal model",
        "averaged-personal model, over domains",
        "global model, over domains",
    ):
        assert word in done.stdout


def test_references_are_not_called_winners():
    from equipoise.comparison import in_words, tabulate

    rows = [("fedavg", {"a": 0.9, "b": 0.3}), ("centralised", {"a": 0.9, "b": 0.9}), ("fedheal", {"a": 0.9, "b": 0.5})]
    said = " ".join(in_words(tabulate(rows)))
    assert "fedheal lifts the worst domain most: by 20.0 points" in said
    assert "centralised" not in said
    assert in_words(tabulate(rows[:2])) == []


def test_datasets_and_models_are_listed():
    assert "scanners" in invoke("datasets").output
    assert "small_cnn" in invoke("models").output


def test_seeds():
    assert _seeds("3") == [0, 1, 2]
    assert _seeds("0,42,100") == [0, 42, 100]
    assert _seeds("7,") == [7]
    for wrong in ("0", "", "a", "-1"):
        with pytest.raises(EquipoiseError):
            _seeds(wrong)
