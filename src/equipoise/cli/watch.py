"""The command `equipoise watch`: a live page of what is running."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from equipoise.cli.screens import say_notes, screen


def watch(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="run folders, or folders that hold them (default: runs)")
    ] = None,
    host: Annotated[
        str, typer.Option(help="address to listen at; another one than this shows it to others")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port; 0 takes a free one", min=0, max=65535)] = 8765,
) -> None:
    """Serve a page that shows how runs stand while they go on: who is there, who is silent, and the verdict so far."""
    from equipoise.study.watch.server import Server, Watcher, is_loopback

    with Server(Watcher(runs or [Path("runs")]), host, port) as server:
        if not is_loopback(host):
            say_notes([f"Whoever can reach {host} can read the names and scores of all clients: there is no password."])
        screen.print(f"Look at {escape(server.url)} Ctrl-C ends it.", soft_wrap=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            screen.print("Ended: the page is no longer served.")
