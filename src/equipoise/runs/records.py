"""What a run leaves behind, written while it goes: `manifest.json` says what was done, `records.parquet` what was measured,
`weights.parquet` which weight each client got and where it came from, `model.safetensors` what was learnt.

Nothing is averaged before it is stored: one row a round, client, split and metric. `docs/records.md` has every column.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from equipoise.engine.checkpoints import held
from equipoise.runs.cost import cost
from equipoise.data.images import Images
from equipoise.rounds.evaluation import tensors_of
from equipoise.method.plugins import code_of
from equipoise.engine.loop import RoundRecord, Run
from equipoise.types import EquipoiseError

SCHEMA = 1
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
TABLES = {"records": RECORDS, "weights": WEIGHTS}
OUTCOME = (
    "status",
    "why",
    "warnings",
    "rejected",
    "seconds",
    "seconds_per_round",
    "runner",
    "versions",
    "cost",
    "digest",
)


def manifest(run: Run, status: str = "finished", why: str = "") -> dict[str, Any]:
    """All that is needed to know what a run was, and to do it again."""
    data = run.federation
    holdings = [None] * len(data) if data.elsewhere else data.class_counts().tolist()  # labels may be at the sites
    clients = [
        {"name": c.name, "domain": c.domain, "train": len(c.train), "test": len(c.test), "classes": counts}
        for c, counts in zip(data.clients, holdings, strict=True)
    ]
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "status": status,
        "why": why,
        "method": str(run.method),
        "parameters": run.method.describe(),
        "data": {
            "name": data.name,
            "arguments": data.arguments,
            "fingerprint": data.fingerprint,
            "partition": data.partition,
            "protocol": data.protocol.name,
            "clients": clients,
            "classes": list(data.classes),
            "notes": list(data.notes),
            "sample": {"shape": list(data.x.shape[1:]), "dtype": str(data.x.dtype).removeprefix("torch.")},
            "preparation": _preparation(run),
        },
        "model": run.model,
        "training": asdict(run.task.training),
        "demanded": dict(run.method.training),  # of the training above, what the method and not the user decides
        **run.settings,
        "seed": run.seed,
        "runner": run.runner,
        "evaluated": {"model": run.scored, "split": "test"},
        "warnings": list(run.warnings),
        "rejected": [one for record in run.rounds for one in _rejected(record)],
        "seconds": round(run.seconds, 3),
        "seconds_per_round": [round(r.seconds, 4) for r in run.rounds],
        "cost": cost(run.method, run.task, run.participation),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("equipoise", "torch", "numpy", "pyarrow")},
        },
    }
    if own := code_of(run.method):
        facts["code"] = own
    facts["digest"] = _digest(facts)
    return facts


def _rejected(record: RoundRecord) -> list[dict[str, object]]:
    return [{"round": record.round, **asdict(one)} for one in record.rejected]


def _preparation(run: Run) -> dict[str, object] | None:
    """What is done to samples before the model sees them, so that the trained model can be used again."""
    found = run.federation.preparation
    if not isinstance(found, Images):
        return None
    plain = {
        name: v.tolist() if isinstance(v, Tensor) else list(v) for name, v in (("mean", found.mean), ("std", found.std))
    }
    return {"kind": "images", **plain}


def _digest(facts: Mapping[str, Any]) -> str:
    """Of all that decides what a run computes: equal digests, equal settings."""
    settings = {name: value for name, value in facts.items() if name not in OUTCOME}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:8]


def run_name(run: Run) -> str:
    """A folder name that tells runs of different settings apart: `scanners-fedheal-seed0-1f2e3d4c`."""
    return _name(manifest(run))


def _name(facts: Mapping[str, Any]) -> str:
    parts = (facts["data"]["name"], facts["method"], f"seed{facts['seed']}", facts["digest"])
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", part).strip("_.")[:60] for part in parts)


# --------------------------------------------------------------------------- writing
class Recorder:
    """Writes a run's folder round by round. Until the run ends, rows are in Arrow streams, which can be read up to the
    last whole round however the run ended; then they become Parquet files."""

    def __init__(self, run: Run, folder: Path) -> None:
        """`run` is the run before its first round, or as it ended. The folder is this recorder's alone until it is done."""
        self.facts = manifest(replace(run, rounds=(), warnings=()), "running")
        self.place = folder / _name(self.facts)
        self.clients = [client.name for client in run.task.federation.clients]
        self.lock = ExitStack()
        self.lock.enter_context(held(self.place, "the run"))
        try:
            for old in (*self.place.glob("*.parquet"), self.place / "model.safetensors"):
                old.unlink(missing_ok=True)
            if run.federation.schema is not None:
                _write(self.place / "schema.json", run.federation.schema)
            _write(self.place / "manifest.json", self.facts)
            self.files = {name: (self.place / f"{name}.arrows").open("wb") for name in TABLES}
            self.streams = {name: pa.ipc.new_stream(self.files[name], schema) for name, schema in TABLES.items()}
        except OSError as error:
            self.lock.close()
            raise _unwritable(self.place, error) from None

    def add(self, record: RoundRecord) -> None:
        """One more round. What was rejected or warned of is in the manifest at once, whatever becomes of the run."""
        scores = [{"round": record.round, **asdict(score)} for score in record.scores]
        rows = {"records": scores, "weights": list(_weights(record, self.clients))}
        try:
            for name, schema in TABLES.items():
                self.streams[name].write_batch(pa.RecordBatch.from_pylist(rows[name], schema=schema))
                self.files[name].flush()
            if record.rejected or record.warnings:
                self.facts["rejected"] += _rejected(record)
                self.facts["warnings"] += record.warnings
                _write(self.place / "manifest.json", self.facts)
        except OSError as error:
            raise _unwritable(self.place, error) from None

    def finish(self, run: Run) -> Path:
        """The run is over: join the rows, keep the model, and say so."""
        self._close()
        try:
            for name, schema in TABLES.items():
                pq.write_table(_streamed(self.place / f"{name}.arrows", schema), self.place / f"{name}.parquet")
            save_file(_tensors(run), self.place / "model.safetensors")
            stopped = len(run.rounds) < int(str(run.settings["rounds"]))  # too few sites answered
            why = run.warnings[-1] if stopped and run.warnings else ""
            _write(self.place / "manifest.json", manifest(run, "stopped" if stopped else "finished", why))
            for name in TABLES:
                (self.place / f"{name}.arrows").unlink()
        except (OSError, SafetensorError) as error:
            raise _unwritable(self.place, error) from None
        finally:
            self.lock.close()
        return self.place

    def fail(self, why: str) -> None:
        """The run could not be done. What there is of it stays."""
        self._close()
        with self.lock, suppress(OSError):
            _write(self.place / "manifest.json", {**self.facts, "status": "failed", "why": why})

    def _close(self) -> None:
        for name in TABLES:
            with suppress(OSError):
                self.streams[name].close()
                self.files[name].close()


def save(run: Run, folder: Path) -> Path:
    """Write a run that is over into a folder of its own below `folder`, and return it."""
    recorder = Recorder(run, folder)
    for record in run.rounds:
        recorder.add(record)
    return recorder.finish(run)


def _weights(record: RoundRecord, names: list[str]) -> Iterable[dict[str, object]]:
    """One row a client and figure; a figure that all clients share (`n_eff`) stands with each of them."""
    figures = record.figures or {"": (math.nan,)}
    for i, client in enumerate(record.clients):
        for figure, values in figures.items():
            value = values[i] if len(values) > 1 or len(record.clients) == 1 else values[0]
            row = {"round": record.round, "client": names[client], "weight": record.weights[i]}
            yield {**row, "figure": figure, "value": value}


def _tensors(run: Run) -> dict[str, Tensor]:
    """The model under its own names; what a client has of its own under `client NAME/`."""
    everyone = range(len(run.task.federation))
    whole = tensors_of(run.task, run.server, run.states, everyone)
    found = dict(whole)
    own = set(run.task.personal.names)
    if not run.federation.elsewhere:  # otherwise they stayed at the sites
        own |= run.task.private | {name for name, policy in run.task.policies.items() if policy == "local"}
    for k in everyone if own else ():
        mine = tensors_of(run.task, run.server, run.states, [k])
        found |= {f"client {run.task.federation.clients[k].name}/{name}": mine[name] for name in sorted(own)}
    return {name: value.detach().cpu().clone().contiguous() for name, value in found.items()}


def _write(path: Path, facts: Mapping[str, object]) -> None:
    """All of a file or nothing of it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(facts, indent=2, default=_plain) + "\n")
    new.replace(path)


def _unwritable(place: Path, error: Exception) -> EquipoiseError:
    why = getattr(error, "strerror", None) or error
    return EquipoiseError(f"Cannot write the run to `{place}`: {why}. Choose another --out.")


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


# --------------------------------------------------------------------------- reading
@dataclass(frozen=True, eq=False)
class Recorded:
    """A run folder as it was read: finished, failed, or cut off."""

    place: Path
    manifest: Mapping[str, Any]
    records: pa.Table
    weights: pa.Table

    @property
    def method(self) -> str:
        return str(self.manifest["method"])

    @property
    def seed(self) -> int:
        return int(self.manifest["seed"])

    @property
    def finished(self) -> bool:
        return self.manifest["status"] == "finished"

    @property
    def rounds_done(self) -> int:
        return int(max(self.weights["round"].to_pylist(), default=0))

    @property
    def clients(self) -> list[str]:
        return [client["name"] for client in self.manifest["data"]["clients"]]

    @property
    def domains(self) -> list[str]:
        """The domain of each client; one without a domain is its own."""
        return [client["domain"] or client["name"] for client in self.manifest["data"]["clients"]]

    def curve(self, metric: str = "accuracy", split: str = "test") -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The evaluated rounds, and a value a round and client, [rounds, clients] (nan: the client has none)."""
        table = self.records.filter((pc.field("metric") == metric) & (pc.field("split") == split))
        rounds, row = np.unique(table["round"].to_numpy(), return_inverse=True)
        place = {name: i for i, name in enumerate(self.clients)}
        column = np.array([place[name] for name in table["client"].to_pylist()], dtype=int)
        values = np.full((len(rounds), len(place)), np.nan)
        values[row, column] = table["value"].to_numpy()
        return rounds, values

    def samples(self, split: str = "test") -> NDArray[np.float64]:
        """How many samples each client was scored on."""
        table = self.records.filter((pc.field("metric") == "accuracy") & (pc.field("split") == split))
        found = dict(zip(table["client"].to_pylist(), table["samples"].to_pylist(), strict=True))
        return np.array([found.get(name, 0) for name in self.clients], dtype=float)


def read(place: Path) -> Recorded:
    """The run in a folder. What cannot be read is an error that says why, in one line."""
    path = place / "manifest.json"
    try:
        facts = json.loads(path.read_text())
        found = int(facts["schema"])
    except FileNotFoundError:
        raise EquipoiseError(f"`{place}` is no run folder: it has no manifest.json.") from None
    except OSError as error:
        raise EquipoiseError(f"Cannot read `{path}`: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise EquipoiseError(f"`{path}` is not a manifest of Equipoise, or was cut off. Do the run again.") from None
    if found > SCHEMA:
        raise EquipoiseError(
            f"`{place}` was written by a newer Equipoise (schema {found}; this one reads up to {SCHEMA}). Update Equipoise."
        )
    lacking = {"status", "method", "seed", "data", "digest", "rounds"} - set(facts)
    if lacking:
        raise EquipoiseError(f"`{path}` lacks `{min(lacking)}`: it was written by something else, or changed by hand.")
    return Recorded(place, facts, *(_table(place, name, schema) for name, schema in TABLES.items()))


def _table(place: Path, name: str, schema: pa.Schema) -> pa.Table:
    whole, stream = place / f"{name}.parquet", place / f"{name}.arrows"
    if whole.exists():
        try:
            table = pq.read_table(whole)
        except (pa.ArrowException, OSError):
            raise EquipoiseError(f"`{whole}` cannot be read: it is cut off or damaged. Do the run again.") from None
        if not table.schema.equals(schema):
            raise EquipoiseError(f"`{whole}` has other columns than schema {SCHEMA} says. Do the run again.")
        return table
    if stream.exists():
        return _streamed(stream, schema)
    raise EquipoiseError(f"`{place}` has no {name}.parquet. Do the run again.")


def _streamed(path: Path, schema: pa.Schema) -> pa.Table:
    """The whole batches of a stream that may be cut off anywhere."""
    batches: list[pa.RecordBatch] = []
    with path.open("rb") as file, suppress(pa.ArrowException, OSError):
        batches.extend(pa.ipc.open_stream(file))
    return pa.Table.from_batches(batches, schema)


def find(paths: Iterable[Path]) -> list[Path]:
    """The run folders that are named, or lie below a named folder."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise EquipoiseError(f"There is no `{path}`. `equipoise runs` lists the run folders.")
        inside = [path] if (path / "manifest.json").exists() else sorted(p.parent for p in path.glob("*/manifest.json"))
        if not inside:
            raise EquipoiseError(f"`{path}` is no run folder and holds none: there is no manifest.json.")
        found |= dict.fromkeys(inside)
    return list(found)


def read_all(paths: Iterable[Path]) -> tuple[list[Recorded], list[str]]:
    """The runs that can be read, and a line for each that cannot."""
    runs, wrong = [], []
    for place in find(paths):
        try:
            runs.append(read(place))
        except EquipoiseError as error:
            wrong.append(str(error))
    return runs, wrong
