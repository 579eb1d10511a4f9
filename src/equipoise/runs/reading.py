"""Reads run folders, whether the run finished, failed or was cut off. It does not import the code that trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from equipoise.errors import EquipoiseError
from equipoise.metrics import UNSEEN
from equipoise.runs.shape import find_oddity, find_strange_rows
from equipoise.runs.sums import FILES, MANIFEST, MODEL, OWN, is_whole, refuse_damaged

SCHEMA = 1  # the version of the folder's format
# What the columns mean is in `docs/records.md`.
RECORDS = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.string()),
        ("domain", pa.string()),
        ("split", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("samples", pa.int32()),
    ]
)
WEIGHTS = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.string()),
        ("weight", pa.float64()),  # the factor on the client's shaped update
        ("figure", pa.string()),  # what the weight came from: `loss`, `distance`, `w_moo` ...
        ("value", pa.float64()),
    ]
)
SELECTION = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.string()),  # empty: all others
        ("status", pa.string()),  # `asked`, `candidate` (asked for a report only) or `not asked`
        ("answered", pa.bool_()),
        ("why", pa.string()),  # it was not asked, or its answer did not count; empty where it was and did
        ("value", pa.float64()),  # by which it was judged
    ]
)
TABLES = {"records": RECORDS, "weights": WEIGHTS, "selection": SELECTION}
OPTIONAL = frozenset({"selection"})  # tables of which a run without such rows has no file
REPEATED = "repeated"  # in the manifest: the round at work, if it had too few answers and is done again
# Why the answer of a client that sent nothing did not count, as real sites' records say it.
LATE = "it did not answer in time."
AWAY = "it is not connected."


class Ended(NamedTuple):
    """When a round was over. While a run goes on, it stands beside the round's rows in the streams."""

    round: int
    time: float  # when the round was written, in seconds since 1970, by the clock of the run's machine
    seconds: float  # that the round took

    def as_metadata(self) -> dict[str, str]:
        """As text, as Arrow keeps it with the rows of a round."""
        return {name: repr(value) for name, value in self._asdict().items()}

    @classmethod
    def from_metadata(cls, found: Mapping[bytes, bytes]) -> Ended:
        """What `as_metadata` gave."""
        return cls(int(found[b"round"]), float(found[b"time"]), float(found[b"seconds"]))


@dataclass(frozen=True, eq=False)
class Recorded:
    """What is in a run folder, whether the run finished, failed or was cut off."""

    place: Path  # the run folder
    manifest: Mapping[str, Any]  # what the run was asked to do, and what became of it
    records: pa.Table  # one row per round, client, split and metric
    weights: pa.Table  # one row per round, client and figure
    selection: pa.Table  # one row per round and client: who was asked, and why not

    @property
    def method(self) -> str:
        """The method as text."""
        return str(self.manifest["method"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.manifest["seed"])

    @property
    def is_finished(self) -> bool:
        """Whether the run did all its rounds."""
        return self.manifest["status"] == "finished"

    @property
    def is_verified(self) -> bool:
        """Whether the files were compared with checksums: the folders of an earlier version have none."""
        return FILES in self.manifest

    @property
    def rounds_done(self) -> int:
        """The last round that has weights in the folder; 0 if none has."""
        return int(max(self.weights["round"].to_pylist(), default=0))

    @property
    def clients(self) -> list[str]:
        """The names of all clients."""
        return [client["name"] for client in self.manifest["data"]["clients"]]

    @property
    def unseen(self) -> list[str]:
        """The names of the clients that are held out of training, which are only scored."""
        return [client["name"] for client in self.manifest["data"].get(UNSEEN, ())]

    @property
    def unseen_domains(self) -> list[str]:
        """The domain of each of these clients; one without a domain counts as a domain of its own name."""
        return [client["domain"] or client["name"] for client in self.manifest["data"].get(UNSEEN, ())]

    @property
    def domains(self) -> list[str]:
        """The domain of each client; a client without a domain counts as a domain of its own name."""
        return [client["domain"] or client["name"] for client in self.manifest["data"]["clients"]]

    @property
    def score(self) -> str:
        """The metric by which clients are compared: `accuracy`, or `explained` where numbers are predicted."""
        return str(self.manifest.get("score", "accuracy"))

    @property
    def score_words(self) -> str:
        """The score in words."""
        return "accuracy" if self.score == "accuracy" else "explained variance"

    @property
    def loss_words(self) -> str:
        """What clients minimise, in words."""
        return str(self.manifest.get("loss", "cross-entropy"))

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics, in the order in which they were first recorded."""
        return pc.unique(self.records["metric"]).to_pylist()

    def curve(self, metric: str | None = None, split: str = "test") -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The evaluated rounds `[rounds]`, and the values of a metric `[rounds, clients]`; NaN: the client has none.

        Without a metric they are those of the score. For the split `unseen`, the clients are those that are held out.
        """
        table = self.records.filter((pc.field("metric") == (metric or self.score)) & (pc.field("split") == split))
        rounds, row = np.unique(table["round"].to_numpy(), return_inverse=True)
        place = {name: i for i, name in enumerate(self.unseen if split == UNSEEN else self.clients)}
        column = np.array([place[name] for name in table["client"].to_pylist()], dtype=int)
        values = np.full((len(rounds), len(place)), np.nan)
        values[row, column] = table["value"].to_numpy()
        return rounds, values

    def samples(self, split: str = "test") -> NDArray[np.float64]:
        """How many samples each client was scored on, `[clients]`."""
        table = self.records.filter((pc.field("metric") == self.score) & (pc.field("split") == split))
        found = dict(zip(table["client"].to_pylist(), table["samples"].to_pylist(), strict=True))
        names = self.unseen if split == UNSEEN else self.clients
        return np.array([found.get(name, 0) for name in names], dtype=float)


def read(place: Path, whole: bool = False) -> Recorded:
    """Read a run folder. If it cannot be read, or a file is not what the run wrote, the error says so in one line.

    The model, which is not read here, is looked at only if `whole` says so; `load` does it, too.
    """
    path = place / MANIFEST
    try:
        content = path.read_bytes()
        facts = json.loads(content)
        found = int(facts["schema"])
    except FileNotFoundError:
        raise EquipoiseError(f"`{place}` is no run folder: it has no manifest.json.") from None
    except OSError as error:
        raise EquipoiseError(f"Cannot read `{path}`: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise EquipoiseError(
            f"`{path}` is not a manifest of Equipoise, is damaged or was cut off. Do the run again."
        ) from None
    if not is_whole(content, facts):
        raise EquipoiseError(f"`{path}` is damaged: its checksum differs. Bring back a copy, or do the run again.")
    if found > SCHEMA:
        raise EquipoiseError(
            f"`{place}` was written by a newer Equipoise (schema {found}; this one reads up to {SCHEMA}). "
            "Update Equipoise."
        )
    odd = find_oddity(facts)
    if odd:
        raise EquipoiseError(f"`{path}` {odd}: it was written by something else, or changed by hand.")
    sums = facts.get(FILES, {})
    refuse_damaged(place, facts, [name for name in sums if whole or name != MODEL])
    tables = {name: _table(place, name, schema, sums) for name, schema in TABLES.items()}
    odd = find_strange_rows(facts, tables)
    if odd:
        raise EquipoiseError(f"`{place}` holds parts of different runs: {odd}. Do the run again.")
    return Recorded(place, facts, **tables)


def _table(place: Path, name: str, schema: pa.Schema, sums: Mapping[str, str]) -> pa.Table:
    """One table of a run: from the stream written so far or, if the run is over, from its Parquet file."""
    whole, stream = place / f"{name}.parquet", place / f"{name}.arrows"
    if whole.name not in sums:  # while the stream is there, the other may be half written
        with suppress(FileNotFoundError):
            return read_stream(stream, schema)
    if whole.exists():
        try:
            table = pq.read_table(whole)
        except (pa.ArrowException, OSError):
            raise EquipoiseError(f"`{whole}` cannot be read: it is cut off or damaged. Do the run again.") from None
        if not table.schema.equals(schema):
            raise EquipoiseError(f"`{whole}` has other columns than schema {SCHEMA} says. Do the run again.")
        return table
    if name in OPTIONAL:
        return schema.empty_table()
    raise EquipoiseError(f"`{place}` has no {name}.parquet. Do the run again.")


def read_stream(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a stream that may be cut off anywhere, up to its last complete batch of rows."""
    batches: list[pa.RecordBatch] = []
    for batch, metadata in _iterate(path):
        own = metadata.get(OWN.encode(), b"")  # an earlier version wrote none
        if not batch.schema.equals(schema) or own not in (b"", hash_batch(batch).encode()):
            raise EquipoiseError(f"`{path}` is damaged: the checksum of a round differs. Do the run again.")
        batches.append(batch)
    return pa.Table.from_batches(batches, schema)


def hash_batch(batch: pa.RecordBatch) -> str:
    """The checksum of the rows of a round."""
    return hashlib.sha256(batch.serialize()).hexdigest()


def _iterate(path: Path) -> Iterator[tuple[pa.RecordBatch, Mapping[bytes, bytes]]]:
    """The complete batches of a stream, with what was written beside their rows."""
    with path.open("rb") as file, suppress(pa.ArrowException, OSError, StopIteration):
        stream = pa.ipc.open_stream(file)
        while True:
            found = stream.read_next_batch_with_custom_metadata()
            yield found.batch, found.custom_metadata or {}


def read_ends(place: Path) -> list[Ended]:
    """When the rounds of a run that is not over ended. Empty if it is over: its manifest has the times then."""
    with suppress(OSError):
        # An earlier version wrote no times.
        return [Ended.from_metadata(metadata) for _, metadata in _iterate(place / "weights.arrows") if metadata]
    return []


def list_inside(path: Path, drafts: bool = False) -> list[Path]:
    """The path itself if it is a run folder, otherwise the run folders directly inside it.

    With `drafts`, also hidden ones: a run that is to replace a finished one is written there until it is over.
    """
    if (path / MANIFEST).exists():
        return [path]
    below = sorted(found.parent for found in path.glob(f"*/{MANIFEST}"))
    return [place for place in below if drafts or not place.name.startswith(".")]


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders among these paths, and those directly inside the other paths."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise EquipoiseError(f"There is no `{path}`. `equipoise runs` lists the run folders.")
        inside = list_inside(path)
        if not inside:
            raise EquipoiseError(f"`{path}` is no run folder and holds none: there is no manifest.json.")
        found |= dict.fromkeys(inside)
    return list(found)


def read_all(paths: Iterable[Path], whole: bool = False) -> tuple[list[Recorded], list[str]]:
    """Read all run folders at these paths: the runs that can be read, and one line for each that cannot."""
    runs, wrong = [], []
    for place in find_runs(paths):
        try:
            runs.append(read(place, whole))
        except EquipoiseError as error:
            wrong.append(str(error))
    return runs, wrong
