"""Plots of what runs kept besides their records, because `--keep` asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.runs.kept import MISSING, read_kept_of
from equipoise.runs.requests import Request
from equipoise.study.report.charts import COLOURS, Bars, Cells, Chart, Line, Panel, Points
from equipoise.study.report.figures import Study
from equipoise.study.report.headline import tell
from equipoise.study.report.plots import MOST_LINES, MOST_ROWS, register_plot

LOGARITHM = "log10 of the singular value"
FEW = 3  # methods whose bars fit side by side into a panel of half the page


def collect_kept(study: Study, kind: str) -> dict[Request, dict[str, Any]]:
    """What the runs kept of one kind: by request, then by method. It is that of the first seed that has it."""
    found: dict[Request, dict[str, Any]] = {}
    for method, runs in study.runs.items():
        for run in runs.values():
            for request, here in read_kept_of(run.place, kind).items():
                if MISSING not in here:
                    found.setdefault(request, {}).setdefault(method, here)
    return found


def _list_kept(study: Study, kind: str) -> list[tuple[str, str, Any]]:
    """What the runs kept of a kind: method, whose model it is in words, and the content."""
    return [
        (method, f"local model of {request.client}" if request.client else "", here)
        for request, by_method in collect_kept(study, kind).items()
        for method, here in by_method.items()
    ]


def _join(*words: str) -> str:
    return ", ".join(word for word in words if word)


@register_plot
def draw_conflicts(study: Study) -> Chart | None:
    """Cosines between the clients' updates, a matrix per method."""
    panels = []
    for method, _, found in _list_kept(study, "conflicts"):
        ticks = {float(i): name for i, name in enumerate(found["clients"])}
        cells = Cells(method, found["cosines"], -1.0, 1.0)
        members = [[study.any.clients.index(name)] for name in found["clients"] if name in study.any.clients]
        panels.append(Panel(method, [cells], "", "", ticks, ticks, wide=True, method=method, members=members))
    caption = "Cosines between the updates that clients send from the final model: a stroke across is a conflict."
    first = tell(study).shown or ""
    return (
        Chart("conflicts", "Conflicts between clients", caption, panels, one_at_a_time=True, first=first)
        if panels
        else None
    )


@register_plot
def draw_consistency(study: Study) -> Chart | None:
    """How often the updates of a parameter have the same sign: a histogram per stretch of rounds, with all methods."""
    panels = []
    for request, by_method in collect_kept(study, "consistency").items():
        layer = f"layer {request.layer}" if request.layer else ""
        for rounds in _sort_stretches({rounds for found in by_method.values() for rounds in found}):
            shown = {method: found[rounds] for method, found in by_method.items() if rounds in found}
            title = _join(
                f"{rounds} rounds" if rounds.startswith("last") else f"first {rounds} rounds", request.client, layer
            )
            bars = [
                _bars(method, shares, study.colour(method), place, len(shown))
                for place, (method, shares) in enumerate(shown.items())
            ]
            panels.append(
                Panel(title, bars, "share of rounds in one direction", "percent of parameters", wide=len(shown) > FEW)
            )
    caption = (
        "For every parameter of every client (or of the client and the layer that are named): the share of the client's "
        "rounds in which its update had its more frequent sign."
    )
    return Chart("consistency", "Consistency of updates", caption, panels) if panels else None


def _bars(method: str, shares: Sequence[float], colour: int, place: int, count: int) -> Bars:
    """A histogram over the shares from 0.5 to 1: bars of one of `count` methods, beside those of the others."""
    width = 0.5 / len(shares)
    span = 0.9 * width / count  # with a gap between what belongs to different shares
    middles = [0.5 + width * i + 0.05 * width + span * (place + 0.5) for i in range(len(shares))]
    percents = [100 * share for share in shares]
    notes = [f"{method}: {share:.1f} % from {0.5 + width * i:.3g} on" for i, share in enumerate(percents)]
    return Bars(method, middles, percents, colour, span, notes)


def _sort_stretches(names: Iterable[str]) -> list[str]:
    """The names of stretches of rounds: `10`, `100`, `200`, and those that begin with `last` behind them."""
    return sorted(names, key=lambda name: (name.startswith("last"), int(name.removeprefix("last "))))


@register_plot
def draw_spectrum(study: Study) -> Chart | None:
    """Singular values of the features' covariance, a line per method."""
    panels = []
    for request, by_method in collect_kept(study, "features").items():
        lines = [_spectrum(method, found["singular"], study.colour(method)) for method, found in by_method.items()]
        title = f"local model of {request.client}" if request.client else ""
        panels.append(Panel(title, lines, "rank", LOGARITHM, wide=True, whole=True))
    caption = (
        "Singular values of the covariance of the last features, test samples of all domains. A steep fall: collapse."
    )
    return Chart("spectrum", "Spectrum of the features", caption, panels) if panels else None


@register_plot
def draw_local_spectrum(study: Study) -> Chart | None:
    """Singular values of the features' covariance by the clients' local models: per method a line per client."""
    each = [(method, _spectra_of_clients(found)) for method, _, found in _list_kept(study, "spectrum")]
    ends = [value for _, lines in each for line in lines for value in (*line.y, *line.low, *line.high)]
    panels = [  # with one axis for all, so that methods can be compared
        Panel(method, lines, "rank", LOGARITHM, whole=True, method=method, y_also=(min(ends), max(ends)))
        for method, lines in each
    ]
    caption = (
        "Singular values of the covariance of the last features by the local model of each client, which it has after one "
        "more round; test samples of all domains, the same for all. Colours are domains. A steep fall: collapse."
    )
    title = "Spectrum of the features, client by client"
    return Chart("local_spectrum", title, caption, panels, columns=2) if panels else None


def _spectrum(name: str, singular: Sequence[float], colour: int) -> Line:
    values = _logarithms(singular)
    return Line(name, [float(i + 1) for i in range(len(values))], values, colour)


def _spectra_of_clients(found: Mapping[str, Any]) -> list[Line]:
    """A line per client, in the colour of its domain; of many clients only their mean and range."""
    colours = list(dict.fromkeys(found["domains"]))
    lines = [
        _spectrum(name, singular, colours.index(domain))
        for name, domain, singular in zip(found["clients"], found["domains"], found["singular"], strict=True)
    ]
    if len(lines) <= MOST_ROWS:
        return lines
    stack = np.array([line.y for line in lines])
    name, low, high = f"mean of {len(lines)} clients", stack.min(0).tolist(), stack.max(0).tolist()
    return [Line(name, lines[0].x, stack.mean(0).tolist(), 0, low, high)]


@register_plot
def draw_tsne(study: Study) -> Chart | None:
    """Features in two dimensions, coloured by class, with the classes' centres, and by domain."""
    panels = []
    for method, whose, found in _list_kept(study, "features"):
        centres = found.get("centres", {})  # in the order of the classes; earlier versions kept none
        classes = _scattered(found["points"], found["classes"], list(centres))
        colours = {mark.name: mark.colour for mark in classes}
        stars = [
            Points(name, [x], [y], colours[name], [f"centre of {name}"], star=True) for name, (x, y) in centres.items()
        ]
        panels.append(Panel(_join(method, whose, "by class"), [*classes, *stars]))
        panels.append(Panel(_join(method, whose, "by domain"), _scattered(found["points"], found["domains"])))
    caption = (
        "Last features of test samples in two dimensions (t-SNE), coloured by class and by domain. A star is the centre of a "
        "class, the mean of its features."
    )
    return Chart("tsne", "Features", caption, panels, columns=2) if panels else None


@register_plot
def draw_saliency(study: Study) -> Chart | None:
    """Which part of an image the model looks at: a row of pictures per method and view of its model, under the samples."""
    panels: list[Panel] = []
    rows: list[str] = []
    across = 1
    for method, whose, found in _list_kept(study, "saliency"):
        domains = found["domains"]
        if not panels:
            kinds = list(dict.fromkeys(found.get("classes", ())))
            rows.append(f"samples of class {kinds[0]}" if len(kinds) == 1 else "samples")
            shades = [[[1 - value for value in line] for line in sample] for sample in found["samples"]]
            panels = [_picture(domain, values, 6) for domain, values in zip(domains, shades, strict=True)]
            across = len(domains)
        for view, maps in {"": found["maps"], **found.get("views", {})}.items():
            rows.append(_join(method, whose, view))
            panels += [
                _picture(f"{rows[-1]}, {domain}", values, 3, untitled=True)
                for domain, values in zip(domains, maps, strict=True)
            ]
    caption = (
        "Grad-CAM: where the last feature map speaks for the class of a test sample of each domain (first row: the samples; "
        "in the others a strong colour is a large value, and where a picture is all pale, nothing does). A local model is the "
        "one that a client has after one more round."
    )
    return Chart("saliency", "Where the model looks", caption, panels, columns=across, rows=rows) if panels else None


def _picture(title: str, values: Sequence[Sequence[float]], colour: int, untitled: bool = False) -> Panel:
    return Panel(title, [Cells(title, values, 0.0, 1.0, colour)], picture=True, untitled=untitled)


@register_plot
def draw_separators(study: Study) -> Chart | None:
    """Two-dimensional samples with the border between two classes, and beside them the clients' losses over rounds."""
    panels = []
    for method, _, found in _list_kept(study, "separators"):
        x, y = ([place[axis] for place in found["border"]] for axis in (0, 1))
        marks = [*_samples(study, found), Points("border", x, y, 6, small=True)]
        panels.append(Panel(method, marks, "x1", "x2"))
        panels.append(Panel(f"{method}, losses", _losses(study, method), "round", "test loss", whole=True))
    caption = (
        "Left: test samples in two dimensions, those of the first class hollow, and where the model is undecided "
        "between the two classes (grey). Right: the test loss of each client over rounds, mean over seeds."
    )
    return Chart("separators", "Two-dimensional data and separators", caption, panels, columns=2) if panels else None


def _samples(study: Study, found: Mapping[str, Any]) -> list[Points]:
    """The samples as points: a colour per domain, hollow for the first class."""
    colours = list(dict.fromkeys(study.any.domains))
    kinds = [f"{d}, class {c}" for d, c in zip(found["domains"], found["classes"], strict=True)]
    marks = []
    for name, places in _places_by_name(kinds).items():
        first, (x, y) = places[0], zip(*(found["points"][i] for i in places), strict=True)
        colour, hollow = colours.index(found["domains"][first]), found["classes"][first] == 0
        marks.append(Points(name, x, y, colour, small=True, hollow=hollow))
    return marks


def _losses(study: Study, method: str) -> list[Line]:
    """A line per client, in the colour of its domain; of many clients only the worst, mean and best per round."""
    found, seeds = study.align(method, "loss")
    rounds, values = found.astype(float).tolist(), np.mean(seeds, axis=0)
    if len(study.any.clients) > MOST_LINES:
        shown = {"worst": np.nanmax(values, 1), "mean": np.nanmean(values, 1), "best": np.nanmin(values, 1)}
        return [Line(name, rounds, line.tolist(), colour) for colour, (name, line) in enumerate(shown.items())]
    colours = list(dict.fromkeys(study.any.domains))
    return [
        Line(name, rounds, line.tolist(), colours.index(domain))
        for name, domain, line in zip(study.any.clients, study.any.domains, values.T, strict=True)
    ]


def _scattered(points: Sequence[Sequence[float]], names: Sequence[str], order: Sequence[str] = ()) -> list[Points]:
    """Points with a colour per name. Names come in this order, others as they appear."""
    found = _places_by_name(names)
    places_of = {name: found[name] for name in dict.fromkeys([*order, *found])}
    return [
        Points(
            name,
            [points[i][0] for i in places],
            [points[i][1] for i in places],
            colour,
            small=True,
            hollow=colour >= len(COLOURS),  # when all colours are used up, they come again
        )
        for colour, (name, places) in enumerate(places_of.items())
    ]


def _places_by_name(names: Sequence[str]) -> dict[str, list[int]]:
    """Each name, with its places in the list."""
    found: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        found.setdefault(str(name), []).append(i)
    return found


def _logarithms(values: Sequence[float]) -> list[float]:
    """Logarithms to base 10. Zero is replaced by a very small number."""
    return np.log10(np.maximum(np.asarray(values, dtype=float), 1e-12)).tolist()
