"""Verdicts on numbers made by hand."""

import math

import pytest

from equipoise.study.reproduce.verdicts import (
    compare,
    describe_interval,
    judge_beats,
    judge_order,
    judge_reaches,
    judge_return,
    sum_up,
)

HIGH = {0: 80.0, 1: 81.0, 2: 80.5}
LOW = {0: 78.0, 1: 79.1, 2: 78.4}  # 2.0, 1.9 and 2.1 below: the mean is 2 and the interval 2 +- 0.248 (t is 4.303)
CLOSE = {0: 80.2, 1: 80.6, 2: 80.9}  # differs from HIGH by -0.2, 0.4 and -0.4: the interval contains zero


@pytest.mark.parametrize(
    ("first", "second", "lower", "state", "why"),
    [
        (HIGH, LOW, False, "holds", "+2.00 [1.75, 2.25]"),
        (HIGH, LOW, True, "does not hold", "+2.00 [1.75, 2.25]"),
        (LOW, HIGH, True, "holds", "-2.00 [-2.25, -1.75]"),
        (HIGH, CLOSE, False, "undecided", "-0.07 [-1.10, 0.97]"),
        ({0: 80.0}, {0: 78.0}, False, "undecided", "+2.00, one seed, points the same way"),
        ({0: 80.0}, {0: 78.0}, True, "undecided", "+2.00, one seed, points the other way"),
        ({0: 80.0}, {0: 80.0}, False, "undecided", "+0.00, one seed, no difference"),
        ({0: 80.0}, {1: 78.0}, False, "not run", "no seed of both"),
        ({0: math.nan}, {0: 78.0}, False, "not run", "no seed of both"),
        ({0: 80.0, 1: 80.0}, {0: 80.0, 1: 80.0}, False, "undecided", "+0.00 [0.00, 0.00]"),
    ],
)
def test_a_comparison_is_paired_by_seed_and_needs_an_interval_without_zero(first, second, lower, state, why):
    found = compare(first, second, lower)
    assert (found.state, found.why) == (state, why)


def test_pairing_sees_what_means_alone_do_not():
    noisy = {seed: 10.0 * seed for seed in range(4)}
    better = {seed: value + 1 + 0.01 * seed for seed, value in noisy.items()}
    assert compare(better, noisy, lower=False).state == "holds"  # seeds differ by tens, methods by one


@pytest.mark.parametrize(
    ("others", "state", "told"),
    [
        ({"a": LOW, "b": LOW}, "holds", "against a: +2.00 [1.75, 2.25]; against b: +2.00 [1.75, 2.25]"),
        ({"a": LOW, "b": CLOSE}, "undecided", "against b: -0.07 [-1.10, 0.97]"),
        ({"a": LOW, "b": {s: v + 5 for s, v in HIGH.items()}}, "does not hold", "against b: -5.00 [-5.00, -5.00]"),
        ({"a": {}, "b": {s: v + 5 for s, v in HIGH.items()}}, "does not hold", "against b: -5.00 [-5.00, -5.00]"),
        ({"a": LOW, "b": {}}, "not run", "against b: no seed of both"),
        ({}, "not run", "nothing to compare with"),
    ],
)
def test_a_row_beats_others_if_it_beats_each(others, state, told):
    found = judge_beats(HIGH, others, lower=False)
    assert (found.state, found.why) == (state, told)


@pytest.mark.parametrize(
    ("values", "limit", "state"),
    [
        (HIGH, 75.0, "holds"),
        (HIGH, 80.5, "undecided"),
        (HIGH, 90.0, "does not hold"),
        ({0: 80.0}, 75.0, "undecided"),
        ({}, 75.0, "not run"),
    ],
)
def test_a_value_is_reached_if_the_whole_interval_is_above_it(values, limit, state):
    assert judge_reaches(values, limit).state == state


@pytest.mark.parametrize(
    ("values", "published", "near", "state", "why"),
    [
        ({0: 80.0, 1: 82.0}, 81.0, 0.0, "holds", "81.00 against 81.00"),
        ({0: 80.0, 1: 82.0, 7: 0.0}, 81.4, 0.5, "holds", "81.00 against 81.40"),  # seed 7 is not of the published ones
        ({0: 80.0, 1: 82.0}, 81.6, 0.5, "does not hold", "81.00 against 81.60"),
        ({0: 80.0}, 80.0, 0.5, "not run", "1 of 2 seeds"),
    ],
)
def test_a_published_mean_comes_back_over_the_same_seeds(values, published, near, state, why):
    found = judge_return(values, published, near, [0, 1])
    assert (found.state, found.why) == (state, why)


def test_the_order_is_compared_pair_by_pair():
    ours = {"a": HIGH, "b": LOW, "c": CLOSE}
    found = judge_order("AVG", ours, {"a": 70.0, "b": 75.0, "c": 60.0}, lower=False)
    # Published: b > a > c. Ours: b < a (reversed), b < c (reversed), a and c undecided, with c ahead by 0.07.
    assert found.reversed == ("b > a", "b > c")
    assert (found.agree, found.undecided, found.state) == (0, 1, "does not hold")
    assert found.correlation == pytest.approx(-1.0)
    turned = judge_order("STD", ours, {"a": 70.0, "b": 60.0, "c": 75.0}, lower=True)
    assert (turned.agree, turned.reversed) == (2, ())  # lower is better: b before a and c, as published
    assert str(turned) == "2 pairs as published, 0 the other way round, 1 undecided; Kendall's tau of the means +1.00"
    nothing = judge_order("AVG", {"a": HIGH}, {"a": 1.0, "b": 2.0}, lower=False)
    assert (nothing.state, math.isnan(nothing.correlation)) == ("not run", True)


def test_rows_that_are_equal_in_print_have_no_order():
    assert judge_order("AVG", {"a": HIGH, "b": LOW}, {"a": 70.0, "b": 70.0}, lower=False).state == "not run"


@pytest.mark.parametrize(
    ("states", "word"),
    [
        ([], "not run"),
        (["not run"], "not run"),
        (["holds", "holds"], "holds"),
        (["holds", "not run"], "in part"),
        (["holds", "does not hold"], "in part"),
        (["does not hold", "undecided"], "does not hold"),
        (["undecided", "not run"], "undecided"),
    ],
)
def test_several_claims_have_one_word(states, word):
    assert sum_up(states) == word


def test_a_cell_shows_half_of_its_interval():
    assert describe_interval(HIGH, 1) == "80.5 ± 1.2"  # sd 0.5, t 4.303, three seeds: 4.303 * 0.5 / sqrt(3) = 1.242
    assert describe_interval({0: 1.0, 1: math.nan}, 2) == "1.00"
