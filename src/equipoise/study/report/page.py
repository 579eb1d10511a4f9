"""The page of a report: one HTML file that needs no other, with tables for papers in files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import get_args

from equipoise.errors import EquipoiseError
from equipoise.grammar import join_words
from equipoise.metrics import FORMULAS, paired
from equipoise.runs.reading import Recorded
from equipoise.study.report import tables
from equipoise.study.report.charts import COLOURS, NEGATIVE
from equipoise.study.report.figures import DEFINITIONS, Study, group_studies
from equipoise.study.report.plots import draw_charts, draw_partitions
from equipoise.study.report.svg import draw_svg
from equipoise.study.report.verdict import Word, judge_all, tell_in_two_sentences

HERE = Path(__file__).parent
QUESTION = "Do the clients that plain averaging leaves behind fare better, and who pays for it?"


def write(runs: Sequence[Recorded], out: Path, problems: Sequence[str] = ()) -> list[Path]:
    """Write the page and the tables beside it, and return the files. `problems` name runs that could not be read."""
    found = group_studies(runs)
    if not found:
        why = problems[0] if problems else "no run is finished."
        raise EquipoiseError(f"There is nothing to report: {why}")
    texts = {
        ".html": build_page(found, problems),
        ".md": "\n".join(map(_markdown, found)),
        ".tex": "\n".join(map(tables.write_latex, found)),
        ".csv": _once(list(map(tables.write_csv, found))),
        ".clients.csv": _once(list(map(tables.write_clients, found))),
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for suffix, text in texts.items():
            out.with_suffix(suffix).write_text(text, encoding="utf-8")
    except OSError as error:
        raise EquipoiseError(f"Cannot write the report to `{out}`: {error.strerror}. Choose another -o.") from None
    return [out.with_suffix(suffix) for suffix in texts]


def _markdown(study: Study) -> str:
    name, verdict = tables.mark_up(study.name), tables.mark_up(" ".join(tell_in_two_sentences(study)))
    return f"## {name}\n\n{verdict}\n\n{tables.write_markdown(study)}"


def _once(files: list[str]) -> str:
    """CSV tables joined to one, with the header of the first."""
    return files[0] + "".join(text.split("\n", 1)[1] for text in files[1:])


def build_page(found: Sequence[Study], problems: Sequence[str] = ()) -> str:
    """The page as HTML, with a section per study."""
    names = escape(join_words(list(dict.fromkeys(study.name for study in found))))
    notes = "".join(f"<p class='note'>Left out: {escape(text)}</p>" for text in problems)
    sections = "".join(_study(study, i) for i, study in enumerate(found))
    ranges = draw_partitions(found)
    across = f"<section id='across'><h1>All data together</h1>{draw_svg(ranges)}</section>" if ranges else ""
    return fill_frame(f"Equipoise: {names}", f"{notes}{sections}{across}", read_style(), read_script())


def read_style() -> str:
    """The style sheet of the page, with the colours of the plots."""
    colours = "".join(f".c{i}{{--c:{colour}}}" for i, colour in enumerate(COLOURS))
    return (HERE / "page.css").read_text() + colours + f":root{{--minus:{NEGATIVE}}}"


def read_script() -> str:
    """What makes the page answer to the reader."""
    return (HERE / "page.js").read_text()


def fill_frame(title: str, content: str, style: str, script: str) -> str:
    """A whole page around HTML that is its content. The live page of `equipoise watch` has the same frame."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{title}</title><style>{style}</style></head><body><header><strong>Equipoise</strong>"
        "<button id='theme' title='light or dark'>light / dark</button></header><main>"
        f"{content}</main><div id='tip' role='status'></div><script>{script}</script></body></html>"
    )


def _study(study: Study, number: int) -> str:
    seeds = sorted({seed for runs in study.runs.values() for seed in runs})
    facts = study.any.manifest
    setting = (
        f"{len(study.any.clients)} clients, {len(set(study.any.domains))} domains, {facts['rounds']} rounds, "
        f"model {facts['model']}, seeds {join_words([str(s) for s in seeds], 10)}"
    )
    return "".join(
        [
            f"<section id='study{number}'><h1>{escape(study.name)}</h1><p class='setting'>{escape(setting)}</p>",
            f"<p class='question'>{escape(QUESTION)}</p>",
            f"<p class='verdict'>{escape(' '.join(tell_in_two_sentences(study)))}</p>",
            *(f"<p class='note'>{escape(text)}</p>" for text in (*study.notes, *facts["data"]["notes"])),
            _front(study),
            _check(study),
            "<h2>Plots</h2>",
            *(draw_svg(chart) for chart in draw_charts(study)),
            _cost(study),
            _all_figures(study),
            _provenance(study),
            "</section>",
        ]
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], bold: dict[str, set[str]] | None = None) -> str:
    """A table that a click on a column sorts. Cells are escaped; `bold` names the best rows of a column."""
    titles = "".join(f"<th title='{escape(DEFINITIONS.get(name, ''))}'>{escape(name)}</th>" for name in head)
    lines = []
    for row in rows:
        cells = []
        for name, cell in zip(head, row, strict=True):
            kind = f" class='{cell}'" if cell in get_args(Word) else ""
            strong = row[0] in (bold or {}).get(name, ())
            cells.append(f"<td{kind}>{'<b>' if strong else ''}{escape(cell)}{'</b>' if strong else ''}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<div class='scroll'><table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def _front(study: Study) -> str:
    bold = {name: tables.find_best(study, name) for name in tables.FRONT}
    definitions = "; ".join(f"{name}: {DEFINITIONS[name]}" for name in tables.FRONT)
    return (
        _table(tables.list_columns(), tables.list_rows(study), bold)
        + "<p class='caption'>Test accuracy in percent after the last round, over clients: mean ± half of the 95 % "
        "interval (Student's t) "
        f"over seeds. {escape(definitions)}. Upload is that of a client in a round. Bold is the best mean on test "
        "data, which is a description and no choice; local-only and centralised training do not count.</p>"
    )


def _check(study: Study) -> str:
    found = judge_all(study)
    if not found:
        return "<p class='note'>No levelling-down check: it needs runs of fedavg with the same settings.</p>"
    assert study.reference is not None
    items = []
    for verdict in found:
        reasons = "".join(f"<li class='{reason.word}'>{escape(reason.text)}</li>" for reason in verdict.reasons)
        low, average = (
            paired(study.per_seed(study.reference, FORMULAS[f]), study.per_seed(verdict.method, FORMULAS[f]))
            for f in ("MIN", "AVG")
        )
        differences = f"Paired over seeds: MIN {_difference(low)}, AVG {_difference(average)}."
        items.append(
            f"<details{'' if verdict.passed else ' open'}><summary><span class='{verdict.word}'>{verdict.word}</span> "
            f"{escape(verdict.method)}</summary><ul>{reasons}</ul><p class='caption'>{differences}</p></details>"
        )
    against = " and local-only training" if study.alone else ""
    return (
        f"<h2>Levelling down</h2><p class='caption'>Against {escape(study.reference)}{against}, paired by seed: did "
        "the worst rise, did the average hold, who was pushed below what it could do alone? Undecided is what only "
        f"differs within the spread of seeds: the 95 % interval of the paired differences holds zero.</p>"
        f"{''.join(items)}"
    )


def _difference(value: tuple[float, float, float]) -> str:
    mean, low, high = (100 * v for v in value)
    return f"{mean:+.1f}" if low != low else f"{mean:+.1f} (95 % {low:+.1f} to {high:+.1f})"


def _cost(study: Study) -> str:
    return (
        "<figure id='cost'><h3>Cost</h3>"
        + _table(*tables.list_costs(study))
        + "<figcaption>Upload: shared and personal tensors, averaged "
        "buffers and reports of one client in one round. GFLOP: three forward passes of the wrapped model for every "
        "sample that the mean client trains on in a round; a method's own further passes are not counted. Seconds: all "
        "clients, on the machine of the run.</figcaption></figure>"
    )


def _all_figures(study: Study) -> str:
    head = ["figure", *study.methods, "definition"]
    rows = [
        [name, *(tables.format_figure(name, study.table[m][name]) for m in study.methods), text]
        for name, text in DEFINITIONS.items()
    ]
    return f"<details class='all'><summary>All figures with their definitions</summary>{_table(head, rows)}</details>"


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
