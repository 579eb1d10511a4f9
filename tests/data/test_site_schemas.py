"""What a site tells of its table, and how the tables of several sites become one schema."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from equipoise import EquipoiseError, save
from equipoise.data.own import describe_own, own
from equipoise.data.site_schemas import Column, SiteSchema, describe_rows, merge_files
from equipoise.data.tables import Rows, Schema, compare_schemas, encode
from kit import quiet
from kit.command import invoke
from kit.sites import LABEL, write_site


def described(limit=5, labels=None, **columns):
    table = pa.table(columns)
    labels = labels or ["no", "yes"] * (len(table) // 2)
    return describe_rows(Rows("here", "`here.csv`", table), "y", labels, {"id"}, limit)


def told(folder, name, **columns):
    """A site's file."""
    path = folder / f"{name}.json"
    site = SiteSchema("y", 20, {"no": 10, "yes": 10}, {n: Column(*c) for n, c in columns.items()})
    path.write_text(json.dumps(site.as_json()))
    return path


# --------------------------------------------------------------------------- at a site
def test_counts_by_hand():
    """Of 20 rows 12 are f, 6 are m, 1 is x and 1 is missing: rounded down to fives, and x has no name."""
    site, notes = described(id=[*range(20)], v=[1.5] * 14 + [None] * 6, sex=["f"] * 12 + ["m"] * 6 + ["x", None])
    assert site.columns == {"v": Column("number", 5), "sex": Column("text", 0, {"f": 10, "m": 5}, 0)}
    assert (site.rows, site.classes) == (20, {"no": 10, "yes": 10})
    assert notes == [
        "Column `sex`: 1 of 3 values are not named, because they have fewer than 5 rows. They will count as other."
    ]
    exact, _ = described(limit=1, sex=["f"] * 12 + ["m"] * 6 + ["x", None])
    assert exact.columns["sex"] == Column("text", 1, {"f": 12, "m": 6, "x": 1}, 0)


def test_no_small_count_follows_from_the_others():
    """Of 44 rows 0 to 4 are of a rare level. The file is the same each time, so no difference tells how many."""
    files = [
        described(labels=["no", "yes"] * 22, sex=["f"] * (24 - rare) + ["m"] * 20 + ["x"] * rare)[0]
        for rare in range(5)
    ]
    assert all(file == files[0] for file in files)
    assert files[0].columns["sex"] == Column("text", 0, {"f": 20, "m": 20}, 0)


def test_nothing_but_named_levels_leaves_a_site(tmp_path):
    """No value of a number, of a rare level, or of a column that is left out is in the file."""
    path = write_site(tmp_path, "north")
    site, _ = describe_own(str(path), LABEL, ("id",))
    text = json.dumps(site.as_json())
    assert set(site.columns["ward"].levels) == {"heart", "lung"}
    for line in path.read_text().splitlines()[1:]:
        name, age, *_ = line.split(",")
        assert f'"{name}"' not in text
        assert age not in text
    assert "rare" not in text
    assert str(tmp_path) not in text


def test_a_column_of_names_is_not_told_and_noted():
    site, notes = described(name=[f"patient {k}" for k in range(20)])
    assert site.columns["name"] == Column("text", 0, {}, 20)
    assert "no value has 5 rows" in notes[0]
    assert "--ignore name" in notes[0]


def test_numbers_with_a_few_words_among_them_are_noted():
    _, notes = described(age=["51"] * 17 + ["unknown"] * 3)
    assert "`age` is text because 3 of 20 values are no numbers, for example 'unknown'" in notes[-1]


def test_all_mistakes_of_a_table_are_said_at_once():
    with pytest.raises(EquipoiseError) as caught:
        described(labels=[f"label {k}" for k in range(300)], d=[[1]] * 300, name=[f"patient {k}" for k in range(300)])
    for words in (
        "`d` of client `here`",
        "`name` has 300 different values",
        "No value of the label column `y` has 5 rows",
    ):
        assert words in str(caught.value)
    with pytest.raises(EquipoiseError, match="`limit` must be at least 1"):
        described(limit=0, v=[1, 2])


def test_a_site_s_file_is_read_again(tmp_path):
    site, _ = described(v=[1.5] * 14 + [None] * 6, sex=["f"] * 12 + ["m"] * 8, none=[None] * 20)
    path = tmp_path / "here.json"
    path.write_text(json.dumps(site.as_json()))
    assert SiteSchema.read(path) == site
    with pytest.raises(EquipoiseError, match=r"describes the data of one site\. Join all sites' files first"):
        Schema.read(path)


# --------------------------------------------------------------------------- all sites together
def test_levels_are_joined_and_an_empty_column_fits_either_kind(tmp_path):
    files = [
        told(tmp_path, "a", v=("number",), sex=("text", 0, {"m": 5}), e=("empty",), none=("empty",)),
        told(tmp_path, "b", v=("empty",), sex=("text", 0, {"f": 5, "m": 5}), e=("text", 0, {"x": 5}), none=("empty",)),
    ]
    schema, notes = merge_files(files)
    assert schema == Schema("y", ("no", "yes"), {"v": None, "sex": ("f", "m"), "e": ("x",)})
    assert any("Levels of `sex` in" in note and "b.json` alone: `f`" in note for note in notes)
    assert "Column `none` is left out: no file names a value of it." in notes
    assert merge_files(files, ["sex", "e"])[0].columns == {"v": None}


def test_classes_are_those_of_all_sites_in_order(tmp_path):
    for name, classes in (("a", {"10": 5, "2": 5}), ("b", {"2": 5})):
        site = SiteSchema("y", 10, classes, {"v": Column("number")})
        (tmp_path / name).write_text(json.dumps(site.as_json()))
    assert merge_files([tmp_path / "a", tmp_path / "b"])[0].classes == ("2", "10")
    with pytest.raises(EquipoiseError, match="nothing to learn"):
        merge_files([tmp_path / "b"])


def test_every_contradiction_of_all_files_is_said_at_once(tmp_path):
    files = [
        told(tmp_path, "a", age=("number",), stage=("number",), sex=("text", 0, {"f": 5})),
        told(tmp_path, "b", age=("number",), stage=("text", 0, {"II": 5}), sex=("text", 0, {"f": 5}), bmi=("number",)),
        told(tmp_path, "c", Age=("number",), stage=("number",), sex=("text", 0, {"w": 5})),
    ]
    other = json.loads(files[2].read_text()) | {"label": "ill"}
    files[2].write_text(json.dumps(other))
    (tmp_path / "d.json").write_text("{}")
    with pytest.raises(EquipoiseError) as caught:
        merge_files([*files, tmp_path / "d.json", tmp_path / "none.json"])
    text = str(caught.value)
    for words in (
        "d.json` is not what a site tells of its data",
        "none.json`: No such file",
        "label columns differ: `y` in",
        "`age` is in",
        "Did you mean `Age`?",
        "`bmi` is in",
        "`stage` is text in",
        "for example 'II', and numbers in",
        "alone: `w`. Are they coded as elsewhere?",
    ):
        assert words in text, words
    assert "c.json" in next(line for line in text.splitlines() if line.startswith("Column `age`"))
    with pytest.raises(EquipoiseError, match="No column is left"):
        merge_files(files[:1], ["age", "stage", "sex"])


def test_too_many_levels_together(tmp_path):
    files = [told(tmp_path, name, ward=("text", 0, {f"{name}{k}": 5 for k in range(150)})) for name in ("a", "b")]
    with pytest.raises(EquipoiseError, match="300 different values"):
        merge_files(files)


def test_schemas_are_compared_in_words():
    one = Schema("y", ("0", "1"), {"v": None, "c": ("x",), "d": ("x",)})
    assert compare_schemas({"a": one, "b": one}) == []
    other = Schema("z", ("0",), {"v": ("q",), "c": ("x", "y"), "e": None})
    assert compare_schemas({"a": one, "b": other}) == [
        "The label column is `y` at `a` and `z` at `b`.",
        "The classes are 0, 1 at `a` and 0 at `b`.",
        "Column `v` holds numbers at `a` and text (q) at `b`.",
        "Column `c` holds text (x) at `a` and text (x, y) at `b`.",
        "Column `d` is at `a`, not at `b`.",
        "Column `e` is at `b`, not at `a`.",
    ]
    turned = Schema("y", ("0", "1"), dict(reversed(one.columns.items())))
    assert "another order" in compare_schemas({"a": one, "b": turned})[0]


# --------------------------------------------------------------------------- the level "other"
def test_other_by_hand():
    """Unknown values are 0 in every level's column, wherever they stand; a gap is filled with the most frequent one."""
    schema = Schema("y", ("0", "1"), {"c": ("x", "y")})
    rows = Rows("a", "`a.csv`", pa.table({"c": ["w", "x", "w", None, "v", "y"]}))
    assert encode(rows, schema, torch.tensor([0, 1, 2])).tolist() == [[0, 0], [1, 0], [0, 0], [0, 0], [0, 0], [0, 1]]


def test_a_table_with_new_levels_is_read_with_a_stored_schema(tmp_path):
    """A schema as any version wrote it: new values count as other, and a note says how many rows that are."""
    path = write_site(tmp_path, "north", rare=7)
    stored = {"label": LABEL, "classes": ["no", "yes"], "columns": {"sex": ["f", "m"], "ward": ["heart", "lung"]}}
    (tmp_path / "schema.json").write_text(json.dumps(stored))
    data = own(str(path), site="north", schema=str(tmp_path / "schema.json"))
    assert data.schema == stored
    assert data.x.shape == (60, 4)
    assert data.x[:, 2:].sum(1).tolist() == [0] * 7 + [1] * 53
    assert "Values of `ward` at `north` that the schema does not name (7 of 60 rows): count as other." in data.notes
    stored["columns"] = {"sex": ["w", "x"]}
    (tmp_path / "schema.json").write_text(json.dumps(stored))
    data = own(str(path), site="north", schema=str(tmp_path / "schema.json"))
    assert any("No value of `sex` at `north` is one of the schema's levels: w, x." in note for note in data.notes)
    few = own(str(write_site(tmp_path, "east", rare=2)), site="east", schema=str(_ward_schema(tmp_path)))
    assert any("(fewer than 5 rows)" in note for note in few.notes)


def test_a_model_is_evaluated_on_a_table_with_a_new_level(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "\n".join(f"{k % 7},{'xy'[k % 2]},{'ab'[k % 2]},{k % 3}" for k in range(60))
    Path("old.csv").write_text(f"v,c,label,client\n{text}\n")
    Path("new.csv").write_text(f"v,c,label,client\n{text}\n".replace(",y,b,0", ",z,b,0"))
    place = save(quiet("fedavg", own("old.csv"), rounds=1), Path("runs"))
    done = invoke("evaluate", str(place), "new.csv")
    assert done.exit_code == 0, done.output
    assert "Values of `c` at `0` that the schema does not name (10 of 20 rows): count as other." in done.output
    assert "AVG" in done.output


def _ward_schema(folder: Path) -> Path:
    path = folder / "wards.json"
    path.write_text(
        json.dumps(
            {"label": LABEL, "classes": ["no", "yes"], "columns": {"ward": ["heart", "kidney"], "age": "number"}}
        )
    )
    return path


# --------------------------------------------------------------------------- the commands
def test_three_sites_make_one_schema(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("north", "east", "south"):
        write_site(tmp_path, name)
        done = invoke("schema", f"{name}.csv", "-o", f"{name}.json", "--label", LABEL, "--ignore", "id")
        assert f"Written: {name}.json" in done.output
    done = invoke("deploy", "merge-schemas", "north.json", "east.json", "south.json")
    assert done.exit_code == 0, done.output
    assert "--schema schema.json --sites 3" in done.output
    assert Schema.read(tmp_path / "schema.json").columns == {
        "age": None, "sex": ("f", "m"), "pressure": None, "ward": ("heart", "kidney", "lung", "skin"),
    }  # fmt: skip
    for name in ("north", "east", "south"):
        own(f"{name}.csv", site=name, schema="schema.json")
    with pytest.raises(EquipoiseError, match=r"Cannot write `nowhere/x\.json`"):
        invoke("schema", "north.csv", "-o", "nowhere/x.json", "--label", LABEL)


def test_a_text_column_of_all_sites_marks_groups(tmp_path):
    files = []
    for site in ("north", "south"):
        table = tmp_path / f"{site}.csv"
        rows = "".join(f"{'fm'[i % 2]},{i},{i % 2}\n" for i in range(20))
        table.write_text(f"sex,dose,label\n{rows}")
        found, _ = describe_own(str(table))
        files.append(tmp_path / f"{site}.json")
        files[-1].write_text(json.dumps(found.as_json()))
    schema, _ = merge_files(files, group="sex")
    assert (schema.group, schema.groups, dict(schema.columns)) == ("sex", ("f", "m"), {"dose": None})
    assert Schema.from_json(schema.as_json()) == schema
    place = tmp_path / "schema.json"
    place.write_text(json.dumps(schema.as_json()))
    data = own(str(tmp_path / "north.csv"), site="north", schema=str(place))
    assert data.groups.names == ("f", "m")
    assert data.input_shape == (1,)
    with pytest.raises(EquipoiseError, match=r"There is no text column `dose` to put rows into groups"):
        merge_files(files, group="dose")
    rare = tmp_path / "rare.csv"
    rare.write_text((tmp_path / "north.csv").read_text() + "x,1,0\n" * 3)
    with pytest.raises(
        EquipoiseError, match=r"Group 'x' in column `sex` is not one of the schema's: f, m\. Recode these"
    ):
        own(str(rare), site="north", schema=str(place))


def test_a_group_column_that_one_site_lacks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, more in (("north", {}), ("east", {}), ("south", {"sex": "gender"})):
        write_site(tmp_path, name, **more)
        invoke("schema", f"{name}.csv", "-o", f"{name}.json", "--label", LABEL, "--ignore", "id")
    files = ("north.json", "east.json", "south.json")
    with pytest.raises(EquipoiseError) as said:
        invoke("deploy", "merge-schemas", *files, "--group", "sex")
    assert "Column `sex` is in `north.json`, `east.json`, not in `south.json`." in str(said.value)
    assert "or name with --group a column that all have: every row must be in a group." in str(said.value)
    with pytest.raises(
        EquipoiseError, match=r"There is no text column `sexx` to put rows into groups\. Did you mean `sex`"
    ):
        invoke("deploy", "merge-schemas", *files, "--group", "sexx")  # beside the other mistakes
