"""One table: every method through every runner, on every kind of federation. A new method is a new row."""

import warnings

import pytest
import torch

from equipoise import Client, Federation
from equipoise.engine.simulation import run
from equipoise.types import PerClient
from kit import NormNet, blobs, in_double, pictures, quiet
from kit.rows import IN_PROCESS, MORE, ROWS, needs_groups, needs_images


@pytest.fixture
def double_precision():
    """In float32 the rounding of two runners can grow from step to step (F2DC's sharp masks); in float64 it stays small."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def same(a, b, tolerance=1e-7):
    torch.testing.assert_close(a.server.theta, b.server.theta, rtol=tolerance, atol=tolerance)
    for name, value in a.server.buffers.items():
        torch.testing.assert_close(value, b.server.buffers[name], rtol=tolerance, atol=tolerance)
    for client, value in a.values("loss").items():
        assert value == pytest.approx(b.values("loss")[client], rel=1e-6, abs=1e-6)
    for x, y in zip(a.rounds, b.rounds, strict=True):
        assert x.clients == y.clients
        if (
            a.method.merge.uses_weights
        ):  # else a tensor with fewer entries than clients has one direction, and many such weights
            assert x.weights == pytest.approx(y.weights, rel=1e-6, abs=1e-6)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("text", ROWS + MORE)
def test_runners_agree(text):
    """Full and partial participation, unequal clients, small last batches."""
    federation = in_double(pictures() if needs_images(text) else blobs(grouped=needs_groups(text)))
    # At the released rate of 0.1 F2DC's sharp masks amplify rounding a thousandfold per round: from 1e-13 to 1e-7 in three.
    rounds = 2 if text == "f2dc(variant='released')" else 3
    for participation in (1.0, 0.5):
        results = [
            quiet(text, federation, runner=runner, participation=participation, rounds=rounds) for runner in IN_PROCESS
        ]
        for other in results[1:]:
            same(results[0], other)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("text", [row for row in ROWS if not needs_images(row)])
def test_models_with_batch_statistics(text):
    results = [
        quiet(text, in_double(blobs(grouped=needs_groups(text))), model=NormNet, runner=runner, rounds=2)
        for runner in IN_PROCESS
    ]
    for result in results:
        for name, value in result.server.buffers.items():
            if name.endswith("running_var"):
                assert (value > 0).all()
    same(*results)


@pytest.mark.parametrize("text", [row for row in ROWS if not needs_images(row)])
def test_runners_agree_in_single_precision(text):
    inline, vectorised = (
        quiet(text, blobs(grouped=needs_groups(text)), runner=runner, rounds=2) for runner in ("inline", "vectorised")
    )
    torch.testing.assert_close(inline.server.theta, vectorised.server.theta, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("text", ROWS)
def test_the_same_run_gives_the_same_numbers_bit_for_bit(text):
    federation = pictures() if needs_images(text) else blobs(grouped=needs_groups(text))
    a, b = (quiet(text, federation, rounds=2) for _ in range(2))
    assert torch.equal(a.server.theta, b.server.theta)
    assert a.values() == b.values()
    c = quiet(text, federation, rounds=2, seed=1)
    assert a.values("loss") != c.values("loss")  # also where nothing is shared


@pytest.mark.parametrize("text", ROWS)
def test_all_that_is_kept_between_rounds_is_tensors(text):
    """So that any run can be stored and taken up again."""
    result = quiet(text, pictures() if needs_images(text) else blobs(grouped=needs_groups(text)), rounds=1)
    for state in (*result.server.memory.parts.values(), result.server.memory.shared):
        assert all(isinstance(value, (torch.Tensor, PerClient)) for value in state.values())
    for state in result.states.values():
        assert all(isinstance(value, torch.Tensor) for part in state.values() for value in part.values())


@pytest.mark.parametrize("text", ROWS)
def test_odd_clients(text):
    """One sample, one class, no test data, and one that joins late."""
    images = needs_images(text)
    base = pictures() if images else blobs(grouped=needs_groups(text))
    odd = (
        base.clients[0],
        Client("one sample", base.clients[1].train[:1], base.clients[1].validation, base.clients[1].test, "d0"),
        Client(
            "one class",
            base.clients[2].train[base.y[base.clients[2].train] == 0],
            base.clients[2].validation,
            domain="d1",
        ),
        Client("late", base.clients[3].train, base.clients[3].validation, base.clients[3].test, "d1", joins=2),
    )
    federation = Federation(base.name, base.x, base.y, odd, base.classes, base.protocol, groups=base.groups)
    result = quiet(text, federation, rounds=4)
    assert torch.isfinite(result.server.theta).all()
    assert "one class" not in result.values()  # it has no test data
    assert "late" in result.values()
    if not result.method.is_pooled and text != "select_by_hours":  # by which not all take part
        assert [3 in record.clients for record in result.rounds] == [False, False, True, True]


@pytest.mark.parametrize("text", [text for text in ROWS if not needs_groups(text)])
def test_scanners_train_without_a_warning_but_one(text):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = run(text, "scanners", rounds=2, eval_every=2)
    texts = [str(w.message) for w in seen]
    expected = ("fedequilibria: the min-norm weights rest on", "fedbn: the model has no batch normalisation")
    idle = ("power_of_choice: all clients", "sample_draw: all clients", "worst_first: all", "in_turn: all clients")
    expected += idle
    assert all(t.startswith(expected) for t in texts), texts
    assert len(texts) <= 1
    assert result.warnings == tuple(texts)


def test_bit_for_bit_where_the_arithmetic_is_the_same():
    """One client: the vectorised runner calls the same function directly."""
    one = blobs(sizes=(23,))
    a, b = (run("fedavg", one, runner=runner, rounds=3) for runner in ("inline", "vectorised"))
    assert torch.equal(a.server.theta, b.server.theta)
