"""The consoles that commands print to, and texts that several commands print."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape

STOPPED = 130  # the exit code of a program that Ctrl-C ended

screen = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def say_notes(texts: Iterable[str]) -> None:
    """Print notes that a reader of the results should know, to standard error."""
    for text in texts:
        errors.print(f"[yellow]Note:[/] {escape(text)}", soft_wrap=True)


def say_standing(worst: float, average: float) -> str:
    """The average and the worst client's score, in words."""
    return f"average {100 * average:.1f} %, worst client {100 * worst:.1f} %"


def say_seconds(value: float) -> str:
    """A duration with its unit: seconds, or minutes where it is long."""
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"
