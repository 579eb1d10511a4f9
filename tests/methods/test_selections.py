"""Who takes part: the selections of the library, by their rules, in every runner, and in the records."""

import pickle
from collections import Counter
from dataclasses import dataclass, replace

import pyarrow.compute as pc
import pytest
import torch

from equipoise import Checkpoints, EquipoiseError, EquipoiseWarning, Method, aggregate, parse, run, save, seeds
from equipoise.engine.guard import Guard
from equipoise.engine.selection import LISTED
from equipoise.method import Select, Selected, Turnout
from equipoise.method.privacy import find_obstacle, list_revealed
from equipoise.parts.gaps import LossGap
from equipoise.parts.selections import UniformDraw, draw_by_samples
from equipoise.rounds import find_candidates, select_clients
from equipoise.runs.reading import read
from equipoise.types import Memory, Setting
from kit import Stop, blobs, quiet, stop_after
from kit.own_parts import WidestGap

SELECTIONS = [
    "power_of_choice",
    "power_of_choice(candidates=3)",
    "power_of_choice(losses='remembered')",
    "select_by_samples",
    "select_worst",
    "select_worst(quota=1.0)",
    "select_by_hours(length=12)",
    "select_in_turn",
]


def turnout(available=(0, 1, 2), places=2, samples=None, round=0, seed=0, **reported):
    held = {c: float((samples or {}).get(c, 10 * (c + 1))) for c in available}
    reports = {name: torch.tensor(values, dtype=torch.float64) for name, values in reported.items()}
    return Turnout(available, places, held, round, Setting(seed=seed), tuple(available) if reports else (), reports)


def selected(text, there, memory=None):
    return select_clients(parse(text), there, memory or Memory())


# --------------------------------------------------------------------------- the default
def test_the_default_draws_whom_it_always_drew():
    result = quiet("fedavg", blobs((9, 8, 7, 6, 9, 8)), participation=0.5, rounds=5, seed=4)
    assert [record.clients for record in result.rounds] == [
        tuple(seeds.draw_participants(range(6), 3, 4, r)) for r in range(5)
    ]
    assert result.rounds[0].selection.others == "not drawn"
    assert result.method.select == UniformDraw()


@pytest.mark.parametrize("text", [t for t in SELECTIONS if "hours" not in t])
def test_with_a_place_for_everyone_all_take_part(text):
    text = text.replace("candidates=3", "candidates=4")
    assert list(selected(text, turnout(places=3))[0].clients) == [0, 1, 2]
    plain = quiet("fedavg(weights='uniform')", blobs()).server.theta
    torch.testing.assert_close(quiet(f"fedavg(weights='uniform') + {text}", blobs()).server.theta, plain)


# --------------------------------------------------------------------------- power of choice
def test_power_of_choice_in_the_worked_example():
    """Three candidates for two places, losses (.9, .3, .6): the first and the third, and their plain mean."""
    there = turnout(loss=[0.9, 0.3, 0.6])
    chosen, _ = selected("power_of_choice(candidates=3)", there)
    assert list(chosen.clients) == [0, 2]
    assert chosen.why == {1: "a candidate whose loss 0.3 was not among the 2 largest"}
    assert chosen.values == {0: 0.9, 1: 0.3, 2: 0.6}
    updates = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    found = aggregate(
        "power_of_choice",
        torch.zeros(2),
        updates,
        clients=chosen.clients,
        reports={"samples": torch.tensor([10.0, 30.0])},
    )
    torch.testing.assert_close(found.direction, torch.tensor([0.0, 0.5]))


def test_ranks_of_candidates_are_not_ranks_of_all_clients():
    """Candidates 1 and 2 of three clients: client 0, which nobody asked, cannot be chosen."""
    there = replace(turnout(places=1), candidates=(1, 2), reports={"loss": torch.tensor([0.3, 0.6])})
    assert list(selected("power_of_choice", there)[0].clients) == [2]


def test_one_candidate_per_place_is_the_draw_by_samples():
    for r in range(20):
        there = turnout(range(6), 3, round=r)
        candidates = find_candidates(parse("power_of_choice(candidates=3)"), there, Memory())
        assert candidates == list(selected("select_by_samples", there)[0].clients)


def test_ties_are_broken_by_the_seed_and_not_by_the_order():
    often = Counter()
    for r in range(300):
        there = turnout(range(4), 1, round=r, loss=[0.5, 0.5 + 1e-9, 0.5, 0.1])
        often.update(selected("power_of_choice", there)[0].clients)
    assert often[3] == 0
    assert all(60 < often[c] < 140 for c in (0, 1, 2)), often


def test_a_candidate_keeps_its_value_when_clients_are_renumbered():
    losses = [0.2, 0.9, 0.5, 0.7]
    chosen = selected("power_of_choice", turnout(range(4), loss=losses))[0].clients
    assert {losses[c] for c in chosen} == {0.9, 0.7}
    back = selected("power_of_choice", turnout(range(4), loss=losses[::-1]))[0].clients
    assert {losses[::-1][c] for c in back} == {0.9, 0.7}


def test_remembered_losses_try_everyone_once_and_ask_nothing():
    method = parse("power_of_choice(candidates=4, losses='remembered')")
    assert find_candidates(method, turnout(range(4)), Memory()) == []
    result = quiet(method, blobs(), participation=0.25, rounds=6)
    taken = [record.clients[0] for record in result.rounds]
    assert sorted(taken[:4]) == [0, 1, 2, 3]
    kept = result.server.memory.parts["select.power_of_choice"]["loss"]
    before = quiet(method, blobs(), participation=0.25, rounds=5).server.memory.parts["select.power_of_choice"]["loss"]
    assert taken[5] == max(before, key=lambda c: float(before[c]))
    assert set(kept) == {0, 1, 2, 3}


def test_candidates_are_asked_once_and_do_not_report_again():
    method = parse("power_of_choice")
    assert [name for report in method.list_reports("select") for name in report.gives] == ["loss"]
    assert [name for report in method.list_reports("train") for name in report.gives] == ["samples"]
    both = parse("qffl + power_of_choice")
    assert "loss" in [name for report in both.list_reports("train") for name in report.gives]


def test_too_few_candidates_are_refused_before_the_run():
    with pytest.raises(EquipoiseError, match=r"each of the round's 2 places. Found candidates=1: take at least 2"):
        quiet("power_of_choice(candidates=1)", blobs(), participation=0.5)


def test_a_selection_with_nothing_to_choose_says_so():
    with pytest.warns(EquipoiseWarning, match="in_turn: all clients take part in every round. Set a participation"):
        run("select_in_turn", blobs(), rounds=1)
    assert quiet("select_in_turn", blobs(), rounds=1, participation=0.5).warnings == ()


# --------------------------------------------------------------------------- the others
def test_chances_are_proportional_to_samples():
    often = Counter()
    for r in range(3000):
        often.update(draw_by_samples(turnout(range(3), 1, round=r), 1))
    for c, share in enumerate((1 / 6, 2 / 6, 3 / 6)):
        assert often[c] / 3000 == pytest.approx(share, abs=0.03)


def test_the_worst_take_their_quota():
    rows = Memory(parts={"select.worst_first": {"loss": _rows({0: 0.1, 1: 0.2, 2: 0.9, 3: 0.3, 4: 0.8, 5: 0.1})}})
    for r in range(10):
        chosen = selected("select_worst(quota=0.5)", turnout(range(6), 4, round=r), rows)[0].clients
        assert {2, 4} <= set(chosen)
        assert len(chosen) == 4
    assert list(selected("select_worst(quota=1.0)", turnout(range(6), 2), rows)[0].clients) == [2, 4]
    unknown = Memory(parts={"select.worst_first": {"loss": _rows({0: 0.9, 1: 0.8})}})
    assert list(selected("select_worst(quota=1.0)", turnout(range(3), 1), unknown)[0].clients) == [2]


def _rows(values):
    from equipoise.types import PerClient

    return PerClient({c: torch.tensor(v, dtype=torch.float64) for c, v in values.items()})


def test_without_a_quota_the_worst_are_drawn_uniformly():
    plain, none = (quiet(text, blobs(), participation=0.5, rounds=4) for text in ("fedavg", "select_worst(quota=0)"))
    assert [r.clients for r in plain.rounds] == [r.clients for r in none.rounds]
    assert torch.equal(plain.server.theta, none.server.theta)


def test_the_gap_decides_and_not_the_loss():
    result = quiet("select_worst(by='gap', quota=1.0)", blobs(), participation=0.25, rounds=5)
    gaps = result.server.memory.parts["select.worst_first"]["gap"]
    assert sorted(c for record in result.rounds[:4] for c in record.clients) == [0, 1, 2, 3]
    assert len(gaps) == 4


def test_hours_of_the_day():
    text = "select_by_hours(opens=(8, 9, 22), length=8, per_day=24)"
    at = lambda hour: list(selected(text, turnout(round=hour, places=3))[0].clients)  # noqa: E731
    assert [at(8), at(9), at(15), at(16), at(23), at(24 + 5)] == [[0], [0, 1], [0, 1], [1], [2], [2]]
    chosen, _ = selected(text, turnout(round=6, places=3))  # nobody is there: it waits for the first to come
    assert list(chosen.clients) == [0]
    assert chosen.why[2] == "away at 08:00: it is there from 22:00 to 06:00"
    assert at(0) == [2]


def test_hours_that_no_run_can_have():
    with pytest.raises(EquipoiseError, match=r"one hour in `opens` for each of the 4 clients. Found 2."):
        quiet("select_by_hours(opens=(1, 2))", blobs())
    for text in ("select_by_hours(opens=(24,))", "select_by_hours(length=0)", "select_by_hours(per_day=0)"):
        with pytest.raises(EquipoiseError, match="must be"):
            parse(text)
    with pytest.raises(EquipoiseError, match="`quota` must be from 0 to 1"):
        parse("select_worst(quota=2)")
    with pytest.raises(EquipoiseError, match="`candidates` must be at least 1"):
        parse("power_of_choice(candidates=0)")


def test_everyone_has_its_turn():
    result = quiet("select_in_turn", blobs((9, 8, 7, 6, 9)), participation=0.4, rounds=5)
    assert [r.clients for r in result.rounds] == [(0, 1), (2, 3), (0, 4), (1, 2), (3, 4)]
    memory = Memory(parts={"select.in_turn": {"turn": torch.tensor(1)}})
    chosen, after = selected("select_in_turn", turnout((0, 2, 3)), memory)  # client 1 is away
    assert (list(chosen.clients), int(after.parts["select.in_turn"]["turn"])) == ([2, 3], 4)


# --------------------------------------------------------------------------- a role like the others
def test_a_sum_keeps_the_explicit_selection():
    method = parse("fedheal + power_of_choice(candidates=6)")
    assert method.select.candidates == 6
    assert method.weigh == parse("fedheal").weigh
    assert parse("power_of_choice(candidates=6) + fedheal").select == method.select
    assert parse(str(method)) == method
    assert hash(parse(str(method))) == hash(method)
    assert pickle.loads(pickle.dumps(method)) == method
    assert "select=InTurn(shuffled=False)" in str(replace(method, select=parse("select_in_turn").select))
    with pytest.raises(EquipoiseError, match=r"`select_in_turn` and `select_worst` both set `select`"):
        parse("select_in_turn + select_worst")
    assert (parse("select_in_turn") + parse("select_in_turn")).select == parse("select_in_turn").select


def test_what_a_selection_asks_for_must_be_given():
    with pytest.raises(EquipoiseError, match=r"`power_of_choice` \(select\) needs the report `loss`"):
        Method(select=parse("power_of_choice").select)
    with pytest.raises(EquipoiseError, match="`select` takes parts that are a Select"):
        Method(select=parse("fedavg").weigh)


def test_a_text_is_not_taken_for_names():
    @dataclass(frozen=True)
    class Careless(WidestGap):
        asks = "gap"

    with pytest.raises(EquipoiseError, match=r"`careless`: asks is a tuple of names. Write asks = \('gap',\)"):
        Method(select=Careless(), reports=(LossGap(split="train"),))


def test_what_candidates_reveal():
    assert "loss" in list_revealed(parse("power_of_choice")).reports
    assert list_revealed(parse("power_of_choice(losses='remembered')")).kept == ("its last training loss",)
    assert "`loss` each by itself" in find_obstacle(parse("power_of_choice"), "secure-aggregation")
    assert find_obstacle(parse("select_in_turn"), "secure-aggregation") is None


@dataclass(frozen=True)
class Broken(Select):
    how: str

    def __call__(self, turnout, state):
        if self.how == "reads":
            turnout.reports["gap"]
        if self.how == "type":
            return [0]
        chosen = {"many": turnout.available, "none": [], "twice": [0, 0], "strange": [9], "changed": [0]}[self.how]
        return Selected(chosen, {"x": torch.zeros(turnout.round)} if self.how == "changed" else None)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("many", r"`broken` \(select\) gives 4 clients for the 2 places"),
        ("none", r"must give clients, each of them once. Found \[\]"),
        ("twice", r"each of them once. Found \[0, 0\]"),
        ("strange", r"gives the clients \[9\], which are not in turnout.available"),
        ("type", r"must return a Selected. Found a list"),
        ("reads", r'candidates do not make: it must say asks = \("gap",\)'),
        ("changed", "must remember tensors of one shape"),
    ],
)
def test_a_selection_that_breaks_its_contract_is_named(how, message):
    with pytest.raises(EquipoiseError, match=message):
        quiet(Method(select=Broken(how)), blobs(), participation=0.5)


# --------------------------------------------------------------------------- runs, records, checkpoints
@pytest.mark.parametrize("text", SELECTIONS)
def test_a_run_that_goes_on_selects_as_if_it_had_not_stopped(text, tmp_path):
    options = {"participation": 0.5, "rounds": 5}
    whole = quiet(text, blobs(), **options)
    with pytest.raises(Stop):
        quiet(text, blobs(), checkpoint=Checkpoints(tmp_path), on_round=stop_after(2), **options)
    again = quiet(text, blobs(), checkpoint=Checkpoints(tmp_path, resume=True), **options)
    assert [r.selection for r in again.rounds] == [r.selection for r in whole.rounds]
    assert torch.equal(again.server.theta, whole.server.theta)


def test_all_runners_select_the_same(tmp_path):
    for text in ("fedheal + power_of_choice(candidates=3)", "power_of_choice(losses='remembered')"):
        results = [
            quiet(text, blobs(), participation=0.5, rounds=3, runner=runner)
            for runner in ("inline", "vectorised", "processes")
        ]
        for other in results[1:]:
            assert [r.clients for r in other.rounds] == [r.clients for r in results[0].rounds]
            torch.testing.assert_close(other.server.theta, results[0].server.theta, rtol=1e-4, atol=1e-5)


def test_the_folder_tells_who_was_asked_and_why_not(tmp_path):
    result = quiet("power_of_choice(candidates=3)", blobs(), participation=0.25, rounds=3)
    table = read(save(result, tmp_path)).selection
    first = table.filter(pc.field("round") == 1).to_pylist()
    states = Counter(row["status"] for row in first)
    assert states == {"asked": 1, "candidate": 2, "not asked": 1}
    assert [row["client"] for row in first if row["status"] == "not asked"] == [""]
    asked = next(row for row in first if row["status"] == "asked")
    assert (asked["answered"], asked["why"]) == (True, "")
    assert asked["value"] == max(row["value"] for row in first if row["value"] is not None)
    assert "not among the 1 largest" in next(row["why"] for row in first if row["status"] == "candidate")


def test_a_run_in_which_all_take_part_has_no_table_of_selection(tmp_path):
    place = save(quiet("fedavg", blobs(), rounds=1), tmp_path)
    assert not (place / "selection.parquet").exists()
    assert read(place).selection.num_rows == 0


def test_candidates_without_a_finite_loss_end_a_run_that_diverged():
    with pytest.raises(EquipoiseError, match="diverged"):
        quiet("power_of_choice(candidates=4)", blobs(), participation=0.5, rounds=4, training=_wild())


def _wild():
    return replace(blobs().protocol.training, lr=1e30)


def test_a_guard_clips_what_candidates_report():
    result = quiet("power_of_choice(candidates=4)", blobs(), participation=0.5, rounds=2, guard=Guard(clip=1.0))
    assert any(text.startswith("guard: client") for text in result.warnings), result.warnings


def test_many_reasons_are_counted_and_not_listed():
    from equipoise.engine.selection import _describe

    many = LISTED + 1
    chosen = Selected([0], why=dict.fromkeys(range(1, many + 1), "away"), others="not drawn")
    found = _describe(chosen, (0,), (), turnout(range(many + 5), 1))
    assert (found.why, found.others) == ({}, f"away ({many} clients); not drawn")


def test_a_selection_of_ones_own_by_gap():
    method = Method(select=WidestGap(), reports=(LossGap(split="train", epochs=5),)) + parse("fedheal")
    result = quiet(method, blobs(), participation=0.5, rounds=3)
    for record in result.rounds:
        shown = record.selection.values
        assert set(record.clients) == set(sorted(shown, key=shown.__getitem__)[-2:])
    assert set(result.states) == {0, 1, 2, 3}  # the optimum of a candidate is found once, whether it was chosen or not


def test_candidates_start_once():
    """What a candidate found before its first round is kept, although it was not chosen."""
    calls = []

    @dataclass(frozen=True)
    class Counted(LossGap):
        def start(self, beginning):
            calls.extend(beginning.clients)
            return super().start(beginning)

    method = Method(select=WidestGap(), reports=(Counted(split="train", epochs=2),))
    quiet(method, blobs(), participation=0.25, rounds=4, runner="inline")
    assert sorted(calls) == [0, 1, 2, 3]


def test_nothing_is_asked_of_candidates_if_all_have_a_place():
    assert find_candidates(parse("power_of_choice"), turnout(places=3), Memory()) == []
