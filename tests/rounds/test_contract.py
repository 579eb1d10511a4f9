"""What a part of the server or of a client must keep to: what it may not do is an error with its name, never a number."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from equipoise import Checks, EquipoiseError, Method, aggregate, run
from equipoise.engine.guard import DEPLOYMENT_GUARD
from equipoise.method import (
    Merge,
    Merged,
    Model,
    PerClient,
    Report,
    Sent,
    Shape,
    Shaped,
    Share,
    Step,
    Stepped,
    Term,
    Weigh,
    Weighed,
)
from equipoise.methods import parse
from kit import NormNet, blobs, quiet
from kit.own_parts import SendsRow

UPDATES = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])


def part(role, does, **claims):
    """A part of this role that does this, and says this of itself."""
    kind = type(f"Odd{role.__name__}", (role,), {"__call__": lambda self, *given: does(*given), **claims})
    return dataclass(frozen=True)(kind)()


def term(**hooks):
    return dataclass(frozen=True)(type("OddTerm", (Term,), hooks))()


def rounds_of(method, updates=UPDATES):
    """One round of a rule on plain tensors."""
    samples = torch.ones(len(updates))
    return aggregate(method, torch.zeros(2), updates, clients=range(len(updates)), reports={"samples": samples})


# --------------------------------------------------------------------------- losses
def test_one_loss_for_a_whole_batch_must_be_announced():
    plain = Method(terms=(term(loss=lambda self, local: local.out.features.square().mean()),))
    for runner in ("inline", "vectorised"):
        with pytest.raises(EquipoiseError, match=r"`odd_term` \(terms\) gives one loss for the whole batch"):
            run(plain, blobs(), rounds=1, runner=runner)
    masked = term(loss=lambda self, local: local.mean(local.out.features.square().mean(1)), whole_loss=True)
    per_sample = term(loss=lambda self, local: local.out.features.square().mean(1))
    found = [run(Method(terms=(one,)), blobs(), rounds=2, runner=r).server.theta
             for one in (masked, per_sample) for r in ("inline", "vectorised")]  # fmt: skip
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-4, atol=1e-6)


def test_two_frozen_models_of_one_name_are_refused_unless_they_are_the_same():
    def other(self, received, states):
        return {"received": Model({name: 2 * value for name, value in received.params.items()}, received.buffers)}

    def same(self, received, states):
        return {"received": Model(received.params, received.buffers)}

    reads = {"loss": lambda self, local: local.frozen["received"].square().mean(1)}
    run(parse("moon") + Method(terms=(term(frozen=same, **reads),)), blobs(), rounds=2)
    with pytest.raises(EquipoiseError, match=r"`odd_term` \(terms\) has a frozen model `received`"):
        run(parse("moon") + Method(terms=(term(frozen=other, **reads),)), blobs(), rounds=2)


# --------------------------------------------------------------------------- memory that is not the part's own
def test_what_is_sent_merged_or_scored_is_never_the_callers_memory():
    rows = UPDATES.clone()
    first = part(Merge, lambda round, weights: Merged(round.updates.rows[0]))
    send = part(Share, lambda round, theta, state: Sent({"row": round.reported[0]}, {}))
    score = part(
        Step, lambda round, direction, state: Stepped(direction, {}, round.reported[1]), scored_iterate="a row"
    )
    result = rounds_of(Method(merge=first, share=(send,)), rows)
    assert torch.equal(rows, UPDATES)
    rows.fill_(7.0)
    assert torch.equal(result.theta, UPDATES[0])
    assert torch.equal(result.server.shared["row"], UPDATES[0])
    rows = UPDATES.clone()
    result = rounds_of(Method(step=(score,)), rows)
    rows.fill_(7.0)
    assert torch.equal(result.evaluated, UPDATES[1])


def test_rows_of_worker_processes_that_a_part_sends_stay_as_they_were():
    found = [
        quiet(Method(share=(SendsRow(),)), blobs(), rounds=3, runner=runner, threads=2).server.memory.shared["row"]
        for runner in ("inline", "processes")
    ]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)


# --------------------------------------------------------------------------- weights
def test_a_shortcut_that_differs_from_its_rule_is_refused():
    halved = part(
        Weigh,
        lambda round, state: Weighed(0.5 * round.reports["samples"] / round.reports["samples"].sum()),
        raw=lambda self, reports: reports["samples"],
        is_convex=False,
    )
    with pytest.raises(EquipoiseError, match=r"`odd_weigh` \(weigh\) gives other weights than its `raw`"):
        run(Method(weigh=halved), blobs(), rounds=1)


def test_a_shortcut_that_gives_nothing_is_refused():
    none = part(Weigh, lambda round, state: Weighed(torch.ones(4) / 4), raw=lambda self, reports: None)
    with pytest.raises(EquipoiseError, match="overrides `raw`, which gave None"):
        run(Method(weigh=none), blobs(), rounds=1)


@pytest.mark.parametrize(
    ("weights", "claims", "message"),
    [
        ([0.2, 0.2, 0.1], {}, "convex, but they sum to 0.5"),
        ([-0.5, 1.0, 0.5], {"is_convex": False}, "gives the negative weight -0.5"),
        ([-0.5, 1.0, 0.5], {}, "the smallest is -0.5"),
    ],
)
def test_weights_are_what_their_part_says_of_them(weights, claims, message):
    odd = part(Weigh, lambda round, state: Weighed(torch.tensor(weights)), **claims)
    with pytest.raises(EquipoiseError, match=message):
        rounds_of(Method(weigh=odd))
    honest = part(Weigh, lambda round, state: Weighed(torch.tensor(weights)), is_convex=False, is_non_negative=False)
    torch.testing.assert_close(rounds_of(Method(weigh=honest)).theta, torch.tensor(weights) @ UPDATES)


def test_buffers_of_a_capped_weighting_that_is_not_convex_are_averaged_by_samples():
    half = part(Weigh, lambda round, state: Weighed(torch.full((len(round.clients),), 0.5)), is_convex=False)
    plain = run(Method(weigh=half), blobs(), model=NormNet(), rounds=1)
    guarded = run(Method(weigh=half), blobs(), model=NormNet(), rounds=1, guard=DEPLOYMENT_GUARD)
    assert guarded.server.buffers.keys() == plain.server.buffers.keys()
    for name, value in plain.server.buffers.items():
        torch.testing.assert_close(guarded.server.buffers[name], value)


# --------------------------------------------------------------------------- what parts return, by name
@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ({"weigh": part(Weigh, lambda round, state: torch.ones(3) / 3)}, r"`odd_weigh` \(weigh\) must return a Weighed"),
        ({"merge": part(Merge, lambda round, weights: round.theta)}, r"`odd_merge` \(merge\) must return a Merged"),
        ({"shape": (part(Shape, lambda round, state: Shaped(UPDATES, {})),)}, "must give the updates as an Updates"),
        ({"step": (part(Step, lambda round, direction, state: direction),)}, r"`odd_step` \(step\) must return a Stepped"),
        ({"share": (part(Share, lambda round, theta, state: {}),)}, r"`odd_share` \(share\) must return a Sent"),
        ({"share": (part(Share, lambda round, theta, state: Sent({"n": 3}, {})),)}, "`n` is a int"),
        (
            {"weigh": part(Weigh, lambda round, state: Weighed(round.reports["loss"]))},
            r'reads the report `loss`, which nobody sends: the part must say needs=\("loss",\)',
        ),
    ],
)  # fmt: skip
def test_what_a_part_returns_is_checked(slots, message):
    with pytest.raises(EquipoiseError, match=message):
        rounds_of(Method(**slots))


def test_two_parts_that_send_the_same_name_are_refused():
    one = part(Share, lambda round, theta, state: Sent({"hint": torch.zeros(1)}, {}))
    other = dataclass(frozen=True)(type("Second", (Share,), {"__call__": type(one).__call__}))()
    with pytest.raises(EquipoiseError, match=r"`second` \(share\) sends `hint`, which another part sends already"):
        rounds_of(Method(share=(one, other)))


def test_rows_per_client_keep_their_shape():
    def grow(round, state):
        size = 1 + len(state.rows("seen").take([0])[0]) if 0 in state.rows("seen") else 1
        rows = state.rows("seen").put(round.clients, torch.zeros(len(round.clients), size))
        return Weighed(torch.ones(len(round.clients)) / len(round.clients), {"seen": rows})

    grows = Method(weigh=part(Weigh, grow))
    with pytest.raises(
        EquipoiseError,
        match=r"is a tensor \[2\] per client, and was a tensor \[1\]",
    ):
        run(grows, blobs(), rounds=2)
    wrong = part(Weigh, lambda round, state: Weighed(torch.ones(3) / 3, {"x": PerClient({0: 3})}))
    with pytest.raises(EquipoiseError, match="`x` is a int per client"):
        rounds_of(Method(weigh=wrong))


def test_names_given_as_one_text_are_refused():
    with pytest.raises(EquipoiseError, match=r"`Lonely`: needs is a tuple of names. Write needs=\('loss',\)"):

        class Lonely(Weigh, needs="loss"):
            pass


def test_states_of_clients_are_tensors():
    lost = Method(terms=(term(finish=lambda self, trained: None),))
    with pytest.raises(EquipoiseError, match=r"`odd_term` \(terms\): `finish` must return a dict"):
        run(lost, blobs(), rounds=1)
    plain = term(start=lambda self, beginning: [{"n": 1.0} for _ in beginning.clients])
    with pytest.raises(EquipoiseError, match=r"can start only with tensors\. Found a float as `n`"):
        run(Method(terms=(plain,)), blobs(), rounds=1)


def test_a_report_that_gives_more_than_it_says_is_refused():
    @dataclass(frozen=True)
    class Chatty(Report, gives=("loss",)):
        phases: ClassVar = ("train",)

        def __call__(self, trained):
            return {"loss": torch.zeros(()), "loss_local": torch.zeros(())}

    with pytest.raises(
        EquipoiseError, match=r"`chatty` \(reports\) says that it gives loss, and gives loss, loss_local"
    ):
        run(Method(reports=(Chatty(),)), blobs(), rounds=1)


# --------------------------------------------------------------------------- a run with one bad client
def test_one_client_that_is_not_finite_is_not_called_divergence(monkeypatch):
    from equipoise.engine import checks

    real = checks.check_numbers

    def spoil(replies, *rest):
        replies.updates[1] = torch.nan
        return real(replies, *rest)

    monkeypatch.setattr("equipoise.engine.desk.check_numbers", spoil)
    with pytest.raises(EquipoiseError, match="Round 1 cannot be done: 3 of 4 clients gave a valid answer"):
        run("fedheal", blobs(), rounds=1, checks=Checks(quorum=4, too_few="stop"), runner="inline")
