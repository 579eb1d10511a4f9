"""Models: the papers' definitions to the last parameter, and any module of a user's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise import EquipoiseError, Outputs, build_model, run
from equipoise.models import Staged, adapt
from kit import blobs, pictures


def parameters(text, shape=(3, 32, 32), classes=10):
    return sum(p.numel() for p in build_model(text, shape, classes).parameters())


@pytest.mark.parametrize(
    ("text", "shape", "classes", "count"),
    [
        ("resnet10", (3, 32, 32), 10, 4_903_242),
        ("resnet12", (3, 32, 32), 10, 4_977_226),
        ("resnet10", (3, 128, 128), 7, 4_901_703),
        ("resnet12", (3, 128, 128), 7, 4_975_687),
        ("cnn", (1, 28, 28), 10, 1_663_370),  # as McMahan et al. state
        ("mlp", (3, 32, 32), 10, 656_810),
        ("linear", (1, 28, 28), 62, 48_670),
        ("cnn(padded=False)", (1, 28, 28), 10, 832 + 51_264 + 524_800 + 5_130),
        ("resnet10(norm='group')", (3, 32, 32), 10, 4_903_242),
    ],
)
def test_parameter_counts(text, shape, classes, count):
    assert parameters(text, shape, classes) == count


def reference_resnet(model, x):
    """The same network written out in functions, from the tensors of ours."""
    t = dict(model.named_parameters())

    def normed(x, name):
        statistics = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        scaled = (x - statistics[0].view(1, -1, 1, 1)) / (statistics[1].view(1, -1, 1, 1) + 1e-5).sqrt()
        return scaled * t[f"{name}.weight"].view(1, -1, 1, 1) + t[f"{name}.bias"].view(1, -1, 1, 1)

    x = F.relu(normed(F.conv2d(x, t["stages.0.0.0.weight"], padding=1), "stages.0.0.1"))
    for stage, stride in enumerate((1, 2, 2, 2)):
        block = f"stages.{stage}.{1 if stage == 0 else 0}"
        inner = F.relu(normed(F.conv2d(x, t[f"{block}.first.0.weight"], stride=stride, padding=1), f"{block}.first.1"))
        inner = normed(F.conv2d(inner, t[f"{block}.second.0.weight"], padding=1), f"{block}.second.1")
        if f"{block}.shortcut.0.weight" in t:
            x = normed(F.conv2d(x, t[f"{block}.shortcut.0.weight"], stride=stride), f"{block}.shortcut.1")
        x = F.relu(inner + x)
    return x.mean((2, 3)) @ t["head.weight"].T + t["head.bias"], x


def test_resnet_by_an_independent_computation():
    model = build_model("resnet10(width=8)", (3, 16, 16), 5).train()
    x = torch.randn(4, 3, 16, 16)
    out = model(x)
    logits, map = reference_resnet(model, x)
    torch.testing.assert_close(out.logits, logits, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(out.map, map, rtol=1e-3, atol=1e-4)
    assert [tuple(layer.shape[1:]) for layer in out.layers] == [(8, 16, 16), (16, 8, 8), (32, 4, 4), (64, 2, 2)]
    assert out.features.shape == (4, 64)
    assert isinstance(model, Staged)


def test_f2dc_on_a_residual_network_has_the_papers_size():
    from equipoise import Federation, parse
    from equipoise.task import Task

    x = torch.zeros(4, 3, 32, 32)
    federation = Federation.from_tensors({"a": (x, torch.arange(4) % 2)}, classes=10)
    task = Task.build(parse("f2dc"), federation, model="resnet10")
    assert task.layout.size == 5_875_372


def test_group_norm_does_not_mix_samples():
    x = torch.randn(4, 3, 8, 8)
    grouped = build_model("resnet10(width=8, norm='group')", (3, 8, 8), 5).train()
    torch.testing.assert_close(grouped(x).logits[:1], grouped(x[:1]).logits, rtol=1e-4, atol=1e-5)
    assert not list(grouped.buffers())
    with pytest.raises(EquipoiseError, match="a multiple of 8 with group norm"):
        build_model("resnet10(width=12, norm='group')", (3, 8, 8), 5)
    with pytest.raises(EquipoiseError, match="for images"):
        build_model("resnet12", (10,), 5)
    with pytest.raises(EquipoiseError, match="`width` must be at least 1"):
        build_model("resnet12(width=0)", (3, 8, 8), 5)


@pytest.mark.parametrize("model", ["resnet10(width=2)", "resnet12(width=8, norm='group')", "cnn(hidden=6)"])
def test_runners_agree_on_them(model):
    one, many = (run("fedavg", pictures(), model=model, rounds=1, runner=runner) for runner in ("inline", "vectorised"))
    torch.testing.assert_close(one.server.theta, many.server.theta, rtol=1e-3, atol=1e-4)


def test_double_softmax_is_a_softmax_before_the_loss():
    """The loss then lies between log(e + 9) - 1 = 1.4612 and log(e + 9) = 2.4612 for ten classes."""
    plain, double = (
        build_model(text, (20,), 10) for text in ("mlp(hidden=(8,))", "mlp(hidden=(8,), double_softmax=True)")
    )
    double.model.load_state_dict(plain.state_dict())
    x, y = 50 * torch.randn(200, 20), torch.arange(200) % 10
    torch.testing.assert_close(double(x).logits, plain(x).logits.softmax(1))
    losses = F.cross_entropy(double(x).logits, y, reduction="none")
    assert losses.min() >= 1.4611
    assert losses.max() <= 2.4613
    for text, shape in (("linear(double_softmax=True)", (20,)), ("cnn(double_softmax=True)", (1, 28, 28))):
        assert build_model(text, shape, 4)(torch.randn(3, *shape)).logits.sum(1).tolist() == pytest.approx([1, 1, 1])


def test_spare_outputs_belong_to_no_class():
    federation = pictures()
    result = run("fedavg", federation, model="cnn(hidden=6, spare=52)", rounds=1)
    assert result.task.initial_params["head.weight"].shape == (55, 6)
    with pytest.raises(EquipoiseError, match="`spare` must be at least 0"):
        build_model("cnn(spare=-1)", (1, 28, 28), 10)


def test_images_too_small():
    with pytest.raises(EquipoiseError, match="10x10 are too small for `cnn`"):
        build_model("cnn(padded=False)", (1, 10, 10), 10)


# --------------------------------------------------------------------------- a module of one's own
class Net(nn.Module):
    """Nothing to inherit but nn.Module; layers registered in another order than they are used."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4 * 36, 10)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(10, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.fc(self.drop(torch.relu(self.hidden(x))))


@pytest.mark.parametrize(
    "method", ["fedavg", "fedheal", "eagle(lstar_epochs=2)", "fedequilibria(fim_scale='l2')", "local_only"]
)
def test_a_module_that_returns_a_tensor_just_runs(method):
    result = run(method, pictures(), model=Net, rounds=1)
    assert set(result.values()) == {"c0", "c1", "c2", "c3"}


def test_its_features_are_what_its_head_sees():
    model = Net().eval()
    x = torch.randn(5, 1, 8, 8)
    out = adapt(model)(x)
    assert isinstance(out, Outputs)
    torch.testing.assert_close(out.logits, model(x))
    torch.testing.assert_close(model.fc(out.features), out.logits)
    named = adapt(model, features="norm")(x)
    assert named.map.shape == (5, 4, 6, 6)
    torch.testing.assert_close(named.features, named.map.mean((2, 3)))
    assert adapt(model, features="hidden")(x).features.shape == (5, 10)
    assert len(model.fc._forward_hooks) == 0  # nothing is left behind
    single = run("fedavg", blobs(), model=nn.Linear(6, 3), rounds=1)
    assert single.task.layout.names == ("model.weight", "model.bias")


def test_the_same_numbers_as_a_model_that_returns_outputs():
    class Ours(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))

        def forward(self, x):
            features = self.model[:2](x)
            return Outputs(self.model[2](features), features)

    theirs = run("fedavg", blobs(), model=lambda: nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)), rounds=2)
    assert torch.equal(theirs.server.theta, run("fedavg", blobs(), model=Ours, rounds=2).server.theta)


def test_modules_that_cannot_be_adapted_say_what_is_needed():
    with pytest.raises(EquipoiseError, match=r"`Net` has no layer `hiden`. Did you mean `hidden`"):
        adapt(Net(), features="hiden")

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(6, 3))
            self.unused = nn.Identity()

        def forward(self, x):
            return x @ self.w

    with pytest.raises(EquipoiseError, match=r"`Bare` has no linear layer before its logits. Name the layer"):
        run("fedavg", blobs(), model=Bare, rounds=1)
    with pytest.raises(EquipoiseError, match="Layer `unused` of `Bare` was not called"):
        adapt(Bare(), features="unused")(torch.zeros(2, 6))
    with pytest.raises(EquipoiseError, match="f2dc works on feature maps"):
        run("f2dc", pictures(), model=Net, rounds=1)
    with pytest.raises(EquipoiseError, match=r"Model `Linear` must return outputs \[batch, 3\]"):
        run("fedavg", blobs(), model=nn.Linear(6, 5), rounds=1)
