"""The live page: who is there and who is silent, folders that are being written, the server, and a real browser."""

import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from equipoise import EquipoiseError
from equipoise.runs.reading import AWAY, LATE, read, read_ends
from equipoise.study.watch import shelf
from equipoise.study.watch.page import build_content
from equipoise.study.watch.server import Server, Watcher
from equipoise.study.watch.shelf import Shelf
from equipoise.study.watch.standing import can_be_judged, compare_so_far, find_standings
from kit import blobs, quiet
from kit.browser import Browser
from kit.command import COMMAND, invoke
from kit.going import Going
from kit.made_runs import made

EVIL = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"


@pytest.fixture(scope="module")
def fedavg():
    return quiet("fedavg", blobs(), rounds=6)


@pytest.fixture(scope="module")
def qffl():
    return quiet("qffl", blobs(), rounds=6)


@pytest.fixture
def begin():
    """Begins runs that go on, and ends them after the test."""
    begun = []

    def begin_one(run, folder):
        begun.append(Going(run, folder))
        return begun[-1]

    yield begin_one
    for one in begun:
        one.fail()


def show(folder, now=None):
    """The text of the page's content, without the markup."""
    now = time.time() if now is None else now
    seen, problems = Shelf([folder]).look(now)
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", build_content(seen, problems, [folder], now))))


def standings_of(folder):
    (seen,), _ = Shelf([folder]).look()
    return {one.client: one for one in find_standings(seen.run)}


# --------------------------------------------------------------------------- who is there
def test_a_client_is_there_silent_or_rejected_by_its_last_answer(begin, fedavg, tmp_path):
    going = begin(fedavg, tmp_path)
    going.add(2)
    going.add(1, {"c1": LATE})
    going.add(1, {"c1": AWAY, "c2": "the update is not finite."})
    found = standings_of(tmp_path)
    assert {name: (one.word, one.heard, one.since) for name, one in found.items()} == {
        "c0": ("there", 4, 0), "c1": ("silent", 2, 3), "c2": ("rejected", 3, 4), "c3": ("there", 4, 0),
    }  # fmt: skip
    assert list(found)[:2] == ["c1", "c2"]  # who is missing comes first
    assert found["c1"].why == AWAY
    values = read(tmp_path / fedavg.settings.name).curve()[1]
    assert found["c1"].score == values[1, 1]  # of the last round in which it was scored
    assert found["c0"].weight == pytest.approx(fedavg.rounds[3].weights[0])
    going.add(1)
    assert standings_of(tmp_path)["c1"].word == "there"  # it came back


def test_who_is_not_drawn_is_not_silent_and_who_never_came_is_told(begin, fedavg, tmp_path):
    going = begin(replace(fedavg, rounds=tuple(
        replace(r, clients=r.clients[:2], weights=r.weights[:2], figures={}, scores=()) if r.round > 1
        else replace(r, clients=r.clients[:3], weights=r.weights[:3], figures={}) for r in fedavg.rounds
    )), tmp_path)  # fmt: skip
    going.add(3)
    found = standings_of(tmp_path)
    assert (found["c2"].word, found["c2"].heard, found["c3"].word) == ("there", 1, "not heard yet")
    assert "there , not asked since round 1" in show(tmp_path)


def test_an_answer_that_counted_without_scores_is_there_and_says_so(begin, fedavg, tmp_path):
    going = begin(fedavg, tmp_path)
    going.add(1)
    (seen,), _ = Shelf([tmp_path]).look()
    facts = {**seen.run.manifest, "rejected": [{"round": 1, "client": "c3", "why": f"its evaluation: {LATE}"}]}
    found = {one.client: one for one in find_standings(replace(seen.run, manifest=facts))}
    assert found["c3"].word == "there"
    assert "was not scored" in found["c3"].why


def test_rounds_tell_when_they_ended(begin, fedavg, tmp_path):
    before = time.time()
    going = begin(fedavg, tmp_path)
    going.add(3)
    ends = read_ends(tmp_path / fedavg.settings.name)
    assert [end.round for end in ends] == [1, 2, 3]
    assert before <= ends[0].time <= ends[-1].time <= time.time()
    assert [end.seconds for end in ends] == [record.seconds for record in fedavg.rounds[:3]]
    place = going.finish()
    assert read_ends(place) == []


# --------------------------------------------------------------------------- what is shown
def test_the_page_of_a_run_in_progress(begin, fedavg, tmp_path):
    going = begin(fedavg, tmp_path)
    assert "fedavg (seed 0) on blobs, 0 of 6 rounds done. No client is silent." in show(tmp_path)
    assert "No round has been scored yet." in show(tmp_path)
    going.add(3)
    going.add(1, {"c1": LATE})
    text = show(tmp_path)
    assert "fedavg (seed 0) on blobs, 4 of 6 rounds done. c1 is silent since round 4." in text
    assert "Who is there: 3 of 4" in text
    assert re.search(
        r"silent since round 4, for \d\d:\d\d:\d\d [\d.]+ % \(round 3\) [\d.]+ 3 ", text
    )  # the last time that it was heard
    assert "Answers that did not count: 1 client round why c1 4 it did not answer in time." in text
    for title in ("Each client's curve", "Weights over rounds", "Participation"):
        assert title in text
    going.finish()
    text = show(tmp_path)
    assert "Nothing is running" in text
    assert "Runs: 0 running, 1 finished." in text


def test_the_verdict_so_far_compares_after_a_round_that_all_have_reached(begin, fedavg, qffl, tmp_path):
    begin(fedavg, tmp_path).add(5)
    going = begin(qffl, tmp_path)
    assert "There is nothing to compare with" in show(tmp_path)  # qffl has no score yet
    going.add(2)
    text = show(tmp_path)
    assert "After round 2 of 6, which every run has reached" in text
    assert "Levelling-down check of qffl: " in text
    assert "Not the end" in text
    study, last = compare_so_far([read(tmp_path / run.settings.name) for run in (fedavg, qffl)])
    assert last == 2
    expected = [score.value for score in fedavg.rounds[1].scores if (score.metric, score.split) == ("accuracy", "test")]
    assert study.final("fedavg")[0].tolist() == expected


def test_a_verdict_of_finished_runs_stays_while_another_goes_on(fedavg, tmp_path):
    for method, values in (("fedavg", [0.9, 0.6]), ("qffl", [0.9, 0.7])):
        made(tmp_path, method, [values] * 3)
    made(tmp_path, "afl", [[0.5, 0.5]], status="running", rounds=3)
    text = show(tmp_path)
    assert "Of the runs that are finished" in text
    assert "After round 1 of 3, which every run has reached" in text


def test_methods_without_a_client_in_common_are_not_judged(tmp_path):
    made(tmp_path, "fedavg", [0.9, np.nan])
    made(tmp_path, "qffl", [np.nan, 0.8], status="running")
    study, _ = compare_so_far([seen.run for seen in Shelf([tmp_path]).look()[0]])
    assert not can_be_judged(study)


def test_a_run_that_ended_badly_or_was_cut_off_is_named(begin, fedavg, qffl, tmp_path):
    going = begin(fedavg, tmp_path)
    going.add(2)
    going.fail("the disk is full")
    begin(qffl, tmp_path).add(1)
    assert "fedavg (seed 0): failed after 2 of 6 rounds: the disk is full" in show(tmp_path)
    later = show(tmp_path, time.time() + 3600)
    assert "Nothing is running" in later
    assert re.search(r"qffl \(seed 0\): no news for \S+ , after 1 of 6 rounds: it may have been cut off", later)


def test_a_run_that_is_done_again_is_shown_beside_the_finished_one(begin, fedavg, tmp_path):
    first = begin(fedavg, tmp_path)
    first.add(6)
    first.finish()
    begin(fedavg, tmp_path).add(2)
    text = show(tmp_path)
    assert "Running: fedavg (seed 0) on blobs, 2 of 6 rounds done." in text
    assert "Runs: 1 running, 1 finished." in text
    assert "After round 6 of 6, which every run has reached" in text  # what is finished counts until then


def test_names_are_text(begin, fedavg, tmp_path):
    data = fedavg.federation
    names = (EVIL, "south", "c2", "c3")
    clients = tuple(replace(c, name=n) for c, n in zip(data.clients, names, strict=True))
    run = quiet("fedavg", replace(data, clients=clients, name=EVIL), rounds=3)
    begin(run, tmp_path).add(2, {EVIL: EVIL})
    seen, problems = Shelf([tmp_path]).look()
    page = build_content(seen, [*problems, EVIL], [tmp_path], time.time())
    assert "<script" not in page
    assert "<img" not in page
    assert unescape(page).count(EVIL) > 5


def test_a_thousand_clients_are_a_short_page(tmp_path):
    made(tmp_path, "fedavg", np.linspace(0, 1, 3000).reshape(3, 1000), status="running", rounds=9)
    seen, problems = Shelf([tmp_path]).look()
    page = build_content(seen, problems, [tmp_path], time.time())
    assert "And 960 more" in page
    assert len(page) < 300_000


# --------------------------------------------------------------------------- folders that are being written
def test_a_folder_is_read_again_only_when_it_changes(begin, fedavg, tmp_path, monkeypatch):
    read_places = []
    monkeypatch.setattr(shelf, "read", lambda place: read_places.append(place) or read(place))
    going, looking = begin(fedavg, tmp_path), Shelf([tmp_path])
    going.add(1)
    looking.look()
    looking.look()
    assert len(read_places) == 1
    going.add(1)
    (seen,), _ = looking.look()
    assert len(read_places) == 2
    assert seen.done == 2


def test_half_written_files_are_waited_for(begin, fedavg, tmp_path):
    looking, place = Shelf([tmp_path]), tmp_path / "half"
    place.mkdir()
    (place / "manifest.json").write_text('{"schema": 1, "sta')
    assert looking.look(0.0) == ([], [])  # it may be whole in a moment
    _, (problem,) = looking.look(shelf.GRACE + 1)
    assert "was cut off" in problem
    going = begin(fedavg, tmp_path)
    going.add(2)
    looking.look(0.0)
    whole = tmp_path / fedavg.settings.name
    (whole / "records.parquet").write_bytes(b"PAR1 half of it")  # a run that ends writes these beside the streams
    (seen,), _ = looking.look(1.0)
    assert seen.done == read(whole).rounds_done == 2
    (whole / "manifest.json").write_text("{")
    (seen,), _ = looking.look(2.0)
    assert seen.done == 2  # the last that could be read
    for file in place.iterdir():
        file.unlink()
    place.rmdir()
    assert len(looking.look(3.0)[0]) == 1


def test_watching_takes_no_lock_and_writes_nothing(begin, fedavg, tmp_path):
    going = begin(fedavg, tmp_path)
    going.add(2)
    place = tmp_path / fedavg.settings.name
    before = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    place.chmod(0o500)
    try:
        assert "2 of 6 rounds" in show(tmp_path)
    finally:
        place.chmod(0o700)
    assert {path: path.stat().st_mtime_ns for path in place.iterdir()} == before
    going.add(1)  # the run goes on
    going.finish()


def test_a_folder_that_goes_away_is_told(tmp_path):
    folder = tmp_path / "share"
    folder.mkdir()
    looking = Shelf([folder])
    assert looking.look() == ([], [])
    folder.rmdir()
    assert looking.look() == ([], [f"The folder `{folder}` is not there any more."])
    with pytest.raises(EquipoiseError, match="There is no folder"):
        Shelf([folder])


# --------------------------------------------------------------------------- the server
@contextmanager
def serving(folder):
    with Server(Watcher([folder]), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        return answer.read().decode(), answer.headers


def test_the_server_answers_on_loopback_and_its_version_changes_with_the_run(begin, fedavg, tmp_path):
    going = begin(fedavg, tmp_path)
    going.add(1)
    with serving(tmp_path) as url:
        page, headers = get(url)
        version, _ = get(url + "version")
        assert f"data-version='{version}'" in page
        assert get(url + "version")[0] == version  # nothing has happened
        going.add(1)
        assert get(url + "version")[0] != version
        assert "2 of 6 rounds done" in get(url)[0]
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy.split("style-src-attr")[0]  # scripts and styles are known by their hashes
        for path in ("manifest.json", "../pyproject.toml", f"{fedavg.settings.name}/manifest.json"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(url + path)
        with pytest.raises(urllib.error.HTTPError, match="403"):  # another page's name for this address
            get(url, Host="evil.example:80")
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(url, data=b"x", timeout=60)
        taken = url.rsplit(":", 1)[1].rstrip("/")
        done = invoke_failing("watch", str(tmp_path), "--port", taken)
        assert "--port 0" in done


def invoke_failing(*words):
    with pytest.raises(EquipoiseError) as found:
        invoke(*words)
    return str(found.value)


@contextmanager
def command(cwd, *words):
    process = subprocess.Popen(
        [*COMMAND, "watch", ".", "--port", "0", *words],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_command_ends_with_one_line(tmp_path):
    with command(tmp_path) as process:
        url = re.fullmatch(r"Look at (http://127\.0\.0\.1:\d+/) Ctrl-C ends it\.\n", process.stdout.readline())[1]
        assert "Nothing is running" in get(url)[0]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "Ended: the page is no longer served.\n", "")


def test_the_command_warns_where_others_can_read_it(tmp_path):
    with command(tmp_path, "--host", "0.0.0.0") as process:
        assert "Look at http://0.0.0.0:" in process.stdout.readline()
        assert "there is no password" in process.stderr.readline()


def test_the_command_says_what_is_not_there(tmp_path):
    assert "There is no folder" in invoke_failing("watch", str(tmp_path / "none"))


# --------------------------------------------------------------------------- a real browser
@pytest.mark.slow
def test_in_a_browser_the_page_renews_itself_and_keeps_what_the_reader_chose(begin, fedavg, qffl, tmp_path):
    data = fedavg.federation
    clients = tuple(replace(c, name=n) for c, n in zip(data.clients, ("north", "south", EVIL, "c3"), strict=True))
    hostile = quiet("fedavg", replace(data, clients=clients), rounds=6)
    folder = tmp_path / "runs"
    folder.mkdir()
    with serving(folder) as url, Browser(tmp_path / "profile") as tab:
        tab.open(url)
        tab.wait("document.body.innerText.includes('A run that begins there will appear here.')")
        going = begin(hostile, folder)
        going.add(2)
        tab.wait("document.querySelector('#now')?.innerText.includes('2 of 6 rounds done') ?? false")
        tab.wait("[...document.querySelectorAll('time')].every((one) => / (s|min|h)$/.test(one.textContent))")
        # the reader hides a curve, sorts by weight, folds nothing, and goes dark
        tab.ask("document.querySelectorAll('#curves .key')[1].click()")
        tab.ask(
            "[...document.querySelectorAll('.run th')].map((th) => th.querySelector('button') ?? th)"
            ".find((head) => head.innerText.includes('weight')).click()"
        )
        tab.ask("document.getElementById('theme').click()")
        theme = tab.ask("document.documentElement.className")
        rows = "[...document.querySelectorAll('.run table')[0].tBodies[0].rows].map((row) => row.cells[3].innerText)"
        going.add(1, {"south": LATE})
        tab.wait("document.querySelector('#now')?.innerText.includes('south is silent since round 3') ?? false")
        assert tab.ask("document.querySelectorAll('#curves .key')[1].getAttribute('aria-pressed')") == "false"
        assert tab.ask("document.documentElement.className") == theme
        weights = [float(text) for text in tab.ask(rows)]
        assert weights == sorted(weights, reverse=True)
        begin(quiet("qffl", replace(data, clients=clients), rounds=6), folder).add(3)
        tab.wait("document.body.innerText.includes('After round 3 of 6, which every run has reached')")
        assert tab.ask("document.title") == "Equipoise: live"  # no name was run as a script
        assert tab.ask("document.querySelectorAll('main script, main img').length") == 0
        for width in (1200, 390):
            tab.resize(width)
            assert tab.ask("document.documentElement.scrollWidth") <= width  # nothing sticks out
        # while text is selected, the page waits
        tab.ask("getSelection().selectAllChildren(document.querySelector('h1'))")
        going.add(1)
        tab.wait("document.getElementById('trouble').innerText.includes('There is something new')")
        tab.ask("getSelection().removeAllRanges()")
        tab.wait("document.querySelector('#now')?.innerText.includes('4 of 6 rounds done') ?? false")
        going.finish()
        tab.wait("document.body.innerText.includes('1 finished')")
    # The browser outlived neither; what it said is looked at afterwards.
    assert [one for one in tab.said if "favicon" not in str(one)] == []


@pytest.mark.slow
def test_in_a_browser_the_page_stays_when_the_command_ends(begin, fedavg, tmp_path):
    begin(fedavg, tmp_path / "runs").add(2)
    with Browser(tmp_path / "profile") as tab:
        with serving(tmp_path / "runs") as url:
            tab.open(url)
        tab.wait("document.getElementById('trouble').innerText.includes('No answer from')")
        assert tab.ask("document.querySelector('#now').innerText.includes('2 of 6 rounds done')")
