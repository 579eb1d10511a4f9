"""Very many clients: none is made before it is needed, and nothing differs from the same clients one by one."""

import numpy as np
import pytest
import torch

from equipoise import EquipoiseError, Federation, Protocol, Training, run
from equipoise.data.clients import Client, Crowd
from equipoise.data.federation import draw_scored
from equipoise.engine.settings import Settings
from equipoise.metrics import estimate
from equipoise.rounds import parts as parts_module
from equipoise.runs.reading import read
from equipoise.runs.writing import save
from equipoise.seeds import draw_few, draw_participants
from equipoise.types import PerClient
from kit import quiet

PROTOCOL = Protocol(rounds=2, training=Training(epochs=1, batch=4, lr=0.1), model="mlp(hidden=(5,))")


def pool(clients, samples=10, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(clients * samples, 4, generator=draw)
    return x, (x[:, 0] + 0.3 * x[:, 1] > 0).long()


def crowd(clients=12, **options):
    x, y = pool(clients)
    return Federation.from_pool(x, y, train=7, test=3, classes=2, protocol=PROTOCOL, **options)


def one_by_one(data):
    """The same federation, with its clients made beforehand."""
    return Federation(data.name, data.x, data.y, tuple(data.clients), data.classes, data.protocol)


@pytest.mark.parametrize("method", ["fedavg", "fedheal", "scaffold", "ditto", "fedequilibria", "eagle(lstar_epochs=3)"])
def test_a_crowd_trains_like_the_same_clients_one_by_one(method):
    data = crowd()
    if "eagle" in method:  # it needs validation data, which a crowd takes from the end of each client's
        data = data.with_validation()
    a, b = (quiet(method, one, rounds=2, participation=0.5, eval_clients=12) for one in (data, one_by_one(data)))
    assert [record.clients for record in a.rounds] == [record.clients for record in b.rounds]
    assert torch.equal(a.server.theta, b.server.theta)
    assert a.values() == b.values()


def test_clients_of_other_sizes():
    x, y = pool(2, samples=9)
    data = Federation.from_pool(x, y, train=[10, 2], test=[1, 5], classes=["no", "yes"])
    assert [len(client.train) for client in data.clients] == [10, 2]
    assert data.clients[1].test.tolist() == [13, 14, 15, 16, 17]
    assert data.total_samples == 12
    assert data.clients[-1].name == "client 1"
    assert [client.name for client in data.clients[0:5]] == ["client 0", "client 1"]
    with pytest.raises(IndexError):
        data.clients[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": [10, 2], "test": [1, 4]}, "17 are dealt out, x has 18"),
        ({"train": [17, 0], "test": [1, 0]}, "Client `client 1` has no training samples"),
        ({"train": 0, "test": 2}, "`train` must be at least 1"),
    ],
)
def test_a_pool_that_does_not_fit(options, message):
    with pytest.raises(EquipoiseError, match=message):
        Federation.from_pool(*pool(2, samples=9), classes=2, **options)


def test_what_a_crowd_cannot_do_is_said():
    with pytest.raises(EquipoiseError, match="Clients of a crowd cannot be held out"):
        crowd().hold_out(2)
    x, y = pool(4, samples=2)
    single = Federation.from_pool(x, y, train=1, test=1, classes=2)
    with pytest.raises(EquipoiseError, match="Clients of one sample cannot set one aside"):
        single.with_validation()


def test_other_crowds_have_other_fingerprints():
    x, y = pool(12)
    other = Federation.from_pool(x, y, train=6, test=4, classes=2, protocol=PROTOCOL)
    assert crowd().fingerprint == crowd().fingerprint != other.fingerprint


def test_no_client_is_made_before_it_is_needed(monkeypatch):
    """A million clients: a run of two rounds makes those that take part and those that are scored."""
    made = []
    make = Client.__init__
    monkeypatch.setattr(Client, "__init__", lambda self, *given: (made.append(1), make(self, *given))[1])
    count = 1_000_000
    x, y = torch.zeros(1, 4).expand(count * 2, 4), torch.zeros(1, dtype=torch.long).expand(count * 2)
    data = Federation.from_pool(x, y, train=1, test=1, classes=2, protocol=PROTOCOL, digest="zeros")
    result = quiet("fedavg", data, participation=20 / count, eval_clients=30, eval_every=2)
    assert len(result.rounds[0].clients) == 20
    assert len(result.values()) == 30
    assert len(made) < 2000


# --------------------------------------------------------------------------- scores of a sample
def test_some_clients_are_scored_and_the_manifest_says_so(tmp_path):
    result = quiet("fedavg", crowd(), rounds=2, eval_clients=5)
    assert len(result.values()) == 5
    assert any("5 of 12 clients are scored, drawn by the seed" in note for note in result.warnings)
    found = read(save(result, tmp_path))
    assert found.manifest["scored"] == 5
    assert found.manifest["data"]["crowd"] == {"clients": 12, "train": 84}
    assert len(found.clients) == 5
    assert found.curve()[1].shape == (2, 5)
    assert not np.isnan(found.curve()[1]).any()


def test_a_sample_of_an_ordinary_federation():
    result = quiet("fedavg", one_by_one(crowd()), rounds=1, eval_clients=4)
    assert len(result.values()) == 4
    assert quiet("fedavg", one_by_one(crowd()), rounds=1).values().items() >= result.values().items()
    with pytest.raises(EquipoiseError, match="`eval_clients` must be at least 1"):
        run("fedavg", crowd(), eval_clients=0)


def test_a_thousand_of_a_crowd_are_scored_by_default():
    x, y = pool(3000, samples=2)
    data = Federation.from_pool(x, y, train=1, test=1, classes=2)
    assert len(draw_scored(data, None, 0)) == 1000
    assert Settings.of("fedavg", data, seed=1).scored != Settings.of("fedavg", data, seed=2).scored


def test_the_interval_of_a_sample_holds():
    """Of many samples of one population, about 95 in 100 intervals have its mean."""
    draw = np.random.default_rng(0)
    population = draw.beta(2, 5, size=3000)
    found = [estimate(draw.choice(population, 100, replace=False).tolist(), 3000) for _ in range(400)]
    inside = np.mean([abs(one.average - population.mean()) <= one.half_width for one in found])
    assert 0.92 <= inside <= 0.98
    share_below = [(population < one.worst).mean() for one in found]
    assert np.mean([share <= one.below for share, one in zip(share_below, found, strict=True)]) >= 0.93


# --------------------------------------------------------------------------- draws and rows
def test_few_of_very_many():
    few = draw_few(10**9, 1000, 3, "few")
    assert few == sorted(set(few))
    assert len(few) == 1000
    assert max(few) < 10**9
    assert draw_few(5, 5, 0) == [0, 1, 2, 3, 4]
    drawn = [draw_participants(range(1 << 18), 64, 0, r) for r in range(200)]
    assert abs(np.mean(drawn) / (1 << 18) - 0.5) < 0.02
    assert len({tuple(one) for one in drawn}) == 200


def test_rows_go_to_disk_beyond_a_limit(monkeypatch):
    """The earliest first, all in one file; they come back as they were."""
    rows = PerClient().put(range(6), [torch.full((100,), float(k)) for k in range(6)])  # 400 bytes each
    kept = rows.shelve(1000, parts_module._open_store)
    assert sum(type(row).__name__ == "Shelved" for row in kept._rows.values()) == 4
    assert all(torch.equal(kept[k], rows[k]) for k in range(6))
    again = kept.put([0], [torch.ones(100)])
    assert float(again[0].sum()) == 100
    assert again.list_new(kept) == [again._rows[0]]
    assert torch.equal(again.only([3, 0]).take([3, 0]), torch.stack([rows[3], torch.ones(100)]))
    store = parts_module._open_store()
    end = store._end
    del kept, again
    PerClient().put(range(4), [torch.zeros(100)] * 4).shelve(0, lambda: store)
    assert store._end == end  # places that nobody has any more are used again


@pytest.mark.parametrize("method", ["fedheal", "fedfe(tau=3)"])
def test_a_run_with_rows_on_disk_is_the_same(monkeypatch, method):
    plain = quiet(method, crowd(), rounds=4, participation=0.5)
    monkeypatch.setattr(parts_module, "LIMIT", 100)
    spilled = quiet(method, crowd(), rounds=4, participation=0.5)
    assert torch.equal(plain.server.theta, spilled.server.theta)
    kept = [v for state in spilled.server.memory.parts.values() for v in state.values() if isinstance(v, PerClient)]
    assert any(type(row).__name__ == "Shelved" for value in kept for row in value._rows.values())


def test_a_crowd_is_a_sequence():
    some = crowd().clients
    assert isinstance(some, Crowd)
    assert len(list(some)) == len(some) == 12
