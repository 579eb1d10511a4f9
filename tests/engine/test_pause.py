"""A run that pauses and goes on gives what it would have given without."""

import pytest
import torch

from equipoise import Checkpoints, EquipoiseError, run


@pytest.mark.parametrize("method", ["fedavg", "feddyn + fedheal", "scaffold + eagle"])
def test_a_run_that_pauses_twice_ends_with_the_same_bits(tmp_path, method):
    options = {"rounds": 12, "seed": 3}
    whole = run(method, "gaussians", **options)
    for pause, done in ((5, 5), (5, 5), (7, 7), (None, 12)):
        paused = run(method, "gaussians", **options, checkpoint=Checkpoints(tmp_path, 100, resume=True, pause=pause))
        assert len(paused.rounds) == done
        assert bool(paused.stopped) == (done < 12)
    assert torch.equal(paused.server.theta, whole.server.theta)
    assert [record.scores for record in paused.rounds] == [record.scores for record in whole.rounds]


def test_a_run_that_pauses_says_so_and_warns_of_nothing(tmp_path):
    paused = run("fedavg", "gaussians", rounds=4, checkpoint=Checkpoints(tmp_path, pause=2))
    assert paused.stopped == "The run is paused after 2 of 4 rounds."
    assert paused.warnings == ()


def test_a_pause_before_the_first_round_is_refused(tmp_path):
    with pytest.raises(EquipoiseError, match=r"`pause` must be at least 1, or None. Found pause=0"):
        Checkpoints(tmp_path, pause=0)
