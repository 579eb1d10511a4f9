"""Brings the generated parts of the pages up to date: `python docs/make_pages.py`.

Generated are the part between the two marks of every method page, the list of all methods, and the table of what methods
reveal of a site.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from equipoise.grammar import Range, Searched
from equipoise.method import METHODS, ROLES
from equipoise.method.privacy import write_table
from equipoise.methods import parse

START, END = "<!-- from the code -->", "<!-- end -->"
FOLDER = Path(__file__).parent / "methods"
WIDTH = 100  # columns of prose; tables are as wide as they are


def page_of(name: str) -> Path:
    """The page of a method."""
    return FOLDER / f"{name}.md"


def generated(name: str) -> str:
    """Roles, parameters, defaults and reference, as the code has them."""
    entry = METHODS[name]
    method = parse(name)
    lines = [START, "", wrap(f"**{entry.title}.** {entry.reference}."), "", "| role | parts |", "|---|---|"]
    for role in ROLES:
        parts = getattr(method, role)
        parts = parts if isinstance(parts, tuple) else (parts,)
        shown = ", ".join(f"`{part!r}`" for part in parts) or "–"
        lines.append(f"| {role} | {_cell(shown)} |")
    if entry.parameters:
        sets = list(entry.per_dataset)
        heads = ("parameter", "type", "default", *sets, *(["tuned"] if entry.ranges else []))
        lines += ["", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        for parameter in entry.parameters.values():
            kind = str(parameter.annotation).replace("Literal", "one of ")
            values = [entry.per_dataset[s].get(parameter.name) for s in sets]
            cells = "".join(f" {'' if v is None else f'`{v!r}`'} |" for v in values)
            searched = f" {_say_searched(entry.ranges.get(parameter.name))} |" if entry.ranges else ""
            lines.append(f"| `{parameter.name}` | {_cell(kind)} | `{parameter.default!r}` |{cells}{searched}")
    return "\n".join([*lines, "", END])


def _say_searched(searched: Searched | None) -> str:
    """Among what `equipoise tune` searches for a parameter."""
    if isinstance(searched, Range) or searched is None:
        return str(searched or "")
    return ", ".join(f"`{value!r}`" for value in searched)


def wrap(text: str, indent: str = "") -> str:
    """Text in lines of `WIDTH` columns. What stands in backticks is not torn apart, and no line is a year alone, which Markdown
    could take for the number of an item."""
    whole = re.sub(r"`[^`]*`| \d+\.$", lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(whole, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def update_privacy() -> None:
    """Write the table of what methods reveal."""
    page = FOLDER.parent / "privacy.md"
    before, _, rest = page.read_text().partition(START)
    page.write_text(before + privacy_table() + rest.partition(END)[2])


def privacy_table() -> str:
    """What each method reveals of a site, as the code has it."""
    return f"{START}\n\n{write_table()}\n\n{END}"


def update(name: str) -> None:
    """Write the generated part of one page; a page that does not exist yet begins with it."""
    page = page_of(name)
    text = page.read_text() if page.exists() else f"# {name}\n\n{START}\n{END}\n"
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    page.write_text(before + generated(name) + after)


NOT_HERE = (
    "- **Pa3Fed** (AAAI 2025) stands in FedEquilibria's tables. Its rule is not public: neither code nor the body of the "
    "paper could be had, and the abstract does not determine it. It is left out rather than invented.",
    "- **FOCUS** trains several models per client and assigns clients to them softly. It stands in none of the five papers' "
    "tables, and its algorithm is known to us from its abstract alone. It is left out.",
    "- **FedISM** weighs clients by the sharpness of their losses and trains them with steps whose gradient is taken at a "
    "second point, beside the model. A `terms` part sees one gradient per step, at the model itself, so that the local half "
    "cannot be said yet; the weights without it would be another method under the same name.",
    "- **FedPW** is known to us from its code and abstract alone: the formulas and values of the paper could not be "
    "checked, the code masks running statistics and counters with the weights, and needs every client in every round.",
    "- **FedGini** is known to us from another paper's code alone, which gives the largest weight to the wrong client for "
    "most losses. Its own paper was not found.",
    "- **FedMDFG** asks clients for the losses of several models *within* a round (a line search). "
    "[`fedlf`](fedlf.md) is the near relative that does not.",
)
COMBINING = (
    "They combine with `+` unless two set the same thing: `moon + fedheal`, `scaffold + qffl`, `fpl + f2dc_modules`, "
    "`fedheal + fedadam`. Where "
    'public code differs from a paper in a way that moves results, `variant="released"` follows the code; the default is the '
    "paper's. `power_of_choice` and the methods that begin with `select` change who takes part, and nothing else but equal "
    "weights where it says so: add them to any method, as in `fedheal + power_of_choice(candidates=6)`, with a participation "
    "below 1."
)


def index() -> None:
    """The list of all methods, which part plays which role in each, and what is missing."""
    lines = ["# Methods", "", "| method | what it does |", "|---|---|"]
    lines += [f"| [`{name}`]({name}.md) | {entry.title} |" for name, entry in sorted(METHODS.items())]
    lines += [
        "",
        wrap(COMBINING),
        "",
        "## Method × role",
        "",
        "Empty is FedAvg's. `equipoise methods --table` prints the same.",
        "",
        "| method | " + " | ".join(ROLES) + " | training |",
        "|---" * (len(ROLES) + 2) + "|",
    ]
    for name in sorted(METHODS):
        method = parse(name)
        cells = [", ".join(type(part).__name__ for part in parts) for parts in method.own_parts.values()]
        demands = ", ".join(f"{key}={value}" for key, value in method.training)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {demands} |")
    lines += ["", "## Not here", "", *(wrap(text, "  ") for text in NOT_HERE), ""]
    (FOLDER / "README.md").write_text("\n".join(lines))


if __name__ == "__main__":
    for method_name in METHODS:
        update(method_name)
    index()
    update_privacy()
