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
from equipoise import EquipoiseError, EquipoiseWarning, Layout, aggregate, checkpoints, parse, server_round
from equipoise.engine.checkpoints import fingerprint
from equipoise.engine.checks import DEPLOYED, SIMULATED, Answer, Checks, Expected, admitted, declared, expected, sound
from equipoise.engine.loop import EverySingleRow, Judge, answers, one_round, run, served_method
from equipoise.engine.runners import opened
from equipoise.method import METHODS
from equipoise.methods.afl import onto_simplex
from equipoise.task import Task
from equipoise.types import Replies
from kit import NormNet, blobs


@pytest.fixture(scope="module")
def scene():
    return faults.Scene.build("fedheal", 6)


def without(scene, client):
    return scene.after([a for a in scene.answers if a.client != client])


@pytest.mark.parametrize("fault", [f for f in faults.BAD if f not in ("duplicate", "liar")])
def test_a_bad_answer_leaves_no_trace(scene, fault):
    """The bits are those of a round without the client, whatever was wrong and wherever."""
    draw = random.Random(fault)
    for _ in range(6):
        victim = draw.randrange(len(scene.answers))
        bad = faults.BAD[fault](scene.answers[victim], draw)
        sent = [bad if a.client == victim else a for a in scene.answers]
        draw.shuffle(sent)
        found, refused = scene.after(sent)
        assert found == without(scene, victim)[0]
        assert [r.client for r in refused] == [bad.client]
        assert refused[0].why


def test_copies_count_once_and_contradictions_not_at_all(scene):
    whole, none = scene.after(scene.answers)
    assert none == []
    found, refused = scene.after([*scene.answers, scene.answers[2]])
    assert found == whole
    assert [(r.client, r.why[:11]) for r in refused] == [(2, "counts once")]
    other = replace(scene.answers[2], update=2 * scene.answers[2].update)
    for sent in ([*scene.answers, other], [other, *scene.answers]):
        found, refused = scene.after(sent)
        assert found == without(scene, 2)[0]
        assert "2 different answers" in refused[0].why


def test_the_order_of_arrival_changes_nothing(scene):
    draw, hashes = random.Random(0), set()
    for _ in range(100):
        sent = list(scene.answers)
        draw.shuffle(sent)
        hashes.add(scene.after(sent)[0])
    assert len(hashes) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=3))
def test_no_other_shape_is_accepted(scene, shape):
    """Nothing is broadcast."""
    size = scene.answers[0].update.numel()
    if shape == [size]:
        return
    bad = replace(scene.answers[0], update=torch.ones(shape))
    assert scene.after([bad, *scene.answers[1:]])[1][0].why.startswith("the update has shape")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_types_become_the_model_s(scene, dtype):
    answer = replace(scene.answers[0], update=scene.answers[0].update.to(dtype))
    replies, refused = admitted([answer, *scene.answers[1:]], scene.wanted)
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
    found, refused = scene.after([replace(scene.answers[0], update=value), *scene.answers[1:]])
    assert found == without(scene, 0)[0]
    assert len(refused) == 1


def test_named_tensors_are_checked_by_name(scene):
    names = scene.wanted.layout.split(scene.answers[0].update)
    found, refused = scene.after([replace(scene.answers[0], update=names), *scene.answers[1:]])
    assert (found, refused) == scene.after(scene.answers)
    for bad, why in (
        (dict(list(names.items())[1:]), "tensors without"),
        ({**names, "extra": torch.zeros(1)}, "unknown tensors: extra"),
        ({**names, next(iter(names)): torch.zeros(1)}, "has shape [1]"),
    ):
        assert why in scene.after([replace(scene.answers[0], update=bad), *scene.answers[1:]])[1][0].why
    backwards = dict(reversed(names.items()))  # the order of keys is nobody's business
    assert scene.after([replace(scene.answers[0], update=backwards), *scene.answers[1:]])[0] == found


@pytest.mark.parametrize("samples", [0, -899, math.nan, math.inf, 1e12, 1.5, "many", 24])
def test_a_sample_count_that_cannot_be_true(scene, samples):
    """The count that a client first gave stays: it has 23."""
    bad = replace(scene.answers[0], reports={**scene.answers[0].reports, "samples": samples})
    found, refused = scene.after([bad, *scene.answers[1:]])
    assert found == without(scene, 0)[0]
    assert "samples" in refused[0].why


@pytest.mark.parametrize("loss", [math.nan, math.inf, -0.1, 1e300])
def test_a_loss_that_cannot_be_true(loss):
    scene = faults.Scene.build("qffl(q=2)", 6)
    bad = replace(scene.answers[1], reports={**scene.answers[1].reports, "loss": torch.tensor(loss).double()})
    found, refused = scene.after([bad, *(a for a in scene.answers if a.client != 1)])
    assert found == without(scene, 1)[0]
    assert "loss" in refused[0].why


@pytest.mark.parametrize("method", faults.DRIVEN)
def test_every_loss_driven_weighting_survives_odd_losses(method):
    """0, -1, NaN, Inf, 1e-300 and 1e300 among ordinary losses; benchmarks/faults.py does ten thousand of each."""
    (row,) = faults.odd_losses(1250, [method])
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
        assert scene.after([answer, *(a for a in scene.answers if a.client != longest)])[1] == []


def test_two_clients_have_no_median():
    """Nobody can tell which of two is the odd one."""
    scene = faults.Scene.build("fedavg", 2)
    big = replace(scene.answers[0], update=1e6 * scene.answers[0].update)
    assert scene.after([big, scene.answers[1]])[1] == []


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


def played(method, victim, *, absent=False, checks=SIMULATED, model=None, runner="inline", rounds=3):
    """A run in which the client is spoilt, or absent, in the second round."""
    federation = blobs()
    chosen = served_method(parse(method), checks, None)
    task = Task.build(chosen, federation, model=model)
    judge = Judge(chosen, task, checks, None, declared(task))
    from equipoise.rounds.server import begin

    server, states, done = begin(chosen, task), {}, []
    with opened(runner, chosen, task, 4, 1) as compute:
        for r in range(rounds):
            who = [c for c in range(4) if not (absent and r == 1 and c == victim)]
            with_fault = compute if absent else spoiling(compute, victim)
            found = one_round(judge, with_fault, server, states, who, task.setting(rounds, 0), 0)
            server = found.server
            states.update(found.kept)
            done.append(found)
    return server, states, done


@pytest.mark.parametrize("method", ["fedavg", "fedheal", "scaffold", "afl", "fedfe", "moon + fedheal"])
@pytest.mark.parametrize("checks", [SIMULATED, DEPLOYED], ids=["simulated", "deployed"])
def test_a_spoilt_client_is_an_absent_one(method, checks):
    """Streaming or not, the whole run that follows has the same bits."""
    spoilt, kept, done = played(method, 2, checks=checks)
    absent, others, _ = played(method, 2, checks=checks, absent=True)
    assert fingerprint(spoilt) == fingerprint(absent)
    assert kept.keys() == others.keys()
    assert done[1].clients == (0, 1, 3)
    assert [(r.client, r.why) for r in done[1].refused] == [(2, "the update is not finite")]


def test_lengths_are_checked_only_where_rows_are_kept():
    method = parse("fedavg")
    assert served_method(method, SIMULATED, None) is method
    assert served_method(method, DEPLOYED, None).step == (EverySingleRow(),)
    assert not served_method(method, DEPLOYED, None).streams
    a = run("fedavg", blobs(), rounds=2, checks=DEPLOYED, runner="inline").server.theta
    torch.testing.assert_close(a, run("fedavg", blobs(), rounds=2, runner="inline").server.theta)


def test_buffers_are_checked():
    scene = faults.Scene.build("fedavg", 5, model=NormNet)
    name = next(n for n in scene.wanted.buffers if n.endswith("running_var"))
    for value, why in ((math.nan, "not finite"), (1e9, "as large as the median")):
        bad = replace(scene.answers[0], buffers={**scene.answers[0].buffers, name: torch.full((5,), value)})
        found, refused = scene.after([bad, *scene.answers[1:]])
        assert found == without(scene, 0)[0]
        assert why in refused[0].why


def judged(checks, spoil):
    """One round in which `spoil(attempt)` says which clients are spoilt, and how often was asked."""
    task = Task.build(parse("fedheal"), blobs())
    attempts = []
    from equipoise.rounds.server import begin

    server = begin(parse("fedheal"), task)
    with opened("inline", parse("fedheal"), task, 4, 1) as compute:

        def faulty(errand):
            replies, kept = compute(errand)
            if errand.phase == "train":
                attempts.append(1)
                for client in spoil(len(attempts)):
                    replies.updates[client] = math.nan
            return replies, kept

        found = one_round(
            Judge(parse("fedheal"), task, checks), faulty, server, {}, [0, 1, 2, 3], task.setting(1, 0), 0
        )
    return server, found, len(attempts)


def test_too_few_answers_skip_the_round():
    server, found, asked = judged(Checks(quorum=3), lambda _: (0, 1))
    assert asked == 1
    assert fingerprint(found.server) == fingerprint(server)
    assert (found.clients, found.kept, found.result) == ((), {}, None)
    assert found.server.memory.round == 1
    assert "no update: round 1" in found.warnings[0]


def test_too_few_answers_repeat_the_round():
    """The second attempt is whole, and is the round."""
    _, found, asked = judged(Checks(quorum=3, too_few="repeat"), lambda attempt: (0, 1) if attempt == 1 else ())
    assert asked == 2
    assert found.clients == (0, 1, 2, 3)
    assert fingerprint(found.server) == fingerprint(judged(Checks(), lambda _: ())[1].server)
    assert judged(Checks(quorum=3, too_few="repeat", patience=2), lambda _: (0, 1))[2] == 2


def test_too_few_answers_stop_the_run():
    with pytest.raises(EquipoiseError, match="not finite after round 1"):
        judged(Checks(quorum=3, too_few="stop"), lambda _: (0, 1))
    with pytest.raises(EquipoiseError, match="2 rounds without an update"), pytest.warns(EquipoiseWarning):
        run("fedavg", blobs(), rounds=5, checks=Checks(quorum=5, patience=2))


def test_a_rejection_is_recorded_and_said(monkeypatch):
    import equipoise.engine.loop as module

    real = module.answers

    def faulty(judge, compute, errand):
        return real(judge, spoiling(compute, 1, rounds=(0, 2)), errand)

    monkeypatch.setattr(module, "answers", faulty)
    with pytest.warns(EquipoiseWarning, match="c1 was left out: in round 1 the update is not finite"):
        found = run("fedheal", blobs(), rounds=3, runner="inline")
    assert [[x.client for x in r.rejected] for r in found.rounds] == [["c1"], [], ["c1"]]
    assert [len(r.weights) for r in found.rounds] == [3, 4, 3]


def test_an_error_in_the_middle_leaves_the_server_as_it_was(scene):
    """The server is a value: whatever fails on the way, nothing of the round is in it."""
    before = fingerprint(scene.server)
    memory = scene.server.memory
    replies, _ = admitted(scene.answers, scene.wanted)
    for place in range(len(replies.clients)):
        broken = replace(replies, reports={k: v[:place] for k, v in replies.reports.items()})
        with pytest.raises((EquipoiseError, RuntimeError)):
            server_round(scene.method, scene.server, broken, scene.setting)
        assert fingerprint(scene.server) == before
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
    return fingerprint(server), server.memory.round, repr(checkpoints._put(dict(server.memory.parts), found := {})), [
        value.tolist() for value in found.values()
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg", "fedheal", "scaffold", "fedfe", "afl", "fedequilibria"])
def test_whatever_call_fails_in_a_round_the_server_is_the_one_before(method):
    """A failure at each single operation of a round: what is stored is the state before, or the whole next one."""
    scene = faults.Scene.build(method, 5)
    replies, _ = admitted(scene.answers, scene.wanted)
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
    replies, _ = admitted(scene.answers, scene.wanted)
    assert sound(replies, scene.wanted)[0] is replies


@pytest.mark.parametrize("bad", [{"norm": 1}, {"loss": 0.5}, {"quorum": 0}, {"too_few": "wait"}, {"patience": 0}])
def test_checks_say_what_is_wrong_with_them(bad):
    with pytest.raises(EquipoiseError, match=next(iter(bad))):
        Checks(**bad)


def test_nothing_of_a_probe_counts_that_would_not_in_training():
    """EAGLE's gaps come in a probe: a client that fails there does not train, either."""
    method = parse("eagle(lag=0, lstar_epochs=2)")
    task = Task.build(method, blobs())
    from equipoise.rounds.server import begin

    with opened("inline", method, task, 4, 1) as compute:

        def faulty(errand):
            replies, kept = compute(errand)
            if errand.phase == "probe":
                replies.reports["gap"][1] = math.inf
            return replies, kept

        judge = Judge(method, task, SIMULATED, None, declared(task))
        found = one_round(judge, faulty, begin(method, task), {}, [0, 1, 2, 3], task.setting(1, 0), 0)
    assert found.clients == (0, 2, 3)
    assert found.refused == ((1, "report `gap` is not finite"),)


def test_a_client_that_comes_back_is_the_same_client():
    """State and history belong to the client's number, whichever connection or order it answers by."""
    a, states, _ = played("scaffold", 2, absent=True)
    assert set(states) == {0, 1, 2, 3}
    b = played("scaffold", 2)[0]
    assert fingerprint(a) == fingerprint(b)


def test_what_is_expected():
    task = Task.build(parse("fedheal"), blobs())
    wanted = expected(parse("fedheal"), task, task.server(), [1, 3])
    assert wanted.clients == {1, 3}
    assert wanted.reports["samples"] == ()
    probe = expected(parse("eagle(lag=0)"), task, task.server(), [1], "probe")
    assert (probe.layout, set(probe.reports)) == (None, {"gap"})
    stranger = Answer(7, 0, {})
    assert admitted([stranger], wanted) == (None, [(7, "was not asked in this round")])
    assert answers  # the same checks stand behind every runner


def test_counts_of_batches_have_no_usual_size():
    clients = (0, 1, 2)
    buffers = {"seen": torch.tensor([10, 12, 100_000])}
    replies = Replies(clients, {"samples": torch.tensor([10.0, 10.0, 10.0])}, torch.ones(3, 4), buffers)
    wanted = Expected(0, frozenset(clients), {"samples": ()}, Layout.of({"w": (4,)}), buffers, torch.float32, {})
    kept, refused = sound(replies, wanted)
    assert not refused
    assert kept.clients == clients
