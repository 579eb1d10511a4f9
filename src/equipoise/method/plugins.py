"""Plugins: a user's own Python files. Importing one registers its methods, so that they can be named as text.

Files are imported only by a call of `load_plugins`, and then also in the worker processes of that process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from equipoise.method.registry import METHODS
from equipoise.method.value import Method
from equipoise.own_code import hash_files, import_file

_LOADED: dict[Path, None] = {}  # the imported files, in the order of import


def load_plugins(files: Sequence[Path | str] | Path | str) -> None:
    """Import these files, or this one. A file that was imported before is not imported again."""
    several = [files] if isinstance(files, (Path, str)) else files
    for file in (Path(one).expanduser().resolve() for one in several):
        if file not in _LOADED:
            import_file(file, "plugin")
            _LOADED[file] = None


def loaded_plugins() -> tuple[Path, ...]:
    """The files that this process has imported. Worker processes import them, too."""
    return tuple(_LOADED)


def find_own_files(method: Method, *functions: Callable[..., object]) -> set[Path]:
    """The files outside of Equipoise that define a method, its parts, or these functions."""
    used = [*map(type, method.parts), *(METHODS[call.name].function for call in method.calls), *functions]
    modules = {one.__module__: sys.modules.get(one.__module__) for one in used}
    return {
        Path(file)
        for name, module in modules.items()
        if not name.startswith("equipoise.") and (file := getattr(module, "__file__", None))
    }


def hash_own_code(method: Method, *functions: Callable[..., object]) -> dict[str, str]:
    """These files by name, with a hash of the content of each."""
    return hash_files(find_own_files(method, *functions))
