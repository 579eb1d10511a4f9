"""The server of a federation on Flower: the engine's loop, with a desk that reaches real sites."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from equipoise.engine.checkpoints import FOLDER, Checkpoints, discard, find_saved
from equipoise.engine.checks import DEPLOYMENT_CHECKS
from equipoise.engine.guard import DEPLOYMENT_GUARD
from equipoise.engine.loop import begin_run, proceed
from equipoise.engine.result import RoundRecord, Run
from equipoise.engine.settings import Settings
from equipoise.errors import EquipoiseError
from equipoise.flower.desk import FlowerDesk
from equipoise.flower.plan import Plan
from equipoise.runs.writing import save


def server_app(plan: Plan | None = None) -> ServerApp:
    """Flower's app of the server. Without a plan the run's configuration is one. The run is stored below `plan.out`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        agreed = plan or Plan.from_config(context.run_config)
        kept = place_checkpoints(agreed)
        folder = Path(kept.folder)
        if agreed.resume and not find_saved(folder):
            raise EquipoiseError(
                f"There is nothing to resume in `{folder}`: a run of other settings has its own checkpoints. Repeat all of the "
                "settings that the run began with, or leave `resume` out to begin anew."
            )
        try:
            result = federate(grid, agreed, on_round=_say, on_note=_note, checkpoint=kept)
        finally:
            if not find_saved(folder):
                discard(folder)
        print(f"Records: {save(result, Path(agreed.out)).resolve()}", flush=True)
        if result.stopped:
            advice = "Go on with the same command and --run-config resume=true, with all settings as they were."
            raise EquipoiseError(f"{result.stopped} {advice}")
        discard(folder)

    return app


def place_checkpoints(plan: Plan) -> Checkpoints:
    """A folder that belongs to this plan alone. Sites remember two states, so the server keeps every round."""
    settings = replace(plan, resume=False, method=str(plan.chosen), model=None)
    digest = hashlib.sha256(repr((settings, _name(plan.model))).encode()).hexdigest()[:8]
    return Checkpoints(Path(plan.out) / FOLDER / f"flower-seed{plan.seed}-{digest}", every=1, resume=plan.resume)


def _name(model: object) -> str:
    """A module's address in memory is another one in every process."""
    return model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)


def _say(record: RoundRecord) -> None:
    scored = record.find_worst_and_average()
    standing = f": worst {100 * scored[0]:.2f} %, mean {100 * scored[1]:.2f} %" if scored else ""
    print(f"Round {record.round}, {len(record.clients)} sites, {record.seconds:.1f} s{standing}", flush=True)
    for rejection in record.rejected:
        print(f"  without `{rejection.client}`: {rejection.why}", flush=True)


def _note(text: str) -> None:
    print(f"Note: {text}", flush=True)


def federate(
    grid: Grid,
    plan: Plan,
    on_round: Callable[[RoundRecord], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    checkpoint: Checkpoints | None = None,
) -> Run:
    """All rounds of a plan with the sites that a grid reaches: the same value as `equipoise.run` gives.

    Where too few sites are left for `plan.patience` rounds on end the run ends early, with what it has and a warning. With
    `checkpoint` it can go on after it was ended, also as another run of Flower's.
    """
    desk = FlowerDesk(grid, plan)
    begun = begin_run(settle(plan, desk), "flower")
    plan.refuse_averaged_models(begun.task)
    desk.layout = begun.task.layout
    return proceed(
        begun,
        desk,
        checkpoint=checkpoint,
        on_round=None if on_round is None else lambda record, _: on_round(record),
        on_note=on_note,
    )


def settle(plan: Plan, desk: FlowerDesk) -> Settings:
    """All that decides what the run computes, once the sites have said what they hold."""
    data = desk.assemble()
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
        checks=asked,
        guard=DEPLOYMENT_GUARD if plan.guard else None,
        limits={"round_timeout": plan.round_timeout, "start_timeout": plan.start_timeout, "min_sites": plan.min_sites},
    )
    if plan.min_sites is None:
        return settings
    return replace(settings, checks=replace(asked, quorum=min(plan.min_sites, settings.cohort)))
