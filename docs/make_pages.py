"""Brings the generated part of the method pages up to date: `python docs/make_pages.py`."""

from __future__ import annotations

from pathlib import Path

from equipoise.method import METHODS, ROLES, parse
from equipoise.method.privacy import table

START, END = "<!-- from the code -->", "<!-- end -->"
FOLDER = Path(__file__).parent / "methods"


def page_of(name: str) -> Path:
    """The page of a method."""
    return FOLDER / f"{name}.md"


def generated(name: str) -> str:
    """Roles, parameters, defaults and reference, as the code has them."""
    entry = METHODS[name]
    method = parse(name)
    lines = [START, "", f"**{entry.title}.** {entry.reference}.", "", "| role | parts |", "|---|---|"]
    for role in ROLES:
        parts = getattr(method, role)
        parts = parts if isinstance(parts, tuple) else (parts,)
        shown = ", ".join(f"`{part!r}`" for part in parts) or "–"
        lines.append(f"| {role} | {_cell(shown)} |")
    if entry.parameters:
        sets = list(entry.per_dataset)
        lines += [
            "",
            "| parameter | type | default | " + "".join(f"{s} | " for s in sets),
            "|---|---|---|" + "---|" * len(sets),
        ]
        for parameter in entry.parameters.values():
            kind = str(parameter.annotation).replace("Literal", "one of ")
            values = [entry.per_dataset[s].get(parameter.name) for s in sets]
            cells = "".join(f" {'' if v is None else f'`{v!r}`'} |" for v in values)
            lines.append(f"| `{parameter.name}` | {_cell(kind)} | `{parameter.default!r}` |{cells}")
    return "\n".join([*lines, "", END])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def update_privacy() -> None:
    """Write the table of what methods reveal."""
    page = FOLDER.parent / "privacy.md"
    before, _, rest = page.read_text().partition(START)
    page.write_text(before + privacy_table() + rest.partition(END)[2])


def privacy_table() -> str:
    """What each method reveals of a site, as the code has it."""
    return f"{START}\n\n{table()}\n\n{END}"


def update(name: str) -> None:
    """Write the generated part of one page; a page that does not exist yet begins with it."""
    page = page_of(name)
    text = page.read_text() if page.exists() else f"# {name}\n\n{START}\n{END}\n"
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    page.write_text(before + generated(name) + after)


NOT_HERE = """## Not here

- **Pa3Fed** (AAAI 2025) stands in FedEquilibria's tables. Its rule is not public: neither code nor the body of the paper could
  be had, and the abstract does not determine it. It is left out rather than invented.
- **FOCUS** trains several models a client and assigns clients to them softly. It stands in none of the five papers' tables, and
  its algorithm is known to us from its abstract alone. It is left out.
"""


def index() -> None:
    """The list of all methods, which part plays which role in each, and what is missing."""
    lines = ["# Methods", "", "| method | what it does |", "|---|---|"]
    lines += [f"| [`{name}`]({name}.md) | {entry.title} |" for name, entry in sorted(METHODS.items())]
    lines += [
        "",
        "They combine with `+` unless two set the same thing: `moon + fedheal`, `scaffold + qffl`, `fpl + f2dc_modules`.",
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
    (FOLDER / "README.md").write_text("\n".join([*lines, "", NOT_HERE]))


if __name__ == "__main__":
    for method_name in METHODS:
        update(method_name)
    index()
    update_privacy()
