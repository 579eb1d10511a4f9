"""`equipoise deploy init` writes an app that Flower accepts, and that a person can read."""

import json
import shlex
import tomllib

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from equipoise import EquipoiseError
from equipoise.cli import app
from equipoise.flower import Plan, client_app, federate
from equipoise.flower.deploy import write_app
from kit import quiet
from kit.flower import LoopGrid


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


def test_an_app_that_selects_and_holds_out_does_what_a_simulation_does(tmp_path):
    """The app's own configuration decides at the server and at the sites: no plan is handed to either."""
    method = "fedheal + power_of_choice(candidates=2)"
    words = ("--data", "gaussians", "--method", method, "--rounds", 3, "--participation", 0.5, "--no-guard")
    done = init(tmp_path / "app", *words, "--hold-out", "client 1", "--site-state", "")
    assert done.exit_code == 0, done.output
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["hold-out"] == "client 1"
    plan = Plan.from_config(config)
    grid = LoopGrid(client_app(), {k + 5: {"partition-id": k} for k in range(3)})
    for context in grid.contexts.values():
        context.run_config = config
    flower = federate(grid, plan)
    simulation = quiet(method, "gaussians", rounds=3, participation=0.5, hold_out="client 1", runner="inline")
    torch.testing.assert_close(flower.server.theta, simulation.server.theta)
    assert [r.clients for r in flower.rounds] == [r.clients for r in simulation.rounds]
    assert set(flower.values(split="unseen")) == {"client 1"}
    assert Plan.from_config({"hold-out": 2, "sites": 4}).hold_out == 2


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


def lines_to_type(output):
    return [line.strip() for line in output.splitlines() if line.startswith("   ")]


def of_flower(lines, name):
    return [shlex.split(line)[1:] for line in lines if line.startswith(name)]


def test_it_ends_with_the_commands_for_one_machine(tmp_path):
    """Each is accepted by Flower's own parser, and no two SuperNodes share a port."""
    done = init(tmp_path / "app", "--data", "gaussians", "--address", "127.0.0.1:8123")
    lines = lines_to_type(done.output)
    nodes = [_parse_args_run_supernode().parse_args(words) for words in of_flower(lines, "flower-supernode")]
    assert [node.node_config for node in nodes] == [f"partition-id={k}" for k in range(3)]
    assert len({node.port for node in nodes}) == 3
    assert {(node.superlink, node.insecure) for node in nodes} == {("127.0.0.1:8123", True)}
    (words,) = of_flower(lines, "flower-superlink")
    server = _parse_args_run_superlink().parse_args(words)
    assert (server.host, server.port, server.insecure) == ("127.0.0.1", 8123, True)
    known = tomllib.loads("\n".join(line for line in lines if line.startswith(("[", "address", "insecure", "root"))))
    assert known == {"superlink": {"federation": {"address": "127.0.0.1:8123", "insecure": True}}}
    assert lines[-1] == f"flwr run {tmp_path / 'app'} federation --stream"


def test_it_ends_with_the_commands_for_several_machines(tmp_path):
    (tmp_path / "schema.json").write_text(json.dumps({"label": "y", "classes": ["a", "b"], "columns": {"x": "number"}}))
    options = ("--schema", tmp_path / "schema.json", "--sites", 5, "--address", "fl.example.org:8000")
    lines = lines_to_type(init(tmp_path / "app", *options).output)
    (words,) = of_flower(lines, "flower-supernode")  # the same at every site but for its name and file
    node = _parse_args_run_supernode().parse_args(words)
    assert (node.superlink, node.root_certificates, node.insecure) == ("fl.example.org:8000", "ca.pem", False)
    assert node.auth_supernode_private_key == "north"
    assert node.node_config == 'site="north" data="/path/to/north.csv"'
    (words,) = of_flower(lines, "flower-superlink")
    server = _parse_args_run_superlink().parse_args(words)
    assert (server.host, server.ssl_certfile, server.enable_supernode_auth) == ("0.0.0.0", "server.pem", True)
    assert 'printf "subjectAltName=DNS:fl.example.org,DNS:localhost,IP:127.0.0.1\\n" > names' in lines
    assert "flwr supernode register north.pub federation" in lines
    open_ones = lines_to_type(init(tmp_path / "open", *options, "--no-tls").output)
    assert not any("pem" in line or "ssh-keygen" in line for line in open_ones)
    safe = lines_to_type(init(tmp_path / "safe", "--data", "gaussians", "--tls").output)
    assert [words[3] for words in of_flower(safe, "flower-supernode")] == ["site1", "site2", "site3"]
    many = lines_to_type(init(tmp_path / "many", "--data", "scanners").output)
    assert [words[-1] for words in of_flower(many, "flower-supernode")] == [f"partition-id={k}" for k in (0, 1, 11)]
    assert "12 in all" in " ".join(many)


def test_an_address_without_a_port_is_refused(tmp_path):
    done = init(tmp_path / "app", "--data", "gaussians", "--address", "server")
    assert "--address must be host:port" in str(done.exception)
    assert not (tmp_path / "app").exists()


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
