"""The commands that work on stored runs: report, verdict, plot, runs, evaluate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.markup import escape
from rich.table import Table

from equipoise.cli.options import spread_options
from equipoise.cli.screens import errors, say_notes, screen
from equipoise.errors import EquipoiseError
from equipoise.grammar import did_you_mean, fit_to_type

if TYPE_CHECKING:
    from equipoise.study.report.figures import Rules
    from equipoise.study.report.view import View

Folders = Annotated[list[Path], typer.Argument(help="run folders, or folders that hold them")]
Reference = Annotated[str | None, typer.Option(help="the method that the others are compared with (default: fedavg)")]
DAMAGED = 1  # the exit code of `runs --verify` if a folder is damaged
OBJECTED = 1  # the exit code of `verdict` if what --fail-on names was found


@dataclass(frozen=True)
class JudgingOptions:
    """Options that say what methods are judged by."""

    reference: Reference = None
    average_limit: Annotated[
        float, typer.Option(help="the average may fall by less than this, in points", min=0, max=100)
    ] = 1.0
    client_limit: Annotated[
        float,
        typer.Option(help="a client may fall by this much, in points, unless the worst gains as much", min=0, max=100),
    ] = 2.0

    @property
    def rules(self) -> Rules:
        """The rules that these options make."""
        from equipoise.study.report.figures import Rules

        return Rules(self.reference, self.average_limit / 100, self.client_limit / 100)


@dataclass(frozen=True)
class ViewOptions:
    """Options that say over what figures are taken."""

    over: Annotated[str, typer.Option(help="figures over `clients` or over `domains`")] = "clients"
    ddof: Annotated[
        int, typer.Option(help="divisor of standard deviations and variances: the number minus this", min=0, max=1)
    ] = 0
    last: Annotated[int, typer.Option(help="scores are means over so many evaluated rounds at the end", min=1)] = 1

    @property
    def view(self) -> View:
        """The view that these options make."""
        from equipoise.study.report.view import Over, View

        return View(cast("Over", fit_to_type(self.over, Over, "--over")), self.ddof, self.last)


@spread_options
def report(
    runs: Folders,
    judging: JudgingOptions,
    looking: ViewOptions,
    out: Annotated[Path, typer.Option("-o", "--out", help="the page; tables go beside it")] = Path("report.html"),
    diff: Annotated[
        Path | None, typer.Option(help="older runs: show what changed since, instead of the whole report")
    ] = None,
) -> None:
    """Write one page that shows who gained and who paid, and tables for papers beside it."""
    from equipoise.runs.reading import read_all
    from equipoise.study.report.difference import tell_differences, write_differences
    from equipoise.study.report.figures import group_studies
    from equipoise.study.report.page import write

    found, wrong = read_all(runs)
    say_notes(wrong)
    if diff is None:
        files = write(found, out, wrong, judging.rules, looking.view)
    else:
        earlier, unreadable = read_all([diff])
        say_notes(unreadable)
        old, new = (group_studies(those, judging.rules, looking.view) for those in (earlier, found))
        for line in tell_differences(old, new):
            screen.print(escape(line), soft_wrap=True)
        files = write_differences(old, new, out)
    for path in files:
        screen.print(f"Written: {path}", soft_wrap=True)


@spread_options
def verdict(
    runs: Folders,
    judging: JudgingOptions,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help=f"exit with {OBJECTED} on `levelling-down`, `undecided` or `joining-does-not-pay`; may be repeated"
        ),
    ] = None,
) -> None:
    """Print the verdict as JSON, for programs. Exits with 1 on what --fail-on names, and with 2 on a mistake."""
    from equipoise.runs.reading import read_all
    from equipoise.study.report.figures import group_studies
    from equipoise.study.report.summary import Objection, check_answerable, find_objections, summarise

    wanted = [cast("Objection", fit_to_type(word, Objection, "--fail-on")) for word in fail_on or ()]
    found, wrong = read_all(runs)
    say_notes(wrong)
    studies = group_studies(found, judging.rules)
    check_answerable(studies, wanted)
    against = [text for study in studies for text in find_objections(study, wanted)]
    typer.echo(json.dumps({"studies": [summarise(study) for study in studies], "objections": against}, indent=2))
    for text in against:
        errors.print(f"[red]Against:[/] {escape(text)}", soft_wrap=True)
    if against:
        raise typer.Exit(OBJECTED)


@spread_options
def plot(
    kind: Annotated[str, typer.Argument(help="which plot, or `all`")],
    runs: Folders,
    looking: ViewOptions,
    out: Annotated[Path, typer.Option("-o", "--out", help="folder of the pictures")] = Path("plots"),
    reference: Reference = None,
) -> None:
    """Draw the report's plots as PDF and PNG, for papers."""
    from equipoise.runs.reading import read_all
    from equipoise.study.report.figures import Rules, group_studies
    from equipoise.study.report.paper import save_chart
    from equipoise.study.report.plots import PLOTS, draw_partitions

    kinds = (*PLOTS, "partitions")
    if kind not in (*kinds, "all"):
        raise EquipoiseError(
            f"There is no plot `{kind}`.{did_you_mean(kind, kinds)} Known: {', '.join((*kinds, 'all'))}."
        )
    found, wrong = read_all(runs)
    say_notes(wrong)
    groups = group_studies(found, Rules(reference), looking.view)
    charts = {"partitions": draw_partitions(groups)} if kind in ("all", "partitions") else {}
    for number, study in enumerate(groups):
        for name in PLOTS if kind == "all" else {kind} & set(PLOTS):
            charts[name if number == 0 else f"{name}-{number + 1}"] = PLOTS[name](study)
    for stem, chart in charts.items():
        for path in save_chart(chart, out / stem) if chart else ():
            screen.print(f"Drawn: {path}", soft_wrap=True)
    if not any(charts.values()):
        raise EquipoiseError(f"These runs do not hold what `{kind}` needs. docs/report.md says what that is.")


def runs(
    folders: Annotated[list[Path] | None, typer.Argument(help="where to look (default: runs)")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="look at the checksums of all files; exit with 1 if one is damaged")
    ] = False,
) -> None:
    """List the run folders, and how far each run came."""
    from equipoise.runs.reading import read_all

    found, wrong = read_all(folders or [Path("runs")], whole=verify)
    last = ("files",) if verify else ()
    table = Table("run", "data", "method", "seed", "rounds", "status", *last, title="Runs", title_justify="left")
    for run in found:
        facts = run.manifest
        cells = [
            run.place.name,
            facts["data"]["name"],
            run.method,
            str(run.seed),
            f"{run.rounds_done} of {facts['rounds']}",
            "unfinished" if facts["status"] == "running" else facts["status"],
        ]
        if verify:
            cells.append("verified" if run.is_verified else "not verified")
        table.add_row(*map(escape, cells))
    screen.print(table)
    say_notes(wrong)
    if verify:
        unknown = sum(not run.is_verified for run in found)
        without = f" {unknown} cannot be verified: an earlier version wrote no checksums." if unknown else ""
        screen.print(f"{len(found) - unknown} verified, {len(wrong)} cannot be used.{without}", soft_wrap=True)
        if wrong:
            raise typer.Exit(DAMAGED)


def evaluate(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    data: Annotated[str, typer.Argument(help="a data set, or your own data")],
) -> None:
    """Measure a trained model at every client of other data.

    Your own tables are read by the schema of the run: values that it does not name count as other.
    """
    from equipoise.data.catalogue import add_options, is_path, load_federation
    from equipoise.metrics import figures
    from equipoise.runs.loading import load, measure

    trained = load(run)
    schema = run / "schema.json"
    text = add_options(data, {"schema": str(schema)}) if is_path(data) and schema.exists() else data
    federation = load_federation(text)
    say_notes(federation.notes)
    found = measure(trained, federation)
    title = f"{trained.manifest['method']} on {data}"
    table = Table(
        "domain", "client", "samples", trained.task.loss.score, "loss", title=escape(title), title_justify="left"
    )
    for one in found:
        table.add_row(
            escape(one.domain), escape(one.client), str(one.samples), f"{100 * one.score:.1f} %", f"{one.loss:.3f}"
        )
    screen.print(table)
    f = figures([100 * one.score for one in found])
    screen.print(f"AVG {f.avg:.1f}  STD {f.std:.1f} (ddof 0)  MIN {f.min:.1f}")
