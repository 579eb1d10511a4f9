"""What is done next in a search, and who is promoted, by hand."""

from dataclasses import replace

import pytest

from equipoise import Training
from equipoise.study.jobs import Job
from equipoise.study.tuning.ledger import Reached, Trial
from equipoise.study.tuning.plan import Plan
from equipoise.study.tuning.search import count_rungs, is_spent
from equipoise.study.tuning.space import Point
from equipoise.study.tuning.steps import Climb, Draw, Settle, limit, list_steps, promote


def plan(trials=4, objective="worst"):
    return Plan(Job(rounds=40), trials=trials, objective=objective)


def reached(*values, failed=""):
    return Reached(10, {f"d{i}": value for i, value in enumerate(values)}, "flat", False, 1.0, 8, failed)


def trial(number, *rungs, contestant="fedavg", generation=0, settled=False):
    point = Point("fedavg", Training(lr=0.1 * (number + 1)))
    return Trial(contestant, number, generation, point, {}, {}, rungs, settled)


def test_rungs_are_a_fourth_half_and_all_of_the_rounds():
    assert plan().rungs == (10, 20, 40)
    assert count_rungs(plan(8)) == 8 + 4 + 2
    assert count_rungs(plan(12)) == (8 + 4 + 2) + (4 + 2 + 1)


def test_the_better_half_is_promoted_and_the_average_breaks_a_tie():
    several = [
        trial(0, reached(0.5, 0.6)),
        trial(1, reached(0.5, 0.9)),
        trial(2, reached(0.4, 1.0)),
        trial(3, reached(0.6, 0.6)),
    ]
    assert [one.number for one in promote(plan(), several, 0)] == [3, 1]
    assert [one.number for one in promote(plan(), several[:3], 0)] == [1, 0]
    assert [one.number for one in promote(plan(objective="pareto"), several, 0)] == [1, 3]  # 0.6 and 0.6 against 0.55


def test_a_trial_that_failed_is_never_promoted():
    several = [trial(0, reached(failed="diverged")), trial(1, reached(0.1, 0.2))]
    assert [one.number for one in promote(plan(), several, 0)] == [1]


def test_trials_are_drawn_then_climb_and_only_the_promoted_go_on():
    board = {"fedavg": [trial(i) for i in range(3)]}
    assert list_steps(plan(), board, 0) == [Draw("fedavg", 0)]
    one, two, three, four = (trial(i, reached(0.1 * i, 0.5)) for i in range(4))
    half = [one, two, three, trial(3)]
    assert list_steps(plan(), {"fedavg": half}, 0) == [Climb(half[3], 0)]
    assert list_steps(plan(), {"fedavg": [one, two, three, four]}, 0) == [Climb(four, 1), Climb(three, 1)]


def test_the_others_are_settled_after_fedavg():
    whole = [trial(i, *[reached(0.1 * i, 0.5)] * rungs) for i, rungs in enumerate((1, 1, 2, 3))]
    others = [trial(i, *one.reached, contestant="eagle") for i, one in enumerate(whole)]
    assert list_steps(plan(), {"fedavg": whole, "eagle": others}, 0) == [Settle("fedavg", 0)]
    settled = [trial(one.number, *one.reached, settled=True) for one in whole]
    assert list_steps(plan(), {"fedavg": settled, "eagle": others}, 0) == [Settle("eagle", 0)]
    done = [trial(one.number, *one.reached, contestant="eagle", settled=True) for one in others]
    assert list_steps(plan(), {"fedavg": settled, "eagle": done}, 0) == []


def test_the_levelling_down_rules_as_numbers_are_against_the_best_fedavg_at_the_same_rung():
    references = [trial(0, reached(0.5, 0.7)), trial(1, reached(0.4, 1.0), reached(0.9, 0.9))]
    found = limit(plan(), trial(0, reached(0.45, 0.7), contestant="eagle"), references)
    assert found == pytest.approx({"worst": 0.05, "average": 0.6 - 0.575 - 0.01})
    assert limit(plan(), trial(0, reached(0.1, 0.2)), references) == {}
    assert limit(plan(), trial(0, reached(failed="x"), contestant="eagle"), references) == {}


def test_scores_by_hand():
    values = {f"d{i}": i / 10 for i in range(20)}
    assert plan().score(values) == 0.0
    assert plan(objective="worst10").score(values) == pytest.approx(0.05)
    assert plan(objective="pareto").score(values) == pytest.approx(0.475)


def test_minutes_are_spent_by_generations_that_are_over_not_by_what_others_have_begun():
    timed = Plan(Job(rounds=40), minutes=1.0, seeds=2)
    first = [trial(i, *[reached(0.5, 0.6)] * 3) for i in range(8)]  # eight seconds, each run a second
    begun = [trial(8, replace(reached(0.5, 0.6), seconds=1000.0), generation=1)]
    # Two generations take 16 s; choice and judgement 2 x 2 + 2 runs, and 3 + 2 of local-only training, 11 s.
    assert not is_spent(timed, {"fedavg": first}, 1)
    assert not is_spent(timed, {"fedavg": first + begun}, 1)
    assert is_spent(replace(timed, minutes=26 / 60), {"fedavg": first}, 1)
    assert not is_spent(replace(timed, minutes=28 / 60), {"fedavg": first}, 1)
