"""The live page: what is running and how it stands, made of the plots and the verdict of the report."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.grammar import join_words
from equipoise.runs.reading import REPEATED, Recorded
from equipoise.study.report.charts import Chart, Line, Panel
from equipoise.study.report.figures import Study, group_comparable
from equipoise.study.report.headline import tell
from equipoise.study.report.heat import draw_heat
from equipoise.study.report.page import read_script, read_style, wrap_page
from equipoise.study.report.plots import MOST_LINES, PLOTS
from equipoise.study.report.svg import draw_svg
from equipoise.study.report.verdict import judge_all, tell_in_a_line
from equipoise.study.watch.shelf import Seen
from equipoise.study.watch.standing import (
    Standing,
    can_be_judged,
    compare_so_far,
    cut_after,
    find_standings,
)

HERE = Path(__file__).parent
MOST_CLIENTS = 40  # rows of the table of clients; of the rest only the number is told
MOST_REJECTIONS = 20  # that are listed, the last ones
WORDS = ("client", "state", "why")  # columns of tables that hold words, not numbers
TITLE = "live"


def read_live_style() -> str:
    """The style sheet of the live page."""
    return read_style() + (HERE / "watch.css").read_text(encoding="utf-8")


def read_live_script() -> str:
    """The script of the live page."""
    return read_script() + (HERE / "watch.js").read_text(encoding="utf-8")


def build_live_page(content: str, version: str, now: float) -> str:
    """The whole page. By `version` it finds out that there is something new, and by `now` how long ago things were."""
    mark = (
        f"<div id='watch' data-version='{escape(version)}' data-now='{now:.3f}'></div>"
        "<p id='trouble' class='note' role='status' hidden></p>"
    )
    return wrap_page(
        TITLE,
        f"<main>{mark}{content}</main>",
        (HERE / "watch.css").read_text(encoding="utf-8"),
        (HERE / "watch.js").read_text(encoding="utf-8"),
    )


def build_content(seen: Sequence[Seen], problems: Sequence[str], places: Sequence[Path], now: float) -> str:
    """What the page shows, as HTML: first the data on which something is running. All names are escaped."""
    by_place = {one.run.place: one for one in seen}
    groups = [[by_place[run.place] for run in group] for group in group_comparable([one.run for one in seen])]
    groups.sort(key=lambda group: (not any(_is_live(one, now) for one in group), -max(one.touched for one in group)))
    notes = "".join(f"<p class='note'>{escape(text)}</p>" for text in problems)
    return f"<p class='verdict' id='now'>{_headline(seen, places, now)}</p>{notes}" + "".join(
        _section(group, now) for group in groups
    )


def _is_live(one: Seen, now: float) -> bool:
    return one.is_open and not one.is_quiet(now)


def _name(one: Seen) -> str:
    return f"{one.run.method} (seed {one.run.seed})"


def _headline(seen: Sequence[Seen], places: Sequence[Path], now: float) -> str:
    """What is running, in a sentence or two, as HTML."""
    live = [one for one in seen if _is_live(one, now)]
    where = escape(join_words([str(path) for path in places]))
    if not live:
        return f"Nothing is running in {where}." + ("" if seen else " A run that begins there will appear here.")
    said = [
        f"{_name(one)} on {one.run.manifest['data']['name']}, {one.done} of {one.run.manifest['rounds']} rounds done"
        for one in live
    ]
    missing = [
        f"{one.client} is {one.word} since round {one.since}"
        for run in live
        for one in find_standings(run.run)
        if one.since
    ]
    who = join_words(missing) if missing else "No client is silent"
    more = f"; and {len(said) - 3} more" if len(said) > 3 else ""
    return f"Running: {escape('; '.join(said[:3]) + more)}. {escape(who)}."


# --------------------------------------------------------------------------- runs that may be compared
def _section(group: Sequence[Seen], now: float) -> str:
    """Runs with the same data and settings: the verdict so far, the runs that go on, and all of them side by side."""
    facts = group[0].run.manifest
    finished = [one.run for one in group if one.run.is_finished]
    live = [one for one in group if _is_live(one, now)]
    lost = [one for one in group if one.is_open and one not in live]
    done = {(run.method, run.seed) for run in finished}  # a run that is done again counts as it was, until it is over
    reached = compare_so_far([*finished, *(one.run for one in live if (one.run.method, one.run.seed) not in done)])
    setting = (
        f"{len(group[0].run.clients)} clients, {facts['rounds']} rounds, model {facts['model']}. "
        f"Runs: {len(live)} running, {len(finished)} finished."
    )
    return "".join(
        [
            f"<section data-key='{escape(str(facts['data']['fingerprint']))}'><h1>{escape(str(facts['data']['name']))}</h1>"
            f"<p class='setting'>{escape(setting)}</p>",
            *(_note_on(one) for one in group if not one.run.is_finished and one not in live),
            _verdicts(finished, reached if live else None, int(facts["rounds"])),
            *(_run(one, is_live=True) for one in live),
            *(_run(one, is_live=False) for one in lost),
            _compared(reached),
            "</section>",
        ]
    )


def _note_on(one: Seen) -> str:
    """A line on a run that ended before its last round, or may have."""
    facts = one.run.manifest
    how = f"after {one.done} of {facts['rounds']} rounds"
    if one.is_open:
        text = f"no news for {_ago(one.touched)}, {escape(how)}: it may have been cut off."
    else:
        why = f": {facts.get('why')}" if facts.get("why") else "."
        text = escape(f"{facts['status']} {how}{why}")
    return f"<p class='note'>{escape(_name(one))}: {text}</p>"


def _verdicts(finished: Sequence[Recorded], reached: tuple[Study, int] | None, total: int) -> str:
    """The verdict on what is finished and, while something goes on, after the last round that all runs have reached."""
    final = compare_so_far(finished)
    out = []
    if final and (reached is None or judge_all(final[0])):
        out.append(f"<h3>Of the runs that are finished</h3>{_judged(final[0])}")
    if reached is not None:
        out.append(
            f"<h3>After round {reached[1]} of {total}, which every run has reached</h3>{_judged(reached[0])}"
            "<p class='caption'>Not the end: what differs here may be how fast methods learn, not how fair they are.</p>"
        )
    return f"<h2>Verdict so far</h2>{''.join(out) or '<p>No round has been scored yet.</p>'}"


def _compared(reached: tuple[Study, int] | None) -> str:
    """The plots in which the runs are compared, after the last round that all of them have reached."""
    charts = [PLOTS[kind](reached[0]) for kind in ("arrows", "convergence")] if reached else []
    drawn = "".join(draw_svg(chart) for chart in charts if chart is not None)
    return f"<h2>Side by side, after round {reached[1]}</h2>{drawn}" if reached and drawn else ""


def _judged(study: Study) -> str:
    """The report's sentences, and the levelling-down check of each method in a line."""
    if not can_be_judged(study):
        return "<p class='verdict'>There is nothing to compare with: no client was scored under both methods.</p>"
    lines = "".join(
        f"<li class='{verdict.word}'>{escape(tell_in_a_line(verdict))}</li>" for verdict in judge_all(study)
    )
    story = tell(study)
    reasons = "".join(f"<li><strong>{escape(what)}</strong> {escape(answer)}</li>" for what, answer in story.reasons)
    return f"<p class='verdict'>{escape(story.headline)}</p><ul>{reasons}{lines}</ul>"


# --------------------------------------------------------------------------- one run
def _run(one: Seen, is_live: bool) -> str:
    """A run in progress: how far it is, who is there, each client's curve, weights, rejections and warnings.

    A run that may have been cut off is folded.
    """
    facts, total = one.run.manifest, int(one.run.manifest["rounds"])
    left = one.seconds_left
    pace = f", about {_say_duration(left)} to go" if left is not None else ""
    standings = find_standings(one.run)
    there = sum(standing.word == "there" for standing in standings)
    charts: list[Chart | None] = []
    if one.done:
        whole = cut_after(one.run, one.done, [end.seconds for end in one.ends])
        study = Study({whole.method: {whole.seed: whole}})
        charts = [draw_curves(study), PLOTS["weights"](study), PLOTS["participation"](study)]
    return "".join(
        [
            f"<details class='run'{' open' if is_live else ''} data-key='{escape(one.run.place.name)}'><summary>"
            f"<strong>{escape(_name(one))}</strong>: round {one.done} of {total}{pace}; last news {_ago(one.touched)} ago"
            "</summary>",
            f"<progress value='{one.done}' max='{total}' aria-label='rounds done'></progress>",
            _repeated(facts.get(REPEATED)),
            f"<h3>Who is there: {there} of {len(standings)}</h3>{_clients(standings, one)}",
            *(draw_svg(chart) for chart in charts if chart is not None),
            _rejections(facts["rejected"]),
            *(f"<p class='note'>{escape(str(text))}</p>" for text in facts["warnings"][-5:]),
            "</details>",
        ]
    )


def _repeated(facts: Mapping[str, Any] | None) -> str:
    """A line on the round at work, if it had too few answers so far."""
    if facts is None:
        return ""
    text = f"Round {facts['round']} had too few answers ({facts['tries']} tries so far), and is being repeated."
    return f"<p class='note'>{escape(text)}</p>"


def draw_curves(study: Study) -> Chart | None:
    """The test score of each client of one run over rounds: lines, or a heat map if there are too many clients."""
    (method,) = study.methods
    (seed,) = study.runs[method]
    run = study.runs[method][seed]
    rounds, values = study.curve(method, seed)
    if not len(rounds):
        return None
    title, caption = "Each client's curve", f"Test {study.score} of each client after every evaluated round."
    if len(run.clients) <= 2 * MOST_LINES:
        lines = [
            Line(name, [float(r) for r in rounds], (100 * values[:, k]).tolist(), k)
            for k, name in enumerate(run.clients)
        ]
        return Chart("curves", title, caption, [Panel("", lines, "round", f"test {study.score} in percent", wide=True)])
    grid = np.full((len(run.clients), int(run.manifest["rounds"])), np.nan)
    grid[:, rounds - 1] = 100 * values.T
    caption += " A stronger colour is a higher one, in percent; white: not scored."
    return Chart("curves", title, caption, [draw_heat(method, grid, run.clients, 0, study.score)])


def _clients(standings: Sequence[Standing], one: Seen) -> str:
    """The table of clients: those that are missing first, then from the worst to the best."""
    ended = {end.round: end.time for end in one.ends}
    head = ["client", "state", f"test {one.run.score_words}", "last weight", "last counted in round"]
    head += ["why"] if any(standing.why for standing in standings) else []
    rows = []
    for standing in standings[:MOST_CLIENTS]:
        state = standing.word
        more = ""
        if standing.since:
            more = f" since round {standing.since}"
            more += f", for {_ago(ended[standing.heard])}" if standing.heard in ended else ""
        elif standing.word == "there" and standing.heard < one.done:
            more = f", not asked since round {standing.heard}"
        scored = "" if standing.scored in (0, one.done) else f" (round {standing.scored})"
        cells = [
            escape(standing.client),
            f"<span class='{'passed' if state == 'there' else 'undecided' if state == 'not heard yet' else 'failed'}'>"
            f"{state}</span>{more}",
            _number(100 * standing.score, "{:.1f} %") + scored,
            _number(standing.weight, "{:.3f}"),
            str(standing.heard or "–"),
            escape(standing.why),
        ][: len(head)]
        rows.append(cells)
    hidden = len(standings) - len(rows)
    rest = f"<p class='caption'>And {hidden} more, with a higher one.</p>" if hidden else ""
    return _table(head, rows) + rest


def _rejections(rejected: Sequence[dict[str, object]]) -> str:
    """The answers that did not count, the last ones first."""
    if not rejected:
        return "<p class='caption'>No answer was rejected.</p>"
    rows = [
        [escape(str(one[name])) for name in ("client", "round", "why")] for one in rejected[: -MOST_REJECTIONS - 1 : -1]
    ]
    shown = f", the last {MOST_REJECTIONS}" if len(rejected) > MOST_REJECTIONS else ""
    return f"<h3>Answers that did not count: {len(rejected)}{shown}</h3>" + _table(("client", "round", "why"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that a click on a column sorts. Cells are HTML."""
    kinds = [" class='words'" if name in WORDS else "" for name in head]
    titles = "".join(
        f"<th{kind} aria-sort='none'><button type='button'>{escape(name)}</button></th>"
        for kind, name in zip(kinds, head, strict=True)
    )
    lines = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return f"<div class='scroll'><table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>"


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else form.format(value)


def _ago(moment: float) -> str:
    """A time as HTML. The script puts in its place how long ago it was, and keeps that up to date."""
    return f"<time data-since='{moment:.3f}'>{time.strftime('%H:%M:%S', time.localtime(moment))}</time>"


def _say_duration(seconds: float) -> str:
    """A duration in words, as the page's script says them, too.

    >>> _say_duration(7.2), _say_duration(130), _say_duration(9000)
    ('7 s', '2 min', '2.5 h')
    """
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )
