"""The page of a report: one HTML file that needs no other, with tables for papers in files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import get_args

from equipoise.errors import EquipoiseError
from equipoise.grammar import join_words, say_count
from equipoise.metrics import PLUS_MINUS, Interval
from equipoise.runs.reading import Recorded
from equipoise.study.report import tables
from equipoise.study.report.charts import NEGATIVE, NEGATIVE_ON_DARK, PAINTS, Chart
from equipoise.study.report.figures import DEFAULT_RULES, DEFINITIONS, Rules, Study, group_studies
from equipoise.study.report.groups import (
    MOST_CLIENTS,
    build_client_table,
    build_gap_table,
    build_rate_table,
    list_group_names,
    say_group_legend,
)
from equipoise.study.report.headline import say_half, tell
from equipoise.study.report.notices import tell_notices
from equipoise.study.report.plots import draw_charts, draw_partitions
from equipoise.study.report.svg import draw_svg, name_figure
from equipoise.study.report.unseen import (
    list_left_out,
    list_unseen_columns,
    list_unseen_rows,
    say_left_out_legend,
    say_unseen_legend,
)
from equipoise.study.report.verdict import Word, judge_all, say_points
from equipoise.study.report.view import DEFAULT_VIEW, View

HERE = Path(__file__).parent


def write(
    runs: Sequence[Recorded],
    out: Path,
    problems: Sequence[str] = (),
    rules: Rules = DEFAULT_RULES,
    view: View = DEFAULT_VIEW,
) -> list[Path]:
    """Write the page and the tables beside it, and return the files. `problems` name runs that could not be read."""
    found = group_studies(runs, rules, view)
    if not found:
        why = problems[0] if problems else "no run is finished."
        raise EquipoiseError(f"There is nothing to report: {why}")
    texts = {
        ".html": build_page(found, problems),
        ".md": "\n".join([*map(_markdown, found), *_markdown_of_left_out(found)]),
        ".tex": "\n".join(map(_latex, found)),
        ".csv": _once(list(map(tables.write_csv, found))),
        ".clients.csv": _once(list(map(tables.write_clients, found))),
    }
    grouped = [study for study in found if list_group_names(study.any)[1]]
    if grouped:
        texts[".groups.csv"] = _once(list(map(tables.write_groups, grouped)))
    return write_texts(texts, out)


def write_texts(texts: Mapping[str, str], out: Path) -> list[Path]:
    """Write texts by suffix beside each other, and return the files."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for suffix, text in texts.items():
            out.with_suffix(suffix).write_text(text, encoding="utf-8")
    except OSError as error:
        raise EquipoiseError(f"Cannot write the report to `{out}`: {error.strerror}. Choose another -o.") from None
    return [out.with_suffix(suffix) for suffix in texts]


def _markdown(study: Study) -> str:
    headline, *reasons = map(tables.mark_up, tell(study).sentences)
    listed = "\n".join(f"- {reason}" for reason in reasons)
    text = f"## {tables.mark_up(study.name)}\n\n**{headline}**\n\n{listed}\n\n{tables.write_markdown(study)}"
    rows = list_unseen_rows(study)
    if not rows:
        return text
    table = tables.lay_out(list_unseen_columns(study), rows)
    return f"{text}\n### Unseen clients\n\n{table}\n\n{say_unseen_legend(study)}\n"


def _markdown_of_left_out(found: Sequence[Study]) -> list[str]:
    left_out = list_left_out(found)
    return [f"## Left out in turn\n\n{tables.lay_out(*left_out)}\n\n{say_left_out_legend(found)}\n"] if left_out else []


def _latex(study: Study) -> str:
    rows = list_unseen_rows(study)
    below = [tables.write_tabular(list_unseen_columns(study), rows, [say_unseen_legend(study)])] if rows else []
    return "\n".join([tables.write_latex(study), *below])


def _once(files: list[str]) -> str:
    """CSV tables joined to one, with the header of the first."""
    return files[0] + "".join(text.split("\n", 1)[1] for text in files[1:])


def build_page(found: Sequence[Study], problems: Sequence[str] = ()) -> str:
    """The page as HTML, with a section per study."""
    charts = [draw_charts(study) for study in found]
    ranges = draw_partitions(found)
    left_out = list_left_out(found)
    pieces = [draw_svg(ranges)] if ranges else []
    pieces += (
        [f"<h2>Left out in turn</h2>{build_table(*left_out)}<p class='caption'>{say_left_out_legend(found)}</p>"]
        if left_out
        else []
    )
    across = f"<section id='across'><h1>All data together</h1>{''.join(pieces)}</section>" if pieces else ""
    sections = "".join(_study(study, mine, i) for i, (study, mine) in enumerate(zip(found, charts, strict=True)))
    notes = "".join(f"<p class='note'>Left out: {escape(text)}</p>" for text in problems)
    names = join_words(list(dict.fromkeys(study.name for study in found)))
    contents = _contents(found, charts) + ("<p><a href='#across'>All data together</a></p>" if across else "")
    return wrap_page(names, f"<nav aria-label='Contents'>{contents}</nav><main>{notes}{sections}{across}</main>")


def read_style() -> str:
    """The style sheet of the page, with the colours of the plots."""
    colours = "".join(f".{name}{{--c:{colour}}}" for name, colour in (PAINTS | {"ink": "var(--ink)"}).items())
    minus = f":root{{--minus:{NEGATIVE};--minus-dark:{NEGATIVE_ON_DARK}}}"
    return minus + (HERE / "page.css").read_text(encoding="utf-8") + colours


def read_script() -> str:
    """What makes the page answer to the reader."""
    return (HERE / "page.js").read_text(encoding="utf-8")


def wrap_page(title: str, body: str, more_style: str = "", more_script: str = "") -> str:
    """A page that needs no other file: style, theme button, script. `body` is HTML, `title` is text."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>Equipoise: {escape(title)}</title><style>{read_style()}{more_style}</style></head><body><header>"
        "<strong>Equipoise</strong><button type='button' id='theme'>light / dark</button></header>"
        f"{body}<div id='tip' role='status'></div><script>{read_script()}{more_script}</script></body></html>"
    )


def _contents(found: Sequence[Study], charts: Sequence[Sequence[Chart]]) -> str:
    """Links to the parts of the page, a line per study."""
    lines = []
    for i, (study, mine) in enumerate(zip(found, charts, strict=True)):
        parts = [("verdict", "Verdict"), ("methods", "Methods"), ("check", "Levelling down")]
        parts += [("held-out", "Unseen clients")] if study.any.unseen else []
        parts += [("by-group", "Groups")] if list_group_names(study.any)[1] else []
        parts += [(chart.kind, chart.title) for chart in mine] + [("cost", "Cost"), ("all", "All figures")]
        links = " · ".join(f"<a href='#{name_figure(kind, i)}'>{escape(title)}</a>" for kind, title in parts)
        lines.append(f"<p><b>{escape(study.name)}</b> {links}</p>")
    return "".join(lines)


def _study(study: Study, charts: Sequence[Chart], number: int) -> str:
    facts = study.any.manifest
    notes = (*study.notes, *facts["data"]["notes"])
    return "".join(
        [
            f"<section id='study{number}' data-clients='{_describe_clients(study)}'><h1>{escape(study.name)}</h1>",
            f"<p class='setting'>{escape(_setting(study))}</p>",
            _verdict(study, number),
            *(f"<p class='note'>{escape(text)}</p>" for text in notes),
            _picker(study),
            _front(study, number),
            _check(study, number),
            _unseen(study, number),
            _groups(study, number),
            "<h2>Plots</h2>",
            *(draw_svg(chart, number) for chart in charts),
            _cost(study, number),
            _all_figures(study, number),
            _provenance(study),
            "</section>",
        ]
    )


def _setting(study: Study) -> str:
    """What the runs of a study have in common, in a line."""
    facts = study.any.manifest
    seeds = sorted({seed for runs in study.runs.values() for seed in runs})
    domains = [say_count(len(study.named_domains), "domain")] if study.named_domains else []
    held = [f"{len(study.any.unseen)} held out"] if study.any.unseen else []
    parts = [
        say_count(len(study.any.clients), "client"),
        *held,
        *domains,
        ("at most " if facts.get("until_flat") else "") + say_count(facts["rounds"], "round"),
        f"model {facts['model']}",
        *([f"loss {facts['loss']}"] if "loss" in facts else []),
    ]
    return ", ".join([*parts, f"seed{'s' if len(seeds) > 1 else ''} {join_words([str(seed) for seed in seeds], 10)}"])


def _verdict(study: Study, number: int) -> str:
    """The headline, the reasons, and what a reader must know about single methods."""
    story = tell(study)
    reasons = "".join(f"<dt>{escape(question)}</dt><dd>{_prose(answer)}</dd>" for question, answer in story.reasons)
    notices = "".join(f"<p class='note'>{_prose(text)}</p>" for text in tell_notices(study))
    return (
        f"<div class='verdict' id='{name_figure('verdict', number)}'><p>{_prose(story.headline)}</p>"
        f"<dl>{reasons}</dl></div>{notices}"
    )


def _prose(text: str) -> str:
    """Text for the page, in which no line ends between a number and its spread or percent sign."""
    return escape(text).replace(" %", "&nbsp;%").replace(" ± ", "&nbsp;±&nbsp;")


def _describe_clients(study: Study) -> str:
    """What the script shows of a client that is picked: its name, its domain, and its score under each method."""
    values = [[None if v != v else round(100 * v, 1) for v in study.mean_final(m).tolist()] for m in study.methods]
    facts = {"names": study.any.clients, "methods": study.methods, "values": values}
    return escape(json.dumps(facts, separators=(",", ":")))


def _picker(study: Study) -> str:
    options = "".join(f"<option>{escape(name)}</option>" for name in study.any.clients)
    return (
        "<div class='pick'><label>Mark one client in all plots <select><option value=''>nobody</option>"
        f"{options}</select></label> <output></output></div>"
    )


def build_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    bold: Mapping[str, set[str]] | None = None,
    define: Mapping[str, str] | None = None,
) -> str:
    """A table that the head of a column sorts. Cells are escaped; `bold` names the best rows of a column, `define` says
    what a column is."""
    titles = "".join(
        f"<th aria-sort='none' title='{escape((define or {}).get(name, ''))}'><button type='button'>{escape(name)}"
        "</button></th>"
        for name in head
    )
    lines = []
    for row in rows:
        cells = []
        for name, cell in zip(head, row, strict=True):
            kind = f" class='{cell}'" if cell in get_args(Word) else ""
            strong = row[0] in (bold or {}).get(name, ())
            cells.append(f"<td{kind}>{'<b>' if strong else ''}{escape(cell)}{'</b>' if strong else ''}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    inside = f"<thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f"<div class='scroll' tabindex='0'><table>{inside}</table></div>"


def _front(study: Study, number: int) -> str:
    bold = {name: tables.find_best(study, name) for name in tables.FRONT}
    definitions = "; ".join(
        f"{name}: {study.define(name)}" for name in (*tables.FRONT[:4], "gap mean", *tables.FRONT[4:])
    )
    return (
        f"<h2 id='{name_figure('methods', number)}'>Methods</h2>"
        + build_table(tables.list_columns(), tables.list_rows(study), bold, {n: study.define(n) for n in tables.FRONT})
        + f"<p class='caption'>{escape(tables.say_legend(study))} {escape(definitions)}. Upload is that of a "
        "client in a round. Bold is the best mean on test data, which is a description and no choice; "
        "local-only and centralised training do not count.</p>"
    )


def _unseen(study: Study, number: int) -> str:
    """The table of clients that are held out of training; nothing if there are none."""
    rows = list_unseen_rows(study)
    if not rows:
        return ""
    table = build_table(list_unseen_columns(study), rows)
    head = f"<h2 id='{name_figure('held-out', number)}'>Unseen clients</h2>"
    return f"{head}{table}<p class='caption'>{escape(say_unseen_legend(study))}</p>"


def _check(study: Study, number: int) -> str:
    found = judge_all(study)
    head = f"<h2 id='{name_figure('check', number)}'>Levelling down</h2>"
    if not found:
        wanted = escape(study.rules.reference or "fedavg")
        return f"{head}<p class='note'>No levelling-down check: it needs runs of {wanted} with the same settings.</p>"
    assert study.reference is not None
    items = []
    for verdict in found:
        reasons = "".join(f"<li class='{reason.word}'>{_prose(reason.text)}</li>" for reason in verdict.reasons)
        changes = [f"{name} {say_difference(study.change(verdict.method, name))}" for name in ("MIN", "AVG")]
        differences = f"Paired over seeds, in points: {', '.join(changes)}."
        items.append(
            f"<details{'' if verdict.passed else ' open'}><summary><span class='{verdict.word}'>{verdict.word}</span> "
            f"{escape(verdict.method)}</summary><ul>{reasons}</ul><p class='caption'>{differences}</p></details>"
        )
    against = " and local-only training" if study.alone and study.alone != study.reference else ""
    average, client = say_points(study.rules.average), say_points(study.rules.client)
    return (
        f"{head}<p class='caption'>Against {escape(study.reference)}{against}, paired by seed: did the worst fall, did "
        f"the average fall by {average} points or more, did a client fall by more than {client} points, was anybody "
        "pushed below what it could do alone? Undecided is what only differs within the spread of seeds: the 95 % "
        "interval of the paired differences holds zero. Clients are tested together: the procedure of Benjamini and "
        "Hochberg keeps false discoveries among the named clients at 5 %.</p>"
        f"{''.join(items)}"
    )


def _groups(study: Study, number: int) -> str:
    """The gaps between groups of samples, and what each group got; nothing where samples are in no groups."""
    if not list_group_names(study.any)[1]:
        return ""
    gaps, rates, (head, rows) = build_gap_table(study), build_rate_table(study), build_client_table(study)
    legend = (
        "In points, with the 95 % interval over the client's test samples, first seed. Clients without enough samples of "
        f"two groups are not listed; of more than {MOST_CLIENTS} clients those with the widest gap in accuracy are. All are "
        "in the file for spreadsheets beside this page (.groups.csv)."
    )
    each = f"{build_table(head, rows)}<p class='caption'>{legend}</p>"
    return (
        f"<h2 id='{name_figure('by-group', number)}'>Groups</h2>{build_table(*gaps)}<br>{build_table(*rates)}"
        f"<p class='caption'>{escape(say_group_legend(study))}</p>"
        + (f"<details><summary>Gaps of each client</summary>{each}</details>" if rows else "")
    )


def say_difference(change: Interval) -> str:
    """A difference in percentage points with its sign, and half its 95 % interval."""
    points = round(100 * change.mean, 1) + 0.0  # which turns -0.0 into 0.0
    return f"{points:+.1f}{say_half(change)}"


def _cost(study: Study, number: int) -> str:
    return (
        f"<figure id='{name_figure('cost', number)}'><h3>Cost</h3>"
        + build_table(*tables.list_costs(study))
        + "<figcaption>Upload: shared and personal tensors, averaged "
        "buffers and reports of one client in one round. Download: the model and what the server sends beside it. GFLOP: "
        "training steps with all that the method adds to them, and reports, of the mean client in a round. Seconds: all "
        "clients, on the machine of the run.</figcaption></figure>"
    )


def _all_figures(study: Study, number: int) -> str:
    head = ["figure", *study.methods, "definition"]
    rows = [
        [name, *(tables.format_figure(name, study.table[m][name]) for m in study.methods), study.define(name)]
        for name in DEFINITIONS
        if (study.named_domains or "over domains" not in name) and (study.any.unseen or "unseen" not in name)
    ]
    return (
        f"<details class='all' id='{name_figure('all', number)}'><summary>All figures with their definitions</summary>"
        f"<p class='caption'>± is {escape(PLUS_MINUS)}.</p>{build_table(head, rows)}</details>"
    )


def _provenance(study: Study) -> str:
    facts = study.any.manifest
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    scored = join_words(
        [f"{m}: {next(iter(r.values())).manifest['evaluated']['model']}" for m, r in study.runs.items()], 40
    )
    said = {text for runs in study.runs.values() for run in runs.values() for text in run.manifest["warnings"]}
    lines = [
        f"Data {facts['data']['fingerprint']}, partition {facts['data']['partition']}, protocol "
        f"{facts['data']['protocol']}.",
        f"Buffers: {facts['buffers']}. Scored models, on test data: {scored}. Versions: {versions}.",
        *(f"Warning: {text}" for text in sorted(said)),
    ]
    return "<footer>" + "".join(f"<p>{escape(line)}</p>" for line in lines) + "</footer>"
