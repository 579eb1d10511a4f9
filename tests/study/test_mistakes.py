"""Whatever a user writes, the answer says all that is wrong with it: every mistake, its line, and the nearest right word."""

import re
import tomllib
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from equipoise import EquipoiseError
from equipoise.cli import app
from equipoise.flower import Plan
from equipoise.study.experiment import read_experiment
from kit import blobs

GOOD = """# An experiment
methods = [
    "fedavg",
    "qffl(q=1)",
    "moon + fedheal",
]
data = ["gaussians"]
seeds = [0, 1]
rounds = 2
participation = 0.5
model = "linear"

[grid.fedheal]
tau = [0.2, 0.3]

[training]
lr = 0.1
epochs = 1
"""

WRONG = """methods = [
    "fedavg",
    "qffl(q=-1)",
    "fedheel",
]
data = ["gausians", "gaussians"]
seeds = 0
rounds = 0
partcipation = 1.0
model = "liner"
runner = "fast"

[grid.fedavg]
weights = ["uniform", "even"]

[training]
lr = "quick"
epochs = 0
momentun = 0.9
"""


def said(text, path):
    path.write_text(text)
    with pytest.raises(EquipoiseError) as error:
        read_experiment(path)
    return str(error.value)


def test_all_mistakes_of_an_experiment_file_at_once_each_with_its_line(tmp_path):
    path = tmp_path / "plan.toml"
    first, *lines = said(WRONG, path).splitlines()
    assert first == "12 mistakes:"
    found = {int(re.match(rf"{re.escape(str(path))}:(\d+): ", line)[1]): line for line in lines}
    for number, words in {
        3: "Parameter `q` must be at least 0",
        4: "Did you mean `fedheal`?",
        6: "Did you mean `gaussians`?",
        7: "seeds must be a number of seeds",
        8: "Parameter `rounds` must be at least 1",
        9: "has no `partcipation`. Did you mean `participation`?",
        10: "Unknown model `liner`. Did you mean `linear`?",
        11: "runner must be one of",
        14: "must be one of 'samples', 'uniform'",
        17: "lr must be a number",
        18: "Parameter `epochs` must be at least 1",
        19: "has no `momentun`. Did you mean `momentum`?",
    }.items():
        assert words in found.get(number, ""), (number, found)


def test_one_mistake_is_one_line(tmp_path):
    path = tmp_path / "plan.toml"
    assert (
        said(GOOD.replace("0.3]", "3]"), path) == f"{path}:14: Parameter `tau` must be between 0 and 1. Found tau=3.0."
    )
    assert said(GOOD + "[", path).startswith(f"{path}:19: this is not TOML")
    assert said(GOOD.replace("[grid.fedheal]", "[grid.fedhel]"), path).startswith(
        f"{path}:13: there is a grid for `fedhel`"
    )
    path.write_text(GOOD)
    assert len(read_experiment(path).jobs) == 4 * 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("own(path={path!r}, partition='dirichlet(clients=3, alpha=0)')", "Parameter `alpha` must be above 0"),
        ("own(path={path!r}, partition='iid(clients=0)')", "clients"),
        ("own(path={path!r}, partition='dirichle(clients=3)')", "Did you mean `dirichlet`"),
    ],
)
def test_impossible_partitions_in_an_experiment_file(tmp_path, text, words):
    table, path = tmp_path / "rows.csv", tmp_path / "plan.toml"
    table.write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    plan = f'methods = ["fedavg"]\nseeds = 1\ndata = ["""{text.format(path=str(table))}"""]\n'
    message = said(plan, path)
    assert message.startswith(f"{path}:3: ")
    assert words in message


def test_clients_of_the_same_name():
    data = blobs()
    with pytest.raises(EquipoiseError, match=r"Client names must differ\. Found `c0` more than once"):
        replace(data, clients=(data.clients[0], data.clients[0]))


# --------------------------------------------------------------------------- mutated files
PIECES = [
    "0",
    "-1",
    "1e400",
    "nan",
    "true",
    "[]",
    "{}",
    "[[1]]",
    '"x"',
    "''",
    "1979-05-27",
    "[0.1, 'a']",
    "99999999999999999999",
]
WORDS = [
    "rounds",
    "lr",
    "tau",
    "grid",
    "methods",
    "fedavg",
    "qffl(q=-1)",
    "seeds",
    "\x00",
    "]",
    "[",
    '"',
    "=",
    "\n",
    "é",
    "../..",
]


@st.composite
def mutated(draw):
    """A good file with one to three changes: a value, a key, a word, a line dropped, doubled or moved."""
    lines = GOOD.splitlines()
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(lines) - 1))
        line = lines[place]
        match draw(st.sampled_from(["value", "key", "letter", "drop", "double", "move", "insert"])):
            case "value" if "=" in line:
                lines[place] = f"{line.split('=')[0]}= {draw(st.sampled_from(PIECES))}"
            case "key" if "=" in line:
                lines[place] = f"{draw(st.sampled_from(WORDS))} ={line.partition('=')[2]}"
            case "letter" if line:
                at = draw(st.integers(0, len(line) - 1))
                lines[place] = line[:at] + draw(st.sampled_from(WORDS)) + line[at + 1 :]
            case "drop" if len(lines) > 1:
                del lines[place]
            case "double":
                lines.insert(place, line)
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(place))
            case _:
                lines.insert(place, f"{draw(st.sampled_from(WORDS))} = {draw(st.sampled_from(PIECES))}")
    return "\n".join(lines)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated())
def test_no_stack_trace_for_any_experiment_file(tmp_path, text):
    """A mutated file is read, or refused with lines of the file; nothing else is ever raised."""
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    try:
        found = read_experiment(path)
    except EquipoiseError as error:
        lines = str(error).splitlines()
        assert all(line.startswith(str(path)) for line in lines[len(lines) > 1 :])  # after "3 mistakes:"
    else:
        assert found
        tomllib.loads(text)


# --------------------------------------------------------------------------- the command line, and Flower's configuration
def test_all_mistakes_of_a_command_at_once():
    words = [
        "run",
        "gausians",
        "--method",
        "fedhel",
        "--rounds",
        "0",
        "--participation",
        "2",
        "--lr",
        "-1",
        "--batch",
        "0",
    ]
    text = str(CliRunner().invoke(app, [*words, "--optimizer", "adm"]).exception)
    for part in (
        "7 mistakes", "`gaussians`", "`fedheal`", "rounds=0", "participation=2.0", "lr=-1.0", "--batch must be",
        "Did you mean `Adam`",
    ):  # fmt: skip
        assert part in text
    compared = str(CliRunner().invoke(app, ["compare", "gaussians", "--methods", "qffl(q=-1),fedheel"]).exception)
    assert "2 mistakes" in compared
    assert "q=-1.0" in compared


VALUES = st.one_of(
    st.integers(-3, 3), st.floats(allow_nan=True), st.booleans(), st.sampled_from(["", "x", "full", "fedavg", "../x"])
)
KEYS = st.sampled_from(
    ["method", "sites", "rounds", "min-sites", "too-few", "lr", "batch", "guard", "seed", "eval-every", "ruonds"]
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_no_stack_trace_for_any_configuration_of_flower(config):
    with suppress(EquipoiseError):  # a sentence for the user: the only thing that may be raised
        Plan.from_config(config)


def test_all_mistakes_of_a_configuration_of_flower_at_once():
    with pytest.raises(EquipoiseError, match="3 mistakes") as error:
        Plan.from_config({"methd": "fedavg", "lr": -1.0, "too-few": "wait"})
    assert "Did you mean `method`?" in str(error.value)
