"""Bad answers do not count, and the round is what it would have been without them."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

import faults
from equipoise import EquipoiseError, EquipoiseWarning, Layout, aggregate, parse, server_round
from equipoise.engine import checkpoints
from equipoise.engine.checkpoints import hash_model
from equipoise.engine.checks import (
    DEPLOYMENT_CHECKS,
    SIMULATION_CHECKS,
    Answer,
    Checks,
    Expected,
    admit,
    check_numbers,
    expect,
)
from equipoise.engine.desk import SimulatedDesk
from equipoise.engine.loop import Judge, begin_run, play_round
from equipoise.engine.runners import open_runner
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import run
from equipoise.method import METHODS
from equipoise.methods.afl import onto_simplex
from equipoise.task import Task
from equipoise.types import Replies
from kit import NormNet, blobs, quiet


@pytest.fixture(scope="module")
def scene():
    return faults.Scene.build("fedheal", 6)


def without(scene, client):
    return scene.finish([a for a in scene.answers if a.client != client])


@pytest.mark.parametrize("fault", faults.BAD)
def test_a_bad_answer_leaves_no_trace(scene, fault):
    """The bits are those of a round without the client, whatever was wrong and wherever."""
    draw = random.Random(fault)
    for _ in range(6):
        victim = draw.randrange(len(scene.answers))
        bad = faults.BAD[fault](scene.answers[victim], draw)
        sent = [bad if a.client == victim else a for a in scene.answers]
        draw.shuffle(sent)
        found, refused = scene.finish(sent)
        assert found == without(scene, victim)[0]
        assert [r.client for r in refused] == [bad.client]
        assert refused[0].why


def test_copies_count_once_and_contradictions_not_at_all(scene):
    whole, none = scene.finish(scene.answers)
    assert none == []
    found, refused = scene.finish([*scene.answers, scene.answers[2]])
    assert found == whole
    assert [(r.client, r.why[:11]) for r in refused] == [(2, "counts once")]
    other = replace(scene.answers[2], update=2 * scene.answers[2].update)
    for sent in ([*scene.answers, other], [other, *scene.answers]):
        found, refused = scene.finish(sent)
        assert found == without(scene, 2)[0]
        assert "2 different answers" in refused[0].why


def test_the_order_of_arrival_changes_nothing(scene):
    draw, hashes = random.Random(0), set()
    for _ in range(100):
        sent = list(scene.answers)
        draw.shuffle(sent)
        hashes.add(scene.finish(sent)[0])
    assert len(hashes) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=3))
def test_no_other_shape_is_accepted(scene, shape):
    """Nothing is broadcast."""
    size = scene.answers[0].update.numel()
    if shape == [size]:
        return
    bad = replace(scene.answers[0], update=torch.ones(shape))
    assert scene.finish([bad, *scene.answers[1:]])[1][0].why.startswith("the update has shape")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_types_become_the_model_s(scene, dtype):
    answer = replace(scene.answers[0], update=scene.answers[0].update.to(dtype))
    replies, refused = admit([answer, *scene.answers[1:]], scene.wanted)
    assert refused == []
    assert replies.updates.dtype == torch.float32


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.complex64),
        np.array([object()] * 3),
        "ones",
        None,
        {},
    ],
)
def test_other_types_are_refused(scene, value):
    found, refused = scene.finish([replace(scene.answers[0], update=value), *scene.answers[1:]])
    assert found == without(scene, 0)[0]
    assert len(refused) == 1


def test_named_tensors_are_checked_by_name(scene):
    names = scene.wanted.layout.split(scene.answers[0].update)
    found, refused = scene.finish([replace(scene.answers[0], update=names), *scene.answers[1:]])
    assert (found, refused) == scene.finish(scene.answers)
    for bad, why in (
        (dict(list(names.items())[1:]), "tensors without"),
        ({**names, "extra": torch.zeros(1)}, "unknown tensors: extra"),
        ({**names, next(iter(names)): torch.zeros(1)}, "has shape [1]"),
    ):
        assert why in scene.finish([replace(scene.answers[0], update=bad), *scene.answers[1:]])[1][0].why
    backwards = dict(reversed(names.items()))  # the order of keys is nobody's business
    assert scene.finish([replace(scene.answers[0], update=backwards), *scene.answers[1:]])[0] == found


@pytest.mark.parametrize("samples", [0, -899, math.nan, math.inf, 1e12, 1.5, "many", 24])
def test_a_sample_count_that_cannot_be_true(scene, samples):
    """The count that a client first gave stays: it has 23."""
    bad = replace(scene.answers[0], reports={**scene.answers[0].reports, "samples": samples})
    found, refused = scene.finish([bad, *scene.answers[1:]])
    assert found == without(scene, 0)[0]
    assert "samples" in refused[0].why


@pytest.mark.parametrize("loss", [math.nan, math.inf, -0.1, 1e300])
def test_a_loss_that_cannot_be_true(loss):
    scene = faults.Scene.build("qffl(q=2)", 6)
    bad = replace(scene.answers[1], reports={**scene.answers[1].reports, "loss": torch.tensor(loss).double()})
    found, refused = scene.finish([bad, *(a for a in scene.answers if a.client != 1)])
    assert found == without(scene, 1)[0]
    assert "loss" in refused[0].why


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("normaliser", 0.0, "not above zero"),
        ("steps", -1.0, "not above zero"),
        ("fisher", [0.5, -0.5], "negative"),
        ("prototype_counts", [4.0, -1.0], "negative"),
    ],
)
def test_a_report_whose_sign_cannot_be_true(name, value, why):
    """One site must not end a run by dividing by zero, or by a Fisher value that is no square."""
    rows = torch.ones(4, *torch.tensor(value).shape)
    rows[2] = torch.tensor(value)
    wanted = Expected(0, frozenset(range(4)), {}, None, {}, torch.float32, {})
    kept, refused = check_numbers(Replies((0, 1, 2, 3), {name: rows}, None, {}), wanted)
    assert kept.clients == (0, 1, 3)
    assert [(one.client, one.why) for one in refused] == [(2, f"report `{name}` is {why}")]


@pytest.mark.parametrize("method", faults.DRIVEN)
def test_every_loss_driven_weighting_survives_odd_losses(method):
    """0, -1, NaN, Inf, 1e-300 and 1e300 among ordinary losses; benchmarks/faults does ten thousand of each."""
    (row,) = faults.weigh_odd_losses(1250, [method])
    assert row.figure.startswith("1250 of 1250 vectors")
    assert not row.figure.endswith("; 0 impossible losses refused")


def test_the_loss_driven_weightings_are_all_there():
    named = {call.name for text in faults.DRIVEN for call in parse(text).calls}
    assert named == {name for name in METHODS if any(need.startswith("loss") for need in parse(name).weigh.needs)}


def test_afl_s_memory_stays_on_the_simplex_whatever_the_losses():
    for values in ([1e300, 0.5, 0.0], [1e16, 1.0], [-1e300, 0.2, 0.1], [1e300, 1e300]):
        found = onto_simplex(torch.tensor(values, dtype=torch.float64))
        assert float(found.sum()) == pytest.approx(1, abs=1e-12)
        assert int(found.argmax()) == values.index(max(values))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0, 1e300, allow_nan=False), min_size=2, max_size=8), st.sampled_from([0.0, 1.0, 2.0, 5.0, 20.0])
)
def test_q_weights_stay_finite_for_every_loss(losses, q):
    m = len(losses)
    found = aggregate(
        parse(f"qffl(q={q}, lr=0.1)"), torch.zeros(2, dtype=torch.float64), torch.ones(m, 2, dtype=torch.float64),
        clients=range(m), reports={"loss": torch.tensor(losses, dtype=torch.float64)},
    )  # fmt: skip
    assert bool(torch.isfinite(found.weights).all())
    assert bool((found.weights >= 0).all())
    if q == 0:
        assert float(found.weights.sum()) == pytest.approx(1)


def test_a_hard_client_is_not_a_bad_one():
    """Twice the median, or nine times: not implausible."""
    scene = faults.Scene.build("fedavg", 6)
    for factor in (2.0, 9.0):
        longest = max(range(6), key=lambda c: scene.answers[c].update.norm())
        middle = torch.stack([a.update.norm() for a in scene.answers]).median()
        row = scene.answers[longest].update
        answer = replace(scene.answers[longest], update=row / row.norm() * middle * factor)
        assert scene.finish([answer, *(a for a in scene.answers if a.client != longest)])[1] == []


def test_two_clients_have_no_median():
    """Nobody can tell which of two is the odd one."""
    scene = faults.Scene.build("fedavg", 2)
    big = replace(scene.answers[0], update=1e6 * scene.answers[0].update)
    assert scene.finish([big, scene.answers[1]])[1] == []


# --------------------------------------------------------------------------- in runs
def spoiling(compute, victim, rounds=(1,), value=math.nan):
    """A runner in which one client's update is spoilt in some rounds."""

    def spoilt(errand):
        replies, kept = compute(errand)
        if victim in replies.clients and errand.phase == "train" and errand.broadcast.round in rounds:
            place = replies.clients.index(victim)
            if replies.total is not None:
                replies.total[3] = value
            else:
                replies.updates[place, 3] = value
        return replies, kept

    return spoilt


def played(method, victim, *, absent=False, checks=SIMULATION_CHECKS, value=math.nan, runner="inline", rounds=3):
    """A run in which the client is spoilt, or absent, in the second round."""
    begun = begin_run(Settings.of(method, blobs(), rounds=rounds, checks=checks))
    server, states, done = begun.server, {}, []
    sums = begun.method.streams and checks.norm is None
    with open_runner(runner, begun.method, begun.task, 4, 1, sums) as compute:
        for r in range(rounds):
            who = [c for c in range(4) if not (absent and r == 1 and c == victim)]
            desk = SimulatedDesk(begun, compute if absent else spoiling(compute, victim, value=value))
            found = play_round(Judge.of(begun), desk, server, states, who, 0)
            server = found.server
            states.update(found.kept)
            done.append(found)
    return server, states, done


@pytest.mark.parametrize("method", ["fedavg", "fedheal", "scaffold", "afl", "fedfe", "moon + fedheal"])
@pytest.mark.parametrize("checks", [SIMULATION_CHECKS, DEPLOYMENT_CHECKS], ids=["simulated", "deployed"])
def test_a_spoilt_client_is_an_absent_one(method, checks):
    """Streaming or not, the whole run that follows has the same bits."""
    spoilt, kept, done = played(method, 2, checks=checks)
    absent, others, _ = played(method, 2, checks=checks, absent=True)
    assert hash_model(spoilt) == hash_model(absent)
    assert kept.keys() == others.keys()
    assert done[1].clients == (0, 1, 3)
    assert [(r.client, r.why) for r in done[1].refused] == [(2, "the update is not finite")]


def test_lengths_are_checked_also_of_updates_that_a_method_only_sums():
    """And the model is the same bit for bit, whether single updates are kept or not."""
    a = run("fedavg", blobs(), rounds=2, checks=DEPLOYMENT_CHECKS, runner="inline").server.theta
    assert torch.equal(a, run("fedavg", blobs(), rounds=2, runner="inline").server.theta)
    spoilt = played("fedavg", 2, checks=DEPLOYMENT_CHECKS, value=1e6)[2]
    assert [(r.client, r.why) for r in spoilt[1].refused] == [
        (2, "the update is over 10 times as long as the median one")
    ]
    assert played("fedavg", 2, value=1e6)[2][1].refused == ()


def test_buffers_are_checked():
    scene = faults.Scene.build("fedavg", 5, model=NormNet)
    name = next(n for n in scene.wanted.buffers if n.endswith("running_var"))
    for value, why in ((math.nan, "not finite"), (1e9, "as large as the median")):
        bad = replace(scene.answers[0], buffers={**scene.answers[0].buffers, name: torch.full((5,), value)})
        found, refused = scene.finish([bad, *scene.answers[1:]])
        assert found == without(scene, 0)[0]
        assert why in refused[0].why


def judged(checks, spoil):
    """One round in which `spoil(attempt)` says which clients are spoilt, and how often was asked."""
    begun = begin_run(Settings.of("fedheal", blobs(), rounds=1, checks=checks))
    attempts = []
    with open_runner("inline", begun.method, begun.task, 4, 1, False) as compute:

        def faulty(errand):
            replies, kept = compute(errand)
            if errand.phase == "train":
                attempts.append(1)
                for client in spoil(len(attempts)):
                    replies.updates[client] = math.nan
            return replies, kept

        desk = SimulatedDesk(begun, faulty)
        found = play_round(Judge.of(begun), desk, begun.server, {}, [0, 1, 2, 3], 0)
    return begun.server, found, len(attempts)


def test_too_few_answers_skip_the_round():
    server, found, asked = judged(Checks(quorum=3), lambda _: (0, 1))
    assert asked == 1
    assert hash_model(found.server) == hash_model(server)
    assert (found.clients, found.kept, found.result) == ((), {}, None)
    assert found.server.memory.round == 1
    assert found.notes == (
        "Round 1 was skipped: 2 of 4 clients gave a valid answer, and it needs 3 (c0: the update is not finite; c1: the "
        "update is not finite).",
    )


def spoil_runs(monkeypatch, spoil):
    """Every run's runner goes through `spoil`."""
    real = SimulatedDesk.__init__
    monkeypatch.setattr(SimulatedDesk, "__init__", lambda self, begun, compute: real(self, begun, spoil(compute)))


def test_too_few_answers_repeat_the_round(monkeypatch):
    """The second try is whole, and is the round: the run is the one that it would have been."""
    tries = []

    def spoil(compute):
        def faulty(errand):
            replies, kept = compute(errand)
            tries.append(errand.phase)
            if len(tries) == 2:  # after the start
                replies.updates[:2] = math.nan
            return replies, kept

        return faulty

    whole = run("fedheal", blobs(), rounds=2, runner="inline")
    spoil_runs(monkeypatch, spoil)
    found = quiet("fedheal", blobs(), rounds=2, runner="inline", checks=Checks(quorum=3, too_few="repeat"))
    assert found.warnings[0].startswith("Round 1 was repeated: 2 of 4 clients gave a valid answer, and it needs 3")
    assert tries[:3] == ["start", "train", "start"]
    assert [record.round for record in found.rounds] == [1, 2]
    assert hash_model(found.server) == hash_model(whole.server)


@pytest.mark.parametrize(("too_few", "rounds"), [("repeat", 2), ("skip", 4)])
def test_a_run_without_answers_ends_and_says_so(monkeypatch, too_few, rounds):
    """Two good rounds, then nobody's answer counts: with a patience of two it ends, with what it has."""
    spoil_runs(monkeypatch, lambda compute: spoiling(spoiling(compute, 0, range(2, 9)), 1, range(2, 9)))
    checks = Checks(quorum=3, too_few=too_few, patience=2)
    found = quiet("fedheal", blobs(), rounds=9, runner="inline", checks=checks)
    assert found.stopped == f"The run stopped after {rounds} of 9 rounds: 2 times on end too few clients answered."
    assert [len(record.clients) for record in found.rounds] == [4, 4, 0, 0][:rounds]
    assert found.warnings[-1] == found.stopped


def test_too_few_answers_stop_the_run(monkeypatch):
    with pytest.raises(EquipoiseError, match=r"2 of 4 clients gave a valid answer.*c0: the update is not finite"):
        judged(Checks(quorum=3, too_few="stop"), lambda _: (0, 1))
    spoil_runs(monkeypatch, lambda compute: spoiling(compute, 0, range(9)))
    with pytest.raises(EquipoiseError, match="stopped after 0 of 5 rounds: 2 times on end too few clients answered"):
        quiet("fedheal", blobs(), rounds=5, runner="inline", checks=Checks(quorum=4, too_few="repeat", patience=2))


def test_healthy_clients_that_are_too_few_have_not_diverged():
    """Four clients cannot be five; and a round that lacks one is told as what it is."""
    with pytest.raises(EquipoiseError, match="`quorum` must be at most 4, the clients of a round"):
        run("fedavg", blobs(), rounds=1, checks=Checks(quorum=5, too_few="stop"))
    late = blobs()
    late = replace(late, clients=(*late.clients[:3], replace(late.clients[3], joins=1)))
    with pytest.raises(
        EquipoiseError, match="Round 1 cannot be done: 3 of 3 clients gave a valid answer, and it needs 4"
    ):
        run("fedavg", late, rounds=2, checks=Checks(quorum=4, too_few="stop"))


def test_a_rejection_is_recorded_and_said(monkeypatch):
    spoil_runs(monkeypatch, lambda compute: spoiling(compute, 1, rounds=(0, 2)))
    with pytest.warns(EquipoiseWarning, match="c1 was left out: in round 1 the update is not finite"):
        found = run("fedheal", blobs(), rounds=3, runner="inline")
    assert [[x.client for x in r.rejected] for r in found.rounds] == [["c1"], [], ["c1"]]
    assert [len(r.weights) for r in found.rounds] == [3, 4, 3]


def test_an_error_in_the_middle_leaves_the_server_as_it_was(scene):
    """The server is a value: whatever fails on the way, nothing of the round is in it."""
    before = hash_model(scene.server)
    memory = scene.server.memory
    replies, _ = admit(scene.answers, scene.wanted)
    for place in range(len(replies.clients)):
        broken = replace(replies, reports={k: v[:place] for k, v in replies.reports.items()})
        with pytest.raises((EquipoiseError, RuntimeError)):
            server_round(scene.method, scene.server, broken, scene.setting)
        assert hash_model(scene.server) == before
        assert scene.server.memory is memory


class Fails(TorchFunctionMode):
    """Torch fails at its n-th call."""

    def __init__(self, at):
        super().__init__()
        self.left = at

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if self.left == 0:
            raise MemoryError("no memory left")
        self.left -= 1
        return function(*args, **(kwargs or {}))


def everything(server):
    """All that a server remembers, as bits."""
    return hash_model(server), server.memory.round, repr(checkpoints._put(dict(server.memory.parts), found := {})), [
        value.tolist() for value in found.values()
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg", "fedheal", "scaffold", "fedfe", "afl", "fedequilibria"])
def test_whatever_call_fails_in_a_round_the_server_is_the_one_before(method):
    """A failure at each single operation of a round: what is stored is the state before, or the whole next one."""
    scene = faults.Scene.build(method, 5)
    replies, _ = admit(scene.answers, scene.wanted)
    before = everything(scene.server)
    whole = everything(server_round(scene.method, scene.server, replies, scene.setting)[0])
    stored, failures = scene.server, 0
    for at in range(5000):
        try:
            with Fails(at):
                stored = server_round(scene.method, scene.server, replies, scene.setting)[0]
        except MemoryError:
            failures += 1
            assert everything(stored) == before
        else:
            break
    assert failures > 10
    assert everything(stored) == whole != before


def test_sound_replies_are_not_copied(scene):
    replies, _ = admit(scene.answers, scene.wanted)
    assert check_numbers(replies, scene.wanted)[0] is replies


@pytest.mark.parametrize("bad", [{"norm": 1}, {"loss": 0.5}, {"quorum": 0}, {"too_few": "wait"}, {"patience": 0}])
def test_checks_say_what_is_wrong_with_them(bad):
    with pytest.raises(EquipoiseError, match=next(iter(bad))):
        Checks(**bad)


def test_nothing_of_a_probe_counts_that_would_not_in_training():
    """EAGLE's gaps come in a probe: a client that fails there does not train, either."""
    begun = begin_run(Settings.of("eagle(lag=0, lstar_epochs=2)", blobs(), rounds=1))
    with open_runner("inline", begun.method, begun.task, 4, 1, False) as compute:

        def faulty(errand):
            replies, kept = compute(errand)
            if errand.phase == "probe":
                replies.reports["gap"][1] = math.inf
            return replies, kept

        found = play_round(Judge.of(begun), SimulatedDesk(begun, faulty), begun.server, {}, [0, 1, 2, 3], 0)
    assert found.clients == (0, 2, 3)
    assert found.refused == ((1, "report `gap` is not finite", True),)


def test_a_client_that_comes_back_is_the_same_client():
    """State and history belong to the client's number, whichever connection or order it answers by."""
    a, states, _ = played("scaffold", 2, absent=True)
    assert set(states) == {0, 1, 2, 3}
    b = played("scaffold", 2)[0]
    assert hash_model(a) == hash_model(b)


def test_what_is_expected():
    task = Task.build(parse("fedheal"), blobs())
    wanted = expect(parse("fedheal"), task, task.server(), [1, 3])
    assert wanted.clients == {1, 3}
    assert wanted.reports["samples"] == ()
    probe = expect(parse("eagle(lag=0)"), task, task.server(), [1], "probe")
    assert (probe.layout, set(probe.reports)) == (None, {"gap", "optimum"})
    stranger = Answer(7, 0, {})
    assert admit([stranger], wanted) == (None, [(7, "was not asked in this round", False)])


def test_counts_of_batches_have_no_usual_size():
    clients = (0, 1, 2)
    buffers = {"seen": torch.tensor([10, 12, 100_000])}
    replies = Replies(clients, {"samples": torch.tensor([10.0, 10.0, 10.0])}, torch.ones(3, 4), buffers)
    wanted = Expected(0, frozenset(clients), {"samples": ()}, Layout.of({"w": (4,)}), buffers, torch.float32, {})
    kept, refused = check_numbers(replies, wanted)
    assert not refused
    assert kept.clients == clients
