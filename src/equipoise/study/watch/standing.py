"""Who is there: how each client of a run in progress stands, and what can be said of its methods so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow.compute as pc

from equipoise.runs.reading import AWAY, LATE, REPEATED, Recorded
from equipoise.study.report.figures import Study, group_studies

Word = Literal["there", "silent", "rejected", "not heard yet"]
UNSCORED = "its evaluation: "  # begins the reason of an answer that counted, but whose client sent no scores
ORDER: tuple[Word, ...] = ("silent", "rejected", "not heard yet", "there")


@dataclass(frozen=True)
class Standing:
    """A client in a run, after its last round."""

    client: str
    word: Word
    heard: int  # the last round in which its answer counted; 0: none did
    since: int  # the round since which it is silent or rejected; 0 if it is neither
    why: str  # its last answer did not count, or it was not scored
    weight: float  # in the last round in which its answer counted; NaN if none did
    score: float  # test score when it was last scored; NaN if it never was
    scored: int  # the round after which that was; 0 if it never was


def find_standings(run: Recorded) -> list[Standing]:
    """How each client of a run stands: those that are silent first, then the worst of the others.

    A round that is being repeated counts, too: otherwise nobody would be silent while a run waits for answers.
    """
    weights = run.weights.select(["round", "client", "weight"]).to_pydict()
    last: dict[str, tuple[int, float]] = {}
    for r, client, weight in zip(weights["round"], weights["client"], weights["weight"], strict=True):
        if r >= last.get(client, (0, 0.0))[0]:
            last[client] = (r, weight)
    refused: dict[str, list[tuple[int, str]]] = {}
    for one in (*run.manifest["rejected"], *run.manifest.get(REPEATED, {}).get("rejected", ())):
        refused.setdefault(one["client"], []).append((int(one["round"]), str(one["why"])))
    rounds, values = run.curve()
    found = []
    for k, client in enumerate(run.clients):
        heard, weight = last.get(client, (0, math.nan))
        scored = np.flatnonzero(~np.isnan(values[:, k]))
        score, after = (float(values[scored[-1], k]), int(rounds[scored[-1]])) if len(scored) else (math.nan, 0)
        later = [(r, why) for r, why in refused.get(client, ()) if r > heard]
        word: Word = "there" if heard else "not heard yet"
        since, why = 0, ""
        if later:
            since, why = min(later)[0], later[-1][1]
            word = "silent" if why in (LATE, AWAY) else "rejected"
        elif any(r == heard and text.startswith(UNSCORED) for r, text in refused.get(client, ())):
            why = "It answered, but was not scored; " + next(t for r, t in refused[client] if r == heard)
        found.append(Standing(client, word, heard, since, why, weight, score, after))
    return sorted(found, key=lambda one: (ORDER.index(one.word), math.isnan(one.score), one.score))


def cut_after(run: Recorded, last: int, seconds: Sequence[float] = ()) -> Recorded:
    """A run as if it had ended after this round. `seconds` are those of its rounds, if the manifest does not say."""
    facts = run.manifest
    times = list(facts["seconds_per_round"] or seconds)[:last] or [math.nan]
    rejected = [one for one in facts["rejected"] if int(one["round"]) <= last]
    manifest = {**facts, "status": "finished", "rounds": last, "seconds_per_round": times, "rejected": rejected}
    return replace(
        run,
        manifest=manifest,
        records=run.records.filter(pc.field("round") <= last),
        weights=run.weights.filter(pc.field("round") <= last),
        selection=run.selection.filter(pc.field("round") <= last),
    )


def compare_so_far(runs: Sequence[Recorded]) -> tuple[Study, int] | None:
    """Runs with the same data and settings, all cut off after the last round after which each of them was scored.

    Returns the study and that round. None if there is no such round.
    """
    scored = {run.place: {int(r) for r in run.curve()[0]} for run in runs}
    begun = [run for run in runs if scored[run.place]]
    common = set.intersection(*(scored[run.place] for run in begun)) if begun else set()
    if not common:
        return None
    last = max(common)
    (study,) = group_studies([cut_after(run, last) for run in begun])
    return study, last


def can_be_judged(study: Study) -> bool:
    """Whether each method has a client that was scored under it and under FedAvg, with every seed that both have."""
    if study.reference is None:
        return True
    base = study.final(study.reference)
    for method in study.rivals:
        found = study.final(method)
        both = [found[seed] + base[seed] for seed in found if seed in base]
        if both and not np.isfinite(np.stack(both)).all(0).any():
            return False
    return True
