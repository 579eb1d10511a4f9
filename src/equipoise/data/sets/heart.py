"""Heart disease at four real hospitals: small tables of unequal size, with very different values missing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch

from equipoise.data.clients import Client
from equipoise.data.delimited import MISSING
from equipoise.data.federation import Federation, Protocol
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
DUMMIES = ("chest pain", "resting ecg")  # in FLamby's features
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
ALONE = Training(epochs=50, batch=4, lr=0.001, optimizer="Adam")  # as FLamby trains one centre, or all of them pooled
PRESETS = {
    "cpu": Protocol(50, 1.0, Training(epochs=1, batch=16, lr=0.05), MODEL, "cpu"),
    "flamby": Protocol(
        15, 1.0, Training(steps=100, batch=4, lr=0.001), MODEL, "flamby", loss="binary", torch_seed=0
    ),
    "flamby-local": Protocol(1, 1.0, ALONE, MODEL, "flamby-local", loss="binary", torch_seed=0),
    "flamby-pooled": Protocol(
        1, 1.0, ALONE, MODEL, "flamby-pooled",
        "Preset flamby-pooled: training rows are scaled by all hospitals' statistics, test rows by their own hospital's.",
        loss="binary", torch_seed=0,
    ),
}  # fmt: skip


def heart(preset: Literal["cpu", "flamby", "flamby-local", "flamby-pooled"] = "cpu", seed: int = 0) -> Federation:
    """Heart disease at four hospitals: 13 columns with gaps, ill or healthy.

    Models `linear` and `mlp(hidden=(16,))` suit it. Each hospital fills its own gaps and scales its own numbers;
    nothing but the list of columns is shared. Of the ill and of the healthy patients of each hospital, two thirds train
    and one third tests.

    Preset `flamby` is FLamby's Fed-Heart-Disease as its benchmark runs it: ten columns, the 740 patients without gaps, and a
    fixed split. `flamby-local` and `flamby-pooled` are its training of one hospital alone and of all together, for the
    methods `local_only` and `centralised`.
    """
    if preset != "cpu":
        return _build_flamby(preset)
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


def _build_flamby(preset: Literal["flamby", "flamby-local", "flamby-pooled"]) -> Federation:
    """The federation of FLamby's benchmark.

    Each hospital scales all its rows by the statistics of its training rows. In `flamby-pooled` the training rows stand in
    the pool a second time, scaled by the statistics of all training rows together.
    """
    raw, labels, splits = [], [], []
    for name, path in _files().items():
        rows, ill = _read_flamby(name, path)
        raw.append(rows)
        labels.append(ill)
        splits.append(_split_flamby(ill))
    scaled = [_scale(rows, rows[train]) for rows, (train, _) in zip(raw, splits, strict=True)]
    pooled = torch.cat([rows[train] for rows, (train, _) in zip(raw, splits, strict=True)])
    starts = np.cumsum([0, *map(len, raw)]).tolist()
    x, y = torch.cat(scaled), torch.cat(labels)
    clients = []
    for k, (name, (train, test)) in enumerate(zip(_files(), splits, strict=True)):
        mine = starts[k] + train
        if preset == "flamby-pooled":
            mine = torch.arange(len(x), len(x) + len(train))
            x, y = torch.cat([x, _scale(raw[k][train], pooled)]), torch.cat([y, labels[k][train]])
        clients.append(Client(name, mine, test=starts[k] + test))
    protocol = PRESETS[preset]
    notes = (protocol.note,) if protocol.note else ()
    return Federation("heart", x, y, tuple(clients), CLASSES, protocol, notes=notes)


def _read_flamby(hospital: str, path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The features of one hospital's patients without gaps, `[n, 13]`, and whether each is ill.

    The last three columns are left out. Chest pain and resting ECG are dummies without their first level, behind the
    other columns.
    """
    table, ill = _read(hospital, path, zeros_are_gaps=False)
    names = list(COLUMNS)[:10]
    columns = {name: table.table[name].to_numpy(zero_copy_only=False) for name in names}
    whole = ~np.isnan(np.stack(list(columns.values()))).any(0)
    plain = [column[whole] for name, column in columns.items() if name not in DUMMIES]
    dummies = [columns[name][whole] == float(level) for name in DUMMIES for level in (COLUMNS[name] or ())[1:]]
    features = np.stack([np.asarray(one, dtype=np.float32) for one in (*plain, *dummies)], axis=1)
    return torch.from_numpy(features), ill[torch.from_numpy(whole)]


def _split_flamby(ill: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The positions of training and test rows: stratified, unless a class has two rows or fewer."""
    from sklearn.model_selection import train_test_split

    counts = torch.bincount(ill)
    stratify = ill.numpy() if len(counts) > 1 and int(counts.min()) > 2 else None
    train, test = train_test_split(
        np.arange(len(ill)), test_size=1 - 0.66, train_size=0.66, random_state=43, shuffle=True, stratify=stratify
    )
    return torch.from_numpy(train).sort().values, torch.from_numpy(test).sort().values


def _scale(rows: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return (rows - by.mean(0)) / (by.std(0) + 1e-9)


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


def _read(hospital: str, path: Path, zeros_are_gaps: bool = True) -> tuple[Rows, torch.Tensor]:
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
    for name in NEVER_ZERO if zeros_are_gaps else ():
        columns[name] = tuple(None if v == 0 else v for v in columns[name])
    labels = torch.from_numpy(np.array([line[-1] for line in values], dtype=np.float64) > 0).long()
    table = pa.table({name: pa.array(column, pa.float64()) for name, column in columns.items()})
    return Rows(hospital, path.name, table), labels
