"""Writes run folders while the run goes on.

`manifest.json` says what was done, `records.parquet` what was measured, `weights.parquet` which weight each client got
and from which figures, `selection.parquet` who was asked to take part and why the others were not;
`model.safetensors` holds the trained model. Nothing is averaged before it is stored: records
have one row per round, client, split and metric. `docs/records.md` explains every column.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from equipoise.data import Client
from equipoise.data.clients import Crowd
from equipoise.engine.folders import draft_beside, lock_folder, replace_whole
from equipoise.engine.result import Rejection, RoundRecord, Run
from equipoise.errors import EquipoiseError
from equipoise.metrics import UNSEEN
from equipoise.rounds.evaluation import WORDS, choose_model_for_unseen, collect_tensors
from equipoise.runs.cost import estimate_cost
from equipoise.runs.reading import OPTIONAL, REPEATED, SCHEMA, TABLES, Ended, hash_batch, read_stream
from equipoise.runs.sums import MANIFEST, MODEL, OWN, replace_file, write_manifest


def describe_run(
    run: Run, status: str = "finished", why: str = "", cost: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The manifest of a run: what it was asked to do, and what became of it. `why` says why it failed or stopped.

    `cost` is what it costs, if that has been found already: it takes a little work.
    """
    settings = run.settings
    return {
        "schema": SCHEMA,
        "status": status,
        "why": why,
        **settings.facts,
        "digest": settings.digest,
        "runner": run.runner,
        "evaluated": {"model": run.scored, "split": "test", **_name_unseen_model(run)},
        "limits": settings.limits,
        "warnings": list(run.warnings),
        "rejected": [one for record in run.rounds for one in _rejected(record.round, record.rejected)],
        "seconds": round(run.seconds, 3),
        "seconds_per_round": [round(r.seconds, 4) for r in run.rounds],
        "cost": estimate_cost(run.method, run.task, settings.cohort) if cost is None else cost,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("equipoise", "torch", "numpy", "pyarrow")},
        },
    }


def _name_unseen_model(run: Run) -> dict[str, str]:
    """By which model the clients that are held out were scored, if there are any."""
    return {UNSEEN: WORDS[choose_model_for_unseen(run.method, run.task)]} if run.federation.unseen else {}


def _rejected(round: int, rejected: Sequence[Rejection]) -> list[dict[str, object]]:
    """The clients whose answers did not count in a round, as rows for the manifest."""
    return [{"round": round, **asdict(one)} for one in rejected]


class Recorder:
    """Writes a run's folder round by round.

    Rows go into Arrow streams, which can be read up to the last complete round even if the run is cut off. When the run
    is over, they become Parquet files.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        """Begin the folder of a run, and lock it until `finish` or `fail`.

        `run` is the run before its first round, or when it is over. An older run of the same settings that did not finish
        is replaced at once. A finished one stays until the new one is finished, too.
        """
        self.facts = describe_run(replace(run, rounds=(), warnings=()), "running")
        self.place = self.goal = folder / run.settings.name
        self.clients = run.task.federation.clients
        self.lock = ExitStack()
        self.lock.enter_context(lock_folder(self.goal, "the run"))
        try:
            if _holds_finished_run(self.goal):
                self.place = draft_beside(self.goal)
            write_manifest(self.place, self.facts)  # first: an older one may vouch for what is removed now
            for old in (*self.place.glob("*.parquet"), self.place / MODEL):
                old.unlink(missing_ok=True)
            if run.federation.schema is not None:
                replace_file(self.place / "schema.json", json.dumps(run.federation.schema, indent=2) + "\n")
            self.files = {name: (self.place / f"{name}.arrows").open("wb") for name in TABLES}
            self.streams = {name: pa.ipc.new_stream(self.files[name], schema) for name, schema in TABLES.items()}
        except OSError as error:
            self.lock.close()
            raise _unwritable(self.place, error) from None

    def add(self, record: RoundRecord) -> None:
        """Write one more round. Rejections and warnings go into the manifest at once, in case the run is cut off."""
        ended = Ended(record.round, time.time(), record.seconds)
        scores = [{"round": record.round, **asdict(score)} for score in record.scores]
        rows = {
            "records": scores,
            "weights": list(_weights(record, self.clients)),
            "selection": list(_selection(record, self.clients)),
        }
        try:
            for name, schema in TABLES.items():
                batch = pa.RecordBatch.from_pylist(rows[name], schema=schema)
                self.streams[name].write_batch(batch, {**ended.as_metadata(), OWN: hash_batch(batch)})
                self.files[name].flush()
            news = [text for text in record.warnings if text not in self.facts["warnings"]]
            repeated = self.facts.pop(REPEATED, None)
            if record.rejected or news or repeated:
                self.facts["rejected"] += _rejected(record.round, record.rejected)
                self.facts["warnings"] += news
                write_manifest(self.place, self.facts)
        except OSError as error:
            raise _unwritable(self.place, error) from None

    def note(self, text: str) -> None:
        """Write a warning into the manifest at once."""
        self.facts["warnings"].append(text)
        self._write_facts()

    def repeat(self, round: int, rejected: Sequence[Rejection]) -> None:
        """Write into the manifest that a round had too few answers and is repeated, until it has been done."""
        tries = self.facts.get(REPEATED, {}).get("tries", 0) + 1
        self.facts[REPEATED] = {"round": round, "tries": tries, "rejected": _rejected(round, rejected)}
        self._write_facts()

    def _write_facts(self) -> None:
        """Write the manifest as it is now."""
        try:
            write_manifest(self.place, self.facts)
        except OSError as error:
            raise _unwritable(self.place, error) from None

    def finish(self, run: Run) -> Path:
        """Write what is left when the run is over: the tables as Parquet files, the model, and the final manifest."""
        self._close()
        try:
            for name, schema in TABLES.items():
                table = read_stream(self.place / f"{name}.arrows", schema)
                if table.num_rows or name not in OPTIONAL:
                    pq.write_table(table, self.place / f"{name}.parquet")
            save_file(_tensors(run), self.place / MODEL)
            status = "stopped" if run.stopped else "finished"
            facts = describe_run(run, status, run.stopped, self.facts["cost"])
            write_manifest(self.place, facts, self._list_files("parquet"))
            for name in TABLES:
                (self.place / f"{name}.arrows").unlink()
            if self.place != self.goal:
                replace_whole(self.goal, self.place)
                self.place = self.goal
        except (OSError, SafetensorError) as error:
            raise _unwritable(self.place, error) from None
        finally:
            self.lock.close()
        return self.place

    def fail(self, why: str) -> None:
        """Mark the run as failed in its manifest. The rounds written so far stay.

        If there is a finished run of the same settings, it stays instead.
        """
        self._close()
        with self.lock, suppress(OSError):
            if self.place != self.goal:
                shutil.rmtree(self.place)
                return
            write_manifest(self.place, {**self.facts, "status": "failed", "why": why}, self._list_files("arrows"))

    def _list_files(self, kind: str) -> list[str]:
        """The files that are there when the run is over, with tables of this kind. `runs/kept.py` adds its own."""
        names = (*(f"{name}.{kind}" for name in TABLES), MODEL, "schema.json")
        return [name for name in names if (self.place / name).exists()]

    def _close(self) -> None:
        """Close the streams."""
        for name in TABLES:
            with suppress(OSError):
                self.streams[name].close()
                self.files[name].close()


def _holds_finished_run(place: Path) -> bool:
    """Whether a folder has the manifest of a finished run."""
    try:
        return bool(json.loads((place / MANIFEST).read_bytes())["status"] == "finished")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def save(run: Run, folder: Path | str) -> Path:
    """Write a run that is over into a new folder inside `folder`, and return its path."""
    recorder = Recorder(run, Path(folder))
    for record in run.rounds:
        recorder.add(record)
    return recorder.finish(run)


def _weights(record: RoundRecord, clients: Sequence[Client]) -> Iterable[dict[str, object]]:
    """One row per client and figure. A figure with one value for all clients (`n_eff`) is repeated for each of them."""
    figures = record.figures or {"": (math.nan,)}
    for i, client in enumerate(record.clients):
        for figure, values in figures.items():
            value = values[i] if len(values) > 1 or len(record.clients) == 1 else values[0]
            row = {"round": record.round, "client": clients[client].name, "weight": record.weights[i]}
            yield {**row, "figure": figure, "value": value}


def _selection(record: RoundRecord, clients: Sequence[Client]) -> Iterable[dict[str, object]]:
    """One row per client that was asked, was a candidate, or has a reason of its own why it was not asked; and one row,
    without a name, for all others. None where all that were there were asked."""
    chosen = record.selection
    if not (chosen.why or chosen.others or chosen.candidates):
        return
    failed = {one.client: one.why for one in record.rejected}
    for client in sorted({*chosen.asked, *chosen.candidates, *chosen.why}):
        asked, name = client in chosen.asked, clients[client].name
        status = "asked" if asked else "candidate" if client in chosen.candidates else "not asked"
        answered = client in record.clients if asked else status == "candidate" and name not in failed
        why = "" if asked and answered else chosen.why.get(client, failed.get(name, ""))
        yield {
            "round": record.round, "client": name, "status": status, "answered": answered, "why": why,
            "value": chosen.values.get(client),
        }  # fmt: skip
    if chosen.others:
        row = {"round": record.round, "client": "", "status": "not asked", "answered": False}
        yield {**row, "why": chosen.others, "value": None}


def _tensors(run: Run) -> dict[str, Tensor]:
    """The tensors of the model by name, and those that a client has of its own under `client NAME/`."""
    everyone: Sequence[int] = range(len(run.task.federation))
    if isinstance(run.task.federation.clients, Crowd):
        everyone = sorted(run.states)  # the others have nothing of their own
    whole = collect_tensors(run.task, run.server, run.states, everyone)
    found = dict(whole)
    own = set(run.task.personal.names)
    if not run.federation.is_elsewhere:  # otherwise private tensors are not here, but at the sites
        own |= run.task.private | {name for name, policy in run.task.policies.items() if policy == "local"}
    for k in everyone if own else ():
        mine = collect_tensors(run.task, run.server, run.states, [k])
        found |= {f"client {run.task.federation.clients[k].name}/{name}": mine[name] for name in sorted(own)}
    return {name: value.detach().cpu().clone().contiguous() for name, value in found.items()}


def _unwritable(place: Path, error: Exception) -> EquipoiseError:
    """The error for a folder that cannot be written."""
    why = getattr(error, "strerror", None) or error
    return EquipoiseError(f"Cannot write the run to `{place}`: {why}. Choose another --out.")
