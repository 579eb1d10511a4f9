"""The commands `equipoise deploy ...`, which turn a method into an app that Flower runs at real sites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from equipoise.cli.screens import screen
from equipoise.errors import EquipoiseError
from equipoise.grammar import split_list

app = typer.Typer(help="Take a method to real sites, with Flower.", no_args_is_help=True)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="a new folder for the app", metavar="DIR")],
    data: Annotated[
        str,
        typer.Option(
            help="a data set that is dealt out to the sites, for a trial; or a file or folder like the sites' own"
        ),
    ] = "",
    method: Annotated[str, typer.Option(help="a method, for example 'eagle + fedheal(tau=0.3)'")] = "fedavg",
    sites: Annotated[
        int | None, typer.Option(help="how many sites there are [default: the data set's clients, or 3]")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="federated rounds [default: the data's]")] = None,
    seed: Annotated[int, typer.Option(help="seed of everything random")] = 0,
    model: Annotated[str | None, typer.Option(help="a model [default: the data's]")] = None,
    lr: Annotated[float | None, typer.Option(help="local learning rate [default: the data's]")] = None,
    epochs: Annotated[int | None, typer.Option(help="local epochs per round [default: the data's]")] = None,
    schema: Annotated[Path | None, typer.Option(help="schema.json that the sites agreed on")] = None,
    label: Annotated[str | None, typer.Option(help="label column [default: label]")] = None,
    ignore: Annotated[str | None, typer.Option(help="columns to leave out, separated by commas")] = None,
    round_timeout: Annotated[float, typer.Option(help="seconds that a round waits for answers")] = 600.0,
    min_sites: Annotated[
        int | None, typer.Option(help="a round with fewer answers does not count [default: half]")
    ] = None,
    too_few: Annotated[str, typer.Option(help="what happens to such a round: repeat or skip")] = "repeat",
    guard: Annotated[
        bool, typer.Option(help="limit what a site can gain by reporting a false loss; simulations have no such limit")
    ] = True,
    site_state: Annotated[
        str, typer.Option(help="folder at each site for what it keeps between rounds; '' keeps it in memory alone")
    ] = "~/.equipoise/sites",
    protection: Annotated[
        str, typer.Option(help="refuse methods that do not work under it: secure-aggregation or differential-privacy")
    ] = "none",
) -> None:
    """Write a small Flower app. It runs in Flower's simulation engine and, unchanged, on a SuperLink with SuperNodes."""
    from equipoise.data.catalogue import is_path, load_federation
    from equipoise.data.own import own
    from equipoise.data.tables import Schema
    from equipoise.flower.deploy import write_app
    from equipoise.flower.plan import Plan

    if not data and schema is None:
        raise EquipoiseError(
            "Say what is learnt from: --data scanners, --data a-file-like-the-sites.csv, or --schema schema.json."
        )
    example = bool(data) and is_path(data)  # an example of the sites' own data: the app gets only its schema
    if sites is None:
        sites = len(load_federation(data)) if data and not example else 3
    given = {
        "method": method, "sites": sites, "seed": seed, "rounds": rounds, "model": model, "lr": lr, "epochs": epochs,
        "round_timeout": round_timeout, "min_sites": min_sites, "too_few": too_few, "guard": guard, "protection": protection,
        "site_state": site_state, "data": "" if example else data,
    }  # fmt: skip
    plan = Plan.from_config({name: value for name, value in given.items() if value is not None})
    agreed = None
    if example:
        file = None if schema is None else str(schema)
        agreed = own(data, site="example", label=label, ignore=tuple(split_list(ignore or "")), schema=file).schema
    elif schema is not None:
        agreed = Schema.read(schema).as_json()
    written = write_app(folder, plan, agreed)
    for path in written:
        screen.print(escape(str(path)), soft_wrap=True)
    where = escape(str(folder))
    screen.print(f"Try it on this machine: flwr run {where} . With real sites: docs/flower.md.", soft_wrap=True)
