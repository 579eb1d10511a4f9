import pytest
import torch

from equipoise import parse
from equipoise.engine.simulation import run
from equipoise.engine.states import ClientStates, flatten, nest
from kit import blobs


def state(k, size=100):
    return {"part": {"a": torch.full((size,), float(k)), "b.c": torch.tensor(k)}}


def test_states_move_to_disk_and_back():
    states = ClientStates(limit=1500)
    for k in range(8):
        states[k] = state(k)  # 408 bytes each
    assert states.on_disk == 5
    assert list(states) == list(range(8))
    for k in range(8):
        assert torch.equal(states[k]["part"]["a"], torch.full((100,), float(k)))
        assert int(states[k]["part"]["b.c"]) == k
    assert 3 in states
    assert 9 not in states
    with pytest.raises(KeyError):
        states[9]


def test_the_least_recently_used_goes_first():
    states = ClientStates(limit=1500)
    for k in range(3):
        states[k] = state(k)
    _ = states[0]
    states[3] = state(3)
    assert set(states._there) == {1}
    states[1] = state(11)  # written anew: in memory again
    assert set(states._there) == {2}
    assert int(states[1]["part"]["b.c"]) == 11
    del states[2]
    assert 2 not in states
    assert len(states) == 3


def test_a_single_state_larger_than_the_limit_stays():
    states = ClientStates(limit=10)
    states[0] = state(0)
    assert states.on_disk == 0


def test_flat_and_back():
    """Names may hold dots; every tensor comes back under the part it belongs to."""
    whole = {**state(4), "other": {"a": torch.tensor(5.0)}}
    back = nest(flatten(whole))
    assert back.keys() == whole.keys()
    for key, part in whole.items():
        assert back[key].keys() == part.keys()
        assert all(torch.equal(back[key][name], value) for name, value in part.items())


def test_a_run_with_states_on_disk_is_the_same(monkeypatch):
    import equipoise.engine.loop as module

    plain = run("local_only", blobs(), rounds=3)
    monkeypatch.setattr(module, "ClientStates", lambda: ClientStates(limit=1))
    spilled = run("local_only", blobs(), rounds=3)
    assert spilled.states.on_disk == 3
    assert plain.values() == spilled.values()


def test_methods_that_need_only_a_sum_keep_no_rows():
    for text, streams in {
        "fedavg": True, "fedavg(weights='uniform')": True, "fedsgd": True, "eagle": True, "f2dc(daa=False)": True,
        "daa": False, "fedheal": False, "fedfe": False, "fedequilibria": False, "eagle(apply='server')": False,
    }.items():  # fmt: skip
        assert parse(text).streams == streams, text
