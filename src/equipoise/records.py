"""What a run leaves behind: `manifest.json` says what was done, `records.parquet` what was measured, `weights.parquet` which
weight each client got and where it came from.

Nothing is averaged before it is stored: one row a round, client, split and metric.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.simulation import Run
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


def manifest(run: Run) -> dict[str, object]:
    """All that is needed to know what a run was, and to do it again."""
    data = run.federation
    return {
        "schema": SCHEMA,
        "status": "finished",
        "method": str(run.method),
        "parameters": run.method.describe(),
        "data": {
            "name": data.name,
            "fingerprint": data.fingerprint,
            "partition": data.partition,
            "protocol": data.protocol.name,
            "clients": [{"name": c.name, "domain": c.domain, "train": len(c.train)} for c in data.clients],
            "classes": list(data.classes),
            "notes": list(data.notes),
        },
        "model": run.model,
        "training": asdict(run.task.training),
        **run.settings,
        "seed": run.seed,
        "runner": run.runner,
        "evaluated": {"model": run.scored, "split": "test"},
        "warnings": list(run.warnings),
        "seconds": round(run.seconds, 3),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("equipoise", "torch", "numpy", "pyarrow")},
        },
    }


def run_name(run: Run) -> str:
    """A folder name that tells runs of different settings apart: `scanners-fedheal-seed0-1f2e3d4c`."""
    facts = {k: v for k, v in manifest(run).items() if k not in ("seconds", "versions", "warnings", "runner", "status")}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:8]
    parts = (run.federation.name, str(run.method), f"seed{run.seed}", digest)
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", part).strip("_.")[:60] for part in parts)


def save(run: Run, folder: Path) -> Path:
    """Write the run into a folder of its own below `folder`, and return it."""
    place = folder / run_name(run)
    try:
        place.mkdir(parents=True, exist_ok=True)
        rows = [{"round": record.round, **asdict(score)} for record in run.rounds for score in record.scores]
        pq.write_table(pa.Table.from_pylist(rows, schema=RECORDS), place / "records.parquet")
        pq.write_table(pa.Table.from_pylist(_weights(run), schema=WEIGHTS), place / "weights.parquet")
        if run.federation.schema is not None:
            (place / "schema.json").write_text(json.dumps(run.federation.schema, indent=2) + "\n")
        (place / "manifest.json").write_text(json.dumps(manifest(run), indent=2, default=_plain) + "\n")
    except OSError as error:
        raise EquipoiseError(f"Cannot write the run to `{place}`: {error.strerror}. Choose another --out.") from None
    return place


def _weights(run: Run) -> list[dict[str, object]]:
    """One row a round, client and figure; a figure that all clients share (`n_eff`) stands with each of them."""
    names = [client.name for client in run.task.federation.clients]
    rows: list[dict[str, object]] = []
    for record in run.rounds:
        figures = record.figures or {"": (math.nan,)}
        for i, client in enumerate(record.clients):
            for figure, values in figures.items():
                value = values[i] if len(values) > 1 or len(record.clients) == 1 else values[0]
                row = {"round": record.round, "client": names[client], "weight": record.weights[i]}
                rows.append({**row, "figure": figure, "value": value})
    return rows


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)
