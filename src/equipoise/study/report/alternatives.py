"""Charts in words, for readers who cannot see them: the text alternative of each panel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from equipoise.grammar import join_words
from equipoise.study.report.charts import Arrows, Bars, Cells, Drawing, Line, Panel, Points, Ticks, is_shown

MOST = 12  # marks that are told one by one
FEW = 3  # points of a mark that are told one by one


def describe(panel: Panel) -> str:
    """What a panel shows, in words: its title and axes, then where each mark begins and ends.

    >>> describe(Panel("MIN", [Line("fedavg", [1.0, 9.0], [20.0, 60.0])], "round", "percent"))
    'MIN. percent over round. fedavg: 20 at 1 to 60 at 9.'
    """
    marks = [mark for mark in panel.marks if is_shown(mark, panel)]
    axes = " over ".join(label for label in (panel.y_label, panel.x_label) if label)
    told = [text for mark in marks[:MOST] if (text := _tell(mark, panel))]
    more = [f"{len(marks) - MOST} more"] if len(marks) > MOST else []
    return " ".join(f"{part}." for part in (panel.title, axes, *told, *more) if part)


def _tell(mark: Drawing, panel: Panel) -> str:
    match mark:
        case Line():
            known = [(a, b) for a, b in zip(mark.x, mark.y, strict=True) if math.isfinite(b)]
            ends = [f"{b:.4g} at {_name(a, panel.x_ticks)}" for a, b in known]
            return f"{mark.name}: {ends[0]} to {ends[-1]}" if ends else ""
        case Points(star=True):
            return f"{mark.name}: centre {mark.y[0]:.4g} at {mark.x[0]:.4g}"
        case Points():
            if len(mark.x) > FEW:
                return f"{mark.name}: {len(mark.x)} points, x {_tell_range(mark.x)}, y {_tell_range(mark.y)}"
            return f"{mark.name}: " + ", ".join(f"{b:.4g} at {a:.4g}" for a, b in zip(mark.x, mark.y, strict=True))
        case Bars():
            return f"{mark.name}: {_tell_range(mark.y)}"
        case Arrows():
            rows = zip(mark.rows, mark.start, mark.end, strict=True)
            each = [f"{_name(row, panel.y_ticks)} {a:.1f} to {b:.1f}" for row, a, b in rows if math.isfinite(a + b)]
            return join_words(each, 40)
        case Ticks():
            return f"{mark.name}: {_tell_range(mark.x)}"
        case Cells():
            values = [value for row in mark.values for value in row]
            return f"{len(mark.values)} rows, {len(mark.values[0])} columns, values {_tell_range(values)}"


def _tell_range(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    return f"{min(known):.4g} to {max(known):.4g}" if known else "none"


def _name(place: float, ticks: Mapping[float, str]) -> str:
    return ticks.get(place) or f"{place:g}"
