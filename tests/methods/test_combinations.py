"""The combinations that the papers show, and those that cannot mean anything."""

import itertools
import warnings

import pytest
import torch

from combinations import ABLATIONS, HOSTS, MODULES, PLUGINS, combine
from equipoise import EquipoiseError, EquipoiseWarning, parse
from equipoise.engine.simulation import run
from kit import blobs, pictures


def trained(texts, federation):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EquipoiseWarning)
        return {text: run(text, federation, rounds=3).server.theta for text in texts}


def finite_and_different(thetas):
    for text, theta in thetas.items():
        assert torch.isfinite(theta).all(), text
    for (one, a), (other, b) in itertools.combinations(thetas.items(), 2):
        assert a.shape != b.shape or not torch.equal(a, b), (one, other)
    return True


def test_hosts_with_fair_methods():
    """FedHEAL's Table 2: seven hosts, alone and with three plug-ins."""
    table = list(itertools.starmap(combine, itertools.product(HOSTS, PLUGINS)))
    assert len(table) == 28
    assert finite_and_different(trained(table, blobs()))


def test_hosts_with_modules():
    """F2DC's Table 3: its two modules in four hosts."""
    assert len(MODULES) == 4
    assert finite_and_different(trained(MODULES, pictures()))


def test_ablations_of_fedequilibria():
    assert len(ABLATIONS) == 5
    assert finite_and_different(trained(ABLATIONS.values(), blobs()))


@pytest.mark.parametrize("plugin", ["fedequilibria", "eagle(apply='server', lstar_epochs=2)", "fedfe", "daa"])
def test_the_papers_own_weightings_combine_with_every_host(plugin):
    assert finite_and_different(trained([combine(host, plugin) for host in HOSTS], blobs()))


def test_a_sum_keeps_what_the_host_brings_and_what_the_plugin_brings():
    method, host, plugin = parse("scaffold + qffl(q=0.1)"), parse("scaffold"), parse("qffl(q=0.1)")
    assert (method.terms, method.share, method.training) == (host.terms, host.share, host.training)
    assert method.weigh == plugin.weigh  # the host's equal weights yield
    assert [type(r).__name__ for r in method.reports] == ["SampleCount", "ControlChange", "GlobalLoss"]
    method, host, plugin = parse("fedproto + fedheal"), parse("fedproto"), parse("fedheal")
    assert (method.terms, method.share) == (host.terms, host.share)
    assert (method.shape, method.merge, method.weigh) == (plugin.shape, plugin.merge, plugin.weigh)


def test_the_order_of_a_sum_changes_nothing():
    a, b = trained(["moon + fedheal", "fedheal + moon"], blobs()).values()
    assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("afl + fedheal", "both set `weigh`: SimplexAscent.*DistanceWeigh"),
        ("qffl + daa", "both set `weigh`"),
        ("term + gifair", "both set `weigh`"),
        ("fdse + fedheal", "both set `merge`: Consensus.*MaskedMean"),
        ("fdse + afl", "`consensus` .merge. finds its own weights, so `simplex_ascent` .weigh. would do nothing"),
        ("fedlf + qffl", "`layerwise_fair` .merge. finds its own weights"),
        ("fedproto + fedtgp", "`mean_prototypes` and `trained_prototypes` both send down shared prototypes"),
        ("fedsa + fedlsa", "`semantic_anchors` and `trained_anchors` both send down shared anchors"),
        ("fedprox(mu=0.1) + feddyn", "Two parts called `proximal`"),
        ("feddyn + fedrcl(clip=1.0)", "trains with clip=10.0"),
    ],
)
def test_what_cannot_mean_anything_says_so(text, message):
    with pytest.raises(EquipoiseError, match=message):
        parse(text)
