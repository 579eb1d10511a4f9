"""Stored results as text: a table with ours beside the published, the claims, and all that a reader must know.

A stored result is what `result.as_json` gives. Pages are made from it and from the paper's files alone, so that they can be
made again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from equipoise.metrics import PLUS_MINUS
from equipoise.study.reproduce.entries import Entry, Row
from equipoise.study.reproduce.figures import FIGURES
from equipoise.study.reproduce.verdicts import describe_interval

Stored = Mapping[str, Any]  # what `result.as_json` gives
MARKS = "abcdefghijklmnopqrstuvwxyz"  # of footnotes


@dataclass(frozen=True)
class Table:
    """A table of ours and published values, before it is drawn."""

    head: tuple[str, ...]
    lines: tuple[tuple[str, tuple[tuple[str, str], ...], str], ...]  # row, (ours, published) by column, its end
    footnotes: tuple[str, ...]


def build_table(entry: Entry, stored: Stored) -> Table:
    """Put our values beside the published ones. Errata are footnotes."""
    notes: dict[str, str] = {}
    lines = []
    for row in entry.rows:
        cells = []
        for column in entry.columns:
            by_seed = {
                int(seed): value for seed, value in stored["cells"].get(row.name, {}).get(column.name, {}).items()
            }
            ours = describe_interval(by_seed, FIGURES[column.figure].digits)
            cells.append((ours, _say_published(entry, row, column.name, notes)))
        ends = [stored["flat"].get(row.name, {}).get("text", ""), stored["missing"].get(row.name, "")]
        lines.append((_name_row(row), tuple(cells), "; ".join(text for text in ends if text)))
    whole = [erratum.text for erratum in entry.errata if not erratum.row]
    return Table(
        ("", *(column.name for column in entry.columns), "runs at the end"),
        tuple(lines),
        (*(f"{mark}: {text}" for text, mark in notes.items()), *whole),
    )


def _name_row(row: Row) -> str:
    return f"{row.name} (ours)" if row.ours else row.name


def _say_published(entry: Entry, row: Row, column: str, notes: dict[str, str]) -> str:
    """The published value, with its standard deviation and the mark of an erratum where it has them."""
    value = row.published.get(column)
    erratum = entry.find_erratum(row.name, column)
    told = "" if value is None else f"{value:g}" if column.endswith("_gain") else f"{value:.{_digits(entry, column)}f}"
    if f"{column}_sd" in row.published:
        told += f" (sd {row.published[f'{column}_sd']:.{_digits(entry, column)}f})"
    if erratum is None or (value is None and not erratum.column):
        return told
    text = (
        erratum.text
        if erratum.instead is None
        else f"{erratum.text} (by the other printed numbers: {erratum.instead:g})"
    )
    where = f"{erratum.row}{f', {erratum.column}' if erratum.column else ''}: {text}"
    mark = notes.setdefault(where, MARKS[len(notes) % len(MARKS)])
    return f"{told} [{mark}]" if told else f"lost [{mark}]"


def _digits(entry: Entry, column: str) -> int:
    return FIGURES[entry.find_column(column).figure].digits


# --------------------------------------------------------------------------- what stands around the table
def tell_claims(stored: Stored) -> list[str]:
    """A line per claim and per order: what became of it."""
    lines = [f"{claim['state']}: {claim['text']} ({claim['why']})" for claim in stored["claims"]]
    return lines + [
        f"{order['state']}: the published order by {order['column']} ({order['text']})" for order in stored["orders"]
    ]


def tell_facts(entry: Entry, stored: Stored) -> list[str]:
    """What a reader of the numbers must know: the preset, the data, how values were measured, what it cost."""
    lines = [stored["label"], stored["absolute"], *(f"Settings: {text}." for text in stored["settings"])]
    lines += [*(f"Stand-in: {text}." for text in stored["stand_ins"]), *entry.notes]
    if entry.costs_only:
        return lines
    seeds = ", ".join(map(str, stored["seeds"]))
    how = f"AVG, STD and MIN over {entry.view.over}, ddof {entry.view.ddof}, {entry.view.when}"
    lines += [f"Seeds: {seeds}. ± is {PLUS_MINUS}. {how}."]
    return [*lines, f"Compute: {say_hours(stored['seconds'])} of runs, one after the other."]


def say_hours(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> say_hours(30), say_hours(600), say_hours(7200)
    ('30 s', '10 min', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def write_markdown(entry: Entry, stored: Stored) -> str:
    """A stored result as a page."""
    head = f"**{stored['verdict']}**, preset {stored['preset']}, {stored['date']}, `{stored['command']}`"
    lines = [f"# {entry.key}: {entry.title}", "", head, "", *(f"- {line}" for line in tell_claims(stored)), ""]
    notes = (*build_table(entry, stored).footnotes, *tell_facts(entry, stored))
    lines += [*draw_markdown(entry, stored), "", *(f"- {line}" for line in notes)]
    return "\n".join(lines) + "\n"


def draw_markdown(entry: Entry, stored: Stored) -> list[str]:
    """The lines of the table in Markdown: ours, and the published value in brackets."""
    table = build_table(entry, stored)
    lines = ["| " + " | ".join(table.head) + " |", "|" + "---|" * len(table.head)]
    for name, cells, end in table.lines:
        shown = [_pair(ours, published) for ours, published in cells]
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in (name, *shown, end)) + " |")
    return lines


def _pair(ours: str, published: str) -> str:
    return f"{ours or '–'} ({published})" if published else ours or "–"


def name_file(key: str, preset: str) -> str:
    """The name of the files of a result, without their ending: `fedheal-table5_ablation_digits-cpu`.

    >>> name_file("fedheal:table4_beta_digits", "cpu")
    'fedheal-table4_beta_digits-cpu'
    """
    return f"{key.replace(':', '-')}-{preset}"
