"""Runs and comparisons as tables on the screen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from equipoise.cli.screens import screen
from equipoise.engine.result import Run
from equipoise.metrics import PLUS_MINUS, figures
from equipoise.study.comparison import Comparison


def draw_run(result: Run) -> Table:
    """A table of what every domain and client got from a run."""
    accuracy, loss, area = (result.values(metric) for metric in ("accuracy", "loss", "auc"))
    table = Table(
        "domain", "client", "samples", "accuracy", "loss", *(["AUC"] if area else []), title_justify="left",
        title=f"{escape(str(result.method))} on {escape(result.federation.name)}, {result.scored} model, test data, "
        f"round {result.rounds[-1].round}",
    )  # fmt: skip
    for domain in result.federation.domains:
        members = [c for c in result.federation.clients if (c.domain or c.name) == domain]
        for client in members:
            shown = (
                (f"{100 * accuracy[client.name]:.1f} %", f"{loss[client.name]:.3f}")
                if client.name in accuracy
                else ("-", "-")
            )
            curve = [f"{area[client.name]:.3f}" if client.name in area else "-"] if area else []
            table.add_row(escape(domain), escape(client.name), str(len(client.train)), *shown, *curve)
    table.add_section()
    shared = any(client.domain for client in result.federation.clients)
    for what, values in (("clients", accuracy), *([("domains", result.by_domain())] if shared else [])):
        f = figures([100 * v for v in values.values()])
        table.add_row(
            f"[bold]over {what}[/]", "", "", f"[bold]AVG {f.avg:.1f}  STD {f.std:.1f} (ddof 0)  MIN {f.min:.1f}[/]", "",
        )  # fmt: skip
    for metric in dict.fromkeys(s.metric for s in result.scores if s.metric.startswith("accuracy of the ")):
        f = figures([100 * v for v in result.by_domain(metric).values()])
        model = metric.removeprefix("accuracy of the ")
        table.add_row(
            f"{model}, over domains", "", "", f"AVG {f.avg:.1f}  STD {f.std:.1f} (ddof 0)  MIN {f.min:.1f}", ""
        )
    return table


def draw_comparison(table: Comparison, name: str, over: str = "domains") -> RenderableType:
    """A comparison as the widest table that fits the terminal. Its figures are over domains, or over clients.

    If it is too wide with all domains and spreads, it is shown without the domains' spreads, then without the domains.
    """
    plain = tuple(column for column in table.columns if column in ("AVG", "STD", "MIN"))
    for columns, spreads in ((table.columns, table.columns), (table.columns, plain), (plain, plain)):
        shown = _draw_columns(table, name, over, columns, spreads)
        if Measurement.get(screen, screen.options.update(width=10_000), shown).maximum <= screen.width:
            return shown
    return shown


def _draw_columns(table: Comparison, name: str, over: str, columns: Sequence[str], spreads: Sequence[str]) -> Table:
    half = f"; mean over {table.seeds} seeds, ± {PLUS_MINUS}" if table.seeds > 1 else ""
    shown = Table(
        title_justify="left",
        title=f"Test accuracy on {escape(name)} in percent, last round; AVG, STD (ddof 0) and MIN over {over}{half}",
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


def suggest_commands(dataset: str, method: str) -> list[str]:
    """Commands that a user may want to try next, each with what it shows."""
    dataset = shlex.quote(dataset)
    return [
        f'equipoise run {dataset} --method "{method}"     one method, client by client',
        f'equipoise compare {dataset} --methods "fedavg,local_only,centralised,{method}"     what joining is worth',
        f"equipoise methods {method.split('(')[0].split(' ')[0]}     its parameters, and where they come from",
    ]
