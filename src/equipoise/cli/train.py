"""The commands that train: `run` and `compare`."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from equipoise.cli.crew import Company, refuse_alone
from equipoise.cli.options import (
    SAFE,
    DataOptions,
    Dataset,
    RunOptions,
    TrainingOptions,
    prepare,
    read_seeds,
    spread_options,
    use_data_folder,
)
from equipoise.cli.screens import STOPPED, errors, say_notes, say_seconds, say_standing, screen
from equipoise.cli.several import SpreadOptions, submit_and_say
from equipoise.cli.tune import carry_out_and_show
from equipoise.errors import EquipoiseError, EquipoiseWarning
from equipoise.grammar import say_count, split_list

if TYPE_CHECKING:
    from equipoise.data import Federation
    from equipoise.engine import Checkpoints, RoundRecord, Run
    from equipoise.study.experiment import Experiment
    from equipoise.study.jobs import Job, Outcome
    from equipoise.study.workers import Failure
    from equipoise.study.workers import Progress as Advance

COMPARED = "fedavg,fedheal,fedequilibria,eagle,fedfe,f2dc"  # by `compare`, if no methods are named


@spread_options
def run(
    context: typer.Context,
    dataset: Dataset,
    options: RunOptions,
    training: TrainingOptions,
    own: DataOptions,
    spread: SpreadOptions,
    method: Annotated[str, typer.Option(help="a method, for example 'eagle + fedheal(tau=0.3)'")] = "fedavg",
    seed: Annotated[int, typer.Option(help="seed of everything random")] = 0,
    guard: Annotated[
        bool, typer.Option("--guard", help="limit what one client can gain by what it sends", rich_help_panel=SAFE)
    ] = False,
    checkpoint_every: Annotated[
        int, typer.Option(help="a checkpoint every n rounds; 0 writes none", min=0, rich_help_panel=SAFE)
    ] = 10,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the same run where it stopped", rich_help_panel=SAFE)
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="do a finished run anew, and replace it when it is whole", rich_help_panel=SAFE),
    ] = False,
) -> None:
    """Train one method, and show what every domain and client got; or do all runs of an experiment file (TOML)."""
    from equipoise.cli.results import show_run
    from equipoise.runs.reading import read
    from equipoise.study.experiment import read_experiment
    from equipoise.study.jobs import begin, find_finished, run_and_record

    if Path(dataset).suffix == ".toml":
        _refuse_beside_a_file(context)
        use_data_folder(own.data_dir)
        views, kinds = options.views, options.kinds
        experiment = read_experiment(Path(dataset))
        jobs = tuple(replace(job, live=views, keep=(*job.keep, *kinds)) for job in experiment.jobs)
        if jobs:
            _execute(replace(experiment, jobs=jobs), options.out, workers=None, spread=spread)
        for plan in spread.take_plans(experiment.plans):
            carry_out_and_show(plan, experiment.data[plan.job.dataset], options.out)
        return
    if spread != SpreadOptions():
        raise EquipoiseError(
            "--shard and --slurm are for studies of several runs: for `compare`, or an experiment file."
        )
    company = Company.meet(options.runner)
    data, template = company.do(lambda: prepare(dataset, [method], options, training, own))
    job = replace(template, method=method, seed=seed, guard=guard)
    settings = company.do(lambda: job.settings(data))
    finished = None if again else company.ask_leader(lambda: find_finished(job, settings, options.out))
    if finished is not None and not company.leads:
        return
    if finished is not None:
        for shown in show_run(read(finished)):
            screen.print(shown)
        screen.print(
            f"This run was finished before, and stays. --again does it anew. Records: {finished}", soft_wrap=True
        )
        return
    begun = company.do(lambda: begin(job, settings))
    checkpoint = company.ask_leader(lambda: _place_checkpoints(job, options.out, checkpoint_every, resume))
    if not company.leads:
        with company.say_once():
            _help(begun, checkpoint)
        return
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=errors) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", EquipoiseWarning)  # shown below, without a source line
        line = bar.add_task(escape(method), total=begun.settings.rounds, note="")

        def show(record: RoundRecord) -> None:
            scored = record.find_worst_and_average()
            bar.update(line, completed=record.round)
            if scored:
                bar.update(line, note=say_standing(*scored))

        try:
            with company.say_once():
                result, place = run_and_record(job, begun, options.out, show, checkpoint)
        except KeyboardInterrupt:
            bar.stop()
            _say_how_to_resume(checkpoint, is_alone=company.ranks is None)
            raise typer.Exit(STOPPED) from None
    say_notes((*data.notes, *result.warnings))
    for shown in show_run(read(place)):
        screen.print(shown)
    screen.print(f"{say_seconds(result.seconds)} with the {result.runner} runner. Records: {place}", soft_wrap=True)


def _help(begun: Run, checkpoint: Checkpoints | None) -> None:
    """Do this process's part of a run that another process records."""
    from equipoise.engine.simulation import simulate

    try:
        simulate(begun, checkpoint=checkpoint)
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None


def _refuse_beside_a_file(context: typer.Context) -> None:
    """Refuse options beside an experiment file, which says everything itself but where data and results are."""
    free = {"dataset", "data_dir", "out", "live", "keep", "plugin", *(f.name for f in fields(SpreadOptions))}
    sources = {name: context.get_parameter_source(name) for name in context.params if name not in free}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise EquipoiseError(f"With an experiment file {words} must stand in the file itself, or be left out.")


@spread_options
def compare(
    dataset: Dataset,
    options: RunOptions,
    training: TrainingOptions,
    own: DataOptions,
    spread: SpreadOptions,
    methods: Annotated[
        str | None, typer.Option(help=f"methods, separated by commas, or `all` (default: {COMPARED})")
    ] = None,
    seeds: Annotated[str, typer.Option(help="how many seeds (3 is 0,1,2), or a list such as 0,42,100")] = "3",
    workers: Annotated[int | None, typer.Option(help="runs at a time (default: the number of cores)", min=1)] = None,
) -> None:
    """Train several methods with several seeds; print one table, and write the report.

    Runs that are finished already are not done again. fedavg and local_only are added as references.
    """
    from equipoise.method import METHODS
    from equipoise.methods import parse
    from equipoise.study.experiment import Experiment
    from equipoise.study.jobs import list_jobs

    numbers = read_seeds(seeds)
    wanted = list(METHODS) if methods == "all" else split_list(COMPARED if methods is None else methods)
    data, template = prepare(dataset, wanted, options, training, own)
    names = list(dict.fromkeys(str(parse(text)) for text in wanted))
    if not names:
        raise EquipoiseError("Name at least one method, for example --methods fedavg,fedheal.")
    names = _select_applicable(names, data, template, by_default=methods in (None, "all"))
    called = {call.name for name in names for call in parse(name).calls[:1] if len(parse(name).calls) == 1}
    names += [reference for reference in ("fedavg", "local_only") if reference not in called]
    jobs = list_jobs(names, data, numbers, template)
    _execute(Experiment(tuple(jobs), {template.dataset: data}), options.out, workers, spread)


def _execute(experiment: Experiment, out: Path, workers: int | None, spread: SpreadOptions) -> None:
    """Do all runs, or this machine's share of them, show a table per data set, and write the report; or let a queue do
    them."""
    queue, share = spread.queue, spread.share
    if queue is not None:
        submit_and_say(experiment, out, queue)
        return
    jobs, totals = tuple(share.take(experiment.jobs)), []
    if not jobs:
        screen.print(f"Shard {share} has no run: there are {len(experiment.jobs)}.")
        return
    experiment = replace(experiment, jobs=jobs)
    for job in jobs:
        refuse_alone(job.runner, "many runs are done side by side on the cores there are. Leave the runner out.")
        protocol = experiment.data[job.dataset].protocol
        totals.append(protocol.rounds if job.rounds is None else job.rounds)
    for dataset, data in experiment.data.items():
        mine = [job for job in jobs if job.dataset == dataset]
        if not mine:
            continue
        counts = len({job.method for job in mine}), len({job.seed for job in mine})
        trained = data.hold_out(mine[0].hold_out)
        domains = {client.domain for client in trained.clients if client.domain}
        held = [say_count(len(trained), "client")]
        held += [say_count(len(domains), "domain")] if domains else []
        held += [f"{len(trained.unseen)} held out"] if trained.unseen else []
        held += [f"{say_count(counts[0], 'method')} x {say_count(counts[1], 'seed')}"]
        most = "at most " if mine[0].until_flat else ""
        screen.print(f"{', '.join(held)}, {most}{say_count(totals[jobs.index(mine[0])], 'round')} each.")
    outcomes, failures, stopped = do_runs(jobs, totals, out, workers)
    _say_what_was_noted(experiment, outcomes, failures)
    if outcomes and share.is_whole:
        _show_outcomes(experiment, outcomes, out)
    elif outcomes:
        screen.print(
            f"Shard {share}: {len(outcomes)} of its {len(jobs)} runs are finished and stored in {out}/. When all shards are: "
            f"equipoise report {out} -o {out}/report.html",
            soft_wrap=True,
        )
    if stopped:
        errors.print(f"Stopped. {len(outcomes)} of {len(jobs)} runs are finished and stored in {out}/.")
        raise typer.Exit(STOPPED)
    if failures:
        raise typer.Exit(1)


def do_runs(
    jobs: Sequence[Job], totals: Sequence[int], out: Path, workers: int | None
) -> tuple[list[Outcome], list[Failure], bool]:
    """Do all runs under a progress bar. `totals` are their rounds. The last value is whether the user stopped them."""
    from equipoise.study.workers import Failure, execute_all

    outcomes: list[Outcome] = []
    failures: list[Failure] = []
    stopped = False
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors) as bar:
        try:
            for found in execute_all(jobs, out, _draw_progress(bar, jobs, totals), workers):
                if isinstance(found, Failure):
                    failures.append(found)
                else:
                    outcomes.append(found)
        except KeyboardInterrupt:
            stopped = True
    return outcomes, failures, stopped


def _say_what_was_noted(experiment: Experiment, outcomes: Sequence[Outcome], failures: Sequence[Failure]) -> None:
    warned = {text.split(":")[0]: text for found in outcomes for text in found.warnings}
    notes = [note for data in experiment.data.values() for note in data.notes]
    notes += [
        f"No run could keep {kind}: {why}"
        for kind, why in (outcomes[0].not_kept.items() if outcomes else ())
        if all(kind in found.not_kept for found in outcomes)
    ]
    say_notes((*notes, *warned.values(), *(f"{f.method}, seed {f.seed}, is missing: {f.why}" for f in failures)))


def _show_outcomes(experiment: Experiment, outcomes: Sequence[Outcome], out: Path) -> None:
    """Print a table per data set and the verdicts, and write the report."""
    from equipoise.cli.results import draw_comparison, draw_gaps, suggest_commands
    from equipoise.method.registry import adapt_to_data
    from equipoise.methods import parse
    from equipoise.runs.reading import read
    from equipoise.study.comparison import tabulate
    from equipoise.study.report.figures import group_studies
    from equipoise.study.report.headline import tell
    from equipoise.study.report.notices import tell_notices
    from equipoise.study.report.page import write
    from equipoise.study.report.verdict import judge_all, tell_in_a_line

    dataset = ""
    for dataset, data in experiment.data.items():
        mine = [found for found in outcomes if found.dataset == dataset]
        if mine:
            names = list(dict.fromkeys(job.method for job in experiment.jobs if job.dataset == dataset))
            position = {str(adapt_to_data(parse(name), data.setting)): i for i, name in enumerate(names)}
            ordered = sorted(mine, key=lambda o: (position.get(o.method, len(position)), o.seed))
            table = tabulate([(found.method, found.by_domain) for found in ordered])
            over = "domains" if any(client.domain for client in data.clients) else "clients"
            words = read(mine[0].folder).score_words
            screen.print(draw_comparison(table, data.name, over, words))
            if ordered[0].unseen:
                held_out = tabulate([(found.method, found.unseen) for found in ordered])
                screen.print(draw_comparison(held_out, f"{data.name} (unseen clients)", "these clients", words))
    runs = [read(found.folder) for found in outcomes]
    shown = group_studies(runs)
    for study in shown:
        for table_of_gaps in draw_gaps(study):
            screen.print(table_of_gaps)
        first, *reasons = tell(study).sentences
        screen.print(f"[bold]{escape(first)}[/]", soft_wrap=True)
        for line in (*reasons, *map(tell_in_a_line, judge_all(study)), *tell_notices(study)):
            screen.print(escape(line), soft_wrap=True)
    page = write(runs, out / "report.html")[0]
    screen.print(f"\nReport: {page}\nRuns: {out}/. Try next:", soft_wrap=True)
    looked_at = tell(shown[-1]).shown or shown[-1].methods[0]
    last = next(job for job in experiment.jobs if job.dataset == dataset)
    for command in suggest_commands(last, looked_at):
        screen.print(f"  {escape(command)}", soft_wrap=True)


def _draw_progress(bar: Progress, jobs: Sequence[Job], totals: Sequence[int]) -> Callable[[Advance], None]:
    """Draw a progress bar for all runs and one per method. Returns the function that moves them."""
    whole = bar.add_task("all runs", total=sum(totals), note="")
    lines: dict[str, TaskID] = {}
    for job in jobs:
        if job.method not in lines:
            rounds = sum(n for n, other in zip(totals, jobs, strict=True) if other.method == job.method)
            lines[job.method] = bar.add_task(escape(job.method), total=rounds, note="")
    reached: dict[int, int] = {}

    def show(advance: Advance) -> None:
        done = advance.round - reached.get(advance.job, 0)
        reached[advance.job] = advance.round
        bar.update(lines[jobs[advance.job].method], advance=done, note=say_standing(advance.worst, advance.average))
        bar.update(whole, advance=done)

    return show


def _place_checkpoints(job: Job, out: Path, every: int, resume: bool) -> Checkpoints | None:
    from equipoise.engine.checkpoints import find_saved
    from equipoise.study.jobs import place_checkpoints

    if every:
        found = place_checkpoints(job, out, every, resume)
        if resume and not find_saved(Path(found.folder)):
            raise EquipoiseError(
                f"There is no checkpoint to go on from in `{found.folder}`. A run of other settings has its own: repeat all "
                "options, or leave --resume out to begin anew."
            )
        return found
    if resume:
        raise EquipoiseError("--resume needs checkpoints. Found --checkpoint-every 0: leave it out.")
    return None


def _say_how_to_resume(checkpoint: Checkpoints | None, is_alone: bool) -> None:
    from equipoise.engine.checkpoints import find_saved

    places = find_saved(Path(checkpoint.folder)) if checkpoint is not None else []
    if not places:
        errors.print("Stopped. There is no checkpoint to go on from.")
        return
    done = f"Stopped after round {int(places[-1].name[-8:])}."
    if not is_alone:  # with any number of processes, which torchrun was told
        errors.print(f"{done} Go on with the same command and --resume.", soft_wrap=True)
        return
    command = shlex.join(["equipoise", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])
    errors.print(f"{done} Go on with:\n  {escape(command)}", soft_wrap=True)


def _select_applicable(names: Sequence[str], data: Federation, job: Job, by_default: bool) -> list[str]:
    """The methods that can be built for these data and this model.

    One that cannot is left out with a note if it is there by default; if the user named it, that is an error.
    """
    from equipoise.engine.loop import begin_run
    from equipoise.runs.meant import watch

    kept = []
    for name in names:
        try:
            begun = begin_run(replace(job, method=name).settings(data))
        except EquipoiseError as error:
            if not by_default:
                raise
            say_notes([f"{name} is left out: {error}"])
            continue
        watch(begun, job.keep)  # a client or layer that is not there is the user's mistake, and no method's
        kept.append(name)
    return kept
