"""The command `reproduce`: a table or figure of a paper, ours beside the published."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.markup import escape
from rich.table import Column, Table

from equipoise import __version__
from equipoise.cli.options import DataDir, read_seeds, use_data_folder
from equipoise.cli.screens import STOPPED, say_notes, screen
from equipoise.cli.train import do_runs
from equipoise.errors import EquipoiseError
from equipoise.grammar import split_list

if TYPE_CHECKING:
    from equipoise.study.reproduce.entries import Entry, PresetName
    from equipoise.study.reproduce.plan import Plan

FOLDER = "reproduced"  # below the folder of the runs: where results go


def reproduce(
    target: Annotated[
        str | None,
        typer.Argument(
            help="SOURCE:TABLE, such as fedheal:table5_digits, or SOURCE for all of a paper; leave it out to see all"
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="`paper` is the paper's protocol, `cpu` a smaller one (default: cpu, if there is one)"),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="how many seeds (3 is 0,1,2), or a list (default: the preset's)")
    ] = None,
    only: Annotated[str | None, typer.Option(help="run these rows only, separated by commas")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would run, and how long it takes by a few measured steps")
    ] = False,
    stored: Annotated[bool, typer.Option("--stored", help="run nothing: show what finished runs say so far")] = False,
    workers: Annotated[int | None, typer.Option(help="runs at a time (default: the number of cores)", min=1)] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="where run folders go; results go to `reproduced` in it")
    ] = Path("runs"),
) -> None:
    """Do a paper's experiment again: our values beside the published ones, and which of its claims hold.

    Finished runs are found again and unfinished ones go on, so that the same command continues a table. Tables of one
    folder share their runs.
    """
    from equipoise.grammar import fit_to_type
    from equipoise.study.reproduce.entries import PresetName, find_entries
    from equipoise.study.reproduce.plan import build_plan, check_rows, choose_preset

    use_data_folder(data_dir)
    if target is None:
        _list_all()
        return
    wanted = None if preset is None else cast("PresetName", fit_to_type(preset, PresetName, "--preset"))
    found = find_entries(target)
    several = len(found) > 1
    entries = [entry for entry in found if not several or wanted is None or wanted in entry.presets]
    if only is not None and several:
        raise EquipoiseError(f"--only names rows of one table. Found `{target}`, which is {len(entries)}.")
    for entry in entries:
        rows = check_rows(entry, split_list(only or ""))
        plan = build_plan(entry, choose_preset(entry, wanted), read_seeds(seeds) if seeds else None)
        if dry_run:
            _say_plan(plan, rows, out, workers)
            continue
        stopped = False
        if not (stored or entry.costs_only):
            stopped = _run(plan, rows, out, workers)
        _show(plan, out)
        if stopped:
            raise typer.Exit(STOPPED)


def _list_all() -> None:
    """List every table and figure: what it needs, and whether the data are here."""
    from equipoise.data.catalogue import say_availability
    from equipoise.study.reproduce.entries import list_entries
    from equipoise.study.reproduce.plan import count_runs, list_datasets

    table = Table(
        Column("name", no_wrap=True),
        "what it shows",
        "data",
        "their files",
        "runs",
        title="Papers' tables and figures",
        title_justify="left",
    )
    last = ""
    for entry in list_entries():
        if last and entry.paper != last:
            table.add_section()
        last = entry.paper
        sets = list_datasets(entry)
        counts = "none" if entry.costs_only else ", ".join(f"{p} {count_runs(entry, p)}" for p in entry.presets)
        here = "\n".join(dict.fromkeys(say_availability(one) for one in sets))
        table.add_row(entry.key, escape(entry.title), "\n".join(sets), here, counts)
    screen.print(table)
    screen.print("`equipoise reproduce NAME --dry-run` says what would run and for how long.")


def _run(plan: Plan, rows: tuple[str, ...], out: Path, workers: int | None) -> bool:
    """Do the runs that are missing. Returns whether the user stopped them."""
    from equipoise.study.reproduce.plan import find_run

    missing = [planned for planned in plan.choose(rows) if find_run(planned, out).run is None]
    todo = sorted(missing, key=lambda planned: plan.seeds.index(planned.job.seed))  # one seed of all methods first
    screen.print(
        f"{plan.entry.key}, preset {plan.preset_name}: {len(todo)} of {len(plan.runs)} runs to do.", soft_wrap=True
    )
    if not todo:
        return False
    _, failures, stopped = do_runs([p.job for p in todo], [p.settings.rounds for p in todo], out, workers)
    say_notes(f"{one.method}, seed {one.seed}, is missing: {one.why}" for one in failures)
    return stopped


def _show(plan: Plan, out: Path) -> None:
    """Print the result, and write it beside the runs."""
    from equipoise.study.reproduce.pages import build_table, name_file, tell_claims, tell_facts, write_markdown
    from equipoise.study.reproduce.result import as_json, gather

    entry = plan.entry
    result = as_json(
        gather(plan, out, _say_command(entry, plan.preset_name)), f"{datetime.now(UTC):%Y-%m-%d}", __version__
    )
    shown = build_table(entry, result)
    title = f"{entry.key}, preset {plan.preset_name}: {escape(entry.title)}"
    table = Table(*map(escape, shown.head), title=title, title_justify="left", caption_justify="left",
                  caption="each cell: ours, and below it the published value", show_lines=True)  # fmt: skip
    for name, cells, end in shown.lines:
        pairs = (
            f"{escape(ours) or '–'}" + (f"\n[dim]{escape(printed)}[/]" if printed else "") for ours, printed in cells
        )
        table.add_row(escape(name), *pairs, escape(end))
    screen.print(table)
    for line in (*shown.footnotes, *tell_facts(entry, result)):
        screen.print(escape(line), soft_wrap=True)
    screen.print(f"[bold]{result['verdict']}[/]", soft_wrap=True)
    for line in tell_claims(result):
        screen.print(f"  {escape(line)}", soft_wrap=True)
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / name_file(entry.key, plan.preset_name)
    Path(f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    Path(f"{stem}.md").write_text(write_markdown(entry, result), encoding="utf-8")
    screen.print(f"Written: {stem}.md and .json. Go on with the same command.", soft_wrap=True)


def _say_command(entry: Entry, preset: PresetName) -> str:
    return f"equipoise reproduce {entry.key} --preset {preset}"


def _say_plan(plan: Plan, rows: tuple[str, ...], out: Path, workers: int | None) -> None:
    """Say what would run, what is there already, and how long the rest takes."""
    from equipoise.engine.runners import count_cores
    from equipoise.study.reproduce.estimate import estimate_all, name_kind
    from equipoise.study.reproduce.pages import say_hours
    from equipoise.study.reproduce.plan import find_run
    from equipoise.study.reproduce.result import describe_settings, label_preset
    from equipoise.study.reproduce.stand_ins import find_stand_ins

    chosen = plan.choose(rows)
    todo = [planned for planned in chosen if find_run(planned, out).run is None]
    screen.print(f"[bold]{plan.entry.key}[/], {escape(plan.entry.title)}", soft_wrap=True)
    for line in (
        label_preset(plan),
        *describe_settings(plan),
        *(f"Stand-in: {one}." for one in find_stand_ins(plan.data.values())),
    ):
        screen.print(escape(line), soft_wrap=True)
    if plan.entry.costs_only:
        screen.print("Nothing is trained: costs follow from the settings.")
        return
    seconds = estimate_all(plan, todo)
    table = Table("data and method", "runs to do", "done", "one run", "all of them", title_justify="left")
    for kind in dict.fromkeys(map(name_kind, chosen)):
        mine, left = ([p for p in those if name_kind(p) == kind] for those in (chosen, todo))
        each = seconds.get(kind)
        times = ("", "") if each is None else (say_hours(each), say_hours(each * len(left)))
        table.add_row(escape(kind), str(len(left)), str(len(mine) - len(left)), *times)
    screen.print(table)
    for row in plan.entry.rows:
        if row.cannot:
            screen.print(escape(f"{row.name} is left out: {row.cannot}."), soft_wrap=True)
    total = sum(seconds[name_kind(planned)] for planned in todo)
    side = min(workers or count_cores(), max(1, len(todo)))
    screen.print(
        f"{len(todo)} of {len(chosen)} runs to do: about {say_hours(total)} one after the other, {say_hours(total / side)} "
        f"with {side} at a time. This is estimated from a few steps of each method.",
        soft_wrap=True,
    )
