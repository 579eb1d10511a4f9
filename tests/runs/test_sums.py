"""Stored results are what was measured: one changed bit anywhere in a run folder is found, and the file is named."""

import json
import random
import shutil

import pytest

from equipoise import EquipoiseError, load, run
from equipoise.runs import analysis
from equipoise.runs.reading import read, read_all
from equipoise.runs.writing import Recorder, save
from kit import blobs, quiet
from kit.command import equipoise, invoke

ALL = {"manifest.json", "records.parquet", "weights.parquet", "selection.parquet", "model.safetensors", "analysis.json",
       "schema.json"}  # fmt: skip


def call(*words):
    return invoke(*map(str, words))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that left every kind of file."""
    schema = {"label": "y", "classes": ["a", "b", "c"], "columns": {}}
    data = blobs()
    object.__setattr__(data, "schema", schema)
    result = quiet("fedheal", data, rounds=2, participation=0.5)
    place = save(result, tmp_path_factory.mktemp("runs"))
    analysis.keep(result, ["conflicts", "features"], place)
    assert {path.name for path in place.iterdir()} == ALL
    return place


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_flipped_bit_is_found_and_the_file_named(whole, name):
    path = whole / name
    content, draw = path.read_bytes(), random.Random(0)
    bits = {0, 8 * len(content) - 1, *draw.sample(range(8 * len(content)), 300)}
    try:
        for bit in bits:
            flip(path, bit)
            with pytest.raises(EquipoiseError, match=name) as error:
                read(whole, whole=True)
            assert "\n" not in str(error.value)
            path.write_bytes(content)
    finally:
        path.write_bytes(content)
    assert read(whole, whole=True).is_verified


def test_every_bit_of_the_manifests_end_is_found(whole):
    """Where its own checksum stands, and those of the other files."""
    path = whole / "manifest.json"
    content = path.read_bytes()
    begin = content.index(b'"files"')
    try:
        for bit in range(8 * (begin - 2), 8 * len(content), 3):
            flip(path, bit)
            with pytest.raises(EquipoiseError, match=r"manifest.json` is"):
                read(whole)
            path.write_bytes(content)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["records.parquet", "model.safetensors", "schema.json", "analysis.json"])
def test_commands_say_in_one_line_which_file_is_damaged(whole, name, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(whole.parent, folder)
    good = save(run("fedavg", blobs(), rounds=1), folder)
    place = folder / whole.name
    flip(place / name, 8 * 40)
    checked = call("runs", folder, "--verify")
    assert checked.exit_code == 1
    said = checked.output.replace("\n", "")
    assert f"{name}` is damaged: its checksum differs" in said
    assert "1 verified, 1 cannot be used." in said
    evaluated = equipoise("evaluate", str(place), "gaussians", cwd=tmp_path)
    assert evaluated.returncode == 2
    assert len(evaluated.stderr.splitlines()) == 1
    assert f"{name}` is damaged" in evaluated.stderr
    with pytest.raises(EquipoiseError, match=f"{name}` is damaged"):
        load(place)
    runs, wrong = read_all([folder])
    if name == "model.safetensors":  # a report does not read it
        assert wrong == []
    else:
        assert [one.place for one in runs] == [good]
        assert len(wrong) == 1
        reported = call("report", folder, "-o", tmp_path / "page.html")
        assert reported.exit_code == 0
        assert name in reported.output
        assert name in (tmp_path / "page.html").read_text()


def test_a_missing_file_is_named(whole, tmp_path):
    place = shutil.copytree(whole, tmp_path / "run")
    (place / "selection.parquet").unlink()
    with pytest.raises(EquipoiseError, match=r"selection.parquet` cannot be read: No such file"):
        read(place)


def test_whole_folders_are_verified_and_older_ones_said_not_to_be(whole, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(whole.parent, folder)
    checked = call("runs", folder, "--verify")
    assert checked.exit_code == 0, checked.output
    assert "1 verified, 0 cannot be used." in checked.output
    old = shutil.copytree(whole, folder / "old")
    facts = json.loads((old / "manifest.json").read_text())
    del facts["files"], facts["sha256"]
    (old / "manifest.json").write_text(json.dumps(facts))
    assert not read(old).is_verified
    assert len(load(old).classes) == 3
    checked = call("runs", folder, "--verify")
    assert checked.exit_code == 0
    assert "1 cannot be verified: an earlier version wrote no checksums." in checked.output.replace("\n", " ")
    assert "verified" not in call("runs", folder).output


@pytest.mark.parametrize("end", ["killed", "failed"])
def test_values_of_a_run_that_did_not_end_are_checked_too(end, tmp_path):
    """A flipped bit of a value is found; one in the frame of the stream at most hides the rounds behind it."""
    result = run("fedavg", blobs(), rounds=3)
    recorder = Recorder(result, tmp_path)
    for record in result.rounds:
        recorder.add(record)
    if end == "failed":
        recorder.fail("the power went off")
    else:
        recorder._close()
        recorder.lock.close()
    place = recorder.place
    good = read(place).records
    assert good.num_rows
    path = place / "records.arrows"
    content, draw, found = path.read_bytes(), random.Random(1), 0
    for bit in draw.sample(range(8 * len(content)), 200):
        flip(path, bit)
        runs, wrong = read_all([place])
        if wrong:
            assert "records.arrows" in wrong[0]
            found += 1
        else:
            assert end == "killed"
            rows = runs[0].records
            assert rows.equals(good.slice(0, rows.num_rows))
        path.write_bytes(content)
    assert found == 200 if end == "failed" else found > 50


def test_a_run_that_is_done_again_vouches_for_its_own_files(tmp_path):
    result = run("fedavg", blobs(), rounds=2)
    Recorder(result, tmp_path).fail("once")
    place = save(result, tmp_path)
    assert read(place, whole=True).is_finished
    assert set(read(place).manifest["files"]) == {"records.parquet", "weights.parquet", "model.safetensors"}
