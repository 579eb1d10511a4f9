"""Plots of what runs kept besides their records, because `--keep` asked for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.runs.kept import MISSING, read_kept
from equipoise.study.report.charts import Bars, Cells, Chart, Line, Panel, Points
from equipoise.study.report.figures import Study
from equipoise.study.report.headline import tell
from equipoise.study.report.plots import MOST_LINES, register_plot


def collect_kept(study: Study, kind: str) -> dict[str, Any]:
    """What the runs kept of one kind, by method: that of the first seed that has it."""
    found: dict[str, Any] = {}
    for method, runs in study.runs.items():
        for run in runs.values():
            here = read_kept(run.place).get(kind)
            if here is not None and MISSING not in here:
                found.setdefault(method, here)
    return found


@register_plot
def draw_conflicts(study: Study) -> Chart | None:
    """Cosines between the clients' updates, a matrix per method."""
    panels = []
    for method, found in collect_kept(study, "conflicts").items():
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
    """How often the updates of a parameter have the same sign, as histograms."""
    panels = []
    for method, found in collect_kept(study, "consistency").items():
        for rounds, shares in sorted(found.items(), key=lambda one: int(one[0])):
            middles = [0.5 + 0.025 * (i + 0.5) for i in range(20)]
            percents = [100 * share for share in shares]
            bars = Bars(method, middles, percents, 0, 0.025, [f"{share:.1f} %" for share in percents])
            title = f"{method}, after {rounds} rounds"
            panels.append(Panel(title, [bars], "share of rounds in one direction", "percent of parameters"))
    caption = "For every parameter of every client: the share of rounds in which its update had its more frequent sign."
    return Chart("consistency", "Consistency of updates", caption, panels) if panels else None


@register_plot
def draw_spectrum(study: Study) -> Chart | None:
    """Singular values of the features' covariance, a line per method."""
    lines = []
    for method, found in collect_kept(study, "features").items():
        values = _logarithms(found["singular"])
        lines.append(Line(method, [float(i + 1) for i in range(len(values))], values, study.colour(method)))
    panel = Panel("", lines, "rank", "log10 of the singular value", wide=True, whole=True)
    caption = (
        "Singular values of the covariance of the last features, test samples of all domains. A steep fall: collapse."
    )
    return Chart("spectrum", "Spectrum of the features", caption, [panel]) if lines else None


@register_plot
def draw_tsne(study: Study) -> Chart | None:
    """Features in two dimensions, coloured by class and by domain."""
    panels = [
        Panel(f"{method}, by {what}", _scattered(found["points"], found[what]))
        for method, found in collect_kept(study, "features").items()
        for what in ("classes", "domains")
    ]
    caption = "Last features of test samples in two dimensions (t-SNE), coloured by class and by domain."
    return Chart("tsne", "Features", caption, panels, columns=2) if panels else None


@register_plot
def draw_saliency(study: Study) -> Chart | None:
    """Which part of an image the model looks at, a row of pictures per method."""
    panels: list[Panel] = []
    across = 1
    for method, found in collect_kept(study, "saliency").items():
        if not panels:
            panels = [_picture(f"sample, {d}", v, 6) for d, v in zip(found["domains"], found["samples"], strict=True)]
        panels += [_picture(f"{method}, {d}", v, 3) for d, v in zip(found["domains"], found["maps"], strict=True)]
        across = len(found["domains"])
    caption = (
        "Grad-CAM: where the last feature map speaks for the class of the first test sample of each domain (first row: "
        "the samples; a strong colour is a large value)."
    )
    return Chart("saliency", "Where the model looks", caption, panels, columns=across) if panels else None


def _picture(title: str, values: Sequence[Sequence[float]], colour: int) -> Panel:
    return Panel(title, [Cells(title, values, 0.0, 1.0, colour)], picture=True)


@register_plot
def draw_separators(study: Study) -> Chart | None:
    """Two-dimensional samples with the border between two classes, and beside them the clients' losses over rounds."""
    panels = []
    for method, found in collect_kept(study, "separators").items():
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


def _scattered(points: Sequence[Sequence[float]], names: Sequence[str]) -> list[Points]:
    """Points with a colour per name."""
    return [
        Points(name, [points[i][0] for i in places], [points[i][1] for i in places], colour, small=True)
        for colour, (name, places) in enumerate(_places_by_name(names).items())
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
