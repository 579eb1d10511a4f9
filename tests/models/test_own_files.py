"""A model in a file of one's own, named on the command line: `--model mynet.py:Net(width=3)`."""

import hashlib
import json

import pytest

from equipoise import EquipoiseError, build_model
from equipoise.models.own import hide_folder
from kit.command import equipoise

NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, classes, width: int = 4, free=None):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(self.body(x))


def shallow(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[-1] * input_shape[-2], classes))


def number():
    return 3


def broken():
    return 1 / 0


class Demanding(nn.Module):
    def __init__(self, hidden, *rest, **more):
        super().__init__()
"""


@pytest.fixture
def file(tmp_path, request):
    """A file of its own per test: Python imports a name once."""
    place = tmp_path / f"net_{abs(hash(request.node.name))}.py"
    place.write_text(NET)
    return place


@pytest.mark.parametrize(
    ("call", "size"), [("Net", 10 * 5 + 4 * 65), ("Net(width=3, free=(1, 'a'))", 10 * 4 + 3 * 65), ("shallow", 10 * 65)]
)
def test_classes_and_functions_are_built(file, call, size):
    model = build_model(f"{file}:{call}", (1, 8, 8), 10)
    assert sum(value.numel() for value in model.parameters()) == size


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("", r"Which model of `net_\d+\.py`\? .* --model .*:Net\."),
        (":", "Which model of"),
        (
            ":Nett",
            r"no class or function `Nett` in .* Did you mean `Net`\? It has: Net, Demanding, shallow, number, broken",
        ),
        (":NET", "no class or function"),
        (":Net(widht=3)", "`Net` has no parameter `widht`. Did you mean `width`"),
        (":Net(width='a')", r"Net\(width\) must be a whole number. Found 'a'"),
        (":Net(classes=3)", "`classes` of a model follows from the data"),
        (":Net(3)", "Arguments go by keyword"),
        (":number", "`number` of .* must give a torch.nn.Module. Found int"),
        (":broken", r"cannot be built: ZeroDivisionError: division by zero \(line 24 of `net_"),
        (":Demanding", r"`Demanding` of .* needs `hidden`: write .*Demanding\(hidden=...\)"),
    ],
)
def test_mistakes_are_explained(file, call, message):
    with pytest.raises(EquipoiseError, match=message) as error:
        build_model(f"{file}{call}", (1, 8, 8), 10)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_imported(tmp_path):
    with pytest.raises(EquipoiseError, match=r"A model is a Python file .* Found `none.py`, which is not there"):
        build_model("none.py:Net", (4,), 2)
    (tmp_path / "torn.py").write_text("import nothing_like_it\n")
    with pytest.raises(
        EquipoiseError, match=r"Cannot import the model .*ModuleNotFoundError: .* \(line 1 of `torn.py`\)"
    ):
        build_model(f"{tmp_path / 'torn.py'}:Net", (4,), 2)


def test_a_file_that_changes_in_the_same_process_is_not_used_half(file):
    build_model(f"{file}:Net", (1, 8, 8), 10)
    file.write_text(NET + "# changed\n")
    with pytest.raises(EquipoiseError, match="has changed since it was imported: start Python anew"):
        build_model(f"{file}:Net", (1, 8, 8), 10)


def test_records_do_not_tell_where_the_file_is():
    assert hide_folder("some/where/mynet.py:Net(width=3)") == "mynet.py:Net(width=3)"
    assert hide_folder("mlp(hidden=(3,))") == "mlp(hidden=(3,))"


def test_a_run_keeps_the_hash_and_its_model_can_be_evaluated(tmp_path):
    (tmp_path / "code").mkdir()
    file = tmp_path / "code" / "mynet.py"
    file.write_text(NET)
    done = equipoise("run", "scanners", "--model", "code/mynet.py:Net(width=3)", "--rounds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (place,) = (tmp_path / "runs").iterdir()
    facts = json.loads((place / "manifest.json").read_text())
    assert facts["model"] == "mynet.py:Net(width=3)"
    assert facts["code"] == {"mynet.py": hashlib.sha256(file.read_bytes()).hexdigest()[:16]}
    again = equipoise("evaluate", str(place), "scanners", cwd=file.parent)
    assert again.returncode == 0, again.stderr
    elsewhere = equipoise("evaluate", str(place), "scanners", cwd=tmp_path)
    assert "there is no `mynet.py` here" in elsewhere.stderr
    file.write_text(NET + "# changed\n")
    changed = equipoise("evaluate", str(place), "scanners", cwd=file.parent)
    assert changed.returncode == 2
    assert "`mynet.py` has changed since the run" in changed.stderr


@pytest.mark.slow
def test_worker_processes_comparisons_and_experiment_files_know_it(tmp_path):
    (tmp_path / "mynet.py").write_text(NET)
    model = ("--model", "mynet.py:Net", "--rounds", "1")
    in_processes = equipoise("run", "scanners", *model, "--runner", "processes", cwd=tmp_path)
    assert in_processes.returncode == 0, in_processes.stderr
    compared = equipoise("compare", "scanners", *model, "--methods", "fedheal", "--seeds", "1", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    plan = "methods = ['fedavg']\ndata = ['scanners']\nseeds = 1\nrounds = 1\nmodel = 'mynet.py:Net(width=5)'\n"
    (tmp_path / "plan.toml").write_text(plan)
    planned = equipoise("run", "plan.toml", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert {json.loads(p.read_text())["model"] for p in tmp_path.glob("runs/*/manifest.json")} == {
        "mynet.py:Net", "mynet.py:Net(width=5)"
    }  # fmt: skip
    (tmp_path / "plan.toml").write_text(plan.replace("width", "widht"))
    wrong = equipoise("run", "plan.toml", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "plan.toml:5: `Net` has no parameter `widht`" in " ".join(wrong.stderr.split())
