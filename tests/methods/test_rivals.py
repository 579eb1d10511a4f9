"""FedNova, the server's optimizers, FedDG-GA and AAggFF: numbers worked out by hand, limits, and what they leave alone."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import EquipoiseError, Training, aggregate, parse, run
from equipoise.engine.checks import Checks
from equipoise.engine.settings import Settings
from equipoise.method.registry import adapt_to_data
from equipoise.methods.aaggff import RESPONSES, minimise_on_simplex
from equipoise.methods.afl import onto_simplex
from equipoise.schedules import Rate
from kit import NormNet, blobs, played, quadratic_federation, quiet

UPDATES = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]], dtype=torch.float64)
SAMPLES = torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64)
LOSSES = torch.tensor([0.9, 0.3, 0.6], dtype=torch.float64)
SECOND = torch.tensor([[0.1, -0.2]] * 3, dtype=torch.float64)
FLAMBY = "beta1=0.9, start=0.0, tau=0.001"


def close(found, wanted, tolerance=1e-6):
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=tolerance
    )


def put_together(method, updates=UPDATES, server=None, theta=None, clients=(0, 1, 2), **reports):
    theta = torch.zeros(2, dtype=torch.float64) if theta is None else theta
    given = {"samples": SAMPLES, **{name: torch.as_tensor(value).double() for name, value in reports.items()}}
    facts = {"num_clients": 3, "rounds": 10, "layout": {"w": (2,)}}
    return aggregate(method, theta, updates, clients=clients, reports=given, server=server, **facts)


def kept_of(result, part, name):
    """What the server remembers of all clients, in the order of their ids."""
    rows = result.server.parts[part][name]
    return torch.stack([rows[client] for client in sorted(rows)])


def two_rounds(method):
    """The models after the common example's direction, and after (.1, -.2)."""
    first = put_together(method)
    return first.theta, put_together(method, SECOND, first.server, first.theta).theta


# --------------------------------------------------------------------------- optimizers of the server
@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        (f"fedadam(beta2=0.999, {FLAMBY})", (-0.028883, 0.030788), (-0.045549, 0.052916)),
        (f"fedyogi(beta2=0.999, {FLAMBY})", (-0.028883, 0.030788), (-0.045542, 0.052906)),
        (f"fedadagrad({FLAMBY})", (-0.000997, 0.000999), (-0.001570, 0.001717)),
        ("fedadam", (-0.009705, 0.009915), (-0.015314, 0.017070)),
        ("fedyogi", (-0.009704, 0.009915), (-0.015289, 0.017035)),
        ("fedadagrad", (-0.009970, 0.009991), (-0.007105, 0.008303)),
        ("fedavgm", (-1 / 3, 7 / 6), (-0.533333, 2.016667)),
        ("fedavgm(damped=True)", (-1 / 30, 7 / 60), (-0.0533333, 0.2016667)),
        # By hand: D + .9 b is 1.9 D in the first round, then (.1, -.2) + .9 (.1 - .3, -.2 + 1.05).
        ("fedavgm(nesterov=True)", (-0.633333, 2.216667), (-0.713333, 2.781667)),
        ("fedavgm(nesterov=True, damped=True)", (-0.0633333, 0.2216667), (-0.0713333, 0.2781667)),
    ],
)
def test_two_steps_by_hand(method, first, second):
    found = two_rounds(method)
    close(found[0], first)
    close(found[1], second)


def test_nesterov_is_that_of_torch():
    theta = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    theirs = torch.optim.SGD([theta], lr=0.3, momentum=0.8, nesterov=True)
    ours, server = torch.zeros(2, dtype=torch.float64), None
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        updates = torch.randn(3, 2, generator=draw, dtype=torch.float64)
        theta.grad = -put_together("fedavg", updates).direction
        theirs.step()
        found = put_together("fedavgm(lr=0.3, beta=0.8, nesterov=True)", updates, server, ours)
        ours, server = found.theta, found.server
    close(ours, theta.tolist(), 1e-12)


def test_the_limits_that_are_fedavg():
    plain = put_together("fedavg").theta
    assert torch.equal(put_together("fedavgm(beta=0)").theta, plain)
    for name in ("fedadam", "fedyogi"):
        close(put_together(f"{name}(beta1=0, lr=1e9, tau=1e9, start=0.0)").theta, plain.tolist(), 1e-6)
    close(put_together("fedadagrad(lr=1e9, tau=1e9, start=0.0)").theta, plain.tolist(), 1e-6)


def test_yogi_keeps_its_squares_where_they_are_those_of_the_direction():
    """sign(0) = 0: with b2 = 0 the first v is D^2, and an equal second direction leaves it."""
    method = "fedyogi(beta1=0, beta2=0, start=0.0)"
    first = put_together(method)
    second = put_together(method, server=first.server)
    assert torch.equal(second.server.parts["step.adaptive_step"]["v"], first.server.parts["step.adaptive_step"]["v"])


@pytest.mark.parametrize("method", ["fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_they_stream_and_keep_as_little_as_they_can(method):
    assert parse(method).streams
    assert parse(f"fedprox + {method}").streams
    kept = put_together(method).server.parts
    sizes = {key: sorted(state) for key, state in kept.items()}
    wanted = {"fedavgm": ["moment"], "fedadagrad": ["v"]}.get(method, ["m", "v"])
    assert list(sizes.values()) == [wanted]


@pytest.mark.parametrize("method", ["fedavgm", "fedadam", "fedyogi", "fedadagrad"])
@pytest.mark.parametrize("host", ["fedheal", "fedfv", "qffl", "feddyn", "afl"])
def test_they_take_the_final_direction_of_any_method(host, method):
    """Whatever the order of the sum, the optimizer comes after the steps that make the direction."""
    one, other = parse(f"{host} + {method}"), parse(f"{method} + {host}")
    assert one.step == other.step
    names = [step.name for step in one.step]
    assert names[-1] == "mean_of_rounds" or names[-1] in ("server_momentum", "adaptive_step")
    same = f"fedavgm(beta=0) + {host}"
    a, b = (quiet(text, blobs(), rounds=2) for text in (host, same))
    assert torch.equal(a.server.theta, b.server.theta)


def test_buffers_are_averaged_and_not_optimised():
    """FedHEAL as released sends running statistics through its rule: they are masked and weighed, but take no Adam step."""
    for host in ("fedavg", "fedheal(variant='released')"):
        options = {"model": NormNet, "rounds": 1}
        plain, adam = (quiet(text, blobs(), **options) for text in (host, f"{host} + fedadam"))
        for name, value in plain.server.buffers.items():
            assert torch.equal(adam.server.buffers[name], value), name
        assert not torch.allclose(adam.server.theta, plain.server.theta)
        moments = adam.server.memory.parts["step.adaptive_step"]
        assert moments["v"].shape == adam.server.theta.shape


def test_a_round_without_answers_leaves_the_moments_alone():
    data = blobs()

    def moments(result):
        return result.server.memory.parts["step.adaptive_step"]

    impossible = Checks(quorum=4, too_few="skip", patience=9)
    # With lr far too large all answers of round 2 are not finite, and the round is skipped.
    training = replace(data.protocol.training, schedule="constant(rounds=1) + constant(factor=1e30)")
    one = quiet("fedadam", data, rounds=1)
    two = quiet("fedadam", data, rounds=2, training=training, checks=impossible)
    assert two.rounds[1].clients == ()
    for name, value in moments(one).items():
        assert torch.equal(moments(two)[name], value), name
    assert torch.equal(one.server.theta, two.server.theta)


def test_a_schedule_of_the_server():
    data = blobs()
    text = "fedheal + fedavgm(beta=0, lr=0.5, schedule='warmup(rounds=2) + linear(end=0.5)')"
    result = quiet(text, data, rounds=4)
    rates = Rate(0.5, "warmup(rounds=2) + linear(end=0.5)").tabulate(4)
    assert [record.figures["server rate"] for record in result.rounds] == [(rate,) for rate in rates]
    assert "server rate" not in quiet("fedadam", data, rounds=1).rounds[0].figures
    first, plain = (quiet(t, data, rounds=1, runner="inline") for t in (text, "fedheal"))
    begin = quiet("fedheal + fedavgm(beta=0, lr=1e-30)", data, rounds=1).server.theta
    torch.testing.assert_close(first.server.theta - begin, (plain.server.theta - begin) / 4, rtol=1e-4, atol=1e-6)
    with pytest.raises(EquipoiseError, match="in round 3 of 4"):
        Settings.of("fedadam(schedule='linear(rounds=2)')", data, rounds=4)
    with pytest.raises(EquipoiseError, match="Did you mean `cosine`"):
        parse("fedadam(schedule='cosin')")
    with pytest.raises(EquipoiseError, match="needs `rounds`"):
        aggregate(
            "fedadam(schedule='cosine')",
            torch.zeros(2),
            UPDATES.float(),
            clients=(0, 1, 2),
            reports={"samples": SAMPLES},
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fedavgm(beta=1)", "`beta` must be at least 0 and below 1"),
        ("fedadam(tau=0)", "`tau` must be above 0"),
        ("fedyogi(lr=-1)", "`lr` must be above 0"),
        ("fedadagrad(start=-1)", "`start` must be at least 0, or None"),
        ("fedadam + fedyogi", "Two parts called `adaptive_step`"),
        ("feddg_ga(step=2)", "`step` must be between 0 and 1"),
        ("fednova(mu=-1)", "`mu` must be at least 0"),
        ("aaggff(response='gauss')", "must be one of"),
    ],
)
def test_parameters_that_make_no_sense(text, words):
    with pytest.raises(EquipoiseError) as error:
        parse(text)
    assert words in str(error.value)


def test_flambys_numbers_on_heart_disease():
    """As the benchmark's configuration has them."""
    (adam,) = adapt_to_data(parse("fedadam"), "heart").step
    (adagrad,) = adapt_to_data(parse("fedadagrad"), "heart").step
    assert (adam.rate.base, adam.beta1, adam.beta2, adam.tau, adam.first) == (0.01, 0.9, 0.999, 1e-8, 0.0)
    assert (adagrad.rate.base, adagrad.beta1, adagrad.tau, adagrad.first) == (0.316228, 0.9, 1e-8, 0.0)


# --------------------------------------------------------------------------- FedNova
def test_fednova_by_hand():
    plain = put_together("fednova", steps=[2, 4, 8], normaliser=[2, 4, 8])
    close(plain.weights, (0.472222, 0.472222, 0.354167))
    close(plain.direction, (0.118056, 1.298611))
    momentum = put_together("fednova", steps=[2, 4, 8], normaliser=[2.9, 9.049, 28.742049])
    close(momentum.direction, (0.716171, 1.627467))
    proximal = put_together("fednova(mu=1)", steps=[2, 4, 8], normaliser=[1.9, 3.439, 5.695328])
    close(proximal.direction, (-0.000408, 1.595994))


@pytest.mark.parametrize(
    ("text", "lr", "momentum", "wanted"),
    [("fednova", 0.1, 0.0, 4.0), ("fednova", 0.1, 0.9, 9.049), ("fednova(mu=1)", 0.1, 0.0, 3.439)],
)
def test_normalisers_of_four_steps(text, lr, momentum, wanted):
    training = Training(steps=4, batch=None, lr=lr, momentum=momentum)
    (one,) = played(parse(text), [[0, 1, 2]], training=training, federation=quadratic_federation())
    close(one.replies.reports["normaliser"], [wanted] * 3, 1e-5)


def test_a_normaliser_is_the_way_that_a_constant_gradient_carries():
    """The definition itself, step by step: momentum's and the proximal term's way for a gradient of one."""
    for momentum, pull, steps in itertools.product((0.0, 0.5, 0.9), (0.0, 0.05), (1, 3, 7)):
        if momentum and pull:
            continue
        x, velocity = 0.0, 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1 + pull * x  # lr = 1: the proximal gradient is mu (x - 0)
            x = x - velocity
        training = Training(steps=steps, batch=None, lr=0.1, momentum=momentum)
        (one,) = played(parse(f"fednova(mu={pull / 0.1})"), [[0]], training=training)
        assert float(one.replies.reports["normaliser"]) == pytest.approx(-x, rel=1e-5)


def test_fednova_must_know_the_proximal_term():
    with pytest.raises(EquipoiseError, match=r"write fednova\(mu=0\.5\)"):
        parse("fednova + fedprox(mu=0.5)")
    assert parse("fednova(mu=0.5) + fedprox(mu=0.5)").terms == parse("fednova(mu=0.5)").terms


def test_fednova_with_a_proximal_term_that_overshoots():
    with pytest.raises(EquipoiseError, match=r"`mu` must be below 1 / lr = 20"):
        run("fednova(mu=30.0)", blobs(), rounds=1, training=Training(lr=0.05))


def test_fednova_with_equal_steps_is_fedavg():
    data = blobs(sizes=(24, 24, 24, 24))
    same = [quiet(text, data, rounds=3).server.theta for text in ("fedavg", "fednova")]
    torch.testing.assert_close(*same, rtol=1e-5, atol=1e-6)
    unequal = [quiet(text, blobs(), rounds=3).server.theta for text in ("fedavg", "fednova")]
    assert not torch.allclose(*unequal, atol=1e-3)


def test_fednova_trains_with_sgd_and_says_so():
    data = blobs()
    training = data.protocol.training.change({"optimizer": "Adam"})
    settings = Settings.of("fednova", data, training=training)
    assert settings.training.optimizer == "SGD"
    assert any("trains with optimizer='SGD'" in note for note in settings.notes)
    assert Settings.of("fednova(mu=0.1)", data).training.momentum == 0.0
    assert Settings.of("fednova", data).training.momentum == 0.9


def test_fednova_averages_buffers_by_samples():
    options = {"model": NormNet, "rounds": 1}
    plain, nova = (quiet(text, blobs(), **options).server.buffers for text in ("fedavg", "fednova"))
    for name, value in plain.items():
        torch.testing.assert_close(nova[name], value)


# --------------------------------------------------------------------------- FedDG-GA
TRAINED, NEW = [0.2, 0.5, 0.4], [0.5, 0.6, 0.3]


def ga(method):
    first = put_together(method, loss_valid=[1.0, 1.0, 1.0], loss_valid_trained=TRAINED)
    close(first.weights, (1 / 3,) * 3)
    return put_together(method, server=first.server, loss_valid=NEW, loss_valid_trained=[0.3] * 3)


def test_feddg_ga_by_hand():
    close(ga("feddg_ga").weights, (0.4, 0.333333, 0.266667))
    # The released step of the first round is d (1 + 1/T) with T = 10: this d makes it 0.2.
    close(ga(f"feddg_ga(step={0.2 / 1.1}, variant='released')").weights, (0.375, 0.333333, 0.291667))
    assert sorted(ga("feddg_ga").figures) == ["loss_valid", "loss_valid_trained"]  # gaps follow from both


def test_feddg_ga_guards():
    same = put_together("feddg_ga", loss_valid=NEW, loss_valid_trained=TRAINED)
    shifted = [value + 0.25 for value in TRAINED]
    equal = put_together("feddg_ga", server=same.server, loss_valid=shifted, loss_valid_trained=TRAINED)
    close(equal.weights, (1 / 3,) * 3)  # equal gaps, but for rounding
    assert ga("feddg_ga(step=0)").weights.tolist() == pytest.approx([1 / 3] * 3)
    with pytest.raises(EquipoiseError, match=r"num_clients=3\. Found"):
        put_together("feddg_ga", clients=(0, 1, 7), loss_valid=NEW, loss_valid_trained=TRAINED)


def test_feddg_ga_uses_gaps_of_the_round_before_only():
    """Client 2 was absent in between: its loss is old, and its weight stays in proportion to nobody's gap."""
    first = put_together("feddg_ga", loss_valid=[1.0] * 3, loss_valid_trained=TRAINED)

    def play(clients, server, losses):
        rows = torch.tensor(clients)
        return aggregate(
            "feddg_ga", torch.zeros(2, dtype=torch.float64), UPDATES[rows], clients=clients, server=server, rounds=10,
            reports={"samples": SAMPLES[rows], "loss_valid": torch.tensor(losses), "loss_valid_trained": torch.tensor(losses)},
            num_clients=3,
        )  # fmt: skip

    second = play((0, 1), first.server, [0.5, 0.6])
    third = play((0, 1, 2), second.server, [0.5, 0.6, 9.0])
    a = kept_of(third, "weigh.generalisation_adjustment", "a")
    close(a.sum(), 1.0)
    assert a[0] > a[2] > a[1]


def test_feddg_ga_on_clients_with_equal_step_zero_is_uniform_fedavg():
    for text in ("feddg_ga(step=0)", "feddg_ga(step=0, variant='released')"):
        result = quiet(text, blobs(), rounds=3)
        assert result.rounds[-1].weights == pytest.approx([0.25] * 4)
        uniform = quiet("fedavg(weights='uniform')", blobs(), rounds=3)
        torch.testing.assert_close(result.server.theta, uniform.server.theta)


# --------------------------------------------------------------------------- AAggFF
def test_aaggff_silo_by_hand():
    found = put_together("aaggff", loss=LOSSES)
    close(3 * found.figures["response"], (0.776870, 0.393469, 0.632121))
    close(kept_of(found, "weigh.online_weights", "slopes"), (-0.215748, -0.109272, -0.175549))
    close(found.weights, (0.345543, 0.318953, 0.335504))
    close(put_together("aaggff(variant='released')", loss=LOSSES).weights, (0.338077, 0.327746, 0.334177))
    normal = put_together("aaggff(response='normal')", loss=LOSSES).figures["response"]
    close(3 * normal, (0.691462, 0.308538, 0.5))
    released = put_together("aaggff(response='normal', variant='released')", loss=LOSSES).figures["response"]
    close(3 * released, (0.808538, 1.191462, 1.0))


def device(variant):
    return aggregate(
        f"aaggff(setting='device', variant='{variant}')", torch.zeros(2, dtype=torch.float64), UPDATES[:2],
        clients=(0, 1), reports={"samples": SAMPLES[:2], "loss": LOSSES[:2]}, num_clients=4,
    )  # fmt: skip


def test_aaggff_device_by_hand():
    found = device("paper")
    close(found.figures["response"], (0.388435, 0.196735))
    close(kept_of(found, "weigh.online_weights", "p"), (0.262497, 0.237807, 0.249848, 0.249848))
    close(found.weights, (0.524675, 0.475325))
    released = device("released")
    close(kept_of(released, "weigh.online_weights", "p"), (0.252178, 0.232662, 0.257580, 0.257580))
    close(released.weights, (0.520126, 0.479874))


def test_the_second_newton_step_against_a_search():
    """The objective itself, summed over both rounds, minimised on a fine grid of the simplex."""
    first = put_together("aaggff", loss=LOSSES)
    second = put_together("aaggff", server=first.server, loss=[0.1, 0.8, 0.6])
    p0, p1 = torch.full((3,), 1 / 3).double(), kept_of(first, "weigh.online_weights", "p")
    r0 = (1 - torch.exp(-LOSSES / LOSSES.mean())) / 3
    later = torch.tensor([0.1, 0.8, 0.6]).double()
    r1 = (1 - torch.exp(-later / later.mean())) / 3
    slopes = [(-r / (1 + p @ r), p) for r, p in ((r0, p0), (r1, p1))]
    side = torch.linspace(0, 1, 801, dtype=torch.float64)
    a, b = torch.meshgrid(side, side, indexing="ij")
    points = torch.stack([a, b, 1 - a - b], -1).reshape(-1, 3)
    points = points[points[:, 2] >= 0]
    value = 2 * points.square().sum(1)  # alpha = 4
    for slope, at in slopes:
        value = value + points @ slope + 3 / 8 * ((points - at) @ slope).square()  # beta = K/4
    close(second.weights, points[value.argmin()].tolist(), 2e-3)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6))
def test_weights_on_the_simplex_against_a_projection(values):
    """With Q = c I the minimum is the projection of -q/c on the simplex."""
    linear = torch.tensor(values, dtype=torch.float64)
    found = minimise_on_simplex(4 * torch.eye(len(values), dtype=torch.float64), linear, 4.0)
    close(found, onto_simplex(-linear / 4).tolist(), 1e-6)


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("setting", ["silo", "device"])
def test_more_loss_never_means_less_weight(response, setting):
    loss = torch.tensor([0.0, 0.2, 0.7, 0.7, 3.0], dtype=torch.float64)
    server = None
    for _ in range(4):
        found = aggregate(
            f"aaggff(setting='{setting}', response='{response}')", torch.zeros(1).double(), torch.ones(5, 1).double(),
            clients=range(5), reports={"loss": loss, "samples": torch.ones(5).double()}, num_clients=5, server=server,
        )  # fmt: skip
        server = found.server
        assert found.weights.tolist() == pytest.approx(sorted(found.weights.tolist()), abs=1e-9)
        assert float(found.weights[2]) == pytest.approx(float(found.weights[3]), abs=1e-9)
    assert found.weights[-1] > found.weights[0]


@pytest.mark.parametrize("setting", ["silo", "device"])
def test_equal_losses_give_equal_weights(setting):
    for losses in ([0.4] * 3, [0.0] * 3):
        close(put_together(f"aaggff(setting='{setting}')", loss=losses).weights, (1 / 3,) * 3, 1e-9)


def test_one_client_alone():
    one = {"samples": SAMPLES[:1], "loss": LOSSES[:1]}
    for setting, total in itertools.product(("silo", "device"), (1, 3)):
        found = aggregate(
            f"aaggff(setting='{setting}')", torch.zeros(2).double(), UPDATES[:1], clients=(0,), reports=one,
            num_clients=total,
        )  # fmt: skip
        assert found.weights.tolist() == [1.0]
