"""A whole run: its settings, the loop over rounds, the runners that compute it, its checkpoints, and its result."""

from equipoise.engine.checkpoints import Checkpoints
from equipoise.engine.checks import Checks
from equipoise.engine.guard import Guard
from equipoise.engine.result import Rejection, RoundRecord, Run, Selection
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import run

__all__ = ["Checkpoints", "Checks", "Guard", "Rejection", "RoundRecord", "Run", "Selection", "Settings", "run"]
