"""The figures that papers print, on runs made by hand."""

import json
import math

import numpy as np
import pytest

from equipoise.errors import EquipoiseError
from equipoise.runs.reading import read
from equipoise.study.report.view import View
from equipoise.study.reproduce.figures import FIGURES, Measured
from kit.made_runs import made

DOMAINS = ["mnist", "mnist", "syn"]


@pytest.fixture
def run(tmp_path):
    values = [[0.2, 0.4, 0.1], [0.6, 0.8, 0.3], [0.8, 1.0, 0.5]]  # mnist: 0.3, 0.7, 0.9; syn: 0.1, 0.3, 0.5
    loss = [[2.0, 2.0, 3.0], [1.0, 1.2, 2.0], [0.5, 0.7, 1.5]]
    return read(made(tmp_path / "r", "fedavg", values, domains=DOMAINS, loss=loss))


def measure(name, one, unit=()):
    return FIGURES[name].measure(one, unit)


def test_figures_over_domains_and_clients_with_either_divisor(run):
    one = Measured(run, View("domains", 1))
    assert measure("AVG", one) == pytest.approx(70)  # (0.9 + 0.5) / 2
    assert measure("STD", one) == pytest.approx(100 * 0.4 / math.sqrt(2))  # two values, ddof 1
    assert measure("STD", Measured(run, View("domains", 0))) == pytest.approx(20)
    assert measure("MIN", one) == pytest.approx(50)
    assert measure("accuracy of a unit", one, ("generated", "syn")) == pytest.approx(50)
    assert math.isnan(measure("accuracy of a unit", one, ("svhn",)))
    clients = Measured(run, View("clients"))
    assert measure("accuracy", clients) == pytest.approx((0.8 + 1.0 + 0.5) / 3)
    assert measure("accuracy of a unit", clients, ("c1",)) == pytest.approx(100)


def test_the_mean_of_the_last_rounds_is_taken_before_the_spread(run):
    one = Measured(run, View("domains", 0, 2))
    assert measure("AVG", one) == pytest.approx(60)  # mnist 0.8, syn 0.4
    assert measure("STD", one) == pytest.approx(20)


def test_figures_of_the_whole_curve(run):
    one = Measured(run, View("domains", 0))
    assert measure("AVG of the curve", one) == pytest.approx(100 * (0.2 + 0.5 + 0.7) / 3)
    assert measure("STD of the curve", one) == pytest.approx(100 * (0.1 + 0.2 + 0.2) / 3)
    assert measure("lowest STD", one) == pytest.approx(10)
    assert measure("AVG volatility", one) == pytest.approx(20)  # the second half: 0.5 and 0.7
    assert measure("STD volatility", one) == pytest.approx(0)


def test_gaps_are_measured_against_training_alone(run, tmp_path):
    alone = read(made(tmp_path / "a", "local_only", np.full((1, 3), 0.5), domains=DOMAINS, loss=[[0.4, 0.9, 1.0]]))
    one = Measured(run, View("clients", 1), alone=alone)
    gaps = [0.1, -0.2, 0.5]
    assert measure("max_gap", one) == pytest.approx(0.5)
    assert measure("min_gap", one) == pytest.approx(-0.2)
    assert measure("var_gap", one) == pytest.approx(np.var(gaps, ddof=1))
    assert measure("gap", one, ("c2",)) == pytest.approx(0.5)
    assert measure("loss", one, ("c0",)) == pytest.approx(0.5)
    assert measure("range of L*", one) == pytest.approx(
        1.0
    )  # validation losses are those of the last round: 0.5 to 1.5
    with pytest.raises(EquipoiseError, match="`local_only` with the same seed"):
        measure("var_gap", Measured(run))
    with pytest.raises(EquipoiseError, match="no loss on train data"):
        measure("train loss", one, ("c0",))


def test_what_runs_kept_becomes_a_number(run):
    one = Measured(run)
    with pytest.raises(EquipoiseError, match="kept no spectrum"):
        measure("effective rank", one)
    points = [[0.0, 0.0], [0.1, 0.0], [5.0, 0.0], [5.1, 0.0]]
    shares = [0.0] * 15 + [0.5, 0.1, 0.1, 0.1, 0.2]  # bins of 0.025 from 0.5 on: those from 0.9 on are the last four
    kept = {
        "features": {
            "singular": [5.0, 1.0],
            "points": points,
            "classes": ["a", "a", "b", "b"],
            "domains": [],
        },
        "spectrum": {"clients": ["a", "b"], "domains": [], "singular": [[2.0, 2.0, 2.0, 0.0], [7.0, 0.0, 0.0, 0.0]]},
        "consistency(client='a', layer='stages.1')": {"10": shares, "last 10": shares[::-1]},
    }
    (run.place / "analysis.json").write_text(json.dumps(kept))
    assert measure("effective rank", one) == pytest.approx(2)  # three equal values, and one: the mean over clients
    assert measure("silhouette", one) > 0.9
    assert measure("same direction, 10 rounds", one) == pytest.approx(50)
    assert math.isnan(measure("same direction, 100 rounds", one))
    assert measure("same direction, last 10 rounds", one) == pytest.approx(0)


def test_costs_are_those_of_all_clients(run):
    one = Measured(run)  # ten parameters, forty bytes and a thousand operations for each of three clients
    assert measure("upload_params_1e7", one) == pytest.approx(30 / 1e7)
    assert measure("comm_MB", one) == pytest.approx(120 / 2**20)
    assert math.isnan(measure("train_time_s", one))
