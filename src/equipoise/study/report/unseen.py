"""Clients that are held out of training, apart from the others: their table, and their score over rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from equipoise.metrics import UNSEEN, Interval, over_seeds
from equipoise.study.report.charts import Chart, Line, Panel
from equipoise.study.report.figures import Study
from equipoise.study.report.plots import MOST_LINES, find_band, register_plot
from equipoise.study.report.tables import format_figure


def say_unseen_legend(study: Study) -> str:
    """What the numbers of the table of unseen clients are."""
    return (
        f"{study.score.capitalize()} in percent, last round, on the test data of clients that never trained; no figure of "
        "the other tables has them. AVG and MIN are over these clients."
    )


def say_left_out_legend(studies: Sequence[Study]) -> str:
    """What the numbers of the table over studies that hold out others are."""
    score = next(study.score for study in studies if study.any.unseen)
    return (
        f"Mean {score} in percent of the clients that each column names, which never trained in the runs of that "
        "column."
    )


def list_unseen_columns(study: Study) -> list[str]:
    """The columns of the table of unseen clients: one per client, unless there are many, and two figures over them."""
    names = study.any.unseen
    return ["method", *(names if len(names) <= MOST_LINES else ()), "AVG", "MIN"]


def list_unseen_rows(study: Study) -> list[list[str]]:
    """The rows of the table of unseen clients, one per method; none if nobody is held out."""
    rows = []
    for method in study.methods if study.any.unseen else ():
        found = np.stack(list(study.final(method, split=UNSEEN).values()))  # [seeds, clients]
        each = found.T if len(study.any.unseen) <= MOST_LINES else ()
        cells = [format_figure("AVG", over_seeds(values.tolist())) for values in (*each, found.mean(1), found.min(1))]
        rows.append([method, *cells])
    return rows


def list_left_out(studies: Sequence[Study]) -> tuple[list[str], list[list[str]]] | None:
    """A table over studies of the same data that hold out others: a row per method, a column per study, and their mean.

    A cell is the mean score of the unseen clients. None if there are no two such studies.
    """
    some = [study for study in studies if study.any.unseen]
    kinds = {(str(study.any.manifest["data"]["name"]), study.score) for study in some}
    if len(some) < 2 or len(kinds) > 1:
        return None
    shared = [method for method in some[0].methods if all(method in study.runs for study in some)]
    rows = []
    for method in shared:
        found = [study.table[method]["AVG unseen"] for study in some]
        mean = Interval(sum(one.mean for one in found) / len(found), math.nan, math.nan)
        rows.append([method, *(format_figure("AVG unseen", one) for one in (*found, mean))])
    return ["method", *(study.held_out for study in some), "mean"], rows


@register_plot
def draw_unseen(study: Study) -> Chart | None:
    """The score of unseen clients over rounds, a line per method. Needs clients that are held out."""
    if not study.any.unseen:
        return None
    panels = []
    shown = ("mean",) if len(study.any.unseen) == 1 else ("mean", "worst")
    for name in shown:
        lines = []
        for method in study.methods:
            rounds, seeds = study.align(method, split=UNSEEN)
            mean, low, high = find_band([values.mean(1) if name == "mean" else values.min(1) for values in seeds])
            dashed = method not in (study.reference, *study.rivals)
            lines.append(Line(method, rounds.tolist(), mean, study.colour(method), low, high, dashed))
        title = study.any.unseen[0] if len(shown) == 1 else f"{name} of {len(study.any.unseen)} unseen clients"
        panels.append(Panel(title, lines, "round", f"test {study.score} in percent", whole=True))
    caption = "Clients that never trained, on their test data; line: mean over seeds, band: their range."
    return Chart("unseen", "Unseen clients over rounds", caption, panels)
