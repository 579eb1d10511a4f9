"""What methods reveal of a site, and what is refused under a protection."""

import pytest
import torch

from equipoise import EquipoiseError, parse
from equipoise.engine.simulation import run
from equipoise.method import METHODS
from equipoise.method.privacy import find_obstacle, list_revealed, refuse_unprotected, write_table
from kit import blobs


@pytest.mark.parametrize("name", ["fedavg", "fedsgd", "fedprox", "moon", "propfair", "ditto", "fedbn", "local_only"])
def test_methods_of_a_plain_sum_work(name):
    assert find_obstacle(parse(name), "secure-aggregation") is None
    refuse_unprotected(parse(name), "differential-privacy")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fedheal", "edits single updates"),
        ("fedavg(weights='uniform') + fedfv", "edits single updates"),
        ("fdse", "merges single updates otherwise"),
        ("afl", "finds the weights at the server"),
        ("qffl", "finds the weights at the server"),
        ("eagle", "sites report `gap`, `optimum` each by itself"),
        ("fedproto", "sites report `prototypes`, `prototype_counts` each by itself"),
        ("scaffold", "sites report `control` each by itself"),
        ("centralised", "all data in one place"),
        ("fedprox + fedheal", "edits single updates"),
    ],
)
def test_other_methods_are_refused_with_the_reason(text, why):
    with pytest.raises(EquipoiseError, match=why) as error:
        refuse_unprotected(parse(text), "secure-aggregation")
    assert "Methods that do: " in str(error.value)
    assert "fedavg" in str(error.value)
    refuse_unprotected(parse(text), "none")


def test_an_unknown_protection_is_refused():
    with pytest.raises(EquipoiseError, match="Did you mean `secure-aggregation`"):
        refuse_unprotected(parse("fedavg"), "secure-agregation")


@pytest.mark.parametrize("name", [name for name in METHODS if find_obstacle(parse(name), "secure-aggregation") is None])
def test_a_sum_is_truly_all_that_these_methods_need(name):
    """With the updates replaced by any others of the same weighted sum, the model comes out the same."""
    from equipoise.rounds.client import client_round
    from equipoise.rounds.server import begin_server, make_broadcast, server_round
    from equipoise.task import Task

    method, data = parse(name), blobs()
    if any("feature map" in part.needs for part in method.parts) or "f2dc" in name:
        pytest.skip("works on images")
    task = Task.build(method, data)
    server = begin_server(method, task)
    setting = task.setting(3, 0)
    clients = range(len(data))
    states = client_round(method, task, clients, make_broadcast(server, 3), {}, 0, "start")[1]
    replies, _ = client_round(method, task, clients, make_broadcast(server, 3), states, 0)
    weights = method.weigh.raw(replies.reports).to(replies.updates.dtype)
    total = weights @ replies.updates
    from dataclasses import replace

    shown = replace(replies, updates=None, total=total)
    each, summed = (server_round(method, server, found, setting)[0].theta for found in (replies, shown))
    torch.testing.assert_close(each, summed, rtol=1e-5, atol=1e-6)


def test_what_is_revealed_follows_the_parts():
    assert list_revealed(parse("fedavg")) == ("only in a weighted sum", ("samples",), ())
    both = list_revealed(parse("eagle + fedheal"))
    assert both.update == "each"
    assert "gap" in both.reports
    assert list_revealed(parse("fedfe")).kept


def test_every_report_of_a_run_is_in_the_table():
    """Nothing travels that the table does not name."""
    from equipoise.rounds.client import client_round
    from equipoise.rounds.server import begin_server, make_broadcast
    from equipoise.task import Task

    for name in ("qffl", "fedproto", "scaffold", "fedequilibria"):
        method = parse(name)
        task = Task.build(method, blobs())
        broadcast = make_broadcast(begin_server(method, task), 1)
        states = client_round(method, task, [0, 1], broadcast, {}, 0, "start")[1]
        replies, _ = client_round(method, task, [0, 1], broadcast, states, 0)
        assert set(replies.reports) <= set(list_revealed(method).reports)
        line = next(line for line in write_table().splitlines() if line.startswith(f"| `{name}` |"))
        assert all(report in line for report in replies.reports)


def test_the_table_has_a_row_a_method():
    assert len(write_table().splitlines()) == 2 + len(METHODS)
    assert run("fedavg", "gaussians", rounds=1).values()  # the default needs no protection
