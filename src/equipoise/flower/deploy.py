"""Writes a Flower app into a folder: a configuration, and a few lines of Python that a site's engineer can read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.flower.plan import Plan

TEMPLATES = Path(__file__).with_name("app")
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

    `schema` holds the classes and columns of sites that bring their own data.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EquipoiseError(f"`{folder}` is not empty. Name a new folder.")
    title = f"{plan.chosen} on {plan.data or 'data of the sites'}, with Equipoise"
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
        "federated/app.py": (TEMPLATES / "app.py.txt").read_text(encoding="utf-8").format(title=title),
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
    lines = [_line(name, value, SHOWN.get(name, "instead of the default")) for name, value in values.items()]
    return [*lines, *(_line(name, "full" if value is None else value, "") for name, value in plan.training.items())]


def _line(name: str, value: object, meaning: str) -> str:
    text = json.dumps(value)
    return f"{name.replace('_', '-')} = {text}" + (f"  # {meaning}" if meaning else "")
