"""Tokens, recurrent layers and attention: in every runner, and over Flower."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import equipoise
from equipoise import EquipoiseError, Federation, Outputs, Training, load
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import prepare_simulation
from equipoise.local.stacking import find_obstacle
from equipoise.methods import parse
from equipoise.parts.fisher import squared_gradient_sums
from equipoise.runs import save
from equipoise.task import Task
from kit import blobs, pictures, quiet

WORDS, LENGTH = 12, 5


class Bag(nn.Module):
    """The mean of embedded tokens."""

    def __init__(self, mix=None):
        super().__init__()
        self.embedded = nn.Embedding(WORDS, 6)
        self.mix = mix
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.hidden(self.embedded(x)).mean(1))

    def hidden(self, h):
        return h


class Recurrent(Bag):
    def hidden(self, h):
        return self.mix(h)[0]


class Attending(Bag):
    def hidden(self, h):
        return self.mix(h, h, h)[0]


class Encoding(Bag):
    def hidden(self, h):
        return self.mix(h)


def gru():
    return Recurrent(nn.GRU(6, 6, batch_first=True))


def lstm():
    return Recurrent(nn.LSTM(6, 6, batch_first=True))


def attention():
    return Attending(nn.MultiheadAttention(6, 2, batch_first=True))


def encoder(dropout=0.0):
    return Encoding(nn.TransformerEncoderLayer(6, 2, 8, dropout=dropout, batch_first=True))


def sentences(sizes=(21, 9, 30), seed=0):
    """Clients of unequal size whose label says whether the first token is one of the later half."""
    draw = torch.Generator().manual_seed(seed)
    samples = {f"c{k}": torch.randint(0, WORDS, (n, LENGTH), generator=draw) for k, n in enumerate(sizes)}
    return Federation.from_tensors({name: (x, (x[:, 0] >= WORDS // 2).long()) for name, x in samples.items()})


TRAINING = Training(batch=8, lr=0.3)  # clients have batches of different size, which are padded


@pytest.mark.parametrize("model", [Bag, gru, lstm, attention, encoder])
def test_runners_agree(model):
    data = sentences()
    assert data.x.dtype == torch.int64
    found = [quiet("fedavg", data, model=model, rounds=2, training=TRAINING, runner=r) for r in ("auto", "inline")]
    torch.testing.assert_close(found[0].server.theta, found[1].server.theta, rtol=1e-4, atol=1e-5)
    assert found[0].runner == ("vectorised" if model in (Bag, attention) else "inline")


@pytest.mark.slow
@pytest.mark.parametrize("model", [Bag, gru, encoder])
def test_worker_processes_agree(model):
    options = {"model": model, "rounds": 2, "training": TRAINING}
    workers = quiet("fedavg", sentences(), runner="processes", **options)
    alone = quiet("fedavg", sentences(), runner="inline", **options)
    torch.testing.assert_close(workers.server.theta, alone.server.theta, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", [Bag, gru])
def test_flower_agrees(model):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")
    from equipoise.flower import Plan, client_app, federate
    from kit.flower import LoopGrid

    data = sentences()
    plan = Plan(method="fedavg", sites=len(data), rounds=2, model=model)
    nodes = {100 - 7 * k: {"partition-id": k} for k in range(len(data))}
    flower = federate(LoopGrid(client_app(plan, data=data), nodes), plan)
    simulation = quiet("fedavg", data, model=model, rounds=2, runner="inline")
    torch.testing.assert_close(flower.server.theta, simulation.server.theta, rtol=1e-5, atol=1e-5)
    assert flower.values() == pytest.approx(simulation.values())


@pytest.mark.parametrize(("model", "layer"), [(gru, "GRU"), (lstm, "LSTM"), (encoder, "MultiheadAttention")])
def test_a_layer_that_cannot_be_vectorised_is_named(model, layer):
    begun = prepare_simulation(Settings.of("fedavg", sentences(), model=model))
    assert begun.runner == "inline"
    assert begun.task.notes == (f"Clients are trained one by one: torch cannot vectorise the model's `{layer}`.",)
    with pytest.raises(
        EquipoiseError, match=f"`{layer}` cannot be vectorised .* Found runner='vectorised': use 'inline'"
    ):
        prepare_simulation(Settings.of("fedavg", sentences(), model=model, runner="vectorised"))
    alone = prepare_simulation(Settings.of("fedavg", sentences(), model=model, runner="inline"))
    assert alone.task.notes == ()  # the user chose it


class Branching(nn.Module):
    """A model that looks at the values of tensors, which vectorised code cannot."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x if x.sum() > 0 else -x)


def test_any_code_that_cannot_be_vectorised_falls_back():
    assert find_obstacle(Task.build(parse("fedavg"), blobs(), model=Branching)) == "Branching"
    assert quiet("fedavg", blobs(), model=Branching, rounds=1).runner == "inline"


@pytest.mark.parametrize("model", ["small_cnn", "resnet10(width=8)", "linear"])
def test_models_of_the_library_can_be_vectorised(model):
    assert find_obstacle(Task.build(parse("fedavg"), pictures(), model=model)) is None


def test_dropout_that_a_layer_draws_itself_is_named():
    with pytest.raises(EquipoiseError, match=r"the dropout inside `MultiheadAttention`\? Build it with dropout=0.0"):
        quiet("fedavg", sentences(), model=lambda: encoder(0.1), rounds=1)


def test_the_fisher_matrix_of_a_recurrent_model_by_single_samples():
    data = sentences()
    task = Task.build(parse("fedavg"), data, model=gru)
    x, y = data.x[:6], data.y[:6]
    expected = {name: torch.zeros_like(value) for name, value in task.initial_params.items()}
    for i in range(len(x)):
        params = {name: value.clone().requires_grad_() for name, value in task.initial_params.items()}
        out: Outputs = functional_call(task.modules["eval"], params, (x[i : i + 1],))
        F.cross_entropy(out.logits, y[i : i + 1]).backward()
        expected = {name: expected[name] + value.grad.square() for name, value in params.items()}
    found = squared_gradient_sums(task.modules["eval"], task.initial_params, {}, x, y)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


# --------------------------------------------------------------------------- whole numbers that are features
def counts(kind=torch.int64):
    """Features that are whole numbers, for models that multiply them."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(0, 5, (40, 6), generator=draw)
    return Federation.from_tensors({"a": (x[:20].to(kind), x[:20, 0] % 2), "b": (x[20:].to(kind), x[20:, 0] % 2)})


def test_models_that_multiply_get_floating_point_numbers():
    whole, real = (
        quiet("fedavg", counts(kind), model="mlp(hidden=(4,))", rounds=2) for kind in (torch.int64, torch.float32)
    )
    assert torch.equal(whole.server.theta, real.server.theta)


def test_a_model_that_takes_neither_says_what_it_was_given():
    with pytest.raises(EquipoiseError, match=r"Model `Linear` cannot take samples of whole numbers and shape \(6,\)"):
        quiet("fedavg", counts(), model=nn.Linear(7, 2), rounds=1)
    with pytest.raises(EquipoiseError, match="Model `Bag` cannot take samples of floating-point numbers"):
        quiet("fedavg", blobs(), model=Bag, rounds=1)


@pytest.mark.parametrize(
    ("data", "model"), [(sentences, Bag), (sentences, gru), (sentences, lstm), (sentences, encoder),
                        (counts, lambda: nn.Linear(6, 2))],
)  # fmt: skip
def test_a_stored_model_takes_the_same_samples(tmp_path, data, model):
    found = quiet("fedavg", data(), model=model, rounds=1)
    trained = load(save(found, tmp_path), model=model)
    test = data().clients[0].test
    right = torch.tensor([trained.classes.index(name) for name in trained.predict(data().x[test])]) == data().y[test]
    assert float(right.double().mean()) == pytest.approx(next(iter(found.values().values())))


def test_lazy_layers_are_refused():
    with pytest.raises(EquipoiseError, match=r"layers without a size, such as nn.LazyLinear.*shape \(6,\)"):
        equipoise.run("fedavg", blobs(), model=lambda: nn.Sequential(nn.LazyLinear(3)), rounds=1)
