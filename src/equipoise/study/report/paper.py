"""Charts as PDF and PNG for papers, drawn with matplotlib from the same data as on the page."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.study.report.charts import (
    NEGATIVE,
    PAINTS,
    STILL,
    UNCHANGED,
    Arrows,
    Bars,
    Cells,
    Chart,
    Drawing,
    Line,
    Panel,
    Points,
    Ticks,
    find_colour,
    find_extent,
    is_shown,
    place_labels,
    shorten,
)

FRAME = "#C4C9CF"  # of pictures


def save_chart(chart: Chart, stem: Path) -> list[Path]:
    """Write `stem`.pdf and `stem`.png, and return both. A character that the font lacks becomes a box."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        return _save(chart, stem)


def _save(chart: Chart, stem: Path) -> list[Path]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    wide = any(panel.wide for panel in chart.panels)
    small = all(panel.picture for panel in chart.panels)
    columns = 1 if wide else min(chart.columns, len(chart.panels))
    rows = -(-len(chart.panels) // columns)
    heights = [
        max(1.4, 0.22 * len(panel.y_ticks) + 0.8) if panel.rows else 1.6 if small else 3.0 for panel in chart.panels
    ]
    high = sum(heights) if columns == 1 else rows * max(heights)
    figure: Any = Figure(figsize=(8.0 if wide else (1.5 if small else 4.0) * columns, high), layout="constrained")
    FigureCanvasAgg(figure)
    ratios = heights if columns == 1 else None
    axes = figure.subplots(rows, columns, squeeze=False, height_ratios=ratios).ravel()
    for ax in axes[len(chart.panels) :]:
        ax.set_visible(False)
    for ax, panel in zip(axes, chart.panels, strict=False):
        _panel(ax, panel)
    for ax, name in zip(axes[::columns], chart.rows, strict=False):
        text = shorten(_plain(name), 48).replace(", ", ",\n")
        ax.text(-0.08, 0.5, text, rotation=90, ha="right", va="center", fontsize=7, transform=ax.transAxes)
    names: dict[str, Any] = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            names.setdefault(name, handle)
    if len(names) > 1:
        figure.legend(
            names.values(),
            names.keys(),
            loc="outside upper center",
            ncols=min(4, len(names)),
            fontsize=7,
            frameon=False,
        )
    named = [(ax, some) for ax, panel in zip(axes, chart.panels, strict=False) if (some := _named(panel))]
    if named:
        figure.draw_without_rendering()  # the layout is final now, which the places of labels depend on
    for ax, marks in named:
        _label(ax, marks)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(suffix) for suffix in (".pdf", ".png")]
    for file in files:
        figure.savefig(file, dpi=200)
    return files


def _panel(ax: Any, panel: Panel) -> None:
    for mark in panel.marks:
        if is_shown(mark, panel):
            _mark(ax, mark, panel)
    title = "" if panel.untitled else shorten(panel.title, 22) if panel.picture else panel.title
    ax.set_title(_plain(title), fontsize=7 if panel.picture else 9)
    if panel.picture:
        ax.set(xticks=[], yticks=[], aspect="equal")
        ax.spines[:].set(color=FRAME, linewidth=0.5)  # a picture without any large value would not be seen at all
        return
    across, up = find_extent(panel)
    if _named(panel):  # room for the names beside the points
        ax.set_xlim(across)
    if _named(panel) or panel.y_also:
        ax.set_ylim(up)
    if panel.whole:
        ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel(_plain(panel.x_label))
    ax.set_ylabel(_plain(panel.y_label))
    if panel.x_ticks:
        long = len(panel.x_ticks) > 6
        ax.set_xticks(list(panel.x_ticks), [_plain(n) for n in panel.x_ticks.values()], rotation=45 if long else 0,
                      ha="right" if long else "center", fontsize=7)  # fmt: skip
    if panel.rows:
        ax.set_yticks(list(panel.y_ticks), [_plain(n) for n in panel.y_ticks.values()], fontsize=7)
        ax.set_ylim(max(panel.y_ticks) + 0.6, min(panel.y_ticks) - 0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _named(panel: Panel) -> list[Points]:
    return [mark for mark in panel.marks if isinstance(mark, Points) and mark.label and len(mark.x)]


def _label(ax: Any, named: Sequence[Points]) -> None:
    """Write names beside points. Lengths are in units of 1/72 inch, as matplotlib wants them for text."""
    scale = 72 / ax.figure.dpi
    places = [scale * ax.transData.transform((mark.x[0], mark.y[0])) for mark in named]
    points = [(float(x), -float(y)) for x, y in places]  # y grows downwards in `place_labels`
    bounds = (scale * ax.bbox.x0, scale * ax.bbox.x1)
    found = place_labels(points, [3.4 * len(shorten(m.name, 24)) for m in named], 7, bounds)
    for mark, (a, b), place in zip(named, points, found, strict=True):
        if place is None:
            continue
        x, y = place
        ax.annotate(
            _plain(shorten(mark.name, 24)), (mark.x[0], mark.y[0]), (x - a, b - y), textcoords="offset points", fontsize=6,
            ha="center", va="center", in_layout=False,
        )  # fmt: skip


def _mark(ax: Any, mark: Drawing, panel: Panel) -> None:
    paint, again = find_colour(mark.colour)
    colour, name = PAINTS[paint], _plain(mark.name)
    match mark:
        case Line():
            style = "--" if mark.dashed else ":" if again else "-"
            ax.plot(mark.x, mark.y, style, color=colour, label=name, linewidth=1.4)
            if len(mark.low):
                ax.fill_between(mark.x, mark.low, mark.high, color=colour, alpha=0.15, linewidth=0)
        case Points():
            size = 11 if mark.star else 2 if mark.small else 6
            face = "none" if mark.hollow or again else colour
            ax.plot(
                mark.x,
                mark.y,
                "*" if mark.star else "o",
                color="black" if mark.star else colour,
                markerfacecolor=face,
                label=name,
                markersize=size,
                markeredgewidth=0.7,
                linestyle="none",
            )
        case Bars():
            face = "none" if again else colour
            ax.bar(mark.x, mark.y, mark.span * 0.95, facecolor=face, edgecolor=colour, linewidth=0.7, label=name)
        case Arrows():
            for row, a, b in zip(mark.rows, mark.start, mark.end, strict=True):
                if abs(b - a) < STILL:
                    ax.plot([a], [row], "o", color=UNCHANGED, markersize=4)
                    continue
                paint = colour if b > a else NEGATIVE
                ax.plot([a], [row], "o", color=paint, markerfacecolor="white", markersize=4)
                ax.annotate("", (b, row), (a, row), arrowprops={"arrowstyle": "-|>", "color": paint})
                ax.plot([b], [row], alpha=0)  # the arrow itself would not widen the axis
        case Ticks():
            ax.plot(mark.x, mark.rows, "|", color=colour, label=name, markersize=9, markeredgewidth=2)
        case Cells():
            from matplotlib.colors import LinearSegmentedColormap

            largest = max(abs(mark.low), abs(mark.high)) or 1.0
            shades = [NEGATIVE, "#FFFFFF", colour] if mark.low < 0 else ["#FFFFFF", colour]
            table = LinearSegmentedColormap.from_list("shades", shades)
            low = -largest if mark.low < 0 else 0.0
            shown = ax.imshow(np.array(mark.values, dtype=float), cmap=table, vmin=low, vmax=largest, aspect="auto")
            if not panel.picture:
                ax.figure.colorbar(shown, ax=ax, pad=0.01).ax.tick_params(labelsize=6)


def _plain(text: str) -> str:
    """The text as matplotlib shows it unchanged: it would read dollar signs as formulas, and cannot draw tabs."""
    return " ".join(text.split()).replace("$", r"\$")
