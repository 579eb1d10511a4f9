"""The contract of a part: a researcher who writes one cannot get wrong numbers silently."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from equipoise import EquipoiseError, Method, aggregate, parse, run
from equipoise.engine.guard import DEPLOYMENT_GUARD, KEY
from equipoise.method import REPORTS, Report, Shape, Share, State, Step, Stepped, Term, Weigh, Weighed, define_report
from equipoise.method.privacy import find_obstacle, list_revealed
from equipoise.methods import METHODS
from equipoise.parts.reports import GlobalLoss, LocalLoss, SampleCount
from equipoise.parts.steps import ServerRate
from equipoise.parts.weights import BySamples
from equipoise.types import OWN_REPORTS, PerClient, Shaped
from kit import blobs, quiet
from kit.own_parts import (
    BySize,
    CountsRounds,
    GrowingState,
    Guard,
    KeepsRows,
    LargestAlone,
    OfShare,
    PulledBySpread,
    RemembersLast,
    Reversed,
    SaysItDoesNotLook,
    SharesSpread,
    UpdateSize,
)
from kit.rows import needs_groups

ALL_RUNNERS = ("inline", "vectorised", "processes")


def agree(method, participation=1.0, rounds=4):
    """The same run in every runner."""
    found = [
        quiet(method, blobs(), runner=runner, rounds=rounds, participation=participation, threads=2)
        for runner in ALL_RUNNERS
    ]
    for other in found[1:]:
        torch.testing.assert_close(found[0].server.theta, other.server.theta, rtol=1e-3, atol=1e-5)
        for client, state in found[0].states.items():
            for key, part in state.items():
                for name, value in part.items():
                    torch.testing.assert_close(value, other.states[client][key][name], rtol=1e-3, atol=1e-4)
    return found[0]


# --------------------------------------------------------------------------- single updates
def test_a_share_that_looks_at_updates_sees_them_in_a_run_as_in_aggregate():
    """Under FedAvg's weights a sum would be enough for everybody else."""
    method = Method(terms=(PulledBySpread(),), share=(SharesSpread(),))
    assert not method.streams
    assert "`shares_spread` looks at single updates" in find_obstacle(method, "secure-aggregation")
    found = agree(method)
    assert float(found.server.memory.shared["spread"]) > 0
    assert not torch.equal(found.server.theta, quiet("fedavg", blobs(), rounds=4).server.theta)
    rows = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    alone = aggregate(
        Method(share=(SharesSpread(),)), torch.zeros(2), rows, clients=[0, 1], reports={"samples": torch.ones(2)}
    )
    assert float(alone.broadcast["spread"]) == pytest.approx(float(rows.std(0).norm()) + 3.0)


def test_a_part_that_says_it_does_not_look_and_does_is_told():
    with pytest.raises(EquipoiseError, match=r"There are no single updates here.*`reads_updates = True`"):
        run(Method(step=(SaysItDoesNotLook(),)), blobs(), rounds=1)


def test_a_share_after_a_probe_has_no_updates_to_look_at():
    @dataclass(frozen=True)
    class Early(Share):
        @property
        def phases(self):
            return ("probe",)

    with pytest.raises(EquipoiseError, match=r"`early` \(share\) works after a probe, when there are no updates yet"):
        Method(share=(Early(),))


@pytest.mark.parametrize("method", [Method(weigh=LargestAlone()), Method(merge=Reversed())], ids=["weigh", "merge"])
def test_a_rule_that_overrides_another_is_not_bypassed(method):
    """What the records show is what the model got: all to the largest client, or the way back."""
    assert not method.streams
    found = agree(method, rounds=2)
    plain = quiet("fedavg", blobs(), rounds=1, runner="inline")
    once = quiet(method, blobs(), rounds=1, runner="inline")
    first = plain.task.layout.join(plain.task.initial_params)
    if method.weigh == LargestAlone():
        assert once.rounds[0].weights == (0.0, 0.0, 0.0, 1.0)
        assert not torch.allclose(once.server.theta, plain.server.theta)
        rows = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
        result = aggregate(
            method, torch.zeros(5), rows, clients=range(4), reports={"samples": torch.tensor([1.0, 2, 9, 3])}
        )
        torch.testing.assert_close(result.theta, rows[2])
    else:
        torch.testing.assert_close(once.server.theta - first, first - plain.server.theta, rtol=1e-4, atol=1e-6)
    assert torch.isfinite(found.server.theta).all()


def test_a_shortcut_that_is_as_specific_as_its_rule_is_used():
    method = Method(reports=(UpdateSize(),), weigh=BySize())
    assert method.streams
    agree(method, participation=0.5)


def test_rows_that_a_part_keeps_are_not_written_over():
    """Worker processes lend their memory to a round, and so may the caller of `aggregate`."""
    found = agree(Method(step=(KeepsRows(),)), participation=0.5, rounds=5)
    assert len(found.server.memory.parts["step.keeps_rows"]["last"]) == 3  # so many took part
    rows = torch.ones(2, 3)
    first = aggregate(
        Method(step=(KeepsRows(),)), torch.zeros(3), rows, clients=[0, 1], reports={"samples": torch.ones(2)}
    )
    rows.fill_(7.0)
    assert float(first.server.parts["step.keeps_rows"]["last"][1].max()) == 1.0


# --------------------------------------------------------------------------- state
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_state_from_finish_without_a_start_is_kept_for_every_client(participation):
    """In half of the rounds' stacks some clients have been there before and others have not."""
    found = agree(Method(terms=(RemembersLast(),)), participation, rounds=6)
    seen = {k: sum(k in record.clients for record in found.rounds) for k in range(4)}
    assert {k: int(state["terms.remembers_last"]["rounds"]) for k, state in found.states.items()} == seen


def test_a_state_of_another_shape_is_refused_by_name():
    with pytest.raises(
        EquipoiseError, match=r"`growing_state` \(terms\) must keep tensors of the same names and shapes"
    ):
        run(Method(terms=(GrowingState(),)), blobs(), rounds=3)

    @dataclass(frozen=True)
    class Forgets(Term):
        def start(self, beginning):
            return [{"x": torch.zeros(2)} for _ in beginning.clients]

        def finish(self, trained):
            return {}

    with pytest.raises(
        EquipoiseError, match=r"`forgets` \(terms\).*It had \{'x': \(2,\)\}, and its `finish` gives \{\}"
    ):
        run(Method(terms=(Forgets(),)), blobs(), rounds=1)

    @dataclass(frozen=True)
    class OneTooFew(Term):
        def start(self, beginning):
            return [{"x": torch.zeros(2)}]

    with pytest.raises(EquipoiseError, match=r"`one_too_few` \(terms\) must start one state per client. Found 1 for 4"):
        run(Method(terms=(OneTooFew(),)), blobs(), rounds=1)

    @dataclass(frozen=True)
    class Changing(Step):
        def __call__(self, round, direction, state):
            return Stepped(direction, {"x": torch.zeros(round.round + 1)})

    with pytest.raises(EquipoiseError, match=r"`changing` \(step\).*`x` is a tensor \[2\], and was a tensor \[1\]"):
        run(Method(step=(Changing(),)), blobs(), rounds=2)

    @dataclass(frozen=True)
    class Counting(Step):
        def __call__(self, round, direction, state):
            return Stepped(direction, {"x": 3})

    with pytest.raises(EquipoiseError, match=r"`counting` \(step\) must remember tensors.*`x` is a int"):
        run(Method(step=(Counting(),)), blobs(), rounds=1)


def test_parts_of_one_name_in_two_roles_have_states_of_their_own():
    found = quiet(Method(step=(CountsRounds(),), share=(OfShare.CountsRounds(),)), blobs(), rounds=3)
    parts = found.server.memory.parts
    assert float(parts["step.counts_rounds"]["count"]) == 3
    assert float(parts["share.counts_rounds"]["count"]) == 130


def test_a_part_called_guard_is_not_the_guard():
    method = parse("qffl(q=1)") + Method(step=(Guard(),))
    found = quiet(method, blobs(), rounds=3, guard=DEPLOYMENT_GUARD)
    assert float(found.server.memory.parts["step.guard"]["loss"]) == 3
    assert isinstance(found.server.memory.parts[KEY]["loss"], PerClient)


def test_states_say_what_they_are():
    state = State(p=PerClient({1: torch.tensor(2.0)}), mean=torch.ones(2))
    assert float(state.rows("p")[1]) == 2
    assert float(state.rows("p", default=torch.tensor(5.0))[9]) == 5
    assert len(state.rows("nothing")) == 0
    assert torch.equal(state.tensor("nothing", torch.zeros(1)), torch.zeros(1))
    for wrong in (lambda: state.rows("mean"), lambda: state.tensor("p"), lambda: state.tensor("nothing")):
        with pytest.raises(TypeError, match=r"mean|p|nothing"):
            wrong()


def test_the_memory_of_another_method_is_refused():
    rows, reports = torch.ones(2, 3), {"samples": torch.ones(2)}
    first = aggregate(parse("fedheal"), torch.zeros(3), rows, clients=[0, 1], reports=reports)
    with pytest.raises(EquipoiseError, match="which is no part of `fedavg`"):
        aggregate(parse("fedavg"), torch.zeros(3), rows, clients=[0, 1], reports=reports, server=first.server)


# --------------------------------------------------------------------------- slots, needs, gives
@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ({"weigh": ServerRate(1.0)}, r"`weigh` takes parts that are a Weigh\. Found ServerRate.*plays `step`"),
        ({"terms": (GlobalLoss(),)}, "`terms` takes parts that are a Term.*plays `reports`"),
        ({"step": ServerRate(0.5)}, r"`step` takes parts in a tuple, such as step=\(MyPart\(\),\)"),
        ({"weigh": BySamples}, "Call the class: parts are values"),
        ({"share": ("prototypes",)}, "`share` takes parts that are a Share. Found 'prototypes'"),
    ],
)
def test_a_part_in_the_wrong_slot_is_refused_when_the_method_is_built(slots, message):
    with pytest.raises(EquipoiseError, match=message):
        Method(**slots)


def test_reports_stand_in_the_table_and_come_from_one_part():
    @dataclass(frozen=True)
    class Unheard(Report):
        @property
        def gives(self):
            return ("entropy",)

    with pytest.raises(EquipoiseError, match="gives `entropy`, which is not in the table of reports"):
        Method(reports=(Unheard(),))

    @dataclass(frozen=True)
    class SecondLoss(Report):
        @property
        def gives(self):
            return ("loss",)

    with pytest.raises(EquipoiseError, match="`global_loss` and `second_loss` both report `loss`"):
        Method(reports=(GlobalLoss(), SecondLoss()))

    @dataclass(frozen=True)
    class Other(Report):
        @property
        def gives(self):
            return ("worst_loss",)

        def __call__(self, trained):
            return {"loss": trained.loss_local}

    with pytest.raises(EquipoiseError, match=r"`other` \(reports\) says that it gives worst_loss, and gives loss"):
        run(Method(reports=(Other(),)), blobs(), rounds=1)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("loss", "[m]", "`loss` is a report of Equipoise"),
        ("two words", "[m]", "one word"),
        ("fine", "m", "clients first"),
        ("fine", "[G, m]", "clients first"),
    ],
)
def test_reports_that_cannot_be_defined(name, shape, message):
    with pytest.raises(EquipoiseError, match=message):
        define_report(name, shape, "nothing")
    assert "fine" not in REPORTS


def test_a_report_of_ones_own_is_checked_and_guarded_as_its_row_says():
    method = Method(reports=(UpdateSize(),), weigh=BySize())
    found = quiet(method, blobs(), rounds=2, guard=DEPLOYMENT_GUARD)
    assert set(found.server.memory.parts[KEY]) == {"update_size"}
    assert "unguarded weight" in found.rounds[0].figures
    assert list_revealed(method).reports == ("samples", "update_size")


def test_every_report_of_the_table_is_given_by_a_part_of_the_library():
    import equipoise.parts.reports as module

    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and kind is not Report]
    shipped = [kind() for kind in kinds if issubclass(kind, Report)]
    built = [part for entry in METHODS.values() for part in entry.function().reports]
    released = (*parse("daa(counts='class')").reports, *parse("afl(variant='released')").reports)
    given = {name for part in (*shipped, *built, *released) for name in part.gives}
    assert given >= OWN_REPORTS


def test_the_training_loss_can_be_reported_by_any_method():
    found = run(parse("fedheal") + Method(reports=(LocalLoss(),)), blobs(), rounds=1)
    assert found.method.reports == (SampleCount(), LocalLoss())


# --------------------------------------------------------------------------- what parts say about themselves
def test_weights_that_cannot_be_negative_can_be_masked():
    """EAGLE's have a floor at zero."""
    found = quiet("eagle(apply='server', floor=0.0, lstar_epochs=3) + fedheal(fael=False)", blobs(), rounds=2)
    assert all(weight >= 0 for record in found.rounds for weight in record.weights)
    with pytest.raises(EquipoiseError, match="weights that cannot be negative"):
        parse("eagle(apply='server') + fedheal(fael=False)")


@pytest.mark.parametrize("name", METHODS)
def test_methods_say_what_they_remember_of_a_client(name):
    """What is remembered per client is told, and what is told is remembered."""
    if "f2dc" in name:  # works on feature maps
        assert [part.key for part in parse(name).parts if part.remembers] == []
        return
    text = {
        "eagle": "eagle(lstar_epochs=3)",
        "fedlsa": "fedlsa(width=8, server_epochs=2)",
        "fedtgp": "fedtgp(server_epochs=2)",
    }
    found = quiet(text.get(name, name), blobs(grouped=needs_groups(name)), rounds=2)
    keeping = {
        key
        for key, state in found.server.memory.parts.items()
        if any(isinstance(value, PerClient) for value in state.values())
    }
    assert keeping == {part.key for part in found.method.parts if part.remembers}


def test_a_weight_or_direction_of_another_shape_is_refused_by_name():
    @dataclass(frozen=True)
    class Column(Weigh):
        def __call__(self, round, state):
            return Weighed(torch.ones(len(round.clients), 1))

    with pytest.raises(EquipoiseError, match=r"`column` \(weigh\) must give weights \[4\]. Found \[4, 1\]"):
        run(Method(weigh=Column()), blobs(), rounds=1)

    @dataclass(frozen=True)
    class Short(Step):
        reads_updates: ClassVar[bool] = False

        def __call__(self, round, direction, state):
            return Stepped(direction[:3])

    with pytest.raises(EquipoiseError, match=r"`short` \(step\) must give a direction"):
        run(Method(step=(Short(),)), blobs(), rounds=1)


def test_absent_clients_updates_can_travel_to_a_merge():
    """A capability that FedLF uses, in a method of one's own."""

    @dataclass(frozen=True)
    class RemembersAll(Shape):
        @property
        def remembers(self):
            return "its last update"

        def __call__(self, round, state):
            last = state.rows("last")
            absent = [c for c in last if c not in round.clients]
            kept = {"last": last.put(round.clients, round.updates.shaped)}
            return Shaped(round.updates.with_absent(last.take(absent)) if absent else round.updates, kept)

    @dataclass(frozen=True)
    class MeanOfAll(Reversed):
        def __call__(self, round, weights):
            absent = round.updates.absent
            rows = round.updates.rows if absent is None else torch.cat([round.updates.rows, absent])
            seen.append(len(rows))
            return super().__call__(round, weights)._replace(direction=rows.mean(0))

    seen: list[int] = []
    quiet(Method(shape=(RemembersAll(),), merge=MeanOfAll()), blobs(), rounds=6, participation=0.5, runner="inline")
    assert seen[0] == 2
    assert seen[-1] == 4
