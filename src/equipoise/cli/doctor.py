"""The command `doctor`, which checks whether everything that is needed is in place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from equipoise.cli.options import DataDir, Out, use_data_folder
from equipoise.cli.screens import screen


def doctor(
    data_dir: DataDir = None,
    port: Annotated[list[int] | None, typer.Option(help="a port that a server is to use; may be repeated")] = None,
    certificate: Annotated[list[Path] | None, typer.Option(help="a certificate in PEM form; may be repeated")] = None,
    key: Annotated[Path | None, typer.Option(help="the certificate's private key, to check that both fit")] = None,
    ca: Annotated[Path | None, typer.Option(help="the certificate of the authority that the sites trust")] = None,
    host: Annotated[str | None, typer.Option(help="the name or address by which sites know the server")] = None,
    out: Out = Path("runs"),
) -> None:
    """Check the installation, the machine, data, disk space, ports and certificates, and say what to do."""
    from equipoise.cli.examine import examine

    use_data_folder(data_dir)
    found = examine(out, port or (), certificate or (), key, ca, host)
    marks = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "bad": "[red]bad[/]"}
    table = Table("", "what", "found", "what to do", title="Doctor", title_justify="left")
    for one in found:
        table.add_row(marks[one.state], escape(one.what), escape(one.found), escape(one.advice))
    screen.print(table)
    bad = sum(one.state == "bad" for one in found)
    screen.print("Everything that is needed is in place." if not bad else f"{bad} to mend.")
    if bad:
        raise typer.Exit(1)
