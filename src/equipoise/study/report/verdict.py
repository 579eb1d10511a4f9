"""The levelling-down check: did a method make clients equal by making some worse? Verdicts, with the reasons in words.

A verdict is passed, failed or undecided. A difference that may be due to the choice of seeds is not called a rise or a
fall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from equipoise.grammar import join_words
from equipoise.metrics import FORMULAS, Interval, over_seeds, paired
from equipoise.study.report.figures import Study, Vector

AVERAGE = 0.01  # the average accuracy may fall by less than this
CLIENT = 0.02  # a client may fall by this much, and by more only if the worst client gains at least as much
DIGIT = 0.0005  # a smaller change does not show in percent with one digit
SPREAD = "within the spread of seeds"
Word = Literal["passed", "failed", "undecided"]


@dataclass(frozen=True)
class Reason:
    """The outcome of one part of the check."""

    word: Word
    text: str  # the outcome in words


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


def judge(method: str, names: Sequence[str], before: Vector, after: Vector, alone: Vector | None = None) -> Verdict:
    """Judge a method by the clients' accuracies under FedAvg (`before`), the method (`after`) and local-only training.

    Accuracies lie in [0, 1]. Each argument is `[clients]`, or `[seeds, clients]` with the same seeds in the same order.
    """
    before, after = np.atleast_2d(before), np.atleast_2d(after)
    own = None if alone is None else np.atleast_2d(alone)
    there = np.asarray(np.isfinite(before + after).all(0))
    names = [name for name, known in zip(names, there, strict=True) if known]
    before, after = before[:, there], after[:, there]
    worst, average = over_seeds(after.min(1) - before.min(1)), over_seeds(after.mean(1) - before.mean(1))
    start, end = (_pp(float(values.min(1).mean())) for values in (before, after))
    fall = before - after
    fell, repaid = fall.mean(0) > CLIENT + DIGIT, fall.mean(0) <= worst.mean + DIGIT
    lower = _of_clients(
        names, fell & ~repaid, fall,
        f"no client fell by more than {_pp(CLIENT)} points, or the worst gained as much",
        f"fell by more than {_pp(CLIENT)} points without the worst gaining as much",
    )  # fmt: skip
    if lower.word == "passed" and is_within_spread(worst):  # a gain that may be chance excuses no fall
        excused = f"fell by more than {_pp(CLIENT)} points, and the gain of the worst is {SPREAD}"
        doubtful = _of_clients(names, fell & repaid, fall, "", excused)
        lower = replace(doubtful, word="undecided") if doubtful.word == "failed" else lower
    reasons = [
        Reason(_word(worst.mean < -DIGIT, worst), f"the worst client {_moved(worst)}, from {start} to {end} %"),
        Reason(
            _word(average.mean <= -AVERAGE, average),
            f"the average {_moved(average)} (it may fall by less than {_pp(AVERAGE)})",
        ),
        lower,
    ]
    if own is not None:
        short = own[:, there] - after
        pushed = (before.mean(0) >= own[:, there].mean(0) - DIGIT) & (short.mean(0) > DIGIT)
        what = "pushed below what training alone gives"
        reasons.append(_of_clients(names, pushed, short, f"nobody was {what}", f"were {what}"))
    return Verdict(method, tuple(reasons))


def _word(broken: bool, change: Interval) -> Word:
    """The outcome if a rule is `broken` by this change, or not."""
    return "passed" if not broken else "undecided" if is_within_spread(change) else "failed"


def _of_clients(names: Sequence[str], broken: NDArray[np.bool_], loss: Vector, fine: str, wrong: str) -> Reason:
    """One reason for all clients. `broken` is judged by means over seeds; `loss [seeds, clients]` shows the spread."""
    words = {names[k]: _word(True, over_seeds(loss[:, k])) for k in np.flatnonzero(broken).tolist()}
    sure, unsure = ([name for name, word in words.items() if word == which] for which in ("failed", "undecided"))
    some = f" of {len(names)} clients {wrong}"
    if sure:
        more = f"; {len(unsure)} more only {SPREAD}" if unsure else ""
        return Reason("failed", f"{len(sure)}{some}: {join_words(sure)}{more}")
    if unsure:
        return Reason("undecided", f"{len(unsure)}{some}, but {SPREAD}: {join_words(unsure)}")
    return Reason("passed", fine)


def judge_all(study: Study) -> list[Verdict]:
    """The verdict on every method that has a seed in common with FedAvg, paired by seed.

    Local-only training counts if it has all of these seeds.
    """
    if study.reference is None:
        return []
    found = []
    for method in study.rivals:
        shared = study.shared_seeds(study.reference, method)
        alone = study.alone if study.alone and set(shared) <= set(study.runs[study.alone]) else None
        compared = [study.reference, method, *([alone] if alone else [])]
        if shared:
            values = [np.stack([study.final(m)[seed] for seed in shared]) for m in compared]
            found.append(judge(method, study.any.clients, values[0], values[1], *values[2:]))
    return found


def tell_in_a_line(verdict: Verdict) -> str:
    """A verdict in one line for the terminal, with the reasons against the method."""
    against = "; ".join(reason.text for reason in verdict.reasons if reason.word == verdict.word and not verdict.passed)
    return f"Levelling-down check of {verdict.method}: {verdict.word}" + (f" ({against})." if against else ".")


# --------------------------------------------------------------------------- the whole study in words
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


def tell_in_two_sentences(study: Study) -> list[str]:
    """What the study shows: how the worst client changed, and at whose cost.

    One method is singled out only if validation data chose it. Further sentences name what could not be compared.
    """
    reference = study.reference
    if reference is None or not study.rivals:
        return ["There is nothing to compare with: the verdict needs fedavg and at least one other method."]
    found = judge_all(study)
    lift, cost = (
        {m: paired(study.per_seed(reference, FORMULAS[f]), study.per_seed(m, FORMULAS[f])) for m in study.rivals}
        for f in ("MIN", "AVG")
    )
    shared = {method: study.shared_seeds(reference, method) for method in study.rivals}
    rivals = [method for method, seeds in shared.items() if seeds]
    apart = [
        f"{m} has no seed in common with {reference}, and is left out here." for m in study.rivals if not shared[m]
    ]
    if not rivals:
        return [f"There is nothing to compare with: no method has a seed in common with {reference}."]
    lift = {method: lift[method] for method in rivals}
    best = choose_by_validation(study, rivals)
    start = study.per_seed(reference, FORMULAS["MIN"])
    seeds = shared[best] if best else study.shared_seeds(reference, *rivals) or list(start)
    base = _pp(float(np.mean([start[seed] for seed in seeds])))
    passed, unclear = (sum(v.word == word for v in found) for word in ("passed", "undecided"))
    check = f"{passed} of {len(found)} methods pass the levelling-down check"
    check += f" ({unclear} undecided, {SPREAD})" if unclear else ""
    if best is None:
        said = [
            f"The worst client has {base} % under {reference}; {_sorted_out(lift)}.",
            f"{check}; no method is called the best, because there are no validation data to choose by.",
        ]
    else:
        rise = lift[best]
        sure = "" if np.isnan(rise.low) else f" (95 % interval over seeds {_pp(rise.low)} to {_pp(rise.high)})"
        second = f"Under it the average {_moved(cost[best])}"
        if study.alone and study.shared_seeds(study.alone, best):
            losers = f"{study.table[best]['losers'].mean:.1f}".removesuffix(".0")  # mean over seeds, as in the table
            second += f", {losers} of {len(study.any.clients)} clients would do better alone"
        said = [
            f"Validation data choose {best}: the worst client, at {base} % under {reference}, {_moved(rise)}{sure}.",
            f"{second}, and {check}.",
        ]
    single = [method for method in rivals if len(shared[method]) == 1]
    if single == rivals:
        said[-1] += " All this is of one seed: its spread is not known."
    elif single:
        said[-1] += f" Of {join_words(single, 12)} one seed alone can be compared: its spread is not known."
    return [*said, *apart]


def _sorted_out(lift: Mapping[str, Interval]) -> str:
    """Under which methods the worst client rises, under which it falls, and under which neither is sure."""
    groups: dict[str, list[str]] = {"rises": [], "falls": [], f"differs only {SPREAD}": []}
    up, down, unsure = groups.values()
    for method, change in lift.items():
        place = unsure if is_within_spread(change) or abs(change.mean) < DIGIT else up if change.mean > 0 else down
        place.append(f"{method} ({100 * change.mean:+.1f})")
    return ", ".join(f"it {how} under {join_words(those, 12)}" for how, those in groups.items() if those)


def _pp(value: float) -> str:
    """A share in percent, or a difference in percentage points, without the unit."""
    return f"{100 * value:.1f}"


def _moved(change: Interval) -> str:
    """A change in words."""
    if abs(change.mean) < DIGIT:
        return "held"
    if is_within_spread(change):
        return f"changed by {100 * change.mean:+.1f} points, {SPREAD}"
    return f"{'rose' if change.mean > 0 else 'fell'} by {_pp(abs(change.mean))} points"
