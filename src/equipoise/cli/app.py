"""The command `equipoise`: its sub-commands, and how it reports a user's mistake."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from equipoise.cli import deploy, doctor, listings, stored, train
from equipoise.cli.screens import errors
from equipoise.errors import EquipoiseError

app = typer.Typer(
    name="equipoise",
    help="Fair federated learning: one shared model across data owners, and no owner left behind.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (
    train.run,
    train.compare,
    listings.methods,
    listings.datasets,
    listings.models,
    stored.report,
    stored.verdict,
    stored.plot,
    stored.runs,
    stored.evaluate,
    doctor.doctor,
):
    app.command()(command)
app.add_typer(deploy.app, name="deploy")


@app.callback()
def everywhere(
    plugin: Annotated[
        list[Path] | None, typer.Option(help="a Python file with methods of your own, imported first; may be repeated")
    ] = None,
) -> None:
    """Options that stand before the sub-command."""
    if plugin:
        import equipoise.methods  # noqa: F401 - registered first, so that a plugin cannot take their names
        from equipoise.method.plugins import load_plugins

        load_plugins(plugin)


def main() -> None:
    """Run the command line. A user's mistake is shown as one line, not as a stack trace, and the exit code is 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler that ends the job has the effect of Ctrl-C
    try:
        app()
    except EquipoiseError as error:
        errors.print(f"[red]Error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
