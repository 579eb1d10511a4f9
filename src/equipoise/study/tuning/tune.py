"""A whole study: search, choice, judgement, page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.data import Federation, load_federation
from equipoise.engine.result import RoundRecord
from equipoise.study.jobs import Job
from equipoise.study.report.page import write_texts
from equipoise.study.tuning.choice import Choice, choose
from equipoise.study.tuning.judging import Judgement, judge_winner, tell_outcome
from equipoise.study.tuning.ledger import BOOK, hold
from equipoise.study.tuning.page import build_page
from equipoise.study.tuning.plan import RIVALS, TRIALS, Contest, Objective, Plan
from equipoise.study.tuning.runs import Doer, do_all
from equipoise.study.tuning.search import Watcher, search
from equipoise.study.tuning.steps import Board
from equipoise.study.tuning.summary import summarise_study
from equipoise.study.tuning.trials import hide_test_data
from equipoise.training import Training

PLAN, PAGE, SUMMARY = "plan.json", "tune.html", "tune.json"


@dataclass(frozen=True, eq=False)
class Tuned:
    """What tuning found. It prints as sentences and a table."""

    contest: Contest
    folder: Path  # of the study
    board: Board  # all trials
    choice: Choice
    judgement: Judgement

    @property
    def page(self) -> Path:
        """The page that shows all of it."""
        return self.folder / PAGE

    @property
    def winner(self) -> str:
        """The method to take, as text."""
        return self.choice.by_contestant[self.choice.winner].candidate.point.method

    @property
    def training(self) -> Training:
        """How the winner's clients train."""
        return self.choice.by_contestant[self.choice.winner].candidate.point.training

    def __str__(self) -> str:
        return "\n".join([*tell_outcome(self.choice, self.judgement), "", str(self.judgement.table)])


def tune(
    federation: Federation | str,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    methods: Sequence[str] = (),
    rivals: Sequence[str] = RIVALS,
    seeds: int = 3,
    objective: Objective = "worst",
    rounds: int | None = None,
    model: str | None = None,
    training: Training | None = None,
    participation: float | None = None,
    search_seed: int = 0,
    out: Path | str = "runs",
) -> Tuned:
    """Search the composition of methods that serves the worst domain (or client) best, and judge it on test data.

    Every contestant has the same budget: FedAvg, each of the rivals, and the compositions. Choices are made by validation
    data alone. The study is kept in a folder below `out`: called again, it goes on; several processes share the work.

    Args:
        federation: the data, or the name of a data set, or the path of your own data.
        trials: how many points of its space each contestant tries; by default 16, unless minutes are given.
        minutes: of computing, instead of trials.
        methods: parts of compositions, such as `["moon", "fedheal(tau=0.3)"]`; by default all that say what they add.
        rivals: methods that the composition is compared with, besides FedAvg.
        seeds: fresh seeds with which the winner and its rivals are judged.
        objective: `"worst"` (the worst domain), `"worst10"` (the worst tenth) or `"pareto"` (average and worst).
        rounds: the limit of a run; each ends when it is flat.
        model: a network as text.
        training: local training, around which learning rate, epochs and batch are searched.
        participation: share of the clients in each round.
        search_seed: of the draws.
        out: where the study's folder goes.
    """
    data = load_federation(federation) if isinstance(federation, str) else federation
    name = federation if isinstance(federation, str) else data.name
    job = Job(dataset=name, rounds=rounds, model=model, training=training, participation=participation)
    budget = TRIALS if trials is None and minutes is None else trials
    plan = Plan.for_data(
        data, job, trials=budget, minutes=minutes, seeds=seeds, objective=objective, methods=tuple(methods),
        rivals=tuple(rivals), search_seed=search_seed,
    )  # fmt: skip
    return carry_out(plan, data, Path(out))


def carry_out(
    plan: Plan,
    data: Federation,
    out: Path,
    on_news: Watcher = lambda _: None,
    on_run: Callable[[str, Job], None] = lambda _, __: None,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
) -> Tuned:
    """Do what a plan asks for, or go on with it, beside any other process that does the same."""
    contest = Contest.of(plan, data)
    folder = plan.place(data, out)
    with hold(folder / BOOK):
        (folder / PLAN).write_text(json.dumps(plan.describe(), indent=2) + "\n", encoding="utf-8")
    board = search(contest, hide_test_data(data), folder, on_news, on_round)

    def do(phase: str) -> Doer:
        return lambda jobs, data, folder: do_all(jobs, data, folder, lambda job: on_run(phase, job), on_round)

    choice = choose(plan, board, data, folder, do("choice"))
    judgement = judge_winner(plan, choice, data, folder, do("judgement"))
    found = Tuned(contest, folder, board, choice, judgement)
    with hold(folder / BOOK):
        write_texts({".html": build_page(contest, board, choice, judgement)}, found.page)
        summary = summarise_study(contest, board, choice, judgement)
        (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return found
