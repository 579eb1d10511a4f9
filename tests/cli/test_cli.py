"""The command line as a user meets it: in a process of its own, and what it prints."""

import hashlib
import json
import os
import signal
import sys
import time

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.cli.options import read_seeds
from equipoise.cli.screens import say_standing
from equipoise.engine import RoundRecord
from equipoise.grammar import Mistakes
from equipoise.rounds import Score
from equipoise.study.experiment import read_experiment
from equipoise.training import check_training_changes
from equipoise.types import EquipoiseError
from kit.command import equipoise, invoke, stopped


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
    assert {p.name for p in folder.iterdir()} == {
        "manifest.json", "records.parquet", "weights.parquet", "selection.parquet", "model.safetensors"
    }  # fmt: skip


def test_compare_prints_one_table_and_says_what_it_shows(tmp_path):
    done = equipoise(
        "compare", "scanners", "--methods", "fedavg,fedheal(tau=0.3, beta=0.4),fedequilibria", "--seeds", "2", "--rounds", "2",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "fedheal(tau=0.3, beta=0.4)" in done.stdout
    assert "± half the width of the 95 % interval over seeds" in " ".join(done.stdout.split())
    assert "Validation data choose fed" in done.stdout
    assert "Levelling-down check of " in done.stdout
    assert "Try next" in done.stdout
    assert "--schedule" not in done.stdout
    assert len(list((tmp_path / "runs").glob("*/manifest.json"))) == 8  # local_only is added as a reference
    assert "Report: runs/report.html" in done.stdout
    page = (tmp_path / "runs" / "report.html").read_text()
    assert "Levelling down" in page
    assert "local_only" in page


@pytest.mark.slow
def test_comparisons_and_experiments_keep_for_plots(tmp_path):
    compared = equipoise(
        "compare", "gaussians", "--methods", "fedheal", "--seeds", "1", "--rounds", "2", "--keep", "separators,saliency",
        "--validation", "--workers", "1", cwd=tmp_path,
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr
    assert "No run could keep saliency" in " ".join(compared.stderr.split())
    assert "fedheal is the only one that can be compared" in compared.stdout
    assert '<figure id="separators">' in (tmp_path / "runs" / "report.html").read_text()
    (tmp_path / "plan.toml").write_text(
        "methods = ['fedheal']\ndata = ['gaussians']\nseeds = 1\nrounds = 2\nkeep = ['consistency']\n"
    )
    done = equipoise("run", "plan.toml", "--keep", "conflicts", "--out", "planned", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "planned" / "report.html").read_text()
    assert '<figure id="consistency">' in page
    assert '<figure id="conflicts">' in page
    with pytest.raises(EquipoiseError, match="Did you mean `separators`"):
        invoke("compare", "gaussians", "--keep", "separator")


def test_a_narrow_terminal_still_shows_the_methods(tmp_path):
    done = equipoise("compare", "gaussians", "--rounds", "1", "--seeds", "1", width=80, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("fedavg", "fedheal", "fedequilibria", "eagle(lam=2.0", "fedfe"):
        assert any(line.startswith(f"│ {name}") for line in done.stdout.splitlines()), done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if line[:1] in "│┃┏└") <= 80
    assert "f2dc is left out" in done.stderr  # it has no feature maps to work on, and was not asked for


@pytest.mark.slow
def test_a_terminated_run_keeps_its_rounds(tmp_path):
    """What a cluster's scheduler sends before it kills."""
    words = ("run", "scanners", "--rounds", "100000", "--runner", "inline")

    def some_rounds_are_over():
        return sum(f.stat().st_size for f in tmp_path.glob("runs/*/records.arrows")) > 20_000

    code, _, err = stopped(words, tmp_path, some_rounds_are_over, lambda process: process.terminate())
    assert code == 130, err
    assert "--resume" in err
    (manifest,) = tmp_path.glob("runs/*/manifest.json")
    assert json.loads(manifest.read_text())["status"] != "running"


@pytest.mark.slow
def test_a_finished_run_is_shown_and_done_again_only_if_asked(tmp_path):
    words = ("run", "gaussians", "--rounds", "2", "--out", str(tmp_path))
    first = invoke(*words)
    assert "Convergence: unknown: 1 evaluation in the last fifth of the rounds" in " ".join(first.stdout.split())
    (manifest,) = tmp_path.glob("*/manifest.json")
    written = manifest.stat().st_mtime_ns
    second = invoke(*words)
    assert "was finished before" in second.stdout
    assert manifest.stat().st_mtime_ns == written
    table = lambda text: [line for line in text.splitlines() if "client" in line]  # noqa: E731
    assert table(second.stdout) == table(first.stdout)
    third = invoke(*words, "--again")
    assert "was finished before" not in third.stdout
    assert manifest.stat().st_mtime_ns > written


def test_ctrl_c_stops_at_once_and_keeps_what_is_finished(tmp_path):
    words = ("compare", "scanners", "--methods", "fedavg", "--seeds", "40", "--rounds", "4", "--workers", "1")
    code, out, err = stopped(
        words, tmp_path, lambda: len(list(tmp_path.glob("runs/*/manifest.json"))) >= 2,
        lambda process: os.killpg(process.pid, signal.SIGINT),
    )  # fmt: skip
    assert code == 130, err
    assert "runs are finished and stored" in err
    assert "fedavg" in out
    before = len(list(tmp_path.glob("runs/*/manifest.json")))
    time.sleep(1)
    assert len(list(tmp_path.glob("runs/*/manifest.json"))) == before < 80  # no worker goes on


@pytest.mark.slow
def test_a_run_that_fails_does_not_take_the_others_with_it(tmp_path):
    done = equipoise(
        "compare", "scanners", "--methods", "fedavg,f2dc", "--seeds", "1", "--rounds", "2", "--lr", "3.0", "--batch", "10",
        "--momentum", "0.0", "--workers", "1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "f2dc, seed 0, is missing: The model of" in done.stderr
    assert "│ fedavg" in done.stdout
    assert "Traceback" not in done.stderr


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
        (("run", "scanners", "--model", "small_cnn(width=0)"), "`width` must be at least 1"),
        (("run", "scanners", "--optimizer", "Muon"), "Muon cannot train this model"),
        (("compare", "gaussians", "--methods", "f2dc"), "works on feature maps"),
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
    from equipoise.methods import METHODS
    from equipoise.study import workers

    class EnoughError(Exception):
        pass

    def stop(todo, *_):
        raise EnoughError([job.method for job in todo])

    monkeypatch.setattr(workers, "execute_all", stop)
    with pytest.raises(EnoughError) as found:
        invoke("compare", "scanners", "--methods", "all", "--seeds", "1", "--out", str(tmp_path))
    without_groups = [name for name in METHODS if name not in ("fairfed", "fedfb")]  # they are left out, with a note
    assert found.value.args[0] == without_groups


def test_no_figure_of_a_run_is_cut_off(tmp_path):
    words = ("run", "gaussians", "--rounds", "1", "--metrics", "precision,recall,f1,pr_auc")
    done = equipoise(*words, cwd=tmp_path, width=80)
    assert done.returncode == 0, done.stderr
    assert "…" not in done.stdout


def test_other_models_of_a_run_are_shown(tmp_path):
    done = equipoise("run", "gaussians", "--method", "ditto", "--rounds", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in (
        "ditto on gaussians, personal model",
        "averaged-personal model, over domains",
        "global model, over domains",
    ):
        assert word in done.stdout


def test_datasets_and_models_are_listed():
    assert "scanners" in invoke("datasets").output
    assert "small_cnn" in invoke("models").output


def test_progress_tells_the_worst_from_the_average():
    scores = tuple(Score(name, name, "test", "accuracy", value, 10) for name, value in (("a", 0.9), ("b", 0.5)))
    record = RoundRecord(1, (0, 1), (0.5, 0.5), {}, scores, 0.1)
    assert say_standing(*record.find_worst_and_average()) == "average 70.0 %, worst client 50.0 %"
    assert RoundRecord(1, (0, 1), (0.5, 0.5), {}, (), 0.1).find_worst_and_average() is None


def test_one_data_set_is_shown(tmp_path):
    done = equipoise("datasets", "gaussians(rotate=2)", "--plot", "--out", "pictures", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("gaussians: 3 clients", "mean 0.5", "300 rounds", "full batch", "EAGLE", "Fingerprint", "partition"):
        assert word in done.stdout
    assert (tmp_path / "pictures" / "gaussians.png").exists()
    assert "not here" in equipoise("datasets", "--data-dir", str(tmp_path), cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("datasets", "digit"), "Did you mean `digits`"),
        (("run", "./none"), "There is no file or folder `./none`"),
        (("run", "digits", "--data-dir", "/none"), "The data folder `/none` does not exist"),
        (("run", "digits(preset='cpuu')"), "Did you mean `cpu`"),
    ],
)
def test_a_mistake_about_data_is_one_line(words, message, tmp_path):
    done = equipoise(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("Error:")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_data_folder_reaches_the_workers(tmp_path):
    """The runs of a comparison happen in other processes."""
    from equipoise.data.sets import heart

    folder = tmp_path / "data" / "heart_disease"
    folder.mkdir(parents=True)
    for domain in heart.DOMAINS:
        rows = [f"{50 + i},1,{1 + i % 4},145,?,1,2,150,0,2.3,3,0,6,{i % 2}" for i in range(12)]
        (folder / f"processed.{domain}.data").write_text("\n".join(rows))
    done = equipoise(
        "compare", "heart", "--data-dir", str(tmp_path / "data"), "--methods", "fedavg,fedheal", "--seeds", "1", "--rounds",
        "1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").glob("*/manifest.json"))) == 3  # local_only beside them


def test_seeds_are_read():
    assert read_seeds("3") == [0, 1, 2]
    assert read_seeds("0,42,100") == [0, 42, 100]
    assert read_seeds("7,") == [7]
    for wrong in ("0", "", "a", "-1"):
        with pytest.raises(EquipoiseError):
            read_seeds(wrong)


def test_a_stopped_run_says_how_to_go_on_and_goes_on(tmp_path, monkeypatch):
    """Ctrl-C, then the same command with --resume: the same numbers, and no checkpoint is left behind."""
    words = [
        "run",
        "scanners",
        "--method",
        "scaffold",
        "--rounds",
        "5",
        "--checkpoint-every",
        "2",
        "--out",
        str(tmp_path),
    ]
    real = RoundRecord.find_worst_and_average

    def interrupted(record):
        if record.round == 3:
            raise KeyboardInterrupt
        return real(record)

    with monkeypatch.context() as patch:
        patch.setattr(RoundRecord, "find_worst_and_average", interrupted)
        patch.setattr(sys, "argv", ["equipoise", *words])
        stopped = invoke(*words)
    assert stopped.exit_code == 130
    assert "Stopped after round 3" in stopped.output  # beyond the last checkpoint: one more was written
    assert "equipoise run scanners --method scaffold --rounds 5" in stopped.output
    assert "--resume" in stopped.output
    with pytest.raises(EquipoiseError, match="unfinished run, at round 3"):
        invoke(*words)
    done = invoke(*words, "--resume")
    whole = invoke(*words[:-1], str(tmp_path / "other"))
    assert [line for line in done.output.splitlines() if "%" in line and "│" in line] == [
        line for line in whole.output.splitlines() if "%" in line and "│" in line
    ]
    assert not list(tmp_path.rglob(".checkpoints"))


def test_resume_needs_checkpoints(tmp_path):
    with pytest.raises(EquipoiseError, match="--resume needs checkpoints"):
        invoke("run", "scanners", "--rounds", "1", "--checkpoint-every", "0", "--resume", "--out", str(tmp_path))


def test_a_guarded_run(tmp_path):
    done = invoke("run", "scanners", "--method", "qffl(q=5)", "--rounds", "1", "--guard", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output


PLUGIN = '''
from dataclasses import dataclass

from equipoise import Method, register
from equipoise.parts.weights import shares
from equipoise.roles import Weigh
from equipoise.types import Weighed


@dataclass(frozen=True)
class Smallest(Weigh):
    """The fewer samples, the more weight."""

    @property
    def needs(self):
        return ("samples",)

    def __call__(self, round, state):
        return Weighed(shares(1 / round.reports["samples"].double()))


@register(title="The fewer samples, the more weight", reference="none")
def smallest_first() -> Method:
    return Method(weigh=Smallest())
'''


@pytest.mark.slow
def test_a_method_of_ones_own_on_the_command_line(tmp_path):
    (tmp_path / "own_methods.py").write_text(PLUGIN)
    words = ("--plugin", "own_methods.py")
    listed = equipoise(*words, "methods", "smallest_first", cwd=tmp_path)
    assert "The fewer samples, the more weight" in listed.stdout, listed.stderr
    done = equipoise(
        *words, "compare", "gaussians", "--methods", "fedavg,smallest_first", "--seeds", "2", "--rounds", "2",
        "--workers", "2", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "smallest_first" in done.stdout
    facts = {f["method"]: f for f in (json.loads(p.read_text()) for p in tmp_path.glob("runs/*/manifest.json"))}
    digest = hashlib.sha256((tmp_path / "own_methods.py").read_bytes()).hexdigest()[:16]
    assert facts["smallest_first"]["code"] == {"own_methods.py": digest}
    assert "code" not in facts["fedavg"]
    in_processes = equipoise(
        *words, "run", "scanners", "--method", "moon + smallest_first", "--rounds", "1", "--runner", "processes", cwd=tmp_path,
    )  # fmt: skip
    assert in_processes.returncode == 0, in_processes.stderr
    unknown = equipoise("run", "gaussians", "--method", "smallest_first", cwd=tmp_path)
    assert unknown.returncode == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("lacking.py", None, "A plugin is a Python file"),
        ("my-method.py", "", "whose name is a word"),
        ("broken.py", "import nothing_like_it", "Cannot import the plugin"),
        ("own/json.py", "", "has the name of another module"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_one_line(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = equipoise("--plugin", name, "methods", cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_an_experiment_file_is_not_overruled_in_silence(tmp_path):
    (tmp_path / "plan.toml").write_text("methods = ['fedavg']\ndata = ['gaussians']\nseeds = [0, 0]\nrounds = 1\n")
    with pytest.raises(EquipoiseError, match="--rounds, --guard must stand in the file itself"):
        invoke("run", str(tmp_path / "plan.toml"), "--rounds", "5", "--guard")
    assert [job.seed for job in read_experiment(tmp_path / "plan.toml").jobs] == [0]  # a seed named twice runs once


def test_epochs_replace_the_steps_of_a_data_set():
    assert check_training_changes({"epochs": 5}, Mistakes()) == {"epochs": 5, "steps": None}


def test_resuming_what_never_began_is_an_error(tmp_path):
    with pytest.raises(EquipoiseError, match="There is no checkpoint to go on from"):
        invoke("run", "gaussians", "--rounds", "2", "--resume", "--out", str(tmp_path))


def test_a_narrow_screen_breaks_the_names_of_methods_and_cuts_no_figure(tmp_path):
    """With 80 columns `74.0 ± 0.8` was shown as `74.0 ± 0…` beside a long name."""
    long = "fedequilibria(t=0.9, fim_scale='mean')"
    words = [
        "compare",
        "gaussians",
        "--methods",
        f"fedavg,{long}",
        "--rounds",
        "2",
        "--seeds",
        "2",
        "--out",
        str(tmp_path),
    ]
    done = CliRunner(env={"COLUMNS": "60"}).invoke(app, words, catch_exceptions=False)
    table = done.output.partition("┏")[2].partition("└")[0]
    assert "±" in table
    assert "…" not in table
    names = "".join(line.split("│")[1].strip() for line in table.splitlines() if "│" in line)
    assert long.replace(" ", "") in names.replace(" ", "")
