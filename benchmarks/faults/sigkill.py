"""Runs that are killed with SIGKILL at random moments and resumed, which must not change what they compute."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from equipoise import Checkpoints, EquipoiseError, run
from equipoise.engine.checkpoints import PREFIX, find_saved, hash_model, read
from equipoise.engine.runners.processes import hide_main
from equipoise.methods import METHODS
from faults.scene import make_federation, make_image_federation
from faults.table import Row, say

# The same method with less work in a round, where that changes nothing of what is kept.
QUICK = {
    "eagle": "eagle(lstar_epochs=5)",
    "fedlsa": "fedlsa(width=8, server_epochs=5)",
    "fedtgp": "fedtgp(server_epochs=3)",
}
KILLED = tuple(QUICK.get(name, name) for name in METHODS)
LONGEST = 300.0  # seconds that a run may be silent: far more than it needs


def kill_and_resume(count: int, seed: int = 0, rounds: int = 12, methods: Sequence[str] = KILLED) -> list[Row]:
    """Kill runs at moments drawn uniformly between first checkpoint and end, and resume them. Methods take turns."""
    draw = random.Random(seed)
    equal = loaded = mid = 0
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as root:
        whole: dict[str, tuple[str, float]] = {}  # what comes out of a run that nobody kills, and its seconds
        for number in range(count):
            method = methods[number % len(methods)]
            if method not in whole:
                result, times = Child(method, Path(root) / f"whole-{number}", rounds).finish()
                whole[method] = result, times[-1] - times[0]
            result, seconds = whole[method]
            folder = Path(root) / f"killed-{number}"
            _kill_in_the_middle(method, folder, rounds, draw, seconds)
            places = find_saved(folder)
            reached = int(places[-1].name.removeprefix(PREFIX))
            mid += reached < rounds
            loaded += all(map(_is_readable, places))
            same = Child(method, folder, rounds).finish()[0] == result
            equal += same
            wrong += [] if same else [method]
            shutil.rmtree(folder)
            outcome = "the same bits" if same else "OTHER BITS"
            say(f"kill {number + 1} of {count}: {method}, at round {reached} of {rounds}, {outcome}")
    figure = (
        f"{equal} of {count} with the same bits of the model and the same scores, over {len(whole)} methods ({mid} "
        f"killed before the last checkpoint); every checkpoint on disk loaded in {loaded} of {count}"
        + (f"; not so: {', '.join(wrong)}" if wrong else "")
    )
    return [Row("server killed (SIGKILL at a random moment), resumed", count, figure)]


def _kill_in_the_middle(method: str, folder: Path, rounds: int, draw: random.Random, seconds: float) -> None:
    """Leave behind what a run leaves that was killed on its way."""
    while True:
        child = Child(method, folder, rounds)
        child.hear()  # the first round is over, and its checkpoint is there
        time.sleep(draw.uniform(0, seconds))
        if child.kill():
            return
        shutil.rmtree(folder)  # it was quicker than the run that was measured, and over: once more


def _is_readable(place: Path) -> bool:
    try:
        read(place)
    except EquipoiseError:
        return False
    return True


class Child:
    """A run in a process of its own. A server that has imported everything makes it by forking, within milliseconds."""

    def __init__(self, method: str, folder: Path, rounds: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["equipoise.engine", "torch._dynamo"])  # the second comes with the first step
        self.pipe, there = context.Pipe()
        with hide_main():
            self.process = context.Process(target=_run_and_tell, args=(there, method, str(folder), rounds))
            self.process.start()
        there.close()

    def hear(self) -> tuple[str, object]:
        """The next thing that it says."""
        if not self.pipe.poll(LONGEST):
            raise RuntimeError("A run says nothing any more.")
        return self.pipe.recv()  # type: ignore[no-any-return]

    def finish(self) -> tuple[str, list[float]]:
        """Wait for its end: what came out, and when its rounds were over."""
        times = []
        while True:
            kind, value = self.hear()
            if kind == "result":
                self.process.join(LONGEST)
                return str(value), times
            times.append(float(str(value)))

    def kill(self) -> bool:
        """End it with SIGKILL; whether it was still at work."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(LONGEST)
        return self.process.exitcode == -signal.SIGKILL


def _run_and_tell(pipe: Connection, method: str, folder: str, rounds: int) -> None:
    """The child's life: a run that resumes where it can; it says when a round is over, and at last what came out."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data = make_image_federation(4) if method.startswith("f2dc") else make_federation(4)
    found = run(
        method, data, rounds=rounds, participation=0.75, runner="inline",
        checkpoint=Checkpoints(folder, resume=True), on_round=lambda _: pipe.send(("round", time.monotonic())),
    )  # fmt: skip
    scores = [(score.client, score.metric, score.value) for record in found.rounds for score in record.scores]
    pipe.send(("result", f"{hash_model(found.server)} {scores!r}"))
