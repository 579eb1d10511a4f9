"""Plots of a method's parameters: AVG and STD over the values of one, or of two together."""

from __future__ import annotations

import math

import numpy as np

from equipoise.study.report.charts import Bars, Cells, Chart, Line, Panel
from equipoise.study.report.figures import Study
from equipoise.study.report.plots import register_plot
from equipoise.study.report.sweeps import Grid, find_grids, find_sweeps


def _average(study: Study, method: str, figure: str) -> float:
    """A figure in percent, mean over seeds."""
    return 100 * float(np.mean(list(study.per_seed(method, figure).values())))


@register_plot
def draw_sweep(study: Study) -> Chart | None:
    """AVG and STD over the values of a parameter, a panel per parameter that has several."""
    panels = []
    for name, points in find_sweeps(study):
        places = [float(i) for i in range(len(points))]
        average, spread = ([_average(study, method, figure) for _, method in points] for figure in ("AVG", "STD"))
        ticks = {float(i): f"{value:g}" for i, (value, _) in enumerate(points)}
        marks: list[Bars | Line] = [Bars("AVG", places, average, 0, 0.6, [f"AVG {v:.1f}" for v in average])]
        marks.append(Line("STD", places, spread, 3))
        panels.append(Panel(name, marks, name, "percent", ticks))
    view = study.view
    caption = (
        f"Bars: AVG over {view.over}; line: STD (ddof {view.ddof}) over {view.over}; mean over seeds, {view.when}."
    )
    return Chart("sweep", "Parameters", caption, panels) if panels else None


@register_plot
def draw_grid(study: Study) -> Chart | None:
    """AVG and STD as heat maps over the values of two parameters, for methods that differ in both."""
    panels = [_draw_cells(study, grid, figure) for grid in find_grids(study) for figure in ("AVG", "STD")]
    caption = (
        f"AVG and STD (ddof {study.view.ddof}) over {study.view.over} in percent, mean over seeds, {study.view.when}; a "
        "stronger colour is more. Empty: no run has these values."
    )
    return Chart("grid", "Two parameters", caption, panels) if panels else None


def _draw_cells(study: Study, grid: Grid, figure: str) -> Panel:
    """One figure over the values of two parameters."""
    across, up = grid.axes
    values = [
        [_average(study, grid.points[a, b], figure) if (a, b) in grid.points else math.nan for a in across] for b in up
    ]
    notes = [
        [f"{grid.names[0]} {a:g}, {grid.names[1]} {b:g}: {figure} {value:.1f}" for a, value in zip(across, row, strict=True)]
        for b, row in zip(up, values, strict=True)
    ]  # fmt: skip
    known = [value for row in values for value in row if not math.isnan(value)]
    margin = max(1e-9, 0.1 * (max(known) - min(known)))  # so that the smallest is not without a colour
    cells = Cells(figure, values, min(known) - margin, max(known), 0 if figure == "AVG" else 3, notes)
    x_ticks, y_ticks = ({float(i): f"{value:g}" for i, value in enumerate(axis)} for axis in (across, up))
    return Panel(f"{figure}: {grid.names[0]} and {grid.names[1]}", [cells], *grid.names, x_ticks, y_ticks)
