"""Levelling down: was equality bought by making clients worse? Pass or fail, with the reasons in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.grammar import list_of
from equipoise.metrics import FORMULAS, paired
from equipoise.report.study import Study, Vector

AVERAGE = 0.01  # the average may fall by less than this
CLIENT = 0.02  # a client may fall by so much; by more only where the worst gains at least as much
DIGIT = 0.0005  # what is not seen in the printed percent


@dataclass(frozen=True)
class Reason:
    passed: bool
    text: str


@dataclass(frozen=True)
class Verdict:
    method: str
    reasons: tuple[Reason, ...]

    @property
    def passed(self) -> bool:
        return all(reason.passed for reason in self.reasons)

    @property
    def word(self) -> str:
        return "passed" if self.passed else "failed"


def levelling_down(
    method: str, names: Sequence[str], before: Vector, after: Vector, alone: Vector | None = None
) -> Verdict:
    """Client accuracies under FedAvg (`before`), under the method (`after`) and of local-only training, all in [0, 1]."""
    there = ~(np.isnan(before) | np.isnan(after))
    names = [name for name, known in zip(names, there, strict=True) if known]
    alone = None if alone is None else alone[there]
    before, after = before[there], after[there]
    rise = float(after.min() - before.min())
    change = float(after.mean() - before.mean())
    fall = before - after
    hurt = [n for n, f in zip(names, fall, strict=True) if f > CLIENT + DIGIT and f > rise + DIGIT]
    reasons = [
        Reason(rise >= -DIGIT, f"the worst client {_moved(rise)}, from {_pp(before.min())} to {_pp(after.min())} %"),
        Reason(change > -AVERAGE, f"the average {_moved(change)} (it may fall by less than {_pp(AVERAGE)})"),
        Reason(
            not hurt,
            f"{len(hurt)} of {len(names)} clients fell by more than {_pp(CLIENT)} points without the worst gaining as much: "
            f"{list_of(hurt)}" if hurt else f"no client fell by more than {_pp(CLIENT)} points, or the worst gained as much",
        ),
    ]  # fmt: skip
    if alone is not None:
        pushed = [
            name
            for name, b, a, own in zip(names, before, after, alone, strict=True)
            if b >= own - DIGIT and a < own - DIGIT
        ]
        text = f"{list_of(pushed)} pushed below what training alone gives" if pushed else "nobody was pushed below"
        reasons.append(Reason(not pushed, text if pushed else f"{text} what training alone gives"))
    return Verdict(method, tuple(reasons))


def verdicts(study: Study) -> list[Verdict]:
    """Of every method, against FedAvg and local-only training, on means over seeds."""
    if study.reference is None:
        return []
    before = study.mean_final(study.reference)
    alone = study.mean_final(study.alone) if study.alone else None
    return [levelling_down(m, study.any.clients, before, study.mean_final(m), alone) for m in study.rivals]


def in_two_sentences(study: Study) -> list[str]:
    """What the study shows: who was lifted, and who paid."""
    reference = study.reference
    if reference is None or not study.rivals:
        return ["There is nothing to compare with: the verdict needs fedavg and at least one other method."]
    found = verdicts(study)
    lowest = {m: study.per_seed(m, FORMULAS["MIN"]) for m in study.methods}
    average = {m: study.per_seed(m, FORMULAS["AVG"]) for m in study.methods}
    good = [v.method for v in found if v.passed] or study.rivals
    best = max(good, key=lambda m: paired(lowest[reference], lowest[m]).mean)
    lift, cost = paired(lowest[reference], lowest[best]), paired(average[reference], average[best])
    sure = "" if np.isnan(lift.low) else f" (95 % interval over seeds {_pp(lift.low)} to {_pp(lift.high)})"
    base = float(np.mean(list(lowest[reference].values())))
    passed = sum(v.passed for v in found)
    if lift.mean > 0:
        first = f"{best} lifts the worst client by {_pp(lift.mean)} points{sure} over {reference}, where it has {_pp(base)} %."
    else:
        first = f"No method lifts the worst client above the {_pp(base)} % that it has under {reference}."
    second = f"Under {best} the average {_moved(cost.mean)}"
    if study.alone:
        losers = int((study.mean_final(best) < study.mean_final(study.alone)).sum())
        second += f", {losers} of {len(study.any.clients)} clients would do better alone"
    second += f", and {passed} of {len(found)} methods pass the levelling-down check."
    return [first, second]


def _pp(value: float) -> str:
    return f"{100 * value:.1f}"


def _moved(change: float) -> str:
    if abs(change) < DIGIT:
        return "held"
    return f"{'rose' if change > 0 else 'fell'} by {_pp(abs(change))} points"
