"""Charts as plain data: panels of marks on two axes. `svg.py` draws them for the page, `paper.py` with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#9A4DE8",
    "#80602F",
)  # of methods, by number; chosen so that colour-blind readers can tell them apart. More begin again, in another style
ALONE, POOLED, GUIDE = -1, -2, -3  # numbers of colours that no method has: local-only and centralised training, and
# lines that only help to read
GREY = "#777777"  # of training that is no method's
INK = "#1B1F24"  # of lines that help to read; on the page it is that of text
NEGATIVE = "#882255"  # of negative values in matrices, and of arrows to a lower value: no method has it
NEGATIVE_ON_DARK = "#FFC2CC"  # the same on a dark page
UNCHANGED = "#6B7280"  # of an arrow that leads nowhere
STILL = 0.05  # in percent: a smaller change does not show in the printed digit, and is drawn as none


@dataclass(frozen=True)
class Line:
    """A curve, with a band around it if `low` and `high` are given."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False
    members: Sequence[int] = ()  # numbers of clients: the line is shown only while one of them is picked
    who: str = ""  # the name of these clients


@dataclass(frozen=True)
class Points:
    """Single points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    notes: Sequence[str] = ()  # shown when the reader points at a point; by default the name
    label: bool = False  # write the name beside the first point
    small: bool = False
    hollow: bool = False
    star: bool = False  # large stars, which stand out among other points


@dataclass(frozen=True)
class Bars:
    """Vertical bars that begin at zero. `span` is their width on the x axis."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    span: float = 0.8
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Arrows:
    """Horizontal arrows from `start` to `end`, one per row."""

    name: str
    rows: Sequence[float]
    start: Sequence[float]
    end: Sequence[float]
    colour: int = 0
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Ticks:
    """Short vertical strokes, one per row."""

    name: str
    x: Sequence[float]
    rows: Sequence[float]
    colour: int = ALONE


@dataclass(frozen=True)
class Cells:
    """A matrix in shades of a colour. Row 0 is at the top, and NaN is left empty."""

    name: str
    values: Sequence[Sequence[float]]
    low: float  # the smallest value: if it is below zero, negative values have a colour of their own
    high: float  # the largest value
    colour: int = 0
    notes: Sequence[Sequence[str]] = ()  # one per cell; by default its value


@dataclass(frozen=True)
class Rug:
    """Where each client lies on the x axis. The page shows the client that the reader picks."""

    name: str
    values: Sequence[float]  # one per client
    colour: int = 0


Drawing = Line | Points | Bars | Arrows | Ticks | Cells


@dataclass(frozen=True)
class Panel:
    """Marks on two axes."""

    title: str
    marks: Sequence[Drawing]
    x_label: str = ""
    y_label: str = ""
    x_ticks: Mapping[float, str] = field(default_factory=dict)  # names at places on the axis, instead of numbers
    y_ticks: Mapping[float, str] = field(default_factory=dict)
    wide: bool = False  # as wide as the page
    picture: bool = False  # a small square without axes
    untitled: bool = False  # a picture whose title is not drawn: it stands in a row that has one
    method: str = ""  # the method that the panel is about, if it is about one
    whole: bool = False  # the x axis counts, as rounds do: its ticks are whole numbers
    members: Sequence[Sequence[int]] = ()  # numbers of the clients at each named place of the axis
    rugs: Sequence[Rug] = ()
    picked: int | None = None  # the number of the client whose lines are shown first
    y_also: Sequence[float] = ()  # values that the y axis holds, too: it is then the same in several panels

    @property
    def rows(self) -> bool:
        """Whether the y axis is a list of names, from top to bottom."""
        return bool(self.y_ticks)


@dataclass(frozen=True)
class Chart:
    """Panels that belong together, with a title and a caption."""

    kind: str  # the name of the plot
    title: str
    caption: str  # with the definition of what is drawn
    panels: Sequence[Panel]
    one_at_a_time: bool = False  # on the page, the reader chooses which panel is shown
    first: str = ""  # the method whose panel is shown first
    columns: int = 3  # panels side by side on paper, and also on the page if they are pictures
    rows: Sequence[str] = ()  # of pictures: what each row of them shows


def find_colour(number: int) -> tuple[str, bool]:
    """The name of a colour in `PAINTS`, and whether its marks need another style, because others have it, too.

    >>> find_colour(1), find_colour(9), find_colour(ALONE), find_colour(POOLED)
    (('c1', False), ('c1', True), ('grey', False), ('grey', True))
    """
    if number == GUIDE:
        return "ink", False
    if number < 0:
        return "grey", number == POOLED
    return f"c{number % len(COLOURS)}", number >= len(COLOURS)


PAINTS = {f"c{i}": colour for i, colour in enumerate(COLOURS)} | {"grey": GREY, "ink": INK}


def shorten(text: str, most: int) -> str:
    """The text, cut off with an ellipsis if it has more than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def find_extent(panel: Panel) -> tuple[tuple[float, float], tuple[float, float]]:
    """The ranges of x and y that a panel needs."""
    xs: list[float] = [end for place in panel.x_ticks for end in (place - 0.5, place + 0.5)]  # room for the names
    ys: list[float] = [*panel.y_ticks, *panel.y_also]
    for mark in panel.marks:
        match mark:
            case Cells(values=values):
                xs += [-0.5, len(values[0]) - 0.5]
                ys += [-0.5, len(values) - 0.5]
            case Arrows(rows=rows, start=start, end=end):
                xs += [*start, *end]
                ys += rows
            case Ticks(x=x, rows=rows):
                xs += x
                ys += rows
            case Bars(x=x, y=y, span=span):
                xs += [min(x, default=0) - span / 2, max(x, default=0) + span / 2]
                ys += [0.0, *y]
            case Line(x=x, y=y, low=low, high=high):
                xs += x
                ys += [*y, *low, *high]
            case Points(x=x, y=y):
                xs += x
                ys += y
    labels = any(isinstance(mark, Points) and mark.label for mark in panel.marks)
    across = 0.0 if panel.whole or panel.x_ticks else 0.15 if labels else 0.04
    return _padded(xs, across), _padded(ys, 0.12 if labels else 0.04, panel.rows)


def is_shown(mark: Drawing, panel: Panel) -> bool:
    """Whether a mark is shown at first, and on paper: lines of clients that nobody has picked are not."""
    return not isinstance(mark, Line) or not mark.members or panel.picked in mark.members


def _padded(values: Sequence[float], margin: float, named: bool = False) -> tuple[float, float]:
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if named:
        return low - 0.6, high + 0.6
    level = high - low < 1e-9 * max(1.0, abs(low), abs(high))  # all values are the same, apart from rounding
    gap = 0.5 if level else margin * (high - low)
    return (low - gap if low != 0 else low), high + gap


def place_labels(
    points: Sequence[tuple[float, float]], widths: Sequence[float], height: float, bounds: tuple[float, float]
) -> list[tuple[float, float] | None]:
    """Place a label beside each point: above, below, to the right or left, where no other point or label is.

    Returns the middle of each label, or None where no place is free: a name that cannot be read is not written. All
    lengths have one unit, such as pixels, and y grows downwards. `bounds` are the left and right end of the panel.

    >>> place_labels([(50, 50), (52, 40)], [20, 20], 10, (0, 100))
    [(50, 62.0), (52, 28.0)]
    """
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    found: list[tuple[float, float] | None] = []
    for i, ((x, y), width) in enumerate(zip(points, widths, strict=True)):
        up, aside = height / 2 + 7, width / 2 + 9
        inside = min(max(x, bounds[0] + width / 2), bounds[1] - width / 2)
        options = [(x, y - up), (x, y + up), (x + aside, y), (x - aside, y), (inside, y - up), (inside, y + up)]
        options += [(x + side * aside, y + way * height / 2) for side in (1, -1) for way in (-1, 1)]
        others = taken[:i] + taken[i + 1 :]
        place = next((at for at in options if _is_free(_box(at, width, height), others, bounds)), None)
        found.append(place)
        if place is not None:
            taken.append(_box(place, width, height))
    return found


Box = tuple[float, float, float, float]


def _box(middle: tuple[float, float], width: float, height: float) -> Box:
    x, y = middle
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _is_free(box: Box, others: Sequence[Box], bounds: tuple[float, float]) -> bool:
    a, b, c, d = box
    met = any(a < right and left < c and b < low and high < d for left, high, right, low in others)
    return not met and bounds[0] <= a and c <= bounds[1]


def choose_ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """About `count` round numbers between two ends; on request only whole ones.

    >>> choose_ticks(0.0, 1.0), choose_ticks(1.0, 4.0, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [1.0, 2.0, 3.0, 4.0])
    """
    raw = max((high - low) / count, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.85)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def count_in_bins(
    values: Sequence[float], low: float, high: float, bins: int = 20
) -> tuple[list[float], list[float], float]:
    """Sort values into bins: the middle of each bin, the share of the values in it, and the width of a bin."""
    width = (high - low) / bins or 1.0
    edges = [low + i * width for i in range(bins + 1)]
    shares = [
        sum(a <= v < b or (i == bins - 1 and v >= b) for v in values) / max(1, len(values))
        for i, (a, b) in enumerate(pairwise(edges))
    ]
    return [(a + b) / 2 for a, b in pairwise(edges)], shares, width
