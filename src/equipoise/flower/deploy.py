"""A Flower app in a folder of its own: a configuration, and a few lines of Python that a site's engineer can read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.flower.plan import Plan

CODE = '''"""{title}

Flower loads `client` at every site, and `server` where the model is put together. What is trained, and how, stands in
`pyproject.toml` under [tool.flwr.app.config]. A site's data stay where its --node-config says.
"""

from pathlib import Path

from equipoise.flower import client_app, server_app

SCHEMA = Path(__file__).with_name("schema.json")  # classes and columns, which all sites agreed on

client = client_app(schema=SCHEMA if SCHEMA.exists() else None)
server = server_app()
'''

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{title}"
license = "Apache-2.0"
# Nothing to install: each machine has `equipoise[flower]` {version} and the build of PyTorch that suits it.
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["federated"]

[tool.flwr.app]
publisher = "equipoise"

[tool.flwr.app.components]
serverapp = "federated.app:server"
clientapp = "federated.app:client"

[tool.flwr.app.config]
{config}
"""


def write_app(folder: Path, plan: Plan, schema: Mapping[str, object] | None = None) -> list[Path]:
    """Write the app, and give the files that were written. A folder that has something in it is left as it is.

    `schema` holds the classes and columns of sites that bring their own data.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EquipoiseError(f"`{folder}` is not empty. Name a new folder.")
    title = f"{plan.chosen} on {plan.data or 'data of the sites'}, with Equipoise"
    files = {
        "pyproject.toml": PROJECT.format(
            name=re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation",
            title=title.replace('"', "'"),
            version=version("equipoise"),
            config="\n".join(_settings(plan)),
        ),
        "federated/__init__.py": '"""The app\'s code: see app.py."""\n',
        "federated/app.py": CODE.format(title=title),
    }
    if schema is not None:
        files["federated/schema.json"] = json.dumps(schema, indent=2) + "\n"
    written = []
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        written.append(place)
    return written


def _settings(plan: Plan) -> list[str]:
    """The plan as lines of TOML, each with what it means."""
    lines = [
        _line("method", str(plan.method), "`equipoise methods` lists them"),
        _line("data", plan.data, "a data set to try things out; empty: each site's --node-config names its own"),
        _line("sites", plan.sites, "the run begins when so many are there"),
        _line("seed", plan.seed, "of everything random"),
        _line("round-timeout", plan.round_timeout, "seconds that a round waits for answers"),
        _line("start-timeout", plan.start_timeout, "seconds that the run waits for its sites"),
        _line("min-sites", plan.min_sites or max(1, -(-plan.sites // 2)), "a round with fewer answers does not count"),
        _line("too-few", plan.too_few, "what happens to it: repeat or skip"),
        _line("guard", plan.guard, "limits what a site can gain by reporting a false loss"),
        _line("eval-every", plan.eval_every, "rounds between two evaluations at the sites"),
        _line("site-state", plan.site_state, "where a site keeps its state when its SuperNode ends; empty: nowhere"),
        _line("resume", plan.resume, "go on with this run where it stopped: flwr run --run-config resume=true"),
        _line("out", plan.out, "where the server writes its records"),
    ]
    if plan.rounds is not None:
        lines.append(_line("rounds", plan.rounds, "instead of the protocol's"))
    if isinstance(plan.model, str):
        lines.append(_line("model", plan.model, "instead of the protocol's"))
    if plan.protection != "none":
        lines.append(_line("protection", plan.protection, "methods that do not work under it are refused"))
    changed = (_line(name, "full" if value is None else value, "") for name, value in plan.training.items())
    return [*lines, *changed]


def _line(name: str, value: object, meaning: str) -> str:
    text = json.dumps(value)
    return f"{name.replace('_', '-')} = {text}" + (f"  # {meaning}" if meaning else "")
