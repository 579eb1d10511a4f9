"""The tables of a report: cells for the page, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

from equipoise.metrics import PLUS_MINUS, UNSEEN, Interval, bootstrap
from equipoise.study.report.figures import EXPLAINED, PERCENT, SMALLER_IS_BETTER, Study
from equipoise.study.report.groups import (
    build_gap_table,
    build_rate_table,
    define_gap,
    list_group_figures,
    list_group_names,
    measure_pooled,
    measure_worst_group,
    say_gap,
    say_group_legend,
)
from equipoise.study.report.notices import find_notices, tell_notices
from equipoise.study.report.verdict import judge_all

# A spreadsheet may run text that begins with one of these as a formula. The last four are wide forms of the first four.
FORMULA_SIGNS = (*"=+-@|%", *"\uff1d\uff0b\uff0d\uff20")
FRONT = ("AVG", "STD", "MIN", "worst 10 %", "gap variance", "losers")  # in the first table, before costs and verdict


def format_figure(name: str, value: Interval) -> str:
    """A figure with half its 95 % interval; in percent if it is a share.

    >>> format_figure("AVG", Interval(0.9, 0.88, 0.92)), format_figure("losers", Interval(2.0, math.nan, math.nan))
    ('90.0 ± 2.0', '2.0')
    """
    if math.isnan(value.mean):
        return "–"
    factor = 100 if name in PERCENT else 1
    digits = 1 if name in PERCENT or name == "losers" else 4 if "variance" in name else 3
    text = f"{factor * value.mean:.{digits}f}"
    return text if math.isnan(value.low) else f"{text} ± {factor * value.half:.{digits}f}"


def find_best(study: Study, name: str) -> set[str]:
    """The methods with the best mean of a figure, to the printed digit.

    FedAvg takes part, local-only and centralised training do not.
    """
    sign = -1 if name in SMALLER_IS_BETTER else 1
    rivals = [*([study.reference] if study.reference else []), *study.rivals]
    found = {
        m: sign
        * float(format_figure(name, Interval(study.table[m][name].mean, math.nan, math.nan)).replace("–", "nan"))
        for m in rivals
    }
    known = [v for v in found.values() if not math.isnan(v)]
    return {m for m, v in found.items() if known and v == max(known)}


def say_legend(study: Study) -> str:
    """What the numbers of a table are."""
    more = (
        "" if study.any.score == "accuracy" else f" {EXPLAINED.capitalize()}; the worst client has the largest error."
    )
    view = study.view
    divisor = f" (STD with ddof {view.ddof})" if view.ddof else ""
    return (
        f"Test {study.score} in percent, {view.when}, over {view.over}{divisor}: mean over seeds, ± {PLUS_MINUS}.{more}"
    )


def list_columns() -> list[str]:
    """The columns of the report's first table."""
    return ["method", *FRONT, "upload", "s / round", "levelling down"]


def list_rows(study: Study) -> list[list[str]]:
    """The rows of the report's first table, one per method."""
    words = {v.method: v.word for v in judge_all(study)}
    return [
        [
            method,
            *(format_figure(name, study.table[method][name]) for name in FRONT),
            say_bytes(study.cost(method)["upload"]),
            f"{study.table[method]['seconds per round'].mean:.2f}",
            words.get(method, "–" if method in study.rivals else "reference"),
        ]
        for method in study.methods
    ]


def write_markdown(study: Study) -> str:
    """The first table in Markdown, with what ± means and what a reader must know about single methods."""
    texts = [lay_out(list_columns(), list_rows(study)), mark_up(say_legend(study)), *map(mark_up, tell_notices(study))]
    if list_group_names(study.any)[1]:
        groups = [lay_out(*build_gap_table(study)), lay_out(*build_rate_table(study))]
        texts += [*groups, mark_up(say_group_legend(study))]
    return "\n\n".join(texts) + "\n"


def lay_out(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with its cells escaped."""
    lines = [[mark_up(cell) for cell in head], ["---"] * len(head), *([mark_up(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mark_up(text: str) -> str:
    """Escape text for Markdown, so that a name cannot become a table, link, code or HTML.

    >>> mark_up("a|b <i>[x](y)`")
    'a\\\\|b &lt;i&gt;\\\\[x\\\\](y)\\\\`'
    """
    signs = {**{sign: f"\\{sign}" for sign in "\\|[]`*"}, "&": "&amp;", "<": "&lt;", ">": "&gt;"}
    return "".join(signs.get(sign, sign) for sign in " ".join(text.split()))


def write_latex(study: Study) -> str:
    """The first table in LaTeX, with the best of each column in bold; and that of gaps, where samples are in groups.

    Under it stands what ± means, and what a reader must know about single methods.
    """
    winners = {name: find_best(study, name) for name in FRONT}
    found = [write_tabular(list_columns(), list_rows(study), (say_legend(study), *tell_notices(study)), winners)]
    if list_group_names(study.any)[1]:
        found.append(write_tabular(*build_gap_table(study), (say_group_legend(study),)))
    return "\n".join(found)


def write_tabular(
    head: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[str], bold: Mapping[str, set[str]] | None = None
) -> str:
    """A `tabular` for the LaTeX package booktabs. `bold` names the best rows of a column."""
    signs = {
        "&": r"\&",
        "%": r"\%",
        "_": r"\_",
        "#": r"\#",
        "$": r"\$",
        "{": r"\{",
        "}": r"\}",
        "±": r"$\pm$",
        "–": "--",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
    }

    def plain(text: str) -> str:
        return "".join(
            {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", **signs}.get(c, c)
            for c in " ".join(text.split())  # an empty line would end the table
        )

    lines = [
        r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}",
        r"\toprule",
        " & ".join(map(plain, head)) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        cells = [
            rf"\textbf{{{plain(cell)}}}" if row[0] in (bold or {}).get(name, ()) else plain(cell)
            for name, cell in zip(head, row, strict=True)
        ]
        lines.append(" & ".join(cells) + r" \\")
    told = " ".join(map(plain, below))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", rf"\par{{\footnotesize {told}\par}}", ""])


def write_csv(study: Study) -> str:
    """Every figure of every method as CSV: mean and 95 % interval over seeds, with half its width, which is ±."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["mean", "half_width_of_95_percent_interval", "low", "high", "definition", "notice"]
    writer.writerow(["data", "method", "seeds", "figure", *head])
    notices = find_notices(study)
    for method in study.methods:
        notice = "; ".join(notices.get(method, ()))
        figures = {name: (value, study.define(name)) for name, value in study.table[method].items()}
        if list_group_names(study.any)[1]:
            gaps = measure_pooled(study, method)
            figures |= {f"gap in {say_gap(n)}": (value, define_gap(n)) for n, value in gaps.items()}
            worst = f"the smallest {study.score} of a group, over all clients' test samples together"
            figures["worst group"] = measure_worst_group(study, method)[1], worst
        for name, (value, definition) in figures.items():
            cells = ["" if math.isnan(v) else repr(v) for v in (value.mean, value.half, value.low, value.high)]
            names = [_safe(study.name), _safe(method), len(study.runs[method]), name]
            writer.writerow([*names, *cells, definition, _safe(notice)])
    return out.getvalue()


def write_clients(study: Study) -> str:
    """The final score and loss per client, method and seed as CSV.

    A score has its 95 % interval over the client's test samples if it is an accuracy. The last column tells who never
    trained.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    run = study.any
    writer.writerow(
        ["data", "method", "seed", "client", "domain", run.score, "low", "high", "samples", "loss", "held_out"]
    )
    groups = [("test", run.clients, run.domains, "")]
    if run.unseen:
        groups.append((UNSEEN, run.unseen, run.unseen_domains, "yes"))
    for method in study.methods:
        for split, clients, domains, held_out in groups:
            losses = study.final(method, "loss", split)
            for seed, values in study.final(method, split=split).items():
                samples = study.runs[method][seed].samples(split)
                rows = zip(clients, domains, values, samples, losses[seed], strict=True)
                for client, domain, score, count, loss in rows:
                    names = [_safe(study.name), _safe(method), seed, _safe(client), _safe(domain)]
                    is_share = run.score == "accuracy"
                    interval = bootstrap(float(score), int(count)) if is_share else (score, math.nan, math.nan)
                    cells = ["" if math.isnan(v) else repr(float(v)) for v in (*interval, loss)]
                    writer.writerow([*names, *cells[:3], int(count), cells[3], held_out])
    return out.getvalue()


def write_groups(study: Study) -> str:
    """What each group of samples got at each client, and at all clients together, with the gaps between groups, as CSV.

    Values have their 95 % intervals over test samples. Those of too few samples are empty.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["data", "method", "seed", "client", "figure", "group", "value", "low", "high", "samples"])
    for method, seed, client, found in list_group_figures(study):
        names = [_safe(study.name), _safe(method), seed, _safe(client), found.figure, _safe(found.group)]
        numbers = ["" if math.isnan(value) else repr(value) for value in (found.value, found.low, found.high)]
        writer.writerow([*names, *numbers, found.samples])
    return out.getvalue()


def _safe(text: str) -> str:
    """A name on one line, with a quote before it if a spreadsheet would run it as a formula, also after blanks.

    >>> _safe("=1+1"), _safe("north"), _safe("\\t@x")
    ("'=1+1", 'north', "'\\t@x")
    """
    line = text.replace("\r", " ").replace("\n", " ")
    return f"'{line}" if line[:1] == "\t" or line.lstrip()[:1] in FORMULA_SIGNS else line


def say_bytes(count: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def list_costs(study: Study) -> tuple[Sequence[str], list[list[str]]]:
    """The columns and rows of the table of costs, a row per method."""
    rows = []
    for method in study.methods:
        found = study.cost(method)
        second = study.table[method]["seconds per round"].mean
        rows.append(
            [
                method,
                f"{found['parameters']:,}",
                say_bytes(found["upload"]),
                say_bytes(found["download"]) if "download" in found else "–",  # an earlier version did not count it
                f"{found['flops'] / 1e9:.3f}",
                f"{second:.3f}",
            ]
        )
    return (
        "method",
        "parameters",
        "upload per client and round",
        "download per client and round",
        "GFLOP per client and round",
        "seconds per round",
    ), rows
