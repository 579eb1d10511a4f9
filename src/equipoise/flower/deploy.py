"""Writes a Flower app into a folder: a configuration, and a few lines of Python that a site's engineer can read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.flower.plan import Plan
from equipoise.method.plugins import find_own_files
from equipoise.models.own import find_file, find_own_builder, hide_folder
from equipoise.training import Training

TEMPLATES = Path(__file__).with_name("app")
OURS = ("__init__.py", "app.py")  # files of an app's package that are not the user's
# Settings that every app shows in its pyproject.toml, each with the comment that stands beside it there.
SHOWN = {
    "method": "`equipoise methods` lists them",
    "data": "a data set to try things out; empty: each site's --node-config names its own",
    "sites": "the run begins when this many sites are connected",
    "seed": "of everything random",
    "round_timeout": "seconds that a round waits for answers",
    "start_timeout": "seconds that the run waits for its sites",
    "min_sites": "a round with fewer answers does not count",
    "too_few": "what happens to a round with too few answers: repeat or skip",
    "guard": "limits what one site can gain by what it sends",
    "eval_every": "rounds between two evaluations at the sites",
    "site_state": "folder where a site keeps its state for a restart of its SuperNode; empty: none",
    "resume": "go on with this run where it stopped: flwr run --run-config resume=true",
    "out": "where the server writes its records",
}


def write_app(folder: Path, plan: Plan, schema: Mapping[str, object] | None = None) -> list[Path]:
    """Write the app into a new or empty folder, and return the files that were written.

    `schema` holds the classes and columns of sites that bring their own data. The app carries the user's own files that
    the plan's model, method and schedules come from.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EquipoiseError(f"`{folder}` is not empty. Name a new folder.")
    title = f"{plan.chosen} on {plan.data or 'data of the sites'}, with Equipoise"
    rates = (plan.trained_as(Training()).rate, *plan.chosen.rates)
    plugins = sorted(find_own_files(plan.chosen, *(function for rate in rates for function in rate.functions)))
    named = ", ".join(f'HERE / "{file.name}"' for file in plugins)
    carried = _read_files([*plugins, *([model] if (model := _find_model(plan)) else [])])
    files = {
        "pyproject.toml": (TEMPLATES / "pyproject.toml.txt")
        .read_text(encoding="utf-8")
        .format(
            name=re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation",
            title=title.replace('"', "'"),
            version=version("equipoise"),
            config="\n".join(_settings(plan)),
        ),
        "federated/__init__.py": '"""The app\'s code: see app.py."""\n',
        "federated/app.py": (TEMPLATES / "app.py.txt")
        .read_text(encoding="utf-8")
        .format(
            title=title,
            plugins="from equipoise.method.plugins import load_plugins\n" if plugins else "",
            loading=f"load_plugins([{named}])\n" if plugins else "",
        ),
        **{f"federated/{name}": text for name, text in carried.items()},
    }
    if schema is not None:
        files["federated/schema.json"] = json.dumps(schema, indent=2) + "\n"
    written = []
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        written.append(place)
    return written


def _settings(plan: Plan) -> list[str]:
    """The plan as lines of TOML: the settings that are always shown, then others that differ from their default."""
    changed = [one.name for one in fields(plan) if getattr(plan, one.name) != one.default and one.name != "training"]
    values = {name: getattr(plan, name) for name in dict.fromkeys((*SHOWN, *changed))}
    values |= {"method": str(plan.method), "min_sites": plan.min_sites or max(1, -(-plan.sites // 2))}
    if not isinstance(plan.model, str):  # a module cannot be written in TOML
        values.pop("model", None)
    elif "model" in values:
        values["model"] = hide_folder(plan.model)
    lines = [_line(name, value, SHOWN.get(name, "instead of the default")) for name, value in values.items()]
    trained = {name: value for name, value in plan.training.items() if value is not None or name == "batch"}
    return [*lines, *(_line(name, "full" if value is None else value, "") for name, value in trained.items())]


def _find_model(plan: Plan) -> Path | None:
    """The file of a model of the user's own, which must be there and hold what the plan names; None if it has none."""
    if not isinstance(plan.model, str) or not (file := find_file(plan.model)):
        return None
    find_own_builder(plan.model)
    return file.expanduser().resolve()


def _read_files(files: Iterable[Path]) -> dict[str, str]:
    """The user's own files by name, which must be other ones than those of the app."""
    found = {}
    for file in dict.fromkeys(files):
        if file.name in OURS or file.name in found:
            raise EquipoiseError(f"The app has a file `{file.name}` already. Rename `{file}`.")
        found[file.name] = file.read_text(encoding="utf-8")
    return found


def _line(name: str, value: object, meaning: str) -> str:
    text = json.dumps(value)
    return f"{name.replace('_', '-')} = {text}" + (f"  # {meaning}" if meaning else "")
