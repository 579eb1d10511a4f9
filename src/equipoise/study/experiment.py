"""Experiment files: TOML that asks for all combinations of methods, data, seeds and parameters."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from equipoise.data import DATASETS, Federation, load_federation
from equipoise.data.catalogue import is_path
from equipoise.engine.settings import check_option
from equipoise.errors import EquipoiseError
from equipoise.grammar import Call, Mistakes, did_you_mean, fit_to_type, require
from equipoise.methods import parse
from equipoise.models import find_builder
from equipoise.runs.meant import check_clients
from equipoise.runs.requests import normalise_requests
from equipoise.study.jobs import Job, list_jobs
from equipoise.study.tuning.plan import TRIALS, Plan
from equipoise.training import check_training_changes

SETTINGS = (
    "rounds",
    "participation",
    "model",
    "runner",
    "device",
    "eval_every",
    "with_validation",
    "train_scores",
    "until_flat",
    "hold_out",
    "loss",
    "metrics",
    "eval_clients",
    "keep",
)  # keys that set a field of all jobs
LISTS = ("methods", "data", "seeds", "grid", "training", "tune")  # keys that are lists or tables
TUNING = ("trials", "minutes", "seeds", "objective", "methods", "rivals", "search_seed")  # keys of the table `tune`
MOST = 10_000  # seeds that an experiment may have
KEY = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")  # at the beginning of a line of TOML


@dataclass(frozen=True)
class Experiment:
    """The runs that a file asks for, and their data, loaded once."""

    jobs: tuple[Job, ...]
    data: Mapping[str, Federation]  # by the name that the jobs have for it
    plans: tuple[Plan, ...] = ()  # of tunings, one per data set


def read_experiment(path: Path) -> Experiment:
    """Read the experiment file at `path`: every run that it asks for.

    `methods`, `data` and `seeds` are lists. `[grid.fedheal]` gives lists of values for a method's parameters, and every
    combination of them is a method of its own. `[training]` changes the local training of all data sets. `[tune]` asks for
    a search of compositions on each of them; `methods` may then be left out. All that is wrong with a file is said in one
    error, each mistake with its line.
    """
    file = _File.read(path)
    for name in file.content:
        with file.noted(name):
            _known(name, (*LISTS, *SETTINGS), "An experiment")
    template = Job(**_settings(file))  # type: ignore[arg-type]
    methods = [] if "tune" in file.content and "methods" not in file.content else _expanded(file)
    wanted = _tuning(file)
    seeds = _seeds(file)
    place = partial(file.place, "training")
    changes = check_training_changes(_table(file, "training"), file.mistakes, place)
    found: list[Job] = []
    plans: list[Plan] = []
    loaded: dict[str, Federation] = {}
    for dataset in dict.fromkeys(_texts(file, "data")):
        with file.noted("data", item=dataset):
            data = load_or_look_up(dataset, file.mistakes)
            if data is not None:
                with file.noted("hold_out"):
                    left = data.hold_out(template.hold_out)
                    with file.noted("keep"):
                        check_clients(template.keep, left)
                training = data.protocol.training.change(changes) if changes else None
                job = replace(template, dataset=dataset, training=training)
                found += list_jobs(methods, data, seeds, job)
                loaded[dataset] = data
                if "tune" in file.content:
                    with file.noted("tune"):
                        plans.append(Plan.for_data(data, job, **wanted))
    file.mistakes.refuse()
    return Experiment(tuple(found), loaded, tuple(plans))


def load_or_look_up(dataset: str, mistakes: Mistakes) -> Federation | None:
    """Load the data. If mistakes were found already, only check the name, because loading can take long."""
    if not mistakes.found:
        return load_federation(dataset)
    if not is_path(dataset):
        DATASETS.find(dataset.split("(")[0].strip().replace("_", "-"))
    return None


# --------------------------------------------------------------------------- the file and its lines
@dataclass(frozen=True)
class _File:
    """An experiment file, and what is wrong with it."""

    path: Path
    text: str
    content: Mapping[str, Any]  # the text as TOML
    mistakes: Mistakes = field(default_factory=Mistakes)

    @classmethod
    def read(cls, path: Path) -> _File:
        """Read a file. If it is not TOML, the error names the line."""
        text = ""
        try:
            text = path.read_text(encoding="utf-8")
            return cls(path, text, tomllib.loads(text))
        except OSError as error:
            raise EquipoiseError(f"Cannot read `{path}`: {error.strerror}.") from None
        except (ValueError, RecursionError) as error:
            why = str(error) or "it is nested too deeply"
            line = re.search(r"at line (\d+)", why)
            raise EquipoiseError(
                f"{path}:{line[1] if line else len(text.splitlines())}: this is not TOML: {why}."
            ) from None

    def place(self, *keys: str, item: str = "") -> str:
        """Where a key stands, or an item of its list, such as `file.toml:7`; only the file if the line is not found."""
        table: list[str] = []
        line = 0
        for number, content in enumerate(self.text.splitlines(), 1):
            header = re.match(r"\s*\[+([^\]]+)\]+", content)
            key = KEY.match(content)
            if header and not line:
                table = _names(header[1])
                line = number if table[: len(keys)] == list(keys) else 0
            elif key and not line:
                line = number if [*table, *_names(key[1])][: len(keys)] == list(keys) else 0
            if line and (not item or item in content):
                return f"{self.path}:{number}"
        return f"{self.path}:{line}" if line and not item else self.place(*keys) if item else str(self.path)

    def noted(self, *keys: str, item: str = "") -> AbstractContextManager[None]:
        """Note an error that is raised inside as a mistake in the line of this key."""
        return self.mistakes.noted(self.place(*keys, item=item))

    def wrong(self, what: str, *keys: str) -> None:
        """Note a mistake in the line of this key."""
        self.mistakes.found.append(f"{self.place(*keys)}: {what}")


def _names(dotted: str) -> list[str]:
    """The parts of a dotted key of TOML, without quotes."""
    return [part.strip(" \t\"'") for part in dotted.split(".")]


# --------------------------------------------------------------------------- what its keys say
def _known(name: str, names: Sequence[str], what: str) -> None:
    if name not in names:
        raise EquipoiseError(f"{what} has no `{name}`.{did_you_mean(name, names)} Known: {', '.join(names)}.")


def _settings(file: _File) -> dict[str, object]:
    hints, found = get_type_hints(Job), {}
    for name in SETTINGS:
        if name in file.content:
            with file.noted(name):
                found[name] = fit_to_type(file.content[name], hints[name], name)
                check_option(name, found[name])
                if name == "keep":
                    found[name] = normalise_requests(file.content[name])
                if name == "model":
                    find_builder(str(found[name]))
    return found


def _texts(file: _File, name: str) -> list[str]:
    found = file.content.get(name)
    texts = [found] if isinstance(found, str) else found
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return texts
    file.wrong(f"an experiment must give `{name}` as a list of names, such as {name} = ['...']. Found {found!r}.", name)
    return []


def _table(file: _File, name: str) -> dict[str, Any]:
    found = file.content.get(name, {})
    if isinstance(found, dict):
        return found
    file.wrong(f"`{name}` must be a table, such as [{name}]. Found {found!r}.", name)
    return {}


def _tuning(file: _File) -> dict[str, Any]:
    """What the table `tune` asks for."""
    hints, found = get_type_hints(Plan), {}
    for name, value in _table(file, "tune").items():
        with file.noted("tune", name):
            _known(name, TUNING, "A tuning")
            found[name] = fit_to_type(value, hints[name], name)
    if not {"trials", "minutes"} & set(found):
        found["trials"] = TRIALS
    return found


def _seeds(file: _File) -> list[int]:
    given, found = file.content.get("seeds", 3), []
    with file.noted("seeds"):
        counted = isinstance(given, int) and not isinstance(given, bool)
        several = list(range(min(given, MOST + 1))) if counted else given
        if not isinstance(several, list) or not several:
            raise EquipoiseError(
                f"seeds must be a number of seeds such as 3, or a list such as [0, 42]. Found {given!r}."
            )
        require(len(several) <= MOST, "seeds", f"at most {MOST}", given)
        found = [int(str(fit_to_type(seed, int, "each of the seeds"))) for seed in several]
    return list(dict.fromkeys(found))  # empty if a mistake was noted


def _expanded(file: _File) -> list[str]:
    """The methods, each with every combination of the values in its grid."""
    grids = _table(file, "grid")
    for name in [name for name, grid in grids.items() if not isinstance(grid, dict)]:
        file.wrong("a grid is a table for a method, such as [grid.fedheal] with tau = [0.2, 0.3].", "grid", name)
    used: set[str] = set()
    found: dict[str, None] = {}
    for text in _texts(file, "methods"):
        with file.noted("methods", item=text):
            calls = parse(text).calls
            mine = {call.name: grids[call.name] for call in calls if isinstance(grids.get(call.name), dict)}
            used |= set(mine)
            axes = [_axis(file, method, name, values) for method, grid in mine.items() for name, values in grid.items()]
            for point in itertools.product(*axes):
                found[str(parse(" + ".join(str(_at(call, point)) for call in calls)))] = None
    named = set(re.findall(r"\w+", str(file.content.get("methods"))))
    for name in [name for name in grids if name not in used and name not in named]:
        nearest = did_you_mean(name, named)
        file.wrong(
            f"there is a grid for `{name}`, which is not among the methods.{nearest} Name it there.", "grid", name
        )
    return list(found)


def _axis(file: _File, method: str, name: str, values: object) -> list[tuple[str, str, object]]:
    """The values in the grid of a parameter, as (method, parameter, value). Those that cannot be used are noted."""
    found = []
    for value in values if isinstance(values, list) else [values]:
        with file.noted("grid", method, name):
            parse(str(Call(method, ((name, value),))))
            found.append((method, name, value))
    return found


def _at(call: Call, point: Sequence[tuple[str, str, object]]) -> Call:
    """A method's call with the parameters that this point of the grid has for it."""
    changed = {name: value for method, name, value in point if method == call.name}
    return Call(call.name, tuple({**dict(call.arguments), **changed}.items()))
