"""Local training: batches, optimizers, batch statistics, noise."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from equipoise import EquipoiseError, Federation, Method, Outputs, Training, parse, run
from equipoise.local import draw_batches, for_each, loop
from equipoise.local.steps import _squared_length
from equipoise.models.small import MLP
from equipoise.parts.reports import LocalLoss, LocalSteps
from equipoise.parts.terms import Proximal
from equipoise.roles import Term
from equipoise.rounds.client import client_round
from equipoise.rounds.server import begin_server, make_broadcast, weighted_mean
from equipoise.task import Task
from equipoise.types import Broadcast
from kit import DropNet, NormNet, blobs, pictures

FEDAVG = parse("fedavg")


def task_of(federation=None, model=None, **training):
    return Task.build(FEDAVG, federation or blobs(), model=model, training=Training(**training) if training else None)


def updates(task, clients, seed=0, method=FEDAVG):
    replies, _ = client_round(method, task, clients, make_broadcast(begin_server(method, task), 1), {}, seed)
    return replies


def by_hand(task, client, seed=0):
    """The same training written as everybody writes it: a module, an optimizer, a loop."""
    network = task.modules["train"]
    params = {n: p.clone().requires_grad_() for n, p in task.initial_params.items()}
    buffers = {n: b.clone() for n, b in task.initial_buffers.items()}
    t = task.training
    options = {"momentum": t.momentum} if t.optimizer == "SGD" else {}
    optimizer = getattr(torch.optim, t.optimizer)(params.values(), lr=t.lr, weight_decay=t.weight_decay, **options)
    drawn = draw_batches(task, [client], t, seed, "batches", 0)
    for step in range(int(drawn.steps[0])):
        index = drawn.positions[0, step]
        index = index[index >= 0]
        logits = functional_call(network, {**params, **buffers}, (task.federation.x[index],)).logits
        loss = F.cross_entropy(logits, task.federation.y[index])
        optimizer.zero_grad()
        loss.backward()
        if t.clip:
            torch.nn.utils.clip_grad_norm_(params.values(), t.clip)
        optimizer.step()
    return {n: p.detach() for n, p in params.items()}, buffers


TRAININGS = {
    "sgd": {"epochs": 2, "batch": 8, "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2},
    "full batch": {"steps": 3, "batch": None, "lr": 0.1},
    "adam": {"epochs": 2, "batch": 5, "lr": 0.01, "optimizer": "adam"},
    "adamw": {"epochs": 1, "batch": 5, "lr": 0.01, "optimizer": "AdamW", "weight_decay": 0.1},
    "rmsprop": {"steps": 5, "batch": 4, "lr": 0.01, "optimizer": "RMSprop"},
    "clipped": {"epochs": 2, "batch": 8, "lr": 0.1, "clip": 0.5},
    "batch of one": {"epochs": 1, "batch": 1, "lr": 0.05},
}


@pytest.mark.parametrize("settings", TRAININGS.values(), ids=TRAININGS)
def test_one_client_trains_as_a_plain_loop_does(settings):
    task = task_of(**settings)
    for client in range(4):
        trained, _ = by_hand(task, client)
        expected = task.layout.join(trained) - begin_server(FEDAVG, task).theta
        torch.testing.assert_close(updates(task, [client]).updates[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", TRAININGS.values(), ids=TRAININGS)
def test_stacked_clients_train_as_each_alone(settings):
    """Clients of 23, 14, 9 and 31 samples: different numbers of steps, and smaller last batches."""
    task = task_of(**settings)
    together = updates(task, [0, 1, 2, 3])
    for client in range(4):
        alone = updates(task, [client])
        torch.testing.assert_close(together.updates[client], alone.updates[0], rtol=1e-4, atol=1e-6)
        for name, value in alone.reports.items():
            torch.testing.assert_close(together.reports[name][client], value[0], rtol=1e-4, atol=1e-6)


@dataclass(frozen=True)
class OnEverything(Term):
    """A loss of the outputs and of the weights themselves."""

    def base(self, losses, local):
        return losses * (1 + local.out.logits.tanh().mean(1))

    def loss(self, local):
        return local.out.features.sin().mean(1) + 0.1 * sum(value.square().sum() for value in local.params.values())


@dataclass(frozen=True)
class Pulled(Term):
    """`0.3 x - 0.2 theta + 1`, added to the gradient."""

    @property
    def pull(self):
        return 0.3

    def force(self, received, states):
        return {name: 1 - 0.2 * received.params[name] for name in received.layout.names}


@dataclass(frozen=True)
class Pushed(Term):
    """The same as a correction."""

    def correct(self, gradients, params, received, states):
        return {name: g + 0.3 * params[name] - 0.2 * received.params[name] + 1 for name, g in gradients.items()}


@dataclass(frozen=True)
class Signs(Term):
    """A correction that is no force."""

    def correct(self, gradients, params, received, states):
        return {name: gradient.sign() for name, gradient in gradients.items()}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("factored", [True, False])
def test_a_force_is_the_correction_that_it_stands_for(momentum, clip, factored, monkeypatch):
    if not factored:
        monkeypatch.setattr(MLP, "stacks", False)
    task = task_of(model="mlp(hidden=(7,))", epochs=2, batch=8, lr=0.1, momentum=momentum, weight_decay=0.01, clip=clip)
    by_force, by_correction = (
        updates(task, [0, 1, 2, 3], method=Method(terms=terms)).updates
        for terms in ((Pulled(), Proximal(0.1)), (Pushed(), Proximal(0.1)))
    )
    torch.testing.assert_close(by_force, by_correction, rtol=1e-4, atol=1e-6)


def test_a_correction_changes_every_gradient():
    """Steps by the gradient's sign: every weight moves by a whole number of learning rates, or not at all."""
    task = task_of(model="mlp(hidden=(7,))", epochs=1, batch=None, lr=0.125)
    moved = updates(task, [0, 1], method=Method(terms=(Signs(),))).updates
    assert set(moved.abs().round(decimals=5).unique().tolist()) <= {0.0, 0.125}
    assert (moved != 0).float().mean() > 0.5


@pytest.mark.parametrize("model", ["linear", "mlp(hidden=(7,))", "mlp(hidden=(5, 4, 3))"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("clients", [[0], [0, 1, 2, 3]])
@pytest.mark.parametrize("terms", [(), (OnEverything(),), (Pulled(),), (OnEverything(), Pulled())])
def test_gradients_in_factors_are_those_of_autograd(model, momentum, clients, terms, monkeypatch):
    settings = {"epochs": 2, "batch": 8, "lr": 0.1, "momentum": momentum, "weight_decay": 0.01}
    in_factors, by_autograd = task_of(model=model, **settings), task_of(model=model, **settings)
    assert in_factors.factored is not None
    monkeypatch.setitem(by_autograd.__dict__, "factored", None)
    fast, general = (updates(task, clients, method=Method(terms=terms)) for task in (in_factors, by_autograd))
    torch.testing.assert_close(fast.updates, general.updates, rtol=1e-4, atol=1e-6)


METHODS = ["moon", "fedproc", "fedproto", "fpl", "fedtgp", "fedsa", "fedlsa", "fedrcl(clip=0.5)", "fedprox", "feddyn(clip=0.5)",
           "scaffold", "ditto", "propfair", "eagle(lam=0.1)", "gifair"]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::equipoise.EquipoiseWarning")
def test_every_term_has_the_same_gradient_in_factors(method, monkeypatch):
    training = Training(epochs=1, batch=8, lr=0.05)
    settings = {"rounds": 3, "training": training, "model": "mlp(hidden=(7,))", "runner": "vectorised"}
    fast = run(method, blobs(), **settings)
    monkeypatch.setattr(MLP, "stacks", False)
    general = run(method, blobs(), **settings)
    torch.testing.assert_close(fast.server.theta, general.server.theta, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", ["mlp(hidden=(7,))", NormNet()], ids=["mlp", "batch norm"])
@pytest.mark.parametrize("runner", ["inline", "vectorised"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_frozen_features_are_the_same_whether_computed_once_or_in_every_step(model, runner, epochs, monkeypatch):
    settings = {"rounds": 3, "training": Training(epochs=epochs, batch=8, lr=0.05), "model": model, "runner": runner}
    asked = []
    once = loop.compute_frozen_features

    def counted(*args):
        asked.append(once(*args))
        return asked[-1]

    monkeypatch.setattr(loop, "compute_frozen_features", counted)
    ahead = run("moon", blobs(), **settings)
    assert all(set(found) == {"received", "previous"} for found in asked)
    monkeypatch.setattr(loop, "compute_frozen_features", lambda *args: {})
    step_by_step = run("moon", blobs(), **settings)
    # The two ways round differently, and local training enlarges that; swapped features change theta by 0.04.
    torch.testing.assert_close(ahead.server.theta, step_by_step.server.theta, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(ahead.server.theta, run("fedavg", blobs(), **settings).server.theta, rtol=1e-3)


def test_frozen_features_are_not_computed_ahead_for_samples_that_nobody_visits(monkeypatch):
    found = []
    ahead = loop.compute_frozen_features
    monkeypatch.setattr(loop, "compute_frozen_features", lambda *args: found.append(ahead(*args)) or found[-1])
    run("moon", blobs(), rounds=2, training=Training(steps=1, batch=2, lr=0.05), model="mlp(hidden=(7,))")
    assert found
    assert not any(found)


def test_a_full_batch_is_gathered_once(monkeypatch):
    gathered = []
    gather = loop.gather_samples
    monkeypatch.setattr(loop, "gather_samples", lambda *args: gathered.append(args) or gather(*args))
    updates(task_of(epochs=5, batch=None, lr=0.1), [0, 1, 2, 3])
    assert len(gathered) == 1
    gathered.clear()
    updates(task_of(epochs=5, batch=8, lr=0.1), [0])
    assert len(gathered) == 15


@pytest.mark.parametrize("batch", [8, 1, None])
def test_batch_statistics_see_no_padding(batch):
    task = task_of(model=NormNet(), epochs=2, batch=batch, lr=0.1)
    assert task.batch_statistics
    together = updates(task, [0, 1, 2, 3])
    for client in range(4):
        alone = updates(task, [client])
        torch.testing.assert_close(together.updates[client], alone.updates[0], rtol=1e-4, atol=1e-5)
        for name, value in alone.buffers.items():
            torch.testing.assert_close(together.buffers[name][client], value[0], rtol=1e-4, atol=1e-5)
    if batch == 8:
        trained, buffers = by_hand(task, 0)
        torch.testing.assert_close(together.buffers["body.1.running_var"][0], buffers["body.1.running_var"])
        torch.testing.assert_close(
            together.updates[0], task.layout.join(trained) - begin_server(FEDAVG, task).theta, rtol=1e-4, atol=1e-5
        )


def test_a_batch_of_one_uses_the_running_statistics():
    federation = blobs(sizes=(9, 5))
    task = task_of(federation, NormNet(), epochs=1, batch=8, lr=0.1)  # client 0: batches of 8 and 1
    replies = updates(task, [0])
    assert int(replies.buffers["body.1.num_batches_tracked"][0]) == 1  # the batch of one did not count
    assert torch.isfinite(replies.updates).all()


def test_clients_with_one_sample_and_with_one_class():
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    data = {"one": (x[:1], [1]), "class": (x[1:6], [2] * 5), "usual": (x[6:], [0, 1, 2, 0])}
    federation = Federation.from_tensors(data, test={"usual": (x, [0] * 10)}, classes=3)
    for model in (None, NormNet(4)):
        task = task_of(federation, model, epochs=2, batch=4, lr=0.1)
        replies = updates(task, [0, 1, 2])
        assert torch.isfinite(replies.updates).all()
        assert replies.reports["samples"].tolist() == [1, 5, 4]


def test_the_plan_covers_every_sample_once_an_epoch():
    task = task_of()
    drawn = draw_batches(task, [0, 2], Training(epochs=3, batch=8), 0, "batches", 0)
    assert drawn.steps.tolist() == [9, 6]
    assert drawn.sizes[0].tolist() == [8, 8, 7] * 3
    assert drawn.sizes[1].tolist() == [8, 1] * 3 + [0, 0, 0]
    for i, client in enumerate((0, 2)):
        used = drawn.positions[i][drawn.positions[i] >= 0]
        assert sorted(used.tolist()) == sorted(task.federation.clients[client].train.tolist() * 3)


def test_batches_depend_on_seed_round_and_client_alone():
    task = task_of()
    t = Training(epochs=1, batch=8)
    base = draw_batches(task, [0, 1], t, 0, "batches", 4).positions[1]
    width = draw_batches(task, [1], t, 0, "batches", 4).positions[0]
    assert (base[: len(width)] == width).all()
    for other in ((1, "batches", 4), (0, "batches", 5), (0, "else", 4)):
        assert (draw_batches(task, [1], t, *other).positions[0] != width).any()


def test_steps_count_instead_of_epochs():
    drawn = draw_batches(task_of(), [0, 2], Training(steps=4, batch=8), 0, "batches", 0)
    assert drawn.steps.tolist() == [4, 4]
    assert drawn.sizes[1].tolist() == [8, 1, 8, 1]


def test_dropout_takes_its_noise_from_the_seed():
    task = task_of(model=DropNet(), epochs=1, batch=8, lr=0.1)
    assert task.noise == {"body.2.noise.draws": (16,)}
    a, b = updates(task, [0, 1, 2]), updates(task, [0, 1, 2])
    assert torch.equal(a.updates, b.updates)
    torch.testing.assert_close(a.updates[1], updates(task, [1]).updates[0], rtol=1e-4, atol=1e-6)  # whatever the cohort
    assert not torch.allclose(a.updates, updates(task, [0, 1, 2], seed=1).updates)
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    updates(task, [0])
    assert torch.equal(before, torch.random.get_rng_state())  # the global generator is not touched


class ChannelDropNet(torch.nn.Module):
    def __init__(self, functional=False):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.drop = torch.nn.Dropout2d(0.5)
        self.head = torch.nn.Linear(4 * 36, 3)
        self.functional = functional

    def forward(self, x):
        features = self.drop(self.conv(x))
        if self.functional:
            features = F.dropout(features, 0.5, self.training)
        return Outputs(self.head(features.flatten(1)), features.flatten(1))


def test_dropout_of_channels_and_of_hidden_functions():
    task = task_of(pictures(), ChannelDropNet(), epochs=1, batch=5, lr=0.1)
    assert task.noise == {"drop.noise.draws": (4, 1, 1)}
    torch.testing.assert_close(updates(task, [0, 1]).updates[1], updates(task, [1]).updates[0], rtol=1e-4, atol=1e-6)
    layer = task.modules["train"].drop
    layer.noise.draws = torch.tensor([0.2, 0.7, 0.5, 0.4]).view(1, 4, 1, 1)
    out = layer(torch.ones(1, 4, 2, 2))
    assert out[0, :, 0, 0].tolist() == [0.0, 2.0, 2.0, 0.0]
    with pytest.raises(EquipoiseError, match="draws random numbers of its own"):
        task_of(pictures(), ChannelDropNet(functional=True))


def test_frozen_parameters_are_constants():
    model = NormNet()
    model.body[0].weight.requires_grad_(False)
    task = task_of(model=model, epochs=1, batch=8, lr=0.1)
    assert "body.0.weight" not in task.layout.names
    assert torch.isfinite(updates(task, [0, 1]).updates).all()
    frozen = task.modules["eval"].get_parameter("body.0.weight")
    assert torch.equal(frozen, model.body[0].weight)


@pytest.mark.parametrize(
    "text",
    [
        "fedavg",
        "fedavg(weights='uniform')",
        "daa(counts='class')",
        "fedfe",
        "fedheal",
        "local_only",
        "fedequilibria(t=0)",
    ],
)
@pytest.mark.parametrize("clients", [[0], [0, 1, 2]])
def test_nothing_is_left_on_another_device(text, clients, monkeypatch):
    """A device without values (`meta`) stands for an accelerator: tensors of two devices do not mix there either."""
    import equipoise.rounds.client as module

    monkeypatch.setattr(module, "_to_server", lambda tree: tree)
    method = parse(text)
    task = Task.build(method, blobs(), model=NormNet, device="meta")
    broadcast = Broadcast(
        torch.zeros(task.layout.size), {n: torch.zeros(b.shape) for n, b in task.initial_buffers.items()}, {}, 0, 1
    )
    replies, _ = client_round(method, task, clients, broadcast, {}, 0)
    assert replies.updates.device.type == "meta"


def test_the_loss_during_training_is_reported_per_sample():
    """The model hardly moves: the loss on the way is that of the received model, whatever the batches."""
    method = Method(reports=(LocalLoss(), LocalSteps()))
    task = task_of(epochs=2, batch=8, lr=1e-9)
    reports = client_round(method, task, [0, 1], make_broadcast(begin_server(method, task), 1), {}, 0)[0].reports
    for k in range(2):
        exact = task.scores(task.initial_params, {}, task.federation.clients[k].train)["loss"].mean()
        torch.testing.assert_close(reports["loss_local"][k], exact)
    assert reports["steps"].tolist() == [2 * 3, 2 * 2]


def test_for_each_calls_one_client_directly(monkeypatch):
    from equipoise.local import trees as module

    monkeypatch.setattr(module, "vmap", None)
    double = for_each(lambda tree, none: {"y": 2 * tree["x"]}, 1)
    assert double({"x": torch.ones(1, 3)}, None)["y"].shape == (1, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0}, "lr"),
        ({"epochs": 0}, "epochs"),
        ({"batch": 0}, "batch"),
        ({"momentum": 1.0}, "momentum"),
        ({"optimizer": "SDG"}, "Did you mean `SGD`"),
        ({"optimizer": "Adam", "momentum": 0.9}, "Adam has no momentum"),
        ({"clip": -1.0}, "clip"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(EquipoiseError, match=message):
        Training(**settings)


@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(3, 40, 30), (50, 4, 3)])
def test_the_length_of_a_gradient_in_factors(batch, inputs, outputs):
    """From the samples' inner products where they are few, from the gradient itself where it is small."""
    draw = torch.Generator().manual_seed(0)
    delta, x = torch.randn(2, batch, outputs, generator=draw), torch.randn(2, batch, inputs, generator=draw)
    exact = (delta.mT @ x).square().sum((1, 2)) + delta.sum(1).square().sum(1)
    torch.testing.assert_close(_squared_length(delta, x), exact, rtol=1e-5, atol=1e-5)


def test_frozen_features_that_would_fill_the_memory_are_computed_step_by_step(monkeypatch):
    from equipoise.local import frozen

    found = []
    real = frozen.compute_frozen_features
    monkeypatch.setattr(loop, "compute_frozen_features", lambda *args: found.append(real(*args)) or found[-1])
    settings = {"rounds": 2, "model": "mlp(hidden=(7,))"}
    ahead = run("moon", blobs(), **settings)
    assert found
    assert all(set(features) == {"received", "previous"} for features in found)
    found.clear()
    monkeypatch.setattr(frozen, "LIMIT", 1000)
    step_by_step = run("moon", blobs(), **settings)
    assert found
    assert not any(found)
    torch.testing.assert_close(ahead.server.theta, step_by_step.server.theta, rtol=1e-4, atol=1e-6)


def test_states_of_the_start_leave_the_device(monkeypatch):
    import equipoise.rounds.client as module

    method = parse("moon")
    task = Task.build(method, blobs())
    monkeypatch.setattr(module, "_to_server", lambda tree: ("sent", tree))
    _, states = client_round(method, task, [0, 1], make_broadcast(begin_server(method, task), 1), {}, 0, "start")
    assert states[0] == "sent"


def test_a_mean_is_taken_where_the_tensors_are():
    found = weighted_mean({"a": torch.ones(2, 3, device="meta")}, torch.tensor([0.5, 0.5]))
    assert found["a"].device.type == "meta"


def test_an_optimizer_that_wants_matrices_is_refused_before_training():
    with pytest.raises(EquipoiseError, match="Muon cannot train this model"):
        run("fedavg", blobs(), model=lambda: torch.nn.Linear(6, 3, bias=False), training=Training(optimizer="Muon"))
