"""Whether a run has converged: the rule on curves of known slope, and runs that end by it."""

import numpy as np
import pytest

from equipoise import run
from equipoise.convergence import fit_trend, judge_convergence
from equipoise.engine import Checkpoints
from equipoise.engine.result import judge_records
from kit import Stop, blobs, stop_after


def curve(values):
    return {r: float(v) for r, v in enumerate(values, 1)}


def saturating(rounds, speed, noise=0.0, seed=0):
    """From 0 to 80 points: the distance to 80 falls by a factor e in `speed` rounds."""
    t = np.arange(1, rounds + 1)
    return curve(80 * (1 - np.exp(-t / speed)) + noise * np.random.default_rng(seed).normal(size=rounds))


def test_the_slope_and_its_interval_are_those_of_least_squares():
    rng = np.random.default_rng(0)
    t = np.arange(5, 45)
    hits = 0
    for _ in range(400):
        slope = rng.normal()
        values = 3 + slope * t + rng.normal(size=40)
        found = fit_trend(t, values)
        assert found.mean == pytest.approx(10 * np.polyfit(t, values, 1)[0])
        hits += found.low <= 10 * slope <= found.high
    assert 0.93 <= hits / 400 <= 1.0  # with independent noise the interval is at most a little too wide


def test_the_interval_of_a_drifting_curve_is_wider_than_that_of_independent_noise():
    rng = np.random.default_rng(1)
    t, hits = np.arange(100), 0
    for _ in range(300):
        noise = np.zeros(100)
        for i in range(1, 100):
            noise[i] = 0.7 * noise[i - 1] + rng.normal()
        found = fit_trend(t, noise)
        hits += found.low <= 0 <= found.high
    assert hits / 300 >= 0.88  # without the correction for neighbours that resemble each other: about 0.6


@pytest.mark.parametrize(("rounds", "speed", "state"), [(100, 5, "flat"), (100, 60, "rising"), (30, 15, "rising")])
def test_a_saturating_curve_is_flat_only_at_its_end(rounds, speed, state):
    for noise in (0.0, 0.5):
        same = saturating(rounds, speed, noise)
        assert judge_convergence({"AVG": same, "MIN": same}).state == state


def test_the_figure_that_moves_decides():
    flat, falling = curve([70.0] * 60), curve(70 - 0.3 * np.arange(60))
    found = judge_convergence({"AVG": flat, "MIN": falling})
    assert (found.state, found.figure) == ("falling", "MIN")
    assert found.trend.mean == pytest.approx(-3.0)
    assert str(found) == "MIN falling by 3.0 points per 10 rounds"
    assert str(judge_convergence({"AVG": flat, "MIN": flat})) == "flat"


def test_few_evaluations_are_unknown_and_noise_is_unclear():
    every_tenth = dict.fromkeys(range(10, 101, 10), 70.0)
    assert judge_convergence({"AVG": every_tenth}).state == "unknown"
    assert judge_convergence({"AVG": {}}).state == "unknown"
    wild = curve(50 + 15 * np.random.default_rng(3).normal(size=40))
    assert judge_convergence({"AVG": wild}).state == "unclear"


def test_noise_is_overcome_by_a_longer_stretch():
    """A fifth of 100 rounds with noise of 1.5 points has an interval of more than a point; half of them has not."""
    states = [judge_convergence({"MIN": saturating(100, 4, noise=1.2, seed=s)}) for s in range(20)]
    assert sum(found.state == "flat" for found in states) >= 16
    assert any(found.since < 81 for found in states)
    rising = [judge_convergence({"MIN": saturating(100, 80, noise=1.2, seed=s)}) for s in range(20)]
    assert all(found.state == "rising" for found in rising)


def test_a_run_ends_when_it_is_flat_and_has_the_same_numbers_until_then():
    settings = {"rounds": 200, "model": "linear"}
    flat = run("fedavg", blobs(), until_flat=True, **settings)
    done = len(flat.rounds)
    assert 40 <= done < 200
    assert done % 10 == 0
    assert flat.stopped == ""
    assert flat.convergence.state == "flat"
    assert judge_records(flat.rounds[: done - 10]).state != "flat" or done == 40
    whole = run("fedavg", blobs(), rounds=done, model="linear")
    assert whole.values() == flat.values()


def test_the_limit_on_rounds_holds_for_a_run_that_is_not_flat():
    found = run("fedavg", blobs(), until_flat=True, rounds=15, model="linear")
    assert len(found.rounds) == 15
    assert found.stopped == ""


def test_a_run_that_ends_when_flat_goes_on_from_a_checkpoint(tmp_path):
    settings = {"rounds": 200, "model": "linear", "until_flat": True}
    with pytest.raises(Stop):
        run("fedavg", blobs(), checkpoint=Checkpoints(tmp_path, every=5), on_round=stop_after(23), **settings)
    again = run("fedavg", blobs(), checkpoint=Checkpoints(tmp_path, every=5, resume=True), **settings)
    whole = run("fedavg", blobs(), **settings)
    assert again.values() == whole.values()
    assert len(again.rounds) == len(whole.rounds)
