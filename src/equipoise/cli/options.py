"""Options that several commands share, each declared once.

A command takes a group of them as one parameter, whose type is one of the dataclasses below. `spread_options` shows
typer each field of a group as an option of its own.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from equipoise.errors import EquipoiseError
from equipoise.grammar import Mistakes, fit_to_type, split_list
from equipoise.runs.requests import EXAMPLE, REQUESTS, split_requests

if TYPE_CHECKING:
    from equipoise.data import Federation
    from equipoise.study.jobs import Job

OWN, SAFE = "Your own data", "Safety"  # headings in the help of a command

Dataset = Annotated[
    str,
    typer.Argument(
        help="a data set (`equipoise datasets` lists them), a folder or table of your own, or an id of the Hugging Face hub"
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="where run folders go")]
DataDir = Annotated[Path | None, typer.Option(help="folder with the data sets' files (default: $EQUIPOISE_DATA)")]
Plugins = Annotated[
    list[Path] | None, typer.Option(help="a Python file with methods of your own, imported first; may be repeated")
]


def spread_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a command that takes groups of options into one with a parameter per option, which typer can read."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            flat.append(parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        inside = get_type_hints(group, include_extras=True)
        flat += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=inside[f.name])
            for f in fields(group)
        ]

    @functools.wraps(command)
    def spread(**given: Any) -> None:
        built = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**given, **built)

    spread.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return spread


def take_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """The same command with the option --plugin, whose files are imported before the command begins."""
    shown = inspect.signature(command, eval_str=True)
    plugin = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)
    flat = [*shown.parameters.values(), plugin]

    @functools.wraps(command)
    def taking(plugin: list[Path] | None, **given: Any) -> None:
        import_plugins(plugin)
        command(**given)

    taking.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    taking.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return taking


def import_plugins(files: Iterable[Path] | None) -> None:
    """Import a user's own files. PyTorch is imported only if there are some."""
    if files:
        import equipoise.methods  # noqa: F401 - registered first, so that a plugin cannot take their names
        from equipoise.method.plugins import load_plugins

        load_plugins(list(files))


@dataclass(frozen=True)
class DataOptions:
    """Options that say where the data are, and how a user's own data are read."""

    data_dir: DataDir = None
    label: Annotated[str | None, typer.Option(help="label column (default: label)", rich_help_panel=OWN)] = None
    target: Annotated[
        str | None,
        typer.Option(
            help="what to predict instead of classes: a column of numbers, or several columns of 0 and 1, separated by "
            "commas",
            rich_help_panel=OWN,
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(help="column that puts rows into groups to be compared, such as sex", rich_help_panel=OWN),
    ] = None
    group_in_model: Annotated[
        bool, typer.Option("--group-in-model", help="let the model see the group column, too", rich_help_panel=OWN)
    ] = False
    client: Annotated[str | None, typer.Option(help="client column (default: client)", rich_help_panel=OWN)] = None
    domain: Annotated[str | None, typer.Option(help="domain column (default: domain)", rich_help_panel=OWN)] = None
    image_size: Annotated[
        int | None, typer.Option(help="side of the square images, in pixels", rich_help_panel=OWN)
    ] = None
    ignore: Annotated[
        str | None, typer.Option(help="columns to leave out, separated by commas", rich_help_panel=OWN)
    ] = None
    partition: Annotated[
        str | None,
        typer.Option(
            help="deal rows out to clients, for example 'dirichlet(clients=10, alpha=0.5)'", rich_help_panel=OWN
        ),
    ] = None
    schema: Annotated[Path | None, typer.Option(help="schema.json of an earlier run", rich_help_panel=OWN)] = None
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="leave out images that cannot be read", rich_help_panel=OWN)
    ] = False
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="leave out rows with a missing value", rich_help_panel=OWN)
    ] = False

    def name_source(self, dataset: str) -> str:
        """The data set and these options as one text that `load_federation` reads."""
        from equipoise.data.catalogue import add_options

        use_data_folder(self.data_dir)
        options = {
            "label": self.label, "target": tuple(split_list(self.target or "")), "group": self.group,
            "group_in_model": self.group_in_model, "client": self.client,
            "domain": self.domain, "image_size": self.image_size,
            "ignore": tuple(split_list(self.ignore or "")), "partition": self.partition,
            "schema": str(self.schema) if self.schema else None, "skip_bad": self.skip_bad,
            "drop_missing": self.drop_missing,
        }  # fmt: skip
        return add_options(dataset, options)


@dataclass(frozen=True)
class TrainingOptions:
    """Options that change the local training that a data set comes with."""

    lr: Annotated[float | None, typer.Option(help="local learning rate (default: the data set's)")] = None
    epochs: Annotated[int | None, typer.Option(help="local epochs per round (default: the data set's)")] = None
    steps: Annotated[int | None, typer.Option(help="local steps per round, instead of epochs")] = None
    batch: Annotated[str | None, typer.Option(help="batch size, or `full` (default: the data set's)")] = None
    momentum: Annotated[float | None, typer.Option(help="momentum of the local optimizer")] = None
    weight_decay: Annotated[float | None, typer.Option(help="weight decay of the local optimizer")] = None
    optimizer: Annotated[str | None, typer.Option(help="any optimizer of torch.optim")] = None
    schedule: Annotated[
        str | None,
        typer.Option(help="local learning rate over rounds, for example 'warmup(rounds=5) + cosine(end=0.01)'"),
    ] = None

    def check_changes(self, mistakes: Mistakes) -> dict[str, Any]:
        """The options that were given, by name. Each is checked by itself; what is wrong is noted in `mistakes`."""
        from equipoise.training import check_training_changes

        given = {f.name: getattr(self, f.name) for f in fields(self)}
        batch = given.pop("batch")
        changes = check_training_changes({n: value for n, value in given.items() if value is not None}, mistakes)
        if batch is not None:
            with mistakes.noted():
                if batch != "full" and not (batch.isdecimal() and int(batch)):
                    raise EquipoiseError(f"--batch must be a whole number above 0, or `full`. Found {batch!r}.")
                changes["batch"] = None if batch == "full" else int(batch)
        return changes


@dataclass(frozen=True)
class BasicOptions:
    """Options of all runs, whatever is done with them."""

    rounds: Annotated[int | None, typer.Option(help="federated rounds (default: the data set's)")] = None
    participation: Annotated[
        float | None, typer.Option(help="share of the clients in each round (default: the data set's)")
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            help="model, for example 'mlp(hidden=(64,))', or your own: mynet.py:Net (default: the data set's)"
        ),
    ] = None
    loss: Annotated[
        str | None,
        typer.Option(
            help="what clients minimise: cross_entropy, binary, multilabel, squared, absolute or 'huber(delta=1)' "
            "(default: what the data ask for)"
        ),
    ] = None
    device: Annotated[str, typer.Option(help="cpu, cuda or mps")] = "cpu"
    eval_every: Annotated[int, typer.Option(help="evaluate after every n rounds, and after the last one")] = 1
    runner: Annotated[
        str, typer.Option(help="auto, inline, vectorised, processes; distributed, if started by torchrun")
    ] = "auto"
    eval_clients: Annotated[
        int | None, typer.Option(help="score so many clients, drawn by the seed (default: all)")
    ] = None
    hold_out: Annotated[
        str,
        typer.Option(help="clients that never train and are only scored: how many, or names of clients or domains"),
    ] = ""
    out: Out = Path("runs")

    def check(self, mistakes: Mistakes) -> None:
        """Note in `mistakes` every option whose value no run can have."""
        from equipoise.engine.settings import check_option

        for name in ("rounds", "participation", "eval_every", "eval_clients", "device", "loss"):
            with mistakes.noted():
                check_option(name, getattr(self, name))

    def build_job(self, dataset: str, data: Federation, changes: dict[str, Any]) -> Job:
        """A job with these options, of the default method and seed."""
        from equipoise.engine.runners import RunnerName
        from equipoise.study.jobs import Job

        return Job(
            dataset=dataset,
            rounds=self.rounds,
            participation=self.participation,
            training=data.protocol.training.change(changes) if changes else None,
            model=self.model,
            runner=fit_to_type(self.runner, RunnerName, "--runner"),  # type: ignore[arg-type]
            device=self.device,
            eval_every=self.eval_every,
            hold_out=self.hold_out or 0,
            loss=self.loss,
        )


@dataclass(frozen=True)
class RunOptions(BasicOptions):
    """Options of a run that do not depend on the method."""

    metrics: Annotated[
        str | None, typer.Option(help="record these, too, separated by commas: precision, recall, f1, auc, pr_auc")
    ] = None
    live: Annotated[
        str | None, typer.Option(help="watch the run in `mlflow` or `tensorboard`, or both, separated by a comma")
    ] = None
    keep: Annotated[
        str | None,
        typer.Option(
            help=f"keep these for plots, separated by commas: {', '.join(REQUESTS)}; or of one client or layer, as in "
            f"{EXAMPLE}"
        ),
    ] = None
    validation: Annotated[
        bool,
        typer.Option("--validation", help="set training data aside, by which methods and rounds can be chosen"),
    ] = False
    train_scores: Annotated[
        bool, typer.Option(help="score the training data, too, whenever the model is evaluated")
    ] = True
    until_flat: Annotated[
        bool, typer.Option("--until-flat", help="end each run when it has converged; --rounds is then a limit")
    ] = False

    def build_job(self, dataset: str, data: Federation, changes: dict[str, Any]) -> Job:
        """A job with these options, of the default method and seed."""
        from equipoise.metrics import METRICS

        return replace(
            super().build_job(dataset, data, changes),
            with_validation=self.validation,
            train_scores=self.train_scores,
            until_flat=self.until_flat,
            metrics=pick_from(self.metrics, METRICS, "--metrics"),
            eval_clients=self.eval_clients,
            live=self.views,
            keep=self.kinds,
        )

    @property
    def views(self) -> tuple[str, ...]:
        """The live views that --live names."""
        from equipoise.runs.live import VIEWS

        return pick_from(self.live, VIEWS, "--live")

    @property
    def kinds(self) -> tuple[str, ...]:
        """What --keep asks to keep."""
        return split_requests(self.keep or "")


def prepare(
    dataset: str, methods: Sequence[str], options: BasicOptions, training: TrainingOptions, own: DataOptions
) -> tuple[Federation, Job]:
    """Load the data, and build a job for them. All that is wrong with the options is said in one error."""
    from equipoise.methods import parse
    from equipoise.study.experiment import load_or_look_up

    mistakes = Mistakes()
    changes = training.check_changes(mistakes)
    source = own.name_source(dataset)
    for text in methods:
        with mistakes.noted():
            parse(text)
    options.check(mistakes)
    data = None
    with mistakes.noted():
        data = load_or_look_up(source, mistakes)
        if data is not None:
            data.hold_out(options.hold_out)
    mistakes.refuse()
    assert data is not None
    return data, options.build_job(source, data, changes)


def pick_from(text: str | None, known: Iterable[str], option: str) -> tuple[str, ...]:
    """The names in a list separated by commas. One that is not known is an error."""
    return tuple(str(fit_to_type(name, Literal[tuple(known)], option)) for name in split_list(text or ""))


def read_seeds(text: str) -> list[int]:
    """The seeds that --seeds asks for: `3` means 0, 1 and 2; `0,42,100` means these three."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts) or (parts == ["0"] and "," not in text):
        raise EquipoiseError(
            f"--seeds must be a number of seeds such as 3, or a list such as 0,42,100. Found {text!r}."
        )
    if len(parts) == 1 and "," not in text:
        return list(range(int(parts[0])))
    return list(dict.fromkeys(int(part) for part in parts))


def use_data_folder(folder: Path | None) -> None:
    """Set EQUIPOISE_DATA to this folder, if one is given. Worker processes inherit the variable."""
    if folder is not None:
        os.environ["EQUIPOISE_DATA"] = str(folder)
