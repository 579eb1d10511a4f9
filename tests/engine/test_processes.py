"""The runner with worker processes."""

import multiprocessing.spawn
import os
import shutil
import signal
import warnings
from dataclasses import replace
from multiprocessing import resource_tracker

import pytest
import torch

from equipoise import EquipoiseError, EquipoiseWarning, Training, parse
from equipoise.engine.runners import Errand, choose_runner, open_runner
from equipoise.engine.simulation import run
from equipoise.rounds.server import begin_server, make_broadcast
from equipoise.task import Task
from equipoise.types import Broadcast
from kit import NormNet, blobs, pictures


@pytest.mark.parametrize(
    ("method", "federation", "options"),
    [
        (
            "eagle(lag=0, lstar_epochs=3) + fedheal",
            blobs,
            {"participation": 0.5},
        ),  # start, probe, states, per-client weights
        ("fedfe(tau=2)", blobs, {"model": NormNet, "participation": 0.5}),  # buffers, past updates
        ("f2dc(share_modules=False, eval_view='mean_modules')", pictures, {}),  # private tensors, noise
    ],
)
def test_the_same_numbers_as_inline(method, federation, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EquipoiseWarning)
        results = [run(method, federation(), runner=r, rounds=4, threads=2, **options) for r in ("inline", "processes")]
    a, b = results
    torch.testing.assert_close(a.server.theta, b.server.theta, rtol=1e-3, atol=1e-4)
    for name, value in a.server.buffers.items():
        torch.testing.assert_close(value, b.server.buffers[name], rtol=1e-3, atol=1e-4)
    assert [r.clients for r in a.rounds] == [r.clients for r in b.rounds]
    assert a.states.keys() == b.states.keys()
    for client, state in a.states.items():
        for key, tensors in state.items():
            for name, value in tensors.items():
                torch.testing.assert_close(value, b.states[client][key][name], rtol=1e-2, atol=1e-3, equal_nan=True)


def test_an_error_in_a_worker_reaches_the_user():
    method = parse("eagle")
    task = Task.build(method, blobs())
    unweighted = Broadcast(task.server().theta, {}, {}, 0, 1)  # without the weights that EAGLE's clients expect
    with open_runner("processes", method, task, 4, 2, False) as compute:
        with pytest.raises(KeyError):
            compute(Errand([0, 1], unweighted, {}, 0, "train"))
        replies, _ = compute(Errand([0, 1], unweighted, {}, 0, "start"))  # and the workers live on
        assert replies.clients == (0, 1)


def test_the_choice():
    task = Task.build(parse("fedavg"), blobs(), training=Training(epochs=1))
    assert choose_runner("auto", parse("fedavg"), task, 4, 10, 2).runner == "vectorised"
    assert choose_runner("auto", parse("fedavg"), task, 1, 10, 2).runner == "inline"
    assert (
        choose_runner("auto", parse("fedavg"), task, 4, 10**9, 2).runner == "vectorised"
    )  # a round this small is over at once
    wide = Task.build(
        parse("fedavg"), blobs(sizes=(300, 300)), model="mlp(hidden=(600, 600))", training=Training(epochs=5)
    )
    assert choose_runner("auto", parse("fedavg"), wide, 2, 1000, 2).runner == "processes"
    assert choose_runner("auto", parse("fedavg"), wide, 2, 1000, 1).runner == "vectorised"  # one core
    assert (
        choose_runner("auto", parse("fedavg"), wide, 2, 2, 2).runner == "vectorised"
    )  # too short to start workers for
    odd = Task.build(parse("fedavg"), blobs(), training=Training(optimizer="Adafactor"))
    assert choose_runner("auto", parse("fedavg"), odd, 4, 10, 2).runner == "inline"
    with pytest.raises(EquipoiseError, match="cannot be vectorised"):
        choose_runner("vectorised", parse("fedavg"), odd, 4, 10, 2)


def test_classes_of_the_script_itself_cannot_be_sent(monkeypatch):
    task = Task.build(parse("fedavg"), blobs(), model=NormNet)
    monkeypatch.setattr(NormNet, "__module__", "__main__")
    with pytest.raises(EquipoiseError, match="move the model and the method"):
        choose_runner("processes", parse("fedavg"), task, 4, 10, 2)
    assert choose_runner("auto", parse("fedavg"), task, 4, 10**9, 2).runner != "processes"


@pytest.mark.parametrize("method", ["fedavg", "fedheal"])
@pytest.mark.slow
def test_a_dead_worker_ends_the_run_with_one_line(method):
    """Killed while it waits, or while it works: nobody waits for it for ever."""
    chosen = parse(method)
    task = Task.build(chosen, blobs())
    broadcast = make_broadcast(begin_server(chosen, task), 1)
    with open_runner("processes", chosen, task, 4, 2, False) as compute:
        compute(Errand([0, 1, 2, 3], broadcast, {}, 0, "train"))
        os.kill(compute.workers[1].pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(EquipoiseError, match=r"Worker process 1 ended \(exit code -9\)"):
                compute(Errand([0, 1, 2, 3], broadcast, {}, 0, "train"))


def test_a_worker_that_dies_before_its_first_job_ends_the_run_with_one_line(monkeypatch):
    """Although the data, which do not fit into a pipe, were not read by it."""
    resource_tracker.ensure_running()  # which is started by the same program as a worker
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", shutil.which("false").encode())
    method, task = parse("fedavg"), Task.build(parse("fedavg"), replace(blobs(), notes=("x" * 2_000_000,)))
    with open_runner("processes", method, task, 4, 2, False) as compute:
        broadcast = make_broadcast(begin_server(method, task), 1)
        with pytest.raises(EquipoiseError, match=r"Worker process 0 ended \(exit code 1\)"):
            compute(Errand([0, 1, 2, 3], broadcast, {}, 0, "train"))
