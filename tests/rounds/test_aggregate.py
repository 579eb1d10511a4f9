"""The server rule alone: its interface, and the properties that every rule must have."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise import EquipoiseError, aggregate, parse
from equipoise.methods.fedlf import levelling
from kit import FACTS, LAYOUT, ROUNDS, random_round, rolled

RULES = [
    "fedavg",
    "fedavg(weights='uniform')",
    "fedequilibria(t=0.5)",
    "fedequilibria(t=1, moo='update')",
    "fedequilibria(t=0.5, fim_scale='l2')",
    "fedequilibria(t=0)",
    "eagle(lam=0.5)",
    "eagle(lam=0.5, apply='server')",
    "eagle(lam=0.5, apply='server', lag=0, floor=0.0)",
    "daa",
    "daa(counts='class')",
    "f2dc",
    "fedheal",
    "fedheal(variant='released')",
    "fedheal(fael=False)",
    "fedheal(fphl=False)",
    "fedfe(lr=0.1)",
    "fedfe(lr=0.1, q=0, beta_init=0)",
    "fedfe(lr=0.1, order='random')",
    "fedfe(lr=0.1, order='descending', project_first=2)",
    "fedfe(grad_scale='raw', L=10.0, server_lr=0.5)",
    "fedprox",
    "scaffold",
    "scaffold(variant='released')",
    "moon",
    "feddyn",
    "feddyn(evaluate='server')",
    "fedproc",
    "fedproto",
    "fedproto(average='counts', variant='released')",
    "fpl",
    "fedtgp(server_epochs=2, server_lr=0.1)",
    "fedrcl",
    "fedsa",
    "fedlsa(server_epochs=3)",
    "fdse",
    "fedbn",
    "afl(gamma=0.3)",
    "afl(gamma=0.3, lambda_first=True, evaluate='last')",
    "afl(variant='released')",
    "qffl(lr=0.1)",
    "fedfv",
    "ditto",
    "fedmgda_plus",
    "fedmgda_plus(step='mean_length', around='uniform')",
    "fedlf",
    "fedlf(variant='released')",
    "term(t=2.0)",
    "propfair",
    "gifair",
    "fedavgm",
    "fedavgm(beta=0.5, lr=0.7, nesterov=True, damped=True, schedule='cosine(end=0.1)')",
    "fedadam",
    "fedyogi(beta2=0.999, start=0.0)",
    "fedadagrad(beta1=0.9)",
    "fednova",
    "fednova(mu=0.1)",
    "feddg_ga",
    "feddg_ga(variant='released')",
    "aaggff",
    "aaggff(response='gumbel', variant='released')",
    "aaggff(setting='device')",
    "aaggff(setting='device', variant='released')",
]
ADAPTIVE = ("fedadam", "fedyogi", "fedadagrad")  # the length of their steps is not that of the updates
UNLIKE_FEDAVG = (
    "fedmgda_plus",
    "scaffold(variant",
    "feddyn",
    "fedavgm(",
    *ADAPTIVE,
)  # one client alone does not get its own model back
SIMPLEX = [rule for rule in RULES if parse(rule).weigh.is_convex and parse(rule).merge.uses_weights]
# The literal order of projection is by position when it is drawn at random, so a permutation changes it.
PERMUTABLE = [rule for rule in RULES if "random" not in rule]


def one(method, round_=ROUNDS[0], theta=None, **changes):
    theta = torch.zeros(round_.updates.shape[1], dtype=torch.float64) if theta is None else theta
    given = {"clients": round_.clients, "reports": round_.reports, **FACTS, **changes}
    return aggregate(parse(method), theta, round_.updates, **given)


@pytest.mark.parametrize("rule", RULES)
def test_results_are_finite_and_direction_is_the_exact_difference(rule):
    before = torch.linspace(-1, 1, 37, dtype=torch.float64)
    for result in rolled(parse(rule)):
        assert torch.isfinite(result.theta).all()
        assert torch.isfinite(result.weights).all()
        assert torch.equal(result.direction, result.theta - before)
        before = result.theta


@pytest.mark.parametrize("rule", SIMPLEX)
def test_weights_on_the_simplex(rule):
    for result in rolled(parse(rule)):
        assert (result.weights >= 0).all()
        assert float(result.weights.sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rule", PERMUTABLE)
def test_the_order_of_clients_does_not_matter(rule):
    order = [2, 0, 3, 1]
    r = ROUNDS[0]
    shuffled = dataclasses.replace(
        r,
        clients=tuple(r.clients[i] for i in order),
        updates=r.updates[order],
        reports={k: v[order] for k, v in r.reports.items()},
    )
    a, b = one(rule), one(rule, shuffled)
    assert torch.allclose(a.theta, b.theta, atol=1e-12)
    assert torch.allclose(a.weights[order], b.weights, atol=1e-10)


@pytest.mark.parametrize(
    "rule", [r for r in PERMUTABLE if not r.startswith(("fedfe", "qffl", "fedmgda_plus", *ADAPTIVE))]
)
@given(factor=st.sampled_from([1e-6, 1e-3, 10.0, 1e6]))
@settings(max_examples=4, deadline=None)
def test_scaling_all_updates_scales_the_direction(rule, factor):
    r = ROUNDS[0]
    scaled = dataclasses.replace(r, updates=r.updates * factor)
    assert torch.allclose(one(rule, scaled).direction, factor * one(rule).direction, rtol=1e-9, atol=1e-12 * factor)


@pytest.mark.parametrize("rule", RULES)
def test_one_client_alone_gets_its_own_model(rule):
    r = random_round(3, (4,))
    result = one(rule, r)
    if parse(rule).weigh.is_convex and not rule.startswith(UNLIKE_FEDAVG):
        assert torch.allclose(result.direction, r.updates[0], atol=1e-12)
    assert torch.isfinite(result.theta).all()


@pytest.mark.parametrize("rule", RULES)
def test_clients_that_did_not_move_are_no_trouble(rule):
    r = ROUNDS[0]
    still = dataclasses.replace(
        r, updates=torch.zeros_like(r.updates), reports={**r.reports, "fisher": 0 * r.reports["fisher"]}
    )
    result = one(rule, still)
    assert torch.equal(result.theta, torch.zeros_like(result.theta))
    assert torch.isfinite(result.weights).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_results_keep_the_dtype_of_the_input(rule, dtype):
    for result in rolled(parse(rule), dtype=dtype):
        assert result.theta.dtype == result.direction.dtype == result.weights.dtype == dtype


@pytest.mark.parametrize("rule", RULES)
def test_inputs_and_server_are_left_as_they_are(rule):
    """A pure function: the same call twice gives the same result."""
    first = one(rule)
    r = ROUNDS[1]
    copies = r.updates.clone(), {k: v.clone() for k, v in r.reports.items()}
    a = one(rule, r, server=first.server)
    b = one(rule, r, server=first.server)
    assert torch.equal(a.theta, b.theta)
    assert torch.equal(r.updates, copies[0])
    assert all(torch.equal(v, copies[1][k]) for k, v in r.reports.items())
    assert a.server.round == 2


@pytest.mark.parametrize("rule", RULES)
def test_what_the_server_remembers_does_not_change_with_the_callers_tensors(rule):
    r = ROUNDS[0]
    own = dataclasses.replace(r, updates=r.updates.clone(), reports={k: v.clone() for k, v in r.reports.items()})
    first = one(rule, own)
    own.updates.zero_()
    for value in own.reports.values():
        value.zero_()
    torch.testing.assert_close(
        one(rule, ROUNDS[1], server=first.server).theta, one(rule, ROUNDS[1], server=one(rule).server).theta
    )


def test_without_a_copy_the_server_remembers_the_callers_own_rows():
    r = ROUNDS[0]
    for copy in (True, False):
        remembered = one("fedfv", r, copy=copy).server.parts["step.external_conflicts"]["updates"]
        assert (remembered[r.clients[0]].data_ptr() == r.updates.data_ptr()) is not copy


def test_the_server_holds_the_round_index():
    assert [result.server.round for result in rolled(parse("fedavg"))] == list(range(1, len(ROUNDS) + 1))


def test_eagle_broadcasts_the_next_weight_by_client_id():
    result = one("eagle(lam=0.5, norm='none')", ROUNDS[1])
    weights = torch.stack([result.broadcast["weight"][c] for c in ROUNDS[1].clients])
    assert float(weights.sum()) == pytest.approx(4)
    gap = ROUNDS[1].reports["gap"]
    assert torch.allclose(weights, 1 + 4 * 0.5 * 4 / 3 * (gap - gap.mean()))
    later = one("eagle(lam=0.5, norm='none')", ROUNDS[2], server=result.server)
    assert later.broadcast["weight"][1] == result.broadcast["weight"][1]  # client 1 was absent: it keeps its weight


# --------------------------------------------------------------------------- what is missing is named
@pytest.mark.parametrize(
    ("method", "without", "named"),
    [
        ("fedavg", "samples", "`samples`"),
        ("fedequilibria", "fisher", "`fisher`"),
        ("eagle", "gap", "`gap`"),
        ("fedfe(lr=0.1)", "loss", "`loss`"),
        ("daa(counts='class')", "class_counts", "`class_counts`"),
        ("afl", "loss", "`loss`"),
        ("afl(variant='released')", "loss_trained", "`loss_trained`"),
        ("scaffold", "control", "`control`"),
        ("fedproto", "prototypes", "`prototypes`"),
        ("fdse", "personal", "`personal`"),
    ],
)
def test_a_missing_report_is_named(method, without, named):
    reports = {k: v for k, v in ROUNDS[0].reports.items() if k != without}
    with pytest.raises(EquipoiseError, match=named):
        one(method, reports=reports)


@pytest.mark.parametrize(
    ("method", "fact"),
    [
        ("fedfe(lr=0.1)", "rounds"),
        ("daa", "num_domains"),
        ("daa", "num_classes"),
        ("daa", "total_samples"),
        ("scaffold", "num_clients"),
        ("feddyn", "num_clients"),
    ],
)
def test_a_missing_fact_is_named(method, fact):
    with pytest.raises(EquipoiseError, match=f"`{fact}`"):
        one(method, **{fact: None})


def test_the_rate_behind_L_must_be_given():
    for rule in ("fedfe", "qffl", "fedtgp"):
        with pytest.raises(EquipoiseError, match="`lr`"):
            one(rule)


def test_only_what_the_method_needs_has_to_be_given():
    r = ROUNDS[0]
    result = aggregate(
        parse("fedequilibria"), torch.zeros(37, dtype=torch.float64), r.updates, clients=r.clients,
        reports={"fisher": r.reports["fisher"]},
    )  # fmt: skip
    assert torch.equal(result.weights, one("fedequilibria").weights)


def test_a_rule_that_probes_can_be_used_alone():
    result = one("eagle(lag=0, lam=0.5, norm='none')")
    assert float(sum(result.broadcast["weight"][c] for c in ROUNDS[0].clients)) == pytest.approx(4)
    with pytest.raises(EquipoiseError, match="`gap`"):
        one("eagle(lag=0)", reports={})


def test_plain_python_values_are_taken():
    r = ROUNDS[0]
    named = one("fedheal(variant='released')")
    plain = aggregate(
        "fedheal(variant='released')", torch.zeros(37, dtype=torch.float64), r.updates, clients=list(r.clients),
        reports={"samples": r.reports["samples"].tolist()}, layout=list(LAYOUT.items()),
    )  # fmt: skip
    assert torch.equal(named.theta, plain.theta)
    array = aggregate(
        "fedavg",
        torch.zeros(37, dtype=torch.float64),
        r.updates,
        clients=r.clients,
        reports={"samples": r.reports["samples"].numpy()},
    )
    assert torch.equal(array.theta, one("fedavg").theta)


def test_negative_weights_cannot_be_masked():
    with pytest.raises(EquipoiseError, match="needs weights that cannot be negative"):
        parse("eagle(apply='server') + fedheal(fael=False)")


def test_wrong_inputs_are_explained():
    r = ROUNDS[0]
    with pytest.raises(EquipoiseError, match=r"updates.*must be \[4, 5\]"):
        one("fedavg", theta=torch.zeros(5))
    with pytest.raises(EquipoiseError, match="Each client counts once"):
        one("fedavg", clients=[0, 1, 1, 2])
    with pytest.raises(EquipoiseError, match="Did you mean `samples`"):
        one("fedavg", reports={"sample": torch.ones(4)})
    with pytest.raises(EquipoiseError, match=r"`samples` must be \[4\]"):
        one("fedavg", reports={"samples": torch.ones(3)})
    with pytest.raises(EquipoiseError, match="layout"):
        one("fedavg", layout={"w": (3,)})
    with pytest.raises(EquipoiseError, match=r"`fisher` must be \[4, 37\]\. Found \[4, 5\]"):
        one("fedequilibria", reports={"fisher": torch.ones(4, 5)})
    with pytest.raises(EquipoiseError, match=r"`fisher` must be finite\. Found nan"):
        one("fedequilibria", reports={"fisher": torch.full((4, 37), torch.nan)})
    with pytest.raises(EquipoiseError, match="whole numbers"):
        one("fedavg", clients=["a", "b", "c", "d"])
    with pytest.raises(EquipoiseError, match="losses above zero"):
        one("fedfe(lr=0.1)", reports={**r.reports, "loss": torch.tensor([-1.0, 1, 1, 1])}, check=False)


def test_q_weights_survive_extreme_losses():
    for losses in ([1e300, 1.0, 1e-300, 5.0], [0.0, 0.0, 0.0, 0.0], [1e-10, 1e10, 1, 1]):
        for q in (0, 0.5, 1, 5, 50):
            reports = {"loss": torch.tensor(losses, dtype=torch.float64)}
            result = one(f"fedfe(lr=0.1, q={q})", reports=reports)
            assert torch.isfinite(result.weights).all()
            assert (result.weights >= 0).all()


def test_the_default_layout_is_one_tensor():
    r = ROUNDS[0]
    layout_free = one("fedheal(variant='released')", layout=None)
    one_tensor = one("fedheal(variant='released')", layout={"all": (37,)})
    assert torch.equal(layout_free.weights, one_tensor.weights)
    assert not torch.equal(layout_free.weights, one("fedheal(variant='released')").weights)
    assert r.updates.shape[1] == 37


def test_it_is_public():
    from equipoise.rounds import server

    assert equipoise.aggregate is server.aggregate
    assert type(one("fedavg")) is equipoise.Aggregated


# --------------------------------------------------------------------------- values that cannot be true
def server_half(updates, method="fedavg", **changes):
    reports = {"samples": [1.0, 2.0, 3.0], "loss": [1.0, 2.0, 3.0], **changes.pop("reports", {})}
    return aggregate(method, torch.zeros(2), updates, clients=[7, 8, 9], reports=reports, **changes)


@pytest.mark.parametrize(
    ("updates", "reports", "said"),
    [
        ([[1.0, 2.0], [1.0, float("nan")], [0.0, 0.0]], {}, "`updates` must be finite. Found nan of client 8."),
        ([[1.0, 2.0], [1.0, 0.0], [-float("inf"), 0.0]], {}, "`updates` must be finite. Found -inf of client 9."),
        ([[1j, 2.0], [1.0, 0.0], [0.0, 0.0]], {}, "`updates` must be a tensor of floating-point numbers. Found complex64"),
        ([[1, 2], [1, 0], [0, 0]], {}, "`updates` must be a tensor of floating-point numbers. Found int64."),
        (None, {"samples": [1.0, -2.0, 3.0]}, "Report `samples` .* cannot be negative. Found -2."),
        (None, {"samples": [0, 0, 0]}, "Report `samples` must be above zero for a client at least."),
        (None, {"samples": [1.0, 2j, 3.0]}, "Report `samples` must be real. Found complex64."),
        (None, {"loss": [1.0, -1e-3, 3.0]}, "Report `loss` .* cannot be negative. Found -0.001."),
        (None, {"loss": [1.0, float("nan"), 3.0]}, "Report `loss` must be finite. Found nan of client 8."),
        (None, {"fisher": [[1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]}, "Report `fisher` .* cannot be negative. Found -1."),
        ([[3e38, 0.0], [3e38, 0.0], [3e38, 0.0]], {}, None),
    ],
)  # fmt: skip
def test_values_that_cannot_be_true_are_refused(updates, reports, said):
    rows = torch.ones(3, 2) if updates is None else torch.tensor(updates)
    reports = {name: torch.tensor(value) for name, value in reports.items()}
    if said is None:
        assert torch.isfinite(server_half(rows, reports=reports).theta).all()
        return
    with pytest.raises(EquipoiseError, match=said):
        server_half(rows, reports=reports)


def test_a_model_that_is_not_finite_is_refused():
    updates = torch.full((3, 2), 3e38)
    with pytest.raises(EquipoiseError, match="gives a model that is not finite"):
        aggregate("fedavg", updates[0], updates, clients=[1, 2, 3], reports={"samples": [1.0, 1.0, 1.0]})


def test_whoever_has_checked_values_may_leave_it_out():
    updates = torch.tensor([[1.0, float("nan")], [1.0, 2.0], [1.0, 2.0]])
    found = server_half(updates, check=False, reports={"loss": [-1.0, 1.0, 1.0]})
    assert float(found.theta[0]) == 1.0
    assert bool(found.theta[1].isnan())
    with pytest.raises(EquipoiseError, match=r"`updates` must be \[3, 2\]"):
        server_half(torch.ones(2, 2), check=False)


def test_one_very_long_update_does_not_stop_fedheal_in_silence():
    """The squares of 1e20 do not fit into float32: FedHEAL's distances were infinite, and no weight moved."""
    draw = torch.Generator().manual_seed(0)
    theta, memory, before = torch.zeros(50), None, None
    for _ in range(5):
        updates = torch.randn(4, 50, generator=draw)
        updates[0] *= 1e20
        found = aggregate(
            "fedheal", theta, updates, clients=range(4), reports={"samples": [1.0, 1, 1, 1]}, server=memory
        )
        assert torch.isfinite(found.theta).all()
        assert not torch.equal(found.theta, theta)
        assert before is None or not torch.equal(found.weights, before)
        theta, memory, before = found.theta, found.server, found.weights


@pytest.mark.parametrize("method", ["fedlf", "fedlf(variant='released')"])
@pytest.mark.parametrize("loss", [0.0, 1e-320, 1e-200])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_fedlf_with_losses_of_zero_is_fedlf_with_equal_losses(method, loss, count):
    updates = torch.randn(count, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    zero, equal = (
        aggregate(method, torch.zeros(6, dtype=torch.float64), updates, clients=range(count),
                  reports={"loss": torch.full((count,), value, dtype=torch.float64)})
        for value in (loss, 1.0)
    )  # fmt: skip
    assert levelling(torch.full((count,), loss, dtype=torch.float64)).abs().max() == 0
    torch.testing.assert_close(zero.theta, equal.theta)
