"""Comparisons: one table of the results of several methods, each with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from equipoise.data import Federation, load_federation
from equipoise.data.federation import HoldOut
from equipoise.engine.result import Run
from equipoise.engine.simulation import run
from equipoise.errors import EquipoiseError
from equipoise.method import Method
from equipoise.method.registry import adapt_to_data
from equipoise.methods import parse
from equipoise.metrics import PLUS_MINUS, UNSEEN, figures, over_seeds
from equipoise.task import ModelSource
from equipoise.training import Training

HIGHER_IS_BETTER = {"STD": False}  # true of every column that is not named here


@dataclass(frozen=True)
class Cell:
    """One figure of one method, in percent."""

    mean: float  # over seeds
    half: float | None  # half the 95 % interval of the mean (Student's t); None for one seed

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.half is None else f"{self.mean:.1f} ± {self.half:.1f}"


@dataclass(frozen=True)
class Comparison:
    """A table with a row per method. Its columns are the domains, and figures over the domains."""

    columns: tuple[str, ...]
    rows: dict[str, dict[str, Cell]]  # method -> column -> cell
    seeds: int  # of the method that has most
    runs: tuple[Run, ...] = ()  # the runs of `compare`, by method, then by seed; empty for stored runs
    unseen: Comparison | None = None  # the same table of the clients that are held out of training, if there are any

    def __str__(self) -> str:
        lines = [("method", *self.columns), *((name, *map(str, row.values())) for name, row in self.rows.items())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines]
        told = [] if self.unseen is None else ["", "Clients that are held out of training:", str(self.unseen)]
        half = [f"± is {PLUS_MINUS}."] if self.seeds > 1 and self.unseen is None else []
        return "\n".join([*table, *half, *told])

    def best(self, column: str) -> set[str]:
        """The methods whose mean in a column is the best one, to the printed digit."""
        sign = 1 if HIGHER_IS_BETTER.get(column, True) else -1
        top = max(round(sign * row[column].mean, 1) for row in self.rows.values())
        return {name for name, row in self.rows.items() if round(sign * row[column].mean, 1) == top}


def compare(
    methods: Sequence[Method | str] | Method | str,
    federation: Federation | str,
    *,
    seeds: int | Sequence[int] = 3,
    rounds: int | None = None,
    model: ModelSource | None = None,
    training: Training | None = None,
    participation: float | None = None,
    until_flat: bool = False,
    hold_out: HoldOut = 0,
) -> Comparison:
    """Run every method with every seed on the same data, and tabulate what the domains got.

    The result prints as a table; `.runs` are the runs behind it. With `until_flat` each run ends when it has converged,
    and `rounds` is the limit for all of them. Clients that `hold_out` names (or as many as it says) never train, and
    have a table of their own. The command `equipoise compare` does the same with one
    process per core, and stores the runs.

    >>> found = compare(["fedavg", "local_only"], "gaussians", seeds=1, rounds=2)
    >>> list(found.rows), [run.seed for run in found.runs]
    (['fedavg', 'local_only'], [0, 0])
    """
    methods = [methods] if isinstance(methods, (str, Method)) else methods
    chosen = list(dict.fromkeys(parse(method) if isinstance(method, str) else method for method in methods))
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(dict.fromkeys(seeds))
    if not chosen or not numbers:
        raise EquipoiseError(
            f"A comparison needs a method and a seed. Found methods={list(methods)!r}, seeds={seeds!r}."
        )
    data = load_federation(federation) if isinstance(federation, str) else federation
    if any(adapt_to_data(method, data.setting).validates for method in chosen):
        data = data.with_validation()  # all methods of a comparison train on the same samples
    results = tuple(
        run(
            method,
            data,
            model=model,
            rounds=rounds,
            seed=seed,
            participation=participation,
            training=training,
            until_flat=until_flat,
            hold_out=hold_out,
        )
        for method in chosen
        for seed in numbers
    )
    table = tabulate([(str(result.method), result.by_domain()) for result in results])
    held_out = [(str(result.method), result.values(split=UNSEEN)) for result in results]
    return replace(table, runs=results, unseen=tabulate(held_out) if held_out[0][1] else None)


def tabulate(results: Sequence[tuple[str, Mapping[str, float]]], most_domains: int = 8) -> Comparison:
    """Tabulate the score of each domain, and AVG, STD (ddof 0) and MIN over domains: mean and 95 % interval over seeds.

    `results` has an entry per run: its method, and the score by domain. If there are more than `most_domains`
    domains, they get no columns of their own.
    """
    by_method: dict[str, list[Mapping[str, float]]] = {}
    for method, values in results:
        by_method.setdefault(method, []).append(values)
    domains = list(results[0][1])
    shown = domains if len(domains) <= most_domains else []
    rows = {}
    for method, runs in by_method.items():
        per_run = [figures(list(values.values())) for values in runs]
        row = {domain: _cell([values[domain] for values in runs]) for domain in shown}
        row |= {
            "AVG": _cell([f.avg for f in per_run]),
            "STD": _cell([f.std for f in per_run]),
            "MIN": _cell([f.min for f in per_run]),
        }
        rows[method] = row
    return Comparison((*shown, "AVG", "STD", "MIN"), rows, max(len(runs) for runs in by_method.values()))


def _cell(values: Sequence[float]) -> Cell:
    found = over_seeds([100 * value for value in values])
    return Cell(found.mean, found.half if len(values) > 1 else None)
