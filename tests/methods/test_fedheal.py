import pytest
import torch
from scipy.optimize import minimize

from equipoise import aggregate, parse
from equipoise.engine.simulation import run
from equipoise.methods.fedheal import equalising_weights, votes_needed
from equipoise.rounds.client import client_round
from equipoise.rounds.server import begin_server, make_broadcast, server_round
from equipoise.task import Task
from equipoise.updates import count_type
from kit import NormNet, blobs

SAMPLES = {"samples": torch.tensor([1.0, 3.0])}


def rounds_of(method, updates, **given):
    theta, server, results = torch.zeros(updates[0].shape[1], dtype=torch.float64), None, []
    for D in updates:
        result = aggregate(parse(method), theta, D, clients=[0, 1], reports=SAMPLES, server=server, **given)
        theta, server = result.theta, result.server
        results.append(result)
    return results


def test_hand_checked_second_round():
    """Two clients, two entries. Client 0 turns its second entry round in round two; tau 0.6 masks it (1 of 2 votes)."""
    first = torch.tensor([[1.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    second = torch.tensor([[1.0, -1.0], [1.0, 2.0]], dtype=torch.float64)
    a, b = rounds_of("fedheal(tau=0.6, beta=0.4)", [first, second])
    # round 1: distances 2 and 5; p0 = (1/4, 3/4); dp = 0.4 * (2/7, 5/7)
    p = torch.tensor([0.25 + 0.4 * 2 / 7, 0.75 + 0.4 * 5 / 7], dtype=torch.float64)
    assert torch.allclose(a.weights, p / 1.4)
    # round 2: client 0's second entry is masked, so its distance is 1; dp carries momentum
    dp = 0.6 * 0.4 * torch.tensor([2 / 7, 5 / 7], dtype=torch.float64) + 0.4 * torch.tensor(
        [1 / 6, 5 / 6], dtype=torch.float64
    )
    q = p / 1.4 + dp
    assert torch.allclose(b.weights, q / q.sum())
    assert torch.allclose(b.direction, torch.tensor([1.0, 2.0], dtype=torch.float64))  # only client 1 keeps entry 2


def test_tau_zero_keeps_everything_and_is_fael_alone():
    updates = [torch.randn(2, 9, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in range(4)]
    for with_mask, without in zip(
        rounds_of("fedheal(tau=0)", updates), rounds_of("fedheal(fphl=False)", updates), strict=True
    ):
        assert torch.allclose(with_mask.theta, without.theta)


@pytest.mark.parametrize(("variant", "weights"), [("paper", [0.25, 0.75]), ("released", [0.5, 0.5])])
def test_beta_zero_gives_the_first_weights_for_ever(variant, weights):
    updates = [torch.randn(2, 9, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in range(4)]
    for result in rounds_of(f"fedheal(beta=0, variant='{variant}')", updates):
        assert torch.allclose(result.weights, torch.tensor(weights, dtype=torch.float64))


def test_beta_zero_without_masks_is_fedavg():
    updates = [torch.randn(2, 9, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in range(3)]
    for a, b in zip(rounds_of("fedheal(beta=0, tau=0)", updates), rounds_of("fedavg", updates), strict=True):
        assert torch.allclose(a.theta, b.theta)


def test_an_entry_that_nobody_keeps_does_not_move():
    up = torch.ones(2, 3, dtype=torch.float64)
    mixed = torch.tensor([[1.0, -1.0, 1.0], [1.0, -1.0, -1.0]], dtype=torch.float64)
    *_, last = rounds_of("fedheal(tau=0.9)", [up, up, up, mixed])
    assert last.direction[0] == 1  # both agree
    assert last.direction[1] == 0  # neither was consistent
    assert last.direction[2] == 1  # one passes: its value alone


def test_past_history_leaves_the_first_round_unmasked():
    updates = [torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)]
    (result,) = rounds_of("fedheal(tau=1, history='past', beta=0)", updates)
    assert torch.allclose(result.direction, result.weights @ updates[0])


def test_ties_at_the_threshold_follow_the_comparison():
    """Three of ten rounds up: c is exactly 0.3."""
    signs = [1.0, 1.0, -1, -1, -1, -1, -1, -1, -1, 1.0]
    updates = [torch.tensor([[s], [s]], dtype=torch.float64) for s in signs]
    *_, ge = rounds_of("fedheal(tau=0.3, compare='ge')", updates)
    *_, gt = rounds_of("fedheal(tau=0.3, compare='gt')", updates)
    assert ge.direction == 1
    assert gt.direction == 0


def test_counts_are_compact_and_grow_when_they_must():
    assert count_type(255) == torch.uint8
    assert count_type(256) == torch.int16
    assert count_type(40_000) == torch.int32
    updates = [torch.tensor([[1.0, -1.0], [1.0, -1.0]], dtype=torch.float64)] * 300
    *_, last = rounds_of("fedheal(tau=1.0)", updates)
    counts = last.server.parts["shape.consistency_mask"]["up"][0]
    assert counts.dtype == torch.int16
    assert counts.tolist() == [300, 0]
    assert torch.allclose(last.direction, torch.tensor([1.0, -1.0], dtype=torch.float64))


@pytest.mark.parametrize("seen", [1, 7, 10, 255, 300])
@pytest.mark.parametrize("tau", [0.0, 0.3, 0.4, 1.0])
def test_votes_are_counted_in_integers(seen, tau):
    for votes in range(seen + 1):
        share = votes / seen
        assert (votes >= votes_needed(tau, seen, "ge")) == (share >= tau - 1e-12)
        assert (votes >= votes_needed(tau, seen, "gt")) == (share > tau + 1e-12)


def test_each_client_has_its_own_history_under_partial_participation():
    method = parse("fedheal(tau=0.6, beta=0)")
    theta = torch.zeros(1, dtype=torch.float64)
    up, down = torch.ones(1, 1, dtype=torch.float64), -torch.ones(1, 1, dtype=torch.float64)
    one = aggregate(method, theta, up, clients=[0], reports={"samples": torch.ones(1)})
    two = aggregate(method, theta, down, clients=[1], reports={"samples": torch.ones(1)}, server=one.server)
    assert two.direction == -1  # client 1's first round: nothing to contradict
    three = aggregate(method, theta, down, clients=[0], reports={"samples": torch.ones(1)}, server=two.server)
    assert three.direction == 0  # client 0 went up before: 1 of 2 votes
    seen = three.server.parts["shape.consistency_mask"]["seen"]
    assert (int(seen[0]), int(seen[1])) == (2, 1)


@pytest.mark.parametrize(("variant", "masked"), [("paper", False), ("released", True)])
def test_buffers_are_averaged_or_masked(variant, masked):
    method = parse(f"fedheal(variant='{variant}', tau=0.9)")
    task = Task.build(method, blobs(), model=NormNet())
    server = begin_server(method, task)
    setting = task.setting(3, 0)
    for _ in range(3):
        before = server
        replies, _ = client_round(method, task, [0, 1, 2], make_broadcast(server, 3), {}, seed=0)
        server, result = server_round(method, server, replies, setting)
    name = "body.1.running_mean"
    average = (result.weights @ replies.buffers[name].flatten(1)).view_as(server.buffers[name])
    assert torch.allclose(server.buffers[name], average, atol=1e-6) != masked
    assert (server.buffers["body.1.running_var"] > 0).all()
    assert server.theta.shape == before.theta.shape


@pytest.mark.parametrize(("mask_buffers", "masked"), [(False, False), (True, True)])
def test_masking_buffers_is_a_choice_of_its_own(mask_buffers, masked):
    method = parse(f"fedheal(mask_buffers={mask_buffers}, tau=0.9)")
    assert method.shape[0].includes_buffers == masked
    assert parse("fedheal(zero_rises=False)").shape[0].zero_rises is False


def test_it_plugs_into_other_methods():
    result = run("eagle + fedheal", blobs())
    assert result.method.weigh.beta == 0.4
    assert len(result.method.terms) == 1


def variance_of_distances(inner, p):
    """Equation 10 at the weights p, from the inner products of the updates."""
    d = p @ inner @ p - 2 * inner @ p + inner.diagonal()
    return float(d.var(correction=0))


@pytest.mark.parametrize("seed", range(6))
def test_exact_weights_minimise_the_variance_of_distances(seed):
    """No weights among many, nor those of a general solver, give a smaller variance."""
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows *= torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)[:, None]
    inner = rows @ rows.T
    p = equalising_weights(inner)
    assert float(p.min()) >= 0
    assert float(p.sum()) == pytest.approx(1)
    found = variance_of_distances(inner, p)
    tried = torch.distributions.Dirichlet(torch.ones(4, dtype=torch.float64)).sample((2000,))
    assert found <= min(variance_of_distances(inner, one) for one in tried) + 1e-9
    solved = minimize(
        lambda q: variance_of_distances(inner, torch.from_numpy(q)),
        [0.25] * 4,
        bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found <= solved.fun + 1e-6 * (1 + solved.fun)


def test_the_records_tell_what_was_kept_and_how_far_clients_are_from_the_new_model():
    rows = torch.tensor([[1.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    turned = torch.tensor([[1.0, -1.0], [1.0, 2.0]], dtype=torch.float64)
    second = rounds_of("fedheal(tau=0.6)", [rows, turned])[1]
    assert second.figures["kept entries"].tolist() == [0.5, 1.0]
    # both keep entry 1, and only client 1 entry 2: the model moves by (1, 2)
    assert torch.allclose(second.figures["d"], torch.tensor([9.0, 0.0], dtype=torch.float64))
    assert float(second.figures["Var(d)"]) == pytest.approx(4.5**2)
