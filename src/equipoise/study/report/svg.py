"""Charts as SVG for the page. Colours are CSS classes, so that the page can be light, dark or printed.

Places along the x axis are percentages of a plot's width, so that text has the same size on a wide and on a narrow
screen. Lines cannot have percentages: they are drawn 1,000 units wide, and stretched. Labels lie outside of the plot, in
the margins of its element; titles are paragraphs, which a narrow screen breaks into lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape

from equipoise.study.report.alternatives import describe
from equipoise.study.report.charts import (
    STILL,
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
    find_colour,
    find_extent,
    is_shown,
    place_labels,
    shorten,
)

Scale = Callable[[float], float]
RIGHT = 14.0  # free pixels to the right of a plot
STRETCHED = 1000.0  # the width of lines before they are stretched
NARROW = 250.0  # pixels of a plot on the narrowest screen, for which names beside points are placed
MOST_POINTS = 100  # of a line; of more, every second, third ... is drawn, and the last one
SHADES = 6  # boxes of the scale of a matrix
STAR = "M0 -9L2.5 -3L9 -2.6L4 1.6L5.6 8L0 4.5L-5.6 8L-4 1.6L-9 -2.6L-2.5 -3z"  # around the point where it stands


def draw_svg(chart: Chart, number: int = 0) -> str:
    """A chart as an HTML figure, with its panels, legend and caption. `number` tells apart the studies of a page."""
    drawn = [f"<div {_attributes(panel)}>{_panel(panel)}</div>" for panel in chart.panels]
    for row in reversed(range(len(chart.rows))):
        drawn.insert(row * chart.columns, f'<p class="row">{escape(chart.rows[row])}</p>')
    panels = "".join(drawn)
    chooser = ""
    if chart.one_at_a_time and len(chart.panels) > 1:
        options = "".join(
            f"<option{' selected' if panel.method and panel.method == chart.first else ''}>{escape(panel.title)}"
            "</option>"
            for panel in chart.panels
        )
        chooser = f'<label class="choose">Method <select>{options}</select></label>'
    pictures = all(panel.picture for panel in chart.panels)
    kind = f'class="panels pictures" style="--across:{chart.columns}"' if pictures else 'class="panels"'
    return (
        f'<figure id="{name_figure(chart.kind, number)}"><h3>{escape(chart.title)}</h3>{chooser}{_legend(chart)}'
        f"<div {kind}>{panels}</div><figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def name_figure(kind: str, number: int) -> str:
    """The id of a figure in the page: the kind, with a number from the second study on."""
    return kind if number == 0 else f"{kind}-{number + 1}"


def _attributes(panel: Panel) -> str:
    """What the script of the page must know of a panel: its axes, and which clients are where."""
    shape = "panel wide" if panel.wide else "panel picture" if panel.picture else "panel"
    found = [f'class="{shape}"', f'data-panel="{escape(panel.title)}"']
    if not panel.picture and not panel.rows:
        (x0, x1), (y0, y1) = find_extent(panel)
        axes = {"x": [x0, x1], "y": [y0, y1], "of": [panel.x_label, panel.y_label], "whole": panel.whole}
        found.append(f'data-axes="{_json(axes)}"')
    if panel.members:
        found.append(f'data-members="{_json([list(those) for those in panel.members])}"')
    if panel.rugs:
        (x0, x1), _ = find_extent(panel)
        rugs = [
            [rug.name, _classes(rug.colour), [float(f"{v:.4g}") if math.isfinite(v) else None for v in rug.values]]
            for rug in panel.rugs
        ]
        found.append(f'data-rugs="{_json({"x": [x0, x1], "rugs": rugs})}"')
    return " ".join(found)


def _json(value: object) -> str:
    return escape(json.dumps(value, separators=(",", ":")))


def _legend(chart: Chart) -> str:
    """A button per name, which hides or shows its marks; for arrows, what their colours mean."""
    names: dict[str, int] = {}
    arrows = False
    for panel in chart.panels:
        for mark in panel.marks:
            arrows = arrows or isinstance(mark, Arrows)
            if not isinstance(mark, (Cells, Arrows)):
                names.setdefault(mark.name, mark.colour)
    ways = (("c0", "gained"), ("worse", "lost"), ("same", "unchanged"))
    meanings = "".join(f'<span class="key {way}"><i></i>{text}</span>' for way, text in ways) if arrows else ""
    if len(names) < 2 and not arrows:
        return ""
    buttons = "".join(
        f'<button type="button" class="key {_classes(colour)}" data-s="{escape(name)}" aria-pressed="true"><i></i>'
        f"{escape(name)}</button>"
        for name, colour in names.items()
    )
    return f'<div class="legend">{meanings}{buttons}</div>'


def _classes(colour: int) -> str:
    """The CSS classes of a colour. When all colours are used up, they come again with another style."""
    name, again = find_colour(colour)
    return f"{name} again" if again else name


# --------------------------------------------------------------------------- a panel
def _panel(panel: Panel) -> str:
    (x0, x1), (y0, y1) = find_extent(panel)
    if panel.picture:
        return _picture(panel, x0, x1)
    crowded = len(panel.x_ticks) > 8 and max(map(len, panel.x_ticks.values())) > 4
    longest = min(22, max(map(len, panel.y_ticks.values()), default=0))
    turned = 5.0 * min(16, max(map(len, panel.x_ticks.values()))) if crowded else 0.0  # names that lean by 45 degrees
    left = max(16 + 6.4 * longest if panel.rows else 54.0, turned)
    shaded = next((mark for mark in panel.marks if isinstance(mark, Cells)), None)
    top = 10.0 + (22.0 if shaded else 0.0)
    bottom = (30.0 + turned if crowded else 24.0) + (16.0 if panel.x_label else 0.0)
    inner = max(60.0, 20.0 * len(panel.y_ticks) if panel.rows else 280.0 if panel.wide else 250.0)

    def x(value: float) -> float:
        return 100 * (value - x0) / (x1 - x0)

    def y(value: float) -> float:
        part = (value - y0) / (y1 - y0)
        return (part if panel.rows else 1 - part) * inner

    least = _width_needed(panel, crowded)
    style = f"margin:{top:g}px {RIGHT:g}px {bottom:g}px {left:g}px;width:calc(100% - {left + RIGHT:g}px)"
    out = [f'<p class="title" style="margin-left:{left:g}px">{escape(panel.title)}</p>'] if panel.title else []
    out += [
        f'<svg class="plot" height="{inner:g}" style="{style};min-width:{least:.0f}px" role="img" tabindex="0" '
        f'aria-label="{escape(describe(panel))}">'
    ]
    if shaded:
        out.append(_shades(shaded, -18.0))
    if panel.y_label:
        out.append(f'<text transform="translate({13 - left:g} {inner / 2:g}) rotate(-90)" text-anchor="middle">'
                   f"{escape(panel.y_label)}</text>")  # fmt: skip
    out += _bands(panel, x, y, inner)
    out += _axes(panel, x, y, inner, crowded)
    out += [_mark(mark, panel, x, y, inner) for mark in panel.marks]
    out += _labels(panel, x, y)
    if panel.x_label:
        down = inner + bottom - 6
        out.append(f'<text x="50%" y="{down:g}" text-anchor="middle">{escape(panel.x_label)}</text>')
    return "".join([*out, "</svg>"])


def _width_needed(panel: Panel, crowded: bool) -> float:
    """The pixels that a plot needs to be readable; on a narrower screen it can be scrolled."""
    names = [len(shorten(name, 18)) for name in panel.x_ticks.values()]
    named = 18.0 * len(names) if crowded else (6.4 * max(names, default=0) + 6) * len(names)
    bars = 3.0 * sum(len(mark.x) for mark in panel.marks if isinstance(mark, Bars))
    cells = 4.0 * max((len(mark.values[0]) for mark in panel.marks if isinstance(mark, Cells)), default=0)
    return max(150.0, named, bars, cells)


def _picture(panel: Panel, low: float, high: float) -> str:
    """A panel without axes: its cells in a square of 150 pixels."""

    def at(value: float) -> float:
        return (value - low) / (high - low) * 150

    marks = "".join(
        f'<g class="s {_classes(mark.colour)}">{"".join(_cells(mark, panel, at, lambda v: 20 + at(v), unit=""))}</g>'
        for mark in panel.marks
        if isinstance(mark, Cells)
    )
    title = "" if panel.untitled else f'<text class="title" x="0" y="14">{escape(shorten(panel.title, 22))}</text>'
    label, box = escape(describe(panel)), "0 20 150 152" if panel.untitled else "0 0 150 172"
    paper = '<rect y="20" width="150" height="150" fill="#fff"/>'  # also on a dark page, where it would be a negative
    return f'<svg class="square" viewBox="{box}" role="img" aria-label="{label}">{title}{paper}{marks}</svg>'


def _shades(mark: Cells, top: float) -> str:
    """The scale of a matrix: boxes from the smallest value to the largest, with the values at both ends."""
    low = min(0.0, mark.low)
    steps = [low + (mark.high - low) * i / (SHADES - 1) for i in range(SHADES)]
    names = [f"{value:.3g}" for value in (low, mark.high)]
    start = 6.6 * len(names[0]) + 6
    boxes = "".join(
        f'<rect class="{"minus" if value < 0 else "plus"}" x="{start + 18 * i:.1f}" y="{top:g}" width="18" height="11" '
        f'fill-opacity="{_strength(value, mark):.2f}"/>'
        for i, value in enumerate(steps)
    )
    end = start + 18 * SHADES + 6
    return (
        f'<text x="0" y="{top + 10:g}">{names[0]}</text><g class="s scale {_classes(mark.colour)}">{boxes}</g>'
        f'<text x="{end:.1f}" y="{top + 10:g}">{names[1]}</text>'
    )


def _strength(value: float, mark: Cells) -> float:
    """How strong the colour of a value is, from 0.05, so that zero is seen to be there, to 1."""
    largest = max(abs(mark.low), abs(mark.high)) or 1.0
    return min(1.0, max(0.05, abs(value) / largest))


def _bands(panel: Panel, x: Scale, y: Scale, inner: float) -> list[str]:
    """A band behind each named place that clients have, which shows the client that was picked."""
    if panel.rows:
        return [
            f'<rect class="band" data-row="{i}" x="0" y="{y(i - 0.5):.1f}" width="100%" height="{y(1) - y(0):.1f}"/>'
            for i in range(len(panel.members))
        ]
    return [
        f'<rect class="band" data-row="{i}" x="{x(i - 0.5):.2f}%" y="0" width="{x(1) - x(0):.2f}%" height="{inner:g}"/>'
        for i in range(len(panel.members))
    ]


def _labels(panel: Panel, x: Scale, y: Scale) -> list[str]:
    """The names beside points, as far as there is room. They are hidden and shown together with the points."""
    named = [mark for mark in panel.marks if isinstance(mark, Points) and mark.label and len(mark.x)]
    texts = [shorten(mark.name, 24) for mark in named]
    points = [(x(mark.x[0]) / 100 * NARROW, y(mark.y[0])) for mark in named]
    places = place_labels(points, [6.8 * len(text) for text in texts], 14, (0, NARROW + RIGHT))
    return [
        f'<g class="s" data-s="{escape(mark.name)}"><text class="name" x="{x(mark.x[0]):.2f}%" dx="{at - own:.1f}" '
        f'y="{middle + 4:.1f}" text-anchor="middle">{escape(text)}</text></g>'
        for mark, text, (own, _), place in zip(named, texts, points, places, strict=True)
        if place is not None
        for at, middle in (place,)
    ]


def _axes(panel: Panel, x: Scale, y: Scale, inner: float, crowded: bool) -> list[str]:
    out = []
    lined = not any(isinstance(mark, Cells) for mark in panel.marks)  # lines across shaded cells would disturb
    xs, ys = find_extent(panel)
    numbers = {v: f"{v:g}" for v in choose_ticks(*xs, whole=panel.whole)}
    by_column = bool(panel.members) and not panel.rows
    for i, (place, name) in enumerate((panel.x_ticks or numbers).items()):
        at = x(place)
        row = f' data-row="{i}"' if by_column else ""
        told = f' data-at="{place:g}"{_note(name)}{row}' if panel.x_ticks else ""
        if not panel.x_ticks:
            out.append(f'<line class="grid" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="{inner:g}"/>')
        if crowded:
            out.append(f'<svg x="{at:.2f}%" y="{inner + 12:g}" overflow="visible"><text{told} text-anchor="end" '
                       f'transform="rotate(-45)">{escape(shorten(name, 16))}</text></svg>')  # fmt: skip
        else:
            out.append(f'<text{told} x="{at:.2f}%" y="{inner + 16:g}" text-anchor="middle">'
                       f"{escape(shorten(name, 18))}</text>")  # fmt: skip
    for i, (place, name) in enumerate((panel.y_ticks or {v: f"{v:g}" for v in choose_ticks(*ys)}).items()):
        at = y(place)
        row = f' data-row="{i}"' if panel.members and panel.rows else ""
        told = f"{_note(name)}{row}" if panel.y_ticks else ""
        if lined:
            out.append(f'<line class="grid" x1="0" x2="100%" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text{told} x="-6" y="{at + 4:.1f}" text-anchor="end">{escape(shorten(name, 22))}</text>')
    return out


# --------------------------------------------------------------------------- marks
def _mark(mark: Drawing, panel: Panel, x: Scale, y: Scale, inner: float) -> str:
    inside = "".join(_pieces(mark, panel, x, y, inner))
    kind = f"s {_classes(mark.colour)}"
    more = ""
    if isinstance(mark, Line) and mark.members:
        kind += " only" if is_shown(mark, panel) else " only away"
        more = f' data-of="{_json(list(mark.members))}" data-who="{escape(mark.who)}"'
    return f'<g class="{kind}" data-s="{escape(mark.name)}"{more}>{inside}</g>'


def _pieces(mark: Drawing, panel: Panel, x: Scale, y: Scale, inner: float) -> list[str]:
    match mark:
        case Line():
            return _line(mark, x, y, inner)
        case Points():
            radius = 2.5 if mark.hollow else 2 if mark.small else 5
            kind = ' class="hollow"' if mark.hollow else ""
            notes = mark.notes or [mark.name] * len(mark.x)
            if mark.star:
                return [
                    f'<svg x="{x(a):.2f}%" y="{y(b):.1f}" overflow="visible"><path class="star" d="{STAR}"{_note(note)}/></svg>'
                    for a, b, note in zip(mark.x, mark.y, notes, strict=True)
                ]
            return [
                f'<circle{kind} cx="{x(a):.2f}%" cy="{y(b):.1f}" r="{radius}"{_note(note)}/>'
                for a, b, note in zip(mark.x, mark.y, notes, strict=True)
            ]
        case Bars():
            notes = mark.notes or [mark.name] * len(mark.x)
            out = []
            for at, value, note in zip(mark.x, mark.y, notes, strict=True):
                if math.isfinite(value):
                    a, b, zero, end = x(at - mark.span / 2), x(at + mark.span / 2), y(0), y(value)
                    out.append(f'<rect x="{a:.2f}%" y="{min(zero, end):.1f}" width="{0.95 * (b - a):.2f}%" '
                               f'height="{abs(zero - end):.1f}"{_note(note)}/>')  # fmt: skip
            return out
        case Arrows():
            rows = zip(mark.rows, mark.start, mark.end, mark.notes, strict=True)
            return [_arrow(x(a), x(b), y(row), b - a, note) for row, a, b, note in rows if math.isfinite(a + b)]
        case Ticks():
            return [
                f'<line x1="{x(a):.2f}%" x2="{x(a):.2f}%" y1="{y(row) - 8:.1f}" y2="{y(row) + 8:.1f}"'
                f"{_note(f'{mark.name}: {a:.1f}')}/>"
                for a, row in zip(mark.x, mark.rows, strict=True)
                if math.isfinite(a)
            ]
        case Cells():
            return _cells(mark, panel, x, y, unit="%")


def _line(mark: Line, x: Scale, y: Scale, inner: float) -> list[str]:
    out = [f'<svg class="curves" width="100%" height="{inner:g}" viewBox="0 0 {STRETCHED:g} {inner:g}" '
           'preserveAspectRatio="none" overflow="visible">']  # fmt: skip
    every = -(-len(mark.x) // MOST_POINTS)
    kept = sorted({*range(0, len(mark.x), every or 1), len(mark.x) - 1}) if mark.x else []
    if len(mark.low):
        there = [(mark.x[i], mark.high[i]) for i in kept] + [(mark.x[i], mark.low[i]) for i in reversed(kept)]
        out.append(f'<polygon class="spread" points="{_path(there, x, y, 1)}"/>')
    dashed = ' class="dashed"' if mark.dashed else ""
    out.append(f'<polyline{dashed} points="{_path([(mark.x[i], mark.y[i]) for i in kept], x, y, 2)}"/></svg>')
    return out


def _arrow(tail: float, head: float, at: float, change: float, note: str) -> str:
    """An arrow from one value to another; one that leads nowhere is a dot."""
    if abs(change) < STILL:
        return f'<g class="same"{_note(note)}><circle cx="{tail:.2f}%" cy="{at:.1f}" r="4"/></g>'
    way, worse = (6, "") if change > 0 else (-6, ' class="worse"')
    return (
        f"<g{worse}{_note(note)}>"
        f'<line class="reach" x1="{tail:.2f}%" x2="{head:.2f}%" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<circle class="hollow" cx="{tail:.2f}%" cy="{at:.1f}" r="4"/>'
        f'<svg x="{head:.2f}%" y="{at:.1f}" overflow="visible"><path d="M0 0l{-way} -5v10z"/></svg></g>'
    )


def _cells(mark: Cells, panel: Panel, x: Scale, y: Scale, unit: str) -> list[str]:
    """Shaded rectangles, row by row. A negative value has a stroke across, as a colour alone may be mistaken."""
    wide, high = x(1) - x(0), y(1) - y(0)
    inside = high if panel.picture else high - 1  # rows of a matrix stand apart, those of a picture do not
    out = []
    for i, row in enumerate(mark.values):
        which = f' data-row="{i}"' if panel.members else ""
        out.append(f'<g transform="translate(0 {y(i - 0.5):.1f})"{which}>')
        for j, value in enumerate(row):
            if not math.isfinite(value):
                continue
            side = ' class="minus"' if value < 0 else ""
            note = mark.notes[i][j] if mark.notes else f"{value:.3g}"
            out.append(f'<rect{side} x="{x(j - 0.5):.2f}{unit}" width="{wide:.2f}{unit}" '
                       f'height="{inside:.3g}" fill-opacity="{_strength(value, mark):.2f}"{_note(note)}/>')  # fmt: skip
            if value < 0:
                at = inside / 2
                out.append(f'<line class="sign" x1="{x(j - 0.2):.2f}{unit}" x2="{x(j + 0.2):.2f}{unit}" y1="{at:.1f}" '
                           f'y2="{at:.1f}"/>')  # fmt: skip
        out.append("</g>")
    return out


def _path(points: Sequence[tuple[float, float]], x: Scale, y: Scale, digits: int) -> str:
    """Points of a line in its own units, of which `STRETCHED` are the whole width."""
    return " ".join(
        f"{STRETCHED / 100 * x(a):.1f},{y(b):.{digits}f}" for a, b in points if math.isfinite(a) and math.isfinite(b)
    )


def _note(text: str) -> str:
    return f' data-note="{escape(text)}"'
