"""The judgement: the winner and its rivals are trained with fresh seeds, and scored on test data, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from equipoise.data import Federation
from equipoise.metrics import Interval, over_seeds, paired
from equipoise.study.comparison import Comparison, tabulate
from equipoise.study.jobs import summarise
from equipoise.study.report.figures import Rules, Study
from equipoise.study.report.verdict import DIGIT, Verdict, is_within_spread, judge_all, say_points, tell_in_a_line
from equipoise.study.report.view import View
from equipoise.study.tuning.choice import LOCAL, Choice
from equipoise.study.tuning.plan import COMPOSITIONS, FRESH, Plan
from equipoise.study.tuning.runs import Doer
from equipoise.study.tuning.space import REFERENCE, Point
from equipoise.study.tuning.trials import build_job

JUDGED = "judged"  # the folder of the runs on test data
OVER_DOMAINS = View(over="domains")  # a client without a domain is one by itself


@dataclass(frozen=True)
class Duel:
    """The composition against one rival: differences on test data, paired by seed; above 0 the composition is better."""

    rival: str
    worst: Interval  # of the worst domain (or client)
    average: Interval

    @property
    def is_won(self) -> bool:
        """Whether the worst is served better, at no lower average, in the mean over seeds."""
        return self.worst.mean > DIGIT and self.average.mean >= -DIGIT

    @property
    def is_sure(self) -> bool:
        """Whether the gain of the worst is beyond the spread of seeds."""
        return self.is_won and not is_within_spread(self.worst)


@dataclass(frozen=True, eq=False)
class Judgement:
    """What the contestants gave on test data, with fresh seeds."""

    study: Study  # by contestant, and `local_only`
    points: Mapping[str, Point]  # what each contestant stands for
    missing: tuple[str, ...]  # contestants of which some run could not be done

    @cached_property
    def table(self) -> Comparison:
        """AVG, STD and MIN over domains, with their intervals over seeds."""
        runs = [(name, run) for name, by_seed in self.study.runs.items() for run in by_seed.values()]
        return tabulate([(name, summarise(run, "").by_domain) for name, run in runs])

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The levelling-down check on test data, against tuned FedAvg and local-only training."""
        return judge_all(self.study)

    def figure(self, contestant: str, name: str) -> dict[int, float]:
        """AVG, STD or MIN over domains for each seed."""
        runs = self.study.runs[contestant].items()
        return {seed: OVER_DOMAINS.measure(name, run.curve()[1][-1], run.domains) for seed, run in runs}

    def interval(self, contestant: str, name: str) -> Interval:
        """A figure over domains, with its interval over seeds."""
        return over_seeds(list(self.figure(contestant, name).values()))

    def duel(self, one: str, rival: str) -> Duel:
        """One contestant against another."""
        worst, average = (paired(self.figure(rival, name), self.figure(one, name)) for name in ("MIN", "AVG"))
        return Duel(rival, worst, average)

    @cached_property
    def duels(self) -> list[Duel]:
        """The composition against each rival and FedAvg; empty if it could not be trained."""
        if COMPOSITIONS not in self.study.runs:
            return []
        return [self.duel(COMPOSITIONS, name) for name in self.study.runs if name not in (COMPOSITIONS, LOCAL)]

    @property
    def is_goal_met(self) -> bool:
        """Whether the composition serves the worst better than each rival, at no lower average."""
        return bool(self.duels) and all(duel.is_won for duel in self.duels)


def judge_winner(plan: Plan, choice: Choice, data: Federation, folder: Path, do: Doer) -> Judgement:
    """Train what was chosen of every contestant with fresh seeds, on the whole data, and score it on test data."""
    points = {name: one.candidate.point for name, one in choice.by_contestant.items()} | {LOCAL: choice.alone.point}
    seeds = range(FRESH, FRESH + plan.seeds)
    jobs = {(name, seed): build_job(plan, point, seed) for name, point in points.items() for seed in seeds}
    done = do(list(jobs.values()), data, folder / JUDGED)
    runs = {}
    for name in points:
        mine = {seed: run for seed in seeds if (run := done[jobs[name, seed]]) is not None}
        if len(mine) == len(seeds):
            runs[name] = mine
    missing = tuple(name for name in points if name not in runs)
    return Judgement(Study(runs, rules=Rules(reference=REFERENCE)), points, missing)


def tell_outcome(choice: Choice, judgement: Judgement) -> list[str]:
    """The outcome in sentences, the first of which is the headline."""
    winner, study = choice.winner, judgement.study
    if winner == REFERENCE:
        said = ["Nothing that was tried beats tuned fedavg on validation data: take fedavg, tuned."]
    else:
        said = [f"Chosen on validation data: {judgement.points[winner].method}."]
    if winner in study.runs and winner != REFERENCE and REFERENCE in study.runs:
        duel = judgement.duel(winner, REFERENCE)
        said.append(
            f"On test data, against tuned fedavg: worst {_say(duel.worst)}, average {_say(duel.average)} points."
        )
        if not duel.is_won:
            said.append("On these data, by which nothing was chosen, it does not beat tuned fedavg.")
        elif not duel.is_sure:
            said.append("The gain of the worst is within the spread of seeds: it may be chance.")
        said += [tell_in_a_line(verdict) for verdict in judgement.verdicts if verdict.method == winner]
    if judgement.duels:
        lost = [duel.rival for duel in judgement.duels if not duel.is_won]
        unsure = [duel.rival for duel in judgement.duels if duel.is_won and not duel.is_sure]
        own = judgement.points[COMPOSITIONS].method
        if lost:
            said.append(f"The best composition, {own}, does not serve the worst better at no lower average than "
                        f"{', '.join(lost)}.")  # fmt: skip
        else:
            rest = (
                f"; within the spread of seeds against {', '.join(unsure)}"
                if unsure
                else ", beyond the spread of seeds"
            )
            said.append(f"The composition {own} serves the worst better than every rival, at no lower average{rest}.")
    said += [f"{name} could not be trained with every fresh seed." for name in judgement.missing]
    return said


def _say(change: Interval) -> str:
    return f"{100 * change.mean:+.1f} ± {say_points(change.half)}"
