"""The server of a federation on Flower: the engine's loop over rounds, with a desk that reaches real sites."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from equipoise.engine.checkpoints import FOLDER, Checkpoints, discard, find_saved
from equipoise.engine.checks import DEPLOYMENT_CHECKS
from equipoise.engine.guard import choose_guard
from equipoise.engine.loop import begin_run, proceed
from equipoise.engine.result import RoundRecord, Run
from equipoise.engine.settings import Settings
from equipoise.errors import EquipoiseError
from equipoise.flower.desk import FlowerDesk
from equipoise.flower.plan import Plan
from equipoise.grammar import split_list
from equipoise.models.own import hide_folder
from equipoise.runs.writing import Recorder
from equipoise.types import Server


def server_app(plan: Plan | None = None, *, folder: Path | None = None) -> ServerApp:
    """The app that Flower runs at the server. Without a plan, it is read from the run's configuration.

    The run is stored below `plan.out`. The app carries a model of its own, if it has one, in `folder`.
    """
    app = ServerApp()

    logging.getLogger("flwr").addFilter(_say_mistakes_in_words)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        agreed = plan or Plan.from_config(context.run_config).find_model(folder)
        kept = place_checkpoints(agreed)
        saved = Path(kept.folder)
        if agreed.resume and not find_saved(saved):
            raise EquipoiseError(
                f"There is nothing to resume in `{saved}`: a run of other settings has its own checkpoints. Repeat "
                "all of the settings that the run began with, or leave `resume` out to begin anew."
            )
        try:
            result = federate(grid, agreed, on_round=_say, on_note=_note, checkpoint=kept, out=Path(agreed.out))
        finally:
            if not find_saved(saved):
                discard(saved)
        print(f"Records: {(Path(agreed.out) / result.settings.name).resolve()}", flush=True)
        if result.stopped:
            advice = "Go on with the same command and --run-config resume=true, with all settings as they were."
            raise EquipoiseError(f"{result.stopped} {advice}")
        discard(saved)

    return app


def place_checkpoints(plan: Plan) -> Checkpoints:
    """Where the checkpoints of a plan go: to a folder that belongs to this plan alone.

    There is one per round, because a site keeps its states for its last round only: those before and after it.
    """
    settings = replace(plan, resume=False, method=str(plan.chosen), model=None)
    digest = hashlib.sha256(repr((settings, _name(plan.model))).encode()).hexdigest()[:8]
    return Checkpoints(Path(plan.out) / FOLDER / f"flower-seed{plan.seed}-{digest}", every=1, resume=plan.resume)


def _name(model: object) -> str:
    """A model's name that is the same in every process: what Python prints for an object may hold its address."""
    return hide_folder(model) if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)


def _say(record: RoundRecord) -> None:
    scored = record.find_worst_and_average()
    standing = f": worst {100 * scored[0]:.2f} %, mean {100 * scored[1]:.2f} %" if scored else ""
    print(f"Round {record.round}, {len(record.clients)} sites, {record.seconds:.1f} s{standing}", flush=True)
    for rejection in record.rejected:
        print(f"  without `{rejection.client}`: {rejection.why}", flush=True)


def _say_mistakes_in_words(record: logging.LogRecord) -> bool:
    """Let Flower's log tell a user's mistake in words, without the stack trace that it writes of every error."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, EquipoiseError):
        record.msg, record.args, record.exc_info, record.exc_text = str(error), (), None, None
    return True


def _note(text: str) -> None:
    print(f"Note: {text}", flush=True)


def federate(
    grid: Grid,
    plan: Plan,
    on_round: Callable[[RoundRecord], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    checkpoint: Checkpoints | None = None,
    out: Path | None = None,
) -> Run:
    """Do all rounds of a plan with the sites that a grid reaches. Returns a `Run`, as `equipoise.run` does.

    If too few sites answer in `plan.patience` tries in a row, the run ends early, with the rounds done so far and a
    warning. With `checkpoint` it can be resumed later, also by another run of Flower's. With `out` the run's folder is
    written inside it, round by round.
    """
    desk = FlowerDesk(grid, plan)
    begun = begin_run(settle(plan, desk, on_note), "flower")
    plan.refuse_averaged_models(begun.task)
    desk.layout = begun.task.layout
    desk.seat_again(begun.settings.federation)
    recorder = None if out is None else Recorder(begun, out)

    def tell(record: RoundRecord, _: Server) -> None:
        if recorder:
            recorder.add(record)
        if on_round:
            on_round(record)

    def note(text: str) -> None:
        if recorder:
            recorder.note(text)
        if on_note:
            on_note(text)

    try:
        result = proceed(
            begun,
            desk,
            checkpoint=checkpoint,
            on_round=tell,
            on_earlier=recorder.add if recorder else None,
            on_note=note,
            on_repeat=recorder.repeat if recorder else None,
        )
    except (Exception, KeyboardInterrupt) as error:
        if recorder:
            recorder.fail(str(error) or type(error).__name__)
        raise
    if recorder:
        recorder.finish(result)
    return result


def settle(plan: Plan, desk: FlowerDesk, on_note: Callable[[str], None] | None = None) -> Settings:
    """Wait for the sites, and return all that decides what the run computes with them."""
    data = desk.assemble(on_note)
    asked = replace(DEPLOYMENT_CHECKS, quorum=None, too_few=plan.too_few, patience=plan.patience)
    settings = Settings.of(
        plan.chosen,
        data,
        model=plan.model,
        rounds=plan.rounds,
        seed=plan.seed,
        participation=plan.participation,
        buffers=plan.buffers,
        eval_every=plan.eval_every,
        hold_out=plan.hold_out,
        loss=plan.loss or None,
        metrics=split_list(plan.metrics),
        checks=asked,
        guard=choose_guard(plan.chosen) if plan.guard else None,
        limits={"round_timeout": plan.round_timeout, "start_timeout": plan.start_timeout, "min_sites": plan.min_sites},
    )
    if plan.min_sites is None:
        return settings
    return replace(settings, checks=replace(asked, quorum=min(plan.min_sites, settings.cohort)))
