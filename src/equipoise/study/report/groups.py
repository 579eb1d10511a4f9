"""Groups of samples in a report: gaps between them, pooled over all clients and at the worst client, and their rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from equipoise.groups import (
    DEFINITIONS,
    GAPS,
    JUDGED,
    RATES,
    SHOWN,
    Tally,
    bound_gap,
    find_worst,
    find_worst_group,
    measure_gap,
    measure_loss_gap,
    pool,
    read_counts,
    wilson,
)
from equipoise.metrics import Interval, over_seeds, paired
from equipoise.runs.reading import Recorded
from equipoise.study.report.figures import Study

Rows = tuple[list[str], list[list[str]]]  # the head of a table, and its rows
MOST_CLIENTS = 30  # that the page lists with their gaps; all are in the file for spreadsheets


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
    pooled = _pool_by_seed(study, method).values()
    found = {name: over_seeds([measure_gap(one, name) for one in pooled]) for name in list_gaps(study.any)}
    return found | {"loss": over_seeds([measure_loss_gap(one) for one in pooled])}


def _pool_by_seed(study: Study, method: str) -> dict[int, Tally]:
    """What all clients together counted under a method, by seed."""
    each = {seed: read_tallies(run) for seed, run in study.runs[method].items()}
    return {seed: pool(tallies.values()) for seed, tallies in each.items() if tallies}


def measure_change(study: Study, first: str, second: str, name: str) -> Interval:
    """The change of a pooled gap from one method to another, paired by seed."""
    before, after = (
        {seed: measure_gap(one, name) for seed, one in _pool_by_seed(study, method).items()}
        for method in (first, second)
    )
    return paired(before, after)


def measure_worst_group(study: Study, method: str) -> tuple[str, Interval]:
    """The group that is worst with most seeds, and the score of the worst group, mean over seeds with its interval."""
    _, names = list_group_names(study.any)
    found = [find_worst_group(one) for one in _pool_by_seed(study, method).values()]
    named = [names[z] for z, _ in found if z >= 0]
    return max(named, key=named.count, default=""), over_seeds([score for _, score in found])


def say_gap(name: str) -> str:
    """The name of a gap in words."""
    return name.replace("_", " ")


def define_gap(name: str) -> str:
    """What a pooled gap is, in words."""
    what = "largest difference in mean loss between two groups" if name == "loss" else DEFINITIONS[name]
    return f"{what}, over all clients' test samples together"


# --------------------------------------------------------------------------- tables
def build_gap_table(study: Study) -> Rows:
    """For each method the pooled gaps with an interval, and the worst client's, beside what chance would give it."""
    gaps = list_gaps(study.any)
    worst = [f"worst client: {say_gap(name)}" for name in _worst(gaps)]
    head = ["method", *map(say_gap, gaps), "gap in loss", "worst group", *worst]
    rows = []
    for method in study.methods:
        pooled = measure_pooled(study, method)
        tallies = read_tallies(next(iter(study.runs[method].values())))
        cells = [_say_gap(study, method, name, pooled[name]) for name in gaps]
        loss = pooled["loss"].mean
        at_worst = (_say_worst(tallies, name) for name in _worst(gaps))
        group, score = measure_worst_group(study, method)
        last = f"{group} {say_percent(score)}" if group else "–"
        rows.append([method, *cells, "–" if math.isnan(loss) else f"{loss:.3f}", last, *at_worst])
    return head, rows


def _worst(gaps: Sequence[str]) -> list[str]:
    """The gaps that are also told of the worst client."""
    return [name for name in ("demographic_parity", "equal_opportunity") if name in gaps]


def _say_gap(study: Study, method: str, name: str, value: Interval) -> str:
    """A gap in points: with its interval over seeds or, with one seed, over samples."""
    if math.isnan(value.mean) or not math.isnan(value.low):
        return say_percent(value)
    return _say_range(bound_gap(list(read_tallies(next(iter(study.runs[method].values()))).values()), name))


def say_percent(value: Interval) -> str:
    """A share in percent, or a difference in points, with half its interval over seeds where there are several."""
    if math.isnan(value.mean):
        return "–"
    half = "" if math.isnan(value.low) else f" ± {100 * value.half:.1f}"
    return f"{100 * value.mean:.1f}{half}"


def _say_range(value: Interval) -> str:
    """The same with both ends of an interval over samples."""
    return f"{100 * value.mean:.1f} ({100 * value.low:.1f} to {100 * value.high:.1f})"


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
        pooled = list(_pool_by_seed(study, method).values())
        for z, group in enumerate(names):
            cells = [_say_rate(study, pooled, rate, z) for rate in ("accuracy", *rates)]
            loss = over_seeds([float(one.mean_losses[z]) for one in pooled]).mean
            samples = str(int(pooled[0].sizes[z])) if pooled else "–"
            rows.append([method, group, samples, cells[0], "–" if math.isnan(loss) else f"{loss:.3f}", *cells[1:]])
    return head, rows


def _say_rate(study: Study, pooled: Sequence[Tally], rate: str, group: int) -> str:
    """A rate of a group in percent: with its interval over seeds or, with one seed, over samples."""
    values = over_seeds([float(one.rate(rate)[group]) for one in pooled])
    if math.isnan(values.mean) or not math.isnan(values.low) or study.any.score != "accuracy":
        return say_percent(values)
    hits, total = pooled[0].count(rate)
    return _say_range(wilson(float(hits[group]), float(total[group])))


def build_client_table(study: Study) -> Rows:
    """The gaps of single clients under each method, with 95 % intervals over their test samples; of the first seed.

    Of many clients those with the widest gap, under the first method, in what is listed first.
    """
    gaps = list_gaps(study.any)
    found = {method: read_tallies(next(iter(study.runs[method].values()))) for method in study.methods}
    first = {client: measure_gap(one, gaps[0]) for client, one in found[study.methods[0]].items()} if gaps else {}
    order = list(first)
    if len(order) > MOST_CLIENTS:
        order = sorted(order, key=lambda client: -np.nan_to_num(first[client], nan=-1.0))[:MOST_CLIENTS]
    rows = []
    for client in order:
        for method, tallies in found.items():
            cells = [bound_gap([tallies[client]], name) for name in gaps] if client in tallies else []
            if any(not math.isnan(cell.mean) for cell in cells):
                shown = ["too few samples" if math.isnan(cell.mean) else _say_range(cell) for cell in cells]
                rows.append([client, method, *shown])
    return ["client", "method", *map(say_gap, gaps)], rows


class GroupFigure(NamedTuple):
    """A figure of a group of samples, or of the gap between groups, with its 95 % interval over samples."""

    figure: str
    group: str  # empty for a gap
    value: float
    low: float
    high: float
    samples: int


def list_group_figures(study: Study) -> Iterator[tuple[str, int, str, GroupFigure]]:
    """Every figure of groups with its method, seed and client; of all clients together the name is empty."""
    for method, runs in study.runs.items():
        for seed, run in runs.items():
            tallies = read_tallies(run)
            for client in ("", *tallies) if tallies else ():
                those = [tallies[client]] if client else list(tallies.values())
                yield from ((method, seed, client, found) for found in _list_figures(study, those))


def _list_figures(study: Study, tallies: Sequence[Tally]) -> Iterator[GroupFigure]:
    """The rates and losses of each group, and the gaps between them, over the samples of some clients together."""
    whole, gaps = pool(tallies), list_gaps(study.any)
    for z, group in enumerate(list_group_names(study.any)[1]):
        for rate in RATES if gaps == list(GAPS) else RATES[:1]:
            hits, total = (float(values[z]) for values in whole.count(rate))
            share = float(whole.rate(rate)[z])
            is_bounded = study.any.score == "accuracy" and not math.isnan(share)
            _, low, high = wilson(hits, total) if is_bounded else (share, math.nan, math.nan)
            yield GroupFigure(study.score if rate == "accuracy" else rate, group, share, low, high, int(total))
        yield GroupFigure("loss", group, float(whole.mean_losses[z]), math.nan, math.nan, int(whole.sizes[z]))
    for name in gaps:
        yield GroupFigure(f"gap in {say_gap(name)}", "", *bound_gap(tallies, name), int(whole.sizes.sum()))


def say_group_legend(study: Study) -> str:
    """What the numbers of the tables are."""
    column, names = list_group_names(study.any)
    gaps = list_gaps(study.any)
    parts = [f"Groups of {column}: {', '.join(names)}, on test data, last round, in percent"]
    parts += [say_positive(study.any)] if say_positive(study.any) else []
    parts += [f"{say_gap(name)}: {DEFINITIONS[name]}" for name in gaps]
    parts += [f"worst group: that with the smallest {study.score}"]
    return (
        "; ".join(parts)
        + ". Gaps and rates are those of all clients' samples together, with half the 95 % interval over seeds or, "
        f"with one seed, the 95 % interval over samples. A rate needs {SHOWN} samples to be shown, and {JUDGED} to count for "
        "the worst client; beside its gap stands the one that chance alone would give it (first seed)."
    )
