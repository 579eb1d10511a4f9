"""What a client sends, receives and computes in a round."""

import pytest

from equipoise.engine.loop import begin_run
from equipoise.engine.settings import Settings
from equipoise.runs.cost import _count_work, estimate_cost
from kit import blobs, pictures
from kit.rows import MORE, ROWS, needs_groups, needs_images

WEIGHTS = 6 * 7 + 7 + 7 * 3 + 3  # an MLP 6-7-3
SAMPLES = (23 + 14 + 9 + 31) / 4
STEP = 2 * (2 * 6 * 7 + 3 * 7 * 3)  # per sample: forward, gradients of the weights, and of the second layer's input
FORWARD = 2 * (6 * 7 + 7 * 3)


def cost_of(text, data=None):
    begun = begin_run(Settings.of(text, data or blobs()))
    return estimate_cost(begun.method, begun.task, begun.settings.cohort)


def test_fedavg_by_hand():
    found = cost_of("fedavg")
    assert found["flops"] == round(STEP * 2 * SAMPLES)  # 2 epochs
    assert found["upload"] == 4 * WEIGHTS + 4  # and the number of samples
    assert found["download"] == 4 * WEIGHTS


def test_what_a_method_computes_besides_is_counted():
    plain = cost_of("fedavg")["flops"]
    assert cost_of("fedfe")["flops"] == pytest.approx(
        plain + FORWARD * SAMPLES, abs=1
    )  # the loss of the received model
    fisher = 2 * 7 * 3 + FORWARD + FORWARD  # a forward pass, the gradients of outputs, and of squares
    assert cost_of("fedequilibria")["flops"] == pytest.approx(plain + fisher * SAMPLES, abs=1)
    assert cost_of("ditto")["flops"] == pytest.approx(2 * plain, abs=1)
    assert cost_of("moon")["flops"] > plain + round(FORWARD * SAMPLES)
    private, shared = (cost_of(f"f2dc(share_modules={own})", pictures()) for own in (False, True))
    assert private["flops"] == shared["flops"] > cost_of("fedavg", pictures())["flops"]


def test_what_the_server_sends_besides_is_counted():
    assert cost_of("scaffold")["download"] == 2 * cost_of("fedavg")["download"]
    assert cost_of("eagle")["download"] == cost_of("fedavg")["download"] + 8


@pytest.mark.parametrize("text", ROWS + MORE)
def test_every_method_can_be_tried_small(text):
    """None is only estimated by its forward passes: then nothing would be counted besides, nor received."""
    data = pictures() if needs_images(text) else blobs(grouped=needs_groups(text))
    begun = begin_run(Settings.of(text, data))
    work = _count_work(begun.method, begun.task)
    assert work.step > 0
    assert work.besides >= 0
    if begun.method.share and not begun.method.probes:
        assert work.received > 0
