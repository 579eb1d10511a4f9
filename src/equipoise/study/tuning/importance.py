"""What mattered: how much of the differences between trials each choice explains."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from equipoise.study.tuning.ledger import Trial
from equipoise.study.tuning.plan import Plan

FEWEST = 6  # trials from which a share is told


class Share(NamedTuple):
    """How much of the variance of the objective a choice explains, among the trials that had it."""

    name: str  # `client`, `server`, `lr`, or a parameter such as `fedheal.tau`
    share: float  # from 0 to 1
    trials: int


def weigh_choices(plan: Plan, trials: Sequence[Trial]) -> list[Share]:
    """The share of each choice by functional analysis of variance (fANOVA), the largest first.

    All trials are compared at the first rung, which all of them reached. Parameters that few trials have are weighed among
    those alone; what fewer than six trials have in different values is left out.
    """
    tried = [trial for trial in trials if trial.reached and not trial.reached[0].failed]
    counts = Counter(name for trial in tried for name in trial.parameters)
    found = []
    for name, count in counts.items():
        mine = [trial for trial in tried if name in trial.parameters]
        if count >= FEWEST and len({trial.parameters[name] for trial in mine}) > 1:
            found.append(Share(name, _weigh(plan, mine, name), count))
    return sorted(found, key=lambda one: -one.share)


def _weigh(plan: Plan, trials: Sequence[Trial], name: str) -> float:
    scores = [plan.score(trial.reached[0].values) for trial in trials]
    if max(scores) == min(scores):
        return 0.0
    common = set.intersection(*(set(trial.parameters) for trial in trials))
    shared = {one for one in common if len({trial.parameters[one] for trial in trials}) > 1}
    kinds = {one: trials[0].distributions[one] for one in shared}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study()
        for trial, score in zip(trials, scores, strict=True):
            chosen = {one: trial.parameters[one] for one in shared}
            study.add_trial(create_trial(params=chosen, distributions=kinds, value=score))
        evaluator = FanovaImportanceEvaluator(seed=0)
        return float(get_param_importances(study, evaluator=evaluator, normalize=False)[name])
