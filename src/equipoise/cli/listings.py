"""The commands that list what can be named: methods, data sets and models."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from equipoise.cli.options import DataOptions, spread_options, use_data_folder
from equipoise.cli.screens import say_notes, screen


def methods(
    name: Annotated[str | None, typer.Argument(help="a method; leave it out to see all")] = None,
    table: Annotated[bool, typer.Option("--table", help="which part plays which role in each method")] = False,
) -> None:
    """List the methods, or show one: its roles, parameters, defaults and reference."""
    if name is None:
        screen.print(_table_of_roles() if table else _table_of_methods())
        screen.print(
            "`equipoise methods NAME` shows the parameters of one. Combine with +, as in 'eagle + f2dc_modules'."
        )
    else:
        _show_method(name)


def _table_of_roles() -> Table:
    from equipoise.method import ROLES
    from equipoise.methods import METHODS

    title = "Method x role: the parts that are not FedAvg's, and what a method demands of the optimizer"
    shown = Table("method", *ROLES, "training", title=title, title_justify="left", show_lines=True)
    for entry in METHODS.values():
        method = entry.function()
        cells = ["\n".join(type(part).__name__ for part in parts) for parts in method.own_parts.values()]
        shown.add_row(entry.name, *cells, "\n".join(f"{name}={wanted}" for name, wanted in method.training))
    return shown


def _table_of_methods() -> Table:
    from equipoise.methods import METHODS

    shown = Table("method", "what it does", "roles that differ from FedAvg", title="Methods", title_justify="left")
    for entry in METHODS.values():
        changed = [role for role, parts in entry.function().own_parts.items() if parts]
        shown.add_row(entry.name, entry.title, ", ".join(changed) or "-")
    return shown


def _show_method(name: str) -> None:
    from equipoise.method import ROLES
    from equipoise.methods import METHODS

    entry = METHODS.find(name)
    chosen = entry.function()
    screen.print(f"[bold]{entry.name}[/]: {escape(entry.title)}\n{escape(entry.reference)}\n", soft_wrap=True)
    if entry.function.__doc__:
        screen.print(escape(" ".join(entry.function.__doc__.split())) + "\n", soft_wrap=True)
    parameters = Table("parameter", "type", "default", *entry.per_dataset, title="Parameters", title_justify="left")
    for parameter in entry.parameters.values():
        annotation = parameter.annotation
        kind = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        kind = kind.replace("Literal", "")
        special = [escape(repr(v[parameter.name])) if parameter.name in v else "" for v in entry.per_dataset.values()]
        parameters.add_row(parameter.name, escape(kind), escape(repr(parameter.default)), *special)
    if entry.parameters:
        screen.print(parameters)
    roles = Table("role", "parts", title="Roles", title_justify="left")
    for role in ROLES:
        parts = getattr(chosen, role)
        roles.add_row(role, escape(", ".join(map(repr, parts)) if isinstance(parts, tuple) else repr(parts)) or "-")
    screen.print(roles)


@spread_options
def datasets(
    own: DataOptions,
    name: Annotated[str | None, typer.Argument(help="a data set, or your own data; leave it out to see all")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="draw who holds what")] = False,
    out: Annotated[Path, typer.Option(help="folder for the picture")] = Path(),
) -> None:
    """List the data sets, or show one: who holds what, and how it is trained."""
    from equipoise.data import DATASETS, load_federation
    from equipoise.data.catalogue import say_availability
    from equipoise.data.summary import draw_clients, list_facts

    if name is None:
        use_data_folder(own.data_dir)
        table = Table("data set", "what it is", "its files", title="Data sets", title_justify="left")
        for entry in DATASETS.values():
            table.add_row(entry.name, entry.title, say_availability(entry.name))
        screen.print(table)
        screen.print("`equipoise datasets NAME --plot` shows one. Your own: `equipoise run ./my-data`.")
        return
    data = load_federation(own.name_source(name))
    screen.print(draw_clients(data))
    for line in list_facts(data, name):
        screen.print(line, soft_wrap=True)
    say_notes(data.notes)
    if plot:
        from equipoise.data.plots import draw

        screen.print(f"Drawn: {draw(data, out / f'{data.name}.png')}", soft_wrap=True)


def models() -> None:
    """List the models."""
    from equipoise.models import MODELS

    table = Table("model", "what it is", title="Models", title_justify="left")
    for entry in MODELS.values():
        table.add_row(entry.name, entry.title)
    screen.print(table)
