import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from equipoise import EquipoiseError, Outputs, build_model, parse, run
from equipoise.models import Staged
from equipoise.parts import fisher
from equipoise.parts.fisher import RULES, _by_samples, squared_gradient_sums
from equipoise.rounds.client import client_round
from equipoise.rounds.server import begin_server, make_broadcast
from equipoise.task import Task
from kit import NormNet, blobs, pictures


class Shared(nn.Module):
    """A layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        features = self.twice(F.relu(self.twice(x)))
        return Outputs(self.head(features), features)


def conv_net():
    return Staged(
        [
            nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU()),
            nn.Sequential(nn.Conv2d(3, 4, 2, dilation=2), nn.GroupNorm(2, 4), nn.ReLU()),
        ],
        nn.Linear(4, 3),
    )


def wide_net():
    """Convolutions whose offsets are taken one by one, a few at a time, and all together; one with unequal sides."""
    return Staged(
        [
            nn.Sequential(nn.Conv2d(2, 24, (3, 2), stride=(2, 1), padding=(1, 0)), nn.BatchNorm2d(24), nn.ReLU()),
            nn.Sequential(nn.Conv2d(24, 70, 3, padding=1, bias=False), nn.ReLU()),
            nn.Sequential(nn.Conv2d(70, 5, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv2d(5, 4, 1, stride=2)),
        ],
        nn.Linear(4, 3),
    )


def grouped_net():
    return Staged([nn.Conv2d(2, 4, 3, groups=2), nn.ReLU()], nn.Linear(4, 3))


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Linear(5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        features = F.relu(self.each(x)).mean(1)
        return Outputs(self.head(features), features)


class Tricky(nn.Module):
    """Models for which inputs and outputs of layers do not tell the gradient."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        if kind == "tied":
            self.b.weight = self.a.weight
        self.activation = nn.ReLU(inplace=kind == "in place")
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        features = self.activation(self.a(x))
        if self.kind == "functional":
            features = F.relu(F.linear(features, self.b.weight, self.b.bias))
        elif self.kind == "beside":  # the layer is called, and its weight is used once more beside the call
            features = F.relu(self.b(features) + F.linear(features, self.b.weight))
        elif self.kind == "folded":
            features = self.b(features.reshape(-1, 2, 3).repeat(1, 1, 2).reshape(-1, 6)).reshape(len(x), 2, 6).mean(1)
        else:
            features = self.b(features)
        return Outputs(self.head(features), features)


CASES = {
    **{
        kind: (lambda kind=kind: Tricky(kind), (9, 6))
        for kind in ("in place", "tied", "functional", "beside", "folded")
    },
    "mlp": (lambda: build_model("mlp(hidden=(7,))", (6,), 3), (9, 6)),
    "norm": (NormNet, (9, 6)),
    "conv": (conv_net, (5, 2, 9, 9)),
    "wide": (wide_net, (5, 2, 9, 8)),
    "grouped": (grouped_net, (5, 2, 6, 6)),
    "shared": (Shared, (9, 6)),
    "sequences": (Sequences, (9, 7, 5)),
}


@pytest.fixture(params=CASES)
def case(request):
    build, shape = CASES[request.param]
    torch.manual_seed(0)
    model = build().double().eval()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    params = {n: p.detach() for n, p in model.named_parameters()}
    buffers = dict(model.named_buffers())
    x, y = torch.randn(*shape, dtype=torch.float64), torch.arange(shape[0]) % 3
    return model, params, buffers, x, y


def by_loop(model, params, x, y):
    """One backward pass a sample."""
    sums = {n: torch.zeros_like(p) for n, p in params.items()}
    for i in range(len(x)):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]).logits, y[i : i + 1]).backward()
        for n, p in model.named_parameters():
            sums[n] += p.grad.square()
    return sums


def test_every_rule_against_one_backward_pass_a_sample(case):
    model, params, buffers, x, y = case
    exact = by_loop(model, params, x, y)
    for name, value in squared_gradient_sums(model, params, buffers, x, y).items():
        assert value.shape == params[name].shape
        torch.testing.assert_close(value, exact[name], rtol=1e-9, atol=1e-12)
    for name, value in _by_samples(model, params, buffers, x, y).items():
        torch.testing.assert_close(value, exact[name], rtol=1e-9, atol=1e-12)


def test_against_finite_differences(case):
    model, params, buffers, x, y = case
    name = "head.weight"
    found = squared_gradient_sums(model, params, buffers, x, y)[name].flatten()
    for place in (0, 3, 7):
        step = torch.zeros_like(params[name]).flatten()
        step[place] = 1e-6
        losses = [
            F.cross_entropy(
                functional_call(
                    model, {**params, **buffers, name: params[name] + s * step.view_as(params[name])}, (x,)
                ).logits,
                y,
                reduction="none",
            )
            for s in (1, -1)
        ]
        slope = (losses[0] - losses[1]) / 2e-6
        assert float(found[place]) == pytest.approx(float(slope.square().sum()), rel=1e-5, abs=1e-12)


def test_batch_statistics_cannot_be_told_apart():
    with pytest.raises(EquipoiseError, match="BatchNorm without running statistics mixes them"):
        run("fedequilibria", blobs(), model=NormNet, buffers="drop", rounds=1)


def test_rules_cover_the_layers_of_our_models():
    assert {nn.Linear, nn.Conv2d, nn.BatchNorm2d} <= set(RULES)


@pytest.mark.parametrize(("federation", "model"), [(blobs(), None), (blobs(), NormNet()), (pictures(), None)])
def test_the_report_is_the_mean_over_samples_at_the_trained_model(federation, model):
    method = parse("fedequilibria")
    task = Task.build(method, federation, model=model)
    server = begin_server(method, task)
    replies, _ = client_round(method, task, [0, 2], make_broadcast(server, 1), {}, seed=0)
    trained = server.theta + replies.updates
    for i, client in enumerate((0, 2)):
        index = federation.clients[client].train
        network = task.modules["eval"]
        buffers = {n: v[i] for n, v in replies.buffers.items()}
        sums = _by_samples(network, task.layout.split(trained[i]), buffers, federation.x[index], federation.y[index])
        expected = task.layout.join(sums) / len(index)
        torch.testing.assert_close(replies.reports["fisher"][i], expected, rtol=1e-3, atol=1e-6)


def test_batches_and_subsets():
    federation = blobs()
    shapes = {}
    for text in ("fedequilibria", "fedequilibria(fim='batch', fim_batch=5)", "fedequilibria(fim_samples=4)"):
        method = parse(text)
        task = Task.build(method, federation)
        replies, _ = client_round(method, task, [0, 1], make_broadcast(begin_server(method, task), 1), {}, seed=0)
        shapes[text] = replies.reports["fisher"]
    sample, batch, subset = shapes.values()
    assert sample.shape == batch.shape == subset.shape
    assert batch.sum() < sample.sum()  # the mean of squares is at least the square of means
    assert not torch.allclose(subset, sample)


def test_one_sample_batches_are_the_per_sample_fisher():
    federation = blobs()
    found = []
    for text in ("fedequilibria", "fedequilibria(fim='batch', fim_batch=1)"):
        method = parse(text)
        task = Task.build(method, federation)
        replies, _ = client_round(method, task, [1], make_broadcast(begin_server(method, task), 1), {}, seed=0)
        found.append(replies.reports["fisher"])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-8)


def test_one_trial_of_the_rules_is_enough_if_it_tells_something():
    federation = blobs()
    task = Task.build(parse("fedequilibria"), federation)
    model, params, x, y = task.modules["eval"], task.initial_params, federation.x, federation.y
    squared_gradient_sums(model, params, {}, x[:1], y[:1])
    assert model not in fisher._TRIED  # a single sample does not show whether samples are kept apart
    squared_gradient_sums(model, params, {}, x[:4], y[:4])
    assert fisher._TRIED[model] is True


@pytest.mark.parametrize("entries", [1, 64, 1 << 20])
def test_the_rule_of_convolutions_against_one_sample_after_the_other(entries, monkeypatch):
    """In float64, by plain autograd of each sample's loss; however many samples are taken at once."""
    monkeypatch.setattr(fisher, "ENTRIES_AT_ONCE", entries)
    torch.manual_seed(0)
    model = wide_net().double().eval()
    model.stages[0][1].running_mean.normal_()
    model.stages[0][1].running_var.uniform_(0.5, 2)
    x, y = torch.randn(6, 2, 9, 8, dtype=torch.float64), torch.arange(6) % 3
    params = dict(model.named_parameters())
    expected = {name: torch.zeros_like(value) for name, value in params.items()}
    for i in range(6):
        loss = F.cross_entropy(model(x[i : i + 1]).logits, y[i : i + 1])
        for name, gradient in zip(params, torch.autograd.grad(loss, list(params.values())), strict=True):
            expected[name] += gradient.square()
    found = fisher._by_layers(model, {n: p.detach() for n, p in params.items()}, dict(model.named_buffers()), x, y)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("side", "kernel", "stride"), [(8, 3, 1), (9, 3, 1), (7, 3, 1), (8, 3, 2), (16, 5, 1), (8, 1, 1)]
)
def test_many_channels_are_met_where_they_lie(side, kernel, stride):
    """With over 32 channels and wide rows inputs are not copied; else they are. Both are the sums by definition."""
    draw = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(40, 6, kernel, stride, padding=kernel // 2).double()
    x = torch.randn(3, 40, side, side + 1, generator=draw, dtype=torch.float64)
    delta = torch.randn(layer(x).shape, generator=draw, dtype=torch.float64)
    own = {name: value.detach() for name, value in layer.named_parameters()}
    found = fisher._convolution(layer, own, x, delta)
    for name, parameter in layer.named_parameters():
        single = [torch.autograd.grad((layer(x[i : i + 1]) * delta[i]).sum(), parameter)[0] for i in range(3)]
        torch.testing.assert_close(found[name], torch.stack(single).square().sum(0))
