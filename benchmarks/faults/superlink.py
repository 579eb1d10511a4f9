"""Faults of a real federation on this machine: SuperNodes hang or are killed, or the SuperLink is killed with them."""

from __future__ import annotations

import math
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from equipoise import run
from equipoise.runs.reading import read
from faults.table import Row, say
from loopback import Loopback

TIMEOUT = 25  # seconds that a round waits for answers
SITES = 3
METHOD = "scaffold"  # its sites keep something between rounds, which must survive with them


class RoundSeen(NamedTuple):
    """What the server says when a round is over."""

    number: int
    sites: int
    seconds: float


def _prepare_federation(folder: Path, rounds: int) -> Loopback:
    """An app for three sites, each with a part of the synthetic data."""
    from equipoise.flower import Plan  # here, because the other faults do not need Flower
    from equipoise.flower.deploy import write_app

    plan = Plan(
        method=METHOD, data="gaussians", sites=SITES, rounds=rounds, min_sites=2, round_timeout=TIMEOUT,
        eval_every=rounds, out=str(folder / "runs"),
    )  # fmt: skip
    write_app(folder / "app", plan)
    return Loopback(folder / "federation")


def _configure(here: Loopback, part: int) -> str:
    """The configuration of a node: its part of the data, and where it keeps its states."""
    return f'partition-id={part} state="{here.folder / "states"}"'


def _start_all(here: Loopback) -> None:
    here.start_superlink()
    for k in range(SITES):
        here.start_supernode(f"site{k}", _configure(here, k))


def _follow(here: Loopback, folder: Path, rounds: int, config: str = "") -> Iterator[RoundSeen]:
    """Start a run, and give each of its rounds when it is over."""
    for line in here.run(folder / "app", rounds * 5 * TIMEOUT, config):
        found = re.match(r"Round (\d+), (\d+) sites, ([\d.]+) s", line)
        if found:
            say(f"          {line}")
            yield RoundSeen(int(found[1]), int(found[2]), float(found[3]))


def lose_site(rounds: int = 6) -> list[Row]:
    """Let one site hang (SIGSTOP) and go on; later kill it (SIGKILL) and start it again."""
    counted: dict[int, int] = {}
    over: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as root, _prepare_federation(Path(root), rounds) as here:
        _start_all(here)
        for seen in _follow(here, Path(root), rounds):
            counted[seen.number] = seen.sites
            if seen.number == 1:
                here.send_signal("site1", signal.SIGSTOP)
            elif seen.number == 2:
                over["hung"] = seen.seconds - TIMEOUT
                here.send_signal("site1", signal.SIGCONT)
            elif seen.number == 3:
                here.end("site1", signal.SIGKILL)
            elif seen.number == 4:
                over["killed"] = seen.seconds - TIMEOUT
                here.start_supernode("site1", _configure(here, 1))
    rows = []
    for fault, how, lost, later in (
        ("hung", "SIGSTOP", 2, range(3, 4)),
        ("killed", "SIGKILL", 4, range(5, rounds + 1)),
    ):
        again = next((number for number in later if counted.get(number) == SITES), None)
        ended = f"the round ended {over[fault]:.1f} s after the limit of {TIMEOUT} s, with {counted[lost]} sites"
        came = f"it counted again in round {again}" if again else f"it had not counted again by round {later[-1]}"
        rows.append(Row(f"site {fault} ({how}) on a SuperLink, 1 of {SITES}", 1, f"{ended}; {came}"))
    return rows


def lose_server(rounds: int = 3) -> list[Row]:
    """Kill SuperLink, server and sites after the first round; start all of them again, and resume the run."""
    with tempfile.TemporaryDirectory() as root, _prepare_federation(Path(root), rounds) as here:
        _start_all(here)
        before = 0
        for seen in _follow(here, Path(root), rounds):
            before = seen.number
            for name in [*(f"site{k}" for k in range(SITES)), "superlink"]:
                here.end(name, signal.SIGKILL)
            break
        _start_all(here)
        after = [seen.number for seen in _follow(here, Path(root), rounds, "resume=true")]
        off = _compare_to_simulation(Path(root) / "runs", rounds)
    figure = (
        f"killed after round {before}, went on with rounds {', '.join(map(str, after))}; final scores are "
        + (f"{off:.0e} off those" if off else "exactly those")
        + " of an uninterrupted simulation"
    )
    return [Row("SuperLink, server and sites killed (SIGKILL), resumed", 1, figure)]


def _compare_to_simulation(runs: Path, rounds: int) -> float:
    """How far the final scores of the stored run are at most from a simulation's; infinite where there are none."""
    manifests = list(runs.glob("*/manifest.json"))
    if not manifests:
        return math.inf
    last = [row for row in read(manifests[0].parent).records.to_pylist() if row["round"] == rounds]
    found = {(row["client"], row["metric"]): row["value"] for row in last}
    simulated = run(METHOD, "gaussians", rounds=rounds, runner="inline", eval_every=rounds)
    pairs = [(found.get((s.client, s.metric), math.inf), s.value) for s in simulated.scores if s.split == "test"]
    return max((abs(a - b) for a, b in pairs), default=math.inf)
