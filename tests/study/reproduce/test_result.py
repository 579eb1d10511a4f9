"""Results put together from real runs on embedded data: gains, other metrics, absolute values, costs, stand-ins."""

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from equipoise import load_federation
from equipoise.engine.simulation import prepare_simulation
from equipoise.study.jobs import run_and_record
from equipoise.study.reproduce import estimate
from equipoise.study.reproduce.entries import read_entry
from equipoise.study.reproduce.plan import build_plan
from equipoise.study.reproduce.result import gather
from equipoise.study.reproduce.stand_ins import find_stand_ins

TABLE = """
title = "Table 1"
columns = ["AVG", "AVG_gain", "easy"]
ordering = ["AVG"]
[units]
easy = ["mean 2.0"]
[presets.paper]
data = "gaussians"
seeds = [0, 1]
rounds = 3
[[rows]]
name = "FedAvg"
method = "fedavg"
published = { AVG = 0.0 }
[[rows]]
name = "FedHEAL"
method = "fedheal"
gains_over = "FedAvg"
published = { AVG = 200.0, AVG_gain = 1.0 }
[[claims]]
text = "FedHEAL gains"
column = "AVG_gain"
row = "FedHEAL"
at_least = -100.0
"""


def build(tmp_path, text, preset="paper"):
    path = tmp_path / "own" / "table1.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return build_plan(read_entry(path), preset)


def test_cells_gains_and_absolute_values(tmp_path):
    plan = build(tmp_path, TABLE)
    assert [(p.method, p.job.seed) for p in plan.runs] == [("fedavg", 0), ("fedavg", 1), ("fedheal", 0), ("fedheal", 1)]
    results = {}
    for planned in plan.runs:
        run, _ = run_and_record(planned.job, prepare_simulation(planned.settings), tmp_path / "runs")
        results[planned.method, planned.job.seed] = run
    result = gather(plan, tmp_path / "runs", "command")
    for seed in (0, 1):
        own, other = (results[method, seed].figures(by="domain").avg for method in ("fedheal", "fedavg"))
        assert result.cells["FedHEAL"]["AVG"][seed] == pytest.approx(100 * own)
        assert result.cells["FedHEAL"]["AVG_gain"][seed] == pytest.approx(100 * (own - other))
        easy = results["fedavg", seed].by_domain()["mean 2.0"]
        assert result.cells["FedAvg"]["easy"][seed] == pytest.approx(100 * easy)
    assert result.cells["FedAvg"]["AVG_gain"] == {}
    assert result.claims[0].state == "holds"
    assert result.absolute in (f"{n} of 3 published values lie in our 95 % intervals." for n in range(4))
    assert result.seconds > 0
    assert result.stand_ins == ()
    assert result.label == "Preset paper: the protocol of the paper."
    assert set(result.flat) == {"FedAvg", "FedHEAL"}
    assert not result.flat["FedAvg"].is_flat  # three rounds are too few to tell
    assert "3 rounds, 3 clients a round, linear" in result.settings[0]


def test_costs_follow_from_the_settings_and_nothing_is_trained(tmp_path):
    text = TABLE.replace('columns = ["AVG", "AVG_gain", "easy"]', 'columns = ["upload_params_1e7"]\ncosts_only = true')
    text = text.replace('ordering = ["AVG"]', "").replace('[units]\neasy = ["mean 2.0"]\n', "")
    text = text.split("[[claims]]")[0] + (
        '[[claims]]\ntext = "sends more"\ncolumn = "upload_params_1e7"\nrow = "FedHEAL"\nbeats = ["FedAvg"]\nlower = false\n'
    )
    result = gather(build(tmp_path, text), tmp_path / "runs", "command")
    assert result.cells["FedAvg"]["upload_params_1e7"][0] == pytest.approx(
        3 * 6 / 1e7
    )  # two inputs, two classes, biases
    assert result.claims[0].state == "does not hold"  # FedHEAL sends as much
    assert result.missing == {}
    assert not (tmp_path / "runs").exists()


def test_the_estimate_multiplies_what_was_measured(tmp_path, monkeypatch):
    plan = build(
        tmp_path, TABLE.replace("rounds = 3", "rounds = 50\neval_every = 10\ntraining = { epochs = 2, batch = 10 }")
    )
    # A round of two clients with 16 samples: 0.1 s for the server and reports, 0.01 s per sample and epoch.
    measured = []

    def time_round(settings):
        measured.append(settings)
        return 0.1 + 0.01 * settings.federation.total_samples * settings.training.epochs, 1.0

    monkeypatch.setattr(estimate, "_time_round", time_round)
    monkeypatch.setattr(estimate, "AFFORDABLE", 0.0)
    data = load_federation("gaussians")
    samples, tested = data.total_samples, sum(len(client.test) for client in data.clients)
    plain = 0.01 * 2 * samples + 0.1 * samples / 32
    found = estimate.estimate_all(plan, plan.runs)
    assert found["fedavg"] == pytest.approx(50 * plain + 5 * tested * 0.01 / 3)
    assert len(measured) == 4  # twice for each of two methods, though they have two seeds
    monkeypatch.setattr(estimate, "AFFORDABLE", 1e9)
    assert estimate.estimate_all(plan, plan.runs[:1])["fedavg"] == pytest.approx(50 * (0.1 + 0.02 * samples) + 5 * 1.0)


def test_a_row_may_train_in_its_own_way(tmp_path):
    plan = build(tmp_path, TABLE.replace('method = "fedheal"', 'method = "fedavg"\ntraining = { lr = 0.125 }'))
    rates = {(planned.rows, planned.job.seed): planned.settings.training.lr for planned in plan.runs}
    usual = load_federation("gaussians").protocol.training.lr
    assert rates == {
        (("FedAvg",), 0): usual,
        (("FedAvg",), 1): usual,
        (("FedHEAL",), 0): 0.125,
        (("FedHEAL",), 1): 0.125,
    }


@pytest.mark.parametrize(("kind", "size", "found"), [("JPEG", 32, 1), ("PNG", 32, 0)])
def test_a_data_set_in_another_form_is_found_out(tmp_path, monkeypatch, kind, size, found):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    content = io.BytesIO()
    Image.fromarray(np.zeros((size, size, 3), dtype=np.uint8)).save(content, kind)
    (tmp_path / "cifar10").mkdir()
    table = pa.table({"image": [{"bytes": content.getvalue(), "path": None}], "label": [0]})
    pq.write_table(table, tmp_path / "cifar10" / "train-00000-of-00001.parquet")
    data = replace(load_federation("gaussians"), dataset="cifar10")
    assert len(find_stand_ins([data, data])) == found


def test_notes_of_the_data_tell_of_stand_ins(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    plain = load_federation("gaussians")
    assert find_stand_ins([plain]) == []
    notes = ("The domain `generated` stands in for SYN: digits.", "svhn has 5 training images here.")
    digits = replace(plain, dataset="digits", notes=notes)
    assert [text.split(":")[0] for text in find_stand_ins([digits])] == ["SYN", "SVHN"]
    assert find_stand_ins([replace(digits, notes=())]) == []
    assert find_stand_ins([replace(plain, dataset="office-caltech")]) == []  # its files are not here
