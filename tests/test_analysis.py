"""What runs keep beyond their records, and the plots of it."""

import numpy as np
import pytest
import torch

from equipoise import EquipoiseError, analysis, run
from equipoise.experiment import Job, recorded
from equipoise.records import read_all, save
from equipoise.report.page import page
from equipoise.report.plots import PLOTS
from equipoise.report.study import studies
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
    assert found["rounds"] == 4
    assert sum(found["shares"]) == pytest.approx(1)
    filled = [i for i, share in enumerate(found["shares"]) if share]
    assert set(filled) <= {0, 10, 19}  # of four rounds: 2, 3 or 4 in one direction
    once = analysis.consistency(run("fedheal", blobs(), rounds=1))
    assert once["shares"][-1] == pytest.approx(1)
    with pytest.raises(EquipoiseError, match="keeps no history"):
        analysis.consistency(run("fedavg", blobs(), rounds=1))


def test_grad_cam_of_every_domain():
    found = analysis.saliency(run("fedavg", pictures(), rounds=1))
    maps = torch.tensor(found["maps"])
    assert found["domains"] == ["d0", "d1"]
    assert maps.min() >= 0
    assert maps.max() <= 1
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
    assert len(PLOTS["saliency"](other).panels) == 2
    (place / "analysis.json").write_text("{")
    assert PLOTS["saliency"](other) is None  # damaged: the report goes on without it
