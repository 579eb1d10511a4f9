"""The command `equipoise tune`, which searches the fairest composition of methods for a federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from equipoise.cli.options import BasicOptions, DataOptions, Dataset, TrainingOptions, prepare, spread_options
from equipoise.cli.screens import STOPPED, errors, say_notes, say_standing, screen
from equipoise.grammar import split_list

if TYPE_CHECKING:
    from equipoise.data import Federation
    from equipoise.study.jobs import Job
    from equipoise.study.tuning.plan import Plan
    from equipoise.study.tuning.search import News
    from equipoise.study.tuning.tune import Tuned


@spread_options
def tune(
    dataset: Dataset,
    options: BasicOptions,
    training: TrainingOptions,
    own: DataOptions,
    trials: Annotated[
        int | None, typer.Option(help="points of its space that each contestant tries (default: 16)")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="minutes of computing, instead of --trials")] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="parts of compositions, separated by commas (default: all that say what they add)"),
    ] = None,
    rivals: Annotated[
        str | None, typer.Option(help="methods to be beaten, besides fedavg (default: the five papers')")
    ] = None,
    seeds: Annotated[int, typer.Option(help="fresh seeds with which the winner and its rivals are judged")] = 3,
    objective: Annotated[
        str, typer.Option(help="what is made as large as possible: worst, worst10 or pareto")
    ] = "worst",
    search_seed: Annotated[int, typer.Option(help="seed of the draws")] = 0,
) -> None:
    """Search the composition of methods that serves the worst domain or client best, and judge it on test data.

    Every contestant (fedavg, each rival, the compositions) has the same budget. Only validation data choose. The same
    command goes on with a study that was stopped; several processes may work on one.
    """
    from equipoise.study.tuning.plan import RIVALS, TRIALS, Plan

    data, job = prepare(dataset, [*split_list(methods or ""), *split_list(rivals or "")], options, training, own)
    plan = Plan.for_data(
        data, job, trials=TRIALS if trials is None and minutes is None else trials, minutes=minutes, seeds=seeds,
        objective=objective, methods=tuple(split_list(methods or "")),
        rivals=RIVALS if rivals is None else tuple(split_list(rivals)), search_seed=search_seed,
    )  # fmt: skip
    carry_out_and_show(plan, data, options.out)


def carry_out_and_show(plan: Plan, data: Federation, out: Path) -> None:
    """Do a plan, show how it goes, and print what came out."""
    say_notes(data.notes)
    show_tuned(_carry_out(plan, data, out))


def _carry_out(plan: Plan, data: Federation, out: Path) -> Tuned:
    """Do a plan, with a bar that shows the best so far."""
    from equipoise.study.tuning.tune import carry_out

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors) as bar:
        line = bar.add_task("search", total=None, note="")

        def show(news: News) -> None:
            found = [
                f"{name}: {_stand(trial)}" for name, trial in (("best", news.best), ("fedavg", news.reference)) if trial
            ]
            total = news.total or (None if plan.minutes is None else plan.minutes)
            done = news.done if plan.minutes is None else news.minutes
            bar.update(line, total=total, completed=done, note=escape("; ".join(found)))

        def begin(phase: str, job: Job) -> None:
            bar.update(line, description=phase, total=None, note=escape(f"{job.method}, seed {job.seed}"))

        try:
            return carry_out(plan, data, out, show, begin)
        except KeyboardInterrupt:
            bar.stop()
            errors.print(
                f"Stopped. The same command goes on with the study in {plan.place(data, out)}.", soft_wrap=True
            )
            raise typer.Exit(STOPPED) from None


def _stand(trial: object) -> str:
    from equipoise.study.tuning.ledger import Trial

    assert isinstance(trial, Trial)
    values = list(trial.last.values.values())
    return f"{trial.point.method}, {say_standing(min(values), sum(values) / len(values))}"


def show_tuned(found: Tuned) -> None:
    """Print what tuning found, and the commands that train and deploy it."""
    from equipoise.cli.results import draw_comparison
    from equipoise.study.tuning.commands import write_deploy, write_run
    from equipoise.study.tuning.judging import tell_outcome

    say_notes(f"{name} is left out: {why}" for name, why in found.contest.left_out.items())
    study, plan = found.judgement.study, found.contest.plan
    over = "domains" if study.named_domains else "clients"
    screen.print(draw_comparison(found.judgement.table, study.name, over, study.score))
    for name, point in found.judgement.points.items():
        screen.print(escape(f"{name}: {point.method}"), soft_wrap=True)
    first, *rest = tell_outcome(found.choice, found.judgement)
    screen.print(f"[bold]{escape(first)}[/]", soft_wrap=True)
    for text in rest:
        screen.print(escape(text), soft_wrap=True)
    point = found.judgement.points[found.choice.winner]
    screen.print(f"\nPage: {found.page}\nStudy: {found.folder}/", soft_wrap=True)
    for title, command in (("Train it", write_run(plan.job, point)), ("Deploy it", write_deploy(plan.job, point))):
        screen.print(f"{title}: {escape(command)}", soft_wrap=True)
