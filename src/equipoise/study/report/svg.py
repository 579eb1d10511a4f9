"""Charts as SVG for the page. Colours are CSS classes, so that the page can be light, dark or printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from equipoise.study.report.charts import (
    COLOURS,
    Arrows,
    Bars,
    Cells,
    Chart,
    Drawing,
    Line,
    Panel,
    Points,
    Ticks,
    choose_ticks,
    find_extent,
    place_labels,
    shorten,
)

Scale = Callable[[float], float]


def draw_svg(chart: Chart) -> str:
    """A chart as an HTML figure, with its panels, legend and caption."""
    panels = "".join(
        f'<div class="{_shape(panel)}" data-panel="{escape(panel.title)}">{_panel(panel)}</div>'
        for panel in chart.panels
    )
    chooser = ""
    if chart.one_at_a_time and len(chart.panels) > 1:
        options = "".join(f"<option>{escape(panel.title)}</option>" for panel in chart.panels)
        chooser = f'<label class="choose">Method <select>{options}</select></label>'
    pictures = all(panel.picture for panel in chart.panels)
    kind = f'class="panels pictures" style="--across:{chart.columns}"' if pictures else 'class="panels"'
    return (
        f'<figure id="{chart.kind}"><h3>{escape(chart.title)}</h3>{chooser}{_legend(chart)}<div {kind}>{panels}</div>'
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def _shape(panel: Panel) -> str:
    return "panel wide" if panel.wide else "panel picture" if panel.picture else "panel"


def _legend(chart: Chart) -> str:
    """A button per name, which hides or shows its marks."""
    names: dict[str, int] = {}
    for panel in chart.panels:
        for mark in panel.marks:
            if not isinstance(mark, (Cells, Arrows)):
                names.setdefault(mark.name, mark.colour)
    if len(names) < 2:
        return ""
    buttons = "".join(
        f'<button class="key {_classes(colour)}" data-s="{escape(name)}" aria-pressed="true"><i></i>'
        f"{escape(name)}</button>"
        for name, colour in names.items()
    )
    return f'<div class="legend">{buttons}</div>'


def _classes(colour: int) -> str:
    """The CSS classes of a colour. When all colours are used up, they come again with another style of line."""
    return f"c{colour % len(COLOURS)}" + (" again" if colour >= len(COLOURS) else "")


def _panel(panel: Panel) -> str:
    (x0, x1), (y0, y1) = find_extent(panel)
    if panel.picture:
        return _picture(panel, x0, x1)
    width = 940.0 if panel.wide else 460.0
    longest = max((len(name) for name in panel.y_ticks.values()), default=0)
    crowded = len(panel.x_ticks) > 8 and max(map(len, panel.x_ticks.values())) > 4
    left = min(200.0, 16 + 6.6 * longest) if panel.rows else 92.0 if crowded else 56.0
    bottom = (96.0 if crowded else 40.0) - (0.0 if panel.x_label else 14.0)
    top = 26.0 if panel.title else 10.0
    inner = 20.0 * len(panel.y_ticks) if panel.rows else (280.0 if panel.wide else 250.0)
    inner = max(inner, 60.0)
    height = top + inner + bottom

    def x(value: float) -> float:
        return left + (value - x0) / (x1 - x0) * (width - left - 14)

    def y(value: float) -> float:
        part = (value - y0) / (y1 - y0)
        return top + (part if panel.rows else 1 - part) * inner

    out = [f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(panel.title or panel.y_label)}">']
    if panel.title:
        out.append(f'<text class="title" x="{left:g}" y="16">{escape(shorten(panel.title, int(width / 8)))}</text>')
    out += _axes(panel, x, y, (x0, x1), (y0, y1), left, width - 14, top, top + inner, crowded)
    out += [_mark(mark, x, y) for mark in panel.marks]
    out += _labels(panel, x, y, (left, width))
    if panel.x_label:
        out.append(
            f'<text class="axis" x="{(left + width) / 2:g}" y="{height - 4:g}" text-anchor="middle">'
            f"{escape(panel.x_label)}</text>"
        )
    if panel.y_label:
        middle = top + inner / 2
        out.append(f'<text class="axis" x="13" y="{middle:g}" text-anchor="middle" transform="rotate(-90 13 {middle:g})">'
                   f"{escape(panel.y_label)}</text>")  # fmt: skip
    return "".join([*out, "</svg>"])


def _picture(panel: Panel, low: float, high: float) -> str:
    """A panel without axes: its cells in a square of 150 pixels."""

    def at(value: float) -> float:
        return (value - low) / (high - low) * 150

    marks = "".join(_mark(mark, at, lambda value: 20 + at(value)) for mark in panel.marks)
    title = f'<text class="title" x="0" y="14">{escape(shorten(panel.title, 22))}</text>'
    return f'<svg viewBox="0 0 150 172" role="img" aria-label="{escape(panel.title)}">{title}{marks}</svg>'


def _labels(panel: Panel, x: Scale, y: Scale, bounds: tuple[float, float]) -> list[str]:
    """The names beside points. They are hidden and shown together with the points."""
    named = [mark for mark in panel.marks if isinstance(mark, Points) and mark.label and len(mark.x)]
    texts = [shorten(mark.name, 24) for mark in named]
    points = [(x(mark.x[0]), y(mark.y[0])) for mark in named]
    places = place_labels(points, [6.4 * len(text) for text in texts], 13, bounds)
    return [
        f'<g class="s" data-s="{escape(mark.name)}"><text class="name" x="{at:.1f}" y="{middle + 4:.1f}" '
        f'text-anchor="middle">{escape(text)}</text></g>'
        for mark, text, (at, middle) in zip(named, texts, places, strict=True)
    ]


def _axes(
    panel: Panel, x: Scale, y: Scale, xs: tuple[float, float], ys: tuple[float, float], left: float, right: float,
    top: float, bottom: float, crowded: bool,
) -> list[str]:  # fmt: skip
    out = []
    lined = not any(isinstance(mark, Cells) for mark in panel.marks)  # lines across shaded cells would disturb
    numbers = {v: f"{v:g}" for v in choose_ticks(*xs)}
    for place, name in (panel.x_ticks or numbers).items():
        at = x(place)
        if not panel.x_ticks:
            out.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top:g}" y2="{bottom:g}"/>')
        if crowded:
            turn = f"rotate(-45 {at:.1f} {bottom + 12:g})"
            out.append(f'<text x="{at:.1f}" y="{bottom + 12:g}" text-anchor="end" transform="{turn}">'
                       f"{escape(shorten(name, 16))}</text>")  # fmt: skip
        else:
            out.append(
                f'<text x="{at:.1f}" y="{bottom + 15:g}" text-anchor="middle">{escape(shorten(name, 18))}</text>'
            )
    for place, name in (panel.y_ticks or {v: f"{v:g}" for v in choose_ticks(*ys)}).items():
        at = y(place)
        if lined:
            out.append(f'<line class="grid" x1="{left:g}" x2="{right:g}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text x="{left - 6:g}" y="{at + 4:.1f}" text-anchor="end">{escape(shorten(name, 28))}</text>')
    return out


def _mark(mark: Drawing, x: Scale, y: Scale) -> str:
    inside = "".join(_pieces(mark, x, y))
    return f'<g class="s {_classes(mark.colour)}" data-s="{escape(mark.name)}">{inside}</g>'


def _pieces(mark: Drawing, x: Scale, y: Scale) -> list[str]:
    match mark:
        case Line():
            out = []
            if len(mark.low):
                there = list(zip(mark.x, mark.high, strict=True)) + list(zip(mark.x, mark.low, strict=True))[::-1]
                out.append(f'<polygon class="band" points="{_path(there, x, y)}"/>')
            dashed = ' class="dashed"' if mark.dashed else ""
            out.append(
                f'<polyline{dashed} points="{_path(list(zip(mark.x, mark.y, strict=True)), x, y)}"{_note(mark.name)}/>'
            )
            return out
        case Points():
            radius = 2.5 if mark.hollow else 2 if mark.small else 5
            kind = ' class="hollow"' if mark.hollow else ""
            notes = mark.notes or [mark.name] * len(mark.x)
            return [
                f'<circle{kind} cx="{x(a):.1f}" cy="{y(b):.1f}" r="{radius}"{_note(note)}/>'
                for a, b, note in zip(mark.x, mark.y, notes, strict=True)
            ]
        case Bars():
            notes = mark.notes or [mark.name] * len(mark.x)
            out = []
            for at, value, note in zip(mark.x, mark.y, notes, strict=True):
                if math.isfinite(value):
                    a, b, zero, end = x(at - mark.span / 2), x(at + mark.span / 2), y(0), y(value)
                    out.append(f'<rect x="{a:.1f}" y="{min(zero, end):.1f}" width="{max(b - a - 0.5, 0.5):.1f}" '
                               f'height="{abs(zero - end):.1f}"{_note(note)}/>')  # fmt: skip
            return out
        case Arrows():
            out = []
            for row, a, b, note in zip(mark.rows, mark.start, mark.end, mark.notes, strict=True):
                if not math.isfinite(a + b):
                    continue
                tail, head, at = x(a), x(b), y(row)
                way = 6 if head >= tail else -6
                worse = ' class="worse"' if b < a else ""
                out.append(
                    f"<g{worse}{_note(note)}>"
                    f'<line class="reach" x1="{tail:.1f}" x2="{head:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
                    f'<circle class="hollow" cx="{tail:.1f}" cy="{at:.1f}" r="4"/>'
                    f'<path d="M{head:.1f} {at:.1f}l{-way} -5v10z"/></g>'
                )
            return out
        case Ticks():
            return [
                f'<line x1="{x(a):.1f}" x2="{x(a):.1f}" y1="{y(row) - 8:.1f}" y2="{y(row) + 8:.1f}"'
                f"{_note(f'{mark.name}: {a:.1f}')}/>"
                for a, row in zip(mark.x, mark.rows, strict=True)
                if math.isfinite(a)
            ]
        case Cells():
            return _cells(mark, x, y)


def _cells(mark: Cells, x: Scale, y: Scale) -> list[str]:
    largest = max(abs(mark.low), abs(mark.high)) or 1.0
    wide, high = x(1) - x(0), y(1) - y(0)
    out = []
    for i, row in enumerate(mark.values):
        for j, value in enumerate(row):
            if math.isfinite(value):
                side = ' class="minus"' if value < 0 else ""
                note = mark.notes[i][j] if mark.notes else f"{value:.3g}"
                out.append(
                    f'<rect{side} x="{x(j - 0.5):.1f}" y="{y(i - 0.5):.1f}" width="{wide:.1f}" height="{high - 1:.1f}" '
                    f'fill-opacity="{min(1.0, max(0.05, abs(value) / largest)):.2f}"{_note(note)}/>'
                )
    return out


def _path(points: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points if math.isfinite(a) and math.isfinite(b))


def _note(text: str) -> str:
    return f' data-note="{escape(text)}"'
