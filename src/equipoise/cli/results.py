"""Runs and comparisons as tables on the screen."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from equipoise.cli.screens import screen
from equipoise.data.catalogue import list_words
from equipoise.groups import RATES, bound_gap, explain_absence, find_worst, pool
from equipoise.metrics import PLUS_MINUS, UNSEEN, figures
from equipoise.runs.reading import Recorded
from equipoise.schedules import CONSTANT
from equipoise.study.comparison import Comparison
from equipoise.study.report.converged import judge_runs
from equipoise.study.report.figures import Study, group_studies
from equipoise.study.report.groups import build_gap_table, list_gaps, list_group_names, read_tallies, say_positive
from equipoise.study.report.view import average_by_domain

if TYPE_CHECKING:
    from equipoise.study.jobs import Job

# Metrics that the table of a run shows beside score and loss where they were recorded, with the heads of their columns.
FURTHER = {
    "auc": "AUC", "f1": "F1", "precision": "precision", "recall": "recall", "pr_auc": "PR AUC", "mae": "error", "r2": "R²",
}  # fmt: skip


def draw_run(run: Recorded) -> list[RenderableType]:
    """A table of what every domain and client got from a stored run, and one of the figures over them."""
    data = run.manifest["data"]
    rounds = run.curve()[0]
    more = [metric for metric in FURTHER if metric in run.metrics]
    last = {metric: _find_last(run, metric) for metric in (run.score, "loss", *more)}
    unseen = {metric: _find_last(run, metric, UNSEEN) for metric in last} if run.unseen else {}
    has_domains = any(client["domain"] for client in data["clients"])
    title = f"{run.method} on {data['name']}, {run.manifest['evaluated']['model']} model, test data, "
    title += f"round {rounds[-1] if len(rounds) else run.rounds_done}"
    table = Table(title=escape(title), title_justify="left")
    for head in (
        *(["domain"] if has_domains else []),
        "client",
        "samples",
        run.score,
        "loss",
        *(FURTHER[m] for m in more),
    ):
        table.add_column(head, overflow="fold")
    samples = {client["name"]: client["train"] for client in data["clients"]}
    rows = [(domain, name) for domain in dict.fromkeys(run.domains)
            for name, its in zip(run.clients, run.domains, strict=True) if its == domain]  # fmt: skip
    for domain, name in rows:
        first = [escape(domain)] if has_domains else []
        table.add_row(*first, escape(name), str(samples[name]), *_list_scores(run, last, name))
    table.add_section()
    for domain, name in zip(run.unseen_domains, run.unseen, strict=True):
        first = [escape(domain)] if has_domains else []
        table.add_row(*first, f"{escape(name)} (unseen)", "-", *_list_scores(run, unseen, name))
    over = {"over clients": list(last[run.score].values())}
    if has_domains:
        scores = np.array([last[run.score].get(client, np.nan) for client in run.clients])
        over["over domains"] = list(average_by_domain(scores, run.domains).values())
    if run.unseen:
        over["over unseen"] = list(unseen[run.score].values())
    for metric in run.metrics:
        if metric.startswith(f"{run.score} of the "):
            name = f"{metric.removeprefix(f'{run.score} of the ')}, over domains"
            over[name] = list(average_by_domain(run.curve(metric)[1][-1], run.domains).values())
    return [table, _draw_figures(over)]


def _draw_figures(over: Mapping[str, Sequence[float]]) -> Table:
    """A row of figures, in percent, for each of several lists of scores."""
    table = Table("", "AVG", "STD (ddof 0)", "MIN")
    for name, values in over.items():
        found = figures([100 * value for value in values])
        table.add_row(escape(name), *(f"[bold]{value:.1f}[/]" for value in (found.avg, found.std, found.min)))
    return table


def show_run(run: Recorded) -> list[RenderableType]:
    """All that is told of one stored run: who got what, groups of samples, and whether it has converged."""
    studies = group_studies([run])
    told = [f"Convergence: {judge_runs(study, method).together}." for study in studies for method in study.methods]
    return [*draw_run(run), *draw_groups(run), *map(escape, told)]


def draw_groups(run: Recorded) -> list[RenderableType]:
    """A table of what every group of samples got from a stored run, and a line per gap between them; empty without
    groups."""
    column, names = list_group_names(run)
    tallies = read_tallies(run)
    if not names or not tallies:
        return []
    whole = pool(tallies.values())
    rates = RATES if run.manifest["data"].get("target", "classes") == "classes" else ("accuracy",)
    positive = f"; {say_positive(run)}" if say_positive(run) else ""
    table = Table(
        escape(column), "samples", *(run.score if rate == "accuracy" else rate for rate in rates), "loss",
        title=escape(f"Groups of {column}, over all clients{positive}"), title_justify="left",
    )  # fmt: skip
    for z, name in enumerate(names):
        shares = (_share(float(whole.rate(rate)[z]), " %") for rate in rates)
        loss = float(whole.mean_losses[z])
        table.add_row(escape(name), str(int(whole.sizes[z])), *shares, "-" if np.isnan(loss) else f"{loss:.3f}")
    lines = []
    for gap in list_gaps(run):
        absence = explain_absence(whole, gap)
        if absence:
            lines.append(f"Gap in {gap.replace('_', ' ')}: not shown, because {absence}")
            continue
        found, worst = bound_gap(list(tallies.values()), gap), find_worst(tallies, gap)
        lines.append(
            f"Gap in {gap.replace('_', ' ')}: {_share(found.mean)} points ({_share(found.low)} to {_share(found.high)})"
        )
        if worst.client:
            lines[-1] += f"; worst client {worst.client} {_share(worst.gap)}, by chance {_share(worst.expected)}"
    return [table, *(escape(f"{line}.") for line in lines)]


def _share(value: float, unit: str = "") -> str:
    return "-" if np.isnan(value) else f"{100 * value:.1f}{unit}"


def _find_last(run: Recorded, metric: str, split: str = "test") -> dict[str, float]:
    """The last value of a metric for each client that has one."""
    values = run.curve(metric, split)[1]
    found = values[-1].tolist() if len(values) else []
    names = run.unseen if split == UNSEEN else run.clients
    return {name: value for name, value in zip(names, found, strict=False) if not np.isnan(value)}


def _list_scores(run: Recorded, last: Mapping[str, Mapping[str, float]], name: str) -> list[str]:
    """The cells of one client's last values: score, loss, and the further metrics that were recorded."""
    cells = [_shown(last[run.score].get(name), 100, ".1f", " %"), _shown(last["loss"].get(name), 1, ".3f")]
    return cells + [_show_further(values.get(name)) for metric, values in last.items() if metric in FURTHER]


def _shown(value: float | None, factor: float, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{factor * value:{form}}{unit}"


def _show_further(value: float | None) -> str:
    """A metric with three digits behind the point, or without any where it is large."""
    return _shown(value, 1, ",.0f" if value is not None and abs(value) >= 1000 else ".3f")


def draw_comparison(table: Comparison, name: str, over: str = "domains", score: str = "accuracy") -> RenderableType:
    """A comparison as the widest table that fits the terminal. Its figures are over domains, or over clients.

    If it is too wide with all domains and spreads, it is shown without the domains' spreads, then without the domains.
    If it is too wide even so, the names of methods are broken: a figure is never cut off.
    """
    plain = tuple(column for column in table.columns if column in ("AVG", "STD", "MIN"))
    for columns, spreads in ((table.columns, table.columns), (table.columns, plain), (plain, plain)):
        shown = _draw_columns(table, name, over, score, columns, spreads)
        if _fits(shown):
            return shown
    return _break_methods(shown)


def _fits(table: Table) -> bool:
    """Whether the terminal is wide enough for a table."""
    return Measurement.get(screen, screen.options.update(width=10_000), table).maximum <= screen.width


def _break_methods(table: Table) -> Table:
    """The table with the names in its first column broken into lines, where that makes it fit."""
    table.columns[0].no_wrap = False
    table.columns[0].overflow = "fold"
    return table


def draw_gaps(study: Study) -> list[RenderableType]:
    """A table of the gaps between groups of samples, a row per method; empty without groups.

    If it is too wide for the terminal, it is shown without the worst clients, then with the gaps alone. If it is too wide
    even so, the names of methods are broken: a figure is never cut off.
    """
    column, names = list_group_names(study.any)
    if not names:
        return []
    head, rows = build_gap_table(study)
    few = [name for name in head if not name.startswith("worst client")]
    fewest = [name for name in few if name not in ("gap in loss", "worst group")]
    for columns in (head, few, fewest):
        shown = Table(
            title_justify="left",
            title=escape(
                f"Gaps between groups of {column} ({', '.join(names)}) in points, over all clients' test samples"
            ),
        )
        for name in columns:
            shown.add_column(escape(name.replace(" ", "\n")), no_wrap=True)
        for row in rows:
            shown.add_row(*(escape(cell) for name, cell in zip(head, row, strict=True) if name in columns))
        if _fits(shown):
            return [shown]
    return [_break_methods(shown)]


def _draw_columns(
    table: Comparison, name: str, over: str, score: str, columns: Sequence[str], spreads: Sequence[str]
) -> Table:
    half = f"; mean over {table.seeds} seeds, ± {PLUS_MINUS}" if table.seeds > 1 else ""
    shown = Table(
        title_justify="left",
        title=f"Test {score} on {escape(name)} in percent, last round; AVG, STD (ddof 0) and MIN over {over}{half}",
    )
    shown.add_column("method", no_wrap=True)
    for column in columns:
        shown.add_column(escape(column), justify="right", no_wrap=True)
    best = {column: table.best(column) for column in columns}
    for method, row in table.rows.items():
        cells = [str(row[c]) if c in spreads else f"{row[c].mean:.1f}" for c in columns]
        shown.add_row(
            escape(method),
            *(f"[bold]{cell}[/]" if method in best[c] else cell for c, cell in zip(columns, cells, strict=True)),
        )
    return shown


def suggest_commands(job: Job, method: str) -> list[str]:
    """Commands that a user may want to try next, each with what it shows. They train as the job did."""
    held_out = job.hold_out if isinstance(job.hold_out, (int, str)) else ",".join(job.hold_out)
    schedule = job.training.schedule if job.training and job.training.schedule != CONSTANT else ""
    kept = {"loss": job.loss, "hold-out": held_out, "schedule": schedule}
    dataset = shlex.join(list_words(job.dataset))
    dataset += "".join(f" --{name} {shlex.quote(str(value))}" for name, value in kept.items() if value)
    return [
        f'equipoise run {dataset} --method "{method}"     one method, client by client',
        f'equipoise compare {dataset} --methods "fedavg,local_only,centralised,{method}"     what joining is worth',
        f"equipoise methods {method.split('(')[0].split(' ')[0]}     its parameters, and where they come from",
    ]
