"""The runner over several processes, which `torchrun` starts as a user would."""

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from equipoise import EquipoiseError, parse, run
from equipoise.engine.ranks import Ranks, SplitColumns, pick_device
from equipoise.engine.runners.dealing import deal
from equipoise.runs.kept import read_kept
from equipoise.runs.reading import read
from kit import blobs
from kit.command import equipoise
from kit.ranks import BROKEN_OFF, run_task, torchrun
from kit.rows import MORE, ROWS

SOME = (
    "fedavg", "fedheal(variant='released')", "fedfe(order='random', tau=3)", "fedequilibria(fim='batch', fim_scale='mean')",
    "fedlf", "fdse", "scaffold", "ditto", "eagle(lag=0, lstar_epochs=4)", "fedlsa(width=8, server_epochs=5)",
)  # fmt: skip
RUN = ("-m", "equipoise", "run", "scanners", "--runner", "distributed")


# --------------------------------------------------------------------------- the same numbers
def test_the_same_numbers_as_inline_at_two_processes(tmp_path):
    """Rows and sums, masks with buffers, projections, Fisher diagonals, tensors one by one, states, a net at the server."""
    found = run_task("every_method", 2, tmp_path, {"EQUIPOISE_TEST_ROWS": ";".join(SOME)})
    assert len(found) == 4 * len(SOME)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_method_gives_the_same_numbers_as_inline(tmp_path):
    found = run_task("every_method", 2, tmp_path)
    assert len(found) > 250
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_method_gives_the_same_numbers_at_four_processes(tmp_path):
    found = run_task("every_method", 4, tmp_path, {"EQUIPOISE_TEST_ONCE": "1"})
    assert len(found) == len({*ROWS, *MORE})
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.slow
def test_parts_that_do_not_work_by_columns_see_everything(tmp_path):
    assert run_task("own_part", 3, tmp_path) == []


@pytest.mark.slow
def test_guards_and_checks_see_all_columns(tmp_path):
    found = run_task("guarded", 3, tmp_path)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.slow
def test_the_same_processes_give_the_same_bits(tmp_path):
    first, second = (run_task("same_bits", 3, tmp_path) for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_an_update_that_is_not_finite_is_refused_by_all(tmp_path):
    assert run_task("spoilt", 3, tmp_path) == {"fedavg": [["c3"]] * 2, "fedheal": [["c3"]] * 2}


def test_nothing_keeps_the_group_beyond_its_end(tmp_path):
    """Its threads would look for an interpreter that is gone, and abort a program whose work is done."""
    assert run_task("leaving", 2, tmp_path) == 0


# --------------------------------------------------------------------------- columns and dealing, in one process
@pytest.mark.parametrize("text", [*ROWS, *MORE])
def test_every_method_of_the_library_works_by_columns(text):
    assert parse(text).works_by_columns


class Alone(Ranks):
    """One of several processes that are not there: what it would send is all there is."""

    def add_up(self, partial):
        return partial


@pytest.mark.parametrize(("size", "count"), [(10, 3), (7, 7), (2, 4), (1, 1)])
def test_columns_are_divided_without_gap_or_overlap(size, count):
    row = torch.arange(size)
    pieces = [SplitColumns(Alone(rank, count, None), size).cut(row) for rank in range(count)]
    assert torch.equal(torch.cat(pieces), row)
    assert max(map(len, pieces)) == -(-size // count)


def test_buffers_belong_to_the_last_process():
    row = torch.arange(10)  # eight parameters, and two entries of buffers
    columns = [SplitColumns(Alone(rank, 3, None), 8) for rank in range(3)]
    assert [one.cut(row).tolist() for one in columns] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert [one.clip([slice(0, 8), slice(8, 10)]) for one in columns] == [
        (slice(0, 3), slice(3, 3)),
        (slice(0, 3), slice(3, 3)),
        (slice(0, 2), slice(2, 4)),
    ]


def test_tensors_are_found_among_the_columns_of_a_process():
    places = [slice(0, 4), slice(4, 5), slice(5, 9)]
    found = [SplitColumns(Alone(rank, 3, None), 9).clip(places) for rank in range(3)]
    assert found[0] == (slice(0, 3), slice(3, 3), slice(3, 3))
    assert found[1] == (slice(0, 1), slice(1, 2), slice(2, 3))
    assert found[2] == (slice(0, 0), slice(0, 0), slice(0, 3))


def test_clients_are_dealt_out_by_cost():
    costs = {0: 100, 1: 10, 2: 20, 3: 60, 4: 40}
    assert deal(range(5), costs, 2) == [[0, 2], [1, 3, 4]]
    assert deal([1], costs, 2) == [[1], []]


def test_a_client_goes_where_its_state_is_unless_that_process_has_enough():
    costs = dict.fromkeys(range(4), 1)
    assert deal(range(4), costs, 2, {0: 1, 1: 1}) == [[2, 3], [0, 1]]
    assert deal(range(4), costs, 2, {0: 1, 1: 1, 2: 1, 3: 1}) == [[2, 3], [0, 1]]


# --------------------------------------------------------------------------- bad input
def test_without_torchrun_the_runner_says_how_to_start_it():
    with pytest.raises(EquipoiseError, match="torchrun --nproc-per-node 4 -m equipoise run"):
        run("fedavg", blobs(), runner="distributed")


def test_a_gpu_that_is_not_there():
    assert pick_device("cuda", 0, 1) == "cuda:0"
    with pytest.raises(EquipoiseError, match="Process 2 of this host needs GPU 2, and there are 2: start at most"):
        pick_device("cuda", 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--participation", "0.1"), "2 processes are too many for 1 clients in a round: start at most 1"),
        (("--method", "fedhael"), "Unknown method `fedhael`"),
        (("--device", "cuda"), "Device 'cuda' is not available here"),
        (("--keep", "saliency(client='clean1')"), "is not in the federation. Did you mean `clean 1`?"),
        (("--resume",), "There is no checkpoint to go on from"),
    ],
)
def test_a_mistake_is_said_once(tmp_path, words, expected):
    if words == ("--device", "cuda") and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    code, _, err = torchrun(2, *RUN, "--rounds", "1", *words, cwd=tmp_path)
    assert code != 0
    lines = [line for line in err.splitlines() if line.startswith("Error:")]
    assert len(lines) == 1, err
    assert expected in lines[0]


@pytest.mark.slow
def test_a_run_over_processes_keeps_what_was_counted_on_the_way(tmp_path):
    words = ("--rounds", "2", "--keep", "consistency(layer='head'), conflicts")
    code, out, err = torchrun(2, *RUN, *words, cwd=tmp_path)
    assert code == 0, out + err
    (place,) = (tmp_path / "runs").glob("scanners-fedavg*")
    kept = read_kept(place)
    assert sum(kept["consistency(layer='head')"]["2"]) == pytest.approx(1)
    assert len(kept["conflicts"]["clients"]) == 12


@pytest.mark.slow
def test_a_process_without_the_data_is_named(tmp_path):
    """The data are at one of two processes only: as on a host where a folder is not mounted."""
    (tmp_path / "data.csv").write_text("client,x,label\n" + "".join(f"c{i % 4},{i % 7},{i % 2}\n" for i in range(80)))
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "name = 'data.csv' if os.environ['RANK'] == '0' else 'missing.csv'\n"
        "sys.argv = ['equipoise', 'run', name, '--runner', 'distributed', '--rounds', '1']\n"
        "from equipoise.cli import main\nmain()\n"
    )
    code, _, err = torchrun(2, str(script), cwd=tmp_path)
    assert code != 0
    (line,) = [line for line in err.splitlines() if line.startswith("Error:")]
    assert "process 1 of 2" in line
    assert "missing.csv" in line


@pytest.mark.slow
def test_processes_with_other_data_are_refused(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, equipoise\n"
        "data = equipoise.load_federation(f\"gaussians(seed={os.environ['RANK']})\")\n"
        "equipoise.run('fedavg', data, rounds=1, runner='distributed')\n"
    )
    code, _, err = torchrun(2, str(script), cwd=tmp_path)
    assert code != 0
    assert "Process 1 of 2 has other settings or data than process 0" in err


# --------------------------------------------------------------------------- processes that die, runs that go on
def begin(count, *words, cwd):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return subprocess.Popen(
        [*launch, *RUN, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
    )  # fmt: skip


def workers_of(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children if b"equipoise" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
@pytest.mark.parametrize(("method", "victim"), [("scaffold", 0), ("fedheal", 1)])
def test_a_dead_process_ends_the_run_with_one_line_and_the_run_goes_on(tmp_path, victim, method):
    """And goes on with another number of processes, to the same result."""
    words = ("--method", method, "--rounds", "40", "--eval-every", "20", "--checkpoint-every", "4")
    process = begin(2, *words, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("runs/.checkpoints/*/round-*4")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(tmp_path.glob("runs/.checkpoints/*/round-*")), "no checkpoint was written"
        os.kill(sorted(workers_of(process))[victim], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    said = [
        line for line in err.splitlines() if "Go on with the same command" in line or "Another process of this" in line
    ]
    assert len(said) == (
        1 if victim else len(said)
    )  # if the one that prints is killed, torchrun may end the others at once
    assert len(said) <= 1
    code, _, err = torchrun(3, *RUN, *words, "--resume", cwd=tmp_path)
    assert code == 0, err
    whole = tmp_path / "whole"
    code, _, err = torchrun(2, *RUN, *words, "--out", str(whole), cwd=tmp_path)
    assert code == 0, err
    (gone_on,), (at_once,) = (list(folder.glob("scanners-*")) for folder in (tmp_path / "runs", whole))
    a, b = (read(place).curve()[1][-1] for place in (gone_on, at_once))
    assert abs(a - b).max() < 0.05  # in float32 another number of processes rounds otherwise
    assert not list(tmp_path.glob("runs/.checkpoints/*/round-*"))


@pytest.mark.slow
def test_a_checkpoint_holds_what_all_processes_remember(tmp_path):
    """Client states, the server's memory by columns and buffers: written by two processes, taken up by three, and the same
    numbers as without a break."""
    assert run_task("first_half", 2, tmp_path) == "written"
    assert run_task("second_half", 3, tmp_path) == {text: [] for text in BROKEN_OFF}


# --------------------------------------------------------------------------- two hosts
@pytest.fixture
def two_hosts():
    """Two network namespaces with one cable between them: what a process in one sends to the other goes over it."""
    ip = shutil.which("ip")
    if ip is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("two hosts need Linux's `ip` and the right to make network namespaces")
    names = [f"equipoise{os.getpid()}{letter}" for letter in "ab"]

    def do(*words):
        subprocess.run([ip, *words], check=True, capture_output=True, text=True)

    try:
        for name in names:
            do("netns", "add", name)
        do("link", "add", "cable-a", "netns", names[0], "type", "veth", "peer", "name", "cable-b", "netns", names[1])
        for name, cable, address in zip(names, ("cable-a", "cable-b"), ("10.77.0.1/24", "10.77.0.2/24"), strict=True):
            do("-n", name, "addr", "add", address, "dev", cable)
            do("-n", name, "link", "set", cable, "up")
            do("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        for name in names:
            subprocess.run([ip, "netns", "del", name], capture_output=True)
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    yield [([ip, "netns", "exec", name], f"cable-{letter}") for name, letter in zip(names, "ab", strict=True)]
    for name in names:
        subprocess.run([ip, "netns", "del", name], capture_output=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hosts_of_two_processes_each(two_hosts, tmp_path):
    """Started as on a cluster, once per host; the first host writes."""

    def start(number):
        enter, cable = two_hosts[number]
        options = (
            "--nnodes", "2", "--node-rank", str(number), "--master-addr", "10.77.0.1", "--master-port", "29511",
        )  # fmt: skip
        words = ("--method", "scaffold", "--rounds", "2", "--out", str(tmp_path / f"host{number}"))
        return torchrun(
            2, *RUN, *words, cwd=tmp_path, env={"GLOO_SOCKET_IFNAME": cable}, options=options, start=enter
        )  # fmt: skip

    with ThreadPoolExecutor(2) as hosts:
        done = list(hosts.map(start, range(2)))
    for code, out, err in done:
        assert code == 0, out + err
    assert (tmp_path / "host0").exists(), done
    (place,) = (tmp_path / "host0").glob("scanners-scaffold*")
    assert not (tmp_path / "host1").exists()
    words = ("--method", "scaffold", "--rounds", "2", "--runner", "inline", "--out", "one")
    alone = equipoise("run", "scanners", *words, cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    (inline,) = (tmp_path / "one").glob("scanners-scaffold*")
    losses = [read(folder).curve("loss")[1] for folder in (place, inline)]
    assert abs(losses[0] - losses[1]).max() < 1e-3
