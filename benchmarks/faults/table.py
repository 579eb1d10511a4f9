"""The Markdown table with a row per fault, and messages that say how far the benchmark is."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    fault: str
    times: int
    figure: str


def write_table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| fault | injected | figure reached |", "|---|---:|---|"]
    return "\n".join([*lines, *(f"| {row.fault} | {row.times} | {row.figure} |" for row in rows)])


def format_spread(values: Sequence[float], digits: int = 3) -> str:
    """The mean, and the range in brackets where it shows in these digits."""
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f}" + (f" ({low} to {high})" if low != high else "")


def say(text: str) -> None:
    """Tell whoever waits how far the benchmark is; the table alone goes to the standard output."""
    print(text, file=sys.stderr, flush=True)
