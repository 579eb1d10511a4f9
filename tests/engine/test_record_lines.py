"""The records of checkpoints only grow, come back whole or not at all, and outlive a kill at any file operation."""

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch

from equipoise import EquipoiseError, EquipoiseWarning
from equipoise.engine import checkpoints
from equipoise.engine.checkpoints import Checkpoints, discard, find_saved
from equipoise.engine.folders import seal, verify
from equipoise.engine.record_lines import FILES
from equipoise.engine.simulation import run
from kit import Stop, blobs, quiet, stop_after
from kit.killed import kill_at


def train(folder, rounds=4, resume=True, **options):
    return quiet(
        "scaffold", blobs(), rounds=rounds, runner="inline", checkpoint=Checkpoints(folder, resume=resume), **options
    )


def stop(folder, after, rounds=4):
    with pytest.raises(Stop):
        train(folder, rounds, resume=False, on_round=stop_after(after))


def without_seconds(found):
    return [replace(record, seconds=0.0) for record in found.rounds]


def test_a_kill_at_any_file_operation_loses_nothing(tmp_path):
    """Of a round, of its checkpoint, and of the removal of all checkpoints when the run is over."""
    whole = quiet("scaffold", blobs(), rounds=4, runner="inline")
    begun = tmp_path / "begun"
    stop(begun, 3)
    number, died = 0, True
    while died:
        folder = tmp_path / f"killed-{number}"
        shutil.copytree(begun, folder)

        def finish(folder=folder):
            train(folder)
            discard(folder)

        died = kill_at(number, folder, finish)
        assert died or not folder.exists()
        found = train(folder)
        assert torch.equal(found.server.theta, whole.server.theta)
        assert without_seconds(found) == without_seconds(whole)
        discard(folder)
        assert not folder.exists()
        number += 1
    assert number > 40


def test_rounds_are_appended(tmp_path):
    """A checkpoint does not grow with the rounds done, and what was written of a round stays as it is."""
    stop(tmp_path, 2, rounds=30)
    early = {name: (tmp_path / name).read_bytes() for name in FILES}
    size = (find_saved(tmp_path)[-1] / "state.json").stat().st_size
    with pytest.raises(Stop):
        train(tmp_path, 30, on_round=stop_after(20))
    assert (find_saved(tmp_path)[-1] / "state.json").stat().st_size < size + 20
    for name, content in early.items():
        now = (tmp_path / name).read_bytes()
        assert now.startswith(content)
        assert len(now) > 5 * len(content)


def test_a_damaged_line_is_found_and_the_checkpoint_before_used(tmp_path):
    begun = tmp_path / "begun"
    stop(begun, 3)
    mark = verify(find_saved(begun)[-1])["records"]
    content = (begun / mark["file"]).read_bytes()
    assert mark["bytes"] == len(content)
    for place in range(0, len(content), 97):
        folder = tmp_path / "damaged"
        shutil.copytree(begun, folder)
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (folder / mark["file"]).write_bytes(damaged)
        older, newer = find_saved(folder)
        assert len(checkpoints.read(older).records) == 2
        with pytest.raises(EquipoiseError, match=r"corrupt: .*records-\d.jsonl"):
            checkpoints.read(newer)
        shutil.rmtree(folder)


def test_a_missing_or_short_file_is_a_bad_checkpoint(tmp_path):
    stop(tmp_path, 3)
    file = tmp_path / verify(find_saved(tmp_path)[-1])["records"]["file"]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(EquipoiseWarning, match=r"round-00000003.*The one before it is used"):
        found = run("scaffold", blobs(), rounds=4, runner="inline", checkpoint=Checkpoints(tmp_path, resume=True))
    whole = quiet("scaffold", blobs(), rounds=4, runner="inline")
    assert without_seconds(found)[2:] == without_seconds(whole)[2:]
    (tmp_path / verify(find_saved(tmp_path)[-1])["records"]["file"]).unlink()
    with pytest.raises(EquipoiseError, match="cannot be read: No such file"):
        checkpoints.read(find_saved(tmp_path)[-1])


def test_a_run_goes_on_from_a_checkpoint_of_the_first_format(tmp_path):
    """In which the checkpoint itself held the records."""
    stop(tmp_path, 3)
    for place in find_saved(tmp_path):
        records = [asdict(record) for record in checkpoints.read(place).records]
        seal(place, {**verify(place), "records": records})
        state = place / "state.json"
        state.write_text(json.dumps({**json.loads(state.read_text()), "format": 1}))
    for name in FILES:
        (tmp_path / name).unlink()
    whole = quiet("scaffold", blobs(), rounds=4, runner="inline")
    assert without_seconds(train(tmp_path)) == without_seconds(whole)
    assert len(checkpoints.read(find_saved(tmp_path)[-1]).records) == 4
