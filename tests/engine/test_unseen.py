"""Clients that are held out: they never train, and are scored apart."""

import json
from dataclasses import replace

import pytest
import torch

from equipoise import EquipoiseError, Federation, load_federation, save
from equipoise.data.federation import find_scored
from equipoise.runs.reading import read
from kit import blobs, quiet

METHODS = ["fedavg", "fedheal", "eagle(lstar_epochs=4)", "fedbn", "ditto", "select_worst", "centralised", "local_only"]


def without(federation, *names):
    return replace(federation, clients=tuple(c for c in federation.clients if c.name not in names))


@pytest.mark.parametrize("text", METHODS)
def test_a_run_is_what_it_is_without_the_clients_that_are_held_out(text):
    """Bit for bit: model, weights, participation and every score of the others."""
    for participation in (1.0, 0.5):
        options = {"rounds": 3, "participation": participation}
        held = quiet(text, blobs(), hold_out="c1", **options)
        plain = quiet(text, without(blobs(), "c1"), **options)
        assert torch.equal(held.server.theta, plain.server.theta)
        assert held.values() == plain.values()
        assert held.figures() == plain.figures()
        assert [(r.clients, r.weights) for r in held.rounds] == [(r.clients, r.weights) for r in plain.rounds]
        assert set(held.values(split="unseen")) == {"c1"}
        assert "c1" not in held.values(split="train")


def write_stays(folder, shift, clients=("north", "south", "east")):
    """A table of stays in days, in which those of `south` are longer by `shift`."""
    draw = torch.Generator().manual_seed(4)
    rows = ["client,dose,age,stay"]
    for name in ("north", "south", "east"):
        for dose, age, noise in torch.randn(40, 3, generator=draw).tolist():
            stay = 5 + 2 * dose - age + 0.3 * noise + (shift if name == "south" else 0)
            rows += [f"{name},{dose:.3f},{age:.3f},{stay:.3f}"] if name in clients else []
    folder.mkdir()
    path = folder / "stays.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def own_numbers(shift, clients=("c0", "c1", "c2")):
    draw = torch.Generator().manual_seed(3)
    samples = {name: torch.randn(30, 3, generator=draw) for name in ("c0", "c1", "c2")}
    found = {n: (x, 100 + 20 * x[:, 0] + (shift if n == "c1" else 0)) for n, x in samples.items() if n in clients}
    return Federation.from_tensors(found, target="number", test_share=0.3)


@pytest.mark.parametrize("kind", ["arrays", "table"])
def test_numbers_of_clients_that_are_held_out_do_not_enter_training(kind, tmp_path):
    """Centre and spread come from those who train, so that the others' run is the one without the held-out client."""
    if kind == "arrays":
        held, plain, name = own_numbers(500), own_numbers(0, ("c0", "c2")), "c1"
    else:
        places = write_stays(tmp_path / "a", 500), write_stays(tmp_path / "b", 0, ("north", "east"))
        held, plain = (load_federation(f"own(path={str(place)!r}, target=('stay',))") for place in places)
        name = "south"
    found, alone = quiet("fedavg", held, rounds=3, hold_out=name), quiet("fedavg", plain, rounds=3)
    assert torch.equal(found.server.theta, alone.server.theta)
    for metric in ("loss", "mae"):
        assert found.values(metric) == alone.values(metric)
    assert (found.federation.centre, found.federation.spread) == (plain.centre, plain.spread)
    assert found.federation.schema == plain.schema
    assert found.values("mae", "unseen")[name] > 400  # in the units of the numbers
    assert held.centre != plain.centre


def test_an_agreed_schema_says_how_numbers_are_standardised_whoever_is_held_out(tmp_path):
    place = write_stays(tmp_path / "a", 500)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(load_federation(f"own(path={str(place)!r}, target=('stay',))").schema))
    data = load_federation(f"own(path={str(place)!r}, schema={str(schema)!r})")
    held = data.hold_out("south")
    assert (held.centre, held.spread, held.schema) == (data.centre, data.spread, data.schema)
    assert torch.equal(held.y, data.y)


def test_they_are_scored_in_every_evaluation_by_the_global_model():
    held = quiet("fedavg", blobs(), hold_out="c1", rounds=4, eval_every=2)
    scored = [[s for s in r.scores if s.split == "unseen" and s.metric == "accuracy"] for r in held.rounds]
    assert [len(one) for one in scored] == [0, 1, 0, 1]
    params = held.task.layout.split(held.server.theta)
    index = blobs().clients[1].test
    logits = held.task.apply(params, {}, held.federation.x[index]).logits
    assert held.values(split="unseen")["c1"] == pytest.approx(
        float((logits.argmax(1) == held.federation.y[index]).float().mean())
    )


def test_without_test_data_all_that_they_have_is_scored():
    bare = replace(blobs().clients[0], test=torch.zeros(0, dtype=torch.long))
    assert torch.equal(find_scored(bare), bare.train)
    assert torch.equal(find_scored(blobs().clients[0]), blobs().clients[0].test)


def test_runners_agree():
    results = [
        quiet("fedheal", blobs(), hold_out="d1", rounds=2, runner=runner)
        for runner in ("inline", "vectorised", "processes")
    ]
    for other in results[1:]:
        assert other.values("loss", "unseen") == pytest.approx(results[0].values("loss", "unseen"), abs=1e-5)
    assert set(results[0].values(split="unseen")) == {"c2", "c3"}  # the clients of the domain


def test_a_number_is_drawn_by_the_seed_of_the_data():
    drawn = {tuple(c.name for c in replace(blobs(), seed=seed).hold_out(2).unseen) for seed in range(20)}
    assert len(drawn) > 3
    assert all(len(names) == 2 for names in drawn)
    again = [c.name for c in blobs().hold_out(2).unseen]
    assert again == [c.name for c in blobs().hold_out("2").unseen]
    assert load_federation("gaussians(seed=3)").seed == 3
    assert blobs().hold_out(0).unseen == ()
    assert blobs().hold_out(("c0", "c2")).hold_out("c1").domains == ("d1",)


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("c9", r"no client and no domain `c9` to hold out. There are c0, c1, c2, c3, d0, d1"),
        ("cc1", "Did you mean `c1`"),
        ("d0,d1", "Nobody would be left to train: all 4 clients are held out by 'd0,d1'"),
        (4, r"hold_out must be from 0 to 3, so that somebody of the 4 clients is left to train. Found 4"),
        (-1, "Found -1"),
        (True, "Found True"),
        ([1], r"names of clients or domains. Found \[1\]"),
    ],
)
def test_mistakes_are_explained(which, message):
    with pytest.raises(EquipoiseError, match=message):
        quiet("fedavg", blobs(), hold_out=which)


def test_records_tell_who_was_held_out(tmp_path):
    held, plain = (quiet("fedavg", blobs(), rounds=2, hold_out=which) for which in ("c1", ""))
    assert held.settings.digest != plain.settings.digest
    assert held.federation.fingerprint != without(blobs(), "c1").fingerprint
    found = read(save(held, tmp_path))
    assert (found.clients, found.unseen) == (["c0", "c2", "c3"], ["c1"])
    assert found.curve(split="unseen")[1].shape == (2, 1)
    assert found.curve()[1].shape == (2, 3)
    assert found.manifest["evaluated"] == {"model": "global", "split": "test", "unseen": "global"}
    assert "unseen" not in read(save(plain, tmp_path)).manifest["data"]


def test_tensors_of_ones_own_are_replaced_by_the_mean_of_those_who_train(tmp_path):
    found = read(save(quiet("fedbn", blobs(), rounds=1, hold_out="c1", buffers="local"), tmp_path))
    assert found.manifest["evaluated"]["unseen"] in ("global", "averaged-personal")
    alone = read(save(quiet("local_only", blobs(), rounds=1, hold_out="c1"), tmp_path))
    assert alone.manifest["evaluated"]["unseen"] == "averaged-personal"


def test_names_must_differ_also_of_those_held_out():
    with pytest.raises(EquipoiseError, match="Client names must differ"):
        replace(blobs(), unseen=blobs().clients[:1])
    assert isinstance(blobs().hold_out(1), Federation)
