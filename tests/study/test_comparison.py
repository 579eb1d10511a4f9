"""The table of a comparison."""

import pytest

from equipoise import EquipoiseError, compare
from equipoise.study.comparison import Cell, tabulate

RESULTS = [
    ("fedavg", {"a": 0.90, "b": 0.50}),
    ("fedavg", {"a": 0.92, "b": 0.54}),
    ("fair", {"a": 0.85, "b": 0.70}),
    ("fair", {"a": 0.87, "b": 0.72}),
    ("level", {"a": 0.40, "b": 0.40}),
    ("level", {"a": 0.40, "b": 0.40}),
]


def test_figures_are_means_over_seeds_with_half_their_interval():
    table = tabulate(RESULTS)
    assert table.columns == ("a", "b", "AVG", "STD", "MIN")
    assert table.seeds == 2
    row = table.rows["fedavg"]
    assert row["a"].mean == pytest.approx(91)
    assert row["a"].half == pytest.approx(12.7062)  # t of one degree of freedom, times sqrt(2) / sqrt(2)
    assert row["AVG"].mean == pytest.approx((70 + 73) / 2)
    assert row["STD"].mean == pytest.approx((20 + 19) / 2)
    assert row["MIN"].mean == pytest.approx(52)
    assert str(Cell(50.04, 0.0)) == "50.0 ± 0.0"
    assert "± is half the width of the 95 % interval" in str(table)
    assert "±" not in str(tabulate(RESULTS[:1]))
    assert str(tabulate(RESULTS[:1]).rows["fedavg"]["a"]) == "90.0"


def test_best_is_highest_but_for_the_standard_deviation():
    table = tabulate(RESULTS)
    assert table.best("a") == {"fedavg"}
    assert table.best("MIN") == {"fair"}
    assert table.best("STD") == {"level"}


def test_many_domains_are_not_columns():
    wide = [("fedavg", {str(i): 0.5 for i in range(30)})]
    assert tabulate(wide).columns == ("AVG", "STD", "MIN")


def test_a_comparison_from_python():
    table = compare(["fedavg", "eagle(lstar_epochs=2)", "fedavg"], "gaussians", seeds=2, rounds=2)
    assert table.seeds == 2  # a method named twice runs once
    assert len(table.rows) == 2
    assert "AVG" in str(table)
    for wrong in ({"methods": []}, {"methods": ["fedavg"], "seeds": 0}):
        with pytest.raises(EquipoiseError, match="needs a method and a seed"):
            compare(wrong["methods"], "gaussians", seeds=wrong.get("seeds", 1))
