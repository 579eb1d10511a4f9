"""What holds for every command: the version, help without PyTorch, and --plugin before or behind its name."""

import subprocess
import sys

import pytest
import typer

import equipoise as package
from equipoise.cli import app
from kit.command import equipoise, invoke

METHOD = """
from equipoise.method import Method, register

@register(title="Plain averages, named anew", reference="none")
def renamed() -> Method:
    return Method()
"""
# Runs a command in this process, and says which heavy modules it imported.
HEAVY = """
import sys
from equipoise.cli import main
try:
    main()
finally:
    print(sorted({"torch", "numpy", "pyarrow", "scipy"} & set(sys.modules)), file=sys.stderr)
"""


def test_the_version():
    assert invoke("--version").stdout == f"equipoise {package.__version__}\n"


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("compare", "--help"), ("deploy", "init", "--help")])
def test_help_does_not_wait_for_pytorch(words):
    done = subprocess.run([sys.executable, "-c", HEAVY, *words], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "[]"


def list_commands(command, name=()):
    """The names of all commands below this one."""
    inside = getattr(command, "commands", None)
    if inside is None:
        return [name]
    return [found for word, one in inside.items() for found in list_commands(one, (*name, word))]


COMMANDS = list_commands(typer.main.get_command(app))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_takes_plugins(words):
    assert "--plugin" in invoke(*words, "--help").stdout


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_shows_all_that_it_says(words):
    """Text in square brackets would be taken for a style, and vanish."""
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    assert not [one.name for one in command.params if "[" in (getattr(one, "help", None) or "")]


def test_a_plugin_behind_the_command(tmp_path):
    (tmp_path / "own_method.py").write_text(METHOD)
    listed = equipoise("methods", "renamed", "--plugin", "own_method.py", cwd=tmp_path)
    assert "Plain averages, named anew" in listed.stdout, listed.stderr
    (tmp_path / "plan.toml").write_text("methods = ['renamed']\ndata = ['gaussians']\nseeds = 1\nrounds = 1\n")
    planned = equipoise("run", "plan.toml", "--plugin", "own_method.py", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    lacking = equipoise("methods", "--plugin", "none.py", cwd=tmp_path)
    assert lacking.returncode == 2
    assert "A plugin is a Python file" in lacking.stderr
