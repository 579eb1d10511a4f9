"""What runs keep beyond their records, and the plots of it."""

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from equipoise import EquipoiseError, client_round, load_federation, run
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import prepare_simulation, simulate
from equipoise.rounds.server import make_broadcast
from equipoise.runs import analysis, looking
from equipoise.runs.kept import merge_kept, read_kept
from equipoise.runs.meant import watch
from equipoise.runs.reading import read_all
from equipoise.runs.requests import parse_request
from equipoise.runs.writing import save
from equipoise.study.jobs import Job, find_finished, list_jobs
from equipoise.study.report.charts import find_extent
from equipoise.study.report.figures import group_studies
from equipoise.study.report.page import build_page
from equipoise.study.report.paper import save_chart
from equipoise.study.report.plots import PLOTS
from equipoise.study.workers import execute_all
from kit import NormNet, blobs, pictures, recorded


def analyse(result, text):
    return analysis.analyse(result, parse_request(text))


def test_conflicts_are_cosines_of_the_next_updates():
    result = run("fedavg", blobs(), rounds=1)
    cosines = np.array(analyse(result, "conflicts")["cosines"])
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-6)
    np.testing.assert_allclose(cosines, cosines.T, atol=1e-6)
    assert (np.abs(cosines) <= 1 + 1e-6).all()
    with pytest.raises(EquipoiseError, match="sends no updates"):
        analyse(run("local_only", blobs(), rounds=1), "conflicts")


def test_grad_cam_of_every_domain():
    found = analyse(run("fedavg", pictures(), rounds=1), "saliency")
    maps = torch.tensor(found["maps"])
    assert found["views"] == {}
    assert len(set(found["classes"])) == 1
    assert found["domains"] == ["d0", "d1"]
    assert maps.min() >= 0
    assert maps.max() <= 1
    samples = torch.tensor(found["samples"])
    assert (float(samples.min()), float(samples.max())) == (0, 1)
    assert samples.shape[0] == 2
    with pytest.raises(EquipoiseError, match="shows no feature map"):
        analyse(run("fedavg", blobs(), rounds=1), "saliency")


def test_features_are_summarised():
    result = run("fedavg", blobs(), rounds=1)
    found = analyse(result, "features")
    assert list(found["centres"]) == list(result.federation.classes)
    assert len(found["points"]) == len(found["classes"]) == len(found["domains"]) == 40
    assert len(found["singular"]) == 7
    assert found["singular"] == sorted(found["singular"], reverse=True)


def test_the_border_lies_where_the_model_is_undecided():
    result = run("fedavg", "gaussians", rounds=20)
    border = torch.tensor(analyse(result, "separators")["border"])
    tensors = result.task.layout.split(result.server.theta)
    weight, bias = (next(v for n, v in tensors.items() if n.endswith(end)) for end in ("weight", "bias"))
    margin = border @ (weight[1] - weight[0]) + bias[1] - bias[0]
    assert margin.abs().max() <= float((weight[1] - weight[0]).abs().sum()) * 0.2  # within a step of the grid
    with pytest.raises(EquipoiseError, match="two numbers"):
        analyse(run("fedavg", blobs(), rounds=1), "separators")


# --------------------------------------------------------------------------- the local models of clients
def train_by_hand(result, client):
    """The model that a client has after one more round from the final one, by the functions that a round is made of."""
    task = result.task
    broadcast = make_broadcast(result.server, len(result.rounds), result.rounds[-1].lr)
    states = {client: result.states[client]}
    replies, kept = client_round(result.method, task, [client], broadcast, states, result.seed)
    tensors = {**task.layout.split(result.server.theta + replies.updates[0])}
    tensors |= {name: value[0] for name, value in replies.buffers.items()}
    tensors |= task.personal.split(replies.reports["personal"][0]) if task.personal.names else {}
    for key in ("private parameters", "own buffers"):
        tensors |= kept[client].get(key, {})
    network = copy.deepcopy(task.modules["eval"])
    missing, strange = network.load_state_dict(tensors, strict=False)
    assert not strange
    assert all(name.endswith("draws") for name in missing)  # of noise, which evaluation does not take
    return network.eval()


def measure_by_hand(features):
    """The eigenvalues of the covariance, in NumPy: it is symmetric, so that they are its singular values."""
    values = np.linalg.eigvalsh(np.cov(features.detach().double().numpy().T))[::-1]
    return values[: len(features) - 1]


def prepare(result, positions):
    return result.federation.preparation.evaluation(result.federation.x[positions])


@pytest.mark.parametrize(
    ("method", "data", "options"),
    [
        ("fedavg", blobs, {}),
        ("scaffold", blobs, {}),
        ("f2dc", pictures, {}),
        ("fedavg", blobs, {"model": NormNet}),
        ("fedavg", blobs, {"model": NormNet, "buffers": "local"}),
        ("fedbn", blobs, {"model": NormNet}),
        ("local_only", blobs, {}),
        ("fdse", pictures, {}),
    ],
)
def test_the_spectrum_of_a_client_is_that_of_its_local_model(method, data, options):
    result = run(method, data(), rounds=2, **options)
    found = analyse(result, "spectrum")
    assert found["clients"] == ["c0", "c1", "c2", "c3"]
    assert found["domains"] == ["d0", "d0", "d1", "d1"]
    tests = torch.cat([result.federation.clients[k].test for k in (0, 2)])  # of the first client of each domain
    for client in range(4):
        wanted = measure_by_hand(train_by_hand(result, client)(prepare(result, tests)).features)
        np.testing.assert_allclose(
            found["singular"][client], wanted, atol=1e-5 * wanted[0], err_msg=f"{method} {client}"
        )
    assert len({tuple(values) for values in found["singular"]}) == 4  # each client has a model of its own


def test_features_of_a_client_are_those_of_its_local_model():
    result = run("fedavg", blobs(), rounds=2)
    spectrum, own, scored = (analyse(result, text) for text in ("spectrum", "features(client='c2')", "features"))
    assert own["singular"] == spectrum["singular"][2]
    assert own["singular"] != scored["singular"]
    assert own["domains"] == scored["domains"]


def test_looking_on_leaves_the_run_as_it_is(tmp_path):
    result = run("f2dc", pictures(), rounds=2)
    place = save(result, tmp_path)
    before = result.server.theta.clone()
    texts = ["conflicts", "spectrum", "features(client='c1')", "saliency(client='c3')", "saliency"]
    assert analysis.keep(result, texts, place) == []
    assert torch.equal(result.server.theta, before)
    assert list(read_kept(place)) == texts


def test_a_client_trains_once_whatever_is_asked(monkeypatch, tmp_path):
    trained, train = [], looking.client_round

    def note(method, task, clients, *rest):
        trained.extend(clients)
        return train(method, task, clients, *rest)

    monkeypatch.setattr(looking, "client_round", note)
    result = run("fedavg", pictures(), rounds=1)
    analysis.keep(
        result, ["conflicts", "spectrum", "features(client='c1')", "saliency(client='c3')"], save(result, tmp_path)
    )
    assert sorted(trained) == [0, 1, 2, 3]


def test_a_client_that_never_took_part_can_be_looked_at():
    result = run("scaffold", blobs(), rounds=1, participation=0.25)
    absent = next(k for k in range(4) if k not in result.states)
    found = analyse(result, f"features(client='c{absent}')")
    assert len(found["singular"]) == 7


def test_grad_cam_of_a_local_model_shows_the_views_of_f2dc():
    result = run("f2dc", pictures(), rounds=2)
    found = analyse(result, "saliency(client='c1')")
    assert found["domains"] == ["d0", "d1"]
    assert set(found["views"]) == {"f+", "f-", "f*"}
    network = train_by_hand(result, 1)
    labels = [result.federation.classes.index(name) for name in found["classes"]]
    assert labels == [0, 0]  # the first class that both domains have
    tests = [next(i for i in result.federation.clients[k].test.tolist() if result.federation.y[i] == 0) for k in (0, 2)]
    f = prepare(result, torch.tensor(tests))
    for stage in network.model.stages:
        f = stage(f)
    place = str(len(network.model.stages) - 1)
    mask = network.masks[place](network.decouplers[place](f))
    minus = (1 - mask) * f
    maps = {"f+": mask * f, "f-": minus, "f*": minus + (1 - mask) * network.correctors[place](minus)}
    maps[""] = maps["f+"] + maps["f*"]
    for name, map in maps.items():
        wanted = cam_by_hand(network.model, map.detach(), 0)
        shown = np.array(found["views"][name] if name else found["maps"])
        np.testing.assert_allclose(shown, wanted, atol=1e-4, err_msg=name or "recombined")


def cam_by_hand(model, map, label):
    """Grad-CAM, image by image and channel by channel."""
    found = []
    for one in map:
        image = one.clone().requires_grad_()
        model.head(model.pool(image[None]))[0, label].backward()
        total = sum(float(image.grad[k].mean()) * one[k] for k in range(len(one))).clamp(min=0)
        found.append((total / max(float(total.max()), 1e-12)).numpy())
    return np.stack(found)


def test_maps_of_views_are_there_only_for_who_differentiates():
    result = run("f2dc", pictures(), rounds=1)
    x = prepare(result, torch.arange(2))
    network = result.task.modules["eval"]
    with torch.no_grad():
        assert not any(name.startswith("map of") for name in network(x).extra)
    assert [name for name in network(x).extra if name.startswith("map of")] == ["map of f+", "map of f-", "map of f*"]


def test_centres_lie_among_the_samples_of_their_class():
    found = analyse(run("fedavg", blobs(), rounds=3), "features")
    points, names = np.array(found["points"]), np.array(found["classes"])
    for name, centre in found["centres"].items():
        away = np.linalg.norm(points - centre, axis=1)
        assert away[names == name].mean() < away[names != name].mean()
        assert np.isin(name, names[np.argsort(away)[:3]])


@pytest.mark.parametrize(
    "text", ["features(client='c1')", "saliency(client='c1')", "consistency(client='c1')", "spectrum"]
)
def test_pooled_data_have_no_local_models(text):
    begun = watch(prepare_simulation(Settings.of("centralised", pictures(), rounds=1)), [text])
    with pytest.raises(EquipoiseError, match="`centralised` trains one model on the data of all clients"):
        analyse(simulate(begun), text)


def test_a_layer_that_a_method_replaces_is_left_out_and_others_keep_it():
    text, data = "consistency(layer='body.0')", blobs()
    for method in ("fedavg", "f2dc"):  # which puts the layers of a perceptron into stages
        result = simulate(watch(prepare_simulation(Settings.of(method, data, rounds=1)), [text]))
        if method == "fedavg":
            assert analyse(result, text)["1"][-1] == 1
        else:
            with pytest.raises(EquipoiseError, match=r"`f2dc` changes the model, which then has no layer `body.0`"):
                analyse(result, text)
    with pytest.raises(
        EquipoiseError, match=r"`layer='bodi'` of --keep consistency is not in model .* Layers: stages.0.1"
    ):
        watch(prepare_simulation(Settings.of("f2dc", data)), ["consistency(layer='bodi')"])


def test_parameters_that_stay_with_clients_have_no_signs():
    data, text = blobs(), "consistency(layer='body.1')"
    begun = watch(prepare_simulation(Settings.of("fedbn", data, model=NormNet, rounds=1)), [text])
    with pytest.raises(EquipoiseError, match=r"With `fedbn` the parameters of layer `body.1` stay with the clients"):
        analyse(simulate(begun), text)
    begun = watch(prepare_simulation(Settings.of("local_only", data, rounds=1)), ["consistency"])
    with pytest.raises(EquipoiseError, match=r"With `local_only` the parameters of its model stay with the clients"):
        analyse(simulate(begun), "consistency")


# --------------------------------------------------------------------------- what is written, and plotted
def test_consistency_is_kept_after_ten_rounds_too(tmp_path):
    _, place = recorded(Job("fedavg", "gaussians", rounds=12, keep=("consistency",)), tmp_path)
    found = read_kept(place)["consistency"]
    assert set(found) == {"10", "12", "last 10"}
    _, ten = recorded(Job("fedavg", "gaussians", rounds=10, keep=("consistency",)), tmp_path / "ten")
    assert found["10"] == read_kept(ten)["consistency"]["10"]


def test_a_comparison_keeps_what_each_method_can_give(tmp_path):
    keep = ("conflicts", "separators", "saliency")
    data = load_federation("gaussians")
    todo = list_jobs(["fedheal", "local_only"], data, [0], Job(dataset="gaussians", rounds=2, keep=keep))
    for job in todo:
        recorded(replace(job, keep=()), tmp_path)
    asked = list(execute_all(todo, tmp_path, lambda step: None, 1))  # finished, but not with what is asked for now
    found = {one.method: one for one in asked}
    assert set(found["fedheal"].not_kept) == {"saliency"}
    assert set(found["local_only"].not_kept) == {"conflicts", "saliency"}
    assert "sends no updates" in found["local_only"].not_kept["conflicts"]
    assert all(find_finished(job, job.settings(data), tmp_path) for job in todo)
    (study,) = group_studies(read_all([tmp_path])[0])
    assert [panel.title for panel in PLOTS["conflicts"](study).panels] == ["fedheal"]
    assert PLOTS["saliency"](study) is None
    result, _ = recorded(todo[-1], tmp_path)
    assert any("sends no updates" in text for text in result.warnings)  # nothing is lost: the run is there


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


def test_the_consistency_of_several_methods_stands_side_by_side(tmp_path):
    keep = ("consistency", "consistency(client='client 1', layer='head')")
    for method in ("fedavg", "fedheal"):
        recorded(Job(method, "gaussians", rounds=12, keep=keep), tmp_path)
    (study,) = group_studies(read_all([tmp_path])[0])
    chart = PLOTS["consistency"](study)
    stretches = ["first 10 rounds", "first 12 rounds", "last 10 rounds"]
    assert [panel.title for panel in chart.panels] == [*stretches, *(f"{s}, client 1, layer head" for s in stretches)]
    for panel in chart.panels:
        assert [bars.name for bars in panel.marks] == ["fedavg", "fedheal"]
        assert all(sum(bars.y) == pytest.approx(100) for bars in panel.marks)
        ends = sorted((at - bars.span / 2, at + bars.span / 2) for bars in panel.marks for at in bars.x)
        assert all(left[1] <= right[0] + 1e-9 for left, right in pairwise(ends))  # no bar hides another
        assert 0.5 <= ends[0][0] < ends[-1][1] <= 1


def test_a_line_per_client_and_one_axis_for_all_methods(tmp_path):
    for method in ("fedavg", "local_only"):
        recorded(Job(method, "scanners", rounds=1, keep=("spectrum",)), tmp_path)
    (study,) = group_studies(read_all([tmp_path])[0])
    chart = PLOTS["local_spectrum"](study)
    assert [panel.title for panel in chart.panels] == ["fedavg", "local_only"]
    assert len({find_extent(panel)[1] for panel in chart.panels}) == 1
    for panel in chart.panels:
        assert [line.name for line in panel.marks] == study.any.clients
        assert len({line.colour for line in panel.marks}) == len(set(study.any.domains)) == 4
        kept = read_kept(study.runs[panel.method][0].place)["spectrum"]
        assert panel.marks[3].y == pytest.approx(np.log10(np.maximum(kept["singular"][3], 1e-12)))
    assert PLOTS["spectrum"](study) is None
    many = {name: 8 * kept[name] for name in kept}
    many["clients"] = [f"c{i}" for i in range(len(many["clients"]))]
    merge_kept(study.runs["fedavg"][0].place, {"spectrum": many})
    (line,) = PLOTS["local_spectrum"](study).panels[0].marks
    assert line.name == "mean of 96 clients"
    assert all(a <= b <= c for a, b, c in zip(line.low, line.y, line.high, strict=True))


def test_centres_are_stars_in_the_colour_of_their_class(tmp_path):
    recorded(Job("fedavg", "gaussians", rounds=2, keep=("features", "features(client='client 2')")), tmp_path)
    (study,) = group_studies(read_all([tmp_path])[0])
    chart = PLOTS["tsne"](study)
    own = "fedavg, local model of client 2"
    assert [panel.title for panel in chart.panels] == [
        "fedavg, by class", "fedavg, by domain", f"{own}, by class", f"{own}, by domain",
    ]  # fmt: skip
    for panel in chart.panels[::2]:
        stars = {mark.name: mark.colour for mark in panel.marks if mark.star}
        assert stars == {mark.name: mark.colour for mark in panel.marks if not mark.star} == {"-1": 0, "+1": 1}
    page = build_page([study])
    assert page.count('class="star"') == 4
    assert "-1: centre " in page  # in the alternative text
    assert [panel.title for panel in PLOTS["spectrum"](study).panels] == ["", "local model of client 2"]
    assert all(path.stat().st_size for path in save_chart(chart, tmp_path / "tsne"))
    place = study.runs["fedavg"][0].place
    older = {name: value for name, value in read_kept(place)["features"].items() if name != "centres"}
    merge_kept(place, {"features": older})
    assert not any(mark.star for mark in PLOTS["tsne"](study).panels[0].marks)


def test_grad_cam_is_a_grid_of_domains_and_views(tmp_path):
    for method in ("fedavg", "f2dc"):
        result = run(method, pictures(), rounds=1)
        place = save(result, tmp_path)
        analysis.keep(result, ["saliency(client='c1')"], place)
    (study,) = group_studies(read_all([tmp_path])[0])
    chart = PLOTS["saliency"](study)
    whose = "local model of c1"
    assert chart.columns == 2
    assert chart.rows == [
        "samples of class 0", f"fedavg, {whose}", f"f2dc, {whose}", f"f2dc, {whose}, f+", f"f2dc, {whose}, f-",
        f"f2dc, {whose}, f*",
    ]  # fmt: skip
    assert [panel.title for panel in chart.panels[:2]] == ["d0", "d1"]
    assert [panel.title for panel in chart.panels[-2:]] == [f"f2dc, {whose}, f*, {domain}" for domain in ("d0", "d1")]
    page = build_page([study])
    assert [page.index(f'<p class="row">{row}</p>') for row in chart.rows] == sorted(
        page.index(f'<p class="row">{row}</p>') for row in chart.rows
    )
    assert all(path.stat().st_size for path in save_chart(chart, tmp_path / "saliency"))


def test_kept_things_become_plots(tmp_path):
    recorded(
        Job("fedheal", "gaussians", rounds=2, keep=("conflicts", "consistency", "features", "separators", "spectrum")),
        tmp_path,
    )
    (study,) = group_studies(read_all([tmp_path])[0])
    for kind in ("conflicts", "consistency", "spectrum", "local_spectrum", "tsne", "separators"):
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
