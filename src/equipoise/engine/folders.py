"""Folders that are written whole or not at all, and belong to one process at a time.

A folder is written under another name, synced to disk, and then renamed. Tensors are stored as safetensors and
everything else as JSON, with checksums over all of it; nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from equipoise.errors import EquipoiseError


def _import_or_none(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


fcntl: Any = _import_or_none("fcntl")  # everywhere but on Windows
msvcrt: Any = _import_or_none("msvcrt")  # on Windows

FORMAT = 2  # version of what is stored; in the first, checkpoints held the records of all rounds
LOCK, STATE, UNFINISHED, TENSORS = "lock", "state.json", ".unfinished-", "tensors.safetensors"


class CheckpointError(EquipoiseError):
    """A stored folder cannot be used; the message says why."""


# --------------------------------------------------------------------------- one process at a time
@contextmanager
def lock_folder(folder: Path, what: str = "checkpoints") -> Iterator[None]:
    """Hold a folder for this process alone. A second process is refused at once; a killed one leaves no lock behind."""
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock: IO[str] = path.open("a+")
    except OSError as error:
        raise EquipoiseError(f"Cannot write {what} to `{folder}`: {error.strerror}. Choose another folder.") from None
    with lock:
        try:
            _lock_file(lock)
            if not path.exists() or not os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                raise BlockingIOError  # its holder has just removed it, and another process may hold a new one
        except OSError:
            raise EquipoiseError(
                f"Another process is at work on `{folder}`: wait for it, or choose another folder."
            ) from None
        try:
            yield
        finally:
            if fcntl is not None:
                path.unlink(missing_ok=True)  # while it is still held, so that no other process's lock is removed
    if fcntl is None:
        path.unlink(missing_ok=True)  # Windows removes no file that is open


def _lock_file(lock: IO[str]) -> None:
    """Lock a file, or raise OSError. The lock ends with the process, however that ends."""
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt is not None:
        lock.seek(0)
        msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)


# --------------------------------------------------------------------------- whole or not at all
@contextmanager
def replace_folder(place: Path) -> Iterator[Path]:
    """Give a new folder to fill. It replaces `place` when the block ends without an error; otherwise it is removed."""
    draft = draft_beside(place)
    try:
        yield draft
        replace_whole(place, draft)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def draft_beside(place: Path) -> Path:
    """A new, empty folder in which a successor of `place` can be written."""
    draft = place.with_name(f"{UNFINISHED}{place.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    return draft


def replace_whole(place: Path, draft: Path) -> None:
    """Put a folder that is complete into the place of an older one."""
    _sync(draft)
    old = place.with_name(f"{UNFINISHED}old-{place.name}")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    draft.rename(place)
    _sync(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(place: Path) -> None:
    """Remove a folder. It is renamed first, because a half removed folder must not pass for a whole one."""
    shutil.rmtree(place.rename(place.with_name(f"{UNFINISHED}{place.name}")))


def remove_leftovers(folder: Path) -> None:
    """Remove what writers that were killed have left behind."""
    for leftover in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover)


def explain_trouble(error: Exception) -> tuple[str, str]:
    """Why something could not be written, and what to do about it, in words."""
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EFBIG)
    return getattr(error, "strerror", None) or str(error), "Free some space" if full else "Mend that"


# --------------------------------------------------------------------------- what is in them, checksummed
def save_tensors(tensors: dict[str, Tensor], path: Path) -> str:
    """Write tensors to a file, sync it to disk, and return its checksum."""
    save_file(tensors, path)
    _sync(path)
    return _sum(path)


def seal(draft: Path, content: Mapping[str, object]) -> None:
    """Write `content` as JSON with a checksum. Its entry `sums` holds the checksums of the files of tensors."""
    text = json.dumps({"format": FORMAT, "sha256": _digest(content), "content": content})
    with (draft / STATE).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_state(place: Path) -> dict[str, Any]:
    """The content of a folder's JSON file, whose checksum is looked at; those of its tensors are not."""
    whole = json.loads((place / STATE).read_text(encoding="utf-8"))
    content = whole["content"]
    if whole["format"] > FORMAT:
        raise CheckpointError(f"`{place}` was written by a newer Equipoise (format {whole['format']}): update.")
    if set(whole) != {"format", "sha256", "content"} or whole["format"] < 1 or _digest(content) != whole["sha256"]:
        raise CheckpointError(f"`{place}` is corrupt: the checksum of {STATE} differs.")
    return dict(content)


def verify(place: Path) -> dict[str, Any]:
    """Check all checksums of a folder, and return the content of its JSON file."""
    content = read_state(place)
    for name, wanted in content["sums"].items():
        if _sum(place / name) != wanted:
            raise CheckpointError(f"`{place}` is corrupt: the checksum of {name} differs.")
    return content


@contextmanager
def say_in_one_line(place: Path) -> Iterator[None]:
    """Turn whatever is wrong with a folder into a `CheckpointError` of one line."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"`{place}` cannot be read: {error.strerror}.") from None
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError):
        raise CheckpointError(f"`{place}` is corrupt: {STATE} is damaged.") from None


def refuse_foreign(place: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a folder whose facts are not the wanted ones, because it belongs to another run."""
    names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    if names:
        differ = "; ".join(_difference(name, found.get(name), wanted.get(name)) for name in names)
        raise CheckpointError(f"`{place}` belongs to another run: {differ}.")


def _difference(name: str, there: object, here: object) -> str:
    """How two facts differ, in words; of nested facts only those that differ."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        return "; ".join(_difference(f"{name} {key}", there.get(key), here.get(key)) for key in keys)
    return f"{name} {there!r} there, {here!r} here"


def write_tensors(place: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Write named tensors and facts about them into a folder of their own, as safely as a checkpoint."""
    with replace_folder(place) as draft:
        own = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        sums = {TENSORS: save_tensors(own, draft / TENSORS)}
        seal(draft, {"facts": dict(facts), "sums": sums})


def read_tensors(place: Path, facts: Mapping[str, object]) -> dict[str, Tensor]:
    """The tensors of a folder that is whole and has these facts. If it is not, `CheckpointError` says what is wrong."""
    with say_in_one_line(place):
        refuse_foreign(place, verify(place)["facts"], as_json(facts))
        return load_file(place / TENSORS)


def as_json(facts: Mapping[str, object]) -> dict[str, object]:
    """Facts as they come back from JSON, so that stored and current ones can be compared."""
    return json.loads(json.dumps(dict(facts), default=str))


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
