"""A lying loss gains little, an honest one loses little."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import faults
from equipoise import EquipoiseError, EquipoiseWarning, aggregate, parse
from equipoise.engine.desk import SimulatedDesk
from equipoise.engine.guard import (
    DEPLOYMENT_GUARD,
    GUARD_BESIDE_ROBUST,
    KEY,
    CappedShare,
    CappedWeigh,
    Guard,
    cap,
    cap_weights,
    choose_guard,
    clip_replies,
    clip_to_cohort,
    raise_to_zero,
)
from equipoise.engine.simulation import run
from equipoise.method import METHODS
from equipoise.types import REPORTS, Memory, PerClient, Replies, Server
from kit import blobs

positive = st.floats(0, 1e12, allow_nan=False)


# --------------------------------------------------------------------------- the pieces
def test_capped_by_hand():
    """0.8 is cut to 0.5; the rest shares 0.5 as 1 to 3."""
    found = cap(torch.tensor([0.05, 0.15, 0.8]).double(), torch.full((3,), 0.5))
    torch.testing.assert_close(found, torch.tensor([0.125, 0.375, 0.5]).double())
    cascade = cap(torch.tensor([0.04, 0.3, 0.66]).double(), torch.full((3,), 0.4))  # the second is lifted above its cap
    torch.testing.assert_close(cascade, torch.tensor([0.2, 0.4, 0.4]).double())


@settings(max_examples=200, deadline=None)
@given(st.lists(positive, min_size=1, max_size=12), st.floats(1, 4))
def test_caps_hold_and_keep_the_total_and_the_order(values, share):
    weights = torch.tensor(values, dtype=torch.float64)
    m, total = len(values), weights.sum()
    found = cap(weights, torch.full((m,), share / m, dtype=torch.float64))
    assert float(found.sum()) == pytest.approx(float(total), rel=1e-9)
    if total > 0:
        assert bool((found <= total * (share / m) * (1 + 1e-9)).all())
        order = weights.argsort()
        assert bool((found[order].diff() >= -1e-9 * float(total)).all())


def test_a_cap_that_binds_nobody_changes_nothing():
    weights = torch.tensor([0.2, 0.3, 0.5]).double()
    torch.testing.assert_close(cap(weights, torch.full((3,), 0.6)), weights, rtol=0, atol=1e-15)
    signed = torch.tensor([-0.1, 0.3, 0.4]).double()  # EAGLE's weights may be negative
    torch.testing.assert_close(cap(signed, torch.full((3,), 0.6)), signed)


def test_no_weight_is_negative():
    found = raise_to_zero(torch.tensor([-1.0, 1.0, 3.0]).double())
    assert found.tolist() == [0.0, 0.75, 2.25]  # the same sum
    assert raise_to_zero(torch.tensor([-2.0, 1.0]).double()).tolist() == [0.5, 0.5]  # the sum says nothing any more
    usual = torch.tensor([0.2, 0.8]).double()
    torch.testing.assert_close(raise_to_zero(usual), usual, rtol=0, atol=1e-15)


def test_reports_are_clipped_on_both_sides():
    gaps = torch.tensor([0.4, 0.5, 0.5, 0.6, 50.0, -50.0]).double()
    heard = clip_to_cohort(gaps, range(6), PerClient(), Guard(clip=3))
    assert heard[:4].tolist() == gaps[:4].tolist()
    assert heard[4:].tolist() == pytest.approx([1.5, -0.5])  # two medians to either side


def test_a_wide_cohort_has_a_wide_range():
    """Nobody is an outlier where everybody differs."""
    gaps = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]).double()
    assert clip_to_cohort(gaps, range(5), PerClient(), DEPLOYMENT_GUARD).tolist() == gaps.tolist()


def test_a_report_may_not_climb_too_fast():
    last = PerClient({0: torch.tensor(1.0), 4: torch.tensor(1.0)})
    said = torch.tensor([2.75, 1.0, 1.0, 1.0, 1.5]).double()
    heard = clip_to_cohort(said, range(5), last, Guard(climb=2))
    assert heard.tolist() == [2.0, 1.0, 1.0, 1.0, 1.5]
    assert (
        clip_to_cohort(said, range(5), PerClient(), Guard(climb=2)).tolist() == said.tolist()
    )  # nothing is known of anybody
    falling = torch.tensor([0.1, 1.0, 1.0, 1.0, 0.2]).double()
    assert clip_to_cohort(falling, range(5), last, DEPLOYMENT_GUARD).tolist() == falling.tolist()


def test_two_clients_cannot_be_judged():
    said = torch.tensor([1.0, 100.0]).double()
    assert clip_to_cohort(said, range(2), PerClient(), DEPLOYMENT_GUARD).tolist() == said.tolist()


@pytest.mark.parametrize("name", ["share", "clip", "climb", "length"])
def test_limits_below_one_are_refused(name):
    with pytest.raises(EquipoiseError, match=name):
        Guard(**{name: 0.5})


# --------------------------------------------------------------------------- in front of methods
def test_the_weights_of_every_method_are_capped():
    guarded = {name: cap_weights(parse(name), DEPLOYMENT_GUARD) for name in METHODS}
    assert all(isinstance(method.weigh, CappedWeigh) for method in guarded.values())
    assert [name for name, method in guarded.items() if any(isinstance(s, CappedShare) for s in method.share)] == [
        "eagle"
    ]


@pytest.mark.parametrize("text", ["fedavg", "fedheal", "moon", "fedequilibria(fim_scale='l2')"])
def test_a_guard_that_never_binds_changes_nothing(text):
    wide = Guard(share=1e6, clip=1e6, climb=1e6, length=1e6)
    a, b = (run(text, blobs(), rounds=2, guard=g, runner="inline").server.theta for g in (None, wide))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("text", ["afl", "eagle(lstar_epochs=4)", "fedfe", "fedfv", "gifair", "qffl", "term"])
def test_every_loss_driven_method_runs_guarded(text):
    """And a guard that never binds changes no bit."""
    wide = Guard(share=1e6, clip=1e6, climb=1e6, length=1e6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        plain, open_, strict = (
            run(text, blobs(), rounds=3, guard=g, runner="inline", participation=0.75)
            for g in (None, wide, DEPLOYMENT_GUARD)
        )
    torch.testing.assert_close(plain.server.theta, open_.server.theta, rtol=1e-6, atol=1e-7)
    assert bool(torch.isfinite(strict.server.theta).all())
    assert all(REPORTS[name].drives_weight for name in strict.server.memory.parts[KEY])


# --------------------------------------------------------------------------- everything that drives weight
def hear(updates, **reports):
    """What the guard believes of these replies."""
    replies = Replies(
        tuple(range(len(updates))),
        {name: torch.tensor(value) for name, value in reports.items()},
        torch.tensor(updates),
    )
    return clip_replies(DEPLOYMENT_GUARD, Server(torch.zeros(2), {}), replies)[1:]


def test_declared_samples_are_clipped_to_three_medians():
    replies, notes = hear([[1.0, 0.0]] * 5, samples=[10.0, 20.0, 20.0, 25.0, 1e9])
    assert replies.reports["samples"].tolist() == [10.0, 20.0, 20.0, 25.0, 60.0]
    assert notes == ("guard: client 4 reported samples 1e+09, 60 counts",)


def test_a_fisher_report_can_be_neither_far_above_nor_far_below_the_others():
    """It holds squares, so that a factor of nine is allowed. Sizes 5, 5, 5, 5/100 and 500 become 5, 5, 5, 5/9 and 45."""
    fisher = [[3.0, 4.0]] * 3 + [[0.03, 0.04], [300.0, 400.0]]
    replies, _ = hear([[1.0, 0.0]] * 5, fisher=fisher)
    found = replies.reports["fisher"]
    torch.testing.assert_close(found[:3], torch.tensor(fisher[:3]))
    torch.testing.assert_close(found[3:], torch.tensor([[3.0, 4.0]]) * torch.tensor([[1 / 9], [9.0]]))


def test_other_counts_are_clipped_as_samples_are():
    """The totals 6, 6, 9 and 6e6 of prototypes' samples: three medians are 18, in the proportions that were told."""
    counts = [[2.0, 4.0], [3.0, 3.0], [9.0, 0.0], [2e6, 4e6]]
    replies, _ = hear([[1.0, 0.0]] * 4, prototype_counts=counts)
    torch.testing.assert_close(replies.reports["prototype_counts"], torch.tensor([*counts[:3], [6.0, 12.0]]))


@pytest.mark.parametrize("factor", [1e6, 1e-6])
def test_a_false_normaliser_does_not_carry_the_model_away(factor):
    """FedNova's weights do not add up to one: a false normaliser made all of them a hundred thousand times as large."""
    normaliser = [5.0, 5.0, 5.0, 5.0, 5.0 * factor]
    replies, _ = hear([[1.0, 0.0]] * 5, samples=[10.0] * 5, steps=[5.0] * 5, normaliser=normaliser)
    method = cap_weights(parse("fednova"), DEPLOYMENT_GUARD)
    found = aggregate(method, torch.zeros(2), replies.updates, clients=range(5), reports=replies.reports)
    assert float(found.weights.sum()) < 5
    assert float(found.weights[4] / found.weights.sum()) <= 0.4 + 1e-6


def test_long_updates_are_shortened_and_not_refused():
    replies, notes = hear([[3.0, 4.0], [0.0, 5.0], [5.0, 0.0], [60.0, 80.0], [1e20, 0.0]])
    torch.testing.assert_close(replies.updates[3:], torch.tensor([[9.0, 12.0], [15.0, 0.0]]))
    assert len(notes) == 2


def test_a_client_that_was_told_to_train_further_is_not_shortened_for_it():
    """EAGLE's weights lengthen updates: 5 times the weight, 5 times the length. The fifth has no such excuse."""
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [5.0, 0.0], [5.0, 0.0]])
    sent = PerClient({i: torch.tensor(w) for i, w in enumerate([1.0, 1.0, 1.0, 5.0, 1.0])})
    server = Server(torch.zeros(2), {}, Memory(shared={"weight": sent}))
    heard = clip_replies(DEPLOYMENT_GUARD, server, Replies(tuple(range(5)), {}, rows))[1]
    assert heard.updates[:, 0].tolist() == [1, 1, 1, 5, 3]


def test_a_false_gap_turns_nobody_backwards():
    """A gap a hundred times too large made all honest clients' weights negative: they trained away from their data."""
    gaps = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.1, 100.0])
    reports = {"samples": torch.full((6,), 10.0), "gap": gaps}
    facts = {"clients": range(6), "reports": reports, "num_clients": 6, "rounds": 3}
    method, rows = parse("eagle(lam=2.0)"), torch.ones(6, 4)
    free = aggregate(method, torch.zeros(4), rows, **facts).server.find_loss_weights(range(6))
    kept = aggregate(cap_weights(method, DEPLOYMENT_GUARD), torch.zeros(4), rows, **facts).server
    assert bool((free[:5] < 0).all())
    weights = kept.find_loss_weights(range(6))
    assert bool((weights >= 0).all())
    assert float(weights[5] / weights.sum()) <= 2 / 6 + 1e-6
    assert float(weights.norm()) == pytest.approx(float(free.norm()))  # EAGLE's norm stays what it is to be


def test_who_is_refused_otherwise_leaves_the_others_more_room():
    assert choose_guard(parse("eagle")) is DEPLOYMENT_GUARD
    assert choose_guard(parse("eagle + robust")) is GUARD_BESIDE_ROBUST
    assert GUARD_BESIDE_ROBUST.share > DEPLOYMENT_GUARD.share


def test_no_client_has_more_than_its_cap_whatever_it_reports():
    """Fisher information a hundred times too small earns FedEquilibria's liar nearly all of the weight without a guard."""
    theta, draw = torch.zeros(6), torch.Generator().manual_seed(0)
    rows, fisher = torch.randn(6, 6, generator=draw), torch.rand(6, 6, generator=draw)
    fisher[0] /= 100
    reports = {"samples": torch.full((6,), 10.0), "fisher": fisher}
    facts = {"num_clients": 6, "rounds": 3, "clients": range(6), "reports": reports}
    method = parse("fedequilibria(t=1.0)")
    assert float(aggregate(method, theta, rows, **facts).weights[0]) > 0.9
    assert float(aggregate(cap_weights(method, DEPLOYMENT_GUARD), theta, rows, **facts).weights[0]) <= 2 / 6 + 1e-6


def test_honest_samples_keep_their_shares():
    """Three medians of samples are believed, and who has them may have their share of the weights."""
    reports = {"samples": torch.tensor([30.0, 10.0, 10.0, 10.0, 10.0])}
    method = cap_weights(parse("fedavg"), DEPLOYMENT_GUARD)
    found = aggregate(method, torch.zeros(2), torch.ones(5, 2), clients=range(5), reports=reports)
    torch.testing.assert_close(found.weights, reports["samples"] / 70)


def test_the_liar_of_ten():
    """100 times its loss under q = 5: at most a fifth of the weights, and honest clients lose at most a point."""
    shares, values = faults.run_with_lie("qffl(q=5)", faults.Lie(lambda _: 100.0), DEPLOYMENT_GUARD)
    free, spoilt = faults.run_with_lie("qffl(q=5)", faults.Lie(lambda _: 100.0), None)
    honest = faults.run_with_lie("qffl(q=5)", None, None)[1]
    assert faults.find_largest_share(free, [0]) > 0.99
    assert faults.find_largest_share(shares, [0]) <= 0.2 + 1e-6
    assert faults.average_honest(values, [0]) >= faults.average_honest(honest, [0]) - 1
    assert faults.average_honest(values, [0]) >= faults.average_honest(spoilt, [0]) - 1


def test_slow_liars_and_liars_in_company():
    slow = faults.run_with_lie("qffl(q=5)", faults.Lie(lambda r: 1.05**r), DEPLOYMENT_GUARD)[0]
    assert faults.find_largest_share(slow, [0]) <= 0.2 + 1e-6
    two = faults.run_with_lie("qffl(q=5)", faults.Lie(lambda _: 100.0, (0, 1)), DEPLOYMENT_GUARD)[0]
    assert faults.find_largest_share(two, [0, 1]) <= 0.4 + 1e-6


@pytest.mark.parametrize("text", ["afl(gamma=0.1)", "fedfe(q=5)", "eagle(apply='server', lam=2.0, lstar_epochs=5)"])
def test_liars_in_other_methods(text):
    lie = faults.Lie(lambda _: 100.0, report="gap" if "eagle" in text else "loss")
    assert faults.find_largest_share(faults.run_with_lie(text, lie, DEPLOYMENT_GUARD, rounds=10)[0], [0]) <= 0.2 + 1e-6


@pytest.mark.parametrize("lie", [faults.Lie(lambda _: 100.0, report="gap"), faults.PlusFive()], ids=["loss", "optimum"])
def test_eagle_from_both_ends(lie):
    """A high loss and a low own optimum both make the gap large."""
    method = "eagle(lam=2.0, lstar_epochs=5)"
    assert faults.run_with_lie(method, lie, None, rounds=5)[0][-1][0] > 0.4
    assert faults.run_with_lie(method, lie, DEPLOYMENT_GUARD, rounds=5)[0][-1][0] <= 0.2 + 1e-6


def test_an_honestly_hard_client_keeps_its_weight():
    """2.5 times the median at q = 1: 0.217 becomes 0.2."""
    free, kept = faults.compute_guard_cost(1.0, 2.5)
    assert free == pytest.approx(2.5 / 11.5)
    assert kept == pytest.approx(0.2)
    assert kept / free >= 0.9
    assert faults.compute_guard_cost(5.0, 2.5)[1] == pytest.approx(0.2)  # what it costs at a larger q is in the docs


def test_the_guard_says_what_it_cut():
    with pytest.warns(EquipoiseWarning, match=r"guard: client 0 reported loss .* counts"):
        faults_run()


def faults_run():
    real = SimulatedDesk.__init__
    lie = faults.Lie(lambda _: 100.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedDesk, "__init__", lambda self, begun, compute: real(self, begun, lie(compute)))
        return run("qffl(q=2)", blobs(), rounds=2, guard=DEPLOYMENT_GUARD, runner="inline")


def test_an_absent_client_keeps_the_capped_weight():
    method = cap_weights(parse("eagle(lam=5.0)"), DEPLOYMENT_GUARD)
    draw = torch.Generator().manual_seed(0)
    theta, rows = torch.zeros(6), torch.randn(5, 6, generator=draw)
    facts = {"num_clients": 5, "rounds": 3}
    gaps = torch.tensor([0.0, 0.1, 0.0, 0.1, 2.0])
    reports = {"samples": torch.full((5,), 10.0), "gap": gaps}
    first = aggregate(method, theta, rows, clients=range(5), reports=reports, **facts)
    there = {name: value[:4] for name, value in reports.items()}
    second = aggregate(method, theta, rows[:4], clients=range(4), reports=there, server=first.server, **facts)
    plain = aggregate(parse("eagle(lam=5.0)"), theta, rows, clients=range(5), reports=reports, **facts)
    assert float(second.broadcast["weight"][4]) == pytest.approx(float(first.broadcast["weight"][4]))
    assert float(first.broadcast["weight"][4]) < float(plain.broadcast["weight"][4]) - 0.1
