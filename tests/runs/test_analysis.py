"""What runs keep beyond their records, and the plots of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise import EquipoiseError, load_federation, run
from equipoise.runs import analysis
from equipoise.runs.kept import read_kept
from equipoise.runs.reading import read_all
from equipoise.runs.writing import save
from equipoise.study.jobs import Job, find_finished, list_jobs
from equipoise.study.report.figures import group_studies
from equipoise.study.report.page import build_page
from equipoise.study.report.paper import save_chart
from equipoise.study.report.plots import PLOTS
from equipoise.study.workers import execute_all
from kit import blobs, pictures, recorded


def test_conflicts_are_cosines_of_the_next_updates():
    result = run("fedavg", blobs(), rounds=1)
    cosines = np.array(analysis.analyse_conflicts(result)["cosines"])
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-6)
    np.testing.assert_allclose(cosines, cosines.T, atol=1e-6)
    assert (np.abs(cosines) <= 1 + 1e-6).all()
    with pytest.raises(EquipoiseError, match="sends no updates"):
        analysis.analyse_conflicts(run("local_only", blobs(), rounds=1))


def test_consistency_counts_the_more_frequent_direction():
    found = analysis.analyse_consistency(run("fedheal", blobs(), rounds=4))
    assert list(found) == ["4"]  # rounds
    assert sum(found["4"]) == pytest.approx(1)
    filled = [i for i, share in enumerate(found["4"]) if share]
    assert set(filled) <= {0, 10, 19}  # of four rounds: 2, 3 or 4 in one direction
    once = analysis.analyse_consistency(run("fedheal", blobs(), rounds=1))
    assert once["1"][-1] == pytest.approx(1)
    with pytest.raises(EquipoiseError, match="keeps no history"):
        analysis.analyse_consistency(run("fedavg", blobs(), rounds=1))


def test_grad_cam_of_every_domain():
    found = analysis.analyse_saliency(run("fedavg", pictures(), rounds=1))
    maps = torch.tensor(found["maps"])
    assert found["domains"] == ["d0", "d1"]
    assert maps.min() >= 0
    assert maps.max() <= 1
    samples = torch.tensor(found["samples"])
    assert (float(samples.min()), float(samples.max())) == (0, 1)
    assert samples.shape[0] == 2
    with pytest.raises(EquipoiseError, match="shows no feature map"):
        analysis.analyse_saliency(run("fedavg", blobs(), rounds=1))


def test_features_are_summarised():
    result = run("fedavg", blobs(), rounds=1)
    found = analysis.analyse_features(result)
    assert len(found["points"]) == len(found["classes"]) == len(found["domains"]) == 40
    assert len(found["singular"]) == 7
    assert found["singular"] == sorted(found["singular"], reverse=True)


def test_the_border_lies_where_the_model_is_undecided():
    result = run("fedavg", "gaussians", rounds=20)
    border = torch.tensor(analysis.analyse_separators(result)["border"])
    tensors = result.task.layout.split(result.server.theta)
    weight, bias = (next(v for n, v in tensors.items() if n.endswith(end)) for end in ("weight", "bias"))
    margin = border @ (weight[1] - weight[0]) + bias[1] - bias[0]
    assert margin.abs().max() <= float((weight[1] - weight[0]).abs().sum()) * 0.2  # within a step of the grid
    with pytest.raises(EquipoiseError, match="two numbers"):
        analysis.analyse_separators(run("fedavg", blobs(), rounds=1))


def test_consistency_is_kept_after_ten_rounds_too(tmp_path):
    _, place = recorded(Job("fedheal", "gaussians", rounds=12, keep=("consistency",)), tmp_path)
    found = read_kept(place)["consistency"]
    assert set(found) == {"10", "12"}
    ten = run("fedheal", "gaussians", rounds=10)
    assert found["10"] == pytest.approx(analysis.analyse_consistency(ten)["10"])
    (study,) = group_studies(read_all([tmp_path])[0])
    assert [panel.title for panel in PLOTS["consistency"](study).panels] == [
        "fedheal, after 10 rounds",
        "fedheal, after 12 rounds",
    ]


def test_a_comparison_keeps_what_each_method_can_give(tmp_path):
    keep = ("consistency", "separators", "saliency")
    data = load_federation("gaussians")
    todo = list_jobs(["fedheal", "fedavg"], data, [0], Job(dataset="gaussians", rounds=2, keep=keep))
    for job in todo:
        recorded(replace(job, keep=()), tmp_path)
    asked = list(execute_all(todo, tmp_path, lambda step: None, 1))  # finished, but not with what is asked for now
    found = {one.method: one for one in asked}
    assert set(found["fedheal"].not_kept) == {"saliency"}
    assert set(found["fedavg"].not_kept) == {"consistency", "saliency"}
    assert "keeps no history of directions" in found["fedavg"].not_kept["consistency"]
    assert all(find_finished(job, job.settings(data), tmp_path) for job in todo)
    (study,) = group_studies(read_all([tmp_path])[0])
    assert [panel.title for panel in PLOTS["consistency"](study).panels] == ["fedheal, after 2 rounds"]
    assert PLOTS["saliency"](study) is None
    result, _ = recorded(replace(todo[0], method="fedavg"), tmp_path)
    assert any("keeps no history" in text for text in result.warnings)  # nothing is lost: the run is there


def test_losses_stand_beside_the_separators(tmp_path):
    for seed in (0, 1):
        recorded(Job("fedavg", "gaussians", rounds=3, seed=seed, keep=("separators",)), tmp_path)
    (study,) = group_studies(read_all([tmp_path])[0])
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
    (study,) = group_studies(read_all([tmp_path])[0])
    for kind in ("conflicts", "consistency", "spectrum", "tsne", "separators"):
        assert PLOTS[kind](study) is not None, kind
        assert f'<figure id="{kind}">' in build_page([study])
    assert PLOTS["saliency"](study) is None
    result = run("fedavg", pictures(), rounds=1)
    place = save(result, tmp_path / "pictures")
    analysis.keep(result, ["saliency"], place)
    (other,) = group_studies(read_all([place])[0])
    assert len(PLOTS["saliency"](other).panels) == 4  # two samples, and what is seen of them
    assert all(path.stat().st_size for path in save_chart(PLOTS["saliency"](other), tmp_path / "saliency"))
    (place / "analysis.json").write_text("{")
    assert PLOTS["saliency"](other) is None  # damaged: the report goes on without it
