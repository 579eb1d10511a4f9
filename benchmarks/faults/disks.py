"""Faults of checkpoint folders: damaged files, a full disk, and a second process that uses the same folder."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import tempfile
import time
from pathlib import Path

from equipoise import Checkpoints, EquipoiseError, Run, run
from equipoise.engine.checkpoints import find_saved, hash_model, read, resume_or_clear
from equipoise.engine.folders import verify
from faults.scene import make_federation
from faults.sigkill import Child
from faults.table import Row

METHOD = "scaffold"  # its clients keep something: all kinds of files are there
LARGEST = 3000  # bytes: a disk is full somewhere below, and every checkpoint has a file that is larger


def _run_with_checkpoints(folder: Path, rounds: int, resume: bool = False) -> Run:
    """A short run with a checkpoint per round."""
    kept = Checkpoints(folder, resume=resume)
    return run(METHOD, make_federation(4), rounds=rounds, runner="inline", checkpoint=kept)


def damage_checkpoints(count: int, seed: int = 0) -> list[Row]:
    """Flip bits and cut files off in the newest checkpoint: the one before it must be used."""
    draw, rounds = random.Random(seed), 3
    with tempfile.TemporaryDirectory() as root:
        whole, folder = Path(root) / "whole", Path(root) / "damaged"
        _run_with_checkpoints(whole, rounds)
        before, newest = find_saved(whole)
        good, facts = hash_model(read(before).server), verify(before)["facts"]
        files = sorted(path.relative_to(whole) for path in newest.iterdir())
        files.append(Path(verify(newest)["records"]["file"]))
        found = {"with a bit flipped": 0, "truncated": 0}
        for kind in found:
            for _ in range(count):
                shutil.copytree(whole, folder)
                _damage(folder / draw.choice(files), kind == "truncated", draw)
                snapshot, wrong = resume_or_clear(Checkpoints(folder, resume=True), facts, rounds)
                found[kind] += bool(snapshot and wrong and hash_model(snapshot.server) == good)
                shutil.rmtree(folder)
    return [
        Row(f"checkpoint {kind}", count, f"{times} of {count} found out, and the one before it used")
        for kind, times in found.items()
    ]


def _damage(path: Path, cut_off: bool, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content))
    if cut_off:
        del content[place:]
    else:
        content[place] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def fill_disk(count: int, seed: int = 0) -> list[Row]:
    """Let no file grow beyond a random limit, as on a full disk: writing fails somewhere, and the last checkpoint must
    stay."""
    draw = random.Random(seed)
    intact = said = 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # it would end this process
    try:
        for _ in range(count):
            with tempfile.TemporaryDirectory() as root:
                folder = Path(root) / "run"
                _run_with_checkpoints(folder, rounds=2)
                hashes = {place.name: hash_model(read(place).server) for place in find_saved(folder)}
                shutil.rmtree(find_saved(folder)[-1])  # an unfinished run, at round 1
                resource.setrlimit(resource.RLIMIT_FSIZE, (draw.randrange(1, LARGEST), before[1]))
                try:
                    _run_with_checkpoints(folder, rounds=2, resume=True)
                except EquipoiseError as error:
                    said += "is kept" in str(error)
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, before)
                left = find_saved(folder)
                intact += len(left) == 1 and hash_model(read(left[0]).server) == hashes[left[0].name]
    finally:
        signal.signal(signal.SIGXFSZ, handler)
    figure = f"{intact} of {count} kept the last good one, {said} said so"
    return [Row("disk full while a checkpoint is written", count, figure)]


def start_second_process(count: int) -> list[Row]:
    """Begin a run in the folder of one that another process is at."""
    refused, slowest = 0, 0.0
    for _ in range(count):
        with tempfile.TemporaryDirectory() as root:
            first = Child("fedavg", Path(root), rounds=100_000)
            try:
                first.hear()
                clock = time.perf_counter()
                try:
                    run("fedavg", make_federation(4), rounds=2, checkpoint=Checkpoints(root))
                except EquipoiseError as error:
                    refused += "Another process" in str(error)
                slowest = max(slowest, time.perf_counter() - clock)
            finally:
                first.kill()
    return [Row("two processes, one folder", count, f"{refused} of {count} refused, within {slowest:.2f} s")]
