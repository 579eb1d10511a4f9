"""What figures are taken over, by which optima gaps are judged, which runs are pooled, and how parameters are shown."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import equipoise as eq
from equipoise.runs.reading import WEIGHTS, find_runs, read
from equipoise.study.report.figures import group_studies
from equipoise.study.report.plots import PLOTS
from equipoise.study.report.sweeps import find_grids, find_sweeps
from equipoise.study.report.tables import say_legend, write_csv
from equipoise.study.report.view import View
from kit.command import invoke
from kit.made_runs import made

CURVE = np.array([[0.2, 0.4, 0.6, 0.8], [0.5, 0.7, 0.9, 0.9], [0.7, 0.7, 0.8, 1.0]])
DOMAINS = ["a", "a", "b", "b"]


def one_study(folder, **view):
    (study,) = group_studies([read(place) for place in find_runs([folder])], view=View(**view))
    return study


@pytest.fixture
def curves(tmp_path):
    made(tmp_path / "r", "fedavg", CURVE, domains=DOMAINS)
    return tmp_path / "r"


def test_figures_are_over_clients_or_domains_with_either_divisor(curves):
    plain, paper = one_study(curves), one_study(curves, over="domains", ddof=1)
    assert plain.table["fedavg"]["STD"].mean == pytest.approx(np.std([0.7, 0.7, 0.8, 1.0]))
    assert paper.table["fedavg"]["STD"].mean == pytest.approx(np.std([0.7, 0.9], ddof=1))
    assert paper.table["fedavg"]["MIN"].mean == pytest.approx(0.7)
    assert "over domains (STD with ddof 1)" in say_legend(paper)
    assert "standard deviation over domains, ddof 1" in write_csv(paper)


def test_the_last_rounds_are_averaged_before_figures_are_taken(curves):
    """As FedHEAL does it: the mean accuracy of each domain over the last rounds, then their STD."""
    study = one_study(curves, over="domains", ddof=1, last=2)
    means = [(0.6 + 0.7) / 2, (0.9 + 0.9) / 2]
    assert study.table["fedavg"]["STD"].mean == pytest.approx(np.std(means, ddof=1))
    assert study.table["fedavg"]["AVG"].mean == pytest.approx(np.mean(means))


def test_curves_and_sweeps_follow_the_view(tmp_path):
    for q in (0.1, 1.0):
        made(tmp_path / "r", f"qffl(q={q})", CURVE, domains=DOMAINS, parameters={"qffl": {"q": q}})
    study = one_study(tmp_path / "r", over="domains", ddof=1)
    spread = next(panel for panel in PLOTS["convergence"](study).panels if panel.title == "STD")
    assert spread.marks[0].y == pytest.approx([100 * np.std(v, ddof=1) for v in ([0.3, 0.7], [0.6, 0.9], [0.7, 0.9])])
    (panel,) = PLOTS["sweep"](study).panels
    assert panel.marks[1].y == pytest.approx([100 * np.std([0.7, 0.9], ddof=1)] * 2)
    assert "STD (ddof 1) over domains" in PLOTS["sweep"](study).caption


def test_two_parameters_are_a_heat_map(tmp_path):
    for tau in (0.2, 0.3):
        for beta in (0.1, 0.4, 0.7):
            parameters = {"fedheal": {"tau": tau, "beta": beta}}
            made(tmp_path / "r", f"fedheal(tau={tau}, beta={beta})", CURVE[-1] - tau * beta, parameters=parameters)
    study = one_study(tmp_path / "r")
    assert not find_sweeps(study)  # rows and columns of the grid
    (grid,) = find_grids(study)
    assert grid.axes == ([0.2, 0.3], [0.1, 0.4, 0.7])
    average, _ = PLOTS["grid"](study).panels
    expected = [[100 * (CURVE[-1].mean() - tau * beta) for tau in (0.2, 0.3)] for beta in (0.1, 0.4, 0.7)]
    np.testing.assert_allclose(average.marks[0].values, expected)
    assert average.x_ticks == {0.0: "0.2", 1.0: "0.3"}


def test_volatility_is_the_mean_change_in_the_second_half(tmp_path):
    averages = np.array([0.1, 0.9, 0.5, 0.6, 0.4, 0.7])
    made(tmp_path / "r", "fedavg", np.stack([averages, averages], axis=1))
    table = one_study(tmp_path / "r").table["fedavg"]
    assert table["AVG, volatility"].mean == pytest.approx((0.2 + 0.3) / 2)
    assert table["STD, volatility"].mean == pytest.approx(0)
    assert table["weight volatility"].mean == 0


def test_gaps_are_judged_by_the_optima_that_eagle_steers_by(tmp_path):
    loss = np.array([0.5, 0.6, 0.7, 0.9])
    made(tmp_path / "r", "fedavg", CURVE[-1], loss=loss)
    made(tmp_path / "r", "local_only", CURVE[-1], loss=loss - 0.3)
    assert one_study(tmp_path / "r").gaps("fedavg")[0] == pytest.approx([0.3] * 4)
    place = made(tmp_path / "r", "eagle", CURVE[-1], loss=loss + 0.1, parameters={"eagle": {"gap_split": "validation"}})
    rows = {"round": [1] * 4, "client": [f"c{k}" for k in range(4)], "weight": [0.25] * 4, "figure": ["optimum"] * 4}
    pq.write_table(pa.table({**rows, "value": [0.1, 0.2, 0.3, 0.4]}, schema=WEIGHTS), place / "weights.parquet")
    study = one_study(tmp_path / "r", ddof=1)
    assert study.gaps("fedavg")[0] == pytest.approx([0.4, 0.4, 0.4, 0.5])
    assert study.table["fedavg"]["gap variance"].mean == pytest.approx(np.var([0.4, 0.4, 0.4, 0.5], ddof=1))
    assert "validation loss minus its optimal loss there by which eagle steers" in study.define("gap mean")
    assert study.define("gap mean")[10:40] in PLOTS["gaps"](study).caption


def test_data_drawn_anew_for_each_seed_are_pooled(tmp_path):
    for seed in (0, 1):
        eq.save(eq.run("fedavg", "gaussians(seed='run', samples=20)", seed=seed, rounds=2), tmp_path / "r")
        eq.save(eq.run("fedavg", f"gaussians(seed={seed}, samples=20)", seed=seed, rounds=2), tmp_path / f"{seed}")
    study = one_study(tmp_path / "r")
    assert list(study.runs["fedavg"]) == [0, 1]
    pooled = [run.manifest["data"]["fingerprint"] for run in study.runs["fedavg"].values()]
    apart = [read(find_runs([tmp_path / f"{seed}"])[0]).manifest["data"]["fingerprint"] for seed in (0, 1)]
    assert pooled == apart
    assert len(group_studies([read(place) for seed in (0, 1) for place in find_runs([tmp_path / f"{seed}"])])) == 2


def test_the_command_takes_the_view(curves, tmp_path):
    done = invoke(
        "report", str(curves), "--over", "domains", "--ddof", "1", "--last", "2", "-o", str(tmp_path / "p.html")
    )
    assert done.exit_code == 0, done.output
    assert "mean of the last 2 evaluated rounds, over domains (STD with ddof 1)" in (tmp_path / "p.md").read_text()
    with pytest.raises(eq.EquipoiseError, match="--over must be one of 'clients', 'domains'"):
        invoke("report", str(curves), "--over", "domain")
