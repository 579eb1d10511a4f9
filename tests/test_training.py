"""Settings of local training that are changed, and what a run says about it."""

import pytest

from equipoise import EquipoiseError, Training
from equipoise.engine.settings import Settings
from equipoise.study.experiment import read_experiment
from kit import blobs
from kit.command import equipoise

USUAL = Training(lr=0.1, momentum=0.9)


def test_momentum_is_dropped_where_the_optimizer_has_none():
    assert USUAL.change({"optimizer": "adamw"}) == Training(lr=0.1, optimizer="AdamW")
    assert USUAL.change({"optimizer": "RMSprop"}).momentum == 0.9
    assert USUAL.change({"lr": 0.2}).momentum == 0.9
    assert USUAL.change({"momentum": 0.5}).momentum == 0.5
    with pytest.raises(EquipoiseError, match=r"AdamW has no momentum. Found momentum=0.9: set it to 0"):
        USUAL.change({"optimizer": "AdamW", "momentum": 0.9})


def test_a_run_says_so():
    data = blobs()  # whose protocol has a momentum of 0.9 and a learning rate of 0.1
    usual = data.protocol.training
    kept = Settings.of("fedavg", data, training=usual.change({"optimizer": "AdamW"}))
    assert kept.notes == (
        "AdamW has no momentum: the data set's momentum of 0.9 is dropped. Its learning rate of 0.1 is kept.",
    )
    both = Settings.of("fedavg", data, training=usual.change({"optimizer": "AdamW", "lr": 0.01}))
    assert both.notes == ("AdamW has no momentum: the data set's momentum of 0.9 is dropped.",)
    assert Settings.of("fedavg", data, training=usual.change({"lr": 0.2})).notes == ()
    assert Settings.of("fedavg", data).notes == ()


def test_on_the_command_line_in_experiment_files_and_over_flower(tmp_path):
    done = equipoise("run", "scanners", "--optimizer", "AdamW", "--lr", "0.001", "--rounds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "AdamW has no momentum: the data set's momentum of 0.9 is dropped." in done.stderr
    (tmp_path / "plan.toml").write_text(
        "methods = ['fedavg']\ndata = ['scanners']\nseeds = 1\n[training]\noptimizer = 'Adam'\n"
    )
    (job,) = read_experiment(tmp_path / "plan.toml").jobs
    assert (job.training.optimizer, job.training.momentum) == ("Adam", 0)
    plan = pytest.importorskip("equipoise.flower.plan", reason="Flower is not installed").Plan
    assert plan(training={"optimizer": "Adam"}).trained_as(USUAL).momentum == 0
