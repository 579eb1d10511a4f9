import numpy as np
import pytest
import torch

from equipoise import seeds


def test_a_key_depends_on_every_element_of_its_path():
    paths = [(0,), (1,), (0, "a"), (0, "b"), (0, "a", 1), (0, "a", 2), ("0", "a")]
    assert len({seeds.key(*path) for path in paths}) == len(paths)
    assert all(0 <= seeds.key(*path) < 2**63 for path in paths)


def test_draws_are_reproducible_and_leave_the_global_generator_alone():
    state = torch.random.get_rng_state()
    a, b = seeds.uniform((3, 4), 0, "x"), seeds.uniform((3, 4), 0, "x")
    assert torch.equal(a, b)
    assert not torch.equal(a, seeds.uniform((3, 4), 1, "x"))
    built = [seeds.build_from_seed(lambda: torch.nn.Linear(3, 2), 0, "model").weight for _ in range(2)]
    assert torch.equal(*built)
    assert torch.equal(state, torch.random.get_rng_state())


def test_orders_of_many_keys_at_once_are_those_of_each_alone():
    sizes = np.array([5, 9, 1, 7])
    keys = [seeds.key("client", k) for k in range(4)]
    together = seeds.permutations(sizes, 3, keys)
    assert together.shape == (4, 3, 9)
    for k, size in enumerate(sizes):
        alone = seeds.permutations(sizes[k : k + 1], 3, keys[k : k + 1])[0]
        assert (together[k][:, :size] == alone).all()
        assert (np.sort(alone, axis=1) == np.arange(size)).all()
    longer = seeds.permutations(sizes, 5, keys)
    assert (longer[:, :3] == together).all()  # more epochs do not change the first ones


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_order_is_equally_likely(size):
    found = seeds.permutations(np.full(4000, size), 5, [seeds.key(k) for k in range(4000)])
    orders, counts = np.unique(found.reshape(-1, size), axis=0, return_counts=True)
    expected = 20_000 / np.prod(np.arange(1, size + 1))
    assert len(orders) == np.prod(np.arange(1, size + 1))
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 2 * len(orders) + 20


def test_participants():
    available = list(range(0, 40, 2))
    chosen = seeds.draw_participants(available, 5, seed=0, round=3)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(available)
    assert chosen == seeds.draw_participants(available, 5, 0, 3)
    often = np.zeros(40)
    for r in range(2000):
        often[seeds.draw_participants(available, 5, 0, r)] += 1
    assert often[::2].min() > 400  # each of the twenty is drawn about 500 times
    assert often[::2].max() < 600
