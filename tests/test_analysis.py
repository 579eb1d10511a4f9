"""What runs keep beyond their records, and the plots of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise import EquipoiseError, analysis, run
from equipoise.runs.records import read_all, save
from equipoise.study.jobs import AlreadyDoneError, Job, execute_all, jobs, recorded
from equipoise.study.report.page import page
from equipoise.study.report.paper import save as save_picture
from equipoise.study.report.plots import PLOTS
from equipoise.study.report.study import studies
from kit import blobs, pictures


def test_conflicts_are_cosines_of_the_next_updates():
    result = run("fedavg", blobs(), rounds=1)
    cosines = np.array(analysis.conflicts(result)["cosines"])
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-6)
    np.testing.assert_allclose(cosines, cosines.T, atol=1e-6)
    assert (np.abs(cosines) <= 1 + 1e-6).all()
    with pytest.raises(EquipoiseError, match="sends no updates"):
        analysis.conflicts(run("local_only", blobs(), rounds=1))


def test_consistency_counts_the_more_frequent_direction():
    found = analysis.consistency(run("fedheal", blobs(), rounds=4))
    assert list(found) == ["4"]  # rounds
    assert sum(found["4"]) == pytest.approx(1)
    filled = [i for i, share in enumerate(found["4"]) if share]
    assert set(filled) <= {0, 10, 19}  # of four rounds: 2, 3 or 4 in one direction
    once = analysis.consistency(run("fedheal", blobs(), rounds=1))
    assert once["1"][-1] == pytest.approx(1)
    with pytest.raises(EquipoiseError, match="keeps no history"):
        analysis.consistency(run("fedavg", blobs(), rounds=1))


def test_grad_cam_of_every_domain():
    found = analysis.saliency(run("fedavg", pictures(), rounds=1))
    maps = torch.tensor(found["maps"])
    assert found["domains"] == ["d0", "d1"]
    assert maps.min() >= 0
    assert maps.max() <= 1
    samples = torch.tensor(found["samples"])
    assert (float(samples.min()), float(samples.max())) == (0, 1)
    assert samples.shape[0] == 2
    with pytest.raises(EquipoiseError, match="shows no feature map"):
        analysis.saliency(run("fedavg", blobs(), rounds=1))


def test_features_are_summarised():
    result = run("fedavg", blobs(), rounds=1)
    found = analysis.features(result)
    assert len(found["points"]) == len(found["classes"]) == len(found["domains"]) == 40
    assert len(found["singular"]) == 7
    assert found["singular"] == sorted(found["singular"], reverse=True)


def test_the_border_lies_where_the_model_is_undecided():
    result = run("fedavg", "gaussians", rounds=20)
    border = torch.tensor(analysis.separators(result)["border"])
    tensors = result.task.layout.split(result.server.theta)
    weight, bias = (next(v for n, v in tensors.items() if n.endswith(end)) for end in ("weight", "bias"))
    margin = border @ (weight[1] - weight[0]) + bias[1] - bias[0]
    assert margin.abs().max() <= float((weight[1] - weight[0]).abs().sum()) * 0.2  # within a step of the grid
    with pytest.raises(EquipoiseError, match="two numbers"):
        analysis.separators(run("fedavg", blobs(), rounds=1))


def test_consistency_is_kept_after_ten_rounds_too(tmp_path):
    _, place = recorded(Job("fedheal", "gaussians", rounds=12, keep=("consistency",)), tmp_path)
    found = analysis.read(place)["consistency"]
    assert set(found) == {"10", "12"}
    ten = run("fedheal", "gaussians", rounds=10)
    assert found["10"] == pytest.approx(analysis.consistency(ten)["10"])
    (study,) = studies(read_all([tmp_path])[0])
    assert [panel.title for panel in PLOTS["consistency"](study).panels] == [
        "fedheal, after 10 rounds",
        "fedheal, after 12 rounds",
    ]


def test_a_comparison_keeps_what_each_method_can_give(tmp_path):
    keep = ("consistency", "separators", "saliency")
    todo = jobs(["fedheal", "fedavg"], "gaussians", [0], Job(rounds=2, keep=keep))
    for job in todo:
        recorded(replace(job, keep=()), tmp_path)
    asked = list(execute_all(todo, tmp_path, lambda step: None, 1))  # finished, but not with what is asked for now
    found = {one.method: one for one in asked}
    assert set(found["fedheal"].not_kept) == {"saliency"}
    assert set(found["fedavg"].not_kept) == {"consistency", "saliency"}
    assert "keeps no history of directions" in found["fedavg"].not_kept["consistency"]
    for job in todo:
        with pytest.raises(AlreadyDoneError):
            recorded(job, tmp_path, again=False)
    (study,) = studies(read_all([tmp_path])[0])
    assert [panel.title for panel in PLOTS["consistency"](study).panels] == ["fedheal, after 2 rounds"]
    assert PLOTS["saliency"](study) is None
    result, _ = recorded(replace(todo[0], method="fedavg"), tmp_path)
    assert any("keeps no history" in text for text in result.warnings)  # nothing is lost: the run is there


def test_losses_stand_beside_the_separators(tmp_path):
    for seed in (0, 1):
        recorded(Job("fedavg", "gaussians", rounds=3, seed=seed, keep=("separators",)), tmp_path)
    (study,) = studies(read_all([tmp_path])[0])
    chart = PLOTS["separators"](study)
    data, losses = chart.panels
    assert losses.title == "fedavg, losses"
    assert [line.name for line in losses.marks] == study.any.clients
    expected = np.mean([study.curve("fedavg", seed, "loss")[1][:, 0] for seed in (0, 1)], axis=0)
    assert losses.marks[0].y == pytest.approx(expected.tolist())
    assert data.marks[-1].name == "border"
    assert {mark.hollow for mark in data.marks[:-1]} == {True, False}
    assert {mark.colour for mark in data.marks[:-1]} == {line.colour for line in losses.marks}


def test_kept_things_become_plots(tmp_path):
    recorded(
        Job("fedheal", "gaussians", rounds=2, keep=("conflicts", "consistency", "features", "separators")), tmp_path
    )
    (study,) = studies(read_all([tmp_path])[0])
    for kind in ("conflicts", "consistency", "spectrum", "tsne", "separators"):
        assert PLOTS[kind](study) is not None, kind
        assert f'<figure id="{kind}">' in page([study])
    assert PLOTS["saliency"](study) is None
    result = run("fedavg", pictures(), rounds=1)
    place = save(result, tmp_path / "pictures")
    analysis.write(result, ["saliency"], place)
    (other,) = studies(read_all([place])[0])
    assert len(PLOTS["saliency"](other).panels) == 4  # two samples, and what is seen of them
    assert all(path.stat().st_size for path in save_picture(PLOTS["saliency"](other), tmp_path / "saliency"))
    (place / "analysis.json").write_text("{")
    assert PLOTS["saliency"](other) is None  # damaged: the report goes on without it
