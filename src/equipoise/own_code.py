"""A user's own Python files: how they are imported, and how a change of one is noticed.

A file is imported only because the user named it, never because it lies somewhere.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from equipoise.errors import EquipoiseError

_IMPORTED: dict[Path, str] = {}  # file -> hash of its content when it was imported


def import_file(file: Path | str, what: str) -> ModuleType:
    """Import a Python file under its name, so that worker processes find it, too. `what` it is stands in messages.

    A file that was imported before is not imported again; if it has changed since then, that is an error.
    """
    place = Path(file).expanduser().resolve()
    if not place.is_file() or place.suffix != ".py" or not place.stem.isidentifier():
        found = f"`{file}`" if place.exists() else f"`{file}`, which is not there"
        raise EquipoiseError(f"A {what} is a Python file whose name is a word, such as my_{what}.py. Found {found}.")
    digest = hash_file(place)
    if _IMPORTED.setdefault(place, digest) != digest:
        raise EquipoiseError(f"`{place.name}` has changed since it was imported: start Python anew.")
    sys.path.insert(0, str(place.parent))
    try:
        module = importlib.import_module(place.stem)
    except Exception as error:
        del _IMPORTED[place]
        raise EquipoiseError(f"Cannot import the {what} `{place}`: {explain_error(error, place)}") from error
    finally:
        sys.path.remove(str(place.parent))
        # Worker processes find the module by name. At the end of the path, the folder hides no other module.
        if str(place.parent) not in sys.path:
            sys.path.append(str(place.parent))
    if Path(getattr(module, "__file__", None) or "").resolve() != place:
        del _IMPORTED[place]
        raise EquipoiseError(f"The {what} `{place}` has the name of another module, `{place.stem}`: rename the file.")
    return module


def hash_file(file: Path) -> str:
    """A hash of a file's content."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def hash_files(files: Iterable[Path]) -> dict[str, str]:
    """The hash of each of these files by its name. Folders are left out: records do not tell where a user's files are."""
    return {file.name: hash_file(file) for file in sorted(files) if file.exists()}


def explain_error(error: BaseException, file: Path) -> str:
    """An error of a user's own code in one line, with the last line of the file that was at work."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    where = f" (line {lines[-1]} of `{file.name}`)" if lines else ""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{where}"
