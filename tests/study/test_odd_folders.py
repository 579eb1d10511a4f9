"""One odd run folder of many is named and left out, and the rest is shown: by `report`, `runs` and `watch`."""

import copy
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.runs.reading import read_all
from equipoise.study.report.figures import group_studies
from equipoise.study.report.page import build_page
from equipoise.study.watch.page import build_content
from equipoise.study.watch.shelf import GRACE, Shelf
from kit.command import invoke
from kit.made_runs import made

VALUES = [None, [], {}, "x", -1, float("nan"), 10**15, [None], "\ud800"]


def change(facts, path, value):
    """A copy of the facts with another value at a path; without it, if the value is KeyError."""
    new = copy.deepcopy(facts)
    inside = new
    for step in path[:-1]:
        inside = inside[step]
    if value is KeyError:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return new


def list_paths(value, here=()):
    """Where something can be odd in a manifest."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, one in items:
        yield (*here, step)
        yield from list_paths(one, (*here, step))


@pytest.fixture
def folder(tmp_path):
    """Two good runs, and a third whose folder is `odd`."""
    runs = tmp_path / "runs"
    made(runs, "fedavg", [[0.5, 0.6], [0.6, 0.7]])
    made(runs, "fedheal", [[0.5, 0.6], [0.7, 0.7]])
    odd = {"rejected": [{"round": 1, "client": "c1", "why": "late"}], "warnings": ["w"]}
    made(tmp_path, "qffl", [[0.4, 0.6], [0.7, 0.8]], **odd).rename(runs / "odd")
    return runs


def show(runs):
    """All that is shown of the runs of a folder."""
    found, wrong = read_all([runs])
    page = build_page(group_studies(found), wrong)
    shelf = Shelf([runs])
    shelf.look(0.0)
    seen, problems = shelf.look(GRACE + 1)
    return page, build_content(seen, problems, [runs], 0.0), wrong, problems


def test_whatever_a_manifest_holds_the_rest_is_shown(folder):
    path = folder / "odd" / "manifest.json"
    facts = json.loads(path.read_text())
    refused = shown = 0
    for place in list_paths(facts):
        for value in (KeyError, *VALUES):
            path.write_text(json.dumps(change(facts, place, value)))
            _, wrong = read_all([folder])
            if wrong:
                assert len(wrong) == 1
                assert "odd" in wrong[0]
                assert "\n" not in wrong[0]
                refused += 1
            elif value != "x":  # an ordinary word is shown as it is
                page, live, _, problems = show(folder)
                assert not problems
                for text in (page, live):
                    assert b"fedheal" in text.encode()
                shown += 1
    assert refused > 300
    assert shown > 20


@pytest.mark.parametrize("table", ["records", "weights"])
@pytest.mark.parametrize(
    ("column", "value"), [("client", "stranger"), ("client", None), ("round", 99), ("round", 0), ("round", None)]
)
def test_rows_that_do_not_fit_the_manifest(folder, table, column, value):
    path = folder / "odd" / f"{table}.parquet"
    rows = pq.read_table(path)
    at = rows.column_names.index(column)
    values = [value, *rows[column].to_pylist()[1:]]
    pq.write_table(rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type)), path)
    page, live, (wrong,), (problem,) = show(folder)
    assert wrong == problem
    assert "odd" in wrong
    for text in (page, live):
        assert "fedheal" in text
        assert "parts of different runs" in text


def test_a_finished_run_without_a_single_row(folder):
    for table in ("records", "weights"):
        path = folder / "odd" / f"{table}.parquet"
        pq.write_table(pq.read_table(path).slice(0, 0), path)
    page, live, _, _ = show(folder)
    assert "fedheal" in page
    assert "fedheal" in live


def test_commands_name_the_odd_folder(folder, tmp_path):
    path = folder / "odd" / "manifest.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()), ("data", "clients", 0, "name"), "\ud800")))
    for words in (("report", str(folder), "-o", str(tmp_path / "page.html")), ("runs", str(folder))):
        done = invoke(*words)
        assert done.exit_code == 0
        assert "holds text that is not Unicode" in done.output.replace("\n", "")
    assert "fedheal" in (tmp_path / "page.html").read_text()
