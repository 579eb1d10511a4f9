"""What `--keep` can be asked for, as text; and what is wrong with it, which is said before anything runs."""

import pytest

from equipoise import EquipoiseError, load_federation
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import prepare_simulation
from equipoise.runs.meant import check_clients, list_layers, list_watched, watch
from equipoise.runs.requests import REQUESTS, normalise_requests, parse_request, split_requests
from equipoise.study.experiment import read_experiment
from equipoise.study.jobs import Job, begin
from kit import NormNet, blobs, pictures
from kit.command import invoke


def test_plain_words_and_parameters_stand_side_by_side():
    text = """features,consistency, saliency( client = "photo 1" ), consistency(layer='stages.1', client='svhn 1'), features"""
    assert split_requests(text) == (
        "features",
        "consistency",
        "saliency(client='photo 1')",
        "consistency(client='svhn 1', layer='stages.1')",
    )
    assert split_requests("") == ()
    for kind in REQUESTS:
        assert str(parse_request(kind)) == kind
    odd = 'it\'s "odd", (very)'
    (request,) = normalise_requests([f"features(client={odd!r})"])
    assert parse_request(request).client == odd


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("separator", r"Unknown thing to keep `separator`. Did you mean `separators`\? There are conflicts, "),
        (
            "features(clients='a')",
            r"`features` has no parameter `clients`. Did you mean `client`\? Its parameters: client",
        ),
        ("conflicts(client='a')", r"`conflicts` has no parameter `client`. Its parameters: none"),
        ("features(client=3)", r"features\(client\) must be text in quotes. Found 3"),
        ("features(client=photo)", r"Text needs quotes: 'photo'"),
        ("features('a')", r"Arguments go by keyword"),
        ("features + saliency", r"Name one thing to keep"),
        ("features(", r"Write for example `saliency\(client='photo 1'\)`"),
    ],
)
def test_a_mistake_in_a_request_is_named(text, message):
    with pytest.raises(EquipoiseError, match=message):
        parse_request(text)


def started(method, data, keep, **options):
    return watch(prepare_simulation(Settings.of(method, data, **options)), keep)


def test_a_client_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(
        EquipoiseError, match=r"`client='clean1'` of --keep saliency is not in the federation. Did you mean"
    ):
        check_clients(["features", "saliency(client='clean1')"], load_federation("scanners"))
    with pytest.raises(EquipoiseError, match=r"Clients: c0, c1, c2, c3\.$"):
        started("fedavg", blobs(), ["consistency(client='nobody')"])
    with pytest.raises(EquipoiseError, match=r"`client='c1'` of --keep features is held out and never trains"):
        started("fedavg", blobs(), ["features(client='c1')"], hold_out="c1")


def test_a_layer_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(
        EquipoiseError,
        match=r"`layer='heads'` of --keep consistency is not in model `NormNet`. Did you mean `head`\? Layers: body.0, body.1, "
        r"head\.$",
    ):
        started("fedavg", blobs(), ["consistency(layer='heads')"], model=NormNet)


@pytest.mark.parametrize("method", ["fedavg", "f2dc", "moon", "ditto", "f2dc + moon"])
def test_a_layer_has_one_name_in_every_method(method):
    request = parse_request("consistency(layer='stages.1')")
    begun = prepare_simulation(Settings.of(method, pictures()))
    watched = list_watched(begun, request)
    assert [name.removeprefix("model.").removeprefix("model.") for name in watched] == [
        "stages.1.0.weight",
        "stages.1.0.bias",
    ]
    assert list_watched(begun, parse_request(f"consistency(layer={watched[0]!r})")) == watched[:1]
    assert "stages.1.0" in list_layers(begun.task.initial_params)
    assert list_watched(begun, parse_request("consistency")) == list(begun.task.layout.names)


def test_nothing_looks_on_unless_it_must():
    assert started("fedavg", blobs(), ["features", "conflicts", "spectrum"]).onlookers == ()
    job = Job("fedavg", "gaussians", rounds=1, keep=("consistency",))
    assert len(begin(job, job.settings(load_federation("gaussians"))).onlookers) == 2


def test_commands_and_experiments_refuse_before_they_run(tmp_path):
    for command in ("run", "compare"):
        for request, message in (
            ("saliency(client='client')", "Did you mean `client 0`"),
            ("consistency(layer='tail')", "is not in model `linear`. Layers: head"),
        ):
            with pytest.raises(EquipoiseError, match=message):
                invoke(command, "gaussians", "--rounds", "1", "--keep", request, "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())
    plan = tmp_path / "plan.toml"
    plan.write_text('methods = ["fedavg"]\ndata = ["gaussians"]\nkeep = ["features", "saliency(client=\'c\')"]\n')
    with pytest.raises(EquipoiseError, match=r"plan.toml:3: `client='c'` of --keep saliency is not in the federation"):
        read_experiment(plan)
    plan.write_text('methods = ["fedavg"]\ndata = ["gaussians"]\nkeep = ["feature"]\n')
    with pytest.raises(EquipoiseError, match=r"plan.toml:3: Unknown thing to keep `feature`. Did you mean `features`"):
        read_experiment(plan)
    plan.write_text(
        """methods = ["fedavg"]\ndata = ["gaussians"]\nkeep = ["features(client= 'client 1')"]\nrounds = 1\n"""
    )
    assert {job.keep for job in read_experiment(plan).jobs} == {("features(client='client 1')",)}
