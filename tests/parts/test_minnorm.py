import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equipoise.parts.minnorm import boxed_min_norm_weights, min_norm_weights
from numpy_rules import min_norm


def kkt_holds(A, w):
    gradient = A @ w
    slack = 1e-8 * A.diagonal().max()
    return bool((gradient >= w @ gradient - slack).all()) and abs(float(w.sum()) - 1) < 1e-12 and bool((w >= 0).all())


def gram_of(vectors):
    return vectors.double() @ vectors.double().T


@given(st.integers(1, 25), st.integers(1, 40), st.integers(0, 10_000), st.floats(-12, 6), st.booleans())
@settings(max_examples=150, deadline=None)
def test_kkt_for_any_shape_and_scale(m, size, seed, exponent, positive):
    vectors = torch.randn(m, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    A = gram_of((vectors.abs() if positive else vectors) * 10**exponent)
    assert kkt_holds(A, min_norm_weights(A))


@given(st.integers(2, 8), st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_kkt_when_lengths_span_eighteen_decades(m, seed):
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.rand(m, 30, generator=draw, dtype=torch.float64) * 10 ** torch.empty(m, 1).uniform_(
        -12, 6, generator=draw
    )
    A = gram_of(vectors)
    assert kkt_holds(A, min_norm_weights(A))


def test_agrees_with_a_general_solver():
    for seed in range(20):
        vectors = torch.rand(9, 30, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        ours = min_norm_weights(gram_of(vectors)).numpy()
        np.testing.assert_allclose(ours, min_norm(vectors.numpy()), atol=1e-7)


def test_two_vectors_have_a_closed_form():
    for seed in range(30):
        a, b = torch.randn(2, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        first = ((b @ b - a @ b) / (a - b).square().sum()).clip(0, 1)
        assert min_norm_weights(gram_of(torch.stack([a, b])))[0] == pytest.approx(float(first), abs=1e-12)


def test_scaling_one_of_two_vectors_up_never_raises_its_weight():
    a, b = torch.tensor([[1.0, 2.0, 0.5], [0.3, 1.0, 2.0]], dtype=torch.float64)
    weights = [float(min_norm_weights(gram_of(torch.stack([s * a, b])))[0]) for s in (0.1, 0.5, 1, 2, 10, 100)]
    assert weights == sorted(weights, reverse=True)


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        ([[1.0, 0], [1.0, 0], [0, 2.0]], [0.4, 0.4, 0.2]),  # duplicates share
        ([[0.0, 0], [1.0, 1.0]], [1.0, 0.0]),  # a zero vector is the nearest point
        ([[0.0, 0], [0.0, 0], [3.0, 0]], [0.5, 0.5, 0.0]),
        ([[0.0, 0], [0.0, 0]], [0.5, 0.5]),
        ([[2.0, 0], [1.0, 0], [3.0, 0]], [0.0, 1.0, 0.0]),  # rank one: the shortest
        ([[5.0, 1.0]], [1.0]),
    ],
)
def test_degenerate_matrices(vectors, expected):
    weights = min_norm_weights(gram_of(torch.tensor(vectors)))
    np.testing.assert_allclose(weights.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("vectors", [[[1.0, 0], [-2.0, 0]], [[1.0, 0], [0, 1.0], [-1.0, -1.0]]])
def test_the_origin_inside_the_hull_is_reached(vectors):
    A = gram_of(torch.tensor(vectors))
    w = min_norm_weights(A)
    assert float(w @ A @ w) < 1e-20
    assert kkt_holds(A, w)


def test_a_thousand_clients():
    draw = torch.Generator().manual_seed(0)
    base = torch.rand(1, 3000, generator=draw, dtype=torch.float64) ** 6
    fisher = (
        base
        * torch.rand(1000, 3000, generator=draw, dtype=torch.float64)
        * 10 ** torch.empty(1000, 1).uniform_(-4, 0, generator=draw)
    )
    for vectors in (fisher, fisher[:, :200], torch.cat([fisher[:500], fisher[:500]])):
        A = gram_of(vectors)
        w = min_norm_weights(A)
        assert kkt_holds(A, w)
    assert torch.allclose(w[:500], w[500:], rtol=1e-9, atol=0)  # identical clients, equal weights


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_permuting_the_clients_permutes_the_weights(seed):
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.rand(7, 20, generator=draw, dtype=torch.float64)
    order = torch.randperm(7, generator=draw)
    assert torch.allclose(
        min_norm_weights(gram_of(vectors))[order], min_norm_weights(gram_of(vectors[order])), atol=1e-10
    )


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e6])
def test_the_scale_of_all_vectors_does_not_matter(scale):
    vectors = torch.rand(6, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(min_norm_weights(gram_of(vectors)), min_norm_weights(gram_of(vectors * scale)), atol=1e-10)


# --------------------------------------------------------------------------- within bounds
@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 10_000), st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]))
@example(8, 1, 1, 0.02)  # on the way all weights stand at a bound, and two must leave together
@settings(max_examples=80, deadline=None)
def test_boxed_weights_agree_with_a_general_solver(m, size, seed, eps):
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(m, size, generator=draw, dtype=torch.float64)
    usual = torch.rand(m, generator=draw, dtype=torch.float64) + 0.1
    usual /= usual.sum()
    low, high = (usual - eps).clamp(min=0), (usual + eps).clamp(max=1)
    A = gram_of(vectors)
    ours = boxed_min_norm_weights(A, low, high)
    assert float(ours.sum()) == pytest.approx(1, abs=1e-12)
    assert (ours >= low).all()
    assert (ours <= high).all()
    if eps:
        theirs = torch.from_numpy(min_norm(vectors.numpy(), low.numpy(), high.numpy()))
        assert float(ours @ A @ ours) <= float(theirs @ A @ theirs) + 1e-7 * float(A.diagonal().max())
    else:
        torch.testing.assert_close(ours, usual)


def test_a_box_that_does_not_bind_changes_nothing():
    for seed in range(10):
        A = gram_of(torch.randn(6, 30, generator=torch.Generator().manual_seed(seed)))
        torch.testing.assert_close(
            boxed_min_norm_weights(A, torch.zeros(6), torch.ones(6)), min_norm_weights(A), rtol=1e-6, atol=1e-7
        )


def test_boxed_weights_of_identical_and_of_zero_vectors():
    low, high = torch.full((4,), 0.15), torch.full((4,), 0.35)
    same = boxed_min_norm_weights(torch.ones(4, 4), low, high)
    torch.testing.assert_close(same, torch.full((4,), 0.25, dtype=torch.float64), rtol=1e-6, atol=1e-7)
    nothing = boxed_min_norm_weights(torch.zeros(4, 4), low, high)
    assert float(nothing.sum()) == pytest.approx(1)
