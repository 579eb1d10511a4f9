"""Writes the papers' cards and the table over all: `python docs/make_results.py [FOLDER ...]`.

`equipoise reproduce` leaves its results in the folder `reproduced` below the runs. The results in the folders named here are
taken into `benchmarks/papers/measured`, unless the one that is there has more values; then `docs/papers/*.md` and
`docs/results.md` are written from what is there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from make_pages import wrap

from equipoise.study.reproduce.entries import MEASURED, Entry, Paper, find_papers_folder, list_entries, list_papers
from equipoise.study.reproduce.pages import Stored, build_table, draw_markdown, say_hours, tell_claims, tell_facts
from equipoise.study.reproduce.verdicts import sum_up

DOCS = Path(__file__).parent
CARDS = DOCS / "papers"
NOT_RUN = "not run"


def take(folder: Path, measured: Path) -> list[str]:
    """Take the results of a folder. Returns a line for each that is not taken."""
    left = []
    measured.mkdir(exist_ok=True)
    for path in sorted(folder.glob("*.json")):
        new, place = json.loads(path.read_text()), measured / path.name
        if place.exists() and count_values(json.loads(place.read_text())) > count_values(new):
            left.append(f"{path.name} has fewer values than the stored result, and is left where it is.")
        elif count_values(new):
            place.write_text(path.read_text())
    return left


def count_values(stored: Stored) -> int:
    """How many cells and seeds a result has values of."""
    return sum(len(by_seed) for row in stored["cells"].values() for by_seed in row.values())


def read_measured() -> list[Stored]:
    """All stored results."""
    return [json.loads(path.read_text()) for path in sorted((find_papers_folder() / MEASURED).glob("*.json"))]


def find_results(entry: Entry, stored: Sequence[Stored]) -> list[Stored]:
    """The stored results of an entry, that of the paper's protocol first."""
    mine = [one for one in stored if one["key"] == entry.key]
    return sorted(mine, key=lambda one: one["preset"] != "paper")


def write_card(paper: Paper, entries: Sequence[Entry], stored: Sequence[Stored]) -> str:
    """The card of a paper: what it claims, how it measured, what we measured, and what became of the claims."""
    lines = [f"# {paper.title}", "", wrap(f"{paper.reference}."), ""]
    for head, texts in (
        ("What it claims", paper.claims),
        ("Its protocol", paper.protocol),
        ("How it was read", paper.reading),
    ):
        lines += [f"## {head}", "", *map(_item, texts), ""]
    lines += ["## Verdict", "", *map(_item, _tell_verdicts(paper, entries, stored)), ""]
    if paper.found:
        lines += ["## What we found", "", *map(_item, paper.found), ""]
    lines += ["## Measured", "", wrap("In each cell: ours, and the published value in brackets."), ""]
    for entry in entries:
        lines += [f"### {entry.title}", "", *_write_entry(entry, find_results(entry, stored)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _write_entry(entry: Entry, results: Sequence[Stored]) -> list[str]:
    lines: list[str] = []
    for one in results:
        head = f"**{_capitalise(one['verdict'])}**, preset {one['preset']}, {one['date']}: `{one['command']}`"
        lines += [wrap(head), "", *map(_item, tell_claims(one)), "", *draw_markdown(entry, one), ""]
        lines += [*map(_item, (*build_table(entry, one).footnotes, *tell_facts(entry, one))), ""]
    missing = [name for name in entry.presets if name not in {one["preset"] for one in results}]
    if missing:
        commands = " or ".join(f"`equipoise reproduce {entry.key} --preset {name}`" for name in missing)
        lines.append(wrap(f"Not run yet: {commands}." if not results else f"Not run: {commands}."))
    return lines


def _tell_verdicts(paper: Paper, entries: Sequence[Entry], stored: Sequence[Stored]) -> list[str]:
    lines = []
    for preset, words in (("paper", "With the paper's protocol"), ("cpu", "With the small presets")):
        results = [one for entry in entries for one in find_results(entry, stored) if one["preset"] == preset]
        offered = [entry for entry in entries if preset in entry.presets]
        if not offered:
            continue
        states = [claim["state"] for one in results for claim in one["claims"]]
        if not states:
            kept_away = preset == "paper" and paper.unaffordable
            reason = f"not affordable here. {paper.unaffordable}" if kept_away else "not run yet."
            lines.append(f"{words}: {reason}")
            continue
        counts = ", ".join(
            f"{states.count(state)} {text}"
            for state, text in (("holds", "hold"), ("does not hold", "do not"), ("undecided", "are undecided"))
        )
        open_ = f"; {states.count(NOT_RUN)} lack runs" if NOT_RUN in states else ""
        lines.append(
            f"{words}: **{sum_up(states)}**. Of {len(states)} claims in {len(results)} of {len(offered)} tables and figures "
            f"{counts}{open_}."
        )
        if preset == "paper" and paper.unaffordable and len(results) < len(offered):
            lines.append(f"The rest of the paper's protocol is not affordable here. {paper.unaffordable}")
    return lines


def write_results(papers: Sequence[Paper], entries: Sequence[Entry], stored: Sequence[Stored]) -> str:
    """One table over all: every table and figure, what became of its claims, and the command that does it again."""
    total = say_hours(sum(one["seconds"] for one in stored))
    lines = [
        "# What the papers claim, and what came back",
        "",
        wrap(
            "Every table and figure of the five papers that Equipoise implements, and published results of others that it "
            "gives back, with what became of their claims in our runs. "
            "A claim **holds** or **does not** if the 95 % interval of the difference, paired by seed, excludes zero; else "
            "it is **undecided**, as is everything with one seed. The order is that of the rows in the table's main columns, "
            "pair by pair. The preset `cpu` is smaller than the paper's protocol, and some data stand in for others: there "
            "only signs and orders are judged. Details, with all values, stand on the papers' cards, and how to do it again "
            "under [Reproducing papers](reproduce.md)."
        ),
        "",
        f"All runs behind this page took {total} of computing, one after the other.",
        "",
    ]
    for paper in papers:
        mine = [entry for entry in entries if entry.paper == paper.name]
        lines += [
            f"## [{paper.title}](papers/{paper.name}.md)",
            "",
            *map(_item, _tell_verdicts(paper, mine, stored)),
            "",
        ]
        lines += [
            "| table or figure | preset | claims | order | runs | date | command |",
            "|---|---|---|---|---|---|---|",
        ]
        for entry in mine:
            lines += [_row(entry, one) for one in find_results(entry, stored)] or [_empty_row(entry)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(entry: Entry, one: Stored) -> str:
    states = [claim["state"] for claim in one["claims"]]
    held, failed = states.count("holds"), states.count("does not hold")
    told = (
        f"**{one['verdict']}**: {held} hold, {failed} do not, {len(states) - held - failed} open"
        if states
        else "no claims"
    )
    orders = "; ".join(f"{order['column']} {order['state']}" for order in one["orders"]) or "–"
    flat = sum(row["is_flat"] for row in one["flat"].values())
    runs = f"{flat} of {len(one['flat'])} rows flat" if one["flat"] else "nothing trained"
    if one["missing"]:
        runs += f", {len(one['missing'])} not complete"
    return f"| {entry.title} | {one['preset']} | {told} | {orders} | {runs} | {one['date']} | `{one['command']}` |"


def _empty_row(entry: Entry) -> str:
    preset = "cpu" if "cpu" in entry.presets else "paper"
    command = f"equipoise reproduce {entry.key} --preset {preset}"
    return f"| {entry.title} | {preset} | not run yet | – | – | – | `{command}` |"


def _item(text: str) -> str:
    return wrap(f"- {text}", "  ")


def _capitalise(text: str) -> str:
    return text[0].upper() + text[1:]


def write_all(docs: Path = DOCS) -> dict[Path, str]:
    """The content of every generated page."""
    papers, entries, stored = list(list_papers().values()), list_entries(), read_measured()
    pages = {
        docs / "papers" / f"{paper.name}.md": write_card(paper, [e for e in entries if e.paper == paper.name], stored)
        for paper in papers
    }
    return pages | {docs / "results.md": write_results(papers, entries, stored)}


def main(folders: Sequence[str]) -> None:
    """Take results, and write the pages."""
    for folder in folders:
        for line in take(Path(folder), find_papers_folder() / MEASURED):
            print(line)
    CARDS.mkdir(exist_ok=True)
    for place, text in write_all().items():
        place.write_text(text)
        print(f"Written: {place.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
