"""A study in words: the headline, the answers, the notices, and what programs read of them."""

import json
import math

import numpy as np
import pytest
from scipy.stats import false_discovery_control, ttest_1samp
from typer.testing import CliRunner

from equipoise import EquipoiseError
from equipoise.cli import app
from equipoise.metrics import find_discoveries
from equipoise.runs.reading import read_all
from equipoise.study.report.figures import Rules, group_studies
from equipoise.study.report.headline import tell
from equipoise.study.report.notices import find_notices, tell_notices
from equipoise.study.report.verdict import choose_by_validation, judge_all, tell_in_a_line
from kit.made_runs import made

NAMES = ["a", "b", "c", "d"]
FEDAVG = np.array([0.95, 0.93, 0.90, 0.60])
LAST = np.array([0, 0, 0, 0.1])


def make_runs(folder, methods, seeds=3, **facts):
    """Runs of each method with some seeds, which shift all accuracies alike."""
    for seed in range(seeds):
        for method, values in methods.items():
            shift = 0.01 * (seed - 1) if seeds > 1 else 0.0
            made(folder, method, np.asarray(values) + shift, seed=seed, names=NAMES, **facts)
    return folder


def one_study(folder, rules=None):
    (study,) = group_studies(read_all([folder])[0], rules or Rules())
    return study


# --------------------------------------------------------------------------- false discoveries
def test_discoveries_are_those_of_benjamini_and_hochberg():
    draw = np.random.default_rng(0)
    for seeds in (2, 3, 10):
        values = draw.normal(draw.choice([0.0, 1.0, 4.0], 200), 1.0, (seeds, 200))
        expected = false_discovery_control(ttest_1samp(values, 0).pvalue) <= 0.05
        assert find_discoveries(values).tolist() == expected.tolist()
    assert not find_discoveries(np.ones((1, 3))).any()  # one seed shows nothing
    assert find_discoveries(np.zeros((3, 2))).tolist() == [False, False]
    assert find_discoveries(np.tile([0.1, 0.0], (3, 1))).tolist() == [True, False]


def test_among_many_clients_few_are_named_by_chance(tmp_path):
    draw = np.random.default_rng(0)
    for seed in range(3):
        for method in ("fedavg", "qffl"):  # 1,000 clients that differ by luck alone
            made(tmp_path / "r", method, np.clip(draw.normal(0.7, 0.05, 1000), 0, 1), seed=seed)
    (verdict,) = judge_all(one_study(tmp_path / "r"))
    (reason,) = [reason for reason in verdict.reasons if reason.rule == "client"]
    assert reason.clients == ()  # without control about one in forty of those that fell by more than 2 points
    assert reason.word == "undecided"


# --------------------------------------------------------------------------- headlines
def test_one_client_alone_is_said_to_be_alone(tmp_path):
    for method in ("fedavg", "qffl", "local_only"):
        made(tmp_path / "r", method, np.array([0.7]))
    assert tell(one_study(tmp_path / "r")).sentences == [
        "There is one client only: fairness between clients cannot be judged."
    ]


def test_no_change_is_not_told_as_a_spread(tmp_path):
    study = one_study(make_runs(tmp_path, {"fedavg": FEDAVG, "qffl": FEDAVG}))
    (worst,) = [answer for question, answer in tell(study).reasons if question == "Who was worst?"]
    assert worst.endswith("Under qffl d is worst with all 3 seeds: 60.0 %, as under fedavg.")


def test_the_headline_tells_who_was_worst_what_happened_and_who_paid(tmp_path):
    fair, level, own = [0.94, 0.93, 0.90, 0.70], [0.60] * 4, [0.80, 0.80, 0.92, 0.50]
    study = one_study(make_runs(tmp_path, {"fedavg": FEDAVG, "qffl": fair, "afl": level, "local_only": own}))
    story = tell(study)
    assert story.headline == (
        "qffl lifts the worst client (d) from 60.0 to 70.0 %, and nobody loses more than 2.0 points."
    )
    assert (story.chosen, story.shown, story.joining_pays) == ("qffl", "qffl", True)
    answers = dict(story.reasons)
    assert answers["Who was worst?"] == (
        "Under fedavg d is worst with all 3 seeds. Under qffl d is worst with all 3 seeds: 60.0 to 70.0 % "
        "(+10.0 ± 0.0 points)."
    )
    assert answers["Who paid?"].startswith(
        "Clients that lose more than 2.0 points: under qffl nobody; the average rose"
    )
    assert answers["Does joining pay?"] == (
        "Under qffl 3 of 4 clients do better than alone, 1 does better alone for sure (c)."
    )
    assert answers["Is anybody levelled down?"] == "1 of 2 methods pass the levelling-down check (failed: afl)."
    assert {v.method: v.word for v in judge_all(study)} == {"afl": "failed", "qffl": "passed"}
    assert [tell_in_a_line(v) for v in judge_all(study)][1] == "Levelling-down check of qffl: passed."
    assert "afl: failed (the average fell by 24.5 points" in tell_in_a_line(judge_all(study)[0])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.90, 0.93, 0.90, 0.70], "from 60.0 to 70.0 %, and 1 of 4 clients loses more than 2.0 points."),
        ([0.95, 0.93, 0.90, 0.60], "qffl leaves the worst client (d) at 60.0 %, and nobody loses"),
        ([0.95, 0.93, 0.90, 0.50], "pushes the worst client (d) down from 60.0 to 50.0 %"),
    ],
)
def test_every_way_in_which_the_worst_can_move(values, said, tmp_path):
    assert said in tell(one_study(make_runs(tmp_path, {"fedavg": FEDAVG, "qffl": values}))).headline


def test_where_many_do_better_alone_that_is_the_headline(tmp_path):
    own = FEDAVG + np.array([0.02, 0.02, 0.0, -0.1])
    runs = make_runs(tmp_path / "chosen", {"fedavg": FEDAVG, "qffl": FEDAVG + 0.1 * LAST, "local_only": own})
    story = tell(one_study(runs))
    assert story.headline == "Joining does not pay for many: under every method 2 of 4 clients or more do better alone."
    assert story.joining_pays is False
    alone = tell(one_study(make_runs(tmp_path / "bare", {"fedavg": FEDAVG, "local_only": own})))
    assert alone.headline == "Joining does not pay for 2 of 4 clients: they do better alone than under fedavg."
    few = tell(one_study(make_runs(tmp_path / "few", {"fedavg": FEDAVG, "qffl": FEDAVG, "local_only": FEDAVG - LAST})))
    assert few.joining_pays
    assert "Joining" not in few.headline


def test_a_chosen_method_that_most_would_leave_is_told_as_such(tmp_path):
    level = [0.62] * 4  # validation data choose it, and fedavg is still better than training alone
    study = one_study(make_runs(tmp_path, {"fedavg": FEDAVG, "afl": level, "local_only": FEDAVG - 0.05}))
    assert tell(study).headline == (
        "afl lifts the worst client (d) from 60.0 to 62.0 %, but 3 of 4 clients do better alone than under it."
    )
    assert tell(study).joining_pays


def test_what_only_luck_may_have_done_is_not_told_for_sure(tmp_path):
    luck = np.array([[0.06], [0.0], [-0.06]])
    for seed in range(3):
        made(tmp_path / "r", "fedavg", FEDAVG, seed=seed, names=NAMES)
        made(tmp_path / "r", "qffl", FEDAVG + [-0.03, 0, 0, 0.05] + luck[seed], seed=seed, names=NAMES)
    story = tell(one_study(tmp_path / "r"))
    assert "does not lift the worst client (d) for sure: 60.0 to 65.0 %, within the spread of seeds" in story.headline
    assert story.headline.endswith("and 1 of 4 clients may lose more than 2.0 points.")
    assert "under qffl perhaps a (-3.0), within the spread of seeds" in dict(story.reasons)["Who paid?"]
    assert dict(story.reasons)["Does joining pay?"].startswith("Not known")


def test_clients_that_share_the_last_place_are_all_named(tmp_path):
    low = np.array([0.9, 0.9, 0.1, 0.1])
    story = tell(one_study(make_runs(tmp_path, {"fedavg": low, "qffl": low + np.array([0, 0, 0.5, 0.6])})))
    assert "the worst client (c, d) from 10.0 to 60.0 %" in story.headline
    assert "Under fedavg c, d are worst with all 3 seeds." in dict(story.reasons)["Who was worst?"]
    assert "The worst under fedavg has now: d 70.0 %." in dict(story.reasons)["Who was worst?"]


def test_validation_and_never_test_chooses_the_method(tmp_path):
    better, worse = np.array([0.95, 0.93, 0.90, 0.80]), np.array([0.95, 0.93, 0.90, 0.65])
    made(tmp_path / "r", "fedavg", FEDAVG)
    made(tmp_path / "r", "qffl", better, validation=worse)
    made(tmp_path / "r", "afl", worse, validation=better)
    study = one_study(tmp_path / "r")
    assert choose_by_validation(study) == "afl"  # on test data it would be qffl
    assert tell(study).headline.startswith("afl lifts the worst client (c3) from 60.0 to 65.0 %")
    assert tell_notices(study) == [
        "afl, qffl: one seed alone can be compared: the spread is not known.",
        "afl, qffl, fedavg: convergence unknown: too few evaluations.",
    ]
    curve = np.array([[0.9] * 4, [0.5] * 4, [0.7] * 4])
    made(tmp_path / "s", "fedavg", curve, validation=curve[[2, 0, 1]])
    table = one_study(tmp_path / "s").table["fedavg"]
    assert table["AVG, best by validation"].mean == pytest.approx(0.5)  # round 2, though round 1 is best on test data


def test_without_validation_data_no_method_is_called_the_best(tmp_path):
    draw = np.random.default_rng(0)
    for seed in range(3):
        noise = draw.normal(0, 0.02, 4)
        for method, last in (
            ("fedavg", FEDAVG),
            ("qffl", FEDAVG + LAST),
            ("afl", FEDAVG - LAST),
            ("term", FEDAVG + 0.1 * LAST + draw.normal(0, 0.03, 4)),
        ):
            made(tmp_path / "r", method, last + noise, seed=seed, validation=None)
    study = one_study(tmp_path / "r")
    assert choose_by_validation(study) is None
    story = tell(study)
    assert story.chosen is None
    assert story.headline.endswith(" % under fedavg, rises under qffl and falls under afl.")
    told = dict(story.reasons)["Who was worst?"]
    assert "rises under qffl (+10.0 ± 0.0), falls under afl (-10.0 ± 0.0), differs only within the spread" in told
    assert "term" in told.split("spread of seeds")[1]
    assert "No method is called the best" in dict(story.reasons)["How was the method chosen?"]
    assert math.isnan(study.table["qffl"]["MIN, best by validation"].mean)


def test_without_a_sure_rise_or_fall_no_method_is_said_to_lift(tmp_path):
    folder = make_runs(tmp_path, {"fedavg": FEDAVG, "qffl": FEDAVG}, validation=None)
    assert tell(one_study(folder)).headline == (
        "No method lifts the worst client (d), at 60.0 % under fedavg, beyond the spread of seeds."
    )


def test_methods_without_a_common_seed_are_told_apart_and_not_as_a_fall(tmp_path):
    made(tmp_path / "r", "fedavg", FEDAVG, seed=0)
    made(tmp_path / "r", "fedavg", FEDAVG, seed=1)
    made(tmp_path / "r", "qffl", FEDAVG + LAST, seed=0)
    made(tmp_path / "r", "afl", FEDAVG - LAST, seed=2)
    made(tmp_path / "r", "local_only", FEDAVG - 0.2, seed=1)
    study = one_study(tmp_path / "r")
    assert "nan" not in " ".join(tell(study).sentences)
    unknown = "convergence unknown: too few evaluations"
    assert find_notices(study) == {
        "afl": ["no seed in common with fedavg, and therefore not judged", unknown],
        "qffl": ["one seed alone can be compared: the spread is not known", unknown],
        "fedavg": [unknown],
        "local_only": [unknown],
    }
    assert [verdict.method for verdict in judge_all(study)] == ["qffl"]
    made(tmp_path / "s", "fedavg", FEDAVG, seed=0)
    made(tmp_path / "s", "afl", FEDAVG, seed=1)
    only = tell(one_study(tmp_path / "s")).headline
    assert only == "There is nothing to compare with: no method has a seed in common with fedavg."


# --------------------------------------------------------------------------- another reference, other limits
def test_any_method_can_be_the_reference(tmp_path):
    folder = make_runs(tmp_path, {"fedavg": FEDAVG, "qffl(q=1.0)": FEDAVG + LAST, "local_only": FEDAVG - 0.1})
    study = one_study(folder, Rules("qffl"))
    assert study.reference == study.methods[0] == "qffl(q=1.0)"
    assert study.rivals == ["fedavg"]
    assert "fedavg pushes the worst client (d) down from 70.0 to 60.0 %" in tell(study).headline
    alone = one_study(folder, Rules("local_only"))
    assert [len(verdict.reasons) for verdict in judge_all(alone)] == [3, 3]  # nobody is compared with itself
    with pytest.raises(EquipoiseError, match=r"No run has the reference `qfl`\. Did you mean `qffl"):
        one_study(folder, Rules("qfl"))


def test_the_limits_of_the_check_can_be_moved(tmp_path):
    folder = make_runs(tmp_path, {"fedavg": FEDAVG, "qffl": FEDAVG - [0.03, 0.03, 0.03, 0.0]})
    words = [
        {reason.rule: reason.word for reason in judge_all(one_study(folder, rules))[0].reasons}
        for rules in (Rules(), Rules(average=0.03), Rules(average=0.03, client=0.04))
    ]
    assert words[0] == {"worst": "passed", "average": "failed", "client": "failed"}
    assert words[1] == {"worst": "passed", "average": "passed", "client": "failed"}
    assert words[2] == {"worst": "passed", "average": "passed", "client": "passed"}


# --------------------------------------------------------------------------- for programs
def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_the_verdict_as_json_with_an_exit_code(tmp_path):
    folder = make_runs(
        tmp_path / "r", {"fedavg": FEDAVG, "afl": [0.6] * 4, "qffl": FEDAVG + LAST, "local_only": FEDAVG - 0.1}
    )
    done = call("verdict", folder)
    assert done.exit_code == 0, done.output
    (study,) = json.loads(done.stdout)["studies"]
    assert study["headline"] == tell(one_study(folder)).headline
    afl, qffl = (next(m for m in study["methods"] if m["method"] == name) for name in ("afl", "qffl"))
    assert (afl["verdict"], qffl["verdict"]) == ("failed", "passed")
    assert qffl["changes"]["MIN"] == pytest.approx({"mean": 0.1, "half_width": 0, "low": 0.1, "high": 0.1}, abs=1e-9)
    assert next(r for r in afl["reasons"] if r["rule"] == "client")["clients"] == ["a", "b", "c"]
    assert afl["better_alone"] == ["a", "b", "c"]
    failed = call("verdict", folder, "--fail-on", "levelling-down")
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["objections"] == ["afl on made fails the levelling-down check."]
    assert "Against: afl on made fails" in failed.stderr
    passed = call("verdict", folder, "--fail-on", "undecided", "--fail-on", "joining-does-not-pay")
    assert passed.exit_code == 0
    loose = call("verdict", folder, "--fail-on", "levelling-down", "--average-limit", 50, "--client-limit", 50)
    assert loose.exit_code == 1  # a, b and c are still pushed below what they reach alone
    assert call("verdict", folder, "--fail-on", "levelling-down", "--reference", "afl").exit_code == 0


def test_numbers_that_are_not_known_are_null(tmp_path):
    folder = make_runs(tmp_path, {"fedavg": FEDAVG, "qffl": FEDAVG}, seeds=1)
    text = call("verdict", folder).stdout
    assert "NaN" not in text
    (study,) = json.loads(text)["studies"]
    assert study["methods"][1]["changes"]["MIN"]["half_width"] is None
    assert study["joining_pays"] is None


def test_a_pipeline_is_not_told_that_all_is_well_where_nothing_was_judged(tmp_path):
    folder = make_runs(tmp_path / "r", {"fedavg": FEDAVG})
    with pytest.raises(EquipoiseError, match="There is nothing to judge: it takes finished runs of fedavg"):
        raise call("verdict", folder, "--fail-on", "levelling-down").exception
    pair = make_runs(tmp_path / "s", {"fedavg": FEDAVG, "qffl": FEDAVG})
    with pytest.raises(EquipoiseError, match="Whether joining pays is not known"):
        raise call("verdict", pair, "--fail-on", "joining-does-not-pay").exception
    with pytest.raises(EquipoiseError, match="--fail-on must be one of 'levelling-down'"):
        raise call("verdict", pair, "--fail-on", "levelling").exception
    bare = make_runs(tmp_path / "t", {"fedavg": FEDAVG, "local_only": FEDAVG + 0.1})
    assert call("verdict", bare, "--fail-on", "joining-does-not-pay").exit_code == 1
