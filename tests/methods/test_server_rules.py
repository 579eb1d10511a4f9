"""Each method's server step over several rounds with partial participation, against plain NumPy."""

import math

import numpy as np
import pytest
import torch

from equipoise import aggregate, parse
from kit import CLASSES, LAYOUT, ROUNDS, G, random_round, rolled
from numpy_rules import (
    aaggff,
    adaptive,
    afl,
    domain_aware,
    eagle_server,
    fdse,
    feddg_ga,
    feddyn,
    fedequilibria,
    fedfe,
    fedfv,
    fedheal,
    fedlf,
    fedmgda_plus,
    fednova,
    gifair,
    momentum,
    qffl,
    scaffold_control,
    term,
)  # fmt: skip

THETA = np.linspace(-1, 1, G)
SIZES = [math.prod(shape) for shape in LAYOUT.values()]
ROUNDS_NP = [(r.clients, r.updates.numpy(), {k: v.numpy() for k, v in r.reports.items()}) for r in ROUNDS]


def agree(method, reference, tolerance=1e-9):
    for result, (theta, weights) in zip(rolled(parse(method)), reference, strict=True):
        np.testing.assert_allclose(result.weights.numpy(), weights, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(result.theta.numpy(), theta, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedequilibria(t=0.7)", {}),
        ("fedequilibria(t=0)", {"t": 0}),
        ("fedequilibria(t=1)", {"t": 1}),
        ("fedequilibria(t=1, moo='update')", {"t": 1, "space": "update"}),
        ("fedequilibria(t=0.3, fim_scale='l2')", {"t": 0.3, "scale": "l2"}),
        ("fedequilibria(t=0.3, fim_scale='mean')", {"t": 0.3, "scale": "mean"}),
    ],
)
def test_fedequilibria(method, options):
    agree(method, fedequilibria(ROUNDS_NP, THETA, **options), 1e-7)


@pytest.mark.parametrize("norm", ["sqrtK", "unit", "none"])
@pytest.mark.parametrize("lag", [0, 1])
def test_eagle_on_the_server(norm, lag):
    agree(f"eagle(lam=0.7, norm='{norm}', lag={lag}, apply='server')", eagle_server(ROUNDS_NP, THETA, 0.7, norm, lag))


def test_domain_aware():
    agree("daa", domain_aware(ROUNDS_NP, THETA, CLASSES, 3, 600))
    agree("f2dc(a=2.0, b=0.1)", domain_aware(ROUNDS_NP, THETA, CLASSES, 3, 600, 2.0, 0.1))


@pytest.mark.parametrize("tau", [0.0, 0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_fedheal(tau, variant):
    released = variant == "released"
    agree(f"fedheal(tau={tau}, variant='{variant}')", fedheal(ROUNDS_NP, THETA, tau, 0.4, released, SIZES))


@pytest.mark.parametrize(
    ("q", "alpha", "tau", "beta"), [(1, 0.1, 1, 0.1), (0, 0, 0, 0), (5, 0.4, 3, 0.5), (0.5, 0, 2, 0.1), (2, 1, 1, 0)]
)
def test_fedfe(q, alpha, tau, beta):
    reference = fedfe(ROUNDS_NP, THETA, q, alpha, tau, beta, 0.1, 8)
    agree(f"fedfe(q={q}, alpha={alpha}, tau={tau}, beta_init={beta}, lr=0.1)", reference)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("order='descending'", {"descending": True}),
        ("project_first=2", {"first": 2}),
        ("order='descending', project_first=1", {"descending": True, "first": 1}),
        ("server_lr=0.5", {"rate": 0.5}),
        ("renorm=True", {"renorm": True}),
    ],
)
def test_options_of_fedfe(text, options):
    reference = fedfe(ROUNDS_NP, THETA, 1, 0.1, 1, 0.1, 0.1, 8, **options)
    agree(f"fedfe(lr=0.1, {text})", reference)


def test_fedfe_with_raw_updates():
    agree("fedfe(grad_scale='raw', L=10.0)", fedfe(ROUNDS_NP, THETA, 1, 0.1, 1, 0.1, 0.1, 8, raw=True))


def test_fedheal_with_plain_lengths():
    agree("fedheal(distance='l2')", fedheal(ROUNDS_NP, THETA, 0.3, 0.4, False, (30, 7), length=True))


def test_masks_that_keep_everything_change_no_weighting():
    """Also one whose weights do not sum to one."""
    for plain, masked in zip(
        rolled(parse("fedfe(lr=0.1)")), rolled(parse("fedfe(lr=0.1) + fedheal(fael=False, tau=0)")), strict=True
    ):
        torch.testing.assert_close(plain.theta, masked.theta)


@pytest.mark.parametrize("norm", ["unit", "sqrtK", "none"])
def test_equal_gaps_give_equal_weights_whoever_took_part_before(norm):
    cohorts = tuple(random_round(seed, clients) for seed, clients in enumerate([(0, 1, 2), (0, 3, 4), (1, 4, 5)]))
    for result in rolled(parse(f"eagle(lam=0, norm='{norm}', apply='server')"), cohorts):
        assert float(result.weights.max() - result.weights.min()) < 1e-12


@pytest.mark.parametrize(("gamma", "first"), [(0.01, False), (0.3, False), (0.3, True), (3.0, False)])
def test_afl(gamma, first):
    agree(f"afl(gamma={gamma}, lambda_first={first})", afl(ROUNDS_NP, THETA, gamma, first, 6))
    path = [result.theta for result in rolled(parse("afl(gamma=0.3)"))]
    for t, result in enumerate(rolled(parse("afl(gamma=0.3)"))):
        torch.testing.assert_close(result.evaluated, torch.stack(path[: t + 1]).mean(0))


@pytest.mark.parametrize("q", [0, 0.5, 1, 5])
def test_qffl(q):
    agree(f"qffl(q={q}, lr=0.1)", qffl(ROUNDS_NP, THETA, q, 0.1))


@pytest.mark.parametrize(("alpha", "tau"), [(0.1, 1), (0, 0), (0.4, 3), (0, 2), (1, 1)])
def test_fedfv(alpha, tau):
    agree(f"fedfv(alpha={alpha}, tau={tau})", fedfv(ROUNDS_NP, THETA, alpha, tau))


@pytest.mark.parametrize("eps", [0.0, 0.05, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("around", ["samples", "uniform"])
def test_fedmgda_plus(eps, around):
    agree(f"fedmgda_plus(eps={eps}, around='{around}')", fedmgda_plus(ROUNDS_NP, THETA, eps, around), 1e-6)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_fedlf(variant):
    for result, theta in zip(
        rolled(parse(f"fedlf(variant='{variant}')")), fedlf(ROUNDS_NP, THETA, SIZES, variant == "released"), strict=True
    ):
        np.testing.assert_allclose(result.theta.numpy(), theta, rtol=1e-5, atol=1e-6)


def test_fdse():
    for result, (theta, personal) in zip(
        rolled(parse("fdse(tau=0.3)")), fdse(ROUNDS_NP, THETA, SIZES, 0.3), strict=True
    ):
        np.testing.assert_allclose(result.theta.numpy(), theta, rtol=1e-6, atol=1e-7)
        for client, row in personal.items():
            np.testing.assert_allclose(result.broadcast["personal"][client].numpy(), row, rtol=1e-9)


def test_weights_by_loss():
    agree("term(t=0.7)", term(ROUNDS_NP, THETA, 0.7))
    agree("gifair(strength=0.8)", gifair(ROUNDS_NP, THETA, 0.8))


def test_memories_of_scaffold_and_feddyn():
    for result, control in zip(rolled(parse("scaffold")), scaffold_control(ROUNDS_NP, 6), strict=True):
        np.testing.assert_allclose(result.broadcast["control"].numpy(), control, atol=1e-12)
    for result, (theta, mean) in zip(rolled(parse("feddyn(alpha=0.2)")), feddyn(ROUNDS_NP, THETA, 0.2, 6), strict=True):
        np.testing.assert_allclose(result.theta.numpy(), theta, atol=1e-12)
        np.testing.assert_allclose(result.evaluated.numpy(), mean, atol=1e-12)


def test_fedavg_by_samples_and_uniform():
    for result, (_, D, reports) in zip(rolled(parse("fedavg")), ROUNDS_NP, strict=True):
        n = reports["samples"]
        np.testing.assert_allclose(result.direction.numpy(), (n / n.sum()) @ D, atol=1e-14)
    for result, (_, D, _) in zip(rolled(parse("fedavg(weights='uniform')")), ROUNDS_NP, strict=True):
        np.testing.assert_allclose(result.direction.numpy(), D.mean(0), atol=1e-14)


def test_the_literal_momentum_of_fedfe_destroys_the_model():
    *_, last = rolled(parse("fedfe(q=0, beta_init=0, tau=0, lr=0.1, momentum='literal')"))
    assert torch.allclose(last.theta, last.weights @ ROUNDS[-1].updates, atol=1.0)  # theta itself is gone


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("damped", [False, True])
def test_momentum_of_the_server(nesterov, damped):
    text = f"fedavgm(beta=0.8, lr=0.6, nesterov={nesterov}, damped={damped})"
    agree(text, momentum(ROUNDS_NP, THETA, 0.8, 0.6, nesterov, damped))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedadam", ("adam", 0.01, 0.9, 0.99, 1e-3, 1e-6)),
        ("fedadam(beta1=0, start=0.0, tau=0.1, lr=0.3)", ("adam", 0.3, 0.0, 0.99, 0.1, 0.0)),
        ("fedyogi", ("yogi", 0.01, 0.9, 0.99, 1e-3, 1e-6)),
        ("fedyogi(beta2=0.5, start=0.3)", ("yogi", 0.01, 0.9, 0.5, 1e-3, 0.3)),
        ("fedadagrad", ("adagrad", 0.01, 0.0, 0.0, 1e-3, 1e-6)),
        ("fedadagrad(beta1=0.9, start=0.0)", ("adagrad", 0.01, 0.9, 0.0, 1e-3, 0.0)),
    ],
)
def test_adaptive_steps_of_the_server(method, options):
    agree(method, adaptive(ROUNDS_NP, THETA, *options))


def test_fednova():
    agree("fednova", fednova(ROUNDS_NP, THETA, proximal=False))
    agree("fednova(mu=0.1)", fednova(ROUNDS_NP, THETA, proximal=True))


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_feddg_ga(variant):
    agree(f"feddg_ga(variant='{variant}')", feddg_ga(ROUNDS_NP, THETA, 0.2, 6, 8, variant == "released"))


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("setting", ["silo", "device"])
def test_aaggff(setting, variant):
    reference = aaggff(ROUNDS_NP, THETA, 6, setting == "silo", variant == "released")
    agree(f"aaggff(setting='{setting}', variant='{variant}')", reference)


def test_conflicts_are_counted_in_the_records():
    """Client 0 conflicts with both others in round one; in round two the mean of 1 and 2 conflicts with absent 0."""
    rows = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-1.0, 2.0]], dtype=torch.float64)
    loss = {"loss": torch.tensor([1.0, 2.0, 3.0]), "samples": torch.ones(3)}
    theta = torch.zeros(2, dtype=torch.float64)
    first = aggregate("fedfv(tau=1)", theta, rows, clients=[0, 1, 2], reports=loss)
    assert first.figures["internal conflicts"].tolist() == [2, 1, 1]
    assert float(first.figures["external conflicts"]) == 0
    some = {name: value[1:] for name, value in loss.items()}
    second = aggregate("fedfv(tau=1)", theta, rows[1:], clients=[1, 2], reports=some, server=first.server)
    assert second.figures["internal conflicts"].tolist() == [0, 0]
    assert float(second.figures["external conflicts"]) == 1
