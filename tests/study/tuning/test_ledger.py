"""The book of a search: trials are drawn whole, the same ones again, and by one process at a time."""

import pytest

from equipoise import EquipoiseError, load_federation
from equipoise.study.jobs import Job
from equipoise.study.tuning.ledger import JOURNAL, Reached, claim, hold, open_book
from equipoise.study.tuning.plan import Contest, Plan


@pytest.fixture(scope="module")
def gaussians():
    return load_federation("gaussians")


def contest_of(data, objective="worst", seed=0):
    job = Job(dataset="gaussians", rounds=8)
    plan = Plan.for_data(
        data, job, trials=4, objective=objective, methods=("fedprox", "fedheal", "qffl"), rivals=(), search_seed=seed
    )
    return Contest.of(plan, data)


def reached(value, rounds=2):
    return Reached(rounds, {"a": value, "b": 0.9}, "flat", True, 0.1, 8)


def fill(folder, contest, count=12):
    """Draw and settle trials, one by one."""
    for number in range(count):
        with open_book(folder, contest) as book:
            book.draw("compositions", number // 4)
            trial = book.list_trials()["compositions"][-1]
            book.note(trial, 0, reached(0.3 + 0.05 * (number % 3)))
            noted = book.list_trials()["compositions"][-1]
            book.settle(noted, number % 2 == 0, {"worst": 0.01 if number % 3 else -0.01})
    with open_book(folder, contest) as book:
        return book.list_trials()["compositions"]


@pytest.mark.parametrize("objective", ["worst", "pareto"])
def test_the_same_search_draws_the_same_trials_whichever_process_opens_the_book(tmp_path, gaussians, objective):
    contest = contest_of(gaussians, objective)
    first, second = fill(tmp_path / "one", contest), fill(tmp_path / "two", contest)
    assert [trial.point for trial in first] == [trial.point for trial in second]
    assert len({trial.point for trial in first}) == len(first) == 12
    assert all(trial.is_settled for trial in first)
    other = fill(tmp_path / "three", contest_of(gaussians, objective, seed=1), 4)
    assert [trial.point for trial in other] != [trial.point for trial in first[:4]]


def test_the_first_trial_of_a_method_is_what_a_run_does_without_tuning(tmp_path, gaussians):
    with open_book(tmp_path, contest_of(gaussians)) as book:
        book.draw("fedavg", 0)
        (trial,) = book.list_trials()["fedavg"]
    assert trial.point.method == "fedavg(weights='samples')"
    assert trial.point.training == gaussians.protocol.training
    assert not trial.reached
    assert not trial.is_settled


def test_what_a_killed_process_left_of_a_line_is_cut_off(tmp_path, gaussians):
    contest = contest_of(gaussians)
    with open_book(tmp_path, contest) as book:
        book.draw("fedavg", 0)
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code": 4, "half')
    with open_book(tmp_path, contest) as book:
        book.draw("fedavg", 0)
        assert [trial.number for trial in book.list_trials()["fedavg"]] == [0, 1]
    assert path.read_bytes().startswith(whole)


def test_a_folder_is_claimed_by_one_alone(tmp_path):
    with claim(tmp_path / "trial") as first, claim(tmp_path / "trial") as second:
        assert (first, second) == (True, False)
    with claim(tmp_path / "trial") as third:
        assert third


def test_whoever_waits_too_long_for_the_book_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.study.tuning.ledger.PATIENCE", 0.1)
    with (
        hold(tmp_path / "book"),
        pytest.raises(EquipoiseError, match="Another process is at work"),
        hold(tmp_path / "book"),
    ):
        pass


def test_parts_of_which_nothing_can_be_built_are_refused(tmp_path, gaussians):
    contest = contest_of(gaussians)
    space = contest.spaces["compositions"]
    nothing = {(client.name, server.name) for client in space.clients for server in space.servers}
    broken = Contest(contest.plan, {"compositions": type(space)(**{**vars(space), "apart": frozenset(nothing)})})
    with open_book(tmp_path, broken) as book, pytest.raises(EquipoiseError, match="nothing came out that can be built"):
        book.draw("compositions", 0)
