"""Run folders that others are writing, read again and again. Nothing is locked or written, and no folder must be whole.

A folder may be on another machine and shared over the network: changes are found by looking at the files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.runs.reading import TABLES, Ended, Recorded, list_inside, read, read_ends

FILES = ("manifest.json", *(f"{name}.{kind}" for name in TABLES for kind in ("arrows", "parquet")))
GRACE = 10.0  # seconds for which a folder may be unreadable, because it is being written, before that is told
LEAST = 60.0  # a run with no news for less than this many seconds is never called cut off
PREPARING = 600.0  # nor one before its first round for less than this
PACES = 5  # nor one that is quiet for less than so many times its longest round, or the limit of its rounds

Mark = tuple[tuple[str, int, int], ...]  # names, times and sizes of a run's files


@dataclass(frozen=True, eq=False)
class Seen:
    """A run folder as it was when it was last read."""

    run: Recorded
    ends: Sequence[Ended]  # when its rounds ended; empty if the run is over
    touched: float  # when one of its files was last written, in seconds since 1970
    mark: Mark

    @property
    def done(self) -> int:
        """The rounds that are over."""
        return max((end.round for end in self.ends), default=self.run.rounds_done)

    @property
    def is_open(self) -> bool:
        """Whether the run has not ended, as far as its folder says. It may have been cut off."""
        return self.run.manifest["status"] == "running"

    @property
    def seconds_left(self) -> float | None:
        """About how long the run will take from here, as the last five rounds went; None before the first round."""
        last = [end.seconds for end in self.ends[-5:]]
        return sum(last) / len(last) * (int(self.run.manifest["rounds"]) - self.done) if last else None

    def is_quiet(self, now: float) -> bool:
        """Whether nothing was written for so long that the run may have been cut off."""
        limit = float((self.run.manifest.get("limits") or {}).get("round_timeout") or 0.0)
        longest = max((end.seconds for end in self.ends), default=0.0)
        least = LEAST if self.ends else PREPARING
        return now - self.touched > max(least, PACES * longest, PACES * limit)


class Shelf:
    """The run folders at some paths. `look` reads those that have changed since the last look."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Begin to look at these paths: run folders, or folders that hold run folders, now or later."""
        for path in paths:
            if not path.is_dir():
                raise EquipoiseError(
                    f"There is no folder `{path}` to watch. Name the folder that the runs are written into, or make it."
                )
        self.paths = list(paths)
        self._seen: dict[Path, Seen] = {}
        self._wrong: dict[Path, tuple[Mark, float, str]] = {}  # what could not be read, since when, and why

    def look(self, now: float | None = None) -> tuple[list[Seen], list[str]]:
        """All runs as they are now, and a line for each folder that cannot be read for longer than a moment."""
        now = time.time() if now is None else now
        problems = []
        places: dict[Path, None] = {}
        for path in self.paths:
            try:
                places |= dict.fromkeys(list_inside(path, drafts=True) if path.is_dir() else [])
            except OSError as error:
                problems.append(f"Cannot read `{path}`: {error.strerror}.")
            else:
                problems += [] if path.is_dir() else [f"The folder `{path}` is not there any more."]
        self._seen = {place: seen for place, seen in self._seen.items() if place in places}
        self._wrong = {place: wrong for place, wrong in self._wrong.items() if place in places}
        for place in places:
            self._look_at(place, now)
        problems += [why for _, since, why in self._wrong.values() if now - since >= GRACE]
        # A hidden folder is that of a run that will replace a finished one, or what is left of the one that was replaced.
        shown = [seen for seen in self._seen.values() if seen.is_open or not seen.run.place.name.startswith(".")]
        return shown, problems

    def _look_at(self, place: Path, now: float) -> None:
        """Read a folder if it has changed. If it cannot be read, the last reading stays."""
        mark = _mark(place)
        if place in self._seen and self._seen[place].mark == mark:
            self._wrong.pop(place, None)
            return
        if place in self._wrong and self._wrong[place][0] == mark:
            return
        try:
            touched = max((changed for _, changed, _ in mark), default=0) / 1e9
            self._seen[place] = Seen(read(place), read_ends(place), touched, mark)
            self._wrong.pop(place, None)
        except EquipoiseError as error:
            since = self._wrong[place][1] if place in self._wrong else now
            self._wrong[place] = (mark, since, str(error))


def _mark(place: Path) -> Mark:
    """By what it is seen that a folder has changed."""
    found = []
    for name in FILES:
        with suppress(OSError):  # a file that is not there, or not any more
            facts = (place / name).stat()
            found.append((name, facts.st_mtime_ns, facts.st_size))
    return tuple(found)
