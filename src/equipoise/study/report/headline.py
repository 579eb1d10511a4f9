"""A study in words: the verdict in one sentence, then the reasons. Who was worst, who paid, whether joining pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.grammar import join_words
from equipoise.metrics import Interval
from equipoise.study.report.figures import Study
from equipoise.study.report.groups import (
    list_gaps,
    list_group_names,
    measure_change,
    measure_pooled,
    measure_worst_group,
    say_gap,
    say_percent,
)
from equipoise.study.report.verdict import (
    DIGIT,
    SPREAD,
    Verdict,
    choose_by_validation,
    is_within_spread,
    judge_all,
    say_change,
    say_points,
    split_by_spread,
)
from equipoise.study.report.view import Vector

MANY = 1 / 3  # the share of clients that do better alone from which on that is the headline
SHARED = 3  # clients that may share the last place and are still named in the headline


@dataclass(frozen=True)
class Story:
    """What a study shows, in words."""

    headline: str  # in one sentence
    reasons: tuple[tuple[str, str], ...] = ()  # what it rests on: the question and its answer
    chosen: str | None = None  # the method that validation data choose
    shown: str | None = None  # the method that a plot shows first
    joining_pays: bool | None = None  # False: many clients do better alone; None: nobody trained alone

    @property
    def sentences(self) -> list[str]:
        """The headline and the reasons, a line each."""
        return [self.headline, *(f"{question} {answer}" for question, answer in self.reasons)]


@dataclass(frozen=True)
class Alone:
    """How clients fare alone, compared with a method."""

    better: tuple[str, ...]  # do better alone, beyond the spread of seeds
    unsure: tuple[str, ...]  # do better alone, but within the spread of seeds
    worse: int  # clients that do better with the method
    clients: int  # clients with test data
    seeds: int

    @property
    def is_many(self) -> bool:
        """Whether many clients do better alone."""
        return len(self.better) >= MANY * self.clients


def compare_with_alone(study: Study, method: str) -> Alone | None:
    """Which clients would do better alone than with a method; None without runs of both with the same seed."""
    if study.alone is None or study.alone == method or not study.shared_seeds(study.alone, method):
        return None
    names, own, mine = _pair(study, study.alone, method)
    better, unsure = split_by_spread(names, (own - mine).mean(0) > DIGIT, own - mine)
    worse = int(((mine - own).mean(0) > DIGIT).sum())
    return Alone(better, unsure, worse, len(names), len(own))


def tell(study: Study) -> Story:
    """The verdict in one sentence, and the reasons. One method is singled out only if validation data choose it."""
    reference = study.reference
    if reference is None:
        wanted = study.rules.reference or "fedavg"
        return Story(f"There is nothing to compare with: the verdict needs {wanted} and at least one other method.")
    if len(study.any.clients) == 1:
        return Story("There is one client only: fairness between clients cannot be judged.")
    judged = [method for method in study.rivals if study.shared_seeds(reference, method)]
    chosen = choose_by_validation(study, judged)
    apart = {m: found for m in (reference, *judged) if (found := compare_with_alone(study, m)) is not None}
    pays = not all(found.is_many for found in apart.values()) if apart else None
    told = {chosen: apart[chosen]} if chosen in apart and pays else apart
    joining = ("Does joining pay?", _answer_joining(told))
    if not judged:
        why = f"no method has a seed in common with {reference}" if study.rivals else f"{reference} has no rival here"
        nothing = f"There is nothing to compare with: {why}."
        return Story(_headline_alone(apart) if pays is False else nothing, (joining,), joining_pays=pays)
    lift = {method: study.change(method, "MIN") for method in judged}
    shown = chosen or max(judged, key=lambda method: lift[method].mean)
    first = (
        _headline_of_one(study, reference, chosen, apart.get(chosen))
        if chosen
        else _headline_of_all(study, reference, lift)
    )
    return Story(
        _headline_alone(apart) if pays is False else first,
        (
            ("Who was worst?", _answer_worst(study, reference, lift, chosen)),
            ("Who paid?", _answer_paid(study, reference, [chosen] if chosen else judged)),
            joining,
            ("Is anybody levelled down?", _answer_check(judge_all(study))),
            *_ask_about_groups(study, reference, chosen),
            ("How was the method chosen?", _answer_choice(judged, chosen)),
        ),
        chosen,
        shown,
        pays,
    )


# --------------------------------------------------------------------------- headlines
def _headline_alone(apart: Mapping[str, Alone]) -> str:
    fewest = min(apart, key=lambda method: len(apart[method].better))
    some = f"{len(apart[fewest].better)} of {apart[fewest].clients} clients"
    if len(apart) == 1:
        return f"Joining does not pay for {some}: they do better alone than under {fewest}."
    return f"Joining does not pay for many: under every method {some} or more do better alone."


def _headline_of_one(study: Study, reference: str, method: str, alone: Alone | None) -> str:
    rise = study.change(method, "MIN")
    start, end = (say_points(value) for value in _lowest(study, reference, method))
    worst = f"the worst client{_same_worst(study, reference)}"
    if abs(rise.mean) < DIGIT:
        first = f"{method} leaves {worst} at {end} %"
    elif is_within_spread(rise):
        first = f"{method} does not lift {worst} for sure: {start} to {end} %, {SPREAD}"
    elif rise.mean > 0:
        first = f"{method} lifts {worst} from {start} to {end} %"
    else:
        first = f"{method} pushes {worst} down from {start} to {end} %"
    if alone is not None and alone.is_many:
        return f"{first}, but {len(alone.better)} of {alone.clients} clients do better alone than under it."
    payers, unsure = _find_payers(study, reference, method)
    limit, total = f"more than {say_points(study.rules.client)} points", len(study.any.clients)
    if payers:
        return f"{first}, and {len(payers)} of {total} clients {'lose' if len(payers) > 1 else 'loses'} {limit}."
    return f"{first}, and " + (
        f"{len(unsure)} of {total} clients may lose {limit}." if unsure else f"nobody loses {limit}."
    )


def _headline_of_all(study: Study, reference: str, lift: Mapping[str, Interval]) -> str:
    up, down, _ = _sort_out(lift)
    shared = study.shared_seeds(reference, *lift) or list(study.runs[reference])
    lowest = study.per_seed(reference, "MIN")
    base = say_points(float(np.mean([lowest[seed] for seed in shared])))
    worst = f"the worst client{_same_worst(study, reference)}, at {base} % under {reference}"

    def some(those: Sequence[str]) -> str:
        return join_words(those) if len(those) <= 3 else f"{len(those)} of {len(lift)} methods"

    if up or down:
        parts = [f"{way} under {some(those)}" for way, those in (("rises", up), ("falls", down)) if those]
        return f"{worst[0].upper()}{worst[1:]}, {' and '.join(parts)}."
    return f"No method lifts {worst}, beyond the spread of seeds."


# --------------------------------------------------------------------------- answers
def _answer_worst(study: Study, reference: str, lift: Mapping[str, Interval], chosen: str | None) -> str:
    who = f"Under {reference} {_say_worst(study, reference)}."
    if chosen is None:
        return f"{who} The worst client {_list_changes(lift)}."
    rise, (start, end) = lift[chosen], _lowest(study, reference, chosen)
    sure = f", {SPREAD}" if is_within_spread(rise) else ""
    change = f"{say_points(start)} to {say_points(end)} % ({100 * rise.mean:+.1f}{say_half(rise)} points{sure})"
    if abs(rise.mean) < DIGIT:
        change = f"{say_points(end)} %, as under {reference}"
    now = f"Under {chosen} {_say_worst(study, chosen)}: {change}."
    still = _count_worst(study, chosen)
    left = [name for name in _count_worst(study, reference) if name not in still]
    after = dict(zip(study.any.clients, study.mean_final(chosen).tolist(), strict=True))
    fate = [f"{name} {say_points(after[name])} %" for name in left]
    return f"{who} {now}" + (f" The worst under {reference} has now: {join_words(fate, 3)}." if fate else "")


def _answer_paid(study: Study, reference: str, methods: Sequence[str]) -> str:
    told = []
    for method in methods[:6]:
        payers, unsure = (_list_losses(those) for those in _find_payers(study, reference, method))
        perhaps = f"perhaps {unsure}, {SPREAD}" if unsure else ""
        told.append(f"under {method} " + (", ".join(part for part in (payers, perhaps) if part) or "nobody"))
    if len(methods) > 6:
        told.append(f"{len(methods) - 6} more methods are in the table below")
    average = ""
    if len(methods) == 1:
        average = f"; the average {say_change(study.change(methods[0], 'AVG'))}"
    limit = say_points(study.rules.client)
    return f"Clients that lose more than {limit} points: {'; '.join(told)}{average}."


def _answer_joining(apart: Mapping[str, Alone]) -> str:
    if not apart:
        return "Not known: it takes runs of local_only with the same seeds."
    told = []
    for method, found in list(apart.items())[:6]:
        sure = "" if found.seeds == 1 else " for sure"
        text = f"under {method} {found.worse} of {found.clients} clients {_do(found.worse)} better than alone, "
        text += f"{len(found.better) or 'nobody'} {_do(len(found.better) or 1)} better alone{sure}"
        text += f" ({join_words(found.better, 3)})" if found.better else ""
        text += f", {len(found.unsure)} within the spread of seeds" if found.unsure else ""
        told.append(text)
    more = f"; {len(apart) - 6} more methods are in the table below" if len(apart) > 6 else ""
    return f"{told[0][0].upper()}{'; '.join(told)[1:]}{more}."


def _answer_check(found: Sequence[Verdict]) -> str:
    if len(found) == 1:
        return f"The levelling-down check of {found[0].method}: {found[0].word}."
    words: dict[str, list[str]] = {"passed": [], "undecided": [], "failed": []}
    for verdict in found:
        words[verdict.word].append(verdict.method)
    passed = f"{len(words['passed'])} of {len(found)} methods pass the levelling-down check"
    rest = [f"{word}: {join_words(words[word])}" for word in ("failed", "undecided") if words[word]]
    return f"{passed} ({'; '.join(rest)})." if rest else f"{passed}."


def _ask_about_groups(study: Study, reference: str, chosen: str | None) -> list[tuple[str, str]]:
    """How wide the gaps between groups of samples are, under the reference and under the chosen method."""
    column, names = list_group_names(study.any)
    gaps = list_gaps(study.any)
    if not names:
        return []
    told = []
    for method in (reference, *([chosen] if chosen else [])):
        pooled = measure_pooled(study, method)
        group, score = measure_worst_group(study, method)
        wide = [f"{say_gap(name)} {say_percent(pooled[name])}" for name in gaps]
        worst = f"the worst group is {group} with {say_percent(score)} %" if group else "no group has enough samples"
        told.append(f"Under {method} {worst}." + (f" Gaps in points: {join_words(wide)}." if gaps else ""))
    changes = {name: measure_change(study, reference, chosen, name) for name in gaps} if chosen else {}
    known = {name: change for name, change in changes.items() if not np.isnan(change.low)}
    moved = [f"{say_gap(name)} {100 * one.mean:+.1f}" for name, one in known.items() if not is_within_spread(one)]
    if known:
        told.append(f"Beyond the spread of seeds: {join_words(moved)}." if moved else f"The gaps differ only {SPREAD}.")
    return [(f"Are groups of {column} treated alike?", " ".join(told))]


def _answer_choice(judged: Sequence[str], chosen: str | None) -> str:
    if chosen is None:
        return "No method is called the best, because there are no validation data to choose by."
    if len(judged) == 1:
        return f"{chosen} is the only one that can be compared."
    return f"Validation data choose {chosen} of {len(judged)} methods: there the worst client stands best under it."


# --------------------------------------------------------------------------- what both rest on
def _do(count: int) -> str:
    return "does" if count == 1 else "do"


def say_half(change: Interval) -> str:
    """Half the 95 % interval, to stand behind a mean in points; nothing where the spread is not known."""
    return "" if np.isnan(change.low) else f" ± {100 * change.half:.1f}"


def _pair(study: Study, first: str, second: str) -> tuple[list[str], Vector, Vector]:
    """The clients with test data, and their accuracies `[seeds, clients]` under two methods with the same seeds."""
    a, b = study.stack(first, second)
    there = np.asarray(np.isfinite(a + b).all(0))
    return [name for name, known in zip(study.any.clients, there, strict=True) if known], a[:, there], b[:, there]


def _lowest(study: Study, reference: str, method: str) -> tuple[float, float]:
    """The worst client's accuracy under the reference and under a method, mean over the seeds that both have."""
    _, before, after = _pair(study, reference, method)
    return float(before.min(1).mean()), float(after.min(1).mean())


def _find_payers(study: Study, reference: str, method: str) -> tuple[dict[str, float], dict[str, float]]:
    """Who lost more than a client may lose, and who only perhaps did: each with its change, the largest loss first."""
    names, before, after = _pair(study, reference, method)
    change = after - before
    mean = dict(zip(names, change.mean(0).tolist(), strict=True))
    sure, unsure = (
        {name: mean[name] for name in sorted(those, key=lambda name: mean[name])}
        for those in split_by_spread(names, -change.mean(0) > study.rules.client + DIGIT, change)
    )
    return sure, unsure


def _list_losses(changes: Mapping[str, float]) -> str:
    return join_words([f"{name} ({100 * value:+.1f})" for name, value in changes.items()])


def _count_worst(study: Study, method: str) -> Counter[str]:
    """Which clients were the worst under a method, with the number of seeds; several may share the place."""
    found: Counter[str] = Counter()
    for values in study.final(method).values():
        found.update(study.any.clients[k] for k in np.flatnonzero(values <= np.nanmin(values) + DIGIT).tolist())
    return found


def _same_worst(study: Study, reference: str) -> str:
    """The worst client under the reference in brackets, if it is the same with all seeds; or the few that share it."""
    found, total = _count_worst(study, reference), len(study.final(reference))
    same = len(found) <= SHARED and all(count == total for count in found.values())
    return f" ({', '.join(found)})" if same else ""


def _say_worst(study: Study, method: str) -> str:
    found, total = _count_worst(study, method), len(study.final(method))
    if all(count == total for count in found.values()):
        who = f"{join_words(list(found))} {'is' if len(found) == 1 else 'are'} worst"
        return who + (f" with all {total} seeds" if total > 1 else "")
    those = [f"{name} ({count} of {total} seeds)" for name, count in found.most_common()]
    return f"the worst is {join_words(those, 3)}"


def _sort_out(lift: Mapping[str, Interval]) -> tuple[list[str], list[str], list[str]]:
    """Methods under which the worst client rises for sure, falls for sure, and does neither for sure."""
    up, down, unsure = list[str](), list[str](), list[str]()
    for method, change in lift.items():
        place = unsure if is_within_spread(change) or abs(change.mean) < DIGIT else up if change.mean > 0 else down
        place.append(method)
    return up, down, unsure


def _list_changes(lift: Mapping[str, Interval]) -> str:
    ways = zip(("rises", "falls", f"differs only {SPREAD}"), _sort_out(lift), strict=True)
    return ", ".join(
        f"{way} under {join_words([f'{m} ({100 * lift[m].mean:+.1f}{say_half(lift[m])})' for m in those], 12)}"
        for way, those in ways
        if those
    )
