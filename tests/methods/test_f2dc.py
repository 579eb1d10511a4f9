import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise import EquipoiseError, Staged, aggregate, build_model, parse
from equipoise.engine.simulation import run
from equipoise.methods.f2dc import Decoupled, Decoupling, DecouplingLoss, RelaxedMask, convolutions
from equipoise.task import Task
from equipoise.types import Local, Received
from kit import NormNet, blobs, pictures


def decoupled(**options):
    torch.manual_seed(0)
    model = build_model("small_cnn(width=4)", (1, 8, 8), 3)
    return Decoupling(**options)(model, 3, torch.rand(2, 1, 8, 8))


def test_parameter_counts_of_the_released_modules():
    assert sum(p.numel() for p in convolutions(512, 50, 3).parameters()) == 483_500
    two = [m for m in convolutions(512, 50, 2) if isinstance(m, torch.nn.Conv2d)]
    assert [(m.in_channels, m.out_channels, m.bias) for m in two] == [(512, 50, None), (50, 512, None)]


def test_the_two_features_add_up_and_an_idle_corrector_changes_nothing():
    network = decoupled().eval()
    for p in network.correctors.parameters():
        torch.nn.init.zeros_(p)
    x = torch.rand(5, 1, 8, 8)
    plain = network.model(x)
    out = network(x)
    torch.testing.assert_close(out.extra["l+ 1"] + out.extra["l- 1"], plain.features, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.features, plain.features, rtol=1e-5, atol=1e-6)  # f~ = f
    torch.testing.assert_close(out.logits, plain.logits, rtol=1e-5, atol=1e-6)


def test_the_features_are_those_of_equations_4_and_6():
    network = decoupled().eval()
    seen = {}
    network.masks["1"].register_forward_hook(lambda module, inputs, output: seen.update(mask=output))
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    out = network(x)
    f, M = network.model(x).map, seen["mask"]
    torch.testing.assert_close(M, torch.sigmoid(network.decouplers["1"](f) / 0.1))
    plus, minus = M * f, (1 - M) * f
    star = minus + (1 - M) * network.correctors["1"](minus)
    for sign, feature in (("+", plus), ("-", minus), ("*", star)):
        torch.testing.assert_close(out.extra[f"l{sign} 1"], feature.flatten(1), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            out.extra[f"view f{sign}"], network.model.head(feature.flatten(1)), rtol=1e-5, atol=1e-5
        )
    torch.testing.assert_close(out.map, plus + star, rtol=1e-5, atol=1e-6)


def test_without_a_corrector_the_model_is_the_plain_one():
    network = decoupled(correct=False).eval()
    x = torch.rand(5, 1, 8, 8)
    torch.testing.assert_close(network(x).logits, network.model(x).logits, rtol=1e-5, atol=1e-5)


def test_masks_become_binary_as_sigma_goes_to_zero():
    scores = torch.randn(100, generator=torch.Generator().manual_seed(0))
    soft, hard = (RelaxedMask(sigma, "logistic", False).eval()(scores) for sigma in (1.0, 1e-4))
    assert ((hard < 1e-3) | (hard > 1 - 1e-3)).all()
    assert ((soft > 0.01) & (soft < 0.99)).all()
    assert torch.equal(hard > 0.5, scores > 0)


@pytest.mark.parametrize(
    ("kind", "variance"), [("logistic", torch.pi**2 / 3), ("double_logistic", 2 * torch.pi**2 / 3)]
)
def test_the_noise_has_the_law_of_the_paper(kind, variance):
    mask = RelaxedMask(1.0, kind, False).train()
    like = torch.zeros(200_000)
    for i, noise in enumerate(mask.noises):
        noise.draws = torch.rand(200_000, generator=torch.Generator().manual_seed(i))
    found = torch.logit(mask(like))
    assert float(found.var()) == pytest.approx(float(variance), rel=0.02)


def test_evaluation_is_deterministic_unless_asked_otherwise():
    federation = pictures()
    for text, same in (("f2dc", True), ("f2dc(variant='released')", False), ("f2dc(stochastic_eval=True)", False)):
        task = Task.build(parse(text), federation)
        x = federation.x[:6]
        params, buffers = task.initial_params, task.initial_buffers
        a = task.apply(params, buffers, x).logits
        quiet = task.forward(params, buffers, x)[0].logits  # no draws: noise of zero
        assert torch.allclose(a, quiet) == same
        assert torch.equal(a, task.apply(params, buffers, x).logits)  # and yet reproducible


def local_of(network, y):
    out = network(torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1)))
    return Local(out, torch.zeros(1), y, None, {}, Received({}, {}, {}, {}), {}, 0, 0, 1, 0.1, None)


def test_the_losses_are_those_of_equations_5_and_7():
    network = decoupled().eval()
    y = torch.tensor([0, 1, 2, 1])
    local = local_of(network, y)
    e = local.out.extra
    rivals = local.out.logits.detach().clone()
    rivals[torch.arange(4), y] = -1e9
    by_hand = (
        (e["l+ 1"] * e["l- 1"]).sum(1) / (e["l+ 1"].norm(dim=1) * e["l- 1"].norm(dim=1)) / 0.06
        + F.cross_entropy(e["aux+ 1"], y, reduction="none")
        + F.cross_entropy(e["aux- 1"], rivals.argmax(1), reduction="none")
    )
    separate, calibrate = parse("f2dc").terms
    torch.testing.assert_close(separate.loss(local), 0.8 * by_hand, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(calibrate.loss(local), F.cross_entropy(e["aux* 1"], y, reduction="none"))
    rivals = e["aux- 1"].detach().clone()
    rivals[torch.arange(4), y] = -1e9
    change = F.cross_entropy(e["aux- 1"], rivals.argmax(1), reduction="none") - F.cross_entropy(
        e["aux- 1"], torch.where(F.one_hot(y, 3) > 0, -1e9, local.out.logits).argmax(1), reduction="none"
    )
    assert change.abs().max() > 0
    torch.testing.assert_close(
        DecouplingLoss(0.06, 0.8, "minus").loss(local), 0.8 * (by_hand + change), rtol=1e-4, atol=1e-5
    )


def test_several_layers_average_their_losses():
    y = torch.tensor([0, 1, 2, 1])
    local = local_of(decoupled(layers=(0, 1)).eval(), y)
    separate = DecouplingLoss(0.06, 1.0)
    both = separate.loss(local)
    singles = []
    for j in ("0", "1"):
        kept = {name: value for name, value in local.out.extra.items() if name.endswith(f" {j}")}
        singles.append(separate.loss(local._replace(out=local.out._replace(extra=kept))))
    torch.testing.assert_close(both, (singles[0] + singles[1]) / 2)


def test_the_switches_of_table_6():
    assert parse("f2dc(dfd=False, dfc=False, daa=False)") == parse("fedavg")
    assert parse("f2dc(dfd=False, dfc=False)") == parse("daa")
    assert len(parse("f2dc(dfd=False)").terms) == 1
    assert parse("f2dc(dfc=False)").wrap[0].correct is False
    assert parse("f2dc(daa=False)") == parse("fedavg + f2dc_modules")
    for text in ("f2dc(dfd=False)", "f2dc(dfc=False)", "f2dc(daa=False)"):
        assert torch.isfinite(run(text, pictures(), rounds=1).server.theta).all()


def test_the_released_variant():
    method = parse("f2dc(variant='released')")
    assert dict(method.training) == {"optimizer": "SGD", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    assert method.weigh == parse("fedavg").weigh
    task = Task.build(method, pictures())
    assert (task.training.lr, task.training.momentum, task.training.batch) == (0.1, 0.0, 5)


def test_the_four_features_are_scored_apart():
    result = run("f2dc", pictures(), rounds=1)
    metrics = {score.metric for score in result.scores}
    assert {"accuracy", "accuracy of f+", "accuracy of f-", "accuracy of f*", "loss"} == metrics


@pytest.mark.parametrize("view", ["bypass", "mean_modules", "domain_modules"])
def test_private_modules(view):
    result = run(f"f2dc(share_modules=False, eval_view='{view}')", pictures(), rounds=2)
    shared = set(result.task.layout.names)
    assert all(name.startswith("model.") for name in shared)
    assert result.task.private
    states = [state["private parameters"] for state in result.states.values()]
    name = sorted(result.task.private)[0]
    assert not torch.equal(states[0][name], states[1][name])  # they stay with their clients
    values = list(result.values().values())
    assert len(values) == 4
    if view != "bypass":
        assert result.scored == ("averaged-personal" if view == "mean_modules" else "averaged-personal by domain")
        task, federation = result.task, result.federation
        for k, client in enumerate(federation.clients):
            among = (
                range(4)
                if view == "mean_modules"
                else [j for j in range(4) if federation.clients[j].domain == client.domain]
            )
            modules, statistics = (
                {
                    n: torch.stack([result.states[j][key][n].double() for j in among]).mean(0).float()
                    for n in result.states[0][key]
                }
                for key in ("private parameters", "own buffers")
            )
            params = {**task.layout.split(result.server.theta), **modules}
            exact = task.scores(params, {**result.server.buffers, **statistics}, client.test)["accuracy"].mean()
            assert values[k] == pytest.approx(float(exact))
    else:
        assert result.scored == "global"
        task = result.task
        plain = task.modules["eval"].model
        params = {n.removeprefix("model."): p for n, p in task.layout.split(result.server.theta).items()}
        index = result.federation.clients[0].test
        from torch.func import functional_call

        logits = functional_call(plain, params, (result.federation.x[index],)).logits
        accuracy = (logits.argmax(1) == result.federation.y[index]).float().mean()
        assert values[0] == pytest.approx(float(accuracy))


def test_domain_aware_weights_have_a_closed_form():
    n = torch.tensor([72.0, 732.0, 100.0, 600.0])
    result = aggregate(
        parse("daa"), torch.zeros(1), torch.ones(4, 1), clients=range(4), reports={"samples": n},
        num_classes=10, num_domains=4, total_samples=7520,
    )  # fmt: skip
    d = (10 / 2) ** 0.5 * (n / 7520 - 0.25).abs()
    p = torch.sigmoid(n / 7520 - 0.4 * d)
    torch.testing.assert_close(result.weights, p / p.sum())
    assert (result.weights.argsort() == n.argsort()).all()  # monotone while every share is below 1/Q


def test_published_range_of_digits_weights():
    """Twenty clients with 600, 72, 732 and 100 samples, five each: between 0.0480 and 0.0527."""
    n = torch.tensor([600.0, 72, 732, 100]).repeat_interleave(5)
    result = aggregate(
        parse("daa"), torch.zeros(1), torch.ones(20, 1), clients=range(20), reports={"samples": n},
        num_classes=10, num_domains=4, total_samples=int(n.sum()),
    )  # fmt: skip
    assert float(result.weights.min()) == pytest.approx(0.0480, abs=5e-4)
    assert float(result.weights.max()) == pytest.approx(0.0527, abs=5e-4)


def test_equal_clients_get_equal_weights():
    result = aggregate(
        parse("daa"), torch.zeros(1), torch.ones(3, 1), clients=range(3), reports={"samples": torch.full((3,), 50.0)},
        num_classes=10, num_domains=3, total_samples=150,
    )  # fmt: skip
    torch.testing.assert_close(result.weights, torch.full((3,), 1 / 3))


def test_class_counts_give_the_unapproximated_discrepancy():
    counts = torch.tensor([[10.0, 0, 5], [10.0, 20, 15]])
    result = aggregate(
        parse("daa(counts='class')"), torch.zeros(1), torch.ones(2, 1), clients=[0, 1],
        reports={"samples": counts.sum(1), "class_counts": counts}, num_domains=2, total_samples=60,
    )  # fmt: skip
    shares = counts / counts.sum(0)
    d = (0.5 * (shares - 0.5).square().sum(1)).sqrt()
    p = torch.sigmoid(counts.sum(1) / 60 - 0.4 * d)
    torch.testing.assert_close(result.weights, p / p.sum())


def test_it_needs_a_feature_map():
    with pytest.raises(EquipoiseError, match="feature maps, and the model `MLP` shows none"):
        run("f2dc", blobs(), model="linear", rounds=1)
    with pytest.raises(EquipoiseError, match="feature maps"):
        run("f2dc", blobs(), model=NormNet(), rounds=1)
    with pytest.raises(EquipoiseError, match="positions of the model's 2 stages"):
        run("f2dc(layers=(5,))", pictures(), rounds=1)


def test_a_perceptron_shows_maps_of_one_pixel_per_unit():
    """The same network written in stages by hand gives the same numbers."""

    data = blobs()

    def in_stages():
        layer = nn.Linear(data.x[0].numel(), 7)
        stage = nn.Sequential(nn.Flatten(), layer, nn.ReLU(), nn.Unflatten(1, (7, 1, 1)))
        return Staged([stage], nn.Linear(7, len(data.classes)), pooling="flatten")

    found, expected = (
        run("f2dc(hidden=4)", data, model=model, rounds=2, runner="inline").server.theta
        for model in ("mlp(hidden=(7,))", in_stages)
    )
    assert torch.equal(found, expected)


def test_modules_plug_into_another_method():
    method = parse("fedheal + f2dc_modules(lam1=0.5)")
    assert method.weigh == parse("fedheal").weigh
    result = run(method, pictures(), rounds=2)
    assert isinstance(result.task.modules["eval"], Decoupled)
    assert any(name.startswith("decouplers") for name in result.task.layout.names)
