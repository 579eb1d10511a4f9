"""Equipoise: fair federated learning. One shared model across data owners, and no owner left behind."""

from equipoise import methods
from equipoise.data import Client, Federation, Protocol, load_federation
from equipoise.engine.checkpoints import Checkpoints
from equipoise.engine.checks import Checks
from equipoise.engine.guard import Guard
from equipoise.engine.loop import Run, run
from equipoise.method import Method, parse, plugins, register
from equipoise.models import Staged, build_model
from equipoise.rounds.server import Aggregated, aggregate, client_round, server_round
from equipoise.runs.loading import Loaded, load
from equipoise.study.comparison import Comparison, compare
from equipoise.training import Training
from equipoise.types import EquipoiseError, EquipoiseWarning, Layout, Outputs

__version__ = "0.1.0"

plugins.load_named()

__all__ = [
    "Aggregated",
    "Checkpoints",
    "Checks",
    "Client",
    "Comparison",
    "EquipoiseError",
    "EquipoiseWarning",
    "Federation",
    "Guard",
    "Layout",
    "Loaded",
    "Method",
    "Outputs",
    "Protocol",
    "Run",
    "Staged",
    "Training",
    "aggregate",
    "build_model",
    "client_round",
    "compare",
    "load",
    "load_federation",
    "methods",
    "parse",
    "register",
    "run",
    "server_round",
]
