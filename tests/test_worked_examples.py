"""The worked examples (computed independently in float64) that concern the methods at hand.

Example of a method that does not exist here are listed in `NOT_HERE`, with the reason, so that none is forgotten silently.
"""

import pytest
import torch

from equipoise import Method, Training, aggregate, parse
from equipoise.method import METHODS
from equipoise.metrics import std
from equipoise.parts.conflicts import project_conflicts
from equipoise.parts.minnorm import min_norm_weights
from equipoise.simulation import run
from kit import EXAMPLES, Point, Quadratic, quadratic_federation

SAMPLES = torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def close(found, expected, tolerance=1e-6):
    torch.testing.assert_close(found.double(), tensor(expected), atol=tolerance, rtol=tolerance)


def trained(method, momentum=0.0, steps=2):
    """One round on the quadratic toy."""
    training = Training(steps=steps, batch=None, lr=0.1, momentum=momentum)
    host = Method(terms=(Quadratic(),))
    return run(host + parse(method), quadratic_federation(), model=Point(), rounds=1, training=training)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedavg(momentum):
    expected = EXAMPLES["fedavg"]["expected"]
    suffix = "_momentum_0.9" if momentum else ""
    by_samples = trained("fedavg", momentum)
    close(by_samples.server.theta, expected[f"global_by_n{suffix}"])
    close(tensor(by_samples.rounds[0].weights), expected["weights_by_n"])
    if not momentum:
        close(trained("fedavg(weights='uniform')").server.theta, expected["global_uniform"])


def test_fedsgd_is_one_full_batch_step():
    with pytest.warns(match="trains with steps=1, momentum=0.0, whatever the run says") as said:
        found = trained("fedsgd", momentum=0.9, steps=7)  # the method overrules the run's optimiser
    assert len(said) == 1
    close(found.server.theta, EXAMPLES["fedsgd"]["expected"]["global_by_n"])


def test_q_weights_of_q_fedavg():
    local = tensor(EXAMPLES["fedavg"]["expected"]["local_models"])
    for q in (0.0, 1.0, 5.0):
        reports = {"loss": tensor(EXAMPLES["qffl"]["inputs"]["losses_at_w0"])}
        # without conflicts and momentum FedFE is q-FedAvg
        method = parse(f"fedfe(q={q}, alpha=1.0, tau=0, beta_init=0, lr=0.1)")
        result = aggregate(method, torch.zeros(2, dtype=torch.float64), local, clients=[0, 1, 2], reports=reports)
        close(result.theta, EXAMPLES["qffl"]["expected"][f"q-FedAvg q={q}"]["w1"])


def test_projections_of_fedfv():
    inputs, expected = EXAMPLES["fedfv"]["inputs"], EXAMPLES["fedfv"]["expected"]
    g = tensor(inputs["updates_g_k = w0 - w_k"])
    everyone = torch.ones(3, dtype=torch.bool)
    found = project_conflicts(g @ g.T, torch.arange(3), everyone) @ g
    close(found, expected["alpha=0, no external"]["projected"])
    # FedFE with q=0 is the projected mean, before FedFV's rescaling; with renorm it is FedFV
    base = {"clients": [0, 1, 2], "reports": {"loss": tensor(inputs["losses_at_w0"])}}
    start = torch.zeros(3, dtype=torch.float64)
    for alpha, case in ((0.0, "alpha=0, no external"), (0.1, "alpha=0.1, no external")):
        plain = aggregate(parse(f"fedfe(q=0, alpha={alpha}, tau=0, beta_init=0, lr=1)"), start, -g, **base)
        close(-plain.direction, expected[case]["mean_projected"])
        full = aggregate(parse(f"fedfe(q=0, alpha={alpha}, tau=0, beta_init=0, lr=1, renorm=True)"), start, -g, **base)
        close(full.theta, expected[case]["w1"])


def test_projection_against_absent_clients():
    case = EXAMPLES["fedfv"]["expected"]["alpha=0.1, external history one round with gradients [(-1,0,0),(0,2,0)]"]
    inputs = EXAMPLES["fedfv"]["inputs"]
    method = parse("fedfe(q=0, alpha=0.1, tau=1, beta_init=0, lr=1, renorm=True)")
    start = torch.zeros(3, dtype=torch.float64)
    past = aggregate(
        method, start, -tensor([[-1.0, 0, 0], [0, 2.0, 0]]), clients=[7, 8], reports={"loss": tensor([1.0, 1.0])}
    )
    now = aggregate(
        method, start, -tensor(inputs["updates_g_k = w0 - w_k"]), clients=[0, 1, 2],
        reports={"loss": tensor(inputs["losses_at_w0"])}, server=past.server,
    )  # fmt: skip
    close(now.theta, case["w1"])


def test_min_norm_of_two():
    case = EXAMPLES["fedmgda_plus"]["expected"]["plain MGDA without normalisation, g1=(1,0), g2=(0,2)"]
    g = tensor([[1.0, 0], [0, 2.0]])
    weights = min_norm_weights(g @ g.T)
    close(weights, case["lambda"])
    close(weights @ g, case["d"])


def test_standard_deviations():
    for name, case in EXAMPLES["std_convention"]["inputs"].items():
        expected = EXAMPLES["std_convention"]["expected"][name]
        assert std(case["acc"], 0) == pytest.approx(expected["population_ddof0"])
        assert std(case["acc"], 1) == pytest.approx(expected["sample_ddof1"])


HERE = {"fedavg", "fedsgd", "std_convention"}
INDIRECT = {"qffl", "fedfv", "fedmgda_plus"}  # their rules are parts of FedFE and FedEquilibria, tested above
NOT_HERE = set(EXAMPLES) - HERE - INDIRECT


def test_every_example_of_a_method_that_exists_is_tested():
    assert not NOT_HERE & set(METHODS), "a method was added: test its worked example"
