import dataclasses

import pytest
import torch
import torch.nn.functional as F

from equipoise import EquipoiseError, Training, load_federation, parse
from equipoise.engine.simulation import run
from equipoise.local import draw_batches
from equipoise.methods.eagle import gap_weights
from equipoise.parts.gaps import is_flat
from equipoise.rounds.client import client_round
from equipoise.rounds.server import begin_server, make_broadcast
from equipoise.task import Task
from kit import ROUNDS, blobs, rolled


def test_weights_sum_to_the_number_of_clients_before_any_norm():
    for seed in range(5):
        gap = torch.randn(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        weights = gap_weights(gap, lam=0.8)
        assert float(weights.sum()) == pytest.approx(7)
        assert float(weights.min()) < 0  # negative weights are kept, as in the paper


@pytest.mark.parametrize("lam", [0.1, 1.0, 5.0])
def test_weights_are_the_gradient_of_mean_loss_plus_two_lambda_variance(lam):
    """Each weight is K times the slope of `mean L + 2 lam Var(r)` in that client's loss, by finite differences."""
    losses = torch.tensor([0.3, 0.9, 0.5, 1.4], dtype=torch.float64)
    optimum = torch.tensor([0.1, 0.2, 0.45, 0.7], dtype=torch.float64)

    def objective(values):
        return values.mean() + 2 * lam * (values - optimum).var(unbiased=True)

    slopes = []
    for k in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[k] = 1e-5
        slopes.append((objective(losses + step) - objective(losses - step)) / 2e-5)
    assert torch.allclose(gap_weights(losses - optimum, lam), 4 * torch.stack(slopes), rtol=1e-7)


def test_norms():
    gap = torch.tensor([0.1, 0.5, -0.2], dtype=torch.float64)
    plain, unit, sqrt = (gap_weights(gap, 0.3, norm) for norm in ("none", "unit", "sqrtK"))
    assert float(unit.norm()) == pytest.approx(1)
    assert float(sqrt.norm()) == pytest.approx(3**0.5)
    assert torch.allclose(unit * 3**0.5, sqrt)
    assert torch.allclose(plain / plain.norm(), unit)


def test_a_floor_clips_and_renormalises():
    weights = gap_weights(torch.tensor([2.0, 0.0, 0.0, 0.0]), lam=1.0, floor=0.0)
    assert float(weights.min()) == 0
    assert float(weights.sum()) == pytest.approx(4)


def test_one_client_has_weight_one():
    assert gap_weights(torch.tensor([3.0]), 5.0, "unit").tolist() == [1.0]


def test_lambda_zero_is_uniform_fedavg_bit_for_bit():
    for runner in ("inline", "vectorised"):
        eagle = run("eagle(lam=0, lstar_epochs=3)", blobs(), runner=runner)
        fedavg = run("fedavg(weights='uniform')", blobs(), runner=runner)
        assert torch.equal(eagle.server.theta, fedavg.server.theta)


def test_the_papers_norm_is_ours_at_a_larger_rate():
    """`unit` at `eta * sqrt(K)` is `sqrtK` at `eta`, without weight decay."""
    options = {"epochs": 2, "batch": 8, "momentum": 0.0}
    unit = run(
        "eagle(lam=0.05, norm='unit', lstar_epochs=3)", blobs(), training=Training(lr=0.1 * 2, **options), rounds=4
    )
    ours = run("eagle(lam=0.05, lstar_epochs=3)", blobs(), training=Training(lr=0.1, **options), rounds=4)
    # the own optima differ, as the start-up phase trains with another rate: give both the same
    assert unit.task.training.lr == 2 * ours.task.training.lr
    gaps = {0: 0.2, 1: 0.5, 2: -0.1, 3: 0.3}
    thetas = []
    for text, lr in (("unit", 0.2), ("sqrtK", 0.1)):
        method = parse(f"eagle(lam=0.4, norm='{text}')")
        task = Task.build(method, blobs(), training=Training(lr=lr, **options))
        server = begin_server(method, task)
        share = method.share[0]
        weights = share.begin(4)["weight"].put(gaps, gap_weights(torch.tensor(list(gaps.values())), 0.4, text))
        broadcast = make_broadcast(server, 1)
        broadcast.shared["weight"] = weights
        states = {c: {"reports.loss_gap": {"optimum": torch.tensor(0.0), "curve": torch.zeros(1)}} for c in gaps}
        replies, _ = client_round(method, task, list(gaps), broadcast, states, seed=0)
        thetas.append(replies.updates)
    torch.testing.assert_close(*thetas, rtol=1e-4, atol=1e-6)


def test_the_loss_is_scaled_not_the_step():
    """With weight decay, twice the weight is not twice the update: only the gradient of the loss is scaled."""
    method = parse("eagle(lam=0.4)")
    task = Task.build(method, blobs(), training=Training(steps=1, batch=None, lr=0.1, weight_decay=0.5))
    server = begin_server(method, task)
    states = {c: {"reports.loss_gap": {"optimum": torch.tensor(0.0), "curve": torch.zeros(1)}} for c in range(2)}
    moved = []
    for weight in (1.0, 2.0, 0.0):
        broadcast = make_broadcast(server, 1)
        row = torch.tensor(weight, dtype=torch.float64)
        broadcast.shared["weight"] = broadcast.shared["weight"].put([0, 1], [row, row])
        moved.append(client_round(method, task, [0, 1], broadcast, states, seed=0)[0].updates)
    decay = -0.1 * 0.5 * server.theta
    torch.testing.assert_close(moved[2], decay.expand(2, -1))
    torch.testing.assert_close(moved[1] - decay, 2 * (moved[0] - decay), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("runner", ["inline", "vectorised"])
def test_start_up_finds_each_clients_own_optimum(runner):
    result = run("eagle(lstar_epochs=40)", blobs(), rounds=1, runner=runner)
    for client, state in result.states.items():
        curve = state["reports.loss_gap"]["curve"]
        known = curve[~curve.isnan()]
        assert 1 <= len(known) <= 40
        assert known[-1] < known[0]
        assert torch.isfinite(state["reports.loss_gap"]["optimum"]), client
    assert {len(c.validation) > 0 for c in result.federation.clients} == {True}


def plain_loop(client, epochs):
    """The start-up phase of one client, written out: one optimizer, the first model, the client's own batches."""
    federation = blobs()
    task = Task.build(parse("fedavg"), federation)
    params = {n: p.clone().requires_grad_() for n, p in task.initial_params.items()}
    optimizer = torch.optim.SGD(params.values(), lr=0.1, momentum=0.9)
    planned = draw_batches(task, [client], Training(epochs=epochs, batch=8, lr=0.1, momentum=0.9), 0, "alone", 0)
    train, held, per_epoch = [], [], int(planned.steps[0]) // epochs
    for step in range(int(planned.steps[0])):
        index = planned.positions[0, step]
        index = index[index >= 0]
        optimizer.zero_grad()
        F.cross_entropy(task.apply(params, {}, federation.x[index]).logits, federation.y[index]).backward()
        optimizer.step()
        if (step + 1) % per_epoch == 0:
            for curve, split in ((train, "train"), (held, "validation")):
                curve.append(task.scores(params, {}, getattr(federation.clients[client], split))["loss"].mean())
    return torch.stack(train), torch.stack(held)


@pytest.mark.parametrize("runner", ["inline", "vectorised"])
def test_the_own_optimum_is_that_of_a_plain_loop(runner):
    final = run("eagle(lstar_epochs=8)", blobs(), rounds=1, runner=runner)
    best = run("eagle(lstar_epochs=8, lstar='best_val')", blobs(), rounds=1, runner=runner)
    trained = run("eagle(lstar_epochs=8, gap_split='train')", blobs(), rounds=1, runner=runner)
    for client in range(4):
        train, held = plain_loop(client, 8)
        torch.testing.assert_close(final.states[client]["reports.loss_gap"]["curve"], train, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(final.states[client]["reports.loss_gap"]["optimum"], held[-1], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(best.states[client]["reports.loss_gap"]["optimum"], held.min(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(
            trained.states[client]["reports.loss_gap"]["optimum"], train[-1], rtol=1e-3, atol=1e-4
        )


def test_best_on_validation_with_gaps_on_training_data():
    """The training loss of the model that did best on validation data."""
    result = run("eagle(lstar_epochs=8, lstar='best_val', gap_split='train')", blobs(), rounds=1)
    for client in range(4):
        train, held = plain_loop(client, 8)
        torch.testing.assert_close(
            result.states[client]["reports.loss_gap"]["optimum"], train[held.argmin()], rtol=1e-3, atol=1e-4
        )
    assert parse("eagle(lstar='best_val', gap_split='train')").validates


def test_the_own_optimum_does_not_depend_on_when_a_client_joins():
    base = blobs()
    late = tuple(dataclasses.replace(c, joins=4 if k == 3 else 0) for k, c in enumerate(base.clients))
    early = run("eagle(lstar_epochs=6)", base, rounds=6)
    joined = run("eagle(lstar_epochs=6)", dataclasses.replace(base, clients=late), rounds=6)
    torch.testing.assert_close(
        early.states[3]["reports.loss_gap"]["optimum"], joined.states[3]["reports.loss_gap"]["optimum"]
    )


def test_a_floor_reaches_the_clients():
    result = run("eagle(lam=5.0, floor=0.0, lstar_epochs=3)", blobs(), rounds=2)
    weights = result.server.memory.shared["weight"]
    assert min(float(weights[c]) for c in range(4)) == 0


def test_a_flat_curve_ends_the_start_up():
    assert is_flat(torch.tensor([1.0] + [0.5] * 12))
    assert not is_flat(torch.linspace(1, 0, 20))
    assert not is_flat(torch.tensor([1.0, 1.0]))


def test_a_probe_measures_the_gap_of_the_current_model():
    """With lag 0 the weights of a round follow from that round's model; with lag 1 from the one before."""
    late = run("eagle(lam=0.2, lstar_epochs=5)", blobs(), rounds=1)
    early = run("eagle(lam=0.2, lag=0, lstar_epochs=5)", blobs(), rounds=1)
    plain = run("fedavg(weights='uniform')", blobs(), rounds=1)
    assert torch.equal(late.server.theta, plain.server.theta)  # no gap is known yet
    assert not torch.equal(early.server.theta, plain.server.theta)
    assert early.method.probes
    assert not late.method.probes
    assert not parse("eagle(lag=0, apply='server')").probes


def test_one_local_step_makes_client_and_server_weights_the_same():
    training = Training(steps=1, batch=None, lr=0.1)
    client = run("eagle(lam=0.3, lag=0, lstar_epochs=5)", blobs(), training=training, rounds=4)
    server = run("eagle(lam=0.3, lag=0, lstar_epochs=5, apply='server')", blobs(), training=training, rounds=4)
    torch.testing.assert_close(client.server.theta, server.server.theta, rtol=1e-4, atol=1e-6)


def test_without_validation_data_a_fifth_is_set_aside():
    federation = load_federation("scanners")
    assert parse("eagle").validates
    assert not parse("eagle(gap_split='train')").validates
    bare = blobs()
    bare = type(bare)(
        bare.name,
        bare.x,
        bare.y,
        tuple(type(c)(c.name, c.train, test=c.test) for c in bare.clients),
        bare.classes,
        bare.protocol,
    )
    split = bare.with_validation()
    for before, after in zip(bare.clients, split.clients, strict=True):
        assert len(after.validation) == max(1, round(0.2 * len(before.train)))
        assert sorted(torch.cat([after.train, after.validation]).tolist()) == sorted(before.train.tolist())
    result = run("eagle(lstar_epochs=3)", bare, rounds=1)
    assert result.federation.fingerprint == split.fingerprint
    assert federation.with_validation().fingerprint == federation.fingerprint


def test_the_synthetic_study_closes_the_gaps():
    """EAGLE's Figure 3: the three gaps draw together, more so with a larger lambda. Under FedAvg the easy client pays, and
    under q-FFL and AFL, which level losses instead of gaps, it pays most: its loss rises towards the hardest client's."""
    reference = run("eagle", "gaussians", rounds=1)
    optima = torch.stack([reference.states[k]["reports.loss_gap"]["optimum"] for k in range(3)])

    def gaps(text):
        result = run(text, "gaussians", rounds=300, eval_every=300)
        scored = result.server.theta if result.server.evaluated is None else result.server.evaluated
        params = result.task.layout.split(scored)
        clients = result.federation.clients
        return torch.stack([result.task.scores(params, {}, c.train)["loss"].mean() for c in clients]) - optima

    found = {text: gaps(text) for text in ("fedavg", "eagle", "eagle(lam=5)", "qffl(q=5)", "afl(gamma=0.1)")}
    for text in ("qffl(q=5)", "afl(gamma=0.1)"):
        levelled = found.pop(text)
        assert int(levelled.argmax()) == 0
        assert float(levelled[0]) > 3 * float(found["fedavg"][0])  # client 0 pays
        losses, plain = levelled + optima, found["fedavg"] + optima
        assert float(losses[2] - losses[0]) < 0.6 * float(plain[2] - plain[0])  # for losses that are more alike
        assert float(levelled.max() - levelled.min()) > 5 * float(found["fedavg"].max() - found["fedavg"].min())
    spreads = [float(g.max() - g.min()) for g in found.values()]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[1] < 0.6 * spreads[0]  # the paper's lambda of 2
    assert spreads[2] < 0.4 * spreads[0]
    assert int(found["fedavg"].argmax()) == 0  # the rotated, easy client stands farthest from its optimum
    assert float(found["eagle"][0]) < float(found["fedavg"][0])


def test_refusals():
    with pytest.raises(EquipoiseError, match="lam"):
        parse("eagle(lam=-1)")
    with pytest.raises(EquipoiseError, match="floor"):
        parse("eagle(floor=-0.5)")
    with pytest.raises(EquipoiseError, match="'sqrtK', 'unit', 'none'"):
        parse("eagle(norm='l1')")
    assert len(rolled(parse("eagle"))) == len(ROUNDS)


@pytest.mark.parametrize("norm", ["none", "sqrtK", "unit"])
def test_the_records_tell_weights_gaps_optima_and_the_objective(norm):
    """Weights and gaps of the third round, and F and its gradient, by autograd of the whole objective."""
    lam, rate = 0.1, 0.1
    training = Training(steps=1, batch=None, lr=rate, momentum=0.0)
    text = f"eagle(lam={lam}, norm='{norm}', gap_split='train', lstar_epochs=4)"
    before, after = (run(text, blobs(), rounds=n, training=training, runner="inline") for n in (2, 3))
    figures = after.rounds[-1].figures
    optima = [float(after.states[k]["reports.loss_gap"]["optimum"]) for k in range(4)]
    assert figures["optimum"] == pytest.approx(optima)
    theta = before.server.theta.clone().requires_grad_()
    task = before.task
    losses = []
    for client in task.federation.clients:
        logits = task.apply(task.layout.split(theta), {}, task.federation.x[client.train]).logits
        losses.append(F.cross_entropy(logits, task.federation.y[client.train]))
    losses = torch.stack(losses)
    gap = losses - torch.tensor(optima)
    assert figures["gap"] == pytest.approx(gap.detach().tolist(), abs=1e-5)
    assert figures["F"][0] == pytest.approx(float((losses.mean() + 2 * lam * gap.var()).detach()), rel=1e-5)
    earlier = torch.tensor(before.rounds[-1].figures["gap"], dtype=torch.float64)
    assert figures["w"] == pytest.approx(gap_weights(earlier, lam, norm).tolist(), rel=1e-4)
    plain = gap_weights(earlier, lam).float()  # the weights are one round old
    (slope,) = torch.autograd.grad((plain * losses).mean(), theta)
    assert figures["slope of F"][0] == pytest.approx(float(slope.norm()), rel=1e-3)


def test_a_probe_leaves_its_figures_in_the_records():
    result = run("eagle(lam=0.2, lag=0, norm='none', lstar_epochs=3)", blobs(), rounds=2)
    figures = result.rounds[-1].figures
    weights = gap_weights(torch.tensor(figures["gap"], dtype=torch.float64), 0.2)
    assert figures["w"] == pytest.approx(weights.tolist())


def test_a_client_may_bring_the_optimum_that_it_knows():
    known = blobs()
    clients = tuple(
        dataclasses.replace(client, optimum=0.25 if k == 1 else None) for k, client in enumerate(known.clients)
    )
    brought = run("eagle(lstar_epochs=3)", dataclasses.replace(known, clients=clients), rounds=1)
    alone = run("eagle(lstar_epochs=3)", known, rounds=1)
    found, usual = brought.rounds[0].figures["optimum"], alone.rounds[0].figures["optimum"]
    assert found == pytest.approx([0.25 if k == 1 else usual[k] for k in range(4)])
    assert brought.settings.facts["data"]["clients"][1]["optimum"] == 0.25
    assert brought.federation.fingerprint != alone.federation.fingerprint
