"""MLflow and TensorBoard show what the records hold: with the real libraries, where they are installed."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.study.jobs import Job
from equipoise.types import EquipoiseError
from kit import recorded

JOB = Job("fedavg", "gaussians", rounds=2)


def test_tensorboard(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is absent"
    )
    result, _ = recorded(replace(JOB, live=("tensorboard",)), tmp_path)
    (folder,) = (tmp_path / "tensorboard").iterdir()
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("MIN")] == [1, 2]
    assert events.Scalars("test/accuracy/client 0")[-1].value == pytest.approx(result.values()["client 0"])


@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is absent")
    pytest.importorskip("sqlalchemy", reason="mlflow's local store is absent")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result, _ = recorded(replace(JOB, live=("mlflow",)), tmp_path)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("equipoise").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == "fedavg"
    history = client.get_metric_history(run.info.run_id, "test/accuracy/client 0")
    assert [point.step for point in history] == [1, 2]
    assert history[-1].value == pytest.approx(result.values()["client 0"])


def test_a_view_that_is_unknown_or_not_installed(tmp_path, monkeypatch):
    with pytest.raises(EquipoiseError, match="--live must be one of"):
        CliRunner().invoke(app, ["run", "gaussians", "--live", "wandb"], catch_exceptions=False)
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(EquipoiseError, match=r"pip install '.\[live\]'"):
        recorded(replace(JOB, live=("mlflow",)), tmp_path)
