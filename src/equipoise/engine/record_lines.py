"""The records of a run's rounds, for its checkpoints: files of JSON lines that only grow.

A checkpoint says which file holds its records and how far that file counts, so that a round is written once per file,
however many rounds there are. Checkpoints use two files in turn: if one is damaged, the checkpoint before can be used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.engine.result import Rejection, RoundRecord, Selection
from equipoise.rounds.evaluation import Score

FILES = ("records-0.jsonl", "records-1.jsonl")  # beside the checkpoints


class Mark(NamedTuple):
    """How far a file of records counts. What follows was written by a run that was killed before its checkpoint was."""

    file: str
    lines: int = 0
    bytes: int = 0
    sha256: str = ""  # of the hash after the line before, and the last line: it covers all lines


def add_records(folder: Path, records: Sequence[RoundRecord], saved: Sequence[Mark]) -> Mark:
    """Write the records of all rounds so far, of which a file may have most, and sync them to disk.

    `saved` are the marks of the checkpoints that are there, oldest first. The file of the newest stays untouched, and
    so do the lines of any other that count.
    """
    file = next(name for name in FILES if not saved or name != saved[-1].file)
    mark = next((mark for mark in reversed(saved) if mark.file == file), Mark(file))
    with (folder / file).open("r+b" if mark.lines else "wb") as stream:
        stream.truncate(mark.bytes)
        stream.seek(mark.bytes)
        for record in records[mark.lines :]:
            line = json.dumps(asdict(record)).encode() + b"\n"
            stream.write(line)
            mark = Mark(file, mark.lines + 1, mark.bytes + len(line), _chain(mark.sha256, line))
        stream.flush()
        os.fsync(stream.fileno())
    return mark


def read_records(folder: Path, mark: Mark) -> list[RoundRecord] | None:
    """The records up to a mark; None if they are not those that were written."""
    with (folder / mark.file).open("rb") as stream:
        lines = stream.read(mark.bytes).splitlines(keepends=True)
    digest = ""
    for line in lines:
        digest = _chain(digest, line)
    if (digest, len(lines)) != (mark.sha256, mark.lines):
        return None
    return rebuild_records(map(json.loads, lines))


def remove_records(folder: Path) -> None:
    """Remove the files of records."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def _chain(before: str, line: bytes) -> str:
    """The hash of the lines up to this one, from the hash of those before it."""
    return hashlib.sha256(before.encode() + line).hexdigest()


def rebuild_records(found: Iterable[Mapping[str, Any]]) -> list[RoundRecord]:
    """The records from what JSON gives."""
    return [_rebuild_record(one) for one in found]


def _rebuild_record(one: Mapping[str, Any]) -> RoundRecord:
    return RoundRecord(
        one["round"],
        tuple(one["clients"]),
        tuple(one["weights"]),
        {name: tuple(values) for name, values in one["figures"].items()},
        tuple(Score(**score) for score in one["scores"]),
        one["seconds"],
        tuple(Rejection(**rejection) for rejection in one["rejected"]),
        tuple(one["warnings"]),
        _rebuild_selection(one.get("selection", {})),
        one.get("lr"),
    )


def _rebuild_selection(one: Mapping[str, Any]) -> Selection:
    """What a record tells of a selection; nothing, if an earlier version wrote it. JSON knows no numbers as keys."""
    by_client = {
        name: {int(client): value for client, value in one.get(name, {}).items()} for name in ("why", "values")
    }
    return Selection(
        tuple(one.get("asked", ())), tuple(one.get("candidates", ())), others=one.get("others", ""), **by_client
    )
