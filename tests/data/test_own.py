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
from equipoise.data.catalogue import add_options, list_words
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
    assert (
        load_federation(f"own(path={str(table)!r}, label='diagnosis', client='site')").arguments
        == "label='diagnosis', client='site'"
    )


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
    told = " ".join(done.stdout.split())  # what to try next, in the user's own words
    assert f"{table} --label diagnosis --client site --ignore country" in told
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
        ("v,label,client\n1,a\n", {}, r"Line 2 of `.*t\.csv` has 2 values, and the header names 3 columns\. .*a comma"),
        ("", {}, r"Cannot read `.*t\.csv`"),
        ("v,label,client\n", {}, r"`.*t\.csv` has no rows"),
        (GOOD.replace("label", "lable"), {}, r"no label column `label`\. Did you mean `lable`\? Name it with --label"),
        (GOOD, {"client": "site"}, r"no client column `site`.*there are: v, label, client.*--partition"),
        (GOOD, {"domain": "country"}, "no domain column `country`"),
        (GOOD.replace("1,a,x", "1,,x"), {}, r"no label in column `label` in line 2 of `.*t.csv` \(blank, .*--drop-missing"),
        (GOOD.replace("1,a,x", "1,a,"), {}, r"no client in column `client` in line 2 of `.*t.csv`"),
        (GOOD.replace(",a,", ",1.5,").replace(",b,", ",2,"), {}, "Labels must be classes. Found '1.5'"),
        (GOOD.replace(",b,", ",a,"), {}, "Every row has the label 'a'"),
        (GOOD.replace("3,a,y", "high,a,y").replace("4,b,y", "low,b,y").replace("5,a,y", "low,a,y"), {},
         r"`v` is text at client `y`.*'high' in line 4, and numbers at client `x`"),
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
    with pytest.raises(EquipoiseError, match=r"Client `x` .*is of two domains: 'de' and 'fr'"):
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


# --------------------------------------------------------------------------- text tables as they are found
def write_patients(path, separator=",", encoding="utf-8", **changed):
    """Forty rows of two clients; `changed` has other lines, by number: `line_5="..."`."""
    lines = ["age,größe,label,client"]
    lines += [f"{30 + i},{150 + i % 7},{'ja' if i % 3 else 'nein'},{'xy'[i % 2]}" for i in range(40)]
    for place, line in changed.items():
        lines[int(place.removeprefix("line_")) - 1] = line
    path.write_bytes("\n".join(lines).replace(",", separator).encode(encoding))
    return str(path)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_separators_and_encodings_are_found_out(tmp_path, name, separator, encoding):
    found = own(write_patients(tmp_path / name, separator, encoding))
    assert found.schema["columns"] == {"age": "number", "größe": "number"}
    assert torch.equal(found.x, own(write_patients(tmp_path / "plain.csv")).x)
    said = "`t.csv` is not UTF-8. It was read as Latin-1, for example 'größe' in line 1".replace("t.csv", name)
    assert any(said in note for note in found.notes) == (encoding == "latin-1")


def test_decimal_commas_between_semicolons(tmp_path):
    path = broken(tmp_path, "t.csv", "v;w;label;client\n" + "".join(f"{i},5;{i};{'ab'[i % 2]};x\n" for i in range(9)))
    found = own(str(path))
    assert found.schema["columns"] == {"v": "number", "w": "number"}
    assert torch.equal(found.x[:, 0], found.x[:, 1])  # both are scaled to mean 0 and standard deviation 1
    assert "Read as decimal commas in `t.csv`: `v`." in found.notes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD.replace("v,", "label,"), r"has several columns `label` \(columns 1 and 2\)"),
        (GOOD.replace("2,b,x", '2,"b\n",x\n\n').replace("5,a,y", "5,a"), r"Line 9 of `.*t.csv` has 2 values"),
        (GOOD.replace("2,b,x", '2,"b\n",x\n\n').replace("5,a,y", "5,,y"), "no label in column `label` in line 9 of"),
        (GOOD.replace("4,b,y", '4,"b,y'), r"A quotation begins in line 5 of `.*t.csv` and never ends"),
        (b"v,label,client\n1,\x81,x\n", r"is neither UTF-8 nor Latin-1 \(line 2\)"),
        (b"v,label,client\n1,\0,x\n", "holds zero bytes"),
    ],
)
def test_wrong_text_is_named_by_its_line(tmp_path, content, message):
    with pytest.raises(EquipoiseError, match=message):
        own(str(broken(tmp_path, "t.csv", content)))


def test_several_uneven_lines_are_counted(tmp_path):
    with pytest.raises(EquipoiseError, match=r"Line 3 of .*has 2 values, .* \(4 lines differ from the header\)"):
        own(str(broken(tmp_path, "t.csv", GOOD.replace(",x\n3", "\n3").replace(",y", ""))))


def test_a_column_without_a_name_is_left_out(tmp_path):
    """pandas writes its index so."""
    rows = "".join(f"{i},{i},{'ab'[i % 2]},x\n" for i in range(9))
    found = own(str(broken(tmp_path, "t.csv", ",v,label,client\n" + rows)))
    assert found.schema["columns"] == {"v": "number"}
    assert "Left out of `t.csv`, because it has no name: column 1." in found.notes


def test_what_a_column_holds_follows_from_all_rows(tmp_path):
    """A number with a fraction far down, where a reader that goes piece by piece has made up its mind already."""
    rows = [f"{i % 10},{'ab'[i % 2]},x" for i in range(200_000)]
    found = own(str(broken(tmp_path, "t.csv", "\n".join(["v,label,client", *rows, "2.5,a,x"]))))
    assert found.schema["columns"] == {"v": "number"}


# --------------------------------------------------------------------------- missing values
GAPS = {"line_4": " ? ,155,ja,x", "line_6": "NA,,ja,x", "line_7": "40, ,nein,y"}


def test_missing_values_are_named_and_counted(tmp_path):
    found = own(write_patients(tmp_path / "t.csv", **GAPS))
    assert found.schema["columns"] == {"age": "number", "größe": "number"}
    assert found.notes[0].startswith(
        "Missing values (blank, `?`, `NA` and the like), of 40 rows: `age` 2, `größe` 2. Each"
    )
    assert (
        own(write_patients(tmp_path / "t.csv", **GAPS), ignore=("age",))
        .notes[0]
        .startswith("Missing values (blank, `?`, `NA` and the like), of 40 rows: `größe` 2. Each")
    )
    at_a_site = own(write_patients(tmp_path / "t.csv", **GAPS), site="north")
    assert at_a_site.notes[0].startswith("Missing values (blank, `?`, `NA` and the like): `age`, `größe`. Each")


def test_rows_with_missing_values_are_dropped_if_asked(tmp_path):
    path = write_patients(tmp_path / "t.csv", **GAPS, line_8="44,155,?,x", line_10="44,155,ja,")
    found = own(path, drop_missing=True)
    sizes = {c.name: len(c.train) + len(c.validation) + len(c.test) for c in found.clients}
    assert sizes == {"x": 16, "y": 19}
    said = "Rows left out, because a value is missing: 3 of 19 of `x`, 1 of 20 of `y`, 1 of 1 without a client."
    assert said in found.notes
    clean = own(write_patients(tmp_path / "clean.csv"), drop_missing=True)
    assert not any("left out" in note for note in clean.notes)
    dealt = own(path, drop_missing=True, partition="iid(clients=2)", ignore=("client",))
    assert "Rows left out, because a value is missing: 4 of 40." in dealt.notes
    unused = own(path, drop_missing=True, ignore=("age",), partition="iid(clients=2)")
    assert "Rows left out, because a value is missing: 3 of 40." in unused.notes


def test_lines_are_those_of_the_file_although_rows_are_dropped(tmp_path):
    path = write_patients(tmp_path / "t.csv", **GAPS, line_12="old,155,ja,y")
    with pytest.raises(
        EquipoiseError, match=r"`age` is text at client `y`.*'old' in line 12, and numbers at client `x`"
    ):
        own(path, drop_missing=True)


def test_dropping_everything_is_refused(tmp_path):
    path = broken(tmp_path, "t.csv", GOOD.replace("v,", "v,w,").replace(",a", ",,a").replace(",b", ",,b"))
    with pytest.raises(EquipoiseError, match=r"Every row has a missing value.*missing: `w` 5.*--ignore"):
        own(str(path), drop_missing=True)


def test_dropping_is_for_tables(folder):
    with pytest.raises(EquipoiseError, match="--drop-missing is for tables"):
        own(str(folder), drop_missing=True)


def test_a_run_records_that_rows_were_dropped(tmp_path, monkeypatch):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    write_patients(tmp_path / "t.csv", **GAPS)
    done = equipoise("run", "t.csv", "--drop-missing", "--rounds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 of 20 of `x`, 1 of 20 of `y`" in done.stderr
    (place,) = (tmp_path / "runs").iterdir()
    data = json.loads((place / "manifest.json").read_text())["data"]
    assert data["arguments"] == "drop_missing=True"
    assert "Rows left out, because a value is missing: 2 of 20 of `x`, 1 of 20 of `y`." in data["notes"]


# --------------------------------------------------------------------------- what is odd, and said of tables
def test_small_tests_and_lone_classes_are_noted(tmp_path):
    rows = [f"{i},{'ab'[i % 2]},large" for i in range(60)] + [f"{i},{'ac'[i % 2]},small" for i in range(20)]
    found = own(str(broken(tmp_path, "t.csv", "\n".join(["v,label,client", *rows]))))
    assert "Clients with fewer than 10 test samples, whose score is coarse: `small` (4)." in found.notes
    assert "Classes that only one client can learn from: b (`large`), c (`small`)." in found.notes
    alone = own(str(broken(tmp_path, "one.csv", "\n".join(["v,label,client", *rows[:60]]))))
    assert not any("Classes" in note for note in alone.notes)  # of a single client that says nothing


def test_numbers_with_a_few_words_among_them_are_noted(tmp_path):
    path = write_patients(tmp_path / "t.csv", line_5="unknown,155,ja,x", line_6="about 30,155,ja,y")
    (note,) = [note for note in own(path).notes if "taken for text" in note]
    assert "Column `age` is taken for text, with a feature per value, because of 'about 30', 'unknown'." in note
    rows = "".join(f"{i if i != 7 else 'seven'},{'ab'[i % 2]},x\n" for i in range(300))
    with pytest.raises(
        EquipoiseError, match=r"`v` holds numbers, but not only, for example 'seven' in line 9\. .*`\?`"
    ):
        own(str(broken(tmp_path, "t.csv", "v,label,client\n" + rows)))


@pytest.mark.parametrize("label", ["{i}.5", "{i}"])
def test_quantities_as_labels_are_refused(tmp_path, label):
    rows = "".join(f"{i},{label.format(i=i)},x\n" for i in range(60))
    with pytest.raises(EquipoiseError, match=r"To predict it as a number, name it with --target label\."):
        own(str(broken(tmp_path, "t.csv", "v,label,client\n" + rows)))


def test_columns_to_ignore_must_be_there(tmp_path):
    with pytest.raises(EquipoiseError, match=r"no column `age` to ignore\. There are: v, label, client"):
        own(str(broken(tmp_path, "t.csv", GOOD)), ignore=("age",))


def test_a_missing_domain_is_no_domain(tmp_path):
    with pytest.raises(EquipoiseError, match="no domain in column `domain` in line 2"):
        own(str(broken(tmp_path, "t.csv", "v,label,client,domain\n1,a,x,\n2,b,x,fr\n3,a,y,fr\n")))


def test_a_suggested_command_names_own_data_as_the_user_did():
    """The words that `compare` suggests to try next were those of a call: own(path='"'"'patients.csv'"'"', ...)."""
    options = {"label": "ill", "client": "hospital", "ignore": ("id", "note"), "skip_bad": True, "group": None}
    words = ["my patients.csv", "--label", "ill", "--client", "hospital", "--ignore", "id,note", "--skip-bad"]
    assert list_words(add_options("my patients.csv", options)) == words
