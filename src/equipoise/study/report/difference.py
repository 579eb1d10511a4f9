"""What changed between two folders of runs: figures and verdicts side by side, and each client from old to new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.errors import EquipoiseError
from equipoise.grammar import join_words
from equipoise.metrics import Interval, paired
from equipoise.study.report.charts import Arrows, Chart, Panel
from equipoise.study.report.figures import Study
from equipoise.study.report.headline import say_half, tell
from equipoise.study.report.page import build_table, say_difference, wrap_page, write_texts
from equipoise.study.report.plots import average, group_names
from equipoise.study.report.svg import draw_svg
from equipoise.study.report.tables import format_figure, mark_up, say_legend
from equipoise.study.report.verdict import DIGIT, SPREAD, is_within_spread, judge_all, split_by_spread

COMPARED = ("AVG", "STD", "MIN", "worst 10 %")
COLUMNS = ("method", "figure", "old", "new", "change", "which is")
SETTINGS = ("model", "rounds", "participation", "buffers", "training", "guard", "eval_every")


@dataclass(frozen=True)
class Pair:
    """A study of the old runs, and the one of the new runs that it is compared with."""

    old: Study
    new: Study

    @property
    def methods(self) -> list[str]:
        """The methods that both have."""
        return [method for method in self.new.methods if method in self.old.methods]

    @property
    def has_same_data(self) -> bool:
        """Whether both have the same samples at the same clients, so that runs of the same seed can be paired."""
        first, second = (study.any.manifest["data"]["fingerprint"] for study in (self.old, self.new))
        return bool(first == second)

    def find_seeds(self, method: str) -> list[int]:
        """The seeds of a method that can be paired."""
        return [seed for seed in self.new.runs[method] if self.has_same_data and seed in self.old.runs[method]]

    def find_change(self, method: str, figure: str) -> Interval:
        """How much a figure of a method changed: paired by seed, or the difference of the means without interval."""
        old, new = (study.per_seed(method, figure) for study in (self.old, self.new))
        if self.find_seeds(method):
            return paired(old, new)
        return Interval(float(np.mean(list(new.values())) - np.mean(list(old.values()))), float("nan"), float("nan"))


def match(old: Sequence[Study], new: Sequence[Study]) -> list[Pair]:
    """Pair studies of the same name: those with the most settings in common first."""
    found, left = [], list(old)
    for study in new:
        candidates = [one for one in left if one.name == study.name]
        if candidates:
            nearest = min(candidates, key=lambda one: len(list_settings(Pair(one, study))))
            left.remove(nearest)
            found.append(Pair(nearest, study))
    if not found:
        names = [join_words(list(dict.fromkeys(s.name for s in those))) or "nothing" for those in (old, new)]
        raise EquipoiseError(
            f"There is nothing to compare: the old runs are of {names[0]}, the new ones of {names[1]}."
        )
    return found


def list_settings(pair: Pair) -> list[str]:
    """The settings that differ between old and new, in words."""
    a, b = _flatten(pair.old), _flatten(pair.new)
    found = [f"{name}: {a.get(name)} → {b.get(name)}" for name in {**a, **b} if a.get(name) != b.get(name)]
    return found if pair.has_same_data else ["the data differ: seeds are not paired", *found]


def _flatten(study: Study) -> dict[str, Any]:
    facts = study.any.manifest
    training = facts["training"]
    return {name: facts.get(name) for name in SETTINGS if name != "training"} | dict(training)


def list_rows(pair: Pair) -> list[list[str]]:
    """A row per method and figure: old, new, the change, and whether it is beyond the spread of seeds."""
    rows = []
    words = [{v.method: v.word for v in judge_all(study)} for study in (pair.old, pair.new)]
    for method in pair.methods:
        for figure in COMPARED:
            change = pair.find_change(method, figure)
            cells = [format_figure(figure, study.table[method][figure]) for study in (pair.old, pair.new)]
            rows.append([method, figure, *cells, say_difference(change), _say_certainty(pair, method, change)])
        before, now = (found.get(method, "–") for found in words)
        rows.append([method, "levelling down", before, now, "–" if before == now else f"{before} → {now}", ""])
    return rows


def _say_certainty(pair: Pair, method: str, change: Interval) -> str:
    seeds = len(pair.find_seeds(method))
    if seeds < 2:
        return "of one seed" if seeds else "not paired: no seed in common"
    if abs(change.mean) < DIGIT:
        return "no change"
    return SPREAD if is_within_spread(change) else "beyond the spread of seeds"


def list_clients(pair: Pair) -> list[str]:
    """Under each method, which clients changed beyond the spread of seeds, in words; clients are known by name."""
    lines = []
    for method in pair.methods:
        seeds, names = pair.find_seeds(method), pair.new.any.clients
        if not seeds or names != pair.old.any.clients:
            continue
        rise = np.stack([pair.new.final(method)[seed] - pair.old.final(method)[seed] for seed in seeds])
        known = np.asarray(np.isfinite(rise).all(0))
        rise, named = rise[:, known], [name for name, there in zip(names, known, strict=True) if there]
        mean = dict(zip(named, rise.mean(0).tolist(), strict=True))
        up, down = (split_by_spread(named, sign * rise.mean(0) > DIGIT, rise)[0] for sign in (1, -1))
        if up or down:
            told = [
                f"{len(those)} {way} ({join_words([f'{n} {100 * mean[n]:+.1f}' for n in _by_size(those, mean)], 3)})"
                for those, way in ((up, "rose"), (down, "fell"))
                if those
            ]
            lines.append(f"{method}: of {len(named)} clients {' and '.join(told)}.")
    return lines


def _by_size(names: Sequence[str], mean: dict[str, float]) -> list[str]:
    return sorted(names, key=lambda name: -abs(mean[name]))


def draw_change(pair: Pair) -> Chart | None:
    """An arrow per client from old to new, a panel per method. Needs the same clients."""
    if pair.old.any.clients != pair.new.any.clients or not pair.methods:
        return None
    panels = []
    for method in pair.methods:
        before, after = (study.mean_final(method) for study in (pair.old, pair.new))
        order = [int(i) for i in np.argsort(before) if np.isfinite(before[i] + after[i])]
        rows = group_names(order, pair.new.any.clients)
        start, end = ([100 * average(values, members) for _, members in rows] for values in (before, after))
        notes = [f"{name}: {a:.1f} → {b:.1f} %" for (name, _), a, b in zip(rows, start, end, strict=True)]
        arrows = Arrows(method, [float(i) for i in range(len(rows))], start, end, 0, notes)
        ticks = {float(i): name for i, (name, _) in enumerate(rows)}
        panels.append(
            Panel(method, [arrows], f"test {pair.new.score} in percent", y_ticks=ticks, wide=True, method=method)
        )
    caption = "From the old runs (ring) to the new ones (head), mean over all seeds, last round; a dot did not change."
    first = tell(pair.new).shown or ""
    return Chart("arrows", "Each client, from old to new", caption, panels, one_at_a_time=True, first=first)


# --------------------------------------------------------------------------- in words, as a page, as Markdown
def _list_lonely(pair: Pair) -> list[str]:
    only = [
        f"Only in the {which} runs: {join_words(those, 12)}."
        for which, those in (
            ("old", [method for method in pair.old.methods if method not in pair.methods]),
            ("new", [method for method in pair.new.methods if method not in pair.methods]),
        )
        if those
    ]
    settings = list_settings(pair)
    return [*([f"Settings that differ: {'; '.join(settings)}."] if settings else []), *only]


def tell_differences(old: Sequence[Study], new: Sequence[Study]) -> list[str]:
    """What changed, in words: headlines, settings, and a line per method."""
    lines = []
    for pair in match(old, new):
        lines += [
            f"{pair.new.name}, before: {tell(pair.old).headline}",
            f"{pair.new.name}, now: {tell(pair.new).headline}",
        ]
        lines += _list_lonely(pair)
        for method in pair.methods:
            parts = []
            for figure in ("AVG", "MIN"):
                a, b = (100 * study.table[method][figure].mean for study in (pair.old, pair.new))
                change = pair.find_change(method, figure)
                sure = f", {SPREAD}" if is_within_spread(change) and abs(change.mean) >= DIGIT else ""
                parts.append(f"{figure} {a:.1f} → {b:.1f} ({100 * change.mean:+.1f}{say_half(change)} points{sure})")
            lines.append(f"{method}: {'; '.join(parts)}.")
    return lines


def write_differences(old: Sequence[Study], new: Sequence[Study], out: Path) -> list[Path]:
    """Write the page of what changed, and its table as Markdown beside it. Returns the files."""
    pairs = match(old, new)
    title = f"what changed on {join_words([pair.new.name for pair in pairs])}"
    page = wrap_page(title, f"<main>{''.join(_section(pair, i) for i, pair in enumerate(pairs))}</main>")
    return write_texts({".html": page, ".md": "\n".join(map(_markdown, pairs))}, out)


def _section(pair: Pair, number: int) -> str:
    chart = draw_change(pair)
    headlines = "".join(
        f"<dt>{when}</dt><dd>{escape(tell(study).headline)}</dd>"
        for when, study in (("Before", pair.old), ("Now", pair.new))
    )
    notes = "".join(f"<p class='note'>{escape(text)}</p>" for text in _list_lonely(pair))
    clients = "".join(f"<li>{escape(text)}</li>" for text in list_clients(pair))
    return (
        f"<section><h1>{escape(pair.new.name)}: what changed</h1><div class='verdict'><dl>{headlines}</dl></div>{notes}"
        f"{build_table(COLUMNS, list_rows(pair))}<p class='caption'>{escape(say_legend(pair.new))} "
        "A change is paired by seed where old "
        "and new have the same data and seeds. Clients are tested together (Benjamini and Hochberg, 5 % false "
        f"discoveries).</p><ul>{clients}</ul>{draw_svg(chart, number) if chart else ''}</section>"
    )


def _markdown(pair: Pair) -> str:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([mark_up(cell) for cell in row] for row in list_rows(pair))]
    table = "\n".join("| " + " | ".join(row) + " |" for row in lines)
    said = [f"{when}: {tell(study).headline}" for when, study in (("Before", pair.old), ("Now", pair.new))]
    texts = [*said, *_list_lonely(pair), *list_clients(pair), say_legend(pair.new)]
    return "\n\n".join([f"## {mark_up(pair.new.name)}: what changed", *map(mark_up, texts), table]) + "\n"
