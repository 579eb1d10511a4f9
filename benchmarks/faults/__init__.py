"""Injects faults into runs, and measures how they are dealt with: `python benchmarks/faults` prints one Markdown table.

There is a module per kind of fault. Tests call the same functions with fewer repetitions.
"""

from faults.answers import BAD, send_bad_answers
from faults.attackers import ATTACKS, Attack, attack_methods, attack_run
from faults.disks import damage_checkpoints, fill_disk, start_second_process
from faults.liars import (
    Lie,
    PlusFive,
    average_honest,
    compute_guard_cost,
    find_largest_share,
    guard_honest_clients,
    lie_in_runs,
    run_with_lie,
)
from faults.losses import DRIVEN, weigh_odd_losses
from faults.scene import Scene, make_federation, make_image_federation
from faults.sigkill import kill_and_resume
from faults.table import Row, write_table
from faults.workers import kill_workers

__all__ = [
    "ATTACKS",
    "BAD",
    "DRIVEN",
    "Attack",
    "Lie",
    "PlusFive",
    "Row",
    "Scene",
    "attack_methods",
    "attack_run",
    "average_honest",
    "compute_guard_cost",
    "damage_checkpoints",
    "fill_disk",
    "find_largest_share",
    "guard_honest_clients",
    "kill_and_resume",
    "kill_workers",
    "lie_in_runs",
    "make_federation",
    "make_image_federation",
    "run_with_lie",
    "send_bad_answers",
    "start_second_process",
    "weigh_odd_losses",
    "write_table",
]
