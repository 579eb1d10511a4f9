"""The command `equipoise`: its sub-commands, and how it reports a user's mistake."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer
from rich.markup import escape

from equipoise import __version__
from equipoise.cli import deploy, doctor, listings, reproduce, stored, train, tune, watch
from equipoise.cli.options import Plugins, import_plugins, take_plugins
from equipoise.cli.screens import errors, screen
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
    tune.tune,
    reproduce.reproduce,
    listings.methods,
    listings.datasets,
    listings.models,
    stored.report,
    stored.verdict,
    stored.plot,
    stored.runs,
    stored.evaluate,
    watch.watch,
    doctor.doctor,
    deploy.schema,
):
    app.command()(command)
app.add_typer(deploy.app, name="deploy")


def _offer_plugins(commands: typer.Typer) -> None:
    """Let every command, also those of groups, take --plugin behind its name."""
    for command in commands.registered_commands:
        assert command.callback is not None
        command.callback = take_plugins(command.callback)
    for group in commands.registered_groups:
        assert group.typer_instance is not None
        _offer_plugins(group.typer_instance)


_offer_plugins(app)


def _say_version(wanted: bool) -> None:
    if wanted:
        screen.print(f"equipoise {__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    plugin: Plugins = None,
    version: Annotated[
        bool, typer.Option("--version", help="say which version this is", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before the sub-command."""
    import_plugins(plugin)


def main() -> None:
    """Run the command line. A user's mistake is shown as one line, not as a stack trace, and the exit code is 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler that ends the job has the effect of Ctrl-C
    try:
        app()
    except EquipoiseError as error:
        errors.print(f"[red]Error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
