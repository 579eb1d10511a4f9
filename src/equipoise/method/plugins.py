"""A user's own files, imported before anything is parsed: the methods in them then have names, on the command line too.

`EQUIPOISE_PLUGINS` names the files, so that worker processes import them as well.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from equipoise.method import METHODS, Method
from equipoise.types import EquipoiseError

VARIABLE = "EQUIPOISE_PLUGINS"


def load(files: Sequence[Path | str]) -> None:
    """Import these files, here and in every process that is started from here."""
    named = [Path(file).expanduser().resolve() for file in files]
    for file in named:
        _import(file)
    before = [known for known in os.environ.get(VARIABLE, "").split(os.pathsep) if known]
    both = dict.fromkeys([*before, *map(str, named)])
    if both:
        os.environ[VARIABLE] = os.pathsep.join(both)


def load_named() -> None:
    """Import the files that the environment names."""
    load([file for file in os.environ.get(VARIABLE, "").split(os.pathsep) if file])


def code_of(method: Method) -> dict[str, str]:
    """The files of a method's functions and parts that are not Equipoise's own, each with a hash of what it holds."""
    used = [*map(type, method.parts), *(METHODS[call.name].function for call in method.calls)]
    modules = {one.__module__: sys.modules.get(one.__module__) for one in used}
    files = {
        Path(file)
        for name, module in modules.items()
        if not name.startswith("equipoise.") and (file := getattr(module, "__file__", None))
    }
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in sorted(files) if file.exists()}


def _import(file: Path) -> None:
    if not file.is_file() or file.suffix != ".py" or not file.stem.isidentifier():
        raise EquipoiseError(f"A plugin is a Python file whose name is a word, such as my_method.py. Found `{file}`.")
    sys.path.insert(0, str(file.parent))
    try:
        module = importlib.import_module(file.stem)
    except Exception as error:
        raise EquipoiseError(f"Cannot import the plugin `{file}`: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent))
        sys.path.append(str(file.parent))  # workers find the module by its name, and nothing of ours is hidden by it
    if Path(getattr(module, "__file__", None) or "").resolve() != file:
        raise EquipoiseError(f"The plugin `{file}` has the name of another module, `{file.stem}`: rename the file.")
