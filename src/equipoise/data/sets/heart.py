"""Heart disease at four real hospitals: small tables of unequal size, with very different values missing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch

from equipoise.data.delimited import MISSING
from equipoise.data.federation import Client, Federation, Protocol
from equipoise.data.partitions import split_three_ways
from equipoise.data.sources import Source
from equipoise.data.tables import Rows, Schema, encode
from equipoise.errors import EquipoiseError
from equipoise.training import Training

CLASSES = ("healthy", "ill")
DOMAINS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS: dict[str, tuple[str, ...] | None] = {
    "age": None,
    "sex": ("0", "1"),
    "chest pain": ("1", "2", "3", "4"),
    "blood pressure": None,
    "cholesterol": None,
    "blood sugar": ("0", "1"),
    "resting ecg": ("0", "1", "2"),
    "heart rate": None,
    "angina": ("0", "1"),
    "st depression": None,
    "st slope": ("1", "2", "3"),
    "vessels": None,
    "thallium": ("3", "6", "7"),
}
SCHEMA = Schema("ill", CLASSES, COLUMNS)
INPUT_SHAPE = (SCHEMA.width,)
MODEL = "linear"
NEVER_ZERO = ("blood pressure", "cholesterol")  # where a zero stands for "not measured"
SHARES = (2 / 3, 0.0, 1 / 3)
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
SOURCE = Source(
    "UCI Heart Disease",
    "heart_disease",
    "https://archive.ics.uci.edu/dataset/45/heart+disease",
    addresses=tuple(f"{UCI}/processed.{domain}.data" for domain in DOMAINS),
    layout="processed.*.data",
)
NEEDS = (SOURCE,)
PRESETS = {
    "cpu": Protocol(50, 1.0, Training(epochs=1, batch=16, lr=0.05), MODEL, "cpu"),
}


def heart(preset: Literal["cpu"] = "cpu", seed: int = 0) -> Federation:
    """Heart disease at four hospitals: 13 columns with gaps, ill or healthy.

    Models `linear` and `mlp(hidden=(16,))` suit it. Each hospital fills its own gaps and scales its own numbers;
    nothing but the list of columns is shared. Of the ill and of the healthy patients of each hospital, two thirds train
    and one third tests.
    """
    x, y, clients, size = [], [], [], 0
    for name, path in _files().items():
        rows, labels = _read(name, path)
        train, validation, test = split_three_ways(
            torch.arange(len(labels)), SHARES, seed, "heart", name, labels=labels
        )
        x.append(encode(rows, SCHEMA, train))
        y.append(labels)
        clients.append(Client(name, size + train, size + validation, size + test))
        size += len(labels)
    return Federation(
        "heart", torch.cat(x), torch.cat(y), tuple(clients), CLASSES, PRESETS[preset], schema=SCHEMA.as_json()
    )


def _files() -> dict[str, Path]:
    found = _found()
    if found is None:
        SOURCE.fetch()
        found = _found()
    assert found is not None
    return found


def _found() -> dict[str, Path] | None:
    """The hospitals' files, if all of them are in one place."""
    for place in SOURCE.places():
        files = {domain: place / f"processed.{domain}.data" for domain in DOMAINS}
        if all(path.exists() for path in files.values()):
            return files
    return None


def _read(hospital: str, path: Path) -> tuple[Rows, torch.Tensor]:
    """The columns of one hospital as numbers with gaps, and whether each patient is ill."""
    lines = [line.strip().split(",") for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    for number, line in enumerate(lines, 1):
        if len(line) != len(COLUMNS) + 1:
            raise EquipoiseError(f"Line {number} of `{path}` must have {len(COLUMNS) + 1} values. Found {len(line)}.")
    try:
        values = [[None if v in MISSING else float(v) for v in line] for line in lines]
    except ValueError as error:
        raise EquipoiseError(f"`{path}` must hold numbers and `?`: {error}.") from None
    columns = dict(zip(COLUMNS, zip(*values, strict=True), strict=False))
    for name in NEVER_ZERO:
        columns[name] = tuple(None if v == 0 else v for v in columns[name])
    labels = torch.from_numpy(np.array([line[-1] for line in values], dtype=np.float64) > 0).long()
    table = pa.table({name: pa.array(column, pa.float64()) for name, column in columns.items()})
    return Rows(hospital, path.name, table), labels
