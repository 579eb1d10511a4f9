"""Checksums of run folders: the manifest holds those of all other files, and ends with its own.

So a bit that a disk or a copy has changed is found, whichever file it is in. Whoever changes a file on purpose can
change its checksum, too: this is no signature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError

MANIFEST, MODEL = "manifest.json", "model.safetensors"
FILES, OWN = "files", "sha256"  # in the manifest: the checksums of other files by name, and its own
END = '"\n}\n'  # of a manifest, after its own checksum
BLANK = "0" * 64  # stands there while its checksum is computed


def write_manifest(place: Path, facts: Mapping[str, Any], files: Iterable[str] = ()) -> None:
    """Write a manifest that vouches for these files of its folder, and for those for which the facts do."""
    sums = {**facts.get(FILES, {}), **{name: hash_file(place / name) for name in files}}
    rest = {name: value for name, value in facts.items() if name not in (FILES, OWN)}
    text = json.dumps({**rest, FILES: sums, OWN: BLANK}, indent=2, default=_simplify) + "\n"
    body = text.removesuffix(BLANK + END)
    replace_file(place / MANIFEST, body + _hash(text.encode()) + END)


def replace_file(path: Path, text: str) -> None:
    """Write a file at once, so that it is never half written."""
    new = path.with_suffix(".new")
    new.write_bytes(text.encode())
    new.replace(path)


def is_whole(content: bytes, facts: Mapping[str, Any]) -> bool:
    """Whether a manifest, of this content and with these facts, has its own checksum; or none at all, as those of an
    earlier version. One bit cannot hide both of its entries."""
    if FILES not in facts and OWN not in facts:
        return True
    body = content.removesuffix(f"{facts.get(OWN)}{END}".encode())
    return body != content and _hash(body + (BLANK + END).encode()) == facts.get(OWN)


def refuse_damaged(place: Path, facts: Mapping[str, Any], names: Iterable[str]) -> None:
    """An error that names those of these files of a run folder that are not what the manifest vouches for."""
    bad = []
    for name in names:
        try:
            found = hash_file(place / name)
        except OSError as error:
            bad.append(f"`{place / name}` cannot be read: {error.strerror}")
        else:
            if found != facts[FILES][name]:
                bad.append(f"`{place / name}` is damaged: its checksum differs")
    if bad:
        raise EquipoiseError(f"{'; '.join(bad)}. Bring back a copy, or do the run again.")


def add_file(place: Path, name: str) -> None:
    """Let the manifest of a run that is over vouch for one more file."""
    facts = json.loads((place / MANIFEST).read_bytes()) if (place / MANIFEST).exists() else {}
    if facts.get(FILES):  # otherwise the run goes on, and vouches for its files when it is over
        write_manifest(place, facts, [name])


def hash_file(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _simplify(value: object) -> object:
    """A value that JSON does not know, as a dict or as text."""
    return dict(value) if isinstance(value, Mapping) else str(value)
