"""What is imported when: in processes of their own, because what was imported once stays."""

import subprocess
import sys

import pytest

EVERYTHING = """
import importlib, pkgutil, equipoise
for module in pkgutil.walk_packages(equipoise.__path__, "equipoise."):
    if module.name != "equipoise.__main__":
        importlib.import_module(module.name)
"""


def python(script: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("imported", "unneeded"),
    [
        ("equipoise", "torch"),
        ("equipoise.cli", "torch"),
        ("equipoise.study.report.page", "torch"),
        ("equipoise.study.report.page", "equipoise.engine"),
        ("equipoise.study.watch.server", "torch"),
        ("equipoise.study.watch.server", "equipoise.engine"),
        ("equipoise.flower", "equipoise.study"),
        ("equipoise.flower.site", "equipoise.study"),
        ("equipoise.engine", "equipoise.runs"),
        ("equipoise.rounds", "equipoise.engine"),
        ("equipoise.method", "equipoise.data"),
    ],
)
def test_what_one_room_does_without(imported, unneeded):
    found = python(f"import sys, {imported}; print([m for m in sys.modules if (m + '.').startswith('{unneeded}.')])")
    assert found.strip() == "[]"


def test_no_file_is_executed_because_an_environment_variable_names_it(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    monkeypatch.setenv("EQUIPOISE_PLUGINS", str(file))
    python("import equipoise; equipoise.parse('fedavg')")
    assert not (tmp_path / "executed").exists()
    python(f"import equipoise; equipoise.load_plugins([{str(file)!r}])")
    assert (tmp_path / "executed").exists()


def test_every_public_name_is_there_and_told_of():
    script = """
import equipoise
for name in equipoise.__all__:
    found = getattr(equipoise, name)
    assert (found.__doc__ or "").strip(), f"{name} has no docstring"
    assert name in dir(equipoise)
import equipoise.method
for name in equipoise.method.__all__:
    getattr(equipoise.method, name)
try:
    equipoise.nothing
except AttributeError as error:
    assert "nothing" in str(error)
"""
    python(script)


def test_whatever_name_is_used_first_every_method_is_known():
    assert int(python("from equipoise import register; import equipoise.method as m; print(len(m.METHODS))")) >= 33


WITHOUT_FCNTL = """
import sys

class NoFcntl:
    def find_spec(self, name, path=None, target=None):
        if name == "fcntl":
            raise ImportError(f"{name} does not exist on Windows")

sys.meta_path.insert(0, NoFcntl())
sys.modules.pop("fcntl", None)
"""


def test_everything_can_be_imported_and_a_run_recorded_without_unix(tmp_path):
    """Windows has no `fcntl`; what else differs there (folders that cannot be synced) is only reasoned about."""
    script = (
        WITHOUT_FCNTL
        + EVERYTHING.replace("import importlib", "import importlib, sys")
        + """
from pathlib import Path
from equipoise import Checkpoints, load, run, save
folder = Path(sys.argv[1])
run("scaffold", "gaussians", rounds=2, checkpoint=Checkpoints(folder / "checkpoints"))
resumed = run("scaffold", "gaussians", rounds=2, checkpoint=Checkpoints(folder / "checkpoints", resume=True))
assert load(save(resumed, folder)).classes == resumed.federation.classes
assert not (folder / "checkpoints" / "lock").exists()
assert "fcntl" not in sys.modules
"""
    )
    python(script, str(tmp_path))
