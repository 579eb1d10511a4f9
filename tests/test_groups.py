"""Groups of samples: figures from counts against the worked example, fairfed and fedfb, and whole federations."""

import csv
import json
import math
import re

import numpy as np
import pytest
import torch

from equipoise import EquipoiseError, Federation, Training, aggregate, load, load_federation, parse, run, save
from equipoise.groups import (
    GAPS,
    Tally,
    bound_gap,
    find_worst,
    find_worst_group,
    measure_gap,
    measure_loss_gap,
    name_counts,
    newcombe,
    pool,
    read_counts,
)
from equipoise.methods.fairfed import find_distances, signed_gap
from equipoise.methods.fedfb import move_weights
from equipoise.runs.reading import read
from equipoise.study.report.figures import group_studies
from equipoise.study.report.groups import build_gap_table, build_rate_table, measure_pooled, read_tallies
from kit.command import invoke

# Three clients, two groups: by group, truth and answer. The numbers that follow from it are those of the specification.
COUNTS = np.array(
    [
        [[[30, 10], [10, 30]], [[8, 2], [6, 4]]],
        [[[20, 5], [5, 20]], [[25, 5], [10, 20]]],
        [[[10, 10], [2, 18]], [[6, 4], [10, 10]]],
    ],
    dtype=float,
)
SAMPLES = torch.tensor([100.0, 110.0, 70.0])


def tally(counts, losses=None):
    return Tally(counts, np.trace(counts, axis1=1, axis2=2), np.zeros((len(counts), 2)) if losses is None else losses)


TALLIES = {f"k{i + 1}": tally(counts) for i, counts in enumerate(COUNTS)}


def test_pooled_figures_of_the_worked_example():
    whole = pool(TALLIES.values())
    assert whole.rate("accuracy").tolist() == pytest.approx([0.752941, 0.663636], abs=1e-6)
    assert whole.rate("selection rate").tolist() == pytest.approx([0.547059, 0.409091], abs=1e-6)
    assert measure_gap(whole, "demographic_parity") == pytest.approx(0.137968, abs=1e-6)
    assert measure_gap(whole, "demographic_parity", "overall") == pytest.approx(0.083766, abs=1e-6)
    assert measure_gap(whole, "equal_opportunity") == pytest.approx(0.233333, abs=1e-6)
    assert whole.rate("false positive rate").tolist() == pytest.approx([0.294118, 0.22], abs=1e-6)
    assert measure_gap(whole, "equalized_odds") == pytest.approx(0.233333, abs=1e-6)
    assert list(newcombe((68, 85), (34, 60))[1:]) == pytest.approx([-0.377746, -0.080783], abs=1e-5)
    found = bound_gap(list(TALLIES.values()), "equal_opportunity")
    assert (found.low, found.high) == pytest.approx((0.080783, 0.377746), abs=1e-5)


def test_the_gaps_of_clients_do_not_tell_the_pooled_one():
    signed = [float(signed_gap(torch.from_numpy(counts), "equal_opportunity")) for counts in COUNTS]
    assert signed == pytest.approx([-0.35, -0.133333, -0.4], abs=1e-6)
    one, other = (
        np.array([[[50.0, 0], [0, 50]], [[50, 0], [50, 0]]]),
        np.array([[[50.0, 0], [50, 0]], [[50, 0], [0, 50]]]),
    )
    opposite = {"a": tally(one), "b": tally(other)}
    assert measure_gap(pool(opposite.values()), "equal_opportunity") == 0
    worst = find_worst(opposite, "equal_opportunity")
    assert worst.gap == 1
    assert 0 < worst.expected < 0.5


def test_few_samples_are_left_out_and_counted():
    assert measure_gap(TALLIES["k1"], "equal_opportunity") == pytest.approx(0.35)  # ten positives: shown
    assert math.isnan(measure_gap(TALLIES["k1"], "equal_opportunity", fewest=30))  # and not judged
    assert find_worst(TALLIES, "equal_opportunity").left_out == 3
    nobody = tally(np.array([[[30.0, 10], [10, 30]], [[0, 0], [0, 0]]]))
    assert math.isnan(measure_gap(nobody, "demographic_parity"))
    assert math.isnan(measure_loss_gap(nobody))


def test_the_order_of_groups_does_not_matter():
    draw = np.random.default_rng(0)
    counts = draw.integers(20, 60, (3, 2, 2)).astype(float)
    for gap in GAPS:
        assert measure_gap(tally(counts), gap) == pytest.approx(measure_gap(tally(counts[[2, 0, 1]]), gap))


def test_three_groups_have_an_interval_around_their_gap():
    counts = np.array([[[40.0, 10], [10, 40]], [[30, 20], [20, 30]], [[45, 5], [5, 45]]])
    found = bound_gap([tally(counts)], "equal_opportunity")
    assert found.low < found.mean < found.high
    assert found == bound_gap([tally(counts)], "equal_opportunity")


def test_the_worst_group_needs_samples():
    assert find_worst_group(pool(TALLIES.values())) == (1, pytest.approx(0.663636, abs=1e-6))
    few = tally(np.array([[[2.0, 1], [1, 2]], [[9, 1], [1, 9]]]))
    assert find_worst_group(few)[0] == 1  # the other group has six samples
    assert find_worst_group(tally(np.zeros((2, 2, 2)))) == (-1, pytest.approx(math.nan, nan_ok=True))


def test_counts_go_into_records_and_back():
    one = tally(COUNTS[0], np.array([[1.0, 2.0], [3.0, 4.0]]))
    back = read_counts(name_counts(one), 2)
    for name in ("counts", "right", "losses"):
        np.testing.assert_array_equal(getattr(back, name), getattr(one, name))


# --------------------------------------------------------------------------- fairfed and fedfb
def weigh(text):
    reports = {"samples": SAMPLES, "group_counts": torch.from_numpy(COUNTS)}
    return aggregate(text, torch.zeros(3), torch.eye(3), reports=reports, clients=(0, 1, 2), total_samples=280)


def test_fairfed_of_the_worked_example():
    distance, whole = find_distances(torch.from_numpy(COUNTS), "equal_opportunity")
    assert distance.tolist() == pytest.approx([0.116667, 0.1, 0.166667], abs=1e-6)
    assert float(whole) == pytest.approx(-0.233333, abs=1e-6)
    assert weigh("fairfed(beta=1)").weights.tolist() == pytest.approx([0.368254, 0.420635, 0.211111], abs=1e-6)
    exp = weigh("fairfed(beta=1, form='exp')")
    assert exp.weights.tolist() == pytest.approx([0.359151, 0.401705, 0.239144], abs=1e-6)
    assert weigh("fairfed(beta=0)").weights.tolist() == pytest.approx((SAMPLES / 280).tolist())
    large = weigh("fairfed(beta=50)").weights  # weights that would be negative are cut off at zero
    assert float(large.min()) == 0
    assert float(large.sum()) == pytest.approx(1)


def test_fairfed_compares_accuracies_where_a_client_has_no_gap():
    counts = torch.from_numpy(COUNTS.copy())
    counts[0, 1, 1] = 0  # the second group of the first client has no positives
    distance, _ = find_distances(counts, "equal_opportunity")
    right, total = 30 + 30 + 8, 90
    everyone = counts.diagonal(dim1=-2, dim2=-1).sum() / counts.sum()
    assert float(distance[0]) == pytest.approx(abs(right / total - float(everyone)))


def test_fedfb_of_the_worked_example():
    sizes, losses = torch.tensor([[85.0, 85], [50, 60]]).double(), torch.tensor([[30.0, 40], [12, 35]]).double()
    pooled = sizes.sum(1)
    start = (pooled / 280).expand(2, -1)
    after, gap = move_weights(start, sizes, losses, pooled, 0.3, "demographic_parity")
    assert gap.tolist() == pytest.approx([0, -0.104813], abs=1e-6)
    assert after[0].tolist() == pytest.approx([0.638587, 0.361413], abs=1e-6)
    assert after[1].tolist() == pytest.approx([0.575699, 0.424301], abs=1e-6)
    weights = after * 280 / pooled
    assert weights[0].tolist() == pytest.approx([1.051790, 0.919961], abs=1e-6)
    assert weights[1].tolist() == pytest.approx([0.948210, 1.080039], abs=1e-6)
    far, _ = move_weights(start, sizes, losses, pooled, 1000.0, "demographic_parity")
    assert float(far.min()) >= 0
    assert torch.allclose(far.sum(0), 2 * pooled / 280)


def small(seed=0, groups=("f", "m"), size=90):
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for k in range(3):
        x = torch.randn(size + 10 * k, 3, generator=draw)
        mark = torch.randint(0, len(groups), (len(x),), generator=draw)
        x[:, 1] += 2 * mark
        y = (x[:, 0] + mark + 0.5 * torch.randn(len(x), generator=draw) > 0.5).long()
        found[f"c{k}"] = (x, y, [groups[i] for i in mark.tolist()])
    return Federation.from_tensors(found, test_share=0.5)


@pytest.mark.parametrize("text", ["fedfb(alpha=0)", "fairfed(beta=0)"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_limits_are_fedavg(text, participation):
    options = {"rounds": 4, "training": Training(lr=0.1, batch=10), "model": "linear", "participation": participation}
    plain, other = (run(method, small(), **options).server.theta for method in ("fedavg", text))
    torch.testing.assert_close(plain, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "text", ["fedfb(alpha=1.0)", "fairfed", "fairfed + fedfb(alpha=1.0)", "fedfb(alpha=1.0) + fedprox"]
)
def test_runners_agree(text):
    one, other = (run(text, small(), rounds=3, runner=r, model="mlp(hidden=(5,))") for r in ("inline", "vectorised"))
    torch.testing.assert_close(one.server.theta, other.server.theta, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("text", ["fairfed", "fedfb"])
def test_a_model_trained_with_groups_is_loaded_again(text, tmp_path):
    result = run(text, small(), rounds=2)
    trained = load(save(result, tmp_path))
    assert len(trained.predict(small().x[:4])) == 4


def test_three_groups():
    assert run("fedfb", small(groups=("a", "b", "c")), rounds=2).values()
    with pytest.raises(EquipoiseError, match=r"of `fairfed` compares two groups\. Found 3"):
        run("fairfed", small(groups=("a", "b", "c")), rounds=2)


def test_the_group_does_not_enter_the_model_and_counts_are_those_of_the_data():
    data = small()
    result = run("fedavg", data, rounds=2)
    assert data.input_shape == (3,)
    index = data.clients[0].test
    task = result.task
    said = task.apply(task.layout.split(result.server.theta), {}, data.x[index]).logits.argmax(1)
    values = {s.metric: s.value for s in result.scores if s.client == "c0" and s.split == "test"}
    for z in (0, 1):
        for y in (0, 1):
            for a in (0, 1):
                mine = (data.groups.of[index] == z) & (data.y[index] == y) & (said == a)
                assert values[f"group n[{z},{y},{a}]"] == int(mine.sum())


def test_fedfb_lowers_the_parity_gap_at_a_cost(tmp_path):
    """On incomes, over three seeds: the gap falls by more than a third, for less than four points of accuracy."""
    data = load_federation("incomes")
    for seed in range(3):
        for method in ("fedavg", "fedfb(alpha=1.0)"):
            save(run(method, data, seed=seed, rounds=25, train_scores=False), tmp_path)
    (study,) = group_studies([read(place) for place in tmp_path.iterdir()])
    gap = {method: measure_pooled(study, method)["demographic_parity"].mean for method in study.methods}
    cost = study.change("fedfb(alpha=1.0)", "AVG").mean
    assert gap["fedfb(alpha=1.0)"] < 0.67 * gap["fedavg"]
    assert -0.04 < cost < 0
    assert len(build_gap_table(study)[1]) == 2
    assert len(build_rate_table(study)[1]) == 4


# --------------------------------------------------------------------------- a user's own tables
def write_patients(path, change=lambda row: row, clients=("north", "south", "east"), columns=None, size=80):
    draw = np.random.default_rng(1)
    rows = []
    for k, client in enumerate(clients):
        for _ in range(size):
            sex = draw.choice(["f", "m"])
            dose = draw.normal() + (sex == "m")
            ill = int(dose + 0.3 * k + draw.normal() > 0.7)
            stay = round(float(5 + 2 * dose + draw.normal()), 2)
            rows.append(change({"client": client, "sex": sex, "dose": round(float(dose), 3), "ill": ill, "stay": stay}))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_group_fairness_federation_from_a_table_to_the_report(tmp_path):
    table, out = write_patients(tmp_path / "patients.csv", size=150), tmp_path / "runs"
    words = ["--label", "ill", "--group", "sex", "--ignore", "stay", "--rounds", "8", "--out", str(out)]
    one = invoke("run", str(table), *words)
    assert one.exit_code == 0, one.output
    assert "Groups of sex, over all clients; the positive class is 1" in one.output
    assert "Gap in demographic parity:" in one.output
    many = invoke("compare", str(table), "--methods", "fedavg,fedfb(alpha=1.0),fairfed", "--seeds", "2", *words)
    assert many.exit_code == 0, many.output
    assert "Gaps between groups of sex (f, m) in points" in many.output
    rows = {(r["method"], r["figure"]): r for r in csv.DictReader((out / "report.csv").read_text().splitlines())}
    gap = rows["fairfed", "gap in demographic parity"]
    assert f"{100 * float(gap['mean']):.1f} ±" in many.output
    assert gap["definition"].startswith("largest difference in the share of samples")
    assert ("fedavg", "gap in loss") in rows
    assert rows["fedavg", "worst group"]["definition"].startswith("the smallest accuracy of a group")
    assert "…" not in many.output  # no figure and no name is cut off
    assert "Are groups of sex treated alike? Under fedavg the worst group is" in many.output
    latex = (out / "report.tex").read_text()
    assert f"{100 * float(gap['mean']):.1f} $\\pm$" in latex
    assert "worst client: equal opportunity" in latex
    page = (out / "report.html").read_text()
    assert ">Groups</h2>" in page
    assert "worst client: demographic parity" in page
    assert "Gaps between groups" in page
    ids = re.findall(r"\bid=['\"]([^'\"]*)", page)
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in re.findall(r"href='([^']*)'", page)} <= set(ids)
    (run_folder,) = [place for place in out.iterdir() if "fedfb" in place.name and "seed0" in place.name]
    stored = read(run_folder)
    assert stored.manifest["data"]["groups"] == {"name": "sex", "names": ["f", "m"]}
    assert json.loads((run_folder / "schema.json").read_text())["columns"] == {"dose": "number"}
    tallies = read_tallies(stored)
    assert sum(one.sizes.sum() for one in tallies.values()) == stored.samples().sum()  # all test samples
    # each client, with intervals: on the page and for spreadsheets
    mine = bound_gap([tallies["north"]], "demographic_parity")
    assert (
        f"<td>{100 * mine.mean:.1f} ({100 * mine.low:.1f} to {100 * mine.high:.1f})</td>"
        in page.split("Gaps of each client")[1]
    )
    figures = list(csv.DictReader((out / "report.groups.csv").read_text().splitlines()))
    told = next(
        row for row in figures
        if (row["method"], row["seed"], row["client"]) == ("fedfb(alpha=1.0)", "0", "north") and "parity" in row["figure"]
    )  # fmt: skip
    assert [float(told[name]) for name in ("value", "low", "high")] == pytest.approx(list(mine))
    assert {row["client"] for row in figures} == {"", "north", "south", "east"}  # all together first
    group = next(row for row in figures if (row["figure"], row["group"]) == ("accuracy", "m"))
    assert float(group["low"]) < float(group["value"]) < float(group["high"])


def test_a_gap_that_is_not_shown_says_why(tmp_path):
    def spare_women(row):
        return row | {"ill": 0} if row["sex"] == "f" else row

    table = write_patients(tmp_path / "patients.csv", spare_women)
    words = ["--label", "ill", "--group", "sex", "--ignore", "stay", "--rounds", "2", "--out", str(tmp_path / "runs")]
    found = invoke("run", str(table), *words)
    said = " ".join(found.output.split())
    why = "not shown, because fewer than two groups have 10 test samples of the positive class."
    assert f"Gap in equal opportunity: {why}" in said
    assert f"Gap in equalized odds: {why}" in said
    assert "- points" not in said


def test_a_regression_federation_from_a_table_to_the_report(tmp_path):
    table, out = write_patients(tmp_path / "patients.csv"), tmp_path / "runs"
    words = ["--target", "stay", "--loss", "huber(delta=1)", "--group", "sex", "--ignore", "ill", "--rounds", "8"]
    one = invoke("run", str(table), *words, "--out", str(out))
    assert one.exit_code == 0, one.output
    assert "explained" in one.output
    assert "error" in one.output
    methods = "fedavg,qffl,fedheal,local_only"
    words += ["--hold-out", "south"]
    many = invoke("compare", str(table), "--methods", methods, "--seeds", "2", *words, "--out", str(out))
    assert many.exit_code == 0, many.output
    assert "Test explained variance on patients in percent" in many.output
    assert "--loss 'huber(delta=1)' --hold-out south --method" in " ".join(many.output.split())
    page = (out / "report.html").read_text()
    assert "Error of each client" in page
    assert "loss huber" in page
    assert "the worst client has the largest error" in page
    shown = page.lower().split("<script>")[0]
    assert "nan" not in shown.replace("finance", "")
    assert "explained variance in percent, last round, on the test data of clients that never trained" in shown
    assert "who holds what" not in shown
    assert "accuracy" not in shown.split("all figures with their definitions")[0]


def test_a_number_of_zeros_and_ones_is_noted(tmp_path):
    table = str(write_patients(tmp_path / "patients.csv"))
    noted, plain = (load_federation(f"own(path={table!r}, target=({name!r},))").notes for name in ("ill", "stay"))
    note = "Column `ill` holds only 0 and 1, and is predicted as a number: for classes use --label ill."
    assert note in noted
    assert not any("only 0 and 1" in one for one in plain)


def test_the_group_enters_the_model_if_asked(tmp_path):
    table = write_patients(tmp_path / "patients.csv")
    plain, seen = (
        load_federation(f"own(path={str(table)!r}, label='ill', ignore=('stay',), group='sex', group_in_model={asked})")
        for asked in (False, True)
    )
    assert plain.input_shape == (1,)
    assert seen.input_shape == (3,)


def without(column):
    def change(row):
        return {name: value for name, value in row.items() if name != column}

    return change


def test_bad_tables_are_told_in_one_line(tmp_path):
    folder = tmp_path / "sites"
    for site in ("north", "south"):
        (folder / site).mkdir(parents=True)
        lack = without("sex") if site == "south" else lambda row: row
        write_patients(folder / site / "train.csv", lambda row, lack=lack: without("client")(lack(row)), (site,))
    table = str(write_patients(tmp_path / "p.csv"))
    with pytest.raises(
        EquipoiseError, match=r"\(client `south`\) has no group column `sex`, which 1 of the 2 files have"
    ):
        invoke("run", str(folder), "--label", "ill", "--group", "sex", "--ignore", "stay")
    lines = {
        ("--label", "ill", "--method", "fedfb"): "needs samples that are marked with their groups. Name the column",
        ("--target", "sex"): "must hold numbers. For classes, use --label. Found",
        ("--target", "ill,stay", "--ignore", "sex"): "must hold 0 and 1. Found",
        ("--target", "stay", "--label", "ill"): "give one of the two",
        ("--label", "ill", "--group", "ill"): "Column `ill` cannot be both what is predicted and the group.",
        ("--label", "ill", "--loss", "squared"): "Loss `squared` needs a number",
        ("--label", "ill", "--group", "stay"): "too many for groups",
        ("--label", "ill", "--group", "sexx"): "Did you mean `sex`?",
    }
    for words, said in lines.items():
        with pytest.raises(EquipoiseError) as found:
            invoke("run", table, *words, "--out", str(tmp_path / "runs"))
        assert said in str(found.value)
        assert "\n" not in str(found.value)


def test_a_group_with_three_rows_is_noted(tmp_path):
    seen = []

    def change(row):
        seen.append(row)
        return {**row, "sex": "x"} if len(seen) <= 3 else row

    table = write_patients(tmp_path / "p.csv", change)
    result = invoke("run", str(table), "--label", "ill", "--group", "sex", "--ignore", "stay", "--rounds", "2",
                    "--out", str(tmp_path / "runs"))  # fmt: skip
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "Groups of `sex` with fewer than 10 test samples, which get no figures: `x`" in text
    assert "of 3 rows)" in text


def test_needs_are_said_by_the_parts():
    assert all("groups" in part.needs for part in parse("fedfb").terms)
    with pytest.raises(
        EquipoiseError, match=r"`group_losses` \(reports\) of `fedfb.*` needs|`weighted_groups` \(terms\)"
    ):
        run("fedfb", "gaussians", rounds=1)
