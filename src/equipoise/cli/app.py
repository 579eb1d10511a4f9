"""The command line."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from equipoise.cli.deploy import app as deploying
from equipoise.cli.stored import register as register_reports
from equipoise.data import DATASETS, Federation, load_federation
from equipoise.engine.checkpoints import Checkpoints, saved
from equipoise.engine.loop import RoundRecord, Run, check_options
from equipoise.engine.runners import RunnerName
from equipoise.grammar import Mistakes, fitted, split_list
from equipoise.method import METHODS, ROLES, parse, plugins
from equipoise.metrics import figures
from equipoise.models import MODELS
from equipoise.runs import analysis
from equipoise.runs.live import VIEWS
from equipoise.runs.records import read
from equipoise.study.comparison import Comparison, tabulate
from equipoise.study.experiment import POSSIBLE, loaded, read_plan, training_changes
from equipoise.study.jobs import (
    CHECKPOINT_EVERY,
    Failure,
    Job,
    Outcome,
    checkpoints_of,
    execute_all,
    jobs,
    recorded,
    worst_and_average,
)
from equipoise.study.jobs import Progress as Step
from equipoise.study.report.page import write as write_report
from equipoise.study.report.study import studies
from equipoise.study.report.verdict import chosen_by_validation, in_a_line, in_two_sentences, verdicts
from equipoise.task import Task
from equipoise.types import EquipoiseError, EquipoiseWarning

app = typer.Typer(
    name="equipoise",
    help="Fair federated learning: one shared model across data owners, and no owner left behind.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(deploying, name="deploy")
screen = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

COMPARED = "fedavg,fedheal,fedequilibria,eagle,fedfe,f2dc"
STOPPED = 130  # the exit code of a program that Ctrl-C ended

Dataset = Annotated[
    str,
    typer.Argument(
        help="a data set (`equipoise datasets` lists them), a folder or table of your own, or an id of the Hugging Face hub"
    ),
]
OWN = "Your own data"
SAFE = "Safety"
DataDir = Annotated[Path | None, typer.Option(help="folder with the data sets' files [default: $EQUIPOISE_DATA]")]
Label = Annotated[str | None, typer.Option(help="label column [default: label]", rich_help_panel=OWN)]
ClientColumn = Annotated[
    str | None, typer.Option("--client", help="client column [default: client]", rich_help_panel=OWN)
]
DomainColumn = Annotated[
    str | None, typer.Option("--domain", help="domain column [default: domain]", rich_help_panel=OWN)
]
ImageSize = Annotated[int | None, typer.Option(help="images as squares of so many pixels", rich_help_panel=OWN)]
Ignore = Annotated[str | None, typer.Option(help="columns to leave out, separated by commas", rich_help_panel=OWN)]
Deal = Annotated[
    str | None,
    typer.Option(
        "--partition", help="deal rows out, for example 'dirichlet(clients=10, alpha=0.5)'", rich_help_panel=OWN
    ),
]
SchemaFile = Annotated[Path | None, typer.Option("--schema", help="schema.json of an earlier run", rich_help_panel=OWN)]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="leave out images that cannot be read", rich_help_panel=OWN)]
Rounds = Annotated[int | None, typer.Option(help="federated rounds [default: the data set's]")]
Participation = Annotated[float | None, typer.Option(help="share of the clients in a round [default: the data set's]")]
Lr = Annotated[float | None, typer.Option(help="local learning rate [default: the data set's]")]
Epochs = Annotated[int | None, typer.Option(help="local epochs a round [default: the data set's]")]
Steps = Annotated[int | None, typer.Option(help="local steps a round, instead of epochs")]
Batch = Annotated[str | None, typer.Option(help="batch size, or `full` [default: the data set's]")]
Momentum = Annotated[float | None, typer.Option(help="momentum of the local optimiser")]
Decay = Annotated[float | None, typer.Option("--weight-decay", help="weight decay of the local optimiser")]
Optimizer = Annotated[str | None, typer.Option(help="any optimiser of torch.optim")]
Model = Annotated[str | None, typer.Option(help="model, for example 'mlp(hidden=(64,))' [default: the data set's]")]
Device = Annotated[str, typer.Option(help="cpu, cuda or mps")]
EvalEvery = Annotated[int, typer.Option(help="evaluate every n rounds; the last one always is")]
RunnerOption = Annotated[str, typer.Option(help=", ".join(get_args(RunnerName)))]
Out = Annotated[Path, typer.Option(help="where run folders go")]
Keep = Annotated[str | None, typer.Option(help=f"keep for plots, separated by commas: {', '.join(analysis.KINDS)}")]
Validation = Annotated[
    bool, typer.Option("--validation", help="set training data aside, so that methods and rounds can be chosen by it")
]
Live = Annotated[
    str | None, typer.Option(help="watch the run in `mlflow` or `tensorboard`, or both, separated by a comma")
]


@app.callback()
def everywhere(
    plugin: Annotated[
        list[Path] | None, typer.Option(help="a Python file with methods of your own, imported first; may be repeated")
    ] = None,
) -> None:
    """What goes before the command."""
    plugins.load(plugin or [])


@app.command()
def run(
    context: typer.Context,
    dataset: Dataset,
    method: Annotated[str, typer.Option(help="a method, for example 'eagle + fedheal(tau=0.3)'")] = "fedavg",
    rounds: Rounds = None,
    seed: Annotated[int, typer.Option(help="seed of everything random")] = 0,
    participation: Participation = None,
    lr: Lr = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch: Batch = None,
    momentum: Momentum = None,
    weight_decay: Decay = None,
    optimizer: Optimizer = None,
    model: Model = None,
    device: Device = "cpu",
    eval_every: EvalEvery = 1,
    runner: RunnerOption = "auto",
    data_dir: DataDir = None,
    label: Label = None,
    client: ClientColumn = None,
    domain: DomainColumn = None,
    image_size: ImageSize = None,
    ignore: Ignore = None,
    partition: Deal = None,
    schema: SchemaFile = None,
    skip_bad: SkipBad = False,
    guard: Annotated[
        bool, typer.Option("--guard", help="limit what a lying loss can gain", rich_help_panel=SAFE)
    ] = False,
    checkpoint_every: Annotated[
        int, typer.Option(help="a checkpoint every n rounds; 0 writes none", min=0, rich_help_panel=SAFE)
    ] = CHECKPOINT_EVERY,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the same run where it stopped", rich_help_panel=SAFE)
    ] = False,
    live: Live = None,
    keep: Keep = None,
    validation: Validation = False,
    out: Out = Path("runs"),
) -> None:
    """Train one method, and show what every domain and client got; or do all that an experiment file (TOML) asks for."""
    if Path(dataset).suffix == ".toml":
        _refuse_beside_a_file(context)
        _use_data_folder(data_dir)
        views, kinds = _chosen(live, VIEWS, "--live"), _chosen(keep, analysis.KINDS, "--keep")
        planned = read_plan(Path(dataset))
        _experiment([replace(job, live=views, keep=(*job.keep, *kinds)) for job in planned], out, workers=None)
        return
    mistakes = Mistakes()
    changes = _training(mistakes, lr, epochs, steps, batch, momentum, weight_decay, optimizer)
    dataset = _source(dataset, data_dir, label, client, domain, image_size, ignore, partition, schema, skip_bad)
    data = _checked(mistakes, [method], dataset, rounds, participation, eval_every, device)
    job = Job(
        method=method,
        dataset=dataset,
        seed=seed,
        rounds=rounds,
        participation=participation,
        training=replace(data.protocol.training, **changes) if changes else None,
        model=model,
        runner=_runner(runner),
        device=device,
        eval_every=eval_every,
        guard=guard,
        with_validation=validation,
        live=_chosen(live, VIEWS, "--live"),
        keep=_chosen(keep, analysis.KINDS, "--keep"),
    )
    total = _checked_rounds(job, data)
    checkpoint = _checkpoints(job, out, checkpoint_every, resume)
    _applicable([method], data, job, by_default=False)
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=errors) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", EquipoiseWarning)  # shown below, without a source line
        line = bar.add_task(escape(method), total=total, note="")

        def show(record: RoundRecord) -> None:
            scored = worst_and_average(record)
            bar.update(line, completed=record.round)
            if scored:
                bar.update(line, note=_standing(*scored))

        try:
            result, place = recorded(job, out, show, checkpoint=checkpoint)
        except KeyboardInterrupt:
            bar.stop()
            _say_how_to_resume(checkpoint)
            raise typer.Exit(STOPPED) from None
    _notes((*data.notes, *result.warnings))
    screen.print(_run_table(result))
    screen.print(f"{_seconds(result.seconds)} with the {result.runner} runner. Records: {place}", soft_wrap=True)


def _refuse_beside_a_file(context: typer.Context) -> None:
    """An experiment file says everything itself, but for where data and results are."""
    free = {"dataset", "data_dir", "out", "live", "keep"}
    sources = {name: context.get_parameter_source(name) for name in context.params if name not in free}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise EquipoiseError(f"With an experiment file {words} must stand in the file itself, or be left out.")


@app.command()
def compare(
    dataset: Dataset,
    methods: Annotated[
        str | None, typer.Option(help=f"methods, separated by commas, or `all` [default: {COMPARED}]")
    ] = None,
    seeds: Annotated[str, typer.Option(help="how many seeds (3 is 0,1,2), or a list such as 0,42,100")] = "3",
    rounds: Rounds = None,
    participation: Participation = None,
    lr: Lr = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch: Batch = None,
    momentum: Momentum = None,
    weight_decay: Decay = None,
    optimizer: Optimizer = None,
    model: Model = None,
    device: Device = "cpu",
    eval_every: EvalEvery = 1,
    runner: RunnerOption = "auto",
    workers: Annotated[int | None, typer.Option(help="runs at a time [default: the number of cores]", min=1)] = None,
    data_dir: DataDir = None,
    label: Label = None,
    client: ClientColumn = None,
    domain: DomainColumn = None,
    image_size: ImageSize = None,
    ignore: Ignore = None,
    partition: Deal = None,
    schema: SchemaFile = None,
    skip_bad: SkipBad = False,
    live: Live = None,
    keep: Keep = None,
    validation: Validation = False,
    out: Out = Path("runs"),
) -> None:
    """Train several methods with several seeds; print one table, and write the report.

    What is finished already is not done again. fedavg and local_only are added as references.
    """
    mistakes = Mistakes()
    changes = _training(mistakes, lr, epochs, steps, batch, momentum, weight_decay, optimizer)
    dataset = _source(dataset, data_dir, label, client, domain, image_size, ignore, partition, schema, skip_bad)
    wanted = list(METHODS) if methods == "all" else split_list(COMPARED if methods is None else methods)
    data = _checked(mistakes, wanted, dataset, rounds, participation, eval_every, device)
    names = list(dict.fromkeys(str(parse(text)) for text in wanted))
    if not names:
        raise EquipoiseError("Name at least one method, for example --methods fedavg,fedheal.")
    template = Job(
        rounds=rounds,
        participation=participation,
        training=replace(data.protocol.training, **changes) if changes else None,
        model=model,
        runner=_runner(runner),
        device=device,
        eval_every=eval_every,
        with_validation=validation,
        live=_chosen(live, VIEWS, "--live"),
        keep=_chosen(keep, analysis.KINDS, "--keep"),
    )
    _checked_rounds(template, data)
    names = _applicable(names, data, template, by_default=methods in (None, "all"))
    called = {call.name for name in names for call in parse(name).calls[:1] if len(parse(name).calls) == 1}
    names += [reference for reference in ("fedavg", "local_only") if reference not in called]
    _experiment(jobs(names, dataset, _seeds(seeds), template), out, workers)


def _experiment(todo: Sequence[Job], out: Path, workers: int | None) -> None:
    """Do all runs, show a table for each data set, and write the report."""
    data = {dataset: load_federation(dataset) for dataset in dict.fromkeys(job.dataset for job in todo)}
    totals = [_checked_rounds(job, data[job.dataset]) for job in todo]
    for dataset, federation in data.items():
        own = [job for job in todo if job.dataset == dataset]
        counts = len({job.method for job in own}), len({job.seed for job in own})
        screen.print(
            f"{len(federation)} clients, {len(federation.domains)} domains, {counts[0]} methods x {counts[1]} seeds, "
            f"{totals[todo.index(own[0])]} rounds each."
        )
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
        show = _shown_progress(bar, todo, totals)
        try:
            for found in execute_all(todo, out, show, workers):
                if isinstance(found, Failure):
                    failures.append(found)
                else:
                    outcomes.append(found)
        except KeyboardInterrupt:
            stopped = True
    warned = {text.split(":")[0]: text for found in outcomes for text in found.warnings}
    notes = [note for federation in data.values() for note in federation.notes]
    notes += [
        f"No run could keep {kind}: {why}"
        for kind, why in (outcomes[0].not_kept.items() if outcomes else ())
        if all(kind in found.not_kept for found in outcomes)
    ]
    _notes((*notes, *warned.values(), *(f"{f.method}, seed {f.seed}, is missing: {f.why}" for f in failures)))
    for dataset, federation in data.items():
        ours = [found for found in outcomes if found.dataset == dataset]
        if ours:
            names = list(dict.fromkeys(job.method for job in todo if job.dataset == dataset))
            position = {str(parse(name).for_data(federation.name)): i for i, name in enumerate(names)}
            ordered = sorted(ours, key=lambda o: (position.get(o.method, len(position)), o.seed))
            table = tabulate([(found.method, found.by_domain) for found in ordered])
            screen.print(_comparison_table(table, federation.name))
    if outcomes:
        runs = [read(found.folder) for found in outcomes]
        shown = studies(runs)
        for study in shown:
            for sentence in (*in_two_sentences(study), *map(in_a_line, verdicts(study))):
                screen.print(escape(sentence), soft_wrap=True)
        page = write_report(runs, out / "report.html")[0]
        screen.print(f"\nReport: {page}\nRuns: {out}/. Try next:", soft_wrap=True)
        looked_at = chosen_by_validation(shown[-1]) or (shown[-1].rivals or shown[-1].methods)[0]
        for command in _next_commands(dataset, looked_at):
            screen.print(f"  {escape(command)}", soft_wrap=True)
    if stopped:
        errors.print(f"Stopped. {len(outcomes)} of {len(todo)} runs are finished and stored in {out}/.")
        raise typer.Exit(STOPPED)
    if failures:
        raise typer.Exit(1)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="a method; leave it out to see all")] = None,
    table: Annotated[bool, typer.Option("--table", help="which part plays which role in each method")] = False,
) -> None:
    """Every method with its roles, parameters, defaults and reference."""
    if name is None:
        built = {entry.name: entry.function() for entry in METHODS.values()}
        if table:
            title = "Method x role: the parts that are not FedAvg's, and what a method demands of the optimiser"
            shown = Table("method", *ROLES, "training", title=title, title_justify="left", show_lines=True)
            for method, value in built.items():
                cells = ["\n".join(type(part).__name__ for part in parts) for parts in value.own_parts.values()]
                shown.add_row(method, *cells, "\n".join(f"{name}={wanted}" for name, wanted in value.training))
        else:
            shown = Table(
                "method", "what it does", "roles that differ from FedAvg", title="Methods", title_justify="left"
            )
            for method, value in built.items():
                changed = [role for role, parts in value.own_parts.items() if parts]
                shown.add_row(method, METHODS[method].title, ", ".join(changed) or "-")
        screen.print(shown)
        screen.print(
            "`equipoise methods NAME` shows the parameters of one. Combine with +, as in 'eagle + f2dc_modules'."
        )
        return
    entry = METHODS.find(name)
    chosen = entry.function()
    screen.print(f"[bold]{entry.name}[/]: {escape(entry.title)}\n{escape(entry.reference)}\n", soft_wrap=True)
    screen.print(escape(" ".join((entry.function.__doc__ or "").split())) + "\n", soft_wrap=True)
    parameters = Table("parameter", "type", "default", *entry.per_dataset, title="Parameters", title_justify="left")
    for parameter in entry.parameters.values():
        kind = str(parameter.annotation).replace("Literal", "")
        special = [escape(repr(v[parameter.name])) if parameter.name in v else "" for v in entry.per_dataset.values()]
        parameters.add_row(parameter.name, escape(kind), escape(repr(parameter.default)), *special)
    if entry.parameters:
        screen.print(parameters)
    roles = Table("role", "parts", title="Roles", title_justify="left")
    for role in ROLES:
        parts = getattr(chosen, role)
        roles.add_row(role, escape(", ".join(map(repr, parts)) if isinstance(parts, tuple) else repr(parts)) or "-")
    screen.print(roles)


@app.command()
def datasets(
    name: Annotated[str | None, typer.Argument(help="a data set, or your own data; leave it out to see all")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="draw who holds what")] = False,
    data_dir: DataDir = None,
    label: Label = None,
    client: ClientColumn = None,
    domain: DomainColumn = None,
    image_size: ImageSize = None,
    ignore: Ignore = None,
    partition: Deal = None,
    schema: SchemaFile = None,
    skip_bad: SkipBad = False,
    out: Annotated[Path, typer.Option(help="where the picture goes")] = Path(),
) -> None:
    """The data sets that can be named, or one of them: who holds what, and how it is trained."""
    from equipoise.data.catalogue import availability
    from equipoise.data.summary import client_table, facts

    if name is None:
        _use_data_folder(data_dir)
        table = Table("data set", "what it is", "its files", title="Data sets", title_justify="left")
        for entry in DATASETS.values():
            table.add_row(entry.name, entry.title, availability(entry.name))
        screen.print(table)
        screen.print("`equipoise datasets NAME --plot` shows one. Your own: `equipoise run ./my-data`.")
        return
    data = load_federation(
        _source(name, data_dir, label, client, domain, image_size, ignore, partition, schema, skip_bad)
    )
    screen.print(client_table(data))
    for line in facts(data, name):
        screen.print(line, soft_wrap=True)
    for note in data.notes:
        errors.print(f"[yellow]Note:[/] {escape(note)}", soft_wrap=True)
    if plot:
        from equipoise.data.plots import draw

        screen.print(f"Drawn: {draw(data, out / f'{data.name}.png')}", soft_wrap=True)


@app.command()
def doctor(
    data_dir: DataDir = None,
    port: Annotated[list[int] | None, typer.Option(help="a port that a server should use; may be repeated")] = None,
    certificate: Annotated[list[Path] | None, typer.Option(help="a certificate in PEM form; may be repeated")] = None,
    key: Annotated[Path | None, typer.Option(help="the certificate's key, to see whether it belongs to it")] = None,
    ca: Annotated[Path | None, typer.Option(help="the authority's certificate, which the sites have")] = None,
    host: Annotated[str | None, typer.Option(help="the name or address by which sites know the server")] = None,
    out: Out = Path("runs"),
) -> None:
    """Look at the installation, the machine, data, space, ports and certificates, and say what to do."""
    from equipoise.cli.doctor import examine

    _use_data_folder(data_dir)
    found = examine(out, port or (), certificate or (), key, ca, host)
    marks = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "bad": "[red]bad[/]"}
    table = Table("", "what", "found", "what to do", title="Doctor", title_justify="left")
    for one in found:
        table.add_row(marks[one.state], escape(one.what), escape(one.found), escape(one.advice))
    screen.print(table)
    bad = sum(one.state == "bad" for one in found)
    screen.print("Everything that is needed is in place." if not bad else f"{bad} to mend.")
    if bad:
        raise typer.Exit(1)


@app.command()
def models() -> None:
    """The models that can be named."""
    table = Table("model", "what it is", title="Models", title_justify="left")
    for entry in MODELS.values():
        table.add_row(entry.name, entry.title)
    screen.print(table)


register_reports(app)


# --------------------------------------------------------------------------- reading options
def _use_data_folder(folder: Path | None) -> None:
    """Worker processes find the folder in the environment, too."""
    if folder is not None:
        os.environ["EQUIPOISE_DATA"] = str(folder)


def _source(
    dataset: str,
    data_dir: Path | None,
    label: str | None,
    client: str | None,
    domain: str | None,
    image_size: int | None,
    ignore: str | None,
    partition: str | None,
    schema: Path | None,
    skip_bad: bool,
) -> str:
    """The data set as one text, with what the options say about it."""
    from equipoise.data.catalogue import with_options

    _use_data_folder(data_dir)
    options = {
        "label": label, "client": client, "domain": domain, "image_size": image_size,
        "ignore": tuple(split_list(ignore or "")), "partition": partition, "schema": str(schema) if schema else None,
        "skip_bad": skip_bad,
    }  # fmt: skip
    return with_options(dataset, options)


def _training(
    mistakes: Mistakes,
    lr: float | None,
    epochs: int | None,
    steps: int | None,
    batch: str | None,
    momentum: float | None,
    weight_decay: float | None,
    optimizer: str | None,
) -> dict[str, Any]:
    """What the user changed of the data set's local training."""
    given: dict[str, object] = {
        "lr": lr,
        "epochs": epochs,
        "steps": steps,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "optimizer": optimizer,
    }
    changes = training_changes({name: value for name, value in given.items() if value is not None}, mistakes)
    if batch is not None:
        with mistakes.noted():
            if batch != "full" and not (batch.isdecimal() and int(batch)):
                raise EquipoiseError(f"--batch must be a whole number above 0, or `full`. Found {batch!r}.")
            changes["batch"] = None if batch == "full" else int(batch)
    return changes


def _checked(
    mistakes: Mistakes,
    methods: Sequence[str],
    dataset: str,
    rounds: int | None,
    participation: float | None,
    eval_every: int,
    device: str,
) -> Federation:
    """The data, once it is sure that nothing is wrong with the options that were given; else all that is."""
    for text in methods:
        with mistakes.noted():
            parse(text)
    given = {"rounds": rounds, "participation": participation, "eval_every": eval_every, "device": device}
    for name, value in given.items():
        if value is not None:
            with mistakes.noted():
                check_options(**{**POSSIBLE, name: value})  # type: ignore[arg-type]
    data = None
    with mistakes.noted():
        data = loaded(dataset, mistakes)
    mistakes.refuse()
    assert data is not None
    return data


def _chosen(text: str | None, known: Iterable[str], option: str) -> tuple[str, ...]:
    return tuple(str(fitted(name, Literal[tuple(known)], option)) for name in split_list(text or ""))


def _runner(name: str) -> RunnerName:
    return fitted(name, Literal[get_args(RunnerName)], "--runner")  # type: ignore[return-value]


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts) or (parts == ["0"] and "," not in text):
        raise EquipoiseError(
            f"--seeds must be a number of seeds such as 3, or a list such as 0,42,100. Found {text!r}."
        )
    if len(parts) == 1 and "," not in text:
        return list(range(int(parts[0])))
    return list(dict.fromkeys(int(part) for part in parts))


def _checked_rounds(job: Job, data: Federation) -> int:
    """The number of rounds, once it is sure that a run can have these options."""
    protocol = data.protocol
    total = protocol.rounds if job.rounds is None else job.rounds
    part = protocol.participation if job.participation is None else job.participation
    check_options(total, part, job.eval_every, job.device)
    return total


def _checkpoints(job: Job, out: Path, every: int, resume: bool) -> Checkpoints | None:
    if every:
        found = checkpoints_of(job, out, every, resume)
        if resume and not saved(Path(found.folder)):
            raise EquipoiseError(
                f"There is no checkpoint to go on from in `{found.folder}`. A run of other settings has its own: repeat all "
                "options, or leave --resume out to begin anew."
            )
        return found
    if resume:
        raise EquipoiseError("--resume needs checkpoints. Found --checkpoint-every 0: leave it out.")
    return None


def _say_how_to_resume(checkpoint: Checkpoints | None) -> None:
    places = saved(Path(checkpoint.folder)) if checkpoint is not None else []
    if not places:
        errors.print("Stopped. There is no checkpoint to go on from.")
        return
    command = shlex.join(["equipoise", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])
    errors.print(f"Stopped after round {int(places[-1].name[-8:])}. Go on with:\n  {escape(command)}", soft_wrap=True)


def _applicable(names: Sequence[str], data: Federation, job: Job, by_default: bool) -> list[str]:
    """The methods that can be built for this data and model. One that the user named must be; a default is left out."""
    kept = []
    for name in names:
        try:
            Task.build(parse(name).for_data(data.name), data, model=job.model, training=job.training)
            kept.append(name)
        except EquipoiseError as error:
            if not by_default:
                raise
            _notes([f"{name} is left out: {error}"])
    return kept


# --------------------------------------------------------------------------- showing results
def _notes(texts: Sequence[str]) -> None:
    for text in texts:
        errors.print(f"[yellow]Note:[/] {escape(text)}", soft_wrap=True)


def _standing(worst: float, average: float) -> str:
    return f"average {100 * average:.1f} %, worst client {100 * worst:.1f} %"


def _shown_progress(bar: Progress, todo: Sequence[Job], totals: Sequence[int]) -> Callable[[Step], None]:
    """A line for all runs and one a method."""
    whole = bar.add_task("all runs", total=sum(totals), note="")
    lines: dict[str, TaskID] = {}
    for job in todo:
        if job.method not in lines:
            rounds = sum(n for n, other in zip(totals, todo, strict=True) if other.method == job.method)
            lines[job.method] = bar.add_task(escape(job.method), total=rounds, note="")
    reached: dict[int, int] = {}

    def show(step: Step) -> None:
        done = step.round - reached.get(step.job, 0)
        reached[step.job] = step.round
        bar.update(lines[todo[step.job].method], advance=done, note=_standing(step.worst, step.average))
        bar.update(whole, advance=done)

    return show


def _run_table(result: Run) -> Table:
    accuracy, loss, area = (result.values(metric) for metric in ("accuracy", "loss", "auc"))
    table = Table(
        "domain", "client", "samples", "accuracy", "loss", *(["AUC"] if area else []), title_justify="left",
        title=f"{escape(str(result.method))} on {escape(result.federation.name)}, {result.scored} model, test data, "
        f"round {result.rounds[-1].round}",
    )  # fmt: skip
    for domain in result.federation.domains:
        members = [c for c in result.federation.clients if (c.domain or c.name) == domain]
        for client in members:
            shown = (
                (f"{100 * accuracy[client.name]:.1f} %", f"{loss[client.name]:.3f}")
                if client.name in accuracy
                else ("-", "-")
            )
            curve = [f"{area[client.name]:.3f}" if client.name in area else "-"] if area else []
            table.add_row(escape(domain), escape(client.name), str(len(client.train)), *shown, *curve)
    table.add_section()
    for what, values in (("clients", accuracy), ("domains", result.by_domain())):
        f = figures([100 * v for v in values.values()])
        table.add_row(
            f"[bold]over {what}[/]", "", "", f"[bold]AVG {f.avg:.1f}  STD {f.std:.1f} (ddof 0)  MIN {f.min:.1f}[/]", "",
        )  # fmt: skip
    for metric in dict.fromkeys(s.metric for s in result.scores if s.metric.startswith("accuracy of the ")):
        f = figures([100 * v for v in result.by_domain(metric).values()])
        model = metric.removeprefix("accuracy of the ")
        table.add_row(
            f"{model}, over domains", "", "", f"AVG {f.avg:.1f}  STD {f.std:.1f} (ddof 0)  MIN {f.min:.1f}", ""
        )
    return table


def _comparison_table(table: Comparison, name: str) -> RenderableType:
    """The table as wide as the terminal allows: with domains and spreads, then without the domains' spreads, then without
    the domains."""
    plain = tuple(column for column in table.columns if column in ("AVG", "STD", "MIN"))
    for columns, spreads in ((table.columns, table.columns), (table.columns, plain), (plain, plain)):
        shown = _one_table(table, name, columns, spreads)
        if Measurement.get(screen, screen.options.update(width=10_000), shown).maximum <= screen.width:
            return shown
    return shown


def _one_table(table: Comparison, name: str, columns: Sequence[str], spreads: Sequence[str]) -> Table:
    over = f"; mean ± standard deviation (ddof 1) over {table.seeds} seeds" if table.seeds > 1 else ""
    shown = Table(
        title_justify="left",
        title=f"Test accuracy on {escape(name)} in percent, last round; AVG, STD (ddof 0) and MIN over domains{over}",
    )
    shown.add_column("method", no_wrap=True)
    for column in columns:
        shown.add_column(escape(column), justify="right", no_wrap=True)
    best = {column: table.best(column) for column in columns}
    for method, row in table.rows.items():
        cells = [str(row[c]) if c in spreads else f"{row[c].mean:.1f}" for c in columns]
        shown.add_row(
            escape(method),
            *(f"[bold]{cell}[/]" if method in best[c] else cell for c, cell in zip(columns, cells, strict=True)),
        )
    return shown


def _next_commands(dataset: str, method: str) -> list[str]:
    dataset = shlex.quote(dataset)
    return [
        f'equipoise run {dataset} --method "{method}"     one method, client by client',
        f'equipoise compare {dataset} --methods "fedavg,local_only,centralised,{method}"     what joining is worth',
        f"equipoise methods {method.split('(')[0].split(' ')[0]}     its parameters, and where they come from",
    ]


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


def main() -> None:
    """The command `equipoise`. A user's mistake is one line, not a stack trace."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler that ends a job is heard as Ctrl-C is
    try:
        app()
    except EquipoiseError as error:
        errors.print(f"[red]Error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
