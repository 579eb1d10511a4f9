"""Selections and clients that are held out, over Flower: what a simulation gives, and what happens when sites fail."""

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from equipoise import EquipoiseError, Method, parse
from equipoise.flower import Plan, client_app, federate
from equipoise.parts.gaps import LossGap
from kit import blobs, quiet
from kit.flower import LoopGrid
from kit.own_parts import WidestGap


def grid_of(plan, data, fault=None):
    return LoopGrid(client_app(plan, data=data), {9 * k + 2: {"partition-id": k} for k in range(len(data))}, fault)


def on_flower(text, data, fault=None, **options):
    plan = Plan(method=text, sites=len(data), **options)
    return federate(grid_of(plan, data, fault), plan)


def same(flower, simulation):
    torch.testing.assert_close(flower.server.theta, simulation.server.theta, rtol=1e-5, atol=1e-5)
    for a, b in zip(flower.rounds, simulation.rounds, strict=True):
        assert (a.clients, a.selection.asked, a.selection.candidates) == (
            b.clients,
            b.selection.asked,
            b.selection.candidates,
        )
        assert (a.selection.others, set(a.selection.why)) == (b.selection.others, set(b.selection.why))
    for split in ("test", "unseen"):
        assert flower.values("loss", split) == pytest.approx(simulation.values("loss", split), abs=1e-4)


BY_GAP = Method(select=WidestGap(), reports=(LossGap(split="train", epochs=4),)) + parse("fedheal")


@pytest.mark.parametrize(
    "method",
    ["power_of_choice(candidates=3)", "power_of_choice(losses='remembered')", "select_worst", "select_in_turn", BY_GAP],
    ids=str,
)
def test_the_same_clients_are_asked(method):
    options = {"participation": 0.5, "rounds": 4}
    same(on_flower(method, blobs(), **options), quiet(method, blobs(), runner="inline", **options))


def test_candidates_get_a_message_of_their_own_and_train_only_if_chosen():
    plan = Plan(method="power_of_choice(candidates=3)", sites=4, rounds=2, participation=0.25)
    grid = grid_of(plan, blobs())
    federate(grid, plan)
    assert (grid.kinds.count("train.select"), grid.kinds.count("train")) == (6, 2)


def test_a_candidate_that_does_not_answer_is_left_out_and_named():
    """It is not scored 0, and nobody takes its place whose loss was not asked for."""

    def silent(asked, answer):
        return None if asked.metadata.message_type == "train.select" and asked.metadata.dst_node_id == 2 else answer

    result = on_flower("power_of_choice(candidates=4)", blobs(), silent, rounds=2, participation=0.5)
    for record in result.rounds:
        assert 0 not in record.clients
        assert [(one.client, one.why) for one in record.rejected] == [("c0", "it did not answer in time.")]
        assert 0 in record.selection.candidates


def test_a_round_without_any_candidate_does_not_count():
    def silent(asked, answer):
        return None if asked.metadata.message_type == "train.select" else answer

    with pytest.raises(EquipoiseError, match=r"3 times on end too few clients answered.*did not answer in time"):
        on_flower("power_of_choice(candidates=4)", blobs(), silent, rounds=2, participation=0.5)


@pytest.mark.parametrize(("text", "which"), [("fedavg", "c1"), ("fedheal", "2"), ("ditto", "d0"), ("afl", "c0,c3")])
def test_sites_that_are_held_out_are_scored_and_never_train(text, which):
    data, trained = blobs(), []

    def watch(asked, answer):
        if asked.metadata.message_type.startswith("train"):
            trained.append(asked.metadata.dst_node_id)
        return answer

    flower = on_flower(text, data, watch, rounds=2, hold_out=which)
    simulation = quiet(text, data, rounds=2, hold_out=which, runner="inline")
    same(flower, simulation)
    held = {c.name for c in data.hold_out(which).unseen}
    assert set(flower.values(split="unseen")) == held == set(simulation.values(split="unseen"))
    assert {data.clients[(node - 2) // 9].name for node in trained} == {c.name for c in data.clients} - held
    assert not held & set(flower.values())


def test_sites_cannot_be_held_out_where_no_global_model_exists():
    with pytest.raises(EquipoiseError, match="`local_only` has no global model, by which sites that are held out"):
        on_flower("local_only", blobs(), rounds=1, hold_out="c1")
    with pytest.raises(EquipoiseError, match="no client and no domain `x`"):
        on_flower("fedavg", blobs(), rounds=1, hold_out="x")
