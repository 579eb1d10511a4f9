"""Where a command prints, and what it has in common with the others in what it prints."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape

screen = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def say_notes(texts: Iterable[str]) -> None:
    """What a reader of the results should know."""
    for text in texts:
        errors.print(f"[yellow]Note:[/] {escape(text)}", soft_wrap=True)


def say_standing(worst: float, average: float) -> str:
    return f"average {100 * average:.1f} %, worst client {100 * worst:.1f} %"


def say_seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"
