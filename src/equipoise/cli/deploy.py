"""The commands `equipoise deploy ...`, which turn a method into an app that Flower runs at real sites, and `equipoise
schema`, by which a site tells what its data look like."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from equipoise.cli.options import TrainingOptions, spread_options
from equipoise.cli.screens import say_notes, screen
from equipoise.errors import EquipoiseError
from equipoise.grammar import Mistakes, join_words, split_list

app = typer.Typer(help="Take a method to real sites, with Flower.", no_args_is_help=True)


@app.command()
@spread_options
def init(
    folder: Annotated[Path, typer.Argument(help="a new folder for the app", metavar="DIR")],
    *,
    data: Annotated[
        str,
        typer.Option(
            help="a data set that is dealt out to the sites, for a trial; or a file or folder like the sites' own"
        ),
    ] = "",
    method: Annotated[str, typer.Option(help="a method, for example 'eagle + fedheal(tau=0.3)'")] = "fedavg",
    sites: Annotated[
        int | None, typer.Option(help="how many sites there are (default: the data set's clients, or 3)")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="federated rounds (default: the data's)")] = None,
    participation: Annotated[
        float | None, typer.Option(help="share of the sites in each round (default: the data's)")
    ] = None,
    hold_out: Annotated[
        str, typer.Option(help="sites that never train and are only scored: how many, or names of sites or domains")
    ] = "",
    seed: Annotated[int, typer.Option(help="seed of everything random")] = 0,
    model: Annotated[
        str | None,
        typer.Option(help="a model, or your own, whose file the app carries: mynet.py:Net (default: the data's)"),
    ] = None,
    loss: Annotated[
        str, typer.Option(help="what sites minimise, for example 'huber(delta=1)' (default: what the data ask for)")
    ] = "",
    metrics: Annotated[
        str, typer.Option(help="record these, too, separated by commas: precision, recall, f1, auc, pr_auc")
    ] = "",
    training: TrainingOptions,
    schema: Annotated[Path | None, typer.Option(help="schema.json that the sites agreed on")] = None,
    label: Annotated[str | None, typer.Option(help="label column of --data (default: label)")] = None,
    target: Annotated[
        str | None, typer.Option(help="columns of --data to predict instead of classes, separated by commas")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="column of --data that puts rows into groups to be compared")
    ] = None,
    ignore: Annotated[str | None, typer.Option(help="columns of --data to leave out, separated by commas")] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="let sites leave out rows with a missing value")
    ] = False,
    round_timeout: Annotated[float, typer.Option(help="seconds that a round waits for answers")] = 600.0,
    min_sites: Annotated[
        int | None, typer.Option(help="a round with fewer answers does not count (default: half)")
    ] = None,
    too_few: Annotated[str, typer.Option(help="what happens to such a round: repeat or skip")] = "repeat",
    guard: Annotated[
        bool, typer.Option(help="limit what one site can gain by what it sends; simulations have no such limit")
    ] = True,
    site_state: Annotated[
        str, typer.Option(help="folder at each site for what it keeps between rounds; '' keeps it in memory alone")
    ] = "~/.equipoise/sites",
    protection: Annotated[
        str, typer.Option(help="refuse methods that do not work under it: secure-aggregation or differential-privacy")
    ] = "none",
    address: Annotated[
        str, typer.Option(help="host:port by which sites reach the server; one of this machine: all sites are on it")
    ] = "127.0.0.1:8000",
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls", help="encrypted connections and keys for sites (default: unless on one machine)"
        ),
    ] = None,
) -> None:
    """Write a small Flower app, and say by which commands it is run.

    It runs in Flower's simulation engine and, unchanged, on a SuperLink with SuperNodes.
    """
    from equipoise.data.catalogue import is_path, load_federation
    from equipoise.data.own import own
    from equipoise.data.tables import Schema
    from equipoise.flower.deploy import write_app
    from equipoise.flower.plan import Plan
    from equipoise.flower.steps import list_steps

    if not data and schema is None:
        raise EquipoiseError(
            "Say what is learnt from: --data scanners, --data a-file-like-the-sites.csv, or --schema schema.json."
        )
    example = bool(data) and is_path(data)  # an example of the sites' own data: the app gets only its schema
    columns = {"label": label, "target": target, "group": group, "ignore": ignore}
    useless = [f"--{name}" for name, value in columns.items() if value and not example]
    if useless:
        raise EquipoiseError(
            f"Columns are named for an example of the sites' tables (--data site.csv); a schema, or a data set of the library, "
            f"has its own. Leave out: {join_words(useless)}."
        )
    if drop_missing and data and not example:
        raise EquipoiseError(
            f"--drop-missing is for tables of the sites' own, and `{data}` is a data set of the library."
        )
    if sites is None:
        sites = len(load_federation(data)) if data and not example else 3
    given = {
        "method": method, "sites": sites, "participation": participation, "hold_out": hold_out or None,
        "seed": seed, "rounds": rounds, "model": model, "loss": loss, "metrics": metrics, "drop_missing": drop_missing,
        "round_timeout": round_timeout, "min_sites": min_sites, "too_few": too_few, "guard": guard, "protection": protection,
        "site_state": site_state, "data": "" if example else data,
    }  # fmt: skip
    mistakes = Mistakes()
    changes = training.check_changes(mistakes)
    mistakes.refuse()
    trained = {name: "full" if name == "batch" and value is None else value for name, value in changes.items()}
    plan = Plan.from_config({name: value for name, value in (given | trained).items() if value is not None})
    agreed = None
    if example:
        agreed = own(
            data, site="example", label=label, target=tuple(split_list(target or "")), group=group,
            ignore=tuple(split_list(ignore or "")), schema=None if schema is None else str(schema), drop_missing=drop_missing,
        ).schema  # fmt: skip
    elif schema is not None:
        agreed = Schema.read(schema).as_json()
    commands = list_steps(plan, folder, address, tls)
    for path in write_app(folder, plan, agreed):
        _say(str(path))
    if example:
        _say("\nDo all sites' data fit federated/schema.json? `equipoise schema` at each site, then `equipoise deploy")
        _say("merge-schemas`, make one that does: give it to --schema.")
    _say("\nIn every terminal first, or Flower reports its use to its makers:")
    _say("   export FLWR_TELEMETRY_ENABLED=0")
    for number, step in enumerate(commands, 1):
        _say(f"{number}. {step.what}:")
        for line in step.lines:
            _say(f"   {line}")
    _say("docs/flower.md explains each step, and what to do when a site fails.")


@app.command()
def merge_schemas(
    files: Annotated[list[Path], typer.Argument(help="what the sites wrote with `equipoise schema`")],
    out: Annotated[Path, typer.Option("-o", "--out", help="the schema that all sites then use")] = Path("schema.json"),
    ignore: Annotated[str | None, typer.Option(help="columns to leave out, separated by commas")] = None,
    group: Annotated[str, typer.Option(help="text column that puts rows into groups to be compared")] = "",
) -> None:
    """Join the schemas of all sites to one, or say everything in which they contradict each other."""
    from equipoise.data.site_schemas import merge_files

    schema, notes = merge_files(files, split_list(ignore or ""), group)
    _write(out, schema.as_json())
    say_notes(notes)
    columns = len(schema.columns)
    _say(f"Written: {out}: {columns} columns, {schema.width} features, {len(schema.classes)} classes.")
    _say(f"Next: equipoise deploy init DIR --schema {shlex.quote(str(out))} --sites {len(files)}")


def schema(
    data: Annotated[str, typer.Argument(help="a site's own table or folder", metavar="FILE")],
    out: Annotated[Path, typer.Option("-o", "--out", help="the file for the server's administrator")] = Path(
        "site.json"
    ),
    label: Annotated[str, typer.Option(help="label column")] = "label",
    ignore: Annotated[str | None, typer.Option(help="columns to leave out, separated by commas")] = None,
    limit: Annotated[
        int, typer.Option(help="values of fewer rows are not named; counts are rounded down to multiples of it")
    ] = 5,
) -> None:
    """Describe a site's data for the server of a federation: columns, kinds and levels, but no rows and no numbers."""
    from equipoise.data.own import describe_own

    found, notes = describe_own(data, label, split_list(ignore or ""), limit)
    _write(out, found.as_json())
    table = Table("column", "kind", "values that are named", title="What leaves this site", title_justify="left")
    table.add_row(escape(found.label), "label", escape(join_words(list(found.classes), 12)))
    for name, column in found.columns.items():
        table.add_row(escape(name), column.kind, escape(join_words(list(column.levels), 12)))
    screen.print(table)
    say_notes(notes)
    _say(f"Written: {out}. Read it before you pass it on.")


def _write(path: Path, content: object) -> None:
    try:
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise EquipoiseError(f"Cannot write `{path}`: {error.strerror}. Name another file with -o.") from None


def _say(text: str) -> None:
    """Print a line as it is, so that it can be copied."""
    screen.print(text, soft_wrap=True, markup=False, highlight=False)
