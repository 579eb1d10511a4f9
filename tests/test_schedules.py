"""Learning rates over rounds: their values, and that every runner, Flower and a resumed run train with them."""

import json
import tomllib
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import EquipoiseError, Training, run, save
from equipoise.engine.checkpoints import Checkpoints
from equipoise.engine.settings import Settings
from equipoise.runs.live import list_scalars
from equipoise.runs.reading import read
from equipoise.schedules import SCHEDULES, Rate, parse_schedule, register_schedule
from equipoise.study.experiment import read_experiment
from kit import Stop, blobs, quiet, stop_after
from kit.command import equipoise
from kit.rows import IN_PROCESS

MIXED = "warmup(rounds=2) + cosine(end=0.1)"


def scheduled(data, schedule, **changes):
    return replace(data.protocol.training, schedule=schedule, **changes)


# --------------------------------------------------------------------------- values
@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1, 1, 1, 1, 1, 1]),
        ("constant(factor=0.5)", [0.5] * 6),
        ("warmup(rounds=4)", [0.25, 0.5, 0.75, 1, 1, 1]),
        ("warmup", [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1]),
        ("linear(end=0.4)", [1, 0.9, 0.8, 0.7, 0.6, 0.5]),
        ("linear(rounds=3, end=0.4)", [1, 0.8, 0.6, 0.4, 0.4, 0.4]),  # its end stays
        ("step(every=2)", [1, 1, 0.1, 0.1, 0.01, 0.01]),
        ("exponential(factor=0.5)", [1, 0.5, 0.25, 0.125, 0.0625, 0.03125]),
        ("constant(rounds=2) + step(every=1, factor=0.5)", [1, 1, 1, 0.5, 0.25, 0.125]),
        ("warmup(rounds=2) + constant(rounds=1) + linear(end=0.1)", [0.5, 1, 1, 1, 0.7, 0.4]),
        ("cosine(rounds=2, end=0.5) + constant(factor=0.5)", [1, 0.75, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_factors_by_hand(schedule, factors):
    assert Rate(0.2, schedule).tabulate(6) == pytest.approx([0.2 * factor for factor in factors])


def test_the_cosine_is_that_of_torch():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9, eta_min=0.03)
    found = []
    for _ in range(9):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert Rate(0.3, "cosine(end=0.1)").tabulate(9) == pytest.approx(found)


@given(rounds=st.integers(1, 60), warm=st.integers(1, 20))
def test_a_warm_up_rises_and_what_follows_falls(rounds, warm):
    rates = Rate(1.0, f"warmup(rounds={warm}) + cosine").tabulate(rounds)
    assert rates[:warm] == sorted(rates[:warm])
    assert rates[warm:] == sorted(rates[warm:], reverse=True)
    assert rates[: warm + 1][-1] == (1.0 if rounds >= warm else rounds / warm)


def test_text_is_written_in_one_way():
    one = Training(schedule="warmup( rounds = 5)+cosine(end=0)")
    assert one.schedule == "warmup(rounds=5) + cosine(end=0.0)"
    assert one == Training(schedule=one.schedule)
    assert [stage.rounds for stage in parse_schedule(one.schedule)] == [5, None]


# --------------------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("cosin", "Unknown schedule `cosin`. Did you mean `cosine`?"),
        ("cosine(ende=1)", "`cosine` has no parameter `ende`. Did you mean `end`?"),
        ("cosine(0.1)", "Arguments go by keyword"),
        ("cosine(", "Write for example `warmup(rounds=5) + cosine(end=0.01)`."),
        ("3", "Write names joined by `+`, for example `warmup(rounds=5) + cosine(end=0.01)`."),
        ("warmup + cosine", "`warmup` must say after how many rounds `cosine` begins: write warmup(rounds=...)"),
        ("warmup(rounds=0)", "`warmup` lasts a whole number of rounds, at least 1. Found rounds=0."),
        ("warmup(round=3)", "`round` is counted by the run, not set."),
        ("step(every='often')", "step(every) must be a whole number. Found 'often'."),
    ],
)
def test_a_text_that_means_nothing(schedule, words):
    with pytest.raises(EquipoiseError) as error:
        Training(schedule=schedule)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("schedule", "found"),
    [
        ("linear(rounds=3)", "the learning rate 0 in round 4 of 6"),
        ("linear(end=-1)", "the learning rate 0 in round 4 of 6"),
        ("linear(rounds=2, end=-2)", "the learning rate -0.05 in round 2 of 6"),
        ("exponential(factor=1e200)", "the learning rate nan in round 3 of 6"),
        ("constant(factor=0)", "the learning rate 0 in round 1 of 6"),
        ("step(every=2, factor=0)", "the learning rate 0 in round 3 of 6"),
    ],
)
def test_a_rate_that_cannot_train_is_refused_before_the_run(schedule, found):
    data = blobs()
    with pytest.raises(EquipoiseError) as error:
        Settings.of("fedavg", data, rounds=6, training=scheduled(data, schedule))
    assert found in str(error.value)


def test_the_error_names_the_part_of_the_schedule_at_work():
    with pytest.raises(EquipoiseError, match=r"`linear\(rounds=2\)` is at work there"):
        Rate(0.1, "warmup(rounds=2) + linear(rounds=2)").tabulate(9)


def test_a_run_that_ends_before_its_schedule_says_so():
    data = blobs()
    settings = Settings.of("fedavg", data, rounds=3, training=scheduled(data, "warmup(rounds=5)"))
    assert settings.notes == ("The schedule `warmup(rounds=5)` lasts 5 rounds, and the run ends after 3.",)


# --------------------------------------------------------------------------- a user's own
@pytest.fixture
def own():
    yield
    for name in [name for name, entry in SCHEDULES.items() if entry.function.__module__ == __name__]:
        del SCHEDULES[name]


@pytest.mark.usefixtures("own")
def test_a_schedule_of_ones_own():
    @register_schedule
    def inverse(round: int, rounds: int, power: float) -> float:
        return (round + 1) ** -power

    assert Rate(1.0, "warmup(rounds=2) + inverse(power=1)").tabulate(4) == pytest.approx([0.5, 1, 1, 1 / 2])
    with pytest.raises(EquipoiseError, match=r"`inverse` needs `power`: write inverse\(power=...\)"):
        Training(schedule="inverse")
    data = blobs()
    facts = Settings.of("fedavg", data, rounds=2, training=scheduled(data, "inverse(power=2)")).facts
    assert facts["rates"] == pytest.approx([0.1, 0.025])
    assert list(facts["code"]) == ["test_schedules.py"]  # a changed file is noticed


@pytest.mark.usefixtures("own")
def test_a_function_that_is_no_schedule():
    with pytest.raises(EquipoiseError, match="A schedule is a function of `round`, `rounds`"):

        @register_schedule
        def wrong(time: int) -> float:
            return 1.0

    with pytest.raises(EquipoiseError, match="`cosine` is a schedule of Equipoise"):

        @register_schedule
        def cosine(round: int, rounds: int) -> float:
            return 1.0

    @register_schedule
    def worded(round: int, rounds: int) -> float:
        return "much"  # type: ignore[return-value]

    with pytest.raises(EquipoiseError, match=r"`worded` must return a number. Found 'much'"):
        Rate(1.0, "worded").at(0, 3)


# --------------------------------------------------------------------------- runs
def test_without_a_schedule_nothing_changes():
    """Facts and digest are those of runs before there were schedules."""
    settings = Settings.of("fedavg", blobs(), rounds=3)
    assert "schedule" not in settings.facts["training"]
    assert "rates" not in settings.facts
    assert Settings.of("fedavg", blobs(), rounds=3, training=Training(schedule=MIXED)).digest != settings.digest


def test_a_step_is_as_long_as_the_rate_says():
    """One full-batch step of plain SGD: the first round's update is the rate times the gradient."""
    data = blobs()
    plain = scheduled(data, "constant", steps=1, batch=None, momentum=0.0)
    first = run("fedavg", data, rounds=1, training=plain)
    begin = run("fedavg", data, rounds=1, training=replace(plain, lr=1e-30)).server.theta
    slow = quiet("fedavg", data, rounds=2, training=replace(plain, schedule="warmup(rounds=4)"))
    slow_first = run("fedavg", data, rounds=1, training=replace(plain, schedule="constant(factor=0.25)"))
    torch.testing.assert_close(slow_first.server.theta - begin, (first.server.theta - begin) / 4, rtol=1e-4, atol=1e-7)
    assert [record.lr for record in slow.rounds] == [0.025, 0.05]


@pytest.mark.parametrize(
    ("method", "optimizer"), [("fedheal", "SGD"), ("scaffold", "SGD"), ("qffl", "SGD"), ("moon", "Adam")]
)
def test_every_runner_has_the_same_rates(method, optimizer):
    data = blobs()
    training = data.protocol.training.change({"schedule": MIXED, "optimizer": optimizer, "lr": 0.05})
    results = [
        quiet(method, data, rounds=5, training=training, runner=runner)
        for runner in ([*IN_PROCESS, "processes"] if method == "fedheal" else IN_PROCESS)
    ]
    for result in results:
        torch.testing.assert_close(result.server.theta, results[0].server.theta, rtol=1e-4, atol=1e-5)
        assert [record.lr for record in result.rounds] == training.rate.tabulate(5)
    plain = quiet(method, data, rounds=5, training=replace(training, schedule="constant"), runner="inline")
    assert not torch.allclose(plain.server.theta, results[0].server.theta, atol=1e-3)


def test_the_method_sees_the_rate_of_the_round():
    """SCAFFOLD divides by the rate: with the wrong one its controls would be off by the schedule's factor."""
    data = blobs()
    plain = scheduled(data, "constant(factor=0.1)", momentum=0.0)
    a = quiet("scaffold", data, rounds=3, training=plain)
    b = quiet("scaffold", data, rounds=3, training=replace(plain, schedule="constant", lr=0.1 * plain.lr))
    torch.testing.assert_close(a.server.theta, b.server.theta)
    q = [quiet("qffl", data, rounds=3, training=one) for one in (plain, replace(plain, schedule="constant", lr=0.01))]
    assert q[0].rounds[-1].weights == pytest.approx(q[1].rounds[-1].weights, rel=1e-5)


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    data = blobs()
    options = {"rounds": 6, "training": scheduled(data, MIXED), "runner": "inline"}
    whole = quiet("scaffold", data, **options)
    with pytest.raises(Stop):
        quiet("scaffold", data, checkpoint=Checkpoints(tmp_path), on_round=stop_after(3), **options)
    resumed = quiet("scaffold", data, checkpoint=Checkpoints(tmp_path, resume=True), **options)
    assert torch.equal(whole.server.theta, resumed.server.theta)
    assert [r.lr for r in resumed.rounds] == [r.lr for r in whole.rounds] == options["training"].rate.tabulate(6)


def test_a_checkpoint_of_another_schedule_is_not_used(tmp_path):
    data = blobs()
    with pytest.raises(Stop):
        quiet("fedavg", data, rounds=6, checkpoint=Checkpoints(tmp_path), on_round=stop_after(3))
    with pytest.raises(EquipoiseError, match="No checkpoint can be used"):
        quiet("fedavg", data, rounds=6, training=scheduled(data, MIXED), checkpoint=Checkpoints(tmp_path, resume=True))


def test_records_and_live_views_have_the_rates(tmp_path):
    data = blobs()
    result = quiet("fedavg", data, rounds=4, training=scheduled(data, MIXED))
    stored = read(save(result, tmp_path))
    assert stored.manifest["rates"] == [record.lr for record in result.rounds] == Rate(0.1, MIXED).tabulate(4)
    assert stored.manifest["training"]["schedule"] == MIXED
    assert dict(list_scalars(result.rounds[1]))["local learning rate"] == 0.1


# --------------------------------------------------------------------------- Flower, commands, files
def test_flower_sites_train_with_the_rate_of_the_round():
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")
    from equipoise.flower import Plan, client_app, federate
    from kit.flower import LoopGrid

    data = blobs()
    config = {"method": "qffl", "sites": 4, "rounds": 5, "schedule": MIXED, "model": "linear"}
    plan = Plan.from_config(config)
    grid = LoopGrid(client_app(plan, data=data), {k + 1: {"partition-id": k} for k in range(4)})
    real = federate(grid, plan)
    here = quiet("qffl", data, rounds=5, model="linear", training=scheduled(data, MIXED), runner="inline")
    assert torch.equal(real.server.theta, here.server.theta)
    assert [r.lr for r in real.rounds] == [r.lr for r in here.rounds] == Rate(0.1, MIXED).tabulate(5)
    assert real.settings.facts["rates"] == here.settings.facts["rates"]
    with pytest.raises(EquipoiseError, match="in round 4 of 5"):
        Plan.from_config({**config, "schedule": "linear(rounds=3)"})


def test_the_app_of_a_plan_with_a_schedule(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")
    from equipoise.flower import Plan

    words = ("deploy", "init", "app", "--data", "gaussians", "--rounds", "9", "--schedule", MIXED)
    done = equipoise(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert Plan.from_config(project["tool"]["flwr"]["app"]["config"]).training == {"schedule": MIXED}


def test_the_command_line(tmp_path):
    words = ("run", "gaussians", "--rounds", "4", "--out", "out")
    done = equipoise(*words, "--schedule", MIXED, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (manifest,) = (tmp_path / "out").glob("*/manifest.json")
    assert json.loads(manifest.read_text())["rates"] == Rate(0.5, MIXED).tabulate(4)
    for schedule, said in (("linear(rounds=2)", "in round 3 of 4"), ("cosin", "Did you mean `cosine`?")):
        bad = equipoise(*words, "--schedule", schedule, cwd=tmp_path)
        assert bad.returncode == 2
        assert said in " ".join(bad.stderr.split())
        assert "Traceback" not in bad.stderr


def test_an_experiment_file(tmp_path):
    file = tmp_path / "plan.toml"
    text = 'methods = ["fedavg"]\ndata = ["gaussians"]\nseeds = [0]\nrounds = 4\n[training]\nschedule = "{}"\n'
    file.write_text(text.format(MIXED))
    (job,) = read_experiment(file).jobs
    assert job.training is not None
    assert job.training.schedule == MIXED
    file.write_text(text.format("linear(rounds=2)"))
    with pytest.raises(EquipoiseError, match=r"plan.toml:.* in round 3 of 4"):
        read_experiment(file)
    file.write_text(text.format("cosin"))
    with pytest.raises(EquipoiseError, match=r"plan.toml:6: Unknown schedule `cosin`. Did you mean `cosine`\?"):
        read_experiment(file)
