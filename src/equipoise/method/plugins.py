"""Plugins: a user's own Python files. Importing one registers its methods, so that they can be named as text.

Files are imported only by a call of `load_plugins`, and then also in the worker processes of that process.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.method.registry import METHODS
from equipoise.method.value import Method

_LOADED: dict[Path, None] = {}  # the imported files, in the order of import


def load_plugins(files: Sequence[Path | str] | Path | str) -> None:
    """Import these files, or this one. A file that was imported before is not imported again."""
    several = [files] if isinstance(files, (Path, str)) else files
    for file in (Path(one).expanduser().resolve() for one in several):
        if file not in _LOADED:
            _import(file)
            _LOADED[file] = None


def loaded_plugins() -> tuple[Path, ...]:
    """The files that this process has imported. Worker processes import them, too."""
    return tuple(_LOADED)


def hash_own_code(method: Method) -> dict[str, str]:
    """The files outside of Equipoise that define functions or parts of a method: file name -> hash of the content."""
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
        # Worker processes find the module by name. At the end of the path, the folder hides no other module.
        sys.path.append(str(file.parent))
    if Path(getattr(module, "__file__", None) or "").resolve() != file:
        raise EquipoiseError(f"The plugin `{file}` has the name of another module, `{file.stem}`: rename the file.")
