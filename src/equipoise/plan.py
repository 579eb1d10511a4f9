"""Experiments as TOML files: methods x data x seeds x grids of parameters -> jobs."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal, get_type_hints

from equipoise.analysis import KINDS
from equipoise.data import load_federation
from equipoise.experiment import Job, jobs
from equipoise.grammar import Call, did_you_mean, fitted
from equipoise.method import parse
from equipoise.training import Training
from equipoise.types import EquipoiseError

SETTINGS = (
    "rounds",
    "participation",
    "model",
    "runner",
    "device",
    "eval_every",
    "with_validation",
    "keep",
)  # of a `Job`
LISTS = ("methods", "data", "seeds", "grid", "training")


def read_plan(path: Path) -> list[Job]:
    """Every run that an experiment file asks for.

    `methods`, `data` and `seeds` are lists; `[grid.fedheal]` gives lists of values for a method's parameters, and every
    combination of them is a method of its own; `[training]` changes the data sets' local training.
    """
    try:
        plan = tomllib.loads(path.read_text())
    except OSError as error:
        raise EquipoiseError(f"Cannot read `{path}`: {error.strerror}.") from None
    except ValueError as error:
        raise EquipoiseError(f"`{path}` is not TOML: {error}.") from None
    for name in plan:
        if name not in (*SETTINGS, *LISTS):
            known = ", ".join((*LISTS, *SETTINGS))
            raise EquipoiseError(f"`{path}` sets `{name}`.{did_you_mean(name, (*LISTS, *SETTINGS))} Known: {known}.")
    hints = get_type_hints(Job)
    template = Job(**{name: fitted(plan[name], hints[name], f"{path}: {name}") for name in SETTINGS if name in plan})  # type: ignore[arg-type]
    for kind in template.keep:
        fitted(kind, Literal[tuple(KINDS)], f"{path}: keep")
    methods = _expanded(_texts(plan, "methods", path), plan.get("grid", {}), path)
    seeds = plan.get("seeds", 3)
    numbers = list(range(seeds)) if isinstance(seeds, int) else fitted(seeds, tuple[int, ...], f"{path}: seeds")
    if not numbers or not isinstance(numbers, Sequence):
        raise EquipoiseError(
            f"{path}: seeds must be a number of seeds such as 3, or a list such as [0, 42]. Found {seeds!r}."
        )
    changes = _training(plan.get("training", {}), path)
    found = []
    for dataset in _texts(plan, "data", path):
        training = replace(load_federation(dataset).protocol.training, **changes) if changes else None  # type: ignore[arg-type]
        found += jobs(methods, dataset, [int(n) for n in numbers], replace(template, training=training))
    return found


def _texts(plan: Mapping[str, object], name: str, path: Path) -> list[str]:
    found = plan.get(name)
    texts = [found] if isinstance(found, str) else found
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise EquipoiseError(
            f"`{path}` must give `{name}` as a list of names, such as {name} = ['...']. Found {found!r}."
        )
    return texts


def _expanded(methods: Sequence[str], grids: object, path: Path) -> list[str]:
    """Methods with every combination of their grids' values."""
    if not isinstance(grids, dict) or not all(isinstance(grid, dict) for grid in grids.values()):
        raise EquipoiseError(f"`{path}`: a grid is a table for a method, such as [grid.fedheal] with tau = [0.2, 0.3].")
    used: set[str] = set()
    found: dict[str, None] = {}
    for text in methods:
        calls = parse(text).calls
        mine = {call.name: grids[call.name] for call in calls if call.name in grids}
        used |= set(mine)
        axes = [
            [(method, name, value) for value in (values if isinstance(values, list) else [values])]
            for method, grid in mine.items()
            for name, values in grid.items()
        ]
        for point in itertools.product(*axes):
            changed = [
                Call(
                    call.name, tuple({**dict(call.arguments), **{n: v for m, n, v in point if m == call.name}}.items())
                )
                for call in calls
            ]
            found[str(parse(" + ".join(map(str, changed))))] = None
    unused = set(grids) - used
    if unused:
        raise EquipoiseError(f"`{path}` has a grid for `{min(unused)}`, which is not among the methods. Name it there.")
    return list(found)


def _training(given: object, path: Path) -> dict[str, object]:
    hints = get_type_hints(Training)
    if not isinstance(given, dict):
        raise EquipoiseError(f"`{path}`: [training] is a table, such as lr = 0.05. Found {given!r}.")
    names = [one.name for one in fields(Training)]
    for name in given:
        if name not in names:
            raise EquipoiseError(f"`{path}`: [training] has no `{name}`.{did_you_mean(name, names)}")
    return {
        name: None if value == "full" else fitted(value, hints[name], f"{path}: training.{name}")
        for name, value in given.items()
    }
