"""What a federation on Flower writes while it goes on, for whoever looks on."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")

from equipoise.flower import Plan, client_app, federate
from equipoise.runs.reading import LATE, read
from equipoise.study.watch.shelf import Shelf
from equipoise.study.watch.standing import find_standings
from kit import Stop, blobs, stop_after
from kit.flower import LoopGrid


def grid_of(plan, fault=None):
    data = blobs()
    return LoopGrid(client_app(plan, data=data), {7 * k + 1: {"partition-id": k} for k in range(len(data))}, fault)


def silent_from(start, node, until=99):
    """The node answers no message of these rounds (from 0)."""

    def fault(asked, answer):
        r = asked.content.config_records.get("equipoise", {}).get("round", -1)
        return None if asked.metadata.dst_node_id == node and start <= r < until else answer

    return fault


def test_every_round_can_be_seen_when_it_is_over_with_who_is_silent(tmp_path):
    plan, seen = Plan(method="fedavg", sites=4, rounds=4), []

    def look(record):
        (one,), problems = Shelf([tmp_path]).look()
        words = {standing.client: (standing.word, standing.since) for standing in find_standings(one.run)}
        seen.append((record.round, one.done, one.is_open, problems, words["c1"]))

    result = federate(grid_of(plan, silent_from(1, 8, until=3)), plan, on_round=look, out=tmp_path)
    assert seen == [
        (1, 1, True, [], ("there", 0)),
        (2, 2, True, [], ("silent", 2)),
        (3, 3, True, [], ("silent", 2)),
        (4, 4, True, [], ("there", 0)),
    ]
    whole = read(tmp_path / result.settings.name)
    assert whole.is_finished
    assert {(one["round"], one["client"], one["why"]) for one in whole.manifest["rejected"]} >= {(2, "c1", LATE)}


def test_a_round_that_is_repeated_is_told_while_it_is(tmp_path):
    plan, told, tries = Plan(method="fedavg", sites=4, rounds=2, min_sites=4), [], []
    seen = []

    def fault(asked, answer):
        if asked.metadata.message_type == "train" and asked.content.config_records["equipoise"]["round"] == 1:
            tries.append(asked)
            if len(tries) % 4 == 1:
                look(asked)
            return answer if len(tries) > 8 else None
        return answer

    def look(asked):
        (one,), _ = Shelf([tmp_path]).look()
        words = {(standing.word, standing.since) for standing in find_standings(one.run)}
        seen.append((words, one.run.manifest.get("repeated", {}).get("tries")))

    def note(text):
        (one,), _ = Shelf([tmp_path]).look()
        told.append(text in one.run.manifest["warnings"])

    result = federate(grid_of(plan, fault), plan, on_note=note, out=tmp_path)
    assert told
    assert all(told)
    assert any("Round 2 was repeated" in text for text in result.warnings)
    stored = read(tmp_path / result.settings.name).manifest["warnings"]
    assert stored == list(result.warnings)
    assert seen == [  # at the first, the second and the third try of round 2
        ({("there", 0)}, None),
        ({("silent", 2)}, 1),
        ({("silent", 2)}, 2),
    ]
    assert "repeated" not in read(tmp_path / result.settings.name).manifest


def test_what_failed_says_so_and_what_is_finished_stays_until_the_next_is_whole(tmp_path):
    plan = Plan(method="fedavg", sites=4, rounds=3)
    with pytest.raises(Stop):
        federate(grid_of(plan), plan, on_round=stop_after(2), out=tmp_path)
    (place,) = tmp_path.iterdir()
    seen = []
    assert (read(place).manifest["status"], read(place).rounds_done) == ("failed", 2)
    federate(grid_of(plan), plan, out=tmp_path)
    assert read(place).is_finished
    with pytest.raises(Stop):
        federate(grid_of(plan), plan, on_round=stop_after(2), out=tmp_path)
    assert read(place).is_finished
    federate(grid_of(plan), plan, on_round=lambda _: seen.extend(Shelf([tmp_path]).look()[0]), out=tmp_path)
    assert [one.done for one in seen if one.is_open] == [1, 2, 3]  # the new run can be watched meanwhile
    assert read(place).is_finished
