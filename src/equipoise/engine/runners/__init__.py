"""Runners, which compute the clients' half of a round. All give the same numbers."""

from equipoise.engine.runners.choice import RUNNERS, RunnerName, choose_runner, count_cores, open_runner
from equipoise.engine.runners.in_process import Errand, Runner

__all__ = ["RUNNERS", "Errand", "Runner", "RunnerName", "choose_runner", "count_cores", "open_runner"]
