"""Who computes the clients' half of a round. All runners give the same numbers."""

from equipoise.runners.choice import RUNNERS, RunnerName, choose, cores, opened
from equipoise.runners.in_process import Errand, Runner

__all__ = ["RUNNERS", "Errand", "Runner", "RunnerName", "choose", "cores", "opened"]
