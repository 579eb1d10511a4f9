"""Tunes on the benchmarks, and writes the table of `docs/tune.md`: `python benchmarks/tuning.py --out runs`.

A study that was stopped goes on where it was. `--table` only reads what is there; `--only heart` does one of them. Data
sets that are not embedded need their files (`equipoise datasets` says where they come from).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from equipoise import load_federation
from equipoise.study.jobs import Job
from equipoise.study.tuning.plan import Plan
from equipoise.study.tuning.tune import SUMMARY, carry_out

BENCHMARKS: dict[str, dict[str, int]] = {
    "gaussians": {"trials": 16, "seeds": 5},
    "gaussians, again": {"trials": 16, "seeds": 5, "search_seed": 1},
    "heart": {"trials": 16, "seeds": 5},
    "heart, again": {"trials": 16, "seeds": 5, "search_seed": 1},
    "incomes": {"trials": 16, "seeds": 5},
    "clinics": {"trials": 8, "seeds": 3},
    "fmnist3": {"trials": 8, "seeds": 3},
    "scanners": {"trials": 8, "seeds": 3},
    "emnist": {"trials": 4, "seeds": 3, "rounds": 60},
    "dirty-mnist": {"trials": 4, "seeds": 3, "rounds": 40},
    "office-caltech": {"trials": 2, "seeds": 3},
    "pacs": {"trials": 2, "seeds": 3},
    "digits": {"trials": 2, "seeds": 3},
    "mnist-shards": {"trials": 2, "seeds": 3},
    "cifar10": {"trials": 2, "seeds": 3},
}


def build_plan(name: str) -> tuple[Plan, Any]:
    """The plan of a benchmark, and its data."""
    dataset = name.split(",")[0]
    given = dict(BENCHMARKS[name])
    data = load_federation(dataset)
    return Plan.for_data(data, Job(dataset=dataset, rounds=given.pop("rounds", None)), **given), data


def write_command(name: str) -> str:
    """The command that does a benchmark's study, or goes on with it."""
    options = " ".join(f"--{option.replace('_', '-')} {value}" for option, value in BENCHMARKS[name].items())
    return f"equipoise tune {name.split(',')[0]} {options}"


def write_rows(name: str, summary: dict[str, Any]) -> list[str]:
    """The rows of the table for one study: tuned FedAvg, the best single method, the composition."""
    shown = dict.fromkeys(["fedavg", summary["single"], "compositions"])
    cost = f"{sum(cost['seconds'] for cost in summary['cost']) / 60:.0f} min"
    rows = []
    for contestant in shown:
        one = summary["contestants"].get(contestant)
        if one is None or one["test"] is None:
            continue
        figures = " | ".join(_say(one["test"][figure]) for figure in ("AVG", "STD", "MIN"))
        check = one["verdict_on_validation"] or "–"
        rows.append(
            f"| {name} | {contestant} | `{one['method']}` | {100 * one['validation']:.1f}, {check} | {figures} | {cost} |"
        )
        name = cost = ""
    return rows


def _say(value: dict[str, float]) -> str:
    return f"{100 * value['mean']:.1f} ± {100 * (value['high'] - value['low']) / 2:.1f}"


def tell_goal(summary: dict[str, Any]) -> str:
    """Whether the composition serves the worst better than every rival, at no lower average; and against whom not."""
    lost = [
        f"{duel['rival']} (worst {100 * duel['worst']['mean']:+.1f}, average {100 * duel['average']['mean']:+.1f})"
        for duel in summary["duels"]
        if not duel["won"]
    ]
    return "met" if summary["goal_met"] else "not met: " + ", ".join(lost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--only", choices=list(BENCHMARKS))
    parser.add_argument("--table", action="store_true", help="read what is there, and do nothing")
    options = parser.parse_args()
    for name in [options.only] if options.only else BENCHMARKS:
        plan, data = build_plan(name)
        if not options.table:
            carry_out(plan, data, options.out)
        path = plan.place(data, options.out) / SUMMARY
        if not path.exists():
            print(f"| {name} | unfinished: `{write_command(name)}` |")
            continue
        summary = json.loads(path.read_text())
        print("\n".join(write_rows(name, summary)))
        print(f"<!-- {name}: {tell_goal(summary)} -->")


if __name__ == "__main__":
    main()
