"""The command line."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from equipoise.grammar import fitted, split_list
from equipoise.types import EquipoiseError, EquipoiseWarning

# What needs torch is imported inside the commands: `equipoise --help` answers at once.

app = typer.Typer(
    name="equipoise",
    help="Fair federated learning: one shared model across data owners, and no owner left behind.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
screen = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

Dataset = Annotated[str, typer.Argument(help="a data set, for example scanners; `equipoise datasets` lists them")]
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
RunnerOption = Annotated[str, typer.Option(help="auto, inline (one client at a time) or vectorised (many at once)")]
Out = Annotated[Path, typer.Option(help="where run folders go")]


@app.command()
def run(
    dataset: Dataset,
    method: Annotated[str, typer.Option(help="a method, for example 'moon + fedheal(tau=0.3)'")] = "fedavg",
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
    out: Out = Path("runs"),
) -> None:
    """Train one method, and show what every domain and client got."""
    from equipoise.data import load_federation
    from equipoise.experiment import Job, execute, worst_and_average
    from equipoise.method import parse
    from equipoise.records import save
    from equipoise.simulation import RoundRecord, check_options

    parse(method)  # say what is wrong with the method before anything is loaded
    data = load_federation(dataset)
    training = _training(data.protocol.training, lr, epochs, steps, batch, momentum, weight_decay, optimizer)
    job = Job(method, dataset, seed, rounds, participation, training, model, _runner(runner), device, eval_every)
    total = data.protocol.rounds if rounds is None else rounds
    check_options(total, data.protocol.participation if participation is None else participation, eval_every, device)
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=errors) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", EquipoiseWarning)  # shown below, without a source line
        line = bar.add_task(escape(method), total=total, note="")

        def show(record: RoundRecord) -> None:
            scored = worst_and_average(record)
            note = f"average {100 * scored[1]:.1f} %, worst client {100 * scored[0]:.1f} %" if scored else None
            bar.update(line, completed=record.round)
            if note:
                bar.update(line, note=note)

        result = execute(job, show)
    place = save(result, out)
    for note in (*data.notes, *result.warnings):
        errors.print(f"[yellow]Note:[/] {escape(note)}")
    screen.print(_run_table(result))
    screen.print(f"{_seconds(result.seconds)} with the {result.runner} runner. Records: {place}", soft_wrap=True)


@app.command()
def compare(
    dataset: Dataset,
    methods: Annotated[str, typer.Option(help="methods, separated by commas; or `all`")] = (
        "fedavg,fedheal,fedequilibria,eagle,fedfe,f2dc"
    ),
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
    workers: Annotated[int | None, typer.Option(help="runs at a time [default: the number of cores]")] = None,
    out: Out = Path("runs"),
) -> None:
    """Train several methods with several seeds, and print one table."""
    from equipoise.comparison import in_words, tabulate
    from equipoise.data import load_federation
    from equipoise.experiment import Job, execute_all, jobs
    from equipoise.experiment import Progress as Step
    from equipoise.method import METHODS, parse
    from equipoise.simulation import check_options

    data = load_federation(dataset)
    names = list(METHODS) if methods.strip() == "all" else [str(parse(text)) for text in split_list(methods)]
    if not names:
        raise EquipoiseError("Name at least one method, for example --methods fedavg,fedheal.")
    training = _training(data.protocol.training, lr, epochs, steps, batch, momentum, weight_decay, optimizer)
    numbers = _seeds(seeds)
    template = Job(
        rounds=rounds, participation=participation, training=training, model=model, runner=_runner(runner), device=device,
        eval_every=eval_every,
    )  # fmt: skip
    todo = jobs(names, dataset, numbers, template)
    total = data.protocol.rounds if rounds is None else rounds
    check_options(total, data.protocol.participation if participation is None else participation, eval_every, device)
    screen.print(
        f"{len(data)} clients, {len(data.domains)} domains, {len(names)} methods x {len(numbers)} seeds, {total} rounds each."
    )
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors) as bar:
        whole = bar.add_task("all runs", total=total * len(todo), note="")
        lines: dict[str, Any] = {
            name: bar.add_task(escape(name), total=total * len(numbers), note="") for name in names
        }
        reached: dict[int, int] = {}

        def show(step: Step) -> None:
            done = step.round - reached.get(step.job, 0)
            reached[step.job] = step.round
            note = f"average {100 * step.average:.1f} %, worst client {100 * step.worst:.1f} %"
            bar.update(lines[todo[step.job].method], advance=done, note=note)
            bar.update(whole, advance=done)

        outcomes = execute_all(todo, out, show, workers)
    warned = {text.split(":")[0]: text for found in reversed(outcomes) for text in found.warnings}
    for note in (*data.notes, *warned.values()):
        errors.print(f"[yellow]Note:[/] {escape(note)}")
    table = tabulate([(found.method, found.by_domain) for found in outcomes])
    screen.print(_comparison_table(table, data.name))
    for sentence in in_words(table):
        screen.print(escape(sentence), soft_wrap=True)
    screen.print(f"\nRuns: {out}/. Try next:", soft_wrap=True)
    for command in _next_commands(dataset, names):
        screen.print(f"  {escape(command)}", soft_wrap=True)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="a method; leave it out to see all")] = None,
    table: Annotated[bool, typer.Option("--table", help="which part plays which role in each method")] = False,
) -> None:
    """Every method with its roles, parameters, defaults and reference."""
    from equipoise.method import METHODS, ROLES

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
        special = [_shown(values.get(parameter.name)) for values in entry.per_dataset.values()]
        parameters.add_row(parameter.name, escape(kind), escape(repr(parameter.default)), *special)
    if entry.parameters:
        screen.print(parameters)
    roles = Table("role", "parts", title="Roles", title_justify="left")
    for role in ROLES:
        parts = getattr(chosen, role)
        roles.add_row(role, escape(", ".join(map(repr, parts)) if isinstance(parts, tuple) else repr(parts)) or "-")
    screen.print(roles)


@app.command()
def datasets() -> None:
    """The data sets that can be named."""
    from equipoise.data import DATASETS

    table = Table("data set", "what it is", "source", title="Data sets", title_justify="left")
    for entry in DATASETS.values():
        table.add_row(entry.name, entry.title, entry.reference)
    screen.print(table)


@app.command()
def models() -> None:
    """The models that can be named."""
    from equipoise.models import MODELS

    table = Table("model", "what it is", title="Models", title_justify="left")
    for entry in MODELS.values():
        table.add_row(entry.name, entry.title)
    screen.print(table)


# --------------------------------------------------------------------------- helpers
def _training(
    base: Any,
    lr: float | None,
    epochs: int | None,
    steps: int | None,
    batch: str | None,
    momentum: float | None,
    weight_decay: float | None,
    optimizer: str | None,
) -> Any:
    given: dict[str, object] = {
        "lr": lr, "epochs": epochs, "steps": steps, "momentum": momentum, "weight_decay": weight_decay, "optimizer": optimizer,
    }  # fmt: skip
    changes = {name: value for name, value in given.items() if value is not None}
    if batch is not None:
        if batch != "full" and not batch.isdecimal():
            raise EquipoiseError(f"--batch must be a whole number or `full`. Found {batch!r}.")
        changes["batch"] = None if batch == "full" else int(batch)
    if epochs is not None and steps is None:
        changes["steps"] = None
    return replace(base, **changes)


def _runner(name: str) -> Any:
    return fitted(name, Literal["auto", "inline", "vectorised"], "--runner")


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts) or (len(parts) == 1 and int(parts[0]) == 0):
        raise EquipoiseError(
            f"--seeds must be a number of seeds such as 3, or a list such as 0,42,100. Found {text!r}."
        )
    return list(range(int(parts[0]))) if len(parts) == 1 and "," not in text else [int(part) for part in parts]


def _run_table(result: Any) -> Table:
    from equipoise.metrics import figures

    table = Table(
        "domain", "client", "samples", "accuracy", "loss", title_justify="left",
        title=f"{escape(str(result.method))} on {escape(result.federation.name)}, {result.scored} model, test data, "
        f"round {result.rounds[-1].round}",
    )  # fmt: skip
    accuracy, loss = result.values("accuracy"), result.values("loss")
    for domain in result.federation.domains:
        members = [c for c in result.federation.clients if (c.domain or c.name) == domain]
        for client in members:
            shown = (
                (f"{100 * accuracy[client.name]:.1f} %", f"{loss[client.name]:.3f}")
                if client.name in accuracy
                else ("-", "-")
            )
            table.add_row(escape(domain), escape(client.name), str(len(client.train)), *shown)
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


def _comparison_table(table: Any, name: str) -> Table:
    shown = Table(
        "method", title_justify="left",
        title=f"Test accuracy on {escape(name)} in percent, last round; AVG, STD (ddof 0) and MIN over domains; "
        f"mean ± standard deviation over {table.seeds} seed(s)",
    )  # fmt: skip
    for column in table.columns:
        shown.add_column(escape(column), justify="right", no_wrap=True)
    best = {column: table.best(column) for column in table.columns}
    for method, row in table.rows.items():
        cells = [f"[bold]{row[c]}[/]" if method in best[c] else str(row[c]) for c in table.columns]
        shown.add_row(escape(method), *cells)
    return shown


def _next_commands(dataset: str, names: list[str]) -> list[str]:
    other = next((name for name in reversed(names) if not name.startswith("fedavg")), names[0])
    return [
        f'equipoise run {dataset} --method "{other}"          one method, client by client',
        f'equipoise compare {dataset} --methods "fedavg,local_only,centralised,{other}"   what joining is worth',
        f"equipoise methods {other.split('(')[0].split(' ')[0]}          its parameters and where they come from",
    ]


def _shown(value: object) -> str:
    return "" if value is None else escape(repr(value))


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


def main() -> None:
    """The command `equipoise`. A user's mistake is one line, not a stack trace."""
    try:
        app()
    except EquipoiseError as error:
        errors.print(f"[red]Error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("Stopped.")
        sys.exit(130)
