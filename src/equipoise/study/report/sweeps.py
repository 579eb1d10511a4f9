"""Methods that differ in the numbers of one or two parameters only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from equipoise.study.report.figures import Study


class Sweep(NamedTuple):
    """Methods that differ in one number."""

    name: str  # the parameter, such as `fedheal(tau)`
    points: list[tuple[float, str]]  # its value, and the method


class Grid(NamedTuple):
    """Methods that differ in two numbers."""

    names: tuple[str, str]  # the two parameters
    points: dict[tuple[float, float], str]  # their values, and the method

    @property
    def axes(self) -> tuple[list[float], list[float]]:
        """The values of each of the two."""
        first, second = (sorted({values[i] for values in self.points}) for i in (0, 1))
        return first, second


def find_sweeps(study: Study) -> list[Sweep]:
    """Sweeps of one parameter. Those that are a row or a column of a grid are left to it."""
    inside = [set(grid.points.values()) for grid in find_grids(study)]
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for method, numbers, others in _list_numbers(study, 1):
        ((name, value),) = numbers
        found.setdefault((name, others), []).append((value, method))
    return [
        Sweep(name, sorted(points))
        for (name, _), points in found.items()
        if len({v for v, _ in points}) > 1 and not any({m for _, m in points} <= grid for grid in inside)
    ]


def find_grids(study: Study) -> list[Grid]:
    """Sweeps of two parameters together, with at least two values of each and more methods than a row and a column."""
    found: dict[tuple[str, str, str], dict[tuple[float, float], str]] = {}
    for method, numbers, others in _list_numbers(study, 2):
        (first, a), (second, b) = numbers
        found.setdefault((first, second, others), {})[a, b] = method
    grids = [Grid((first, second), points) for (first, second, _), points in found.items()]
    return [grid for grid in grids if all(len(axis) > 1 for axis in grid.axes) and len(grid.points) >= 4]


def _list_numbers(study: Study, count: int) -> Iterator[tuple[str, tuple[tuple[str, float], ...], str]]:
    """Each method with each choice of `count` of its numbers, and all other parameters as text."""
    for method, runs in study.runs.items():
        parameters = next(iter(runs.values())).manifest["parameters"]
        numbers = {
            (call, name): float(value)
            for call, values in parameters.items()
            for name, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        for chosen in combinations(numbers, count):
            others = {c: {n: v for n, v in p.items() if (c, n) not in chosen} for c, p in parameters.items()}
            yield method, tuple((f"{call}({name})", numbers[call, name]) for call, name in chosen), repr(others)
