"""Equipoise: fair federated learning. One shared model across data owners, and no owner left behind.

The names that a user needs are here; those that the author of a method needs are in `equipoise.method`. A name is
imported when it is first used, so that `import equipoise` and `equipoise --help` do not wait for PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise import methods as methods
    from equipoise.data import Client as Client
    from equipoise.data import Federation as Federation
    from equipoise.data import Protocol as Protocol
    from equipoise.data import load_federation as load_federation
    from equipoise.engine import Checkpoints as Checkpoints
    from equipoise.engine import Checks as Checks
    from equipoise.engine import Guard as Guard
    from equipoise.engine import Run as Run
    from equipoise.engine import run as run
    from equipoise.errors import EquipoiseError as EquipoiseError
    from equipoise.errors import EquipoiseWarning as EquipoiseWarning
    from equipoise.method import Method as Method
    from equipoise.method import register as register
    from equipoise.method.plugins import load_plugins as load_plugins
    from equipoise.methods import parse as parse
    from equipoise.models import Staged as Staged
    from equipoise.models import build_model as build_model
    from equipoise.rounds import Aggregated as Aggregated
    from equipoise.rounds import aggregate as aggregate
    from equipoise.rounds import client_round as client_round
    from equipoise.rounds import server_round as server_round
    from equipoise.runs import Loaded as Loaded
    from equipoise.runs import load as load
    from equipoise.runs import save as save
    from equipoise.study.comparison import Comparison as Comparison
    from equipoise.study.comparison import compare as compare
    from equipoise.study.tuning.tune import Tuned as Tuned
    from equipoise.study.tuning.tune import tune as tune
    from equipoise.training import Training as Training
    from equipoise.types import Layout as Layout
    from equipoise.types import Outputs as Outputs

__version__ = "0.1.0"

_HOMES = {  # module -> the public names that are imported from it
    "data": ("Client", "Federation", "Protocol", "load_federation"),
    "engine": ("Checkpoints", "Checks", "Guard", "Run", "run"),
    "errors": ("EquipoiseError", "EquipoiseWarning"),
    "method": ("Method", "register"),
    "method.plugins": ("load_plugins",),
    "methods": ("parse",),
    "models": ("Staged", "build_model"),
    "rounds": ("Aggregated", "aggregate", "client_round", "server_round"),
    "runs": ("Loaded", "load", "save"),
    "study.comparison": ("Comparison", "compare"),
    "study.tuning.tune": ("Tuned", "tune"),
    "training": ("Training",),
    "types": ("Layout", "Outputs"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*sorted(_HOME_OF), "methods"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name == "methods":
        return importlib.import_module("equipoise.methods")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    importlib.import_module("equipoise.methods")  # registers all methods, whatever is used first
    found = getattr(importlib.import_module(f"equipoise.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
