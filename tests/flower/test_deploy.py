"""`equipoise deploy init` writes an app that Flower accepts, and that a person can read."""

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from equipoise import EquipoiseError, load_federation
from equipoise.cli import app
from equipoise.flower import Plan, client_app, federate
from equipoise.flower.deploy import write_app
from kit import quiet
from kit.flower import LoopGrid
from kit.sites import LABEL, write_site

OWN_NET = """
from torch import nn

def Net(input_shape, classes, width=4):
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, classes))
"""
OWN_PARTS = """
from dataclasses import dataclass

from equipoise.method import Method, Step, Stepped, register, register_schedule

@dataclass(frozen=True)
class Halved(Step):
    reads_updates = False

    def __call__(self, round, direction, state):
        return Stepped(direction / 2)

@register(title="Half a step", reference="a test")
def halved_for_a_deployment() -> Method:
    return Method(step=(Halved(),))

@register_schedule
def slower_for_a_deployment(round: int, rounds: int) -> float:
    return 1 / (1 + round)
"""
# What Flower does with an app: it imports its package, in a process that knows nothing else of the user's.
PLAY = """
import json, sys, tomllib
from pathlib import Path
sys.path[:0] = sys.argv[1:]
import federated.app as app
from equipoise.flower import Plan, federate
from kit.flower import LoopGrid
config = tomllib.loads(Path(sys.argv[1], "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
plan = Plan.from_config(config).find_model(app.HERE)
grid = LoopGrid(app.client, {k + 5: {"partition-id": k} for k in range(plan.sites)})
for context in grid.contexts.values():
    context.run_config = config
run = federate(grid, plan)
print(json.dumps([run.server.theta.tolist(), run.settings.facts["model"], run.settings.facts["code"]]))
"""


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


def test_an_app_carries_the_users_own_model_method_and_schedule(tmp_path):
    model, plugin = tmp_path / "deployed_net.py", tmp_path / "deployed_parts.py"
    model.write_text(OWN_NET)
    plugin.write_text(OWN_PARTS)
    method, net, schedule = "fedheal + halved_for_a_deployment", f"{model}:Net(width=6)", "slower_for_a_deployment"
    words = ("--data", "gaussians", "--method", method, "--rounds", 2, "--schedule", schedule, "--no-guard")
    done = init(tmp_path / "app", *words, "--site-state", "", "--model", net, "--plugin", plugin)
    assert done.exit_code == 0, done.output
    inside = tmp_path / "app" / "federated"
    assert (inside / model.name).read_text() == OWN_NET
    assert (inside / plugin.name).read_text() == OWN_PARTS
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["model"] == "deployed_net.py:Net(width=6)"  # no path of this machine
    assert "steps" not in config
    paths = (str(tmp_path / "app"), str(Path(__file__).parents[1]))
    played = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PLAY, *paths], capture_output=True, text=True, timeout=250, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert played.returncode == 0, played.stderr[-1500:]
    theta, named, hashes = json.loads(played.stdout.splitlines()[-1])
    training = load_federation("gaussians").protocol.training.change({"schedule": schedule})
    simulation = quiet(method, "gaussians", model=net, rounds=2, runner="inline", training=training)
    torch.testing.assert_close(torch.tensor(theta), simulation.server.theta)
    assert named == simulation.settings.facts["model"] == config["model"]
    assert set(hashes) == {model.name, plugin.name}
    assert hashes == simulation.settings.facts["code"]


def test_an_app_carries_no_file_that_it_cannot_use(tmp_path):
    (tmp_path / "app.py").write_text(OWN_NET)
    for words, why in (
        (["--model", f"{tmp_path / 'app.py'}:Net"], "The app has a file `app.py` already"),
        (["--model", f"{tmp_path / 'none.py'}:Net"], "which is not there"),
        (["--model", f"{tmp_path / 'app.py'}:Nett"], "Did you mean `Net`"),
        (["--label", "ill", "--group", "sex"], "Leave out: --label, --group."),
        (["--drop-missing"], "--drop-missing is for tables of the sites' own"),
    ):
        done = init(tmp_path / "folder", "--data", "gaussians", *words)
        assert isinstance(done.exception, EquipoiseError), done.output
        assert why in str(done.exception)
        assert not (tmp_path / "folder").exists()
    carried = Plan.from_config({"model": "net.py:Net"})
    for folder in (None, tmp_path):
        with pytest.raises(EquipoiseError, match=r"model='net.py:Net', a file that the app does not carry"):
            carried.find_model(folder)
    with pytest.raises(EquipoiseError, match="does not carry"):
        Plan.from_config({"model": "../app.py:Net"}).find_model(tmp_path / "folder")


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


# --------------------------------------------------------------------------- tables of the sites' own
def agree(folder, *words, predicted=("--label", LABEL)):
    """Three sites' tables, the app that an example of them makes, and the nodes' configurations."""
    tables = {name: write_site(folder, name, rows=120) for name in ("north", "east", "south")}
    made = init(folder / "app", "--data", tables["north"], *predicted, "--ignore", "id,ward", *words)
    assert made.exit_code == 0, made.output
    config = tomllib.loads((folder / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return config, {name: {"site": name, "data": str(path)} for name, path in tables.items()}


def federate_at(folder, config, nodes):
    """A run with these nodes, by the app's own configuration."""
    grid = LoopGrid(client_app(schema=folder / "app" / "federated" / "schema.json"), dict(enumerate(nodes.values(), 5)))
    for context in grid.contexts.values():
        context.run_config = config
    return federate(grid, Plan.from_config(config))


def count_samples(run):
    return {
        client.name: len(client.train) + len(client.validation) + len(client.test) for client in run.federation.clients
    }


def test_sites_leave_out_rows_with_missing_values(tmp_path):
    config, nodes = agree(tmp_path, "--rounds", 1, "--site-state", "", "--drop-missing")
    assert config["drop-missing"] is True
    run = federate_at(tmp_path, config, nodes)
    assert count_samples(run) == {"east": 114, "north": 114, "south": 114}  # of 120 rows six lack the pressure
    assert (
        "Rows of `north` are left out, because a value is missing." in run.federation.notes
    )  # no number leaves a site
    run = federate_at(tmp_path, config, {**nodes, "south": {**nodes["south"], "drop-missing": False}})
    assert count_samples(run)["south"] == 120
    assert any("`drop-missing` in --node-config leaves such rows out" in note for note in run.federation.notes)
    wrong = {**nodes, "south": {**nodes["south"], "drop-missing": "yes"}}
    with pytest.raises(EquipoiseError, match="`south` cannot take part: drop-missing in --node-config must be True or"):
        federate_at(tmp_path, config, wrong)


def test_sites_predict_numbers(tmp_path):
    words = ("--rounds", 2, "--site-state", "", "--loss", "huber(delta=2)", "--method", "qffl", "--optimizer", "AdamW")
    config, nodes = agree(tmp_path, *words, predicted=("--target", "age"))
    run = federate_at(tmp_path, config, nodes)
    assert str(run.settings.loss) == "huber(delta=2.0)"
    assert run.settings.training.optimizer == "AdamW"
    assert 0 < run.values("mae")["south"] < 100  # in years


def test_groups_at_sites_and_one_site_without_the_column(tmp_path):
    words = ("--rounds", 2, "--site-state", "", "--group", "sex", "--method", "fedfb", "--metrics", "f1")
    config, nodes = agree(tmp_path, *words)
    run = federate_at(tmp_path, config, nodes)
    assert any(score.metric == "group n[0,1,1]" for score in run.rounds[-1].scores)
    assert run.values("f1")
    (tmp_path / "other").mkdir()
    lacking = write_site(tmp_path / "other", "south", rows=120, sex="gender")
    with pytest.raises(EquipoiseError) as said:
        federate_at(tmp_path, config, {**nodes, "south": {"site": "south", "data": str(lacking)}})
    told = (
        "(client `south`) has no group column `sex`. Name it with `group` in --node-config. There are: id, age, gender,"
    )
    assert "The run cannot begin.\n- `south` cannot take part:" in str(said.value)
    assert told in str(said.value)
