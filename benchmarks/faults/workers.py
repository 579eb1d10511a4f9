"""The fault that a worker process of a run is killed between two rounds."""

from __future__ import annotations

import os
import signal
import time

from equipoise import EquipoiseError, parse
from equipoise.engine.runners import Errand, open_runner
from equipoise.engine.runners.processes import Workers
from equipoise.rounds.server import begin_server, make_broadcast
from equipoise.task import Task
from faults.scene import make_federation
from faults.table import Row


def kill_workers(count: int) -> list[Row]:
    """Kill one of two workers between two rounds: the run must end at once, with one line."""
    said, slowest = 0, 0.0
    for _ in range(count):
        method = parse("fedavg")
        task = Task.build(method, make_federation(4))
        with open_runner("processes", method, task, cohort=4, available=2, sums=method.streams) as compute:
            assert isinstance(compute, Workers)
            errand = Errand([0, 1, 2, 3], make_broadcast(begin_server(method, task), 1), {}, 0, "train")
            compute(errand)
            os.kill(compute.workers[0].pid, signal.SIGKILL)
            clock = time.perf_counter()
            try:
                compute(errand)
            except EquipoiseError as error:
                said += "ended" in str(error)
            slowest = max(slowest, time.perf_counter() - clock)
    return [Row("worker process killed", count, f"{said} of {count} end with one line, within {slowest:.2f} s")]
