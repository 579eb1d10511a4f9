"""Injects faults and prints what comes of each, as one Markdown table: `python benchmarks/faults`.

The faults are bad answers, what hostile sites send over Flower, false losses, runs killed with SIGKILL at random moments
and resumed, damaged checkpoints, a full disk, a second process in the same folder, killed workers, and lost sites and
servers of a real federation.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

if not __package__:  # started as a folder: Python then looks for modules inside it, and not beside it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))  # for `kit.flower`, Flower without a network

from faults import superlink
from faults.answers import send_bad_answers
from faults.attackers import attack_methods
from faults.disks import damage_checkpoints, fill_disk, start_second_process
from faults.liars import guard_honest_clients, lie_in_runs
from faults.losses import weigh_odd_losses
from faults.sigkill import kill_and_resume
from faults.table import Row, say, write_table
from faults.workers import kill_workers


def _answer_as_hostile_site(times: int) -> list[Row]:
    from faults.hostile import answer_as_hostile_site  # here, because the other faults do not need Flower

    return answer_as_hostile_site(times)


def main() -> None:
    """Do the stages asked for, and print the table."""
    parser = argparse.ArgumentParser("faults", description=__doc__)
    parser.add_argument("--updates", type=int, default=1700, help="bad answers")
    parser.add_argument(
        "--losses", type=int, default=10_000, help="vectors of odd losses, for each loss-driven weighting"
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds of every liar and attacker")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--damages", type=int, default=500, help="flipped bits, and as many cut-off files")
    parser.add_argument("--others", type=int, default=10, help="times of every other fault")
    parser.add_argument("--only", default="", help="stages, separated by commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    stages: dict[str, Callable[[], list[Row]]] = {
        "updates": lambda: send_bad_answers(options.updates),
        "kills": lambda: kill_and_resume(options.kills),
        "damages": lambda: damage_checkpoints(options.damages),
        "disk": lambda: fill_disk(options.others),
        "two": lambda: start_second_process(options.others),
        "workers": lambda: kill_workers(options.others),
        "losses": lambda: weigh_odd_losses(options.losses),
        "attackers": lambda: attack_methods(seeds),
        "attacked clinics": lambda: attack_methods(seeds, "clinics", ["guard + robust"]),
        "liars": lambda: lie_in_runs(seeds),
        "honest": guard_honest_clients,
        "hostile": lambda: _answer_as_hostile_site(options.others),
        "sites": superlink.lose_site,
        "server": superlink.lose_server,
    }
    chosen = [name for name in options.only.split(",") if name] or list(stages)
    unknown = [name for name in chosen if name not in stages]
    if unknown:
        parser.error(f"There is no stage `{unknown[0]}`. Stages: {', '.join(stages)}.")
    rows: list[Row] = []
    for number, name in enumerate(chosen, 1):
        clock = time.perf_counter()
        found = stages[name]()
        rows += found
        say(f"{time.perf_counter() - clock:6.1f} s  {name}, stage {number} of {len(chosen)}")
        say("\n".join(f"          {row.fault}: {row.figure}" for row in found))
    print(write_table(rows))


if __name__ == "__main__":
    main()
