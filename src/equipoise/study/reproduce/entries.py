"""The tables and figures of papers, as the TOML files in `benchmarks/papers/` describe them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import equipoise
from equipoise.errors import EquipoiseError
from equipoise.grammar import did_you_mean, join_words
from equipoise.runs.requests import normalise_requests
from equipoise.study.report.view import View

PresetName = Literal["paper", "cpu"]
PRESETS: tuple[PresetName, ...] = get_args(PresetName)
ABOUT = "paper.toml"  # the file that describes the paper itself, in its folder
MEASURED = "measured"  # the folder of stored results


@dataclass(frozen=True)
class Paper:
    """A paper whose tables and figures can be reproduced."""

    name: str  # as the command line calls it
    title: str
    reference: str
    claims: tuple[str, ...]  # what it says about its method, in our words
    protocol: tuple[str, ...]  # how it measured that
    unaffordable: str = ""  # what keeps its protocol from being run on a small machine
    reading: tuple[str, ...] = ()  # what it leaves open or contradicts, and how we decided
    found: tuple[str, ...] = ()  # what we learnt from the runs


@dataclass(frozen=True)
class Row:
    """A row of a table, or a point or curve of a figure."""

    name: str
    method: str | Mapping[str, str] = ""  # as text; or by the name of the data, where they differ
    data: str = ""  # which of the preset's data it belongs to; empty: the only one, or the column says
    metric: str = ""  # a recorded metric that takes the place of the accuracy, such as `accuracy of f+`
    training: Mapping[str, Any] = field(default_factory=dict)  # changes to the data set's local training, for this row
    gains_over: str = ""  # the row that columns `..._gain` are measured against
    cannot: str = ""  # why it cannot be run, if it cannot
    ours: bool = False  # it is not in the paper
    published: Mapping[str, float] = field(default_factory=dict)  # column -> value, as printed

    def find_method(self, data: str) -> str:
        """The method on these data; empty if the row has none there."""
        return self.method if isinstance(self.method, str) else self.method.get(data, "")


@dataclass(frozen=True)
class Column:
    """A column of a table: which figure of a run it shows."""

    name: str
    figure: str = ""  # a name in `figures.FIGURES`; empty: the column's own name
    unit: tuple[str, ...] = ()  # names that the domain or client may have, for a column that belongs to one
    data: str = ""  # which of the preset's data it belongs to, if it belongs to some


@dataclass(frozen=True)
class Claim:
    """A statement that runs can confirm or refute: a row is better than others, reaches a value, or comes back."""

    text: str  # in our words
    column: str
    row: str
    beats: tuple[str, ...] = ()  # rows; "*" stands for all others of the paper
    lower: bool | None = None  # whether better means lower; None: as the column's figure has it
    at_least: float | None = None  # a value that the row must reach
    near: float | None = None  # how far the mean over the preset's seeds may be from the published value


@dataclass(frozen=True)
class Erratum:
    """Something that is known to be wrong, missing or inferred in the printed numbers."""

    text: str
    row: str = ""  # empty: of the whole table
    column: str = ""  # empty: of the whole row
    instead: float | None = None  # the value that follows from the other printed ones


@dataclass(frozen=True)
class Preset:
    """How an entry is run: as in the paper, or smaller."""

    data: Mapping[str, str]  # name -> data set as text; `{seed}` in it stands for the run's seed
    seeds: tuple[int, ...]
    rounds: int | None = None  # None: the data set's
    model: str | None = None  # None: the data set's
    eval_every: int = 1
    training: Mapping[str, Any] = field(default_factory=dict)  # changes to the data set's local training
    note: str = ""  # how it differs from the paper, for a reader of the numbers


@dataclass(frozen=True)
class Entry:
    """A table or figure of a paper."""

    paper: str
    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    presets: Mapping[PresetName, Preset]
    view: View = View("domains")  # over what AVG, STD and MIN are taken, and after which rounds
    ordering: tuple[str, ...] = ()  # columns by which the order of the rows is compared with the published one
    claims: tuple[Claim, ...] = ()
    errata: tuple[Erratum, ...] = ()
    keep: tuple[str, ...] = ()  # what runs keep for plots, as `runs/requests.py` writes it
    train_scores: bool = False  # whether runs score their training data, too
    costs_only: bool = False  # nothing is trained: the columns are costs that follow from the settings
    notes: tuple[str, ...] = ()  # what a reader should know

    @property
    def key(self) -> str:
        """Its name on the command line: `fedheal:table5_ablation_digits`."""
        return f"{self.paper}:{self.name}"

    def find_row(self, name: str) -> Row:
        """The row of this name."""
        return next(row for row in self.rows if row.name == name)

    def find_column(self, name: str) -> Column:
        """The column of this name."""
        return next(column for column in self.columns if column.name == name)

    def find_erratum(self, row: str, column: str) -> Erratum | None:
        """What is known to be wrong with a cell, or with its whole row."""
        mine = [one for one in self.errata if one.row == row and one.column in (column, "")]
        return max(mine, key=lambda one: bool(one.column), default=None)

    def find_published(self, row: str, column: str) -> float | None:
        """The published value of a cell, or what it should have been by the other printed numbers; None if lost."""
        erratum = self.find_erratum(row, column)
        if erratum is not None and erratum.column and erratum.instead is not None:
            return erratum.instead
        return self.find_row(row).published.get(column)


# --------------------------------------------------------------------------- the folder
def find_papers_folder() -> Path:
    """The folder of the papers' files: that of the checkout, or the copy inside the installed package."""
    package = Path(equipoise.__file__).parent
    for place in (package.parent.parent / "benchmarks" / "papers", package / "papers"):
        if place.is_dir():
            return place
    raise EquipoiseError(
        "The papers' files are not here: neither `benchmarks/papers` of a checkout nor the copy that an installed package "
        "has. Install Equipoise anew, or work in a checkout."
    )


def list_papers(folder: Path | None = None) -> dict[str, Paper]:
    """All papers by name."""
    places = sorted((folder or find_papers_folder()).glob(f"*/{ABOUT}"))
    return {place.parent.name: read_paper(place) for place in places}


def list_entries(folder: Path | None = None) -> list[Entry]:
    """All tables and figures: by paper, tables before figures, each by number."""
    places = [path for path in (folder or find_papers_folder()).glob("*/*.toml") if path.name != ABOUT]
    return sorted(map(read_entry, places), key=lambda entry: (entry.paper, *_number(entry.name)))


def find_entries(text: str, folder: Path | None = None) -> list[Entry]:
    """The entries that a text names: `fedheal:table5_digits` one, `fedheal` or `fedheal:all` all of a paper.

    The words of a table's name may be left out as long as one table is meant.
    """
    known = list_entries(folder)
    paper, _, name = text.partition(":")
    papers = list(dict.fromkeys(entry.paper for entry in known))
    if paper not in papers:
        raise EquipoiseError(
            f"There is no paper `{paper}`.{did_you_mean(paper, papers)} Known: {', '.join(papers)}. `equipoise reproduce` "
            "lists their tables and figures."
        )
    mine = [entry for entry in known if entry.paper == paper]
    if name in ("", "all"):
        return mine
    exact = [entry for entry in mine if entry.name == name]
    words = name.split("_")
    alike = [
        entry for entry in mine if entry.name.split("_")[0] == words[0] and set(words) <= set(entry.name.split("_"))
    ]
    found = exact or alike
    if not found:
        names = [entry.name for entry in mine]
        raise EquipoiseError(f"`{paper}` has no `{name}`.{did_you_mean(name, names)} Known: {', '.join(names)}.")
    if len(found) > 1:
        raise EquipoiseError(
            f"`{text}` may be each of {join_words([entry.key for entry in found], 10)}. Name one of them."
        )
    return found


def _number(name: str) -> tuple[str, int, str]:
    """A key that sorts `table2` before `table10`, and tables before figures."""
    kind = name.split("_")[0]
    digits = "".join(letter for letter in kind if letter.isdigit())
    return ("1" if kind.startswith("figure") else "0", int(digits or 0), name)


# --------------------------------------------------------------------------- the files
def read_paper(path: Path) -> Paper:
    """Read the file that describes a paper."""
    content = _read_toml(path)
    _refuse_unknown(path, content, [f.name for f in fields(Paper) if f.name != "name"])
    try:
        return Paper(
            path.parent.name,
            content["title"],
            content["reference"],
            tuple(content["claims"]),
            tuple(content["protocol"]),
            content.get("unaffordable", ""),
            tuple(content.get("reading", ())),
            tuple(content.get("found", ())),
        )
    except KeyError as missing:
        raise EquipoiseError(f"{path}: {missing.args[0]} is missing.") from None


def read_entry(path: Path) -> Entry:
    """Read the file of a table or figure. What does not fit together is an error that names the file."""
    content = _read_toml(path)
    names = [f.name for f in fields(Entry) if f.name not in ("paper", "name", "view")]
    _refuse_unknown(path, content, [*names, *(f.name for f in fields(View)), "units", "figures"])
    try:
        entry = Entry(
            path.parent.name,
            path.stem,
            content["title"],
            tuple(_read_columns(content)),
            tuple(Row(**row) for row in content["rows"]),
            {name: _read_preset(content["presets"][name]) for name in PRESETS if name in content["presets"]},
            claims=tuple(
                Claim(**{**claim, "beats": tuple(claim.get("beats", ()))}) for claim in content.get("claims", ())
            ),
            errata=tuple(Erratum(**erratum) for erratum in content.get("errata", ())),
            ordering=tuple(content.get("ordering", ())),
            keep=normalise_requests(content.get("keep", ())),
            notes=tuple(content.get("notes", ())),
            view=View(content.get("over", "domains"), content.get("ddof", 0), content.get("last", 1)),
            **{n: content[n] for n in ("train_scores", "costs_only") if n in content},
        )
    except (KeyError, TypeError) as error:
        raise EquipoiseError(f"{path}: cannot be read as a table of a paper: {error}.") from None
    except EquipoiseError as error:
        raise EquipoiseError(f"{path}: {error}") from None
    for wrong in _find_loose_ends(entry):
        raise EquipoiseError(f"{path}: {wrong}")
    return entry


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EquipoiseError(f"{path}: cannot be read: {error}.") from None


def _refuse_unknown(path: Path, content: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in content:
        if name not in known:
            raise EquipoiseError(f"{path}: `{name}` is unknown.{did_you_mean(name, known)} Known: {', '.join(known)}.")


def _read_columns(content: Mapping[str, Any]) -> Iterator[Column]:
    units, figures = content.get("units", {}), content.get("figures", {})
    for name in content["columns"]:
        base = name.removesuffix("_gain")
        if base in units:
            unit = units[base]
            yield Column(name, "accuracy of a unit", (unit,) if isinstance(unit, str) else tuple(unit))
        else:
            found = figures.get(base, {})
            unit = found.get("unit", ())
            yield Column(
                name,
                found.get("figure", base),
                (unit,) if isinstance(unit, str) else tuple(unit),
                found.get("data", ""),
            )


def _read_preset(content: Mapping[str, Any]) -> Preset:
    data, seeds = content["data"], content.get("seeds", 3)
    return Preset(
        **{
            **content,
            "data": {"": data} if isinstance(data, str) else data,
            "seeds": tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        }
    )


def _find_loose_ends(entry: Entry) -> Iterator[str]:
    """What an entry names and does not have."""
    rows, columns = [row.name for row in entry.rows], [column.name for column in entry.columns]
    if not entry.presets:
        yield "it has no preset. Give [presets.cpu] or [presets.paper]."
    for row in entry.rows:
        if bool(row.method) == bool(row.cannot):
            yield f"row `{row.name}` needs either a method or `cannot`, the reason why it has none."
        if row.gains_over and row.gains_over not in rows:
            yield f"row `{row.name}` gains over `{row.gains_over}`, which is no row."
    for claim in entry.claims:
        for name in (claim.row, *claim.beats):
            if name not in rows and name != "*":
                yield f"a claim names the row `{name}`, which is not there.{did_you_mean(name, rows)}"
        if claim.column not in columns:
            yield f"a claim names the column `{claim.column}`, which is not there.{did_you_mean(claim.column, columns)}"
        if not claim.beats and claim.at_least is None and claim.near is None:
            yield f"the claim `{claim.text}` needs `beats`, `at_least` or `near`."
    for name in entry.ordering:
        if name not in columns:
            yield f"`ordering` names the column `{name}`, which is not there.{did_you_mean(name, columns)}"
    for erratum in entry.errata:
        if erratum.row and erratum.row not in rows:
            yield f"an erratum names the row `{erratum.row}`, which is not there.{did_you_mean(erratum.row, rows)}"
