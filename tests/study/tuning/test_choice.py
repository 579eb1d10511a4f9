"""The choice by validation data, and the judgement on test data, from made-up values."""

import numpy as np
import pytest

from equipoise import Training
from equipoise.runs.reading import read
from equipoise.study.jobs import Job
from equipoise.study.report.figures import Rules, Study
from equipoise.study.tuning.choice import Candidate, Choice, Chosen, _judge, score, shortlist
from equipoise.study.tuning.commands import write_deploy, write_run
from equipoise.study.tuning.judging import Judgement, tell_outcome
from equipoise.study.tuning.ledger import Reached, Trial
from equipoise.study.tuning.plan import Plan
from equipoise.study.tuning.space import Point
from kit.made_runs import made

PLAN = Plan(Job(dataset="made", rounds=40), trials=4)
NAMES = ("a", "b", "c")


def candidate(contestant, *rows, method="fedavg", state="flat"):
    return Candidate(contestant, 0, Point(method, Training()), NAMES, np.array(rows), state)


FEDAVG = candidate("fedavg", (0.5, 0.8, 0.9), (0.52, 0.8, 0.9), (0.51, 0.8, 0.9))
ALONE = candidate("local_only", (0.4, 0.7, 0.7), (0.4, 0.7, 0.7), (0.4, 0.7, 0.7))


def chosen(one):
    return Chosen(one, None if one is FEDAVG else _judge(one, FEDAVG, ALONE), score(PLAN, one))


def choice(*others):
    by_contestant = {"fedavg": chosen(FEDAVG)} | {one.contestant: chosen(one) for one in others}
    return Choice(by_contestant, ALONE, by_contestant["fedavg"], ())


def test_the_best_worst_domain_wins_if_nobody_pays_too_much():
    better = candidate("compositions", (0.6, 0.8, 0.9), (0.61, 0.8, 0.9), (0.62, 0.8, 0.9))
    good = candidate("fedheal", (0.55, 0.8, 0.9), (0.56, 0.8, 0.9), (0.55, 0.8, 0.9))
    assert score(PLAN, better) == pytest.approx(0.61)
    assert choice(better, good).winner == "compositions"


def test_who_levels_down_is_not_chosen_however_good_the_worst():
    """The worst gains four points, and another loses fifteen in every seed."""
    robber = candidate("compositions", (0.55, 0.8, 0.75), (0.56, 0.8, 0.75), (0.55, 0.8, 0.75))
    good = candidate("fedheal", (0.53, 0.8, 0.9), (0.53, 0.8, 0.9), (0.54, 0.8, 0.9))
    assert chosen(robber).verdict.word == "failed"
    assert not chosen(robber).is_fit
    assert choice(robber, good).winner == "fedheal"
    assert choice(robber).winner == "fedavg"


def test_who_has_not_converged_is_not_chosen():
    quick = candidate("compositions", (0.6, 0.8, 0.9), (0.61, 0.8, 0.9), (0.6, 0.8, 0.9), state="falling")
    assert chosen(quick).verdict.passed
    assert choice(quick).winner == "fedavg"


def test_fedavg_wins_a_tie():
    same = candidate("compositions", *FEDAVG.values.tolist())
    assert choice(same).winner == "fedavg"


def test_of_the_last_rung_the_converged_come_first_and_what_was_drawn_twice_counts_once():
    def trial(number, worst, state="flat", rate=0.1, rungs=3):
        reached = Reached(40, {"a": worst, "b": 0.9}, state, True, 1.0, 8)
        return Trial("eagle", number, 0, Point("eagle", Training(lr=rate)), {}, {}, (reached,) * rungs, True)

    several = [
        trial(0, 0.9, rungs=2), trial(1, 0.5), trial(2, 0.7, "falling", 0.2), trial(3, 0.5), trial(4, 0.4, rate=0.3),
    ]  # fmt: skip
    assert [one.number for one in shortlist(PLAN, several)] == [1, 4]


# --------------------------------------------------------------------------- on test data
def judgement(tmp_path, **by_name):
    runs = {}
    for name, rows in by_name.items():
        places = [
            made(tmp_path / name, name, row, seed=1000 + seed, names=list(NAMES)) for seed, row in enumerate(rows)
        ]
        runs[name] = {1000 + seed: read(place) for seed, place in enumerate(places)}
    points = {name: Point(f"{name}", Training()) for name in runs}
    return Judgement(Study(runs, rules=Rules(reference="fedavg")), points, ())


REFERENCE = [(0.5, 0.8, 0.9), (0.52, 0.8, 0.9), (0.51, 0.8, 0.9)]
ABOVE = [(0.55, 0.8, 0.9), (0.57, 0.8, 0.9), (0.57, 0.8, 0.9)]


def test_differences_are_paired_by_seed(tmp_path):
    duel = judgement(tmp_path, fedavg=REFERENCE, compositions=ABOVE).duels[0]
    assert duel.rival == "fedavg"
    assert duel.worst.mean == pytest.approx(np.mean([0.05, 0.05, 0.06]))
    half = (
        4.302652729911275 * np.std([0.05, 0.05, 0.06], ddof=1) / np.sqrt(3)
    )  # Student's t with two degrees of freedom
    assert duel.worst.half == pytest.approx(half)
    assert duel.average.mean == pytest.approx(np.mean([0.05, 0.05, 0.06]) / 3)
    assert duel.is_won
    assert duel.is_sure


def test_the_goal_is_met_only_against_every_rival_at_no_lower_average(tmp_path):
    one = judgement(tmp_path / "1", fedavg=REFERENCE, compositions=ABOVE, eagle=REFERENCE, local_only=REFERENCE)
    assert one.is_goal_met
    assert {duel.rival for duel in one.duels} == {"fedavg", "eagle"}
    higher = [(0.5, 0.9, 1.0)] * 3  # a worse worst, and a better average
    assert not judgement(tmp_path / "2", fedavg=REFERENCE, compositions=ABOVE, eagle=higher).is_goal_met


def test_what_is_said_where_nothing_beats_fedavg_and_where_something_does(tmp_path):
    found = judgement(tmp_path / "1", fedavg=REFERENCE, compositions=REFERENCE)
    told = tell_outcome(choice(candidate("compositions", *FEDAVG.values.tolist())), found)
    assert told[0] == "Nothing that was tried beats tuned fedavg on validation data: take fedavg, tuned."
    better = candidate("compositions", (0.6, 0.8, 0.9), (0.61, 0.8, 0.9), (0.62, 0.8, 0.9))
    first, second, third, fourth = tell_outcome(
        choice(better), judgement(tmp_path / "2", fedavg=REFERENCE, compositions=ABOVE)
    )
    assert first == "Chosen on validation data: compositions."
    assert second == "On test data, against tuned fedavg: worst +5.3 ± 1.4, average +1.8 ± 0.5 points."
    assert third == "Levelling-down check of compositions: passed."
    assert fourth.endswith("serves the worst better than every rival, at no lower average, beyond the spread of seeds.")
    told = tell_outcome(choice(better), judgement(tmp_path / "3", fedavg=ABOVE, compositions=REFERENCE))
    assert "On these data, by which nothing was chosen, it does not beat tuned fedavg." in told


def test_commands_name_all_that_was_tuned():
    point = Point("moon(mu=0.1) + fedheal(tau=0.3)", Training(lr=0.02, epochs=2, batch=None))
    job = Job(dataset="scanners", rounds=100, model="linear")
    assert write_run(job, point) == (
        "equipoise run scanners --method 'moon(mu=0.1) + fedheal(tau=0.3)' --lr 0.02 --epochs 2 --batch full --model linear "
        "--rounds 100 --until-flat --validation"
    )
    assert write_deploy(job, Point("fedavg", Training(steps=3, batch=8))) == (
        "equipoise deploy init app --data scanners --method fedavg --lr 0.01 --steps 3 --batch 8 --model linear --rounds 100"
    )
