"""The levelling-down check: did a method make clients equal by making some worse? Verdicts, with the reasons in words.

A verdict is passed, failed or undecided. A difference that may be due to the choice of seeds is not called a rise or a
fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from equipoise.grammar import join_words
from equipoise.metrics import FORMULAS, Interval, find_discoveries, over_seeds
from equipoise.study.report.figures import DEFAULT_RULES, Rules, Study
from equipoise.study.report.view import Vector

DIGIT = 0.0005  # a smaller change does not show in percent with one digit
SPREAD = "within the spread of seeds"
Word = Literal["passed", "failed", "undecided"]
Rule = Literal["worst", "average", "client", "alone"]


@dataclass(frozen=True)
class Reason:
    """The outcome of one part of the check."""

    rule: Rule
    word: Word
    text: str  # the outcome in words
    clients: tuple[str, ...] = ()  # for whom the rule is broken, beyond the spread of seeds


@dataclass(frozen=True)
class Verdict:
    """The outcome of the check for one method."""

    method: str
    reasons: tuple[Reason, ...]

    @property
    def word(self) -> Word:
        """`failed` if a reason failed; else `undecided` if a reason is undecided; else `passed`."""
        found = {reason.word for reason in self.reasons}
        return "failed" if "failed" in found else "undecided" if "undecided" in found else "passed"

    @property
    def passed(self) -> bool:
        """Whether all reasons passed."""
        return self.word == "passed"


def is_within_spread(change: Interval) -> bool:
    """Whether the 95 % interval over seeds contains zero. With one seed there is no interval, and the answer is no."""
    return change.low <= 0 <= change.high


def judge(
    method: str,
    names: Sequence[str],
    before: Vector,
    after: Vector,
    alone: Vector | None = None,
    rules: Rules = DEFAULT_RULES,
) -> Verdict:
    """Judge a method by the clients' accuracies under the reference (`before`), the method (`after`) and local-only
    training.

    Accuracies lie in [0, 1]. Each argument is `[clients]`, or `[seeds, clients]` with the same seeds in the same order.
    """
    before, after = np.atleast_2d(before), np.atleast_2d(after)
    own = None if alone is None else np.atleast_2d(alone)
    there = np.asarray(np.isfinite(before + after).all(0))
    names = [name for name, known in zip(names, there, strict=True) if known]
    before, after = before[:, there], after[:, there]
    worst, average = over_seeds(after.min(1) - before.min(1)), over_seeds(after.mean(1) - before.mean(1))
    start, end = (say_points(float(values.min(1).mean())) for values in (before, after))
    fall = before - after
    limit = f"{say_points(rules.client)} points"
    fell, repaid = fall.mean(0) > rules.client + DIGIT, fall.mean(0) <= worst.mean + DIGIT
    lower = _of_clients(
        "client", names, fell & ~repaid, fall,
        f"no client fell by more than {limit}, or the worst gained as much",
        f"fell by more than {limit} without the worst gaining as much",
    )  # fmt: skip
    if lower.word == "passed" and is_within_spread(worst):  # a gain that may be chance excuses no fall
        excused = f"fell by more than {limit}, and the gain of the worst is {SPREAD}"
        doubtful = _of_clients("client", names, fell & repaid, fall, "", excused)
        lower = replace(doubtful, word="undecided", clients=()) if doubtful.word == "failed" else lower
    reasons = [
        Reason(
            "worst", _word(worst.mean < -DIGIT, worst), f"the worst client {say_change(worst)}, from {start} to {end} %"
        ),
        Reason(
            "average",
            _word(average.mean <= -rules.average, average),
            f"the average {say_change(average)} (it may fall by less than {say_points(rules.average)})",
        ),
        lower,
    ]
    if own is not None:
        short = own[:, there] - after
        pushed = (before.mean(0) >= own[:, there].mean(0) - DIGIT) & (short.mean(0) > DIGIT)
        what = "fell below what training alone gives"
        reasons.append(_of_clients("alone", names, pushed, short, f"nobody {what}", what))
    return Verdict(method, tuple(reasons))


def _word(broken: bool, change: Interval) -> Word:
    """The outcome if a rule is `broken` by this change, or not."""
    return "passed" if not broken else "undecided" if is_within_spread(change) else "failed"


def split_by_spread(
    names: Sequence[str], broken: NDArray[np.bool_], loss: Vector
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The clients whose mean loss over seeds breaks a rule: for sure, and only within the spread of seeds.

    `loss` is `[seeds, clients]`. All clients are tested together, so that few are named by chance. With one seed
    there is no spread, and all count as sure.
    """
    sure = broken & (find_discoveries(loss) | (len(loss) == 1))
    first, second = (tuple(names[k] for k in np.flatnonzero(those).tolist()) for those in (sure, broken & ~sure))
    return first, second


def _of_clients(
    rule: Rule, names: Sequence[str], broken: NDArray[np.bool_], loss: Vector, fine: str, wrong: str
) -> Reason:
    """One reason for all clients. `broken` is judged by means over seeds; `loss [seeds, clients]` shows the spread."""
    sure, unsure = split_by_spread(names, broken, loss)
    some = f" of {len(names)} clients {wrong}"
    if sure:
        more = f"; {len(unsure)} more only {SPREAD}" if unsure else ""
        return Reason(rule, "failed", f"{len(sure)}{some}: {join_words(sure)}{more}", sure)
    if unsure:
        return Reason(rule, "undecided", f"{len(unsure)}{some}, but {SPREAD}: {join_words(unsure)}")
    return Reason(rule, "passed", fine)


def judge_all(study: Study) -> list[Verdict]:
    """The verdict on every method that has a seed in common with the reference, paired by seed.

    Local-only training counts if it has all of these seeds and is not the reference itself.
    """
    reference = study.reference
    if reference is None:
        return []
    found = []
    for method in study.rivals:
        shared = study.shared_seeds(reference, method)
        own = study.alone if study.alone != reference else None
        alone = [own] if own and set(shared) <= set(study.runs[own]) else []
        if shared:
            before, after, *rest = study.stack(reference, method, *alone)
            found.append(judge(method, study.any.clients, before, after, rest[0] if rest else None, study.rules))
    return found


def tell_in_a_line(verdict: Verdict) -> str:
    """A verdict in one line for the terminal, with the reasons against the method."""
    against = "; ".join(reason.text for reason in verdict.reasons if reason.word == verdict.word and not verdict.passed)
    return f"Levelling-down check of {verdict.method}: {verdict.word}" + (f" ({against})." if against else ".")


def choose_by_validation(study: Study, rivals: Sequence[str] | None = None) -> str | None:
    """The method with the best worst client on validation data, in the mean over the seeds that all methods have.

    None if validation data are missing. Test data are never used to choose.
    """
    found = {}
    candidates = study.rivals if rivals is None else rivals
    seeds = study.shared_seeds(*candidates) if candidates else []
    for method in candidates:
        final = study.final(method, split="validation")
        lowest = [FORMULAS["MIN"].function(final[seed]) for seed in seeds if seed in final]
        if not lowest or np.isnan(lowest).any():
            return None
        found[method] = float(np.mean(lowest))
    return max(found, key=lambda method: found[method]) if found else None


def say_points(value: float) -> str:
    """A share in percent, or a difference in percentage points, without the unit."""
    return f"{100 * value:.1f}"


def say_change(change: Interval) -> str:
    """A change in words."""
    if abs(change.mean) < DIGIT:
        return "held"
    if is_within_spread(change):
        return f"changed by {100 * change.mean:+.1f} points, {SPREAD}"
    return f"{'rose' if change.mean > 0 else 'fell'} by {say_points(abs(change.mean))} points"
