"""Plots of what the server did and of what clients hold: weights, participation, classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from equipoise.grammar import join_words
from equipoise.runs.reading import Recorded
from equipoise.study.report.charts import Cells, Chart, Panel
from equipoise.study.report.figures import NO_METHODS, Study
from equipoise.study.report.headline import tell
from equipoise.study.report.plots import COLUMNS, average, group_names, register_plot
from equipoise.study.report.view import Vector


@register_plot
def draw_weights(study: Study) -> Chart | None:
    """The weights of clients over rounds, a heat map per method that has any."""
    panels = []
    for method, runs in study.runs.items():
        run = next(iter(runs.values()))
        if method.startswith(NO_METHODS) or not run.weights.num_rows:
            continue
        place = {name: i for i, name in enumerate(run.clients)}
        table = run.weights.filter(pc.is_in(run.weights["client"], pa.array(list(place))))
        row = np.array([place[name] for name in table["client"].to_pylist()], dtype=int)
        column = table["round"].to_numpy() - 1
        figures = np.array(table["figure"].to_pylist(), dtype=object)
        empty = np.full((len(place), int(run.manifest["rounds"])), np.nan)
        grid = empty.copy()
        grid[row, column] = table["weight"].to_numpy()
        reasons = {}
        for name in dict.fromkeys(figures[figures != ""].tolist()):
            mine = figures == name
            reasons[name] = empty.copy()
            reasons[name][row[mine], column[mine]] = table["value"].to_numpy()[mine]
        source = f" (from {', '.join(reasons)})" if reasons else ""
        what = "weight"
        if "w" in reasons and np.nanstd(grid) < 1e-9:  # the server averages evenly: clients weigh their own losses
            grid, what = reasons.pop("w"), "weight on its loss"
        heat = draw_heat(f"{method}{source}", grid, run.clients, study.colour(method), what, reasons)
        panels.append(replace(heat, method=method))
    caption = (
        "The factor on each client's update, or on its loss where the method has it there, first seed; a stronger colour "
        "is more. In brackets the "
        "figures that a weight came from: point at a cell for their values. Empty: the client did not take part; the "
        "faintest colour: weight zero; a stroke across: a negative weight."
    )
    first = tell(study).shown or ""
    return Chart("weights", "Weights over rounds", caption, panels, one_at_a_time=True, first=first) if panels else None


def draw_heat(
    title: str, grid: Vector, names: Sequence[str], colour: int, what: str, reasons: Mapping[str, Vector] | None = None
) -> Panel:
    """A heat map of clients x rounds. Many rounds share columns, and many clients rows.

    `reasons` holds further values by name, shown when the reader points at a cell.
    """
    rows = group_names(list(range(len(names))), names)
    pieces = np.array_split(np.arange(grid.shape[1]), min(COLUMNS, grid.shape[1]))
    values, *told = (
        [[average(one[members][:, piece].ravel()) for piece in pieces] for _, members in rows]
        for one in (grid, *(reasons or {}).values())
    )
    finite = [v for row in values for v in row if not np.isnan(v)] or [0.0]
    every = max(1, len(pieces) // 6)
    x_ticks = {float(i): str(int(piece[0]) + 1) for i, piece in enumerate(pieces) if i % every == 0}
    notes = [
        [
            f"{name}, round {_span(piece)}: "
            + ", ".join(f"{n} {v[i][j]:.3g}" for n, v in zip((what, *(reasons or {})), (values, *told), strict=True))
            for j, piece in enumerate(pieces)
        ]
        for i, (name, _) in enumerate(rows)
    ]
    cells = Cells(title, values, min(0.0, *finite), max(*finite, 1e-12), colour, notes)
    y_ticks = {float(i): name for i, (name, _) in enumerate(rows)}
    return Panel(title, [cells], "round", "", x_ticks, y_ticks, wide=True, members=[members for _, members in rows])


def _span(rounds: NDArray[np.int64]) -> str:
    return f"{rounds[0] + 1}" if len(rounds) == 1 else f"{rounds[0] + 1}–{rounds[-1] + 1}"


@register_plot
def draw_participation(study: Study) -> Chart | None:
    """Who took part in which round. None if all clients always did, and no answer was rejected.

    Methods that had the same clients in all rounds share a panel.
    """
    panels: dict[bytes, tuple[list[str], Vector]] = {}
    reasons: Counter[str] = Counter()
    for method in [study.reference or study.methods[0], *study.methods]:
        run = next(iter(study.runs[method].values()))
        if method.startswith("centralised") and study.methods != [method]:
            continue
        grid = _find_participation(run)
        names, _ = panels.setdefault(grid.tobytes(), ([], grid))
        if method not in names:
            names.append(method)
            reasons.update(why for why in run.selection["why"].to_pylist() if why)
    refused = [one for runs in study.runs.values() for r in runs.values() for one in r.manifest["rejected"]]
    if all(grid.all() for _, grid in panels.values()) and not refused:
        return None
    caption = f"Who took part when, first seed: shaded is there. Rejected answers in all runs: {len(refused)}."
    for one in refused[:5]:
        caption += f" {one['client']} in round {one['round']}: {str(one['why']).removesuffix('.')}."
    told = [why for why, _ in reasons.most_common(3) if not any(why == one["why"] for one in refused)]
    if told:
        caption += f" Why clients were not asked, most often: {'; '.join(told)}."
    drawn = [draw_heat(join_words(names), grid, study.any.clients, 2, "took part") for names, grid in panels.values()]
    return Chart("participation", "Participation", caption, drawn)


def _find_participation(run: Recorded) -> Vector:
    """1 where a client took part in a round, otherwise 0: `[clients, rounds]`."""
    place = {name: i for i, name in enumerate(run.clients)}
    grid = np.zeros((len(place), int(run.manifest["rounds"])))
    for r, client in zip(run.weights["round"].to_pylist(), run.weights["client"].to_pylist(), strict=True):
        if client in place:
            grid[place[client], r - 1] = 1
    return grid


@register_plot
def draw_holdings(study: Study) -> Chart | None:
    """How many training samples of each class or label each client holds. Needs classes or labels, at most 60."""
    data = study.any.manifest["data"]
    target = data.get("target", "classes")
    if target == "number":
        return None
    what = "class" if target == "classes" else "label"
    counts = np.array([client["classes"] for client in data["clients"]], dtype=float)
    if counts.ndim != 2 or counts.shape[1] > 60:
        return None
    rows = group_names(range(len(counts)), study.any.clients)
    values = [[float(counts[members, c].mean()) for c in range(counts.shape[1])] for _, members in rows]
    panel = Panel(
        "", [Cells("training samples", values, 0.0, max(map(max, values)) or 1.0, 2)], what, "",
        {float(i): name for i, name in enumerate(data["classes"])}, {float(i): n for i, (n, _) in enumerate(rows)}, wide=True,
        members=[members for _, members in rows],
    )  # fmt: skip
    caption = f"Training samples of each {what} at each client."
    if len(rows) < len(counts):
        caption += " Groups of clients are means over the group."
    return Chart("holdings", "Who holds what", caption, [panel])
