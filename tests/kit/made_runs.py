"""Writes run folders with made-up values, in the form in which a run writes them."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.runs.reading import RECORDS, SCHEMA, WEIGHTS


def made(
    folder, method, values, *, validation="same", seed=0, names=None, domains=None, loss=None, parameters=None,
    data="made", **changes,
):  # fmt: skip
    """A finished run with test accuracies `values`, [rounds, clients] or [clients]; `validation=None`: no such data."""
    values = np.atleast_2d(np.asarray(values, dtype=float))
    held = values if isinstance(validation, str) else validation
    loss = 1 - values if loss is None else np.atleast_2d(np.asarray(loss, dtype=float))
    rounds, count = values.shape
    names = names or [f"c{k}" for k in range(count)]
    domains = domains or [""] * count
    earlier = len(list(folder.glob("*"))) if folder.exists() else 0
    place = folder / f"{re.sub('[^a-z]', '', method.split('(')[0])}-{seed}-{earlier}"
    place.mkdir(parents=True)
    facts = {
        "schema": SCHEMA, "status": "finished", "why": "", "method": method, "parameters": parameters or {method: {}},
        "data": {
            "name": data, "fingerprint": data, "partition": "p", "protocol": "default", "classes": ["0", "1"], "notes": [],
            "clients": [
                {"name": n, "domain": d, "train": 10, "test": 100, "classes": [4, 6]}
                for n, d in zip(names, domains, strict=True)
            ],
        },
        "model": "linear", "training": {"lr": 0.1, "steps": None}, "demanded": {}, "rounds": rounds, "participation": 1.0,
        "buffers": "average", "seed": seed, "evaluated": {"model": "global", "split": "test"}, "warnings": [], "rejected": [],
        "seconds": 1.0, "seconds_per_round": [0.5] * rounds, "versions": {"python": "3"}, "digest": "d",
        "cost": {"parameters": 10, "upload": 40, "flops": 1000, "clients": count}, **changes,
    }  # fmt: skip
    (place / "manifest.json").write_text(json.dumps(facts))
    column = {"round": np.repeat(np.arange(1, rounds + 1), count), "client": names * rounds}
    tables = [
        pa.table({
            **column, "domain": [d or n for n, d in zip(names, domains, strict=True)] * rounds, "split": [split] * values.size,
            "metric": [metric] * values.size, "value": table.ravel(), "samples": [100] * values.size,
        }, schema=RECORDS)
        for metric, split, table in (
            ("accuracy", "test", values),
            ("loss", "test", loss),
            *([] if held is None else [("accuracy", "validation", np.atleast_2d(held)), ("loss", "validation", loss)]),
        )
    ]  # fmt: skip
    pq.write_table(pa.concat_tables(tables), place / "records.parquet")
    weights = {"weight": [1 / count] * values.size, "figure": ["samples"] * values.size, "value": [10.0] * values.size}
    pq.write_table(pa.table({**column, **weights}, schema=WEIGHTS), place / "weights.parquet")
    return place
