"""The plots of a report: each function makes a chart of a study, or None if the runs lack what it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from equipoise.metrics import bootstrap
from equipoise.study.report.charts import (
    ALONE,
    GUIDE,
    Arrows,
    Bars,
    Chart,
    Line,
    Panel,
    Points,
    Rug,
    Ticks,
    count_in_bins,
)
from equipoise.study.report.figures import EXPLAINED, Study
from equipoise.study.report.groups import list_gaps, list_group_names, measure_pooled
from equipoise.study.report.headline import tell
from equipoise.study.report.sweeps import find_sweeps
from equipoise.study.report.view import Vector, average_by_domain

MOST_ROWS = 30  # clients that a plot names one by one; more are put in groups
MOST_LINES = 8  # that a panel can hold and stay readable
COLUMNS = 50  # of a heat map; more rounds than that share columns
QUARTILES = {0.0: "smallest", 0.25: "first quartile", 0.5: "median", 0.75: "third quartile", 1.0: "largest"}
Maker = Callable[[Study], Chart | None]
PLOTS: dict[str, Maker] = {}


def register_plot(function: Maker) -> Maker:
    """Add a function to the plots of the report. The plot of `draw_arrows` is called `arrows`."""
    PLOTS[function.__name__.removeprefix("draw_")] = function
    return function


def draw_charts(study: Study) -> list[Chart]:
    """All charts that a study has data for, in the order of the report."""
    return [chart for make in PLOTS.values() if (chart := make(study)) is not None]


# --------------------------------------------------------------------------- what plots share
def group_names(order: Sequence[int], names: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Clients in a given order: one by one if they fit, otherwise in groups of about equal size."""
    if len(order) <= MOST_ROWS:
        return [(names[i], [i]) for i in order]
    pieces = [piece.tolist() for piece in np.array_split(np.asarray(order), MOST_ROWS - 10)]
    found, start = [], 1
    for piece in pieces:
        found.append((f"{start}–{start + len(piece) - 1} of {len(order)}", piece))
        start += len(piece)
    return found


def average(values: Vector, members: Sequence[int] | None = None) -> float:
    """The mean over those members that have a value; over all clients if no members are given."""
    some = values if members is None else values[list(members)]
    return float(np.nanmean(some)) if not np.isnan(some).all() else float("nan")


def say_percent(value: float) -> str:
    """A share in percent, or a dash for NaN."""
    return "–" if np.isnan(value) else f"{100 * value:.1f} %"


def find_band(rows: Sequence[Vector]) -> tuple[list[float], list[float], list[float]]:
    """The mean, the smallest and the largest value over seeds, in percent; for one seed the last two are empty."""
    stack = 100 * np.stack(rows)
    if len(rows) == 1:
        return stack[0].tolist(), [], []
    return stack.mean(0).tolist(), stack.min(0).tolist(), stack.max(0).tolist()


def _order(study: Study) -> list[int]:
    """Clients with test data, from the worst under FedAvg to the best; without FedAvg, under the first method."""
    values = study.mean_final(study.reference or study.methods[0])
    return [int(i) for i in np.argsort(values) if not np.isnan(values[i])]


# --------------------------------------------------------------------------- who gained, who paid
@register_plot
def draw_arrows(study: Study) -> Chart | None:
    """An arrow per client from its accuracy under FedAvg to that under the method. Needs FedAvg and another method."""
    reference, alone = study.reference, study.alone
    if reference is None or not study.rivals:
        return None
    rows = group_names(_order(study), study.any.clients)
    before, samples = study.mean_final(reference), study.any.samples()
    own = study.mean_final(alone) if alone else None
    panels = []
    for method in study.rivals:
        after = study.mean_final(method)
        start, end = ([100 * average(v, members) for _, members in rows] for v in (before, after))
        notes = []
        for (name, members), a, b in zip(rows, start, end, strict=True):
            text = f"{name}: {a:.1f} → {b:.1f} %"
            if len(members) == 1 and study.any.score == "accuracy":
                one = bootstrap(float(after[members[0]]), int(samples[members[0]]))
                text += f", 95 % over its test samples {100 * one.low:.1f} to {100 * one.high:.1f}"
            notes.append(text + (f"; alone {say_percent(average(own, members))}" if own is not None else ""))
        places = [float(i) for i in range(len(rows))]
        marks: list[Arrows | Ticks] = [Arrows(method, places, start, end, 0, notes)]
        if own is not None:
            marks.append(Ticks("local_only", [100 * average(own, m) for _, m in rows], places))
        ticks = {float(i): name for i, (name, _) in enumerate(rows)}
        panels.append(
            Panel(
                method, marks, f"test {study.score} in percent", y_ticks=ticks, wide=True, method=method,
                members=[members for _, members in rows],
            )
        )  # fmt: skip
    caption = (
        f"From {reference} (ring) to the method (head), mean over seeds, last round; a dot did not change. Clients "
        f"are sorted by {reference}{'; the upright stroke is local-only training' if alone else ''}."
    )
    if len(rows) < len(study.any.clients):
        caption += " Groups of clients are means over the group."
    return Chart(
        "arrows", "Who gained and who paid", caption, panels, one_at_a_time=True, first=tell(study).shown or ""
    )


@register_plot
def draw_domains(study: Study) -> Chart | None:
    """The mean accuracy of each domain, a line per method. Needs at least two domains, and not too many.

    A client without a domain is one by itself.
    """
    names = list(dict.fromkeys(study.any.domains))
    if len(names) < 2 or len(names) > MOST_LINES * 2:
        return None
    marks = []
    for method in study.methods:
        found = average_by_domain(study.mean_final(method), study.any.domains)
        places = [float(names.index(domain)) for domain in found]
        marks.append(Line(method, places, [100 * v for v in found.values()], study.colour(method)))
    members = [[k for k, domain in enumerate(study.any.domains) if domain == name] for name in names]
    panel = Panel(
        "",
        marks,
        "",
        f"test {study.score} in percent",
        {float(i): n for i, n in enumerate(names)},
        wide=True,
        members=members,
    )
    title, over = ("Domain by domain", "a domain's clients and over ") if study.named_domains else ("By client", "")
    return Chart("domains", title, f"Mean over {over}seeds, last round. A flat line is fair.", [panel])


@register_plot
def draw_convergence(study: Study) -> Chart | None:
    """AVG, STD and MIN over rounds, a line per method. Needs more than one evaluated round."""
    aligned = {method: study.align(method) for method in study.methods}
    if all(len(rounds) < 2 for rounds, _ in aligned.values()):
        return None  # a single point is no curve
    panels = []
    for name in ("AVG", "STD", "MIN"):
        lines = []
        for method, (rounds, seeds) in aligned.items():
            mean, low, high = find_band([np.array([study.measure(name, row) for row in values]) for values in seeds])
            dashed = method not in (study.reference, *study.rivals)
            lines.append(Line(method, rounds.tolist(), mean, study.colour(method), low, high, dashed))
        panels.append(Panel(name, lines, "round", f"{name} in percent", whole=True))
    panels.append(_draw_picked(study))
    caption = (
        f"AVG, STD (ddof {study.view.ddof}) and MIN over {study.view.over} of the test {study.score}; line: mean over "
        "seeds, band: their range; a run that has ended keeps its last values. The "
        "last panel shows one client (of many clients: its group), first the one that is worst at the end."
    )
    return Chart("convergence", "Convergence", caption, panels)


def _draw_picked(study: Study) -> Panel:
    """The accuracy of one client over rounds, a line per method. The page shows the client that the reader picks."""
    order = _order(study)
    rows = group_names(order, study.any.clients)
    lines = []
    for method in study.methods:
        rounds, seeds = study.align(method)
        kept = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), COLUMNS)).astype(int))
        curves = 100 * np.mean(seeds, axis=0)[kept]
        places = rounds[kept].tolist()
        dashed = method not in (study.reference, *study.rivals)
        for name, members in rows:
            values = [average(row, members) for row in curves]
            lines.append(Line(method, places, values, study.colour(method), dashed=dashed, members=members, who=name))
    return Panel(rows[0][0], lines, "round", f"test {study.score} in percent", whole=True, picked=order[0])


def _rugs(study: Study, values: Mapping[str, Vector]) -> list[Rug]:
    """A rug per method, of one value per client."""
    return [Rug(method, one.tolist(), study.colour(method)) for method, one in values.items()]


@register_plot
def draw_distribution(study: Study) -> Chart | None:
    """The share of clients at or below each accuracy, a line per method."""
    lines = []
    for method in study.methods:
        found = np.sort(100 * np.concatenate(list(study.final(method).values())))
        found = found[~np.isnan(found)]
        keep = np.unique(np.linspace(0, len(found) - 1, min(len(found), 100)).astype(int))
        share = (keep + 1) / len(found)
        lines.append(Line(method, found[keep].tolist(), (100 * share).tolist(), study.colour(method)))
    rugs = _rugs(study, {method: 100 * study.mean_final(method) for method in study.methods})
    panel = Panel(
        "", lines, f"test {study.score} in percent", "percent of the clients at or below", wide=True, rugs=rugs
    )
    return Chart(
        "distribution",
        "Distribution over clients",
        "All clients of all seeds, last round. Further right is better.",
        [panel],
    )


@register_plot
def draw_pareto(study: Study) -> Chart | None:
    """AVG against STD and against MIN, a point per method. Needs at least two methods."""
    if len(study.methods) < 2:
        return None
    panels = []
    for figure, better in (("STD", -1), ("MIN", 1)):
        place = {
            m: tuple(100 * float(np.mean(list(study.per_seed(m, f).values()))) for f in (figure, "AVG"))
            for m in study.methods
        }
        rivals = {m: place[m] for m in (*([study.reference] if study.reference else []), *study.rivals)}
        front = sorted(
            p
            for p in rivals.values()
            if not any(better * q[0] >= better * p[0] and q[1] >= p[1] and q != p for q in rivals.values())
        )
        marks: list[Points | Line] = []
        if len(front) > 1:
            marks.append(Line("Pareto front", [p[0] for p in front], [p[1] for p in front], GUIDE, dashed=True))
        marks += [
            Points(m, [p[0]], [p[1]], study.colour(m), [f"{m}: {figure} {p[0]:.1f}, AVG {p[1]:.1f}"], label=True)
            for m, p in place.items()
        ]
        for name, points in find_sweeps(study):
            path = [place[m] for _, m in points]
            marks.append(Line(f"sweep of {name}", [p[0] for p in path], [p[1] for p in path], GUIDE))
        panels.append(Panel("", marks, f"{figure} in percent", "AVG in percent"))
    caption = (
        f"Utility (AVG) against fairness: STD (ddof {study.view.ddof}; left is fairer) and MIN (right is fairer) over "
        f"{study.view.over}, mean over seeds. The dashed line joins the methods that no other one beats in both; "
        "local-only and centralised training are not counted. Sweeps of a parameter are joined. Names are written where "
        "there is room."
    )
    return Chart("pareto", "Utility against fairness", caption, panels)


# --------------------------------------------------------------------------- losses
@register_plot
def draw_losses(study: Study) -> Chart | None:
    """The test loss of each client and, where optimal losses are known, its loss gap, as bars."""
    order = _order(study)
    rows = group_names(order, study.any.clients)
    kinds = [("test loss", {m: study.mean_final(m, "loss") for m in study.methods})]
    if study.optima is not None:
        gaps = {m: study.gaps(m) for m in study.methods if m != study.alone}
        kinds.append(("loss gap", {m: np.mean(list(g.values()), axis=0) for m, g in gaps.items() if g}))
    panels = []
    for label, found in kinds:
        panels.append(_draw_bars(study, rows, label, found))
    caption = f"Loss ({study.any.loss_words}) on test data, mean over seeds, {study.view.when}. "
    caption += f"The loss gap is {study.gap_words}." if study.optima is not None else ""
    return Chart("losses", "Loss and loss gap of each client", caption, panels)


def _draw_bars(
    study: Study,
    rows: Sequence[tuple[str, list[int]]],
    label: str,
    found: Mapping[str, Vector],
    axis: str | None = None,
) -> Panel:
    """Bars side by side for each client or group of clients, one per method, of one value per client."""
    span = 0.8 / max(1, len(found))
    bars = [
        Bars(
            method, [i - 0.4 + span * (j + 0.5) for i in range(len(rows))],
            [average(values, members) for _, members in rows], study.colour(method), span,
            [f"{method}, {name}: {average(values, members):.3f}" for name, members in rows],
        )
        for j, (method, values) in enumerate(found.items())
    ]  # fmt: skip
    ticks = {float(i): name for i, (name, _) in enumerate(rows)}
    return Panel(
        label, bars, "", label if axis is None else axis, ticks, wide=True, members=[members for _, members in rows]
    )


@register_plot
def draw_errors(study: Study) -> Chart | None:
    """The mean absolute error of each client, as bars, in the units of the number that is predicted."""
    found = {m: study.mean_final(m, "mae") for m in study.methods if study.final(m, "mae")}
    if not found:
        return None
    rows = group_names(_order(study), study.any.clients)
    target = study.any.manifest["data"]["classes"][0]
    caption = (
        f"Mean absolute error of {target} on test data, in its own units, mean over seeds, last round; lower is better. "
        f"In the other figures of this page the worst client is the one with the largest squared error: {EXPLAINED}."
    )
    panel = _draw_bars(study, rows, f"mean absolute error of {target}", found, axis="")
    return Chart("errors", "Error of each client", caption, [panel])


@register_plot
def draw_groups(study: Study) -> Chart | None:
    """The gaps between groups of samples under each method, as bars. Needs samples that are in groups."""
    gaps = list_gaps(study.any) if list_group_names(study.any)[1] else []
    if not gaps:
        return None
    found = {method: measure_pooled(study, method) for method in study.methods}
    rows = [(name.replace("_", " "), [i]) for i, name in enumerate(gaps)]
    values = {method: np.array([100 * mine[name].mean for name in gaps]) for method, mine in found.items()}
    panel = replace(_draw_bars(study, rows, "gap in points", values), members=[])
    caption = (
        f"Largest difference between two groups of {list_group_names(study.any)[0]}, over all clients' test samples "
        "together, mean over seeds, last round; lower is fairer."
    )
    return Chart("groups", "Gaps between groups", caption, [panel])


@register_plot
def draw_gaps(study: Study) -> Chart | None:
    """The distribution of loss gaps, a line per method. Needs runs of `local_only` or EAGLE, or optima of all clients."""
    found = {
        m: np.concatenate(list(study.gaps(m).values())) for m in study.methods if m != study.alone and study.gaps(m)
    }
    if not found:
        return None
    everything = np.concatenate(list(found.values()))
    low, high = float(np.nanmin(everything)), float(np.nanmax(everything))
    lines = []
    for method, values in found.items():
        x, y, _ = count_in_bins(values[~np.isnan(values)].tolist(), low, high, 15)
        lines.append(Line(method, x, [100 * v for v in y], study.colour(method)))
    rugs = _rugs(study, {m: np.mean(list(study.gaps(m).values()), axis=0) for m in found})
    panel = Panel("", lines, "loss gap", "percent of the clients", wide=True, rugs=rugs)
    caption = f"All clients of all seeds, {study.view.when}, 15 bins. A loss gap: {study.gap_words}."
    return Chart("gaps", "Distribution of loss gaps", caption, [panel])


@register_plot
def draw_optima(study: Study) -> Chart | None:
    """The loss that each client reaches alone, on validation and test data. Needs runs of `local_only`."""
    rows = {split: study.own_optima(split) for split in ("validation", "test")}
    caption = (
        "Loss of every client's own model (local_only, last round, mean over seeds). A wide range: unequal difficulty."
    )
    test = Rug("test", [rows["test"].get(name, float("nan")) for name in study.any.clients])
    return _ranges("optima", "What clients can reach alone", caption, {k: v for k, v in rows.items() if v}, [test])


def _partition(study: Study) -> str:
    """The name of a study's data with the arguments that the user gave or, without any, the hash of the partition."""
    data = study.any.manifest["data"]
    return f"{study.name}, {data.get('arguments') or 'partition ' + str(data['partition'])[:6]}"


def draw_partitions(found: Sequence[Study]) -> Chart | None:
    """The loss that each client reaches alone, a row per study: how unequal are tasks under different partitions?"""
    rows = {_partition(study): study.own_optima("test") for study in found}
    caption = (
        "Test loss of every client's own model (local_only, last round, mean over seeds), for each partition of the "
        "data in this report; settings other than the partition may differ, too. A wide range: unequal difficulty."
    )
    several = {name: values for name, values in rows.items() if values}
    return (
        _ranges("partitions", "What clients can reach alone, by partition", caption, several)
        if len(several) > 1
        else None
    )


def _ranges(
    kind: str, title: str, caption: str, rows: Mapping[str, Mapping[str, float]], rugs: Sequence[Rug] = ()
) -> Chart | None:
    """A chart with a row of points per group of clients, joined from the smallest loss to the largest."""
    marks: list[Line | Points] = []
    for i, named in enumerate(rows.values()):
        shown = dict(named)
        if len(shown) > 2 * MOST_ROWS:
            shown = {name: float(np.quantile(list(named.values()), part)) for part, name in QUARTILES.items()}
        spots, notes = list(shown.values()), [f"{name}: {v:.3f}" for name, v in shown.items()]
        marks.append(Line("range", [min(spots), max(spots)], [float(i)] * 2, GUIDE))
        marks.append(Points("local_only", spots, [float(i)] * len(spots), ALONE, notes))
    caption += f" Of more than {2 * MOST_ROWS} clients the smallest, the quartiles and the largest are shown."
    ticks = {float(i): name for i, name in enumerate(rows)}
    return (
        Chart(kind, title, caption, [Panel("", marks, "loss", y_ticks=ticks, wide=True, rugs=rugs)]) if marks else None
    )
