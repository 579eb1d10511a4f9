"""The verdict for programs: a study as plain values that can be written as JSON, and whether a pipeline should stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from equipoise.errors import EquipoiseError
from equipoise.metrics import Interval
from equipoise.study.report.figures import Study
from equipoise.study.report.groups import list_group_names, measure_pooled
from equipoise.study.report.headline import compare_with_alone, tell
from equipoise.study.report.notices import find_notices
from equipoise.study.report.tables import FRONT
from equipoise.study.report.verdict import judge_all

Objection = Literal["levelling-down", "undecided", "joining-does-not-pay"]


def summarise(study: Study) -> dict[str, Any]:
    """A study as plain values. Accuracies are shares in [0, 1], and differences are the method minus the reference."""
    story, verdicts, notices = tell(study), {v.method: v for v in judge_all(study)}, find_notices(study)
    unseen = ("AVG unseen", "MIN unseen") if study.any.unseen else ()
    methods = []
    for method in study.methods:
        verdict, alone = verdicts.get(method), compare_with_alone(study, method)
        methods.append(
            {
                "method": method,
                "seeds": list(study.runs[method]),
                "verdict": verdict.word if verdict else None,
                "reasons": [
                    {"rule": one.rule, "outcome": one.word, "text": one.text, "clients": list(one.clients)}
                    for one in (verdict.reasons if verdict else ())
                ],
                "figures": {name: _numbers(study.table[method][name]) for name in (*FRONT, *unseen)},
                "changes": {f: _numbers(study.change(method, f)) for f in ("AVG", "STD", "MIN")} if verdict else {},
                "better_alone": None if alone is None else list(alone.better),
                "notices": notices.get(method, []),
                **({"group_gaps": _list_gaps(study, method)} if list_group_names(study.any)[1] else {}),
            }
        )
    return {
        "data": study.name,
        "clients": len(study.any.clients),
        "reference": study.reference,
        "limits": {"average": study.rules.average, "client": study.rules.client},
        "headline": story.headline,
        "answers": dict(story.reasons),
        "chosen_by_validation": story.chosen,
        "joining_pays": story.joining_pays,
        "methods": methods,
        "notes": list(study.notes),
    }


def _list_gaps(study: Study, method: str) -> dict[str, dict[str, float | None]]:
    return {name: _numbers(value) for name, value in measure_pooled(study, method).items()}


def _numbers(value: Interval) -> dict[str, float | None]:
    """A mean with its 95 % interval; None where a number is not known, as JSON has no NaN."""
    named = {"mean": value.mean, "half_width": value.half, "low": value.low, "high": value.high}
    return {name: None if math.isnan(number) else number for name, number in named.items()}


def check_answerable(studies: Sequence[Study], fail_on: Sequence[Objection]) -> None:
    """Refuse to judge where the runs do not hold what was asked for: silence would be taken for a good verdict."""
    judged = any(judge_all(study) for study in studies)
    if not judged and (not studies or set(fail_on) != {"joining-does-not-pay"}):
        reference = next((study.rules.reference for study in studies if study.rules.reference), "fedavg")
        raise EquipoiseError(
            f"There is nothing to judge: it takes finished runs of {reference} and of another method, with the same "
            "settings and at least one seed in common. --reference names another method to compare with."
        )
    if "joining-does-not-pay" in fail_on and all(tell(study).joining_pays is None for study in studies):
        raise EquipoiseError(
            "Whether joining pays is not known: it takes runs of local_only with the same settings and seeds. Leave "
            "--fail-on joining-does-not-pay out, or do them."
        )


def find_objections(study: Study, fail_on: Sequence[Objection]) -> list[str]:
    """What speaks against the methods of a study, in words: a line for each method and each thing that was asked for."""
    found = []
    for verdict in judge_all(study):
        if verdict.word == "failed" and "levelling-down" in fail_on:
            found.append(f"{verdict.method} on {study.name} fails the levelling-down check.")
        if verdict.word == "undecided" and "undecided" in fail_on:
            found.append(f"The levelling-down check of {verdict.method} on {study.name} is undecided.")
    if "joining-does-not-pay" in fail_on and tell(study).joining_pays is False:
        found.append(f"On {study.name} joining does not pay for many clients.")
    return found
