"""Tables: hand-checked features, nothing that leaks between clients, and schemas that can be given back."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from equipoise import EquipoiseError
from equipoise.data.tables import Rows, Schema, encode, infer_schema


def rows(who="a", **columns):
    return Rows(who, f"`{who}.csv`", pa.table(columns))


TRAIN = torch.tensor([0, 1, 2])


def test_numbers_by_hand():
    """Training values 1, 3 and a gap: the median 2 fills it; their mean is 2 and their standard deviation sqrt(2/3)."""
    schema = Schema("y", ("0", "1"), {"v": None})
    found = encode(rows(v=[1.0, 3.0, None, 100.0, None]), schema, TRAIN)[:, 0]
    spread = (2 / 3) ** 0.5
    assert found.tolist() == pytest.approx([-1 / spread, 1 / spread, 0, 98 / spread, 0], rel=1e-6)


def test_categories_by_hand():
    schema = Schema("y", ("0", "1"), {"c": ("x", "y", "z")})
    found = encode(rows(c=["y", "y", "x", None, "z"]), schema, TRAIN)
    assert found.tolist() == [
        [0, 1, 0],
        [0, 1, 0],
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
    ]  # the gap: y, most frequent in training


def test_numbers_may_be_levels():
    schema = Schema("y", ("0", "1"), {"c": ("1", "2")})
    assert encode(rows(c=[1.0, 2.0, None]), schema, torch.tensor([0])).tolist() == [[1, 0], [0, 1], [1, 0]]


def test_a_column_without_a_single_value_is_neutral():
    schema = Schema("y", ("0", "1"), {"v": None, "c": ("x", "y"), "constant": None})
    nothing = pa.nulls(3)
    assert encode(rows(v=nothing, c=nothing, constant=[7, 7, 7]), schema, TRAIN).tolist() == [[0, 0, 0, 0]] * 3


def test_only_the_training_rows_of_the_client_itself_count():
    schema = Schema("y", ("0", "1"), {"v": None, "c": ("x", "y")})
    one = encode(rows(v=[1.0, 2.0, 3.0, 9.0], c=["x", "x", "y", None]), schema, TRAIN)
    other = encode(rows(v=[1.0, 2.0, 3.0, -5e6], c=["x", "x", "y", "y"]), schema, TRAIN)
    assert torch.equal(one[:3], other[:3])  # whatever the test rows say
    assert one[:3, 0].mean().abs() < 1e-6


def test_schema_is_inferred():
    a = rows(
        "a", age=[1, 2], sex=["f", "m"], flag=[True, False], quoted=["1", "2.5"], y=["no", "yes"], client=["a", "a"]
    )
    b = rows(
        "b", age=[1.5, None], sex=["f", None], flag=[None, None], quoted=["3", None], y=["no", "no"], client=["b", "b"]
    )
    schema = infer_schema([a, b], "y", ("no", "yes"), {"client"})
    assert schema.columns == {"age": None, "sex": ("f", "m"), "flag": None, "quoted": None}
    assert schema.width == 5
    assert encode(a, schema, torch.arange(2)).shape == (2, 5)


def test_a_schema_is_written_and_given_back(tmp_path):
    schema = Schema("y", ("no", "yes"), {"age": None, "sex": ("f", "m")})
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema.as_json()))
    assert Schema.read(path) == schema
    with pytest.raises(EquipoiseError, match="Cannot read the schema"):
        Schema.read(tmp_path / "none.json")
    for wrong in ("{", "[]", '{"label": "y"}', '{"label": "y", "classes": ["a"], "columns": 3}'):
        path.write_text(wrong)
        with pytest.raises(EquipoiseError, match="is not a schema"):
            Schema.read(path)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"v": [1, 2]}, {"v": ["high", "low"]},
         r"`v` is text at client `b` \(`b\.csv`\), for example 'high' in row 1, and numbers at client `a`"),
        ({"v": [1, 2]}, {"v": [1, 2], "w": [1, 2]},
         r"Column `w` is at client `b` \(`b.csv`\), but not at client `a`.*--ignore w"),
        ({"v": [1, 2], "w": [1, 2]}, {"v": [1, 2]}, r"no column `w` at client `b`"),
        ({"d": [[1], [2]]}, {"d": [[1], [2]]}, r"`d` of client `a`.* holds list.*--ignore d"),
        ({}, {}, "nothing to learn from"),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit_are_named(first, second, message):
    with pytest.raises(EquipoiseError, match=message):
        infer_schema([rows("a", y=[0, 1], **first), rows("b", y=[0, 1], **second)], "y", ("0", "1"), ())


def test_too_many_levels():
    names = rows(y=[0] * 300, name=[f"patient {i}" for i in range(300)])
    with pytest.raises(EquipoiseError, match=r"Text column `name` has 300 different values.*--ignore name"):
        infer_schema([names], "y", ("0",), ())


def test_values_that_a_given_schema_does_not_know():
    numbers = Schema("y", ("0", "1"), {"v": None})
    with pytest.raises(EquipoiseError, match=r"`v` is a number in the schema. Found 'w' at client `a`"):
        encode(rows(v=["1", "w"]), numbers, torch.arange(2))
    with pytest.raises(EquipoiseError, match=r"`v` must be finite. Found inf"):
        encode(rows(v=[1.0, np.inf]), numbers, torch.arange(2))
    with pytest.raises(EquipoiseError, match=r"no column `v` at client `a`.*It has: w"):
        encode(rows(w=[1.0]), numbers, torch.arange(1))


def test_the_names_of_columns_are_listed_once(tmp_path):
    """pyarrow makes a new list of all names whenever it is asked: once per column, that took 18 s for 2,000 columns."""

    class Table:
        def __init__(self, table):
            self.table, self.listed = table, 0

        @property
        def column_names(self):
            self.listed += 1
            return self.table.column_names

        def column(self, place):
            return self.table.column(place)

    table = Table(pa.table({f"x{i}": [float(i), 1.0] for i in range(50)}))
    rows = Rows("a", "here", table)
    schema = Schema("y", ("0", "1"), dict.fromkeys(table.column_names))
    assert encode(rows, schema, torch.tensor([0, 1])).shape == (2, 50)
    assert rows.column("x7").to_pylist() == [7.0, 1.0]
    assert table.listed == 2  # by the schema above, and by the rows
