"""What a report says of convergence: per method, on the page, in tables and for programs."""

import numpy as np

from equipoise.runs.reading import read_all
from equipoise.study.report.converged import judge_runs
from equipoise.study.report.figures import group_studies
from equipoise.study.report.notices import tell_notices
from equipoise.study.report.page import write
from kit.made_runs import made

ROUNDS = np.arange(1, 61)[:, None]
NOISE = np.random.default_rng(0).normal(size=(2, 60, 3)) * 0.002


def study_of(folder):
    return group_studies(read_all([folder])[0])[0]


def test_a_method_that_still_rises_is_named_everywhere(tmp_path):
    flat = np.full((60, 3), 0.8)
    rising = 0.4 + 0.005 * ROUNDS * np.array([[1.0, 1.0, 1.0]])
    for seed in (0, 1):
        made(tmp_path / "r", "fedavg", rising + NOISE[seed], seed=seed)
        made(tmp_path / "r", "fedheal", flat + NOISE[seed], seed=seed)
    study = study_of(tmp_path / "r")
    assert judge_runs(study, "fedheal").together.state == "flat"
    assert str(judge_runs(study, "fedheal")) == "flat"
    found = judge_runs(study, "fedavg")
    assert found.together.state == "rising"
    assert abs(found.together.trend.mean - 5.0) < 0.3
    assert str(found).endswith("0 of 2 runs flat")
    (line,) = tell_notices(study)
    assert line.startswith("fedavg: ")
    assert line.endswith(" points per 10 rounds: differences may be speed, not fairness.")
    paths = write(read_all([tmp_path / "r"])[0], tmp_path / "report.html")
    for path in paths:
        if path.suffix in (".html", ".md", ".tex"):
            assert "differences may be speed" in path.read_text(), path


def test_validation_data_decide_where_there_are_some(tmp_path):
    rising = 0.4 + 0.005 * ROUNDS * np.ones((1, 3))
    made(tmp_path / "r", "fedavg", rising, validation=np.full((60, 3), 0.7))
    assert judge_runs(study_of(tmp_path / "r"), "fedavg").together.state == "flat"
    made(tmp_path / "s", "fedavg", rising, validation=None)
    assert judge_runs(study_of(tmp_path / "s"), "fedavg").together.state == "rising"


def test_runs_of_different_lengths_are_judged_one_by_one(tmp_path):
    made(tmp_path / "r", "fedavg", np.full((60, 3), 0.8), seed=0)
    made(tmp_path / "r", "fedavg", 0.4 + 0.005 * ROUNDS[:50] * np.ones((1, 3)), seed=1, rounds=60)
    study = study_of(tmp_path / "r")
    found = judge_runs(study, "fedavg")
    assert [one.state for one in found.by_seed.values()] == ["flat", "rising"]
    assert found.together.state == "rising"
