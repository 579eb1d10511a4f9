"""Whatever a site sends, the run goes on without it, and says why."""

import json
import tracemalloc

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from equipoise import EquipoiseError
from equipoise.data.stand_in import MOST_SAMPLES, build_stand_in, describe_site, read_about
from equipoise.flower.scores import check_scores
from faults.hostile import ANSWERS, GREETINGS, SCORES, answer_as_hostile_site
from kit import blobs

CASES = {
    f"{kind}: {name}": {kind: {name: spoil}}
    for kind, table in {"train": ANSWERS, "evaluate": SCORES, "query.hello": GREETINGS}.items()
    for name, spoil in table.items()
}


@pytest.mark.parametrize("case", CASES)
def test_no_answer_ends_the_run_or_leaves_a_trace(case):
    (row,) = answer_as_hostile_site(2, CASES[case])
    assert row.figure == "2 of 2 runs bit for bit as without the site, 2 named"


def test_a_federation_without_data_holds_counts():
    """A site that claims a thousand million samples costs no more memory than one with ten."""
    data = blobs()
    about = describe_site(data, data.clients[0], data.protocol.training, 0)
    told = [read_about(json.dumps({**about, "name": name, "train": MOST_SAMPLES})) for name in ("a", "b")]
    tracemalloc.start()
    federation = build_stand_in(told)
    assert len(federation.fingerprint) == 16
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert [len(client.train) for client in federation.clients] == [MOST_SAMPLES] * 2
    assert federation.clients[0].train.untyped_storage().nbytes() == 8
    fewer = build_stand_in([told[0], {**told[1], "train": MOST_SAMPLES - 1}])
    assert fewer.partition != federation.partition


def test_scores_of_groups_are_counts_of_the_samples():
    good = {f"group n[1,{y},{a}]": 5.0 for y in (0, 1) for a in (0, 1)} | {"group right[1]": 12.0}
    good["group loss[1,0]"] = 3.5
    assert check_scores(good, samples=20, groups=2) == good
    for bad, why in (
        ({"group n[1,0,0]": 2.5}, "whole numbers"),
        ({"group n[1,0,0]": 21.0}, "from 0 to 20"),
        ({**good, "group n[0,0,0]": 1.0}, "20 samples in all"),
        ({"group n[2,0,0]": 1.0}, "not known"),
        ({"group n[0,0]": 1.0}, "not known"),
        ({"group n[0,2,0]": 1.0}, "not known"),
        ({"group right[0]": 21.0}, "to 20"),
        ({"group loss[0,1]": -1.0}, "from 0"),
    ):
        with pytest.raises(EquipoiseError, match=why):
            check_scores(bad, samples=20, groups=2)
