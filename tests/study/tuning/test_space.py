"""What tuning searches: parts, their parameters, and sums that can be built."""

import pytest

from equipoise import EquipoiseError, Training, load_federation, parse
from equipoise.grammar import Call, Range
from equipoise.method import METHODS, register
from equipoise.study.jobs import Job
from equipoise.study.tuning.plan import Contest, Plan
from equipoise.study.tuning.space import (
    ALONE,
    Part,
    Space,
    build_compositions,
    build_single,
    choose,
    find_apart,
    keep_within,
    list_parts,
    list_training,
)

JOB = Job(dataset="gaussians")


class Fixed:
    """Chooses what it was told to, or else the first or lowest value; remembers what it was asked."""

    def __init__(self, **wanted):
        self.wanted, self.asked = {name.replace("__", "."): value for name, value in wanted.items()}, {}

    def _take(self, name, usual, offered):
        self.asked[name] = offered
        return self.wanted.get(name, usual)

    def suggest_categorical(self, name, choices):
        return self._take(name, choices[0], tuple(choices))

    def suggest_float(self, name, low, high, *, log=False):
        return self._take(name, low, (low, high, log))

    def suggest_int(self, name, low, high, *, log=False):
        return self._take(name, low, (low, high, log))


@pytest.fixture(scope="module")
def gaussians():
    return load_federation("gaussians")


def test_a_point_is_a_sum_of_a_part_and_a_rule_with_chosen_parameters(gaussians):
    space = build_compositions(["fedprox", "fedheal"], JOB, gaussians, {})
    point = space.choose(Fixed(client="fedprox", server="fedheal", fedprox__mu=0.0123456, lr=0.25))
    assert point.method == "fedprox(mu=0.0123) + fedheal(tau=0.1, beta=0.1)"
    assert point.training.lr == 0.25
    assert point.training.momentum == gaussians.protocol.training.momentum
    assert parse(point.method)


def test_plain_fedavg_adds_nothing_to_a_sum_and_stands_alone_for_itself(gaussians):
    space = build_compositions(["fedprox", "fedavg"], JOB, gaussians, {})
    assert space.choose(Fixed(client="fedprox", server="fedavg")).method == "fedprox(mu=0.001)"
    uniform = Fixed(client="fedprox", server="fedavg", fedavg__weights="uniform")
    assert space.choose(uniform).method == "fedprox(mu=0.001) + fedavg(weights='uniform')"
    assert space.choose(Fixed(client="nothing")).method == "fedavg(weights='samples')"


def test_a_parameter_that_is_given_is_not_searched(gaussians):
    space = build_compositions(["fedheal(tau=0.3)"], JOB, gaussians, {})
    chooser = Fixed(server="fedheal")
    assert space.choose(chooser).method == "fedheal(tau=0.3, beta=0.1)"
    assert "fedheal.tau" not in chooser.asked
    assert chooser.asked["fedheal.beta"] == (0.1, 1.0, False)


def test_sums_that_cannot_be_built_are_known_and_never_chosen(gaussians):
    clients, servers = list_parts(["fdse", "moon", "fedheal", "fedfv"])
    assert find_apart(clients, servers) == {("fdse", "fedheal")}
    space = Space(tuple(clients), tuple(servers), (), Training(), "", find_apart(clients, servers))
    assert space.choose(Fixed(client="fdse", server="fedheal")) is None
    assert space.choose(Fixed(client="moon", server="fedheal")) is not None


def test_values_that_do_not_go_together_are_not_chosen(gaussians):
    space = Space((ALONE,), (Part("propfair", (("M", 0.5),), (("eps", Range(0.4, 0.9)),)),), (), Training(), "")
    assert space.choose(Fixed(propfair__eps=0.4)) is not None
    assert space.choose(Fixed(propfair__eps=0.8)) is None  # eps must be below M


def test_every_range_can_be_built_at_both_ends_and_holds_the_default_or_lies_beside_it():
    searched = [entry for entry in METHODS.values() if entry.ranges]
    assert len(searched) >= 18
    for entry in searched:
        for name, values in entry.ranges.items():
            for value in (values.low, values.high) if isinstance(values, Range) else values:
                parse(str(Call(entry.name, ((name, value),))))


def test_training_is_searched_around_what_the_data_set_has():
    assert dict(list_training(Training(lr=0.4, epochs=2, batch=20))) == {
        "lr": Range(0.05, 1.6, log=True), "epochs": (1, 2, 4), "batch": (10, 20, 40),
    }  # fmt: skip
    assert dict(list_training(Training(lr=0.4, steps=1, batch=None))) == {
        "lr": Range(0.05, 1.6, log=True), "steps": (1, 2),
    }  # fmt: skip


def test_numbers_have_three_digits_and_whole_ranges_whole_numbers():
    assert choose(Fixed(x=0.123456), "x", Range(0.0, 1.0)) == 0.123
    assert choose(Fixed(), "x", Range(2, 5)) == 2
    assert keep_within(7.0, Range(0.0, 5.0)) == 5.0
    assert keep_within("c", ("a", "b")) == "a"


def test_the_defaults_of_one_method_are_those_of_the_data_set():
    space = build_single("fedheal", Job(dataset="clinics"), load_federation("clinics"))
    assert space.list_defaults() == {"lr": 0.3, "epochs": 4, "batch": 90, "fedheal.tau": 0.5, "fedheal.beta": 0.4}


def test_what_the_model_lacks_is_left_out_and_named(gaussians):
    contest = Contest.of(Plan.for_data(gaussians, JOB, trials=4, rivals=("f2dc", "fedheal")), gaussians)
    assert list(contest.spaces) == ["fedavg", "fedheal", "compositions"]
    assert set(contest.left_out) == {"f2dc", "f2dc_modules"}
    assert "feature maps" in contest.left_out["f2dc"]
    assert "f2dc_modules" not in {part.name for part in contest.spaces["compositions"].clients}


def test_a_method_without_a_side_cannot_be_a_part():
    with pytest.raises(EquipoiseError, match=r"`ditto` does not say what it adds .* a side .* fedheal"):
        list_parts(["ditto"])


@pytest.fixture
def _unregistered():
    yield
    METHODS.pop("own_rule", None)


@pytest.mark.usefixtures("_unregistered")
def test_ranges_of_an_own_method_are_checked_when_it_is_registered():
    def own_rule(strength: float = 1.0):
        return parse("fedavg")

    with pytest.raises(EquipoiseError, match=r"`own_rule` has no parameter `power`"):
        register(title="t", reference="r", ranges={"power": Range(0.0, 1.0)})(own_rule)
    with pytest.raises(EquipoiseError, match=r"own_rule\(strength\) must be a number"):
        register(title="t", reference="r", ranges={"strength": ("strong",)})(own_rule)
    register(title="t", reference="r", ranges={"strength": Range(0.1, 1.0)}, side="server")(own_rule)
    assert [part.name for part in list_parts(["own_rule"])[1]] == ["own_rule"]


@pytest.mark.parametrize(("low", "high", "log"), [(1.0, 0.5, False), (0.0, 1.0, True)])
def test_a_range_that_makes_no_sense_is_refused(low, high, log):
    with pytest.raises(EquipoiseError, match=r"Parameter `(high|low)` must be above"):
        Range(low, high, log)
