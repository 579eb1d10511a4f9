"""Updates against the cohort do not count, and a minority's do."""

import pytest
import torch

import faults
from equipoise import EquipoiseError, aggregate, parse
from equipoise.engine.guard import GUARD_BESIDE_ROBUST
from equipoise.parts.robust import clip_lengths, find_centre, find_company
from equipoise.rounds.server import server_round
from equipoise.types import Memory, PerClient, Replies, Server, Setting

HONEST = torch.tensor([[1.0, 0.2, 0.0], [1.0, -0.2, 0.1], [1.1, 0.0, 0.1], [0.9, 0.1, -0.1], [1.0, 0.0, 0.0]])
MINORITY = torch.tensor([[-0.1, 1.0, 0.3]])  # unlike the others, nearly upright on them
REVERSED = torch.tensor([[-1.0, -0.1, 0.0]])


def merge(rows, method="fedavg + robust", server=None, clients=None):
    return aggregate(
        parse(method),
        torch.zeros(3),
        rows,
        clients=range(len(rows)) if clients is None else clients,
        reports={"samples": torch.ones(len(rows))},
        server=server,
    )


def test_the_centre_is_where_the_distances_have_the_smallest_sum():
    """The optimum of a Fermat problem: the unit vectors from the centre to the points add up to zero."""
    rows = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centre = find_centre(rows @ rows.T) @ rows
    away = rows - centre
    assert float((away / away.norm(dim=1, keepdim=True)).sum(0).norm()) < 1e-3


def test_fewer_than_half_do_not_move_the_centre_far():
    rows = torch.cat([HONEST, 1000 * REVERSED, 1000 * REVERSED]).double()
    centre = find_centre(rows @ rows.T) @ rows
    assert float((centre - HONEST.double().mean(0)).norm()) < 0.3


def test_reversed_updates_leave_the_centre_of_those_that_go_along_with_it():
    """The centre of all is short and turned where three of ten are reversed; that of the others is not."""
    draw = torch.Generator().manual_seed(1)
    honest = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0]) + 0.5 * torch.randn(7, 8, generator=draw)
    rows = torch.cat([honest, -3 * honest[4:] - 0.2]).double()
    coefficients, cosines = find_company(rows @ rows.T)
    expected = find_centre(rows[:7] @ rows[:7].T) @ rows[:7]
    torch.testing.assert_close(coefficients @ rows, expected)
    torch.testing.assert_close(cosines, torch.cosine_similarity(rows, expected[None]))
    assert coefficients[7:].tolist() == [0, 0, 0]


def test_lengths():
    assert clip_lengths(torch.tensor([1.0, 9.0, 16.0]).double(), 1.0).tolist() == pytest.approx([1, 1, 0.75])


def test_an_honest_cohort_is_merged_as_without_it():
    rows = torch.cat([HONEST, MINORITY])
    torch.testing.assert_close(merge(rows).theta, merge(rows, "fedavg").theta)


def test_a_reversed_update_is_replaced_by_the_centre_and_the_minority_stays():
    rows = torch.cat([HONEST, MINORITY, REVERSED])
    found = merge(rows)
    assert found.figures["stands against"].tolist() == [0, 0, 0, 0, 0, 0, 1]
    even = rows.double() * clip_lengths(rows.double().square().sum(1), 1.0)[:, None]
    centre = (
        find_centre(even[:5] @ even[:5].T) @ even[:5]
    )  # of those that go along with it, none longer than the median
    expected = (rows.double()[:6].sum(0) + centre) / 7
    torch.testing.assert_close(found.theta.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_minority_that_begins_against_the_others_is_no_attacker():
    """Inverted pictures begin at up to two thirds against the others' pictures; reversed updates at all of it."""
    tilted = torch.tensor([[-0.55, 0.8, 0.2], [-0.5, 0.85, 0.1]])
    found = merge(torch.cat([HONEST, tilted]))
    assert -0.66 < float(found.figures["direction"].min()) < -0.5
    assert found.figures["stands against"].tolist() == [0] * 7
    attacked = merge(torch.cat([HONEST, tilted, REVERSED.repeat(2, 1)]))
    assert attacked.figures["stands against"].tolist() == [0] * 7 + [1] * 2


@pytest.mark.parametrize("factor", [1.0, 3.0, 9.0, 1e6])
def test_three_that_collude_do_not_turn_the_model(factor):
    rows = torch.cat([HONEST, HONEST[:2] + 0.05, factor * REVERSED.repeat(3, 1)])
    found = merge(rows)
    assert found.figures["stands against"].tolist() == [0] * 7 + [1] * 3
    assert float(found.theta[0]) > 0.8


def test_the_order_of_clients_does_not_matter():
    rows = torch.cat([HONEST, MINORITY, REVERSED])
    order = [6, 2, 0, 5, 1, 4, 3]
    torch.testing.assert_close(merge(rows[order], clients=order).theta, merge(rows).theta, rtol=1e-5, atol=1e-7)


def test_one_odd_round_does_not_undo_good_ones():
    """The direction is a ratio of sums over rounds: of the client's cosines, and of the usual ones."""
    odd = torch.cat([HONEST, 0.9 * MINORITY + REVERSED])
    first = merge(torch.cat([HONEST, HONEST[:1]]))
    alone, second = merge(odd), merge(odd, server=first.server)
    assert alone.figures["stands against"].tolist()[-1] == 1
    assert second.figures["stands against"].tolist()[-1] == 0
    assert float(alone.figures["direction"][-1]) < -0.66 < float(second.figures["direction"][-1])


def test_only_the_first_rounds_are_judged():
    """Where a model has converged an honest minority pulls against the others: by then its judgement stands. So does that
    of a client that behaves at first, which is not found later; and one that was refused stays so."""
    server, method = None, "fedavg + robust(rounds=2)"
    for _ in range(2):
        server = merge(torch.cat([HONEST, MINORITY, REVERSED]), method, server).server
    turned = merge(torch.cat([HONEST, REVERSED, MINORITY]), method, server)
    assert turned.figures["stands against"].tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_who_was_judged_may_send_twice_as_much():
    """A minority's updates grow where the others' shrink; three times the median is for strangers."""
    server, method = None, "fedavg + robust(rounds=2)"
    rows = torch.cat([HONEST, 20 * MINORITY])
    for expected in (3, 3, 6, 6):
        found = merge(rows, method, server)
        server = found.server
        median = rows.norm(dim=1).median()
        assert float(found.figures["shortened to"][-1] * rows[-1].norm() / median) == pytest.approx(expected)


def test_long_updates_have_no_more_say_in_what_the_cohort_wants():
    """Three of ten, nine times as long, with two of a minority that partly go their way, are judged as of length one."""
    tilted = torch.tensor([[-0.4, 0.9, 0.1], [-0.35, 0.9, 0.2]])
    directions = [
        merge(torch.cat([HONEST, tilted, factor * REVERSED.repeat(3, 1)])).figures["direction"] for factor in (1.0, 9.0)
    ]
    torch.testing.assert_close(directions[0], directions[1], rtol=1e-2, atol=1e-2)
    assert directions[1].tolist()[-3:] < [-0.66] * 3


def test_three_clients_cannot_be_judged():
    rows = torch.cat([HONEST[:2], 9 * REVERSED])
    torch.testing.assert_close(merge(rows).theta, merge(rows, "fedavg").theta)


def test_it_comes_first_in_every_sum_and_later_parts_see_what_it_lets_through():
    assert parse("fedfe + robust").shape[0].name == "against_cohort"
    assert parse("fedfe + robust").shape == parse("robust + fedfe").shape
    rows = torch.cat([HONEST, MINORITY, 9 * REVERSED])
    lengths = merge(rows, "fedmgda_plus + robust").server.parts  # normalises the updates that were reported
    assert lengths is not None
    assert float(merge(rows, "fedmgda_plus + robust").theta[0]) > 0


def test_what_a_refused_client_reports_does_not_count():
    """q-FFL would give it all of the weight for its loss of 1e6; it counts with the middle one of the others' losses."""
    rows = torch.cat([HONEST, REVERSED])
    reports = {"samples": torch.ones(6), "loss": torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 1e6])}
    facts = {"clients": range(6), "num_clients": 6, "rounds": 3}
    method = parse("qffl(q=1, lr=0.1) + robust")
    found = aggregate(method, torch.zeros(3), rows, reports=reports, **facts)
    reports["loss"][5] = 3.0
    torch.testing.assert_close(found.theta, aggregate(method, torch.zeros(3), rows, reports=reports, **facts).theta)


def test_the_statistics_of_a_refused_client_do_not_count():
    """Buffers, such as the means and variances of batch normalisation, are those of the five honest clients."""
    method, buffers = parse("fedavg + robust"), {"mean": torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 1e6])[:, None]}
    replies = Replies(tuple(range(6)), {"samples": torch.ones(6)}, torch.cat([HONEST, REVERSED]), buffers=buffers)
    server = Server(torch.zeros(3), {"mean": torch.zeros(1)})
    after, _ = server_round(method, server, replies, Setting(num_clients=6, rounds=3))
    assert after.buffers["mean"].tolist() == [3.0]


def test_directions_are_judged_by_what_the_server_asked_for():
    """A client that was sent a negative weight for its loss trains backwards, because it was told to."""
    rows = torch.cat([HONEST, -HONEST[:1]])
    sent = PerClient({i: torch.tensor(w) for i, w in enumerate([1.0] * 5 + [-1.0])})
    found = merge(rows, server=Memory(1, {}, {"weight": sent}))
    assert found.figures["stands against"].tolist() == [0] * 6
    assert merge(rows).figures["stands against"].tolist() == [0] * 5 + [1]


@pytest.mark.parametrize(("name", "value"), [("length", 0.5), ("against", -0.1), ("rounds", 0)])
def test_bad_limits(name, value):
    with pytest.raises(EquipoiseError, match=name):
        parse(f"robust({name}={value})")


@pytest.mark.parametrize("method", ["fedavg", "fedfe"])
@pytest.mark.parametrize("seed", [3, 4])  # their minorities begin furthest against the others
def test_without_an_attacker_the_worst_client_loses_at_most_two_points(method, seed):
    worst = faults.attack_run(method, None, seed=seed).worst
    assert faults.attack_run(method, None, seed=seed, guard=GUARD_BESIDE_ROBUST, robust=True).worst > worst - 2


@pytest.mark.parametrize("method", ["fedavg", "fedheal"])
def test_three_of_ten_attackers_do_not_take_the_model(method):
    """Ten clients of handwritten digits, two with inverted pictures, three send their updates reversed, thrice as long."""
    attack = faults.Attack(-3.0)
    honest = faults.attack_run(method, None, seed=0, robust=False).mean
    assert faults.attack_run(method, attack, attackers=3, seed=0, robust=False).mean < 0.5 * honest
    assert faults.attack_run(method, attack, attackers=3, seed=0, robust=True).mean > 0.75 * honest
