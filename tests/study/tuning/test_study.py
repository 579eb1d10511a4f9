"""Whole studies: killed and resumed, shared by two processes, and blind to test data."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from equipoise import EquipoiseError, Federation, load_federation, tune
from equipoise.study.jobs import Job
from equipoise.study.tuning.ledger import JOURNAL, open_book
from equipoise.study.tuning.plan import Contest, Plan
from equipoise.study.tuning.trials import hide_test_data
from kit.killed import KILLED

SCRIPT = """
import sys, warnings
import equipoise
equipoise.tune("gaussians", trials=4, rounds=8, methods=["fedprox", "fedheal"], rivals=["qffl"], seeds=2, out=sys.argv[1])
"""
OPTIONS = {"trials": 4, "rounds": 8, "methods": ["fedprox", "fedheal"], "rivals": ["qffl"], "seeds": 2}
RUNGS = 3 * (4 + 2 + 1)  # of three contestants


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that was never interrupted."""
    return tune("gaussians", **OPTIONS, out=tmp_path_factory.mktemp("whole"))


def start(out):
    return subprocess.Popen([sys.executable, "-W", "error", "-c", SCRIPT, str(out)], stderr=subprocess.PIPE, text=True)


def journal_of(out):
    return next(iter(out.glob(f"*/{JOURNAL}")), None)


def count_notes(out):
    """How often what a trial reached was written down, by trial and rung."""
    found = {}
    journal = journal_of(out)
    for line in journal.read_text().splitlines() if journal else []:
        entry = json.loads(line) if line.endswith("}") else {}
        for name in entry.get("user_attr", {}):
            if name.startswith("rung"):
                key = (entry["trial_id"], name)
                found[key] = found.get(key, 0) + 1
    return found


def tell(board):
    """All that a study found, but for the seconds that it took."""
    return {
        name: [
            (trial.point, trial.parameters, [replace(one, seconds=0.0) for one in trial.reached], trial.is_settled)
            for trial in trials
        ]
        for name, trials in board.items()
    }


def read_board(out):
    data = load_federation("gaussians")
    plan = Plan.from_description(json.loads((journal_of(out).parent / "plan.json").read_text()))
    with open_book(journal_of(out).parent, Contest.of(plan, data)) as book:
        return book.list_trials()


def test_a_study_that_was_killed_goes_on_and_ends_as_the_same_study(tmp_path, whole):
    for least in (3, 12):
        process = start(tmp_path)
        end = time.monotonic() + 120
        while time.monotonic() < end and process.poll() is None and len(count_notes(tmp_path)) < least:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -KILLED
        assert least <= len(count_notes(tmp_path)) < RUNGS
    resumed = tune("gaussians", **OPTIONS, out=tmp_path)
    assert tell(resumed.board) == tell(whole.board)
    assert (resumed.winner, resumed.training) == (whole.winner, whole.training)
    assert str(resumed.judgement.table) == str(whole.judgement.table)


def test_two_processes_share_a_study_and_do_no_trial_twice(tmp_path, whole):
    first, second = start(tmp_path), start(tmp_path)
    for process in (first, second):
        _, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
    notes = count_notes(tmp_path)
    assert len(notes) == RUNGS
    assert set(notes.values()) == {1}
    assert tell(read_board(tmp_path)) == tell(whole.board)
    judged = [path.parent for path in tmp_path.glob("*/judged/*/manifest.json")]
    assert len(judged) == 4 * 2  # three contestants and local-only training, two seeds


def test_a_study_that_is_over_is_read_not_done_again(whole):
    before = (whole.folder / JOURNAL).read_bytes()
    again = tune("gaussians", **OPTIONS, out=whole.folder.parent)
    assert (whole.folder / JOURNAL).read_bytes() == before
    assert again.winner == whole.winner


def test_the_search_has_no_test_data():
    blind = hide_test_data(load_federation("clinics"))
    assert all(len(client.test) == 0 and len(client.validation) > 0 for client in blind.clients)


def test_clients_without_validation_data_set_other_ones_aside_for_another_seed():
    data = load_federation("gaussians")
    bare = replace(data, clients=tuple(replace(client, validation=client.test[:0]) for client in data.clients))
    first, second = (hide_test_data(bare, seed).clients[0].validation.tolist() for seed in (0, 1))
    assert len(first) == len(second) == 20
    assert first != second
    given = [hide_test_data(data, seed).clients[0].validation.tolist() for seed in (0, 1)]
    assert given[0] == given[1] == data.clients[0].validation.tolist()


def test_choosing_does_not_depend_on_test_data(tmp_path, whole):
    """With other test data the same trials are drawn and the same composition is chosen."""
    data = load_federation("gaussians")
    clients = tuple(replace(client, test=client.test.flip(0)[:30]) for client in data.clients)
    other = tune(replace(data, clients=clients), **OPTIONS, out=tmp_path)
    assert other.winner == whole.winner
    chosen = [{n: one.candidate.point for n, one in found.choice.by_contestant.items()} for found in (whole, other)]
    assert chosen[0] == chosen[1]


def test_the_page_and_the_summary_say_what_was_found(whole):
    page = whole.page.read_text()
    for part in ("Judged on test data", "What mattered", "History", "All trials", "equipoise deploy init", "Front"):
        assert part in page
    assert "http" not in page.replace("http://www.w3.org", "")  # it needs no other file
    summary = json.loads((whole.folder / "tune.json").read_text())
    assert summary["contestants"]["fedavg"]["test"]["MIN"]["mean"] > 0
    assert summary["commands"]["train"].startswith("equipoise run gaussians --method")
    costs = {cost["what"]: cost for cost in summary["cost"]}
    reached = [trial.last for trial in whole.board["fedavg"]]
    assert costs["search: fedavg"]["rounds"] == sum(one.round for one in reached)
    assert costs["judgement: fresh seeds"]["runs"] == 8


def test_the_best_so_far_and_what_is_left_are_told(tmp_path):
    from equipoise.study.tuning.tune import carry_out

    data = load_federation("gaussians")
    plan = Plan.for_data(data, Job(dataset="gaussians", rounds=8), trials=4, rivals=(), methods=("fedheal",), seeds=2)
    heard, runs = [], []
    carry_out(plan, data, tmp_path, heard.append, lambda phase, job: runs.append(phase))
    assert [news.done for news in heard] == list(range(1, 15))
    assert {news.total for news in heard} == {14}
    assert heard[-1].best.contestant == "compositions"
    assert heard[-1].reference.contestant == "fedavg"
    assert set(runs) == {"choice", "judgement"}


def test_minutes_that_are_too_few_for_one_rung_are_refused_as_soon_as_that_is_known(tmp_path):
    with pytest.raises(EquipoiseError, match=r"too small for one rung: .* give --minutes"):
        tune("gaussians", minutes=0.00001, rounds=8, methods=["fedheal"], rivals=[], out=tmp_path)


def test_minutes_end_the_search_after_whole_generations(tmp_path):
    found = tune("gaussians", minutes=0.05, rounds=4, methods=["fedheal"], rivals=[], seeds=2, out=tmp_path)
    counts = {name: len(trials) for name, trials in found.board.items()}
    assert len(set(counts.values())) == 1
    assert counts["fedavg"] % 8 == 0


def one_client():
    return Federation.from_tensors({"only": (load_federation("gaussians").x[:20], load_federation("gaussians").y[:20])})


def test_data_from_which_nothing_can_be_chosen_are_refused(tmp_path):
    with pytest.raises(EquipoiseError, match=r"needs two. Found 1 .* --partition"):
        tune(one_client(), trials=4, out=tmp_path)
    data = load_federation("gaussians")
    tiny = replace(data.clients[1], train=data.clients[1].train[:1], validation=data.clients[1].train[:0])
    with pytest.raises(EquipoiseError, match=r"No validation is possible: `client 1` has 1 training sample"):
        tune(replace(data, clients=(data.clients[0], tiny)), trials=4, out=tmp_path)
    untested = tuple(replace(client, test=client.test[:0]) for client in data.clients)
    with pytest.raises(EquipoiseError, match="No client has test data"):
        tune(replace(data, clients=untested), trials=4, out=tmp_path)


def test_data_that_are_drawn_anew_for_each_run_are_refused(tmp_path):
    """Samples that a search trains on would be test data of another seed."""
    with pytest.raises(EquipoiseError, match=r"drawn anew for each run.* seed=0 instead of seed='run'"):
        tune("gaussians(seed='run')", trials=4, out=tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trials": 3}, r"too small for one rung: of trials=3 .* at least 4"),
        ({"trials": 4, "minutes": 1.0}, "one of the two"),
        ({"minutes": -1.0}, "`minutes` must be above 0"),
        ({"trials": 4, "seeds": 1}, "`seeds` must be at least 2"),
        ({"trials": 4, "objective": "best"}, "objective must be one of"),
        ({"trials": 4, "rounds": 3}, "`rounds` must be at least 4"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_the_fix(tmp_path, options, words):
    with pytest.raises(EquipoiseError, match=words):
        tune("gaussians", **options, out=tmp_path)
    assert not list(tmp_path.iterdir())
