"""Live views of a run's records in other tools: MLflow and TensorBoard. The extra `live` installs both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from equipoise.engine.result import RoundRecord, Run
from equipoise.errors import EquipoiseError
from equipoise.losses import SCORES
from equipoise.metrics import figures


class View(Protocol):
    """Something that is told of a run's progress. The `Recorder`, which writes the run folder, is one, too."""

    def add(self, record: RoundRecord) -> None:
        """Show one more round."""
        ...

    def finish(self, run: Run) -> object:
        """End the view, after the last round."""
        ...

    def fail(self, why: str) -> None:
        """End the view of a run that failed, and show why."""
        ...


def open_view(name: str, run: Run, folder: Path) -> View:
    """Open the view of this name for a run before its first round."""
    if name not in VIEWS:
        raise EquipoiseError(f"A live view is one of {', '.join(VIEWS)}. Found {name!r}.")
    try:
        return VIEWS[name](run, folder)
    except ImportError:
        raise EquipoiseError(f"{name} is not installed: pip install '.[live]' in a checkout of Equipoise.") from None


def list_scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """The scores of every client in a round, by name, AVG, STD (ddof 0) and MIN of the test score, and the local
    learning rate."""
    for score in record.scores:
        yield f"{score.split}/{score.metric}/{score.client}", score.value
    values = [s.value for s in record.scores if s.metric in SCORES and s.split == "test"]
    if values:
        found = figures(values)
        yield from (("AVG", found.avg), ("STD", found.std), ("MIN", found.min))
    if record.lr is not None:
        yield "local learning rate", record.lr


class TensorBoard:
    """A view in TensorBoard, from event files. `tensorboard --logdir FOLDER/tensorboard` shows it."""

    def __init__(self, run: Run, folder: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard" / run.settings.name))
        self.writer.add_text("method", str(run.method))

    def add(self, record: RoundRecord) -> None:
        """Write one more round."""
        for name, value in list_scalars(record):
            self.writer.add_scalar(name, value, record.round)
        self.writer.flush()

    def finish(self, run: Run) -> None:
        """Close the event files."""
        self.writer.close()

    def fail(self, why: str) -> None:
        """Write why the run failed, and close the event files."""
        self.writer.add_text("failed", why)
        self.writer.close()


class MLflow:
    """A view in MLflow, as a run of the experiment `equipoise`.

    It is in the store that the environment variable MLFLOW_TRACKING_URI names, otherwise in `FOLDER/mlflow.db`.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        import mlflow

        if not os.environ.get("MLFLOW_TRACKING_URI"):
            folder.mkdir(parents=True, exist_ok=True)
            mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        self.client = mlflow.MlflowClient()
        found = self.client.get_experiment_by_name("equipoise")
        experiment = found.experiment_id if found else self.client.create_experiment("equipoise")
        self.run = self.client.create_run(experiment, run_name=f"{run.method}, seed {run.seed}").info.run_id
        facts = run.settings.facts
        for name in ("method", "seed", "model", "rounds", "participation", "buffers", "device", "eval_every", "guard"):
            self.client.log_param(self.run, name, facts[name])
        self.client.log_param(self.run, "data", run.federation.name)

    def add(self, record: RoundRecord) -> None:
        """Log one more round."""
        for name, value in list_scalars(record):
            self.client.log_metric(self.run, _plain(name), value, step=record.round)

    def finish(self, run: Run) -> None:
        """Mark the run as finished."""
        self.client.set_terminated(self.run, "FINISHED")

    def fail(self, why: str) -> None:
        """Mark the run as failed, and log why."""
        self.client.set_tag(self.run, "why", why)
        self.client.set_terminated(self.run, "FAILED")


def _plain(name: str) -> str:
    """The name with `_` for every character that MLflow does not allow in the name of a metric."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)


VIEWS: dict[str, Callable[[Run, Path], View]] = {"mlflow": MLflow, "tensorboard": TensorBoard}
