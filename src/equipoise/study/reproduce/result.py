"""The result of an entry: our values beside the published ones, and what became of the claims, as one value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.engine.loop import begin_run
from equipoise.errors import EquipoiseError
from equipoise.metrics import over_seeds
from equipoise.runs.cost import estimate_cost
from equipoise.runs.reading import Recorded
from equipoise.study.report.converged import judge_runs
from equipoise.study.report.figures import Study
from equipoise.study.reproduce.entries import Claim, Column, Entry, PresetName, Row
from equipoise.study.reproduce.figures import COSTS, FIGURES, Measured, scale_cost
from equipoise.study.reproduce.plan import ALONE, Plan, Planned, find_run
from equipoise.study.reproduce.stand_ins import find_stand_ins
from equipoise.study.reproduce.verdicts import (
    BySeed,
    Order,
    State,
    Verdict,
    judge_beats,
    judge_order,
    judge_reaches,
    judge_return,
    sum_up,
)

GAIN = "_gain"  # the end of the name of a column that shows what a row gains over another


@dataclass(frozen=True)
class Judged:
    """A claim, and what became of it."""

    text: str
    state: State
    why: str


@dataclass(frozen=True)
class Flatness:
    """Whether the runs of a row were flat at the end, by the rule of the library."""

    is_flat: bool  # all of them
    text: str


@dataclass(frozen=True)
class Result:
    """What the runs of an entry say so far."""

    key: str  # of the entry
    preset: PresetName
    label: str  # what a reader must know of the preset: on every output
    seeds: tuple[int, ...]
    settings: tuple[str, ...]  # of each data set: rounds, model and training, in words
    cells: Mapping[str, Mapping[str, BySeed]]  # row -> column -> value by seed
    missing: Mapping[str, str]  # row -> why it has no values, or not all
    flat: Mapping[str, Flatness]  # row -> whether its runs were flat at the end
    stand_ins: tuple[str, ...]  # data that are not the paper's
    claims: tuple[Judged, ...]
    orders: tuple[Order, ...]
    seconds: float  # of all runs together
    command: str
    absolute: str  # whether absolute values can be compared, and how many agree
    warnings: tuple[str, ...] = field(default=())  # of the runs

    @property
    def verdict(self) -> Verdict:
        """One word for all claims."""
        return sum_up([claim.state for claim in self.claims])


def gather(plan: Plan, folder: Path, command: str) -> Result:
    """Measure all runs of an entry that are in a folder, and judge the claims by them."""
    entry = plan.entry
    found = {planned: find_run(planned, folder) for planned in plan.runs}
    runs = {planned: one.run for planned, one in found.items() if one.run is not None}
    cells = _count_costs(plan) if entry.costs_only else _fill_cells(entry, runs)
    missing = {}
    for row in entry.rows:
        gaps = [f"seed {p.job.seed}: {one.why}" for p, one in found.items() if row.name in p.rows and one.run is None]
        if row.cannot or (gaps and not entry.costs_only):
            missing[row.name] = row.cannot or _shorten(gaps, sum(row.name in p.rows for p in found))
    stand_ins = tuple(find_stand_ins(plan.data.values()))
    warned = {text.split(":")[0]: text for run in runs.values() for text in run.manifest["warnings"]}
    return Result(
        key=entry.key,
        preset=plan.preset_name,
        label=label_preset(plan),
        seeds=plan.seeds,
        settings=tuple(describe_settings(plan)),
        cells=cells,
        missing=missing,
        flat={} if entry.costs_only else _judge_flatness(entry, runs),
        stand_ins=stand_ins,
        claims=tuple(Judged(claim.text, *_judge(plan, claim, cells)) for claim in entry.claims),
        orders=tuple(_judge_orders(entry, cells)),
        seconds=sum(run.manifest["seconds"] for run in runs.values()),
        command=command,
        absolute=_judge_absolute(entry, plan.preset_name, cells, stand_ins),
        warnings=tuple(warned.values()),
    )


def label_preset(plan: Plan) -> str:
    """What a reader of any output must know of the preset."""
    notes = [data.protocol.note.removeprefix("Preset cpu: ") for data in plan.data.values() if data.protocol.note]
    told = [plan.preset.note] if plan.preset.note else list(dict.fromkeys(notes))
    if plan.preset_name == "paper":
        return " ".join(["Preset paper: the protocol of the paper.", *told])
    first = "Preset cpu: smaller than the paper's protocol; values are not comparable with the published ones."
    return " ".join([first, *told])


def describe_settings(plan: Plan) -> list[str]:
    """Rounds, clients, model and training of each data set of a plan, in words."""
    found: dict[str, None] = {}
    for planned in plan.runs:
        one = planned.settings
        training = ", ".join(f"{name} {value}" for name, value in one.training.describe().items() if value is not None)
        text = plan.preset.data[planned.data]
        if not one.method.training:  # a method may demand a training of its own
            found[f"{text}: {one.rounds} rounds, {one.cohort} clients a round, {one.model_name}, {training}"] = None
    return list(found)


# --------------------------------------------------------------------------- cells
def _fill_cells(entry: Entry, runs: Mapping[Planned, Recorded]) -> dict[str, dict[str, BySeed]]:
    """The value of every row, column and seed whose run is there."""
    plain = {
        row.name: {c.name: _measure(entry, row, c, runs) for c in entry.columns if _is_plain(c)} for row in entry.rows
    }
    for row in entry.rows:
        for column in entry.columns:
            if not _is_plain(column):
                base = column.name.removesuffix(GAIN)
                mine, other = plain[row.name].get(base, {}), plain.get(row.gains_over, {}).get(base, {})
                plain[row.name][column.name] = {seed: mine[seed] - other[seed] for seed in mine if seed in other}
    return {name: {c.name: plain[name][c.name] for c in entry.columns} for name in plain}


def _is_plain(column: Column) -> bool:
    return not column.name.endswith(GAIN)


def _measure(entry: Entry, row: Row, column: Column, runs: Mapping[Planned, Recorded]) -> dict[int, float]:
    figure, values = FIGURES[column.figure], {}
    alone = {(p.data, p.job.seed): run for p, run in runs.items() if p.method == ALONE}
    for planned, run in runs.items():
        if row.name in planned.rows and column.data in ("", planned.data):
            seed = planned.job.seed
            own = alone.get((planned.data, seed))
            measured = Measured(run, entry.view, row.metric, own)
            try:
                values[seed] = figure.measure(measured, column.unit)
            except EquipoiseError:  # what it needs is not there yet
                continue
    return {seed: value for seed, value in sorted(values.items()) if not math.isnan(value)}


def _count_costs(plan: Plan) -> dict[str, dict[str, BySeed]]:
    """Costs, which follow from the settings: nothing is trained for them."""
    cells: dict[str, dict[str, BySeed]] = {
        row.name: {c.name: {} for c in plan.entry.columns} for row in plan.entry.rows
    }
    for planned in (run for run in plan.runs if run.job.seed == plan.seeds[0]):  # a cost is the same for all seeds
        begun = begin_run(planned.settings)
        cost = estimate_cost(planned.settings.method, begun.task, planned.settings.cohort)
        for name in planned.rows:
            for column, (what, divisor) in COSTS.items():
                if column in cells[name]:
                    cells[name][column] = {planned.job.seed: scale_cost(cost, what, divisor)}
    return cells


# --------------------------------------------------------------------------- verdicts
def _judge(plan: Plan, claim: Claim, cells: Mapping[str, Mapping[str, BySeed]]) -> tuple[State, str]:
    entry = plan.entry
    figure = FIGURES[entry.find_column(claim.column).figure]
    mine = cells[claim.row][claim.column]
    if claim.at_least is not None:
        found = judge_reaches(mine, claim.at_least, figure.digits + 1)
        return found.state, found.why
    printed = entry.find_published(claim.row, claim.column)
    if claim.near is not None and printed is not None:
        found = judge_return(mine, printed, claim.near, plan.preset.seeds, figure.digits)
        return found.state, found.why
    lower = figure.lower if claim.lower is None else claim.lower
    names = [name for other in claim.beats for name in (_others(entry, claim.row) if other == "*" else [other])]
    if not mine:
        return "not run", f"{claim.row} has no values yet"
    others = {name: cells[name][claim.column] for name in names}
    if entry.costs_only:  # costs are exact: one value decides
        return _compare_exactly(mine, others, lower)
    found = judge_beats(mine, others, lower, figure.digits + 1)
    return found.state, found.why


def _compare_exactly(mine: BySeed, others: Mapping[str, BySeed], lower: bool) -> tuple[State, str]:
    value = next(iter(mine.values()))
    known = {name: next(iter(one.values())) for name, one in others.items() if one}
    worse = [name for name, other in known.items() if (value >= other if lower else value <= other)]
    told = ", ".join(f"{name}: {other:g}" for name, other in known.items())
    return ("does not hold" if worse else "holds"), f"{value:g} against {told}"


def _others(entry: Entry, row: str) -> list[str]:
    """The other rows of the paper that can be run."""
    return [one.name for one in entry.rows if one.name != row and not one.ours and not one.cannot]


def _judge_orders(entry: Entry, cells: Mapping[str, Mapping[str, BySeed]]) -> list[Order]:
    found = []
    for name in entry.ordering:
        printed = {row.name: entry.find_published(row.name, name) for row in entry.rows if not row.ours}
        values = {row: value for row, value in printed.items() if value is not None}
        measured = {row: cells[row][name] for row in values}
        found.append(judge_order(name, measured, values, FIGURES[entry.find_column(name).figure].lower))
    return found


def _judge_absolute(
    entry: Entry, preset: PresetName, cells: Mapping[str, Mapping[str, BySeed]], stand_ins: Sequence[str]
) -> str:
    """Whether absolute values can be compared, and how many published ones lie in our intervals."""
    if preset != "paper":
        return "No verdict on absolute values: the preset is smaller than the paper's."
    if stand_ins:
        return "No verdict on absolute values: other data stand in for the paper's."
    if entry.costs_only:
        return "Costs follow from the settings; seconds on a GPU are not compared."
    if not any(row.published for row in entry.rows):
        return "There are no published numbers to compare with."
    inside, known = 0, 0
    for row in entry.rows:
        for column in entry.columns:
            printed, mine = entry.find_published(row.name, column.name), cells[row.name][column.name]
            if printed is not None and len(mine) > 1:
                interval = over_seeds(list(mine.values()))
                rounded = 0.5 * 10.0 ** -FIGURES[column.figure].digits  # what the last printed digit leaves open
                known += 1
                inside += interval.low - rounded <= printed <= interval.high + rounded
    return f"{inside} of {known} published values lie in our 95 % intervals." if known else "No cell has two seeds yet."


def _judge_flatness(entry: Entry, runs: Mapping[Planned, Recorded]) -> dict[str, Flatness]:
    """Whether the runs of each row were flat at the end."""
    found = {}
    for row in entry.rows:
        told, flat = [], True
        for label in dict.fromkeys(p.data for p in runs):
            mine = {p.job.seed: run for p, run in runs.items() if row.name in p.rows and p.data == label}
            if mine:
                judged = judge_runs(Study({row.name: mine}), row.name)
                flat = flat and all(one.state == "flat" for one in judged.by_seed.values())
                told.append(f"{label}: {judged}" if label else str(judged))
        if told:
            found[row.name] = Flatness(flat, "; ".join(told))
    return found


def _shorten(gaps: Sequence[str], total: int) -> str:
    """Why runs are missing: once if all have the same reason."""
    reasons = {text.split(": ", 1)[1] for text in gaps}
    if len(reasons) == 1:
        reason = next(iter(reasons))
        return reason if len(gaps) == total else f"{reason} for {len(gaps)} of {total} runs"
    return "; ".join(gaps)


# --------------------------------------------------------------------------- as JSON
def as_json(result: Result, date: str, version: str) -> dict[str, Any]:
    """A result as plain values, to be stored and made into pages."""
    return {
        "key": result.key,
        "preset": result.preset,
        "date": date,
        "version": version,
        "command": result.command,
        "label": result.label,
        "seeds": list(result.seeds),
        "settings": list(result.settings),
        "stand_ins": list(result.stand_ins),
        "verdict": result.verdict,
        "claims": [vars(claim) for claim in result.claims],
        "orders": [
            {"column": o.column, "state": o.state, "text": str(o), "reversed": list(o.reversed)} for o in result.orders
        ],
        "absolute": result.absolute,
        "flat": {row: vars(flat) for row, flat in result.flat.items()},
        "missing": dict(result.missing),
        "cells": {
            row: {
                column: {str(seed): round(value, 6) for seed, value in by_seed.items()}
                for column, by_seed in its.items()
            }
            for row, its in result.cells.items()
        },
        "seconds": round(result.seconds, 1),
        "warnings": list(result.warnings),
    }
