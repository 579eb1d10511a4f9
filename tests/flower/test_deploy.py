"""`equipoise deploy init` writes an app that Flower accepts, and that a person can read."""

import json
import tomllib

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from equipoise import EquipoiseError
from equipoise.cli import app
from equipoise.flower import Plan
from equipoise.flower.deploy import write_app


def init(*words):
    return CliRunner().invoke(app, ["deploy", "init", *map(str, words)])


def test_an_app_of_a_named_data_set(tmp_path):
    done = init(tmp_path / "My App", "--data", "gaussians", "--method", "eagle + fedheal", "--rounds", 4, "--lr", 0.5)
    assert done.exit_code == 0, done.output
    project = tomllib.loads((tmp_path / "My App" / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []
    assert project["project"]["name"] == "my-app"
    plan = Plan.from_config(project["tool"]["flwr"]["app"]["config"])
    assert (plan.method, plan.data, plan.sites, plan.rounds) == ("eagle + fedheal", "gaussians", 3, 4)
    assert plan.training == {"lr": 0.5}
    assert (plan.site_state, plan.guard, plan.resume) == (
        "~/.equipoise/sites",
        True,
        False,
    )  # safe unless told otherwise
    code = (tmp_path / "My App" / "federated" / "app.py").read_text()
    names: dict[str, object] = {"__file__": str(tmp_path / "My App" / "federated" / "app.py")}
    exec(compile(code, "app.py", "exec"), names)
    assert {"client", "server"} <= set(names)
    assert len(code.splitlines()) < 25
    assert not (tmp_path / "My App" / "federated" / "schema.json").exists()


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of a library that Flower uses
def test_flower_builds_the_app(tmp_path):
    from flwr.cli.build import build_fab_from_disk

    write_app(tmp_path / "app", Plan(data="gaussians", sites=3), {"label": "y", "classes": ["a"], "columns": {}})
    bundle = build_fab_from_disk(tmp_path / "app")
    for name in ("federated/app.py", "federated/schema.json", "pyproject.toml"):
        assert name.encode() in bundle


def test_an_app_for_the_sites_own_tables(tmp_path):
    (tmp_path / "north.csv").write_text(
        "age,sex,id,ill\n" + "".join(f"{i},{'mf'[i % 2]},{i},{i % 3 % 2}\n" for i in range(30))
    )
    done = init(tmp_path / "app", "--data", tmp_path / "north.csv", "--label", "ill", "--ignore", "id")
    assert done.exit_code == 0, done.output
    schema = json.loads((tmp_path / "app" / "federated" / "schema.json").read_text())
    assert schema == {"label": "ill", "classes": ["0", "1"], "columns": {"age": "number", "sex": ["f", "m"]}}
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["data"] == ""
    assert config["sites"] == 3
    assert str(tmp_path) not in (tmp_path / "app" / "pyproject.toml").read_text()  # no site's paths
    again = init(tmp_path / "other", "--schema", tmp_path / "app" / "federated" / "schema.json", "--sites", 5)
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "other" / "federated" / "schema.json").read_text()) == schema


def test_mistakes_are_said_before_anything_is_written(tmp_path):
    for words, why in (
        (["--data", "gaussians", "--method", "centralised"], "no data leaves its site"),
        (["--data", "gaussians", "--method", "fedheal", "--protection", "secure-aggregation"], "edits single updates"),
        (["--data", "gaussians", "--method", "fedhaal"], "Did you mean `fedheal`"),
        (["--data", "gausians"], "Did you mean `gaussians`"),
        ([], "Say what is learnt from"),
        (["--data", "gaussians", "--min-sites", 9], "min_sites"),
    ):
        done = init(tmp_path / "app", *words)
        assert isinstance(done.exception, EquipoiseError), words
        assert why in str(done.exception)
        assert not (tmp_path / "app").exists()
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine.txt").write_text("keep me")
    done = init(tmp_path / "app", "--data", "gaussians")
    assert "is not empty" in str(done.exception)
    assert (tmp_path / "app" / "mine.txt").read_text() == "keep me"
