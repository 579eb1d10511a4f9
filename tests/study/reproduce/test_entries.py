"""The papers' files: every one can be read, every method and data set in it exists, and its numbers are the published ones."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from equipoise.data.catalogue import DATASETS, list_presets
from equipoise.errors import EquipoiseError
from equipoise.grammar import parse_one
from equipoise.methods import parse
from equipoise.runs.requests import normalise_requests
from equipoise.study.reproduce.entries import find_entries, find_papers_folder, list_entries, list_papers, read_entry
from equipoise.study.reproduce.figures import FIGURES
from equipoise.study.reproduce.plan import count_runs, list_datasets

ENTRIES = list_entries()
CHECKSUMS = json.loads((Path(__file__).parents[2] / "examples" / "published_numbers.json").read_text())
FIGURES_OF = {
    "fedequilibria": (2, 3, 6, 7, 8), "eagle": (1, 2, 3, 4, 6), "f2dc": (1, 2, 4, 5, 6, 7, 8), "fedheal": (2, 5, 6, 7),
    "fedfe": (3, 4, 5, 6, 7),
}  # fmt: skip


def by_key(entry):
    return entry.key


def hash_rows(rows):
    """The checksum of a table's published numbers, whatever the order of its rows and columns."""
    whole = {row: {c: v for c, v in sorted(cells.items()) if v is not None} for row, cells in sorted(rows.items())}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def list_methods(row):
    return [row.method] if isinstance(row.method, str) else list(row.method.values())


def test_every_table_and_every_figure_with_curves_has_a_file():
    tables = {entry.key for entry in ENTRIES if entry.paper in FIGURES_OF and entry.name.startswith("table")}
    assert tables == set(CHECKSUMS)
    figures = {(entry.paper, int(entry.name.split("_")[0][6:])) for entry in ENTRIES if entry.name.startswith("figure")}
    assert figures == {(paper, number) for paper, numbers in FIGURES_OF.items() for number in numbers}
    assert set(list_papers()) == {*FIGURES_OF, "flamby", "fedfv"} == {entry.paper for entry in ENTRIES}


@pytest.mark.parametrize("entry", ENTRIES, ids=by_key)
def test_every_method_data_set_and_figure_of_an_entry_exists(entry):
    for row in entry.rows:
        for text in filter(None, list_methods(row)):
            assert parse(text).parts
    for name, preset in entry.presets.items():
        assert preset.seeds
        for text in preset.data.values():
            name_of_set, bracket, rest = text.replace("{seed}", "0").partition("(")
            call = parse_one(name_of_set.replace("-", "_") + bracket + rest, "data set", "digits")
            found = DATASETS.find(call.name.replace("_", "-"))
            found.check({name: value for name, value in call.arguments if value != "run"})  # drawn anew for each run
            assert dict(call.arguments).get("preset") in (*list_presets(found.name), None)
        assert entry.costs_only or count_runs(entry, name) >= len(preset.seeds)
    assert {column.figure for column in entry.columns} <= set(FIGURES)
    assert entry.keep == normalise_requests(entry.keep)
    assert list_datasets(entry)
    assert entry.claims or entry.name == "figure2_saliency_pacs"  # which shows pictures, and states nothing


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.key in CHECKSUMS], ids=by_key)
def test_the_published_numbers_are_those_of_the_paper(entry):
    rows = {row.name: dict(row.published) for row in entry.rows if row.published}
    given = os.environ.get("EQUIPOISE_PAPER_TABLES")  # the tables themselves, where they are at hand
    if given:
        papers = {name.lower(): tables for name, tables in json.loads(Path(given).read_text()).items()}
        known = papers[entry.paper][entry.name]
        wanted = {row: {c: v for c, v in cells.items() if v is not None} for row, cells in known.items()}
        assert rows == {row: cells for row, cells in wanted.items() if cells}
        assert set(known) <= {row.name for row in entry.rows}
    lost = {row.name: {} for row in entry.rows if row.name in ("FedFV",) and not row.published}
    assert hash_rows(rows | lost) == CHECKSUMS[entry.key]


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.key in CHECKSUMS], ids=by_key)
def test_claims_agree_with_the_published_numbers(entry):
    """What a table is said to claim stands in its own numbers, as far as they are printed."""
    for claim in entry.claims:
        figure = FIGURES[entry.find_column(claim.column).figure]
        lower = figure.lower if claim.lower is None else claim.lower
        others = [row.name for row in entry.rows if not (row.ours or row.cannot)] if "*" in claim.beats else claim.beats
        mine = entry.find_published(claim.row, claim.column)
        for other in others:
            printed = entry.find_published(other, claim.column)
            if other != claim.row and mine is not None and printed is not None:
                assert (mine < printed) == lower or mine == printed, f"{claim.text}: {mine} against {other} {printed}"


def test_others_results_are_those_that_the_tests_give_back():
    folder = Path(__file__).parents[2] / "examples"
    flamby = json.loads((folder / "flamby_heart.json").read_text())["accuracy"]
    (heart,) = find_entries("flamby:heart")
    for row, name in (("FedAvg", "FedAvg100"), ("FedYogi", "FedYogi100"), ("pooled", "Pooled Training")):
        by_seed = np.array([flamby[name][str(seed)] for seed in heart.presets["paper"].seeds])
        for k, column in enumerate(heart.columns):
            assert heart.find_published(row, column.name) == pytest.approx(100 * by_seed[:, k].mean(), abs=0.01)
            assert heart.find_row(row).published[f"{column.name}_sd"] == pytest.approx(
                100 * by_seed[:, k].std(ddof=1), abs=0.01
            )
    record = json.loads((folder / "fedfv_records.json").read_text())["fmnist"]["fedavg_N0_r200_b-1_e1_lr0.1_p1.0"]
    (fashion,) = find_entries("fedfv:fmnist")
    assert fashion.find_published("FedAvg", "AVG") == pytest.approx(np.mean(record["mean"]), abs=0.001)
    assert fashion.find_published("FedAvg", "STD") == pytest.approx(np.mean(record["std_ddof0"]), abs=0.001)


def test_errata_are_about_cells_that_are_there():
    for entry in ENTRIES:
        for erratum in entry.errata:
            assert not erratum.column or erratum.column in {column.name for column in entry.columns}, entry.key


def test_names_may_be_shortened_but_must_mean_one_table():
    assert [entry.name for entry in find_entries("fedheal:table5_digits")] == ["table5_ablation_digits"]
    assert [entry.name for entry in find_entries("fedfe:table1")] == ["table1_lowest_variance"]
    assert [entry.name for entry in find_entries("eagle:table1_emnist_linear_alpha0.1")] == [
        "table1_emnist_linear_alpha0.1"
    ]
    assert {entry.paper for entry in find_entries("f2dc")} == {"f2dc"}
    assert find_entries("f2dc:all") == find_entries("f2dc")
    with pytest.raises(EquipoiseError, match=r"may be each of fedheal:table2_digits, fedheal:table2_officecaltech"):
        find_entries("fedheal:table2")
    with pytest.raises(EquipoiseError, match=r"no paper `fedhel`. Did you mean `fedheal`"):
        find_entries("fedhel:table2")
    with pytest.raises(EquipoiseError, match=r"no `table5_ablation_digit`. Did you mean `table5_ablation_digits`"):
        find_entries("fedheal:table5_ablation_digit")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("colums = []", r"`colums` is unknown. Did you mean `columns`"),
        ("not toml", "cannot be read"),
        ("[[claims]]\ntext = 'x'\ncolumn = 'AVG'\nrow = 'b'\nbeats = ['a']", "the row `b`, which is not there"),
        (
            "[[claims]]\ntext = 'x'\ncolumn = 'AVH'\nrow = 'a'\nbeats = ['*']",
            r"`AVH`, which is not there. Did you mean",
        ),
        ("[[claims]]\ntext = 'x'\ncolumn = 'AVG'\nrow = 'a'", "needs `beats`, `at_least` or `near`"),
        ("[[rows]]\nname = 'b'", "needs either a method or `cannot`"),
        ("[[rows]]\nname = 'b'\nmethod = 'fedavg'\nsort = 1", "cannot be read as a table"),
        ("[[errata]]\nrow = 'c'\ntext = 'x'", "the row `c`, which is not there"),
        ("keep = ['feature']", r"table1.toml: Unknown thing to keep `feature`. Did you mean `features`"),
    ],
)
def test_a_file_that_does_not_fit_together_is_refused_by_its_name(tmp_path, change, complaint):
    head = "title = 'T'\ncolumns = ['AVG']\n"
    tables = "[presets.cpu]\ndata = 'gaussians'\n[[rows]]\nname = 'a'\nmethod = 'fedavg'\n"
    path = tmp_path / "own" / "table1.toml"
    path.parent.mkdir()
    path.write_text(head + tables)
    assert read_entry(path).key == "own:table1"
    path.write_text(head + tables + change if change.startswith("[") else change + "\n" + head + tables)
    with pytest.raises(EquipoiseError, match=complaint) as found:
        read_entry(path)
    assert str(path) in str(found.value)


def test_the_files_are_found_in_a_checkout_and_inside_a_package(monkeypatch, tmp_path):
    assert (find_papers_folder() / "fedheal" / "paper.toml").exists()
    package = tmp_path / "lib" / "site" / "equipoise"
    (package / "papers").mkdir(parents=True)
    monkeypatch.setattr("equipoise.__file__", str(package / "__init__.py"))
    assert find_papers_folder() == package / "papers"
    (package / "papers").rmdir()
    with pytest.raises(EquipoiseError, match="The papers' files are not here"):
        find_papers_folder()
