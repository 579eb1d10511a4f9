"""What the methods that the papers compare with must do beyond their worked examples: limits, memory, hard cases."""

import dataclasses
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import EquipoiseError, Federation, Outputs, Training, aggregate, build_model, parse
from equipoise.engine.simulation import run
from equipoise.method import METHODS
from equipoise.methods.fdse import SplitLayer, divergence, split_layers
from equipoise.methods.fedlf import levelling
from equipoise.methods.fedproc import contrast as prototype_contrast
from equipoise.methods.fedrcl import relaxed_contrast
from equipoise.methods.fpl import cluster_contrast, cluster_means, finch
from equipoise.methods.moon import contrast as model_contrast
from equipoise.parts.anchors import distances, linear_head, margin_losses, mean_gap
from equipoise.task import Task
from equipoise.types import EquipoiseWarning
from kit import FACTS, ROUNDS, NormNet, blobs, in_double, local_of, pictures, played
from kit.rows import needs_groups

QUICK = {
    "eagle": "eagle(lstar_epochs=3)",
    "fedlsa": "fedlsa(width=8, server_epochs=3)",
    "fedtgp": "fedtgp(server_epochs=2)",
}


def theta_of(text, federation=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EquipoiseWarning)
        return run(text, federation or blobs(), **{"rounds": 3, **options}).server.theta


# --------------------------------------------------------------------------- limits in which a method is FedAvg
@pytest.mark.parametrize(
    ("method", "limit"),
    [
        ("fedprox(mu=0)", "fedavg"),
        ("moon(mu=0)", "fedavg"),
        ("fedproto(lam=0)", "fedavg"),
        ("fedtgp(lam=0, server_epochs=1)", "fedavg"),
        ("feddyn(variant='released')", "fedavg"),
        ("fedrcl(contrast=0, penalty=0, clip=None)", "fedavg(weights='uniform')"),
        ("term(t=0)", "fedavg"),
        ("gifair(strength=0)", "fedavg"),
        ("afl(gamma=0)", "fedavg(weights='uniform')"),
        ("qffl(q=0)", "fedavg(weights='uniform')"),
        ("qffl(q=0, solver='fedsgd')", "fedsgd(weights='uniform')"),
        ("fedbn", "fedavg"),  # the model has no batch normalisation
        ("ditto", "fedavg"),  # its global model
    ],
)
def test_limits(method, limit):
    federation = in_double(blobs())
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(theta_of(method, federation), theta_of(limit, federation), rtol=1e-9, atol=1e-9)
    finally:
        torch.set_default_dtype(torch.float32)


def test_without_conflicts_fedfv_is_fedavg_with_equal_weights():
    D = torch.rand(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # all products positive
    result = aggregate(
        parse("fedfv"), torch.zeros(9, dtype=torch.float64), D, clients=range(4), reports={"loss": torch.rand(4)}
    )
    torch.testing.assert_close(result.theta, D.mean(0))


def test_opposite_updates_leave_fedfv_the_plain_mean():
    D = torch.tensor([[1.0, 0.0], [-2.0, 0.0]])
    method = parse("fedfv(alpha=0, tau=0)")
    result = aggregate(method, torch.zeros(2), D, clients=[0, 1], reports={"loss": torch.ones(2)})
    assert torch.equal(result.theta, D.mean(0))


def test_fedmgda_plus_between_normalised_fedavg_and_mgda():
    r = ROUNDS[0]
    base = {"clients": r.clients, "reports": r.reports}
    start = torch.zeros(37, dtype=torch.float64)
    units = r.updates / r.updates.norm(dim=1, keepdim=True)
    usual = r.reports["samples"] / r.reports["samples"].sum()
    none = aggregate(parse("fedmgda_plus(eps=0)"), start, r.updates, **base)
    torch.testing.assert_close(none.theta, usual @ units)
    every = aggregate(parse("fedmgda_plus(eps=1)"), start, r.updates, **base)
    assert (units @ every.direction >= -1e-9).all()  # a common descent direction
    same_length = aggregate(parse("fedmgda_plus(eps=0, step='mean_length')"), start, r.updates, **base)
    torch.testing.assert_close(same_length.theta, none.theta * r.updates.norm(dim=1).mean())


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_fedlf_hurts_nobody_in_any_tensor(seed):
    draw = torch.Generator().manual_seed(seed)
    D = torch.randn(3, 24, generator=draw, dtype=torch.float64)
    layout = {"a": (10,), "b": (8,), "c": (6,)}
    reports = {"loss": 0.1 + torch.rand(3, generator=draw, dtype=torch.float64)}
    result = aggregate(
        parse("fedlf"), torch.zeros(24, dtype=torch.float64), D, clients=[0, 1, 2], reports=reports, layout=layout
    )
    for columns in (slice(0, 10), slice(10, 18), slice(18, 24)):
        assert (D[:, columns] @ result.direction[columns] >= -1e-9).all()
    levelled = levelling(reports["loss"]) @ D
    assert float(levelled @ result.direction) >= -1e-9  # nor does it make the losses less even
    assert float(result.direction.norm()) == pytest.approx(float(D.mean(0).norm()))


def test_equal_losses_have_no_levelling_direction():
    D = ROUNDS[0].updates
    reports = {"loss": torch.full((4,), 0.7, dtype=torch.float64)}
    for variant in ("paper", "released"):
        found = aggregate(
            parse(f"fedlf(variant='{variant}')"), torch.zeros(37, dtype=torch.float64), D, clients=range(4),
            reports=reports, **FACTS,
        )  # fmt: skip
        assert torch.isfinite(found.theta).all()
        assert found.theta.any()


def test_a_large_M_makes_propfair_fedavg_at_a_smaller_rate():
    base = Training(epochs=1, batch=8, lr=0.1)
    fedavg = run("fedavg", in_double(blobs()), model=_double_mlp, training=base, rounds=2)
    M = 1e7
    fair = run(
        "propfair(M=1e7)",
        in_double(blobs()),
        model=_double_mlp,
        training=dataclasses.replace(base, lr=0.1 * M),
        rounds=2,
    )
    torch.testing.assert_close(fair.server.theta, fedavg.server.theta, rtol=1e-5, atol=1e-6)


def _double_mlp():
    return build_model("mlp(hidden=(7,))", (6,), 3).double()


def test_proxima_pull_the_client_back():
    lengths = [
        float(played(parse(f"fedprox(mu={mu})"), [[0, 1, 2]])[0].replies.updates.norm()) for mu in (0.0, 1.0, 5.0)
    ]
    assert lengths == sorted(lengths, reverse=True)


# --------------------------------------------------------------------------- memory and partial participation
def test_the_mean_control_is_that_of_all_clients_also_absent_ones():
    found = played(parse("scaffold"), [[0, 1], [2], [0, 2], [1]])
    for one in found:
        own = [state["terms.control_variates"]["control"] for state in one.states.values()]
        torch.testing.assert_close(one.server.memory.shared["control"], torch.stack(own).sum(0) / 3)


def test_scaffold_trains_with_sgd_whatever_the_run_says():
    training = Training(epochs=1, batch=8, lr=0.01, optimizer="Adam", weight_decay=0.1)
    task = Task.build(parse("scaffold"), blobs(), training=training)
    assert (task.training.optimizer, task.training.weight_decay) == ("SGD", 0.1)
    momentum = Training(momentum=0.9)
    assert Task.build(parse("scaffold"), blobs(), training=momentum).training.momentum == 0.9
    assert Task.build(parse("scaffold(momentum=False)"), blobs(), training=momentum).training.momentum == 0


def test_afl_keeps_the_weights_of_absent_clients_on_the_simplex():
    memory = None
    for r in ROUNDS:
        result = aggregate(
            parse("afl(gamma=0.2)"), torch.zeros(37, dtype=torch.float64), r.updates, clients=r.clients, reports=r.reports,
            server=memory, **FACTS,
        )  # fmt: skip
        memory = result.server
        kept = memory.parts["weigh.simplex_ascent"]["lambda"]
        unseen = 6 - len(kept)
        assert float(sum(kept.values()) + unseen * kept.default) == pytest.approx(1)


def test_moons_previous_model_is_the_clients_own():
    found = played(parse("moon"), [[0, 1], [1]], federation=blobs(), model=NormNet())
    first, second = found[0].states, found[1].states
    assert torch.equal(
        first[0]["terms.model_contrast"]["parameter head.bias"],
        second[0]["terms.model_contrast"]["parameter head.bias"],
    )
    assert not torch.equal(
        first[1]["terms.model_contrast"]["parameter head.bias"],
        second[1]["terms.model_contrast"]["parameter head.bias"],
    )
    moved = found[1].replies.updates[0] + found[0].server.theta
    assert torch.allclose(moved[-3:], second[1]["terms.model_contrast"]["parameter head.bias"])


def test_prototypes_of_absent_clients_are_remembered():
    def reports(value, owned):
        return {
            "samples": torch.ones(1),
            "prototypes": torch.full((1, 2, 3), value),
            "prototype_counts": torch.tensor([owned]),
        }

    start, still = torch.zeros(2), torch.zeros(1, 2)
    first = aggregate(parse("fedproto"), start, still, clients=[0], reports=reports(1.0, [4.0, 0.0]))
    assert first.broadcast["prototype_known"].tolist() == [1, 0]
    second = aggregate(
        parse("fedproto"), start, still, clients=[1], reports=reports(3.0, [1.0, 2.0]), server=first.server
    )
    assert second.broadcast["prototype_known"].tolist() == [1, 1]
    assert second.broadcast["prototypes"][:, 0].tolist() == [2.0, 3.0]
    by_count = aggregate(
        parse("fedproto(average='counts')"), start, still, clients=[1], reports=reports(3.0, [1.0, 2.0]),
        server=aggregate(
            parse("fedproto(average='counts')"), start, still, clients=[0], reports=reports(1.0, [4.0, 0.0])
        ).server,
    )  # fmt: skip
    assert by_count.broadcast["prototypes"][0, 0] == pytest.approx((4 * 1 + 1 * 3) / 5)


def test_server_models_go_on_from_round_to_round():
    for method in ("fedtgp(server_epochs=3, server_lr=0.1)", "fedlsa(server_epochs=3)", "fedsa"):
        r = ROUNDS[0]
        once = aggregate(
            parse(method), torch.ones(37), r.updates.float(), clients=r.clients, reports=_single(r), **FACTS
        )
        again = aggregate(
            parse(method),
            torch.ones(37),
            r.updates.float(),
            clients=r.clients,
            reports=_single(r),
            server=once.server,
            **FACTS,
        )
        name = "prototypes" if "tgp" in method else "anchors"
        assert not torch.equal(once.broadcast[name], again.broadcast[name])
        other = aggregate(
            parse(method), torch.ones(37), r.updates.float(), clients=r.clients, reports=_single(r), **FACTS
        )
        assert torch.equal(once.broadcast[name], other.broadcast[name])


def _single(r):
    return {name: value.float() for name, value in r.reports.items()}


# --------------------------------------------------------------------------- what a method may see
@pytest.mark.parametrize("name", METHODS)
def test_test_data_never_enter_training(name):
    base = pictures() if "f2dc" in name else blobs(grouped=needs_groups(name))
    draw = torch.Generator().manual_seed(7)
    x, y = base.x.clone(), base.y.clone()
    for client in base.clients:
        x[client.test] = torch.randn(x[client.test].shape, generator=draw)
        y[client.test] = 0
    text = QUICK.get(name, name)
    a, b = (theta_of(text, f, rounds=2) for f in (base, dataclasses.replace(base, x=x, y=y)))
    assert torch.equal(a, b)


def test_losses_are_those_of_the_received_model_on_training_data():
    for text in ("afl", "qffl", "term", "fedfv", "fedlf", "gifair"):
        federation = blobs()
        found = played(parse(text), [[0, 1, 2, 3]], federation=federation, model=build_model("linear", (6,), 3))[0]
        task = Task.build(parse(text), federation, model=build_model("linear", (6,), 3))
        for k, client in enumerate(federation.clients):
            exact = task.scores(task.initial_params, {}, client.train)["loss"].mean()
            assert float(found.replies.reports["loss"][k]) == pytest.approx(float(exact), rel=1e-5)


# --------------------------------------------------------------------------- missing classes, hard numbers
PROTOTYPE_METHODS = [
    "fedproc",
    "fedproto",
    "fpl",
    "fedtgp(server_epochs=2)",
    "fedsa",
    "fedlsa(width=4, server_epochs=2)",
    "fedrcl",
]


@pytest.mark.parametrize("text", PROTOTYPE_METHODS)
def test_classes_that_nobody_or_only_one_client_has(text):
    base = blobs()
    only = [c.train[base.y[c.train] == k % 2] for k, c in enumerate(base.clients)]  # nobody has class 2
    clients = tuple(dataclasses.replace(c, train=index) for c, index in zip(base.clients, only, strict=True))
    federation = Federation("gaps", base.x, base.y, clients, base.classes, base.protocol)
    for participation in (1.0, 0.25):
        assert torch.isfinite(theta_of(text, federation, participation=participation, rounds=4)).all()


@pytest.mark.parametrize("text", ["fedproto", "fpl"])
def test_a_batch_without_any_prototype_adds_nothing(text):
    method = parse(text)
    shared = {
        "prototypes": torch.ones(3, 2),
        "prototype_known": torch.tensor([1.0, 0.0, 0.0]),
        "cluster_prototypes": torch.ones(1, 2),
        "cluster_classes": torch.tensor([0]),
        "unbiased_prototypes": torch.ones(3, 2),
    }
    features = torch.randn(4, 2, requires_grad=True)
    local = local_of(Outputs(torch.zeros(4, 3), features), torch.tensor([1, 2, 1, 2]), shared=shared)
    loss = method.terms[0].loss(local)
    assert torch.equal(loss, torch.zeros(4))
    assert torch.equal(torch.autograd.grad(loss.sum(), features)[0], torch.zeros(4, 2))
    assert method.terms[0].loss(local_of(local.out, local.y)) is None  # the first round has no prototypes at all


def test_fedproc_falls_back_to_cross_entropy_where_there_is_no_prototype():
    features = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    losses = torch.tensor([0.5, 0.6, 0.7])
    shared = {"prototypes": torch.eye(2).repeat(2, 1)[:3], "prototype_known": torch.tensor([1.0, 1.0, 0.0])}
    local = local_of(Outputs(torch.zeros(3, 3), features), torch.tensor([0, 1, 2]), shared=shared, round=0, rounds=10)
    found = parse("fedproc").terms[0].base(losses, local)
    assert float(found[2]) == pytest.approx(0.7)
    expected = prototype_contrast(features[:2], shared["prototypes"], shared["prototype_known"], local.y[:2], 1.0)
    torch.testing.assert_close(found[:2], expected)  # at the start the contrast alone
    last = parse("fedproc").terms[0].base(losses, local._replace(round=9))
    torch.testing.assert_close(last, losses)  # at the end cross-entropy alone
    one = local._replace(round=0, rounds=1)
    assert torch.isfinite(parse("fedproc").terms[0].base(losses, one)).all()


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e6])
@pytest.mark.parametrize("tau", [1e-3, 0.02, 1.0])
def test_contrasts_stay_finite(scale, tau):
    """Temperatures at which an exponential overflows, features that vanish or explode, identical and zero vectors."""
    z = (scale * torch.randn(6, 5, generator=torch.Generator().manual_seed(1))).requires_grad_()
    with torch.no_grad():
        z[1] = z[0]
        z[2] = 0
    y = torch.tensor([0, 0, 1, 1, 2, 0])
    prototypes = scale * torch.randn(3, 5, generator=torch.Generator().manual_seed(2))
    losses = [
        model_contrast(z, z.detach().flip(0), z.detach(), tau),
        prototype_contrast(z, prototypes, torch.tensor([1.0, 1.0, 0.0]), y.clamp(max=1), tau),
        cluster_contrast(z, prototypes, torch.tensor([0, 0, 1]), y, tau),
        *relaxed_contrast(z, y, None, tau, 0.7, 2),
        margin_losses(z, prototypes, y, 5.0),
    ]
    for loss in losses:
        assert torch.isfinite(loss).all()
        assert (loss >= -1e-5).all()
        (gradient,) = torch.autograd.grad(loss.sum(), z, retain_graph=True)
        assert torch.isfinite(gradient).all()


def test_distances_have_a_finite_slope_where_points_coincide():
    a = torch.ones(2, 3, requires_grad=True)
    found = distances(a, torch.ones(1, 3))
    assert torch.isfinite(torch.autograd.grad(found.sum(), a)[0]).all()
    assert float(mean_gap(torch.ones(3, 2), torch.zeros(3))) == 0  # no class known
    assert float(mean_gap(torch.ones(3, 2), torch.tensor([1.0, 0, 0]))) == 0  # one class alone


def test_padding_changes_nothing_in_fedrcl():
    draw = torch.Generator().manual_seed(3)
    z, y = torch.randn(5, 4, generator=draw), torch.tensor([0, 1, 0, 2, 1])
    padded = torch.cat([z, z[:1], z[:1]])
    labels, keep = torch.cat([y, y[:1], y[:1]]), torch.tensor([1.0, 1, 1, 1, 1, 0, 0])
    for plain, wide in zip(
        relaxed_contrast(z, y, None, 0.05, 0.7, 2), relaxed_contrast(padded, labels, keep, 0.05, 0.7, 2), strict=True
    ):
        torch.testing.assert_close(wide[:5], plain)
        assert torch.isfinite(wide).all()


def test_a_lone_sample_has_itself_as_positive():
    contrast, penalty = relaxed_contrast(torch.randn(1, 3), torch.tensor([0]), None, 0.05, 0.7, 2)
    assert float(contrast) == 0
    assert float(penalty) == pytest.approx(0, abs=1e-6)


# --------------------------------------------------------------------------- clusters
@given(st.integers(2, 24), st.integers(2, 6), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_finch_agrees_with_its_authors_package(n, width, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from finch import FINCH

        points = torch.randn(n, width, generator=torch.Generator().manual_seed(seed))
        partitions, counts, _ = FINCH(points.numpy().astype("float64"), verbose=False)
    wanted = max((level for level, count in enumerate(counts) if count > 1), default=0)
    theirs, ours = torch.from_numpy(partitions[:, wanted]).long(), finch(points)
    assert int(ours.max()) + 1 == int(theirs.max()) + 1
    assert torch.equal(ours[:, None] == ours[None], theirs[:, None] == theirs[None])


def test_clusters_of_few_and_of_identical_points():
    assert finch(torch.ones(1, 3)).tolist() == [0]
    assert finch(torch.ones(4, 3)).tolist() == [0, 0, 0, 0]
    assert finch(torch.zeros(3, 2)).tolist() == [0, 0, 0]
    assert cluster_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1])).tolist() == [[2.0], [5.0]]


# --------------------------------------------------------------------------- the head, and FDSE's layers
def test_the_head_is_found_by_its_name():
    weight, bias = linear_head({"body.weight": torch.ones(2, 2), "head.weight": torch.zeros(3, 2)}, "fedsa")
    assert (tuple(weight.shape), bias) == ((3, 2), None)
    with pytest.raises(EquipoiseError, match="linear layer called `head`"):
        linear_head({"fc.weight": torch.zeros(3, 2)}, "fedsa")

    class Nameless(NormNet):
        def __init__(self):
            super().__init__()
            self.last, self.head = self.head, torch.nn.Identity()

        def forward(self, x):
            features = self.body(x)
            return Outputs(self.last(features), features)

    with pytest.raises(EquipoiseError, match="fedsa needs a model whose classifier"):
        run("fedsa", blobs(), model=Nameless, rounds=2)


def test_split_layers_keep_the_shapes_of_any_model():
    for text, shape in (("small_cnn(width=3)", (1, 8, 8)), ("mlp(hidden=(7, 5))", (6,)), ("linear", (6,))):
        model = build_model(text, shape, 4)
        before = model(torch.zeros(3, *shape))
        split_layers(model)
        after = model(torch.randn(3, *shape))
        assert after.logits.shape == before.logits.shape
        assert [x.shape for x in after.layers] == [x.shape for x in before.layers]
    grouped = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, groups=4), torch.nn.Conv2d(4, 7, 3, stride=2, dilation=2))
    split_layers(grouped)
    assert [type(layer) for layer in grouped] == [torch.nn.Conv2d, SplitLayer]
    assert grouped(torch.randn(2, 4, 14, 14)).shape == (2, 7, 4, 4)


def test_fdse_marks_what_is_shared_personal_and_private():
    task = Task.build(parse("fdse"), pictures())
    assert not any(".dse" in name for name in task.layout.names)
    assert task.personal.names
    assert all(".dse." in name or ".dse_norm." in name for name in task.personal.names)
    assert not set(task.layout.names) & set(task.personal.names)
    assert {policy for name, policy in task.policies.items() if ".dse_norm." in name} == {"local"}
    assert {policy for name, policy in task.policies.items() if ".dfe_norm." in name} == {"average"}
    assert len(task.layout.names) + len(task.personal.names) == len(task.initial_params)


def test_personal_tensors_are_mixed_for_each_client_and_absent_ones_keep_theirs():
    found = played(
        parse("fdse"), [[0, 1], [1, 2]], federation=pictures(), model=build_model("small_cnn(width=4)", (1, 8, 8), 3)
    )
    first, second = (one.server.memory.shared["personal"] for one in found)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])
    torch.testing.assert_close(
        first[3], torch.stack([first[0], first[1]]).mean(0)
    )  # who comes new starts from the mean


def test_the_divergence_is_that_of_two_normal_distributions():
    from torch.distributions import Normal, kl_divergence

    mean, variance = torch.tensor([0.3, -1.0]), torch.tensor([0.5, 2.0])
    found = divergence(mean, variance, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.5]))
    exact = kl_divergence(
        Normal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.5]).sqrt()), Normal(mean, variance.sqrt())
    )
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(divergence(mean, variance, mean, variance), torch.zeros(2))


def test_fdses_regulariser_starts_in_the_second_round_and_keeps_statistics_near():
    def theta(lmbd, rounds):
        return theta_of(f"fdse(lmbd={lmbd})", pictures(), rounds=rounds)

    assert torch.equal(theta(0.01, 1), theta(5.0, 1))
    assert not torch.equal(theta(0.01, 2), theta(5.0, 2))

    def drift(lmbd):
        """How far the clients' statistics of the last layer went from the ones they received."""
        before, after = played(
            parse(f"fdse(lmbd={lmbd})"), [[0, 1, 2, 3]] * 2, federation=pictures(),
            model=build_model("small_cnn(width=4)", (1, 8, 8), 3), training=Training(epochs=4, batch=5, lr=0.05),
        )  # fmt: skip
        names = [f"model.stages.1.0.dfe_norm.running_{what}" for what in ("mean", "var")]
        own, known = ([source[name] for name in names] for source in (after.replies.buffers, before.server.buffers))
        return divergence(*own, *known).mean()

    assert drift(20.0) < drift(5.0) < drift(0.001)


def test_notes_on_models_that_a_method_cannot_use():
    with pytest.warns(EquipoiseWarning, match="no batch normalisation"):
        result = run("fedbn", blobs(), rounds=1)
    assert result.warnings == ("fedbn: the model has no batch normalisation, so this is FedAvg.",)
    with pytest.warns(EquipoiseWarning, match="no layer to split"):
        run("fdse", blobs(), model="linear", rounds=1)


def test_projection_replaces_the_head_and_reaches_the_sphere():
    task = Task.build(parse("fedlsa(width=5)"), blobs())
    assert "model.head.weight" not in task.layout.names
    out = task.apply(task.initial_params, task.initial_buffers, blobs().x[:4])
    torch.testing.assert_close(out.features.norm(dim=1), torch.ones(4))
    moon = Task.build(parse("moon(projection=5)"), blobs())
    assert moon.apply(moon.initial_params, {}, blobs().x[:4]).features.shape == (4, 5)


def test_fedtgp_separates_what_clients_upload():
    """Trained prototypes keep classes farther apart than plain means do, and still tell the uploads apart."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 4, generator=draw)
    uploads = centres + 0.8 * torch.randn(6, 3, 4, generator=draw)
    reports = {"samples": torch.ones(6), "prototypes": uploads, "prototype_counts": torch.ones(6, 3)}
    method = parse("fedtgp(server_epochs=150, server_lr=0.1)")
    found = aggregate(method, torch.zeros(1), torch.zeros(6, 1), clients=range(6), reports=reports).broadcast[
        "prototypes"
    ]
    assert mean_gap(found, torch.ones(3)) > 1.2 * mean_gap(uploads.mean(0), torch.ones(3))
    nearest = distances(uploads.flatten(0, 1), found).argmin(1)
    assert (nearest == torch.arange(3).repeat(6)).float().mean() > 0.7


# --------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedprox(mu=-1)", "`mu` must be at least 0"),
        ("scaffold(server_lr=0)", "`server_lr` must be above 0"),
        ("moon(tau=0)", "`tau` must be above 0"),
        ("moon(projection=0)", "`projection`"),
        ("feddyn(alpha=0)", "`alpha` must be above 0"),
        ("fedproto(average='sum')", "'owners', 'counts'"),
        ("fpl(tau=0)", "`tau`"),
        ("fedtgp(server_epochs=0)", "`server_epochs`"),
        ("fedrcl(negatives=0)", "`negatives`"),
        ("fedsa(ema=2)", "`ema` must be between 0 and 1"),
        ("fedlsa(width=1)", "`width`"),
        ("fdse(tau=0)", "`tau`"),
        ("ditto(evaluate='own')", "'personal', 'averaged-personal', 'global'"),
        ("afl(gamma=-1)", "`gamma`"),
        ("qffl(q=-1)", "`q`"),
        ("fedfv(alpha=2)", "`alpha`"),
        ("fedmgda_plus(eps=2)", "`eps`"),
        ("term(t=-1)", "`t`"),
        ("propfair(M=0.1)", "`eps` must be above 0 and below M"),
        ("gifair(strength=1)", "`strength` must be at least 0 and below 1"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(EquipoiseError, match=message):
        parse(text)
