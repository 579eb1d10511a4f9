"""Groups of samples in a report: gaps between them, pooled over all clients and at the worst client, and their rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from equipoise.groups import (
    DEFINITIONS,
    GAPS,
    JUDGED,
    SHOWN,
    Tally,
    bound_gap,
    find_worst,
    measure_gap,
    measure_loss_gap,
    pool,
    read_counts,
)
from equipoise.metrics import Interval, over_seeds
from equipoise.runs.reading import Recorded
from equipoise.study.report.figures import Study

Rows = tuple[list[str], list[list[str]]]  # the head of a table, and its rows


def list_group_names(run: Recorded) -> tuple[str, list[str]]:
    """What the groups are groups of, and their names; empty where samples are in none."""
    found = run.manifest["data"].get("groups")
    return (str(found["name"]), list(map(str, found["names"]))) if found else ("", [])


def read_tallies(run: Recorded, split: str = "test") -> dict[str, Tally]:
    """What each client counted of its groups after the last evaluated round, by the client's name."""
    table = run.records.filter((pc.field("split") == split) & pc.starts_with(pc.field("metric"), "group "))
    if not len(table):
        return {}
    table = table.filter(pc.equal(table["round"], pc.max(table["round"])))
    found: dict[str, dict[str, float]] = {}
    for client, metric, value in zip(*(table[name].to_pylist() for name in ("client", "metric", "value")), strict=True):
        found.setdefault(client, {})[metric] = value
    groups = len(list_group_names(run)[1])
    return {client: read_counts(metrics, groups) for client, metrics in found.items()}


def list_gaps(run: Recorded) -> list[str]:
    """The gaps that the run's data have: those of rates where classes are predicted."""
    target = run.manifest["data"].get("target", "classes")
    return list(GAPS) if target == "classes" else ["accuracy"] if target == "labels" else []


def say_positive(run: Recorded) -> str:
    """Which class is the positive one, in words; empty where no classes are predicted."""
    data = run.manifest["data"]
    return f"the positive class is {data['classes'][1]}" if data.get("target", "classes") == "classes" else ""


def measure_pooled(study: Study, method: str) -> dict[str, Interval]:
    """The gaps over all clients' samples together, mean over seeds with its 95 % interval; `loss` is that of losses."""
    each = [read_tallies(run) for run in study.runs[method].values()]
    pooled = [pool(tallies.values()) for tallies in each if tallies]
    found = {name: over_seeds([measure_gap(one, name) for one in pooled]) for name in list_gaps(study.any)}
    return found | {"loss": over_seeds([measure_loss_gap(one) for one in pooled])}


def define_gap(name: str) -> str:
    """What a pooled gap is, in words."""
    what = "largest difference in mean loss between two groups" if name == "loss" else DEFINITIONS[name]
    return f"{what}, over all clients' test samples together"


# --------------------------------------------------------------------------- tables
def build_gap_table(study: Study) -> Rows:
    """For each method the pooled gaps with an interval, and the worst client's, beside what chance would give it."""
    gaps = list_gaps(study.any)
    worst = [f"worst client: {name.replace('_', ' ')}" for name in _worst(gaps)]
    head = ["method", *(name.replace("_", " ") for name in gaps), "gap in loss", *worst]
    rows = []
    for method in study.methods:
        pooled = measure_pooled(study, method)
        tallies = read_tallies(next(iter(study.runs[method].values())))
        cells = [_say_gap(study, method, name, pooled[name]) for name in gaps]
        loss = pooled["loss"].mean
        at_worst = (_say_worst(tallies, name) for name in _worst(gaps))
        rows.append([method, *cells, "–" if math.isnan(loss) else f"{loss:.3f}", *at_worst])
    return head, rows


def _worst(gaps: Sequence[str]) -> list[str]:
    """The gaps that are also told of the worst client."""
    return [name for name in ("demographic_parity", "equal_opportunity") if name in gaps]


def _say_gap(study: Study, method: str, name: str, value: Interval) -> str:
    """A gap in points: with its interval over seeds or, with one seed, over samples."""
    if math.isnan(value.mean):
        return "–"
    if not math.isnan(value.low):
        return f"{100 * value.mean:.1f} ± {100 * value.half:.1f}"
    one = bound_gap(list(read_tallies(next(iter(study.runs[method].values()))).values()), name)
    return f"{100 * one.mean:.1f} ({100 * one.low:.1f} to {100 * one.high:.1f})"


def _say_worst(tallies: dict[str, Tally], name: str) -> str:
    found = find_worst(tallies, name)
    if not found.client:
        return "too few samples"
    return f"{100 * found.gap:.1f} at {found.client} (by chance {100 * found.expected:.1f})"


def build_rate_table(study: Study) -> Rows:
    """For each method and group what the group got: its score, its loss, and its rates, over all clients and seeds."""
    _, names = list_group_names(study.any)
    score = study.score
    classes = study.any.manifest["data"].get("target", "classes") == "classes"
    rates = ["selection rate", "true positive rate", "false positive rate"] if classes else []
    head = ["method", "group", "samples", score, "loss", *rates]
    rows = []
    for method in study.methods:
        pooled = [pool(found.values()) for run in study.runs[method].values() if (found := read_tallies(run))]
        for z, group in enumerate(names):
            shares = [[float(one.rate(rate)[z]) for one in pooled] for rate in ("accuracy", *rates)]
            loss = [float(one.mean_losses[z]) for one in pooled]
            cells = [_mean(values, 100, ".1f") for values in shares]
            samples = str(int(pooled[0].sizes[z])) if pooled else "–"
            rows.append([method, group, samples, cells[0], _mean(loss, 1, ".3f"), *cells[1:]])
    return head, rows


def _mean(values: Sequence[float], factor: float, form: str) -> str:
    known = [value for value in values if not math.isnan(value)]
    return f"{factor * float(np.mean(known)):{form}}" if known else "–"


def say_group_legend(study: Study) -> str:
    """What the numbers of the tables are."""
    column, names = list_group_names(study.any)
    gaps = list_gaps(study.any)
    parts = [f"Groups of {column}: {', '.join(names)}, on test data, last round, in percent"]
    parts += [say_positive(study.any)] if say_positive(study.any) else []
    parts += [f"{name.replace('_', ' ')}: {DEFINITIONS[name]}" for name in gaps]
    return (
        "; ".join(parts)
        + ". Gaps are those of all clients' samples together, with half the 95 % interval over seeds or, "
        f"with one seed, the 95 % interval over samples. A rate needs {SHOWN} samples to be shown, and {JUDGED} to count for "
        "the worst client; beside its gap stands the one that chance alone would give it (first seed)."
    )
