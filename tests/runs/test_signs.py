"""Signs of updates that are counted while a run goes on: against counts by hand, in every runner, and without a trace."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import equipoise.engine.runners.in_process as in_process
from equipoise import Checkpoints, EquipoiseWarning, Guard, load_federation, parse
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import prepare_simulation, simulate
from equipoise.runs.analysis import analyse
from equipoise.runs.kept import read_kept
from equipoise.runs.meant import watch
from equipoise.runs.requests import parse_request
from equipoise.runs.signs import count_directions, find_bounds, find_history, find_windows, pack_bits, unpack_bits
from equipoise.study.jobs import Job, begin, place_checkpoints, run_and_record
from kit import NormNet, Stop, blobs, in_double, recorded, stop_after
from kit.ranks import run_task


def done(method, data, keep=(), **options):
    """A run that is asked to keep something, and its parts that look on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EquipoiseWarning)
        return simulate(watch(prepare_simulation(Settings.of(method, data, **options)), keep))


def count_by_hand(updates, clients, columns=slice(None)):
    """The shares in 25 bins, from the updates of some rounds, each a dict by client, with fractions in place of integers."""
    shares = []
    for client in clients:
        rows = np.array([sent[client][columns] for sent in updates if client in sent])
        if len(rows):
            rose = (rows >= 0).mean(0)
            shares.append(np.maximum(rose, 1 - rose))
    bins = np.minimum(np.floor((np.concatenate(shares) - 0.5) * 50 + 1e-9).astype(int), 24)
    return np.bincount(bins, minlength=25) / len(bins)


@pytest.fixture
def sent(monkeypatch):
    """The updates of the run that follows: by round, a dict by client."""
    found, train = {}, in_process.client_round

    def note(method, task, clients, broadcast, *rest):
        replies, kept = train(method, task, clients, broadcast, *rest)
        if replies.updates is not None:
            rows = zip(replies.clients, replies.updates.double().numpy().copy(), strict=True)
            found.setdefault(broadcast.round, {}).update(rows)
        return replies, kept

    monkeypatch.setattr(in_process, "client_round", note)
    return found


@pytest.mark.parametrize("runner", ["inline", "vectorised"])
@pytest.mark.parametrize("method", ["fedavg", "fedheal", "scaffold", "qffl"])
def test_signs_are_counted_as_by_hand(method, runner, sent):
    whole, one = "consistency", "consistency(client='c2', layer='head')"
    run = done(method, blobs(), [whole, one], rounds=13, participation=0.5, runner=runner)
    assert len(sent) == 13
    updates = [sent[r] for r in sorted(sent)]
    stretches = {"10": updates[:10], "13": updates, "last 10": updates[3:]}
    names = list(run.task.layout.names)
    assert [name.split(".")[0] for name in names] == ["body", "body", "head", "head"]
    head = slice(run.task.layout.slices[2].start, None)
    for text, clients, columns in ((whole, range(4), slice(None)), (one, [2], head)):
        found = analyse(run, parse_request(text))
        assert set(found) == set(stretches)
        for name, some in stretches.items():
            np.testing.assert_allclose(found[name], count_by_hand(some, clients, columns), err_msg=f"{text} {name}")


def test_only_what_is_asked_for_is_counted():
    run = done("fedavg", blobs(), ["consistency(client='c2', layer='head')"], rounds=2)
    history = find_history(run)
    assert (history.clients, history.layout.names) == ((2,), ("head.weight", "head.bias"))
    assert list(run.server.memory.parts[history.key]["up 0"]) == [2]


def strip(run):
    """All that a run computed, without times and without what looked on."""
    parts = {key: state for key, state in run.server.memory.parts.items() if key != "share.sign_history"}
    records = [repr(replace(record, seconds=0.0)) for record in run.rounds]
    states = {client: repr(run.states[client]) for client in sorted(run.states)}
    return run.server.theta.tolist(), repr(run.server.buffers), repr(sorted(parts.items())), records, states


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedavg", {"runner": "inline"}),
        ("fedavg", {"runner": "vectorised"}),
        ("fedavg", {"runner": "processes", "threads": 2}),
        ("fedavg", {"guard": Guard(length=1.0, clip=1.0)}),
        ("fedavg", {"model": NormNet, "buffers": "drop"}),
        ("fedheal(variant='released')", {"model": NormNet}),
        ("scaffold", {}),
        ("eagle(lag=0, lstar_epochs=2)", {}),
        ("power_of_choice(candidates=3)", {}),
        ("ditto", {}),
        ("fedadam", {}),
    ],
)
def test_a_run_that_is_looked_at_is_the_same_to_the_bit(method, options):
    given = {"rounds": 3, "participation": 0.5, **options}
    plain = done(method, blobs(), **given)
    watched = done(method, blobs(), ["consistency", "consistency(layer='head')"], **given)
    assert watched.played_method.streams == plain.played_method.streams
    assert strip(watched) == strip(plain)
    assert sum(analyse(watched, parse_request("consistency"))["3"]) == pytest.approx(1)


def test_a_streaming_method_still_sums_its_updates():
    begun = watch(prepare_simulation(Settings.of("fedavg", blobs())), ["consistency"])
    assert begun.played_method.streams
    assert begun.method.reports == parse("fedavg").reports  # the method that is recorded is the user's


@pytest.mark.parametrize("method", ["fedavg", "fedheal"])
def test_every_runner_counts_the_same(method):
    data = in_double(blobs())
    torch.set_default_dtype(torch.float64)
    try:
        runs = [
            done(method, data, ["consistency"], rounds=3, runner=runner, threads=2)
            for runner in ("inline", "vectorised", "processes")
        ]
    finally:
        torch.set_default_dtype(torch.float32)
    first, *others = (analyse(run, parse_request("consistency"))["3"] for run in runs)
    for other in others:
        # An entry that moved by nothing but rounding may have another sign.
        np.testing.assert_allclose(other, first, atol=0.01)


def test_processes_of_torchrun_count_the_same(tmp_path):
    found = run_task("signs", 2, tmp_path)
    assert found.keys() == {"fedavg", "fedheal", "scaffold"}
    for spread, inline in found.values():
        assert spread.keys() == inline.keys() == {"3"}
        np.testing.assert_allclose(spread["3"], inline["3"], atol=0.01)


def test_a_resumed_run_has_counted_all_rounds(tmp_path):
    job = Job("fedavg", "gaussians", rounds=12, keep=("consistency", "consistency(client='client 1')"))
    data = load_federation("gaussians")
    _, whole = recorded(job, tmp_path / "whole")
    with pytest.raises(Stop):
        run_and_record(
            job,
            begin(job, job.settings(data)),
            tmp_path / "half",
            stop_after(7),
            place_checkpoints(job, tmp_path / "half", 3),
        )
    _, place = run_and_record(
        job, begin(job, job.settings(data)), tmp_path / "half", None, place_checkpoints(job, tmp_path / "half", 3)
    )
    assert read_kept(place) == read_kept(whole)
    assert set(read_kept(place)["consistency"]) == {"10", "12", "last 10"}


def test_a_checkpoint_without_counts_belongs_to_another_job(tmp_path):
    job = Job("fedavg", "gaussians", rounds=12)
    folders = {
        keep: place_checkpoints(replace(job, keep=keep), tmp_path).folder
        for keep in ((), ("features",), ("consistency",), ("features", "consistency"), ("consistency(layer='head')",))
    }
    assert folders[()] == folders[("features",)]
    assert folders[("consistency",)] == folders[("features", "consistency")]
    assert len(set(folders.values())) == 3


def test_answers_that_do_not_count_are_not_counted(monkeypatch):
    train = in_process.client_round

    def spoil(method, task, clients, broadcast, *rest):
        replies, kept = train(method, task, clients, broadcast, *rest)
        for i, client in enumerate(replies.clients):
            if client == 1 and broadcast.round == 1 and replies.updates is not None:
                replies.updates[i, 0] = torch.nan
        return replies, kept

    monkeypatch.setattr(in_process, "client_round", spoil)
    run = done("fedavg", blobs(), ["consistency"], rounds=3)
    seen = run.server.memory.parts[find_history(run).key]["seen 0"]
    assert {client: int(seen[client]) for client in seen} == {0: 3, 1: 2, 2: 3, 3: 3}


def test_a_run_that_ends_early_tells_the_rounds_that_it_had(tmp_path):
    begun = watch(prepare_simulation(Settings.of("fedavg", blobs(), rounds=30)), ["consistency"])
    run = simulate(begun, checkpoint=Checkpoints(tmp_path, pause=12))
    assert set(analyse(run, parse_request("consistency"))) == {"10", "12"}


def test_bits_and_bins():
    draw = torch.Generator().manual_seed(0)
    for count in (1, 7, 8, 9, 64, 100):
        bits = torch.rand(count, generator=draw) < 0.5
        packed = pack_bits(bits)
        assert len(packed) == -(-count // 8)
        assert unpack_bits(packed, count).bool().tolist() == bits.tolist()
    for seen in (1, 2, 3, 10, 99, 100, 300):
        up = torch.arange(seen + 1)
        share = np.maximum(up.numpy(), seen - up.numpy()) / seen
        bins = np.minimum(np.floor((share - 0.5) * 50 + 1e-9).astype(int), 24)
        assert count_directions(up, seen).tolist() == np.bincount(bins, minlength=25).tolist()
    for rounds in (1, 9, 10, 11, 15, 99, 100, 105, 200):
        bounds = find_bounds(rounds)
        for name, stretches in find_windows(bounds, rounds).items():
            first, last = bounds[stretches.start], bounds[stretches.stop]
            wanted = (rounds - 10, rounds) if name == "last 10" else (0, int(name))
            assert (first, last) == wanted
