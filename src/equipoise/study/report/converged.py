"""Whether the runs of a study have converged, and what to say where they have not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from equipoise.convergence import Convergence, judge_convergence
from equipoise.study.report.figures import Study
from equipoise.study.report.view import average_by_domain

WARNING = "differences may be speed, not fairness"


class Convergences(NamedTuple):
    """Whether a method's runs have converged."""

    by_seed: Mapping[int, Convergence]  # of each run
    together: Convergence  # of the mean over seeds; if runs have different rounds, that of the run least converged

    def __str__(self) -> str:
        """In words: how many runs are flat, and the trend if not all are."""
        flat = sum(one.state == "flat" for one in self.by_seed.values())
        if flat == len(self.by_seed):
            return "flat"
        return f"{self.together}; {flat} of {len(self.by_seed)} runs flat"


def judge_runs(study: Study, method: str) -> Convergences:
    """Whether the runs of a method have converged, by AVG and MIN over domains: each, and their mean over seeds."""
    curves = {seed: _trace(study, method, seed) for seed in study.runs[method]}
    by_seed = {seed: judge_convergence(curve) for seed, curve in curves.items()}
    rounds = {tuple(curve["AVG"]) for curve in curves.values()}
    if len(rounds) == 1:
        means = {
            name: {r: float(np.mean([curve[name][r] for curve in curves.values()])) for r in next(iter(rounds))}
            for name in ("AVG", "MIN")
        }
        return Convergences(by_seed, judge_convergence(means))
    order = ("rising", "falling", "unclear", "unknown", "flat")
    return Convergences(by_seed, min(by_seed.values(), key=lambda one: order.index(one.state)))


def notice_convergence(study: Study, method: str) -> str:
    """What a reader must know of a method's convergence; empty if its runs have converged."""
    found = judge_runs(study, method)
    if found.together.state in ("rising", "falling"):
        return f"{found.together}: {WARNING}"
    if found.together.state == "flat":
        return ""
    return (
        "too noisy to tell convergence"
        if found.together.state == "unclear"
        else "convergence unknown: too few evaluations"
    )


def _trace(study: Study, method: str, seed: int) -> dict[str, dict[int, float]]:
    """AVG and MIN over domains by round, in points: on validation data, or on test data where there are none."""
    for split in ("validation", "test"):
        rounds, values = study.curve(method, seed, split=split)
        if len(rounds):
            break
    means = [_means(row, study.any.domains) for row in values]
    return {
        "AVG": {int(r): 100 * float(np.mean(mean)) for r, mean in zip(rounds, means, strict=True)},
        "MIN": {int(r): 100 * min(mean) for r, mean in zip(rounds, means, strict=True)},
    }


def _means(row: np.ndarray[tuple[int, ...], np.dtype[np.float64]], domains: Sequence[str]) -> list[float]:
    return list(average_by_domain(row, domains).values())
