"""What a run cannot make a site tell: files that the site itself did not name, values in messages, levels of text."""

import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from flwr.app import Context, RecordDict

from equipoise import EquipoiseError
from equipoise.flower import Plan, client_app, federate
from equipoise.flower.site import withhold_values
from kit.flower import LoopGrid

SECRET = "Smith-4711"


def greet(tmp_path, node, config=None, schema=None):
    """What the server hears of one site: its description, or why it cannot take part."""
    plan = Plan(sites=1, rounds=1)
    grid = LoopGrid(client_app(None if config is not None else plan, schema=schema), {1: node})
    grid.contexts[1] = Context(1, 1, dict(node), RecordDict(), dict(config or {}))
    heard = []
    grid.fault = lambda asked, answer: heard.append(answer.content.config_records["equipoise"]) or answer
    try:
        federate(grid, plan)
    except EquipoiseError as error:
        return str(error), heard[0]
    return "", heard[0]


@pytest.mark.parametrize(
    "config",
    [
        {"data": "{file}"},
        {"data": "own(path='{file}')"},
        {"data": "own(path='x.csv', schema='{file}')"},
        {"model": "{file}.py:Net"},
        {"data": "gaussians", "site-state": "{folder}/states"},
        {"data": "gaussians", "site-state": "~/.equipoise/../elsewhere"},
    ],
)
def test_the_runs_configuration_names_no_path_at_a_site(tmp_path, config):
    for name in ("secret", "secret.py"):
        (tmp_path / name).write_text(f"raise SystemExit('{SECRET}')\n")
    given = {name: text.format(file=tmp_path / "secret", folder=tmp_path) for name, text in config.items()}
    why, heard = greet(tmp_path, {"partition-id": 0}, {**given, "sites": 1, "rounds": 1})
    assert "The run's configuration has" in why
    assert SECRET not in json.dumps(dict(heard))
    assert not (tmp_path / "states").exists()


def write_table(folder, rows):
    (folder / "site.csv").write_text("age,name,label\n" + "\n".join(rows) + "\n")
    return {"site": "north", "data": str(folder / "site.csv")}


ROWS = [f"{20 + k},{'ab'[k % 2]},{'xy'[k % 2]}" for k in range(40)]


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        ([*ROWS, f"{SECRET},a,x"], {"age": "number"}, "Column `age` is a number in the schema. Found (withheld)"),
        ([*ROWS, f"3,a,{SECRET}"], {"age": "number"}, "Label (withheld) is not one of the classes: x, y"),
    ],
)
def test_no_value_leaves_a_site_in_a_message(tmp_path, caplog, rows, columns, words):
    (tmp_path / "schema.json").write_text(json.dumps({"label": "label", "classes": ["x", "y"], "columns": columns}))
    why, heard = greet(tmp_path, write_table(tmp_path, rows), schema=tmp_path / "schema.json")
    assert words in why
    assert SECRET not in json.dumps(dict(heard))
    assert SECRET in caplog.text  # the site itself is told


def test_no_value_leaves_a_site_in_an_error_that_is_not_ours(tmp_path, caplog, monkeypatch):
    def fail(*_, **__):
        raise ValueError(f"could not convert string to float: '{SECRET}'")

    monkeypatch.setattr("equipoise.flower.site._own", fail)
    why, heard = greet(tmp_path, write_table(tmp_path, ROWS))
    assert "ValueError: the log of the site says more." in why
    assert SECRET not in json.dumps(dict(heard))
    assert SECRET in caplog.text


def test_values_are_withheld_whatever_signs_are_in_them():
    for value in ("it's", 'say "x"', "both ' and \"", "`tick`", "back\\", "line\nbreak", "'"):
        told = withhold_values(f"Column `it's 'odd` of a site's table, the sites' first. Found {value!r} in line 3.")
        assert told == "Column `it's 'odd` of a site's table, the sites' first. Found (withheld) in line 3."


def test_levels_of_text_are_told_only_if_the_site_allows_it(tmp_path):
    """And then only those of five rows or more."""
    node = write_table(tmp_path, [*ROWS, f"30,{SECRET},x"])
    why, heard = greet(tmp_path, node)
    assert "would be told the values of the text columns `name`" in why
    assert '"a"' not in json.dumps(dict(heard))
    why, heard = greet(tmp_path, {**node, "share-levels": True})
    assert why == ""
    about = json.loads(heard["about"])
    assert about["schema"]["columns"] == {"age": "number", "name": ["a", "b"]}
    assert SECRET not in heard["about"]
    (tmp_path / "numbers").mkdir()
    node = write_table(tmp_path / "numbers", [row.replace(",a,", ",1,").replace(",b,", ",2,") for row in ROWS])
    assert greet(tmp_path, node)[0] == ""  # numbers have no levels
