"""What a search is asked to do, as one value that processes on several machines can read from its folder."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from equipoise.data import Federation
from equipoise.errors import EquipoiseError
from equipoise.grammar import Call, fit_to_type, require
from equipoise.metrics import FORMULAS
from equipoise.study.jobs import Job
from equipoise.study.tuning.space import (
    REFERENCE,
    Part,
    Space,
    build_compositions,
    build_single,
    find_unusable,
    list_parts,
)
from equipoise.training import Training

Objective = Literal["worst", "worst10", "pareto"]  # what is made as large as possible, on validation data
RIVALS = ("fedequilibria", "eagle", "f2dc", "fedheal", "fedfe")  # what compositions have to beat, besides FedAvg
COMPOSITIONS = "compositions"  # the contestant that may add methods up
GENERATION = 8  # trials of a contestant that are drawn, run and ranked together
RUNGS = (4, 2, 1)  # a trial is looked at after a fourth and half of the rounds, and at the end; half are promoted
TRIALS = 16  # per contestant, if neither trials nor minutes are given
FEWEST = 4  # trials: of fewer, no two would be compared at the end
ROUNDS = 100  # the limit of a run, if the data set's protocol has fewer: by then most runs are flat
SEEDS_OF_CHOICE = 3  # with which the best trials of a contestant are trained before one of them is chosen
CONFIRMED = 2  # of them
FRESH = 1000  # the first seed of the runs that are judged on test data: none of the search had it


@dataclass(frozen=True)
class Plan:
    """A search. Two plans that are equal are the same study, whichever process works on it."""

    job: Job  # data, model, limit of rounds, participation; local training around which is searched
    trials: int | None = None  # per contestant; None: as many as the minutes allow
    minutes: float | None = None  # of computing, for search, choice and judgement together
    seeds: int = 3  # fresh ones, with which the winner and its rivals are judged on test data
    objective: Objective = "worst"
    methods: tuple[str, ...] = ()  # parts of compositions; none: all
    rivals: tuple[str, ...] = RIVALS
    search_seed: int = 0

    def __post_init__(self) -> None:
        fit_to_type(self.objective, Objective, "objective")
        require(self.seeds >= 2, "seeds", "at least 2: a difference between methods needs an interval", self.seeds)
        if (self.trials is None) == (self.minutes is None):
            raise EquipoiseError(
                f"Give the budget as trials or as minutes, one of the two. Found trials={self.trials}, "
                f"minutes={self.minutes}."
            )
        if self.trials is not None and self.trials < FEWEST:
            raise EquipoiseError(
                f"The budget is too small for one rung: of trials={self.trials} per contestant, half would be promoted twice. "
                f"Give at least {FEWEST}."
            )
        require(self.minutes is None or self.minutes > 0, "minutes", "above 0", self.minutes)

    @classmethod
    def for_data(cls, data: Federation, job: Job, **given: Any) -> Plan:
        """A plan for these data. Data from which nothing can be chosen are refused."""
        refuse_unfit(data)
        limit = max(data.protocol.rounds, ROUNDS) if job.rounds is None else job.rounds
        require(limit >= RUNGS[0], "rounds", f"at least {RUNGS[0]}, for {len(RUNGS)} rungs", limit)
        whole = replace(job, rounds=limit, until_flat=True, with_validation=True, train_scores=False)
        return cls(whole, **given)

    @property
    def rungs(self) -> tuple[int, ...]:
        """The rounds after which trials are compared."""
        assert self.job.rounds is not None
        return tuple(math.ceil(self.job.rounds / part) for part in RUNGS)

    def size_of(self, generation: int) -> int:
        """How many trials of each contestant a generation has; 0: there is no such generation."""
        if self.trials is None:
            return GENERATION
        return max(0, min(GENERATION, self.trials - generation * GENERATION))

    def score(self, values: Mapping[str, float]) -> float:
        """What is made as large as possible, from one value per domain (or client): for the front, half AVG, half MIN."""
        found = list(values.values())
        worst = FORMULAS["worst 10 %" if self.objective == "worst10" else "MIN"].function(found)  # type: ignore[arg-type]
        return (worst + FORMULAS["AVG"].function(found)) / 2 if self.objective == "pareto" else worst  # type: ignore[arg-type]

    # ------------------------------------------------------------------ as a file
    def describe(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_description(cls, found: Mapping[str, Any]) -> Plan:
        """The plan that `describe` gave."""
        job = dict(found["job"])
        training = job["training"]
        job = {**job, "training": None if training is None else Training(**training)}
        job |= {name: tuple(job[name]) for name in ("metrics", "live", "keep")}
        if isinstance(job["hold_out"], list):
            job["hold_out"] = tuple(job["hold_out"])
        rest = {one.name: found[one.name] for one in fields(cls) if one.name != "job"}
        rest |= {name: tuple(rest[name]) for name in ("methods", "rivals")}
        return cls(Job(**job), **rest)

    def place(self, data: Federation, out: Path) -> Path:
        """The folder of the study: another plan, or other data, have another."""
        facts = json.dumps([self.describe(), data.fingerprint], sort_keys=True)
        name = "".join(letter if letter.isalnum() else "_" for letter in data.name)[:40]
        return out / f"tune-{name}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"


def refuse_unfit(data: Federation) -> None:
    """Refuse data from which no method can be chosen, or on which none can be judged."""
    if len(data) < 2:
        raise EquipoiseError(
            f"Tuning compares what clients get, and needs two. Found {len(data)} in `{data.name}`: say who holds what, for "
            "example by --client, or deal the rows out by --partition 'dirichlet(clients=4, alpha=0.5)'."
        )
    if data.redraw is not None:
        raise EquipoiseError(
            f"`{data.name}` is drawn anew for each run, so that no data would be left to judge by which nothing was chosen. "
            "Say which draw is meant, for example seed=0 instead of seed='run'."
        )
    for client in data.clients:
        if len(client.train) < 2 and not len(client.validation):
            raise EquipoiseError(
                f"No validation is possible: `{client.name}` has {len(client.train)} training sample, and needs one to train "
                "on and one to choose by. Give each client at least two, or leave such clients out."
            )
    if not any(len(client.test) for client in data.clients):
        raise EquipoiseError(
            "No client has test data, on which the winner could be judged. Give some, or let a share be set aside for it."
        )


@dataclass(frozen=True)
class Contest:
    """Who competes on these data: the space of each contestant, FedAvg first; and what was left out, and why."""

    plan: Plan
    spaces: Mapping[str, Space]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, data: Federation) -> Contest:
        """The contest of a plan on these data."""
        named = [Part.of(Call(name)) for name in plan.rivals]
        parts = [part for side in list_parts(plan.methods) for part in side]
        unusable = find_unusable({part.name: part for part in (*named, *parts)}.values(), plan.job, data)
        spaces = {REFERENCE: build_single(REFERENCE, plan.job, data)}
        spaces |= {name: build_single(name, plan.job, data) for name in plan.rivals if name not in unusable}
        spaces[COMPOSITIONS] = build_compositions(plan.methods, plan.job, data, unusable)
        return cls(plan, spaces, unusable)
