"""Who computes the clients' half of a round. All runners give the same numbers."""

from equipoise.runners.choice import RUNNERS, Runner, RunnerName, choose, cores, opened

__all__ = ["RUNNERS", "Runner", "RunnerName", "choose", "cores", "opened"]
