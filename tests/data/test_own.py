"""A user's own data, from the command line to the records, and every way in which it can be wrong."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from equipoise import EquipoiseError, load_federation, run
from equipoise.data.own import own
from kit.command import equipoise
from kit.files import pixels, write_folder, write_images

SIDES = ("left", "right")


def sided(count, size=12, seed=0):
    """Images whose bright side is their class: easy to learn."""
    draw = np.random.default_rng(seed)
    dark = draw.integers(0, 60, (count, size, size), dtype=np.uint8)
    left, right = dark.copy(), dark.copy()
    left[:, :, : size // 2] += 150
    right[:, :, size // 2 :] += 150
    return {"left": left, "right": right}


@pytest.fixture
def folder(tmp_path):
    """Three clients with image folders by class, of different size, one of them with a folder a split."""
    root = tmp_path / "my-data"
    write_folder(root, "north", sided(15))
    write_folder(root, "south", sided(20, size=16, seed=1), ".jpg")
    for split, count in (("train", 12), ("test-2024", 6)):
        write_folder(root / "east", split, sided(count, seed=count))
    return root


@pytest.fixture
def table(tmp_path):
    """A CSV with a client column, text, gaps, and text labels."""
    draw = np.random.default_rng(0)
    n = 240
    ill = draw.random(n) < 0.5
    columns = {
        "site": [f"h{i % 3}" for i in range(n)],
        "country": [["de", "fr", "fr"][i % 3] for i in range(n)],
        "pressure": [None if draw.random() < 0.1 else round(120 + 30 * bool(i) + draw.normal(0, 8), 1) for i in ill],
        "smoker": [None if draw.random() < 0.1 else ("yes" if draw.random() < 0.3 + 0.4 * i else "no") for i in ill],
        "diagnosis": ["ill" if i else "healthy" for i in ill],
    }
    path = tmp_path / "patients.csv"
    pyarrow.csv.write_csv(pa.table(columns), path)
    return path


# --------------------------------------------------------------------------- end to end
def environment(tmp_path):
    return {"EQUIPOISE_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}


def test_a_folder_of_images_runs(folder, tmp_path, monkeypatch):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    done = equipoise(
        "run", "./my-data", "--method", "fedheal", "--rounds", "6", "--model", "small_cnn(width=8)", "--lr", "0.05",
        "--image-size", "12", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in ("fedheal", "north", "south", "east"):
        assert word in done.stdout
    assert "larger than 12x12 were reduced to it: south" in done.stderr.replace("\n", " ")
    (place,) = (tmp_path / "runs").iterdir()
    kept = json.loads((place / "manifest.json").read_text())
    assert kept["data"]["name"] == "my-data"
    assert json.loads((place / "schema.json").read_text())["classes"] == list(SIDES)
    final = [
        r for r in pq.read_table(place / "records.parquet").to_pylist() if r["round"] == 6 and r["metric"] == "accuracy"
    ]
    assert np.mean([r["value"] for r in final]) > 0.8  # it learnt


def test_arguments_are_kept_for_records_but_no_paths(table):
    assert load_federation("gaussians(rotate=2)").arguments == "rotate=2"
    assert load_federation(f"own(path={str(table)!r}, label='diagnosis', client='site')").arguments == ""


def test_a_table_runs_and_its_schema_can_be_given_back(table, tmp_path, monkeypatch):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    options = ("--label", "diagnosis", "--client", "site", "--domain", "country")
    done = equipoise("run", "patients.csv", *options, "--method", "fedavg", "--rounds", "5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("h0", "h2", "de", "fr", "AUC"):
        assert word in done.stdout
    (place,) = (tmp_path / "runs").iterdir()
    schema = place / "schema.json"
    assert json.loads(schema.read_text()) == {
        "label": "diagnosis",
        "classes": ["healthy", "ill"],
        "columns": {"pressure": "number", "smoker": ["no", "yes"]},
    }
    again = own(str(table), client="site", domain="country", schema=str(schema))
    first = own(str(table), label="diagnosis", client="site", domain="country")
    assert again.fingerprint == first.fingerprint
    assert run("fedavg", first, rounds=10).figures().avg > 0.75


@pytest.mark.slow
def test_compare_and_datasets_take_own_data(table, tmp_path, monkeypatch):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    options = ("--label", "diagnosis", "--client", "site", "--ignore", "country")
    done = equipoise(
        "compare", str(table), *options, "--methods", "fedavg,fedheal", "--seeds", "1", "--rounds", "2", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "own(path=" in done.stdout  # what to try next
    shown = equipoise("datasets", str(table), *options, "--plot", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "patients: 3 clients" in shown.stdout
    assert (tmp_path / "patients.png").stat().st_size > 5_000


# --------------------------------------------------------------------------- what is understood
def test_splits_of_folders_and_of_the_rest(folder):
    found = own(str(folder))
    by_name = {c.name: c for c in found.clients}
    assert list(by_name) == ["east", "north", "south"]
    assert (len(by_name["east"].train), len(by_name["east"].test)) == (24, 12)
    assert [len(by_name["north"].split(s)) for s in ("train", "validation", "test")] == [18, 6, 6]
    assert found.classes == SIDES
    assert found.x.shape[1:] == (1, 32, 32)  # of different size: squares of 32
    assert own(str(folder)).fingerprint == found.fingerprint
    assert own(str(folder), seed=1).fingerprint != found.fingerprint
    labels = found.y[by_name["south"].train]
    assert torch.bincount(labels).tolist() == [12, 12]


def test_parquet_of_images_in_one_folder_a_client(tmp_path):
    for client in ("a", "b"):
        for split, count in (("train", 9), ("test", 6), ("validation", 3)):
            labels = [i % 3 for i in range(count)]
            write_images(
                tmp_path / "d" / client / f"{split}-00000-of-00001.parquet", pixels(count), labels, ("x", "y", "z")
            )
    found = own(str(tmp_path / "d"))
    assert found.classes == ("x", "y", "z")
    assert [[len(c.split(s)) for s in ("train", "validation", "test")] for c in found.clients] == [[9, 3, 6]] * 2
    assert load_federation(str(tmp_path / "d")).fingerprint == found.fingerprint


def test_tables_in_one_folder_a_client(tmp_path):
    for k, client in enumerate(("a", "b")):
        (tmp_path / "d" / client).mkdir(parents=True)
        for split, count in (("train", 9), ("test", 6)):
            columns = {"v": [float(i + k) for i in range(count)], "label": [3 + 2 * (i % 2) for i in range(count)]}
            pyarrow.csv.write_csv(pa.table(columns), tmp_path / "d" / client / f"{split}.csv")
    found = own(str(tmp_path / "d"))
    assert found.classes == ("3", "5")
    assert [len(c.train) for c in found.clients] == [9, 9]
    assert found.x.shape == (30, 1)


def test_tables_with_a_client_column_in_two_splits(tmp_path):
    """The same name is the same client in both (and not whoever stands at its place)."""
    (tmp_path / "d").mkdir()
    for split, names in (("train", ["a", "b", "b", "c", "c", "a"]), ("test", ["c", "b", "c", "b"])):
        columns = {
            "v": [ord(n) for n in names],
            "w": range(len(names)),
            "label": [i % 2 for i in range(len(names))],
            "client": names,
        }
        pq.write_table(pa.table(columns), tmp_path / "d" / f"{split}-1.parquet")
    found = own(str(tmp_path / "d"))
    assert [c.name for c in found.clients] == ["a", "b", "c"]
    sizes = [[len(c.train), len(c.test)] for c in found.clients]
    assert sizes == [[2, 0], [2, 2], [2, 2]]  # client a has two rows of two classes: none to spare for a test
    assert found.clients[1].test.tolist() == [1, 3]  # the test file comes first
    assert found.clients[1].train.tolist() == [5, 6]


def test_rows_are_dealt_out(table):
    found = own(str(table), label="diagnosis", ignore=("site", "country"), partition="dirichlet(clients=5, alpha=1.0)")
    assert len(found) == 5
    assert sum(len(c.train) + len(c.validation) + len(c.test) for c in found.clients) == 240
    assert found.schema["columns"] == {"pressure": "number", "smoker": ["no", "yes"]}


def test_missing_values_do_not_leak(table):
    """Another client's values change nothing."""
    before = own(str(table), label="diagnosis", client="site")
    text = table.read_text().splitlines()
    position = text[0].replace('"', "").split(",").index("pressure")
    changed = [text[0]]
    for line in text[1:]:
        cells = line.split(",")
        if cells[0].strip('"') == "h2" and cells[position]:
            cells[position] = "5000"
        changed.append(",".join(cells))
    table.write_text("\n".join(changed))
    after = own(str(table), label="diagnosis", client="site")
    for k in (0, 1):
        assert torch.equal(before.x[before.clients[k].train], after.x[after.clients[k].train])
    assert not torch.equal(before.x[before.clients[2].train], after.x[after.clients[2].train])


# --------------------------------------------------------------------------- what is odd, and said
def test_odd_things_are_said_by_name(folder):
    (folder / "north" / "notes.txt").write_text("hello")
    (folder / "north" / "up").mkdir()
    (folder / ".DS_Store").write_text("")
    write_folder(folder, "west", {"left": sided(5)["left"]})
    write_folder(folder, "tiny", {"left": sided(1)["left"]})
    found = own(str(folder))
    text = " ".join(found.notes)
    assert "single class to learn from: `tiny` (" in text
    assert "`west` (" in text
    assert ": left)" in text
    assert "notes.txt" in text
    assert "north/up" in text.replace(os.sep, "/")
    assert "DS_Store" not in text
    assert "too few rows to test on, which get no score: `tiny`" in text


def test_bad_images_are_errors_unless_skipped(folder):
    bad = folder / "south" / "left" / "003.jpg"
    bad.write_bytes(b"not an image")
    with pytest.raises(EquipoiseError, match=rf"Cannot read the image `{bad}` \(client `south`\): it is not an image"):
        own(str(folder))
    found = own(str(folder), skip_bad=True)
    assert any(str(bad) in note and "Left out" in note for note in found.notes)
    south = found.clients[2]
    assert len(south.train) + len(south.validation) + len(south.test) == 39


def broken(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


GOOD = "v,label,client\n1,a,x\n2,b,x\n3,a,y\n4,b,y\n5,a,y\n"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("v,label,client\n1,a\n", {}, r"Cannot read `.*t\.csv`: .*Expected 3 columns, got 2"),
        ("", {}, r"Cannot read `.*t\.csv`"),
        ("v,label,client\n", {}, r"`.*t\.csv` has no rows"),
        (GOOD.replace("label", "lable"), {}, r"no label column `label`\. Did you mean `lable`\? Name it with --label"),
        (GOOD, {"client": "site"}, r"no client column `site`.*there are: v, label, client.*--partition"),
        (GOOD, {"domain": "country"}, "no domain column `country`"),
        (GOOD.replace("1,a,x", "1,,x"), {}, r"Row 0 of `.*t.csv` has no label"),
        (GOOD.replace("1,a,x", "1,a,"), {}, r"Row 0 of `.*t.csv` has no client"),
        (GOOD.replace(",a,", ",1.5,").replace(",b,", ",2,"), {}, "Labels must be classes. Found 1.5"),
        (GOOD.replace(",b,", ",a,"), {}, "Every row has the label 'a'"),
        (GOOD.replace("3,a,y", "high,a,y").replace("4,b,y", "low,b,y").replace("5,a,y", "low,a,y"), {},
         r"`v` is text at client `y`.*'high', and numbers at client `x`"),
        (GOOD, {"partition": "iid(clients=99)"}, "ask for at most 5 clients"),
        (GOOD, {"schema": "/none.json"}, "Cannot read the schema"),
        (GOOD, {"image_size": 0}, "`image_size` must be at least 1"),
    ],
)  # fmt: skip
def test_wrong_tables_are_explained(content, options, message, tmp_path):
    path = broken(tmp_path, "t.csv", content)
    with pytest.raises(EquipoiseError, match=message) as error:
        own(str(path), **options)
    assert "\n" not in str(error.value)


def test_a_client_of_two_domains(tmp_path):
    path = broken(tmp_path, "t.csv", "v,label,client,domain\n1,a,x,de\n2,b,x,fr\n3,a,y,fr\n")
    with pytest.raises(EquipoiseError, match=r"Client `x` .*is of two domains: de and fr"):
        own(str(path))


def test_labels_that_a_schema_does_not_know(tmp_path):
    path = broken(tmp_path, "t.csv", GOOD)
    schema = broken(tmp_path, "s.json", json.dumps({"label": "label", "classes": ["a"], "columns": {"v": "number"}}))
    with pytest.raises(EquipoiseError, match="Label 'b' is not one of the classes: a"):
        own(str(path), schema=str(schema))


def test_wrong_folders_are_explained(tmp_path):
    with pytest.raises(EquipoiseError, match="no file or folder"):
        own(str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(EquipoiseError, match="There is no data in"):
        own(str(tmp_path / "empty"))
    (tmp_path / "empty" / "client").mkdir()
    with pytest.raises(EquipoiseError, match=r"no images or tables in `.*client` \(client `client`\)"):
        own(str(tmp_path / "empty"))
    write_folder(tmp_path, "flat", sided(2))
    with pytest.raises(EquipoiseError, match=r"000.png` of client `left` lies in no folder of a class"):
        own(str(tmp_path / "flat"))
    broken(tmp_path, "mixed/t.csv", GOOD)
    write_folder(tmp_path, "mixed/a", sided(2))
    with pytest.raises(EquipoiseError, match=r"has tables \(`t.csv`\) and folders \(`a`\)"):
        own(str(tmp_path / "mixed"))
    broken(tmp_path, "beside/a/train-1.csv", GOOD)
    broken(tmp_path, "beside/a/more.csv", GOOD)
    with pytest.raises(EquipoiseError, match=r"more.csv` lies beside files of a split"):
        own(str(tmp_path / "beside"))
    write_folder(tmp_path / "kinds", "a", sided(2))
    broken(tmp_path, "kinds/b/t.csv", GOOD)
    with pytest.raises(EquipoiseError, match=r"a` holds images, `.*t.csv` does not"):
        own(str(tmp_path / "kinds"))


def test_a_clients_files_that_disagree(tmp_path):
    broken(tmp_path, "d/a/train.csv", "v,label\n1,a\n2,b\n")
    broken(tmp_path, "d/a/test.csv", "v,label\nx,a\ny,b\n")
    with pytest.raises(EquipoiseError, match=r"Column `v` is int64 and string in the files of client `a`"):
        own(str(tmp_path / "d"))


def test_hostile_names_stay_inside(tmp_path):
    path = broken(tmp_path, "t.csv", GOOD.replace(",x", ",../../etc").replace(",y", ",<script>"))
    found = own(str(path))
    assert [c.name for c in found.clients] == ["../../etc", "<script>"]
    from equipoise.data.plots import draw
    from equipoise.runs.writing import save

    assert save(run("fedavg", found, rounds=1), tmp_path / "runs").parent == tmp_path / "runs"
    assert draw(found, tmp_path / "p.png").exists()


def test_options_of_own_data_are_not_for_others(tmp_path):
    done = equipoise("run", "scanners", "--label", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "--label is for your own data" in done.stderr
