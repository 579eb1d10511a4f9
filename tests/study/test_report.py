"""Figures, the levelling-down verdict, the page and the pictures, from made-up records with known answers."""

import csv
import io
import json
import math
import re
import shutil
from html import escape
from html.parser import HTMLParser
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from equipoise import EquipoiseError
from equipoise.cli import app
from equipoise.metrics import FORMULAS, PLUS_MINUS, bootstrap, corrected_variance, over_seeds, paired, share_of
from equipoise.runs.reading import read_all
from equipoise.study.report import svg, tables
from equipoise.study.report.alternatives import describe
from equipoise.study.report.charts import (
    COLOURS,
    GREY,
    NEGATIVE,
    NEGATIVE_ON_DARK,
    UNCHANGED,
    Arrows,
    Bars,
    Cells,
    Chart,
    Line,
    Panel,
    choose_ticks,
    count_in_bins,
    find_extent,
    place_labels,
)
from equipoise.study.report.figures import DEFINITIONS, Rules, group_studies
from equipoise.study.report.page import build_page, read_style, write
from equipoise.study.report.paper import save_chart
from equipoise.study.report.plots import MOST_ROWS, PLOTS, draw_charts, draw_partitions
from equipoise.study.report.sweeps import find_sweeps
from equipoise.study.report.verdict import judge
from kit.made_runs import made

NAMES = ["a", "b", "c", "d"]
FEDAVG = np.array([0.95, 0.93, 0.90, 0.60])
LAST = np.array([0, 0, 0, 0.1])


# --------------------------------------------------------------------------- figures
def test_every_formula_on_four_clients():
    values = 100 * FEDAVG
    found = {name: formula.function(values) for name, formula in FORMULAS.items()}
    assert found["AVG"] == pytest.approx(84.5)
    assert found["STD"] == pytest.approx(math.sqrt((10.5**2 + 8.5**2 + 5.5**2 + 24.5**2) / 4))
    assert found["STD (ddof 1)"] == pytest.approx(16.5, abs=0.05)
    assert found["variance"] == pytest.approx(found["STD"] ** 2)
    assert (found["MIN"], found["MAX"], found["range"]) == (60, 95, 35)
    assert (found["worst 10 %"], found["best 10 %"]) == (60, 95)
    assert found["Jain"] == pytest.approx(1 / (1 + (found["STD"] / found["AVG"]) ** 2))
    assert found["cosine"] ** 2 == pytest.approx(found["Jain"])
    pairs = [abs(a - b) for a in values for b in values]
    assert found["Gini"] == pytest.approx(np.mean(pairs) / (2 * np.mean(values)))
    level = {name: formula.function(np.full(4, 60.0)) for name, formula in FORMULAS.items()}
    assert (level["STD"], level["Gini"]) == (0, 0)
    assert level["Jain"] == level["entropy"] == pytest.approx(1)


def test_clients_without_a_value_do_not_count():
    for formula in FORMULAS.values():
        whole, holed = formula.function(FEDAVG), formula.function(np.append(FEDAVG, np.nan))
        assert whole == pytest.approx(holed)
        assert math.isnan(formula.function(np.array([np.nan])))


def test_worst_share_has_at_least_one_client_and_rounds_up():
    assert share_of([0.1, 0.2, 0.3], 10) == 0.1
    assert share_of(np.arange(11) / 10, 10) == pytest.approx(0.05)
    assert share_of(np.arange(20) / 20, 10, best=True) == pytest.approx((18 + 19) / 40)


def test_intervals():
    assert over_seeds([1.0, 2.0, 3.0]).high == pytest.approx(2 + 4.302653 / math.sqrt(3))
    assert math.isnan(over_seeds([1.0]).low)
    assert paired({0: 0.5, 1: 0.6}, {0: 0.7, 1: 0.8, 9: 0.0}) == pytest.approx((0.2, 0.2, 0.2))
    found = bootstrap(0.8, 400)
    exact = 1.96 * math.sqrt(0.8 * 0.2 / 400)
    assert found.low == pytest.approx(0.8 - exact, abs=0.006)
    assert found.high == pytest.approx(0.8 + exact, abs=0.006)
    draws = np.random.default_rng(0).binomial(30, 0.1, 200_000) / 30
    assert bootstrap(0.1, 30)[1:] == pytest.approx(np.quantile(draws, (0.025, 0.975)))
    assert bootstrap(1.0, 50)[1:] == (1, 1)
    assert math.isnan(bootstrap(0.5, 0).low)


def test_the_corrected_variance_is_free_of_sampling_noise():
    draw = np.random.default_rng(0)
    same = [corrected_variance(draw.binomial(30, 0.7, 50) / 30, [30] * 50) for _ in range(400)]
    assert np.mean(same) == pytest.approx(0, abs=3e-4)  # equal clients: no variance, though the plain one is 0.007
    truth = draw.uniform(0.5, 0.9, (400, 50))
    apart = [corrected_variance(draw.binomial(30, p) / 30, [30] * 50) for p in truth]
    assert np.mean(apart) == pytest.approx(0.4**2 / 12, rel=0.05)


# --------------------------------------------------------------------------- levelling down
def test_levelling_down_fails_and_lifting_up_passes():
    level = judge("level", NAMES, FEDAVG, np.full(4, 0.60))
    assert not level.passed
    assert [reason.word for reason in level.reasons] == ["passed", "failed", "failed"]  # the worst did not fall
    assert "the average fell by 24.5 points" in level.reasons[1].text
    assert "3 of 4 clients fell" in level.reasons[2].text
    assert judge("fair", NAMES, FEDAVG, np.array([0.94, 0.93, 0.90, 0.70])).passed


def test_each_reason_alone_can_fail():
    own = np.array([0.90, 0.90, 0.90, 0.50])
    cases = {
        (0.96, 0.94, 0.92, 0.58): [False, True, True, True],  # the worst fell
        (0.93, 0.92, 0.885, 0.60): [True, False, True, False],  # the average fell by 1.1, c below its own 90
        (0.92, 0.95, 0.92, 0.61): [True, True, False, True],  # a fell by 3 and the worst gained 1
        (0.92, 0.95, 0.92, 0.63): [True, True, True, True],  # the worst gained as much
        (0.95, 0.95, 0.89, 0.65): [True, True, True, False],  # c pushed below what it can do alone
    }
    for after, expected in cases.items():
        found = judge("m", NAMES, FEDAVG, np.array(after), own)
        assert [reason.word == "passed" for reason in found.reasons] == expected, after
        assert found.word == ("passed" if all(expected) else "failed")  # one seed: nothing is undecided
    pushed = judge("m", NAMES, FEDAVG, np.array([0.95, 0.95, 0.89, 0.65]), own)
    assert "1 of 4 clients fell below what training alone gives: c" in pushed.reasons[3].text


def test_what_the_seeds_may_have_done_is_neither_a_rise_nor_a_fall():
    base = np.tile(FEDAVG, (3, 1))
    luck = np.array([[0.04], [0.0], [-0.04]])  # of the seeds: 2.48 * 0.04 is the half of the 95 % interval
    worst_lower = base - [0, 0, 0, 0.05] + luck * [0, 0, 0, 1]
    found = judge("m", NAMES, base, worst_lower)
    assert [reason.word for reason in found.reasons] == ["undecided", "undecided", "undecided"]
    assert found.word == "undecided"
    assert "the worst client changed by -5.0 points, within the spread of seeds" in found.reasons[0].text
    assert "1 of 4 clients fell by more than 2.0 points" in found.reasons[2].text
    assert found.reasons[2].text.endswith("but within the spread of seeds: d")
    sure = judge("m", NAMES, base, base - [0, 0, 0, 0.05] + luck / 8 * [0, 0, 0, 1])
    assert [reason.word for reason in sure.reasons] == ["failed", "failed", "failed"]
    assert "the worst client fell by 5.0 points, from 60.0 to 55.0 %" in sure.reasons[0].text
    lifted = judge("m", NAMES, base, base + [0, 0, 0, 0.05] + luck * [0, 0, 0, 1])
    assert lifted.passed
    assert "changed by +5.0 points, within the spread of seeds" in lifted.reasons[0].text
    both = base - [0.09, 0.09, 0, 0] + luck * [1, 1e-3, 0, 0]
    mixed = judge("m", NAMES, base, both, np.tile([0.94, 0.92, 0.0, 0.0], (3, 1)))
    assert mixed.reasons[2].text.endswith(": b; 1 more only within the spread of seeds")
    assert mixed.reasons[3].text == (
        "1 of 4 clients fell below what training alone gives: b; 1 more only within the spread of seeds"
    )


def test_a_gain_that_may_be_luck_excuses_no_fall():
    base, luck = np.tile(FEDAVG, (3, 1)), np.array([[0.06], [0.0], [-0.06]])
    after = base + [-0.03, 0.03, 0.03, 0.06] + luck * [0, 0, 0, 1]  # a falls for sure, d gains 6 points or none
    found = judge("m", NAMES, base, after)
    assert found.reasons[2].word == "undecided"
    assert found.reasons[2].text == (
        "1 of 4 clients fell by more than 2.0 points, and the gain of the worst is within the spread of seeds: a"
    )
    assert judge("m", NAMES, base, after - luck * [0, 0, 0, 0.99]).passed  # here the gain is sure
    unsure = judge("m", NAMES, base, after + luck * [1, 0, 0, 0])  # neither is
    assert unsure.reasons[2].text.startswith("no client fell by more than 2.0 points")


def test_the_example_of_the_check_holds_over_seeds_too():
    shift = np.array([[0.01], [0.0], [-0.01]])  # common to all methods, as of an easier split
    base = FEDAVG + shift
    assert judge("level", NAMES, base, np.full((3, 4), 0.60) + shift).word == "failed"
    assert judge("fair", NAMES, base, np.array([0.94, 0.93, 0.90, 0.70]) + shift).word == "passed"


# --------------------------------------------------------------------------- studies
@pytest.fixture
def comparison(tmp_path):
    """Three seeds of FedAvg, a fair method, a levelling one and local-only training."""
    for seed in (0, 1, 2):
        shift = 0.01 * (seed - 1)
        for method, last in (
            ("fedavg", FEDAVG),
            ("qffl", np.array([0.94, 0.93, 0.90, 0.70])),
            ("afl", np.full(4, 0.60)),
            ("local_only", np.array([0.80, 0.80, 0.92, 0.50])),
        ):
            curve = np.stack([last - 0.2, last]) + shift
            domains = ["x", "x", "y", "y"]
            made(tmp_path / "runs", method, curve, seed=seed, names=NAMES, domains=domains, parameters={method: {}})
    return tmp_path / "runs"


def one_study(folder):
    (study,) = group_studies(read_all([folder])[0])
    return study


def test_a_study_has_every_figure_and_a_definition_of_it(comparison):
    study = one_study(comparison)
    assert study.methods == ["fedavg", "afl", "qffl", "local_only"]
    table = study.table["qffl"]
    assert set(table) == set(DEFINITIONS)
    assert table["AVG"].mean == pytest.approx((0.94 + 0.93 + 0.90 + 0.70) / 4)
    assert table["AVG"].high - table["AVG"].mean == pytest.approx(4.302653 * 0.01 / math.sqrt(3))
    assert table["AVG over domains"].mean == pytest.approx((0.935 + 0.80) / 2)
    assert table["MIN over domains"].mean == pytest.approx(0.80)
    assert table["losers"].mean == 1  # c: 0.90 against 0.92
    gaps = np.array([0.80, 0.80, 0.92, 0.50]) - np.array([0.94, 0.93, 0.90, 0.70])  # losses are one minus the accuracy
    assert table["gap mean"].mean == pytest.approx(gaps.mean())
    assert table["gap max"].mean == pytest.approx(gaps.max())
    assert table["gap variance"].mean == pytest.approx(gaps.var())
    assert table["AVG, best by validation"].mean == pytest.approx(table["AVG"].mean)
    assert table["AVG, last five"].mean == pytest.approx(table["AVG"].mean - 0.1)
    assert table["lowest STD of the curve"].mean == pytest.approx(table["STD"].mean)


def test_runs_of_other_settings_are_apart(comparison):
    made(comparison, "fedavg", FEDAVG, names=NAMES, model="mlp")
    made(comparison, "fedsgd", FEDAVG, names=NAMES, training={"lr": 0.1, "steps": 1}, demanded={"steps": 1}, rounds=2)
    made(comparison, "fedheal", FEDAVG, status="running")
    made(comparison, "fedavg", FEDAVG, names=NAMES, training={"lr": 0.2, "steps": None}, rounds=2)
    found = group_studies(read_all([comparison])[0])
    assert sorted(map(len, (s.methods for s in found))) == [1, 1, 5]
    assert "fedsgd" in max(found, key=lambda s: len(s.methods)).methods
    again = made(comparison, "fedavg", FEDAVG, names=NAMES, rounds=2)
    text = " ".join(note for s in group_studies(read_all([comparison])[0]) for note in s.notes)
    assert "there twice" in text
    shutil.rmtree(again)


# --------------------------------------------------------------------------- the page
def test_the_page_is_whole_and_alone(comparison, tmp_path):
    files = write(*_read(comparison, tmp_path / "out" / "report.html"))
    assert [f.name for f in files] == ["report.html", "report.md", "report.tex", "report.csv", "report.clients.csv"]
    text = files[0].read_text()
    for word in (
        "Validation data choose qffl",
        "qffl lifts the worst client (d) from 60.0 to 70.0&nbsp;%",
        "Levelling down",
        "the average fell by 24.5 points",
    ):
        assert word in text
    for kind in (
        "arrows",
        "domains",
        "convergence",
        "distribution",
        "pareto",
        "losses",
        "gaps",
        "optima",
        "weights",
        "holdings",
    ):
        assert f'<figure id="{kind}">' in text
    assert not re.search(r"https?://|<link|@import|url\(|\bsrc=|fetch\(|XMLHttp", text)
    assert "| qffl | 86.8 ± 2.5 |" in files[1].read_text()
    assert r"\textbf{86.8 $\pm$ 2.5}" in files[2].read_text()
    rows = list(csv.DictReader(io.StringIO(files[3].read_text())))
    assert {row["figure"] for row in rows} == set(DEFINITIONS)
    clients = list(csv.DictReader(io.StringIO(files[4].read_text())))
    assert len(clients) == 4 * 3 * 4
    assert float(clients[3]["accuracy"]) == pytest.approx(0.59)
    exact = 1.96 * math.sqrt(0.59 * 0.41 / 100)
    assert float(clients[3]["high"]) - float(clients[3]["low"]) == pytest.approx(2 * exact, abs=0.03)
    assert clients[3]["samples"] == "100"


def _read(folder, out):
    runs, wrong = read_all([folder])
    return runs, out, wrong


HOSTILE = [
    "<script>alert(1)</script>", "=cmd|'/c calc'!A1", "+1+1", "-2+3", "@SUM(A1)", "\t=1+1", "\r=1", " =1+1", "\uff1d1+1",
    "\"><img src=x onerror=alert(1)>", "a & \"b\" 'c'", "{x}\\$%_#^~", "| a | b |\n\n# head", "[x](javascript:alert(1))",
]  # fmt: skip


class Elements(HTMLParser):
    """The elements of a page, and what would run in it."""

    def __init__(self, text):
        super().__init__()
        self.found, self.handlers = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        inside = [(name, value) for name, value in attrs if not (name == "href" and re.fullmatch("#[a-z0-9-]+", value))]
        self.handlers += [name for name, _ in inside if name.startswith("on") or name in ("src", "href")]


@pytest.fixture
def hostile(tmp_path):
    """Runs in which every name that comes from outside is an attack."""
    count = len(HOSTILE)
    for attack in ("<script>alert(2)</script>", "=cmd|'/c calc'!A1"):
        for method in ("fedavg", f"qffl + {attack}", "local_only"):
            place = made(
                tmp_path / "hostile", method, np.linspace(0.5, 0.9, 2 * count).reshape(2, count), names=HOSTILE,
                domains=HOSTILE, data=attack, model=attack, warnings=[attack], versions={attack: attack}, seed=7,
                rejected=[{"round": 1, "client": attack, "why": attack}], parameters={method: {attack: attack}},
            )  # fmt: skip
            facts = json.loads((place / "manifest.json").read_text())
            facts["data"] |= {"classes": [attack, "1"], "notes": [attack], "partition": attack, "protocol": attack}
            (place / "manifest.json").write_text(json.dumps(facts))
            table = pq.read_table(place / "weights.parquet")
            named = table.set_column(table.schema.get_field_index("figure"), "figure", pa.array([attack] * len(table)))
            pq.write_table(named.cast(table.schema), place / "weights.parquet")
            measured = pq.read_table(place / "records.parquet")
            other = measured.set_column(4, "metric", pa.array([attack] * len(measured))).cast(measured.schema)
            pq.write_table(pa.concat_tables([measured, other]), place / "records.parquet")
            kept = {"clients": HOSTILE, "cosines": np.eye(count).tolist()}
            (place / "analysis.json").write_text(json.dumps({"conflicts": kept}))
    return tmp_path / "hostile"


def test_no_name_becomes_an_element_of_the_page(hostile, comparison, tmp_path):
    text = write(*_read(hostile, tmp_path / "report.html"))[0].read_text()
    found, harmless = Elements(text), Elements(build_page(group_studies(read_all([comparison])[0]), ["a problem"]))
    assert set(found.found) <= set(harmless.found)
    assert found.found.count("script") == 1
    assert found.handlers == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text  # it is shown, as text
    problem = Elements(build_page([one_study(comparison)], ["<img src=x>"]))
    assert "img" not in problem.found


def test_no_cell_of_a_table_is_a_formula(hostile, tmp_path):
    files = {path.name: path for path in write(*_read(hostile, tmp_path / "report.html"))}
    for name in ("report.csv", "report.clients.csv"):
        with files[name].open(newline="") as file:
            rows = list(csv.reader(file))
        assert len({len(row) for row in rows}) == 1  # no name made a column of its own
        for cell in (cell for row in rows for cell in row):
            assert cell.strip()[:1] not in tuple("=+@|\uff1d"), cell
            assert not cell.startswith(("\t", "\r", "\n")), cell
            assert not cell.startswith("-") or float(cell) < 0  # a number
    clients = {row[3] for row in rows[1:]}
    assert "'=cmd|'/c calc'!A1" in clients
    assert len(clients) == len(HOSTILE)


def test_names_stay_text_in_markdown_and_latex(hostile, tmp_path):
    files = {path.suffix: path.read_text() for path in write(*_read(hostile, tmp_path / "report.html"))}
    assert "<script" not in files[".md"]
    assert "\\|'/c calc'!A1" in files[".md"]
    for line in files[".md"].splitlines():
        if line.startswith("| "):
            assert len(re.split(r"(?<!\\)\|", line)) == len(tables.list_columns()) + 2
    assert "<" not in files[".tex"]
    assert "|" not in files[".tex"]
    for line in files[".tex"].splitlines():
        if line.endswith(r"\\"):
            assert len(re.split(r"(?<!\\)&", line)) == len(tables.list_columns())
    assert tables.mark_up("# a\n\n# b") == "# a # b"  # one line, so that it cannot begin a heading of its own
    assert tables.mark_up("[x](y) `z` a|b") == "\\[x\\](y) \\`z\\` a\\|b"


def test_hostile_names_are_drawn_as_text(hostile, tmp_path):
    study = group_studies(read_all([hostile])[0])[0]
    for kind in ("pareto", "conflicts"):
        assert all(path.stat().st_size for path in save_chart(PLOTS[kind](study), tmp_path / kind))


def test_damaged_folders_are_named_and_the_rest_is_reported(comparison, tmp_path):
    bad = made(comparison, "qffl", FEDAVG, seed=9)
    facts = json.loads((bad / "manifest.json").read_text())
    (bad / "manifest.json").write_text(json.dumps({**facts, "schema": 99}))
    text = write(*_read(comparison, tmp_path / "report.html"))[0].read_text()
    assert "newer Equipoise (schema 99" in text
    assert "Validation data choose qffl" in text
    with pytest.raises(EquipoiseError, match="nothing to report"):
        write([], tmp_path / "report.html", ["x"])
    (tmp_path / "file").write_text("")
    with pytest.raises(EquipoiseError, match="Choose another -o"):
        write(read_all([comparison])[0], tmp_path / "file" / "report.html")


@pytest.mark.parametrize("count", [3, 1000])
def test_few_and_very_many_clients(count, tmp_path):
    draw = np.random.default_rng(0)
    for method in ("fedavg", "qffl", "local_only"):
        made(tmp_path / "r", method, draw.uniform(0.4, 1, (4, count)))
    study = one_study(tmp_path / "r")
    for chart in draw_charts(study):
        for panel in chart.panels:
            assert len(panel.y_ticks) <= MOST_ROWS
            assert sum(len(mark.values) for mark in panel.marks if isinstance(mark, Cells)) <= MOST_ROWS
    assert len(build_page([study])) < 1_000_000


def test_the_page_of_a_large_comparison_is_small(tmp_path):
    draw = np.random.default_rng(0)
    methods = ["fedavg", "local_only", "qffl", "afl", "term", "fedfe", "fedheal", "eagle", "fedfv", "ditto"]
    for method in methods:
        made(tmp_path / "r", method, draw.uniform(0.4, 1, (200, 20)))
    assert len(build_page([one_study(tmp_path / "r")]).encode()) < 5_000_000


def test_sweeps_of_a_parameter_are_found(tmp_path):
    for q in (0.1, 1.0, 5.0):
        made(tmp_path / "r", f"qffl(q={q})", FEDAVG - 0.01 * q, parameters={"qffl": {"q": q, "lr": 1.0}})
    made(tmp_path / "r", "fedavg", FEDAVG)
    study = one_study(tmp_path / "r")
    ((name, points),) = find_sweeps(study)
    assert name == "qffl(q)"
    assert [value for value, _ in points] == [0.1, 1.0, 5.0]
    (panel,) = PLOTS["sweep"](study).panels
    assert panel.marks[0].y[0] == pytest.approx(100 * (FEDAVG.mean() - 0.001))


def test_a_weight_is_told_with_the_figure_it_came_from(comparison):
    panel = PLOTS["weights"](one_study(comparison)).panels[0]
    assert panel.title == "fedavg (from samples)"
    assert panel.marks[0].values == [[0.25, 0.25]] * 4
    assert panel.marks[0].notes[0] == ["a, round 1: weight 0.25, samples 10", "a, round 2: weight 0.25, samples 10"]


def test_the_reach_of_clients_alone_is_shown_for_every_partition(comparison, tmp_path):
    assert draw_partitions(group_studies(read_all([comparison])[0])) is None  # one is no comparison
    assert 'id="partitions"' not in build_page(group_studies(read_all([comparison])[0]))
    made(comparison, "local_only", FEDAVG, names=NAMES, data="other", loss=[0.1, 0.2, 0.3, 0.9])
    found = group_studies(read_all([comparison])[0])
    chart = draw_partitions(found)
    assert list(chart.panels[0].y_ticks.values()) == ["made, partition p", "other, partition p"]
    assert chart.panels[0].marks[2].x == pytest.approx([0.1, 0.9])
    found[1].any.manifest["data"]["arguments"] = "alpha=0.1"
    assert list(draw_partitions(found).panels[0].y_ticks.values()) == ["made, partition p", "other, alpha=0.1"]
    assert chart.panels[0].marks[3].notes[3] == "d: 0.900"
    assert 'id="partitions"' in build_page(found)
    done = CliRunner().invoke(app, ["plot", "partitions", str(comparison), "-o", str(tmp_path / "plots")])
    assert done.exit_code == 0, done.output
    assert {p.name for p in (tmp_path / "plots").iterdir()} == {"partitions.pdf", "partitions.png"}


def test_rejected_answers_and_absences_are_shown(tmp_path):
    refused = [{"round": 1, "client": "c1", "why": "not finite"}]
    made(tmp_path / "r", "fedavg", FEDAVG, rejected=refused)
    assert "c1 in round 1: not finite" in PLOTS["participation"](one_study(tmp_path / "r")).caption


def test_runs_that_were_evaluated_once_have_no_curve(tmp_path):
    for rounds, drawn in ((1, False), (2, True)):
        folder = tmp_path / str(rounds)
        for method in ("fedavg", "fedheal"):
            made(folder, method, np.tile(FEDAVG, (rounds, 1)))
        (study,) = group_studies(read_all([folder])[0])
        assert ("convergence" in [chart.kind for chart in draw_charts(study)]) == drawn


def test_a_single_method_still_has_a_page(tmp_path):
    made(tmp_path / "r", "qffl", FEDAVG)
    text = build_page(group_studies(read_all([tmp_path / "r"])[0]))
    assert "nothing to compare with" in text
    assert "No levelling-down check" in text


def test_tables_show_dashes_where_there_is_nothing(tmp_path):
    made(tmp_path / "r", "fedavg", FEDAVG)
    assert tables.list_rows(one_study(tmp_path / "r"))[0][5:7] == ["–", "–"]


# --------------------------------------------------------------------------- drawing
def test_every_plot_can_be_drawn_for_a_paper(comparison, tmp_path):
    study = one_study(comparison)
    for chart in draw_charts(study):
        for path in save_chart(chart, tmp_path / chart.kind):
            assert path.stat().st_size > 3000
    assert (tmp_path / "arrows.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "arrows.png").read_bytes().startswith(b"\x89PNG")


def test_axes():
    assert choose_ticks(-0.3, 12.1) == [0.0, 5.0, 10.0]
    assert choose_ticks(-2.0, 102.0) == [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]  # not 0, 50 and 100
    assert count_in_bins([0.0, 0.1, 1.0], 0.0, 1.0, 2)[1] == pytest.approx([2 / 3, 1 / 3])
    (_, _), (low, high) = find_extent(Panel("", [Bars("x", [0.0], [5.0])]))
    assert low == 0  # bars stand on zero
    assert high > 5
    (_, _), (low, high) = find_extent(Panel("", [Line("x", [0.0, 1.0], [3.0, 3.0 + 1e-15])]))
    assert (low, high) == pytest.approx((2.5, 3.5))  # what rounding adds is no range


def test_other_intervals_of_evaluation_are_another_section(tmp_path):
    curve = np.stack([FEDAVG, FEDAVG])
    made(tmp_path / "r", "fedavg", curve, eval_every=1)
    made(tmp_path / "r", "fedavg", curve[:1], eval_every=2, rounds=2, seed=1)
    assert len(group_studies(read_all([tmp_path / "r"])[0])) == 2


def test_runs_that_end_when_they_are_flat_have_different_lengths(tmp_path):
    for seed, rounds in enumerate((3, 5)):
        for method, lift in (("fedavg", 0.0), ("qffl", 0.1)):
            curve = np.linspace(FEDAVG - 0.3, FEDAVG, rounds) + lift * (NAMES.index("d") == np.arange(4))
            made(tmp_path / "r", method, curve, seed=seed, names=NAMES, rounds=200, until_flat=True)
    study = one_study(tmp_path / "r")
    rounds, (first, second) = study.align("fedavg")
    assert rounds.tolist() == [1, 2, 3, 4, 5]
    assert first[-1].tolist() == first[2].tolist() == pytest.approx(FEDAVG)  # what has ended keeps its values
    assert len(second) == 5
    chart = PLOTS["convergence"](study)
    assert {len(mark.x) for panel in chart.panels for mark in panel.marks} == {5}
    text = build_page([study])
    assert "4 clients, at most 200 rounds" in text
    assert "qffl lifts the worst client (d) from 60.0 to 70.0" in text


def test_a_site_without_a_final_score_is_named_and_moves_no_other(tmp_path):
    names, lacking = ["a", "b", "c", "d"], np.array([0.9, np.nan, 0.7, 0.6])
    made(tmp_path / "r", "fedavg", np.stack([FEDAVG, FEDAVG]), names=names, domains=names)
    made(tmp_path / "r", "qffl", np.stack([FEDAVG, lacking]), names=names, domains=names)
    study = one_study(tmp_path / "r")
    assert any("qffl, seed 0: b has no score after the last round." in note for note in study.notes)
    chart = next(chart for chart in draw_charts(study) if chart.kind == "domains")
    line = next(mark for mark in chart.panels[0].marks if mark.name == "qffl")
    assert list(line.x) == [0.0, 2.0, 3.0]
    assert "nan" not in svg.draw_svg(next(chart for chart in draw_charts(study) if chart.kind == "arrows"))


def test_runs_without_test_data_are_left_out(tmp_path):
    made(tmp_path / "r", "fedavg", FEDAVG)
    place = made(tmp_path / "r", "qffl", FEDAVG)
    table = pq.read_table(place / "records.parquet")
    pq.write_table(table.filter(pc.field("split") == "validation"), place / "records.parquet")
    study = one_study(tmp_path / "r")
    assert list(study.runs) == ["fedavg"]
    assert any("no client has test data" in note for note in study.notes)


# --------------------------------------------------------------------------- what a reader must not be told wrongly
def draw(marks, **facts):
    return svg.draw_svg(Chart("kind", "title", "caption", [Panel("panel", marks, **facts)]))


def test_no_change_is_drawn_as_none():
    text = draw([Arrows("m", [0, 1, 2], [50.0, 60.0, 70.0], [50.04, 60.06, 69.0], notes=["same", "up", "down"])])
    assert re.findall(r'<g( class="\w+")? data-note="(\w+)">', text) == [
        (' class="same"', "same"),
        ("", "up"),
        (' class="worse"', "down"),
    ]
    same = text.split('data-note="same"')[1].split("</g>")[0]
    assert "<path" not in same  # no head that points anywhere
    assert "<line" not in same


# How people without one of the three kinds of cones see red, green and blue light (Machado et al. 2009), and how all do.
SIGHTS = [
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
    np.eye(3),
]


def see(colour, sight):
    """A colour in CIELAB, in which distances are those that a reader sees."""
    light = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    light = np.where(light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    share = to_xyz @ np.clip(np.array(sight) @ light, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def tell_apart(first, second):
    return min(np.linalg.norm(see(first, sight) - see(second, sight)) for sight in SIGHTS)


def test_colours_are_told_apart_by_colour_blind_readers():
    for first, second in combinations(COLOURS, 2):
        assert tell_apart(first, second) > 15, (first, second)
    for colour in COLOURS:
        assert all(tell_apart(colour, other) > 10 for other in (GREY, NEGATIVE, NEGATIVE_ON_DARK)), colour


def test_training_alone_and_lines_that_help_have_colours_of_their_own(tmp_path):
    for method in ("fedavg", *"ABCDEFGHI", "local_only", "centralised"):
        made(tmp_path / "r", method, FEDAVG + draw_noise(method))
    study = one_study(tmp_path / "r")
    rivals = [m for m in study.methods if m not in ("local_only", "centralised")]
    assert [study.colour(method) for method in rivals] == list(range(10))
    text = svg.draw_svg(PLOTS["pareto"](study))
    keys = dict(re.findall(r'class="key ([\w ]+)" data-s="([^"]+)"', text))
    assert {"grey": "local_only", "grey again": "centralised", "ink": "Pareto front"}.items() <= keys.items()
    assert len(keys) == 13  # nobody shares colour and style with another
    bars = svg.draw_svg(PLOTS["losses"](study))
    assert 'class="key c0 again"' in bars  # drawn as outlines
    assert ".s.again>rect" in read_style()


def draw_noise(method):
    return np.random.default_rng(ord(method[0])).uniform(-0.05, 0.05, 4)


def test_names_beside_points_overlap_nothing():
    draw = np.random.default_rng(0)
    points = [(float(x), float(y)) for x, y in draw.uniform(0, 200, (20, 2))]
    widths, bounds = [60.0] * len(points), (0, 200)
    places = place_labels(points, widths, 14, bounds)
    written = [place for place in places if place is not None]
    assert 5 < len(written) < len(points)  # where there is no room, none is written
    for (a, b), (c, d) in combinations(written, 2):
        assert abs(a - c) >= 60 or abs(b - d) >= 14
    for k, place in enumerate(places):
        others = [spot for i, spot in enumerate(points) if i != k]
        assert place is None or not any(abs(place[0] - x) < 36 and abs(place[1] - y) < 13 for x, y in others)


def test_a_slow_first_round_is_not_what_a_round_takes(tmp_path):
    made(tmp_path / "r", "fedavg", np.stack([FEDAVG] * 3), seconds_per_round=[9.0, 0.5, 0.5])
    assert one_study(tmp_path / "r").table["fedavg"]["seconds per round"].mean == 0.5


def test_negative_values_have_a_colour_that_no_method_has_and_a_stroke():
    assert not {NEGATIVE, NEGATIVE_ON_DARK, UNCHANGED} & set(COLOURS)
    text = draw([Cells("w", [[-0.5, 0.5]], -0.5, 0.5)], y_ticks={0.0: "a"})
    cells = text.split('class="s scale')[1].split("</g>", 1)[1]
    assert cells.count('class="minus"') == cells.count('class="sign"') == 1


def test_a_matrix_has_a_scale():
    text = draw([Cells("w", [[0.0, 0.35]], 0.0, 0.35)], y_ticks={0.0: "a"})
    assert re.search(r">0</text><g class=\"s scale c0\">(<rect[^>]*/>){6}</g><text[^>]*>0\.35</text>", text)


def test_rounds_are_whole(comparison):
    chart = PLOTS["convergence"](one_study(comparison))  # two rounds
    labels = re.findall(r'text-anchor="middle">([\d.]+)</text>', svg.draw_svg(chart))
    assert set(labels) == {"1", "2"}
    assert choose_ticks(1, 2) != choose_ticks(1, 2, whole=True) == [1.0, 2.0]


def test_domains_are_counted_only_where_clients_have_some(comparison, tmp_path):
    assert "4 clients, 2 domains, 2 rounds" in build_page([one_study(comparison)])
    made(tmp_path / "bare", "fedavg", np.tile(FEDAVG, (2, 1)))
    made(tmp_path / "bare", "qffl", np.tile(FEDAVG, (2, 1)))
    text = build_page([one_study(tmp_path / "bare")])
    assert "4 clients, 2 rounds" in text
    assert "domain" not in re.sub(
        r"<style>.*?</style>|<script>.*?</script>|id=\"domains\"|#domains", "", text, flags=re.S
    )


def test_every_format_says_what_plus_minus_means(comparison, tmp_path):
    files = {path.suffixes[-1]: path.read_text() for path in write(*_read(comparison, tmp_path / "report.html"))[:4]}
    assert files[".html"].count(escape(PLUS_MINUS)) == 2  # under the first table and above all figures
    assert PLUS_MINUS in files[".md"]
    assert PLUS_MINUS.replace("%", r"\%") in files[".tex"]
    assert "half_width_of_95_percent_interval" in files[".csv"].splitlines()[0]
    row = next(
        row for row in csv.DictReader(io.StringIO(files[".csv"])) if (row["method"], row["figure"]) == ("qffl", "AVG")
    )
    half = float(row["half_width_of_95_percent_interval"])
    assert half == pytest.approx(float(row["high"]) - float(row["mean"])) == pytest.approx(0.0248, abs=1e-3)


def test_every_format_has_the_notices(tmp_path):
    made(tmp_path / "r", "fedavg", FEDAVG)
    made(tmp_path / "r", "qffl", FEDAVG)
    for path in write(*_read(tmp_path / "r", tmp_path / "report.html"))[:4]:
        assert "one seed alone can be compared: the spread is not known" in path.read_text(), path


def test_the_page_says_how_clients_are_tested_and_by_which_limits(comparison):
    (study,) = group_studies(read_all([comparison])[0], Rules("qffl", 0.015, 0.04))
    text = build_page([study])
    assert "Against qffl and local-only training" in text
    assert "the average fall by 1.5 points or more, did a client fall by more than 4.0 points" in text
    assert "Benjamini and Hochberg" in text


def test_two_studies_have_their_own_ids_and_contents(comparison):
    made(comparison, "fedavg", FEDAVG, names=NAMES, model="mlp")
    text = build_page(group_studies(read_all([comparison])[0]))
    ids = re.findall(r"\bid=['\"]([^'\"]*)", text)
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in re.findall(r"href='([^']*)'", text)} <= set(ids)


def test_a_plot_in_words():
    lines = [Line("m", [1.0, 2.0], [10.0, math.nan]), Line("far", [1.0], [3.0], members=[7], who="g")]
    assert (
        describe(Panel("MIN", lines, "round", "percent", picked=0)) == "MIN. percent over round. m: 10 at 1 to 10 at 1."
    )
    arrows = Arrows("m", [0, 1], [50.0, math.nan], [60.0, 1.0], notes=["", ""])
    assert describe(Panel("", [arrows], y_ticks={0.0: "a", 1.0: "b"})) == "a 50.0 to 60.0."
    cells = Cells("w", [[0.1, math.nan], [0.3, 0.2]], 0.0, 0.3)
    assert describe(Panel("w", [cells])) == "w. 2 rows, 2 columns, values 0.1 to 0.3."
    assert describe(Panel("", [Bars("m", [0.0, 1.0], [2.0, 1.0])])) == "m: 1 to 2."
    many = [Line(str(i), [0.0], [1.0]) for i in range(20)]
    assert describe(Panel("", many)).endswith("11: 1 at 0 to 1 at 0. 8 more.")
