"""A method is a value: combining, parsing, printing, refusing."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import EquipoiseError, Method, parse, register
from equipoise.grammar import parse_calls, split_list
from equipoise.method import METHODS, ROLES
from equipoise.method.registry import adapt_to_data, describe
from equipoise.methods import daa, eagle, f2dc, f2dc_modules, fedavg, fedfe, fedheal
from equipoise.parts.merges import MaskedMean
from equipoise.parts.weights import PowerOfLoss


@pytest.mark.parametrize("name", METHODS)
def test_text_and_value_are_the_same(name):
    method = parse(name)
    assert str(method) == name
    assert parse(str(method)) == method
    assert hash(method) == hash(parse(name))


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from(["paper", "released"]), st.booleans())
@settings(max_examples=50, deadline=None)
def test_any_parameters_parse_back(tau, beta, variant, fael):
    method = fedheal(tau=tau, beta=beta, variant=variant, fael=fael)
    assert parse(str(method)) == method


@given(
    st.lists(
        st.sampled_from(["fedavg", "f2dc_modules(layers=(0, -1))", "fedheal(fael=False)", "eagle"]),
        min_size=1,
        max_size=3,
        unique=True,
    )
)
@settings(max_examples=30, deadline=None)
def test_sums_parse_back(parts):
    method = parse(" + ".join(parts))
    assert parse(str(method)) == method


def test_a_sum_joins_chains_and_keeps_what_is_explicit():
    method = eagle() + f2dc_modules() + fedheal()
    assert [type(t).__name__ for t in method.terms] == ["ScaledLoss", "DecouplingLoss", "CalibrationLoss"]
    assert method.weigh == fedheal().weigh  # explicit beats EAGLE's plain uniform
    assert isinstance(method.merge, MaskedMean)
    assert str(method) == "eagle + f2dc_modules + fedheal"


def test_soft_choices_yield_in_either_order():
    assert (fedavg(weights="uniform") + daa()).weigh == (daa() + fedavg(weights="uniform")).weigh == daa().weigh
    assert (fedavg() + fedavg(weights="uniform")).weigh == fedavg(weights="uniform").weigh


def test_two_explicit_weightings_are_refused_by_name():
    with pytest.raises(
        EquipoiseError, match=r"`fedheal` and `daa\(a=2.0\)` both set `weigh`: DistanceWeigh.*DomainAware"
    ):
        fedheal() + daa(a=2.0)
    assert (daa() + daa()).weigh == daa().weigh  # the same one twice is one


def test_twins_with_different_parameters_are_refused():
    with pytest.raises(EquipoiseError, match="Two parts called `consistency_mask`"):
        fedheal(fael=False) + fedheal(tau=0.4, fael=False)


def test_what_a_part_needs_must_be_given():
    with pytest.raises(EquipoiseError, match=r"`masked_mean` \(merge\) needs a consistency mask: add `fedheal`"):
        Method(merge=MaskedMean())
    with pytest.raises(EquipoiseError, match=r"`power_of_loss` \(weigh\) needs the report `loss`"):
        Method(weigh=PowerOfLoss(1.0))


def test_different_demands_on_the_optimizer_are_refused():
    with pytest.raises(EquipoiseError, match=r"trains with momentum|trains with lr|both"):
        f2dc(variant="released") + parse("fedsgd") + Method(training=(("lr", 0.5),))


def test_methods_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        fedavg().weigh = None


def test_a_method_changed_by_hand_no_longer_claims_its_name():
    changed = dataclasses.replace(fedheal(), weigh=daa().weigh)
    assert str(changed).startswith("Method(")
    assert "DomainAware" in str(changed)
    assert describe(changed) == {}


def test_parameters_for_a_data_set():
    assert adapt_to_data(parse("fedequilibria"), "pacs").weigh.t == 0.8
    assert adapt_to_data(parse("fedequilibria(t=0.1)"), "pacs").weigh.t == 0.1  # what was given stays
    assert adapt_to_data(parse("fedheal"), "office-caltech").shape[0].tau == 0.4
    assert adapt_to_data(parse("fedheal"), "office-caltech cpu").shape[0].tau == 0.4  # of all its presets
    assert adapt_to_data(parse("f2dc"), "pacs cpu").terms[0].tau == 1.0  # of one preset
    assert adapt_to_data(parse("f2dc"), "pacs f2dc").terms[0].tau == 0.06
    assert str(adapt_to_data(parse("fedheal"), "unknown")) == "fedheal"
    assert adapt_to_data(parse("fedheal + f2dc_modules"), "scanners").wrap[0].hidden == 16


def test_every_parameter_is_described():
    assert describe(parse("fedheal(tau=0.2)"))["fedheal"]["tau"] == 0.2
    assert describe(parse("fedheal(tau=0.2)"))["fedheal"]["beta"] == 0.4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedheel", "Unknown method `fedheel`. Did you mean `fedheal`"),
        ("fedheal(tao=0.3)", "`fedheal` has no parameter `tao`. Did you mean `tau`"),
        ("fedheal(tau='a')", r"fedheal\(tau\) must be a number. Found 'a'"),
        ("fedheal(tau=2)", "`tau` must be between 0 and 1. Found tau=2.0"),
        ("fedheal(variant='papers')", r"must be one of 'paper', 'released'. Found 'papers'. Did you mean `paper`"),
        ("fedheal(0.3)", "by keyword"),
        ("fedheal(tau=x)", "Text needs quotes"),
        ("fedheal +", "Cannot read"),
        ("fedheal * daa", "Cannot read"),
        ("", "Cannot read"),
        ("fedheal(**{'tau': 1})", r"`\*\*` cannot be used"),
        ("fedfe(tau=1.5)", r"fedfe\(tau\) must be a whole number. Found 1.5"),
        ("fedfe(L=1.0, lr=1.0)", "give one of the two"),
        ("f2dc(layers=1)", r"f2dc\(layers\) must be"),
        ("f2dc(layers=())", "at least one stage"),
        ("fedheal(fphl=1)", "True or False"),
        ("__import__('os')", "by keyword"),
        ("(lambda: 0)()", "Cannot read"),
    ],
)
def test_mistakes_are_explained(text, message):
    with pytest.raises(EquipoiseError, match=message):
        parse(text)


ODD = {
    "a list in a set": "fedheal(tau={[1]})",
    "a table as a key": "fedheal(tau={{}: 1})",
    "400 digits": f"fedheal(tau={'9' * 400})",
    "400 digits of a whole number": f"fedlsa(width={'9' * 400})",
    "5000 digits": f"fedheal(tau={'9' * 5000})",
    "5000 digits, base 16": f"fedheal(tau=0x{'f' * 5000})",
    "a sum of 3000": " + ".join(["fedavg"] * 3000),
    "a sum of 3000 as a value": f"fedheal(tau=1{'+1' * 3000})",
    "3000 minuses": f"fedheal(tau={'-' * 3000}1)",
    "3000 calls": f"fedavg{'()' * 3000}",
    "3000 attributes": f"fedavg{'.a' * 3000}",
    "half a letter": "fedheal\ud800",
    "half a letter as a value": "fedheal(tau='\ud800')",
    "half a letter in a parameter": "fedheal(ta\ud800=1)",
    "half a letter, escaped": "fedheal(tau='\\ud800')",
    "a zero": "fedheal\0",
    "a zero as a value": "fedheal(tau='\\0')",
    "two lines": "fedavg\nfedheal",
    "deep brackets": "(" * 5000 + "fedavg" + ")" * 5000,
    "deep brackets as a value": f"fedheal(tau={'[' * 150}{']' * 150})",
    "open brackets": f"fedheal(tau={'[' * 5000}",
    "a long name": "x" * 200_000,
    "a power": "fedheal(tau=9**9**9**9)",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_texts_are_explained_in_one_short_line(text):
    with pytest.raises(EquipoiseError) as error:
        parse(text)
    said = str(error.value)
    assert said.isprintable()
    assert len(said.encode()) < 800


def test_positional_arguments_in_python():
    assert fedheal(0.2, 0.5) == fedheal(tau=0.2, beta=0.5)
    with pytest.raises(EquipoiseError, match="takes 1 parameters"):
        fedavg("samples", 3)


def test_a_parameter_given_twice_is_refused():
    with pytest.raises(EquipoiseError, match="`tau` twice"):
        fedheal(0.2, tau=0.3)
    with pytest.raises(EquipoiseError, match="twice"):
        parse("fedheal(tau=0.1, tau=0.2)")
    with pytest.raises(EquipoiseError, match="read from text"):
        parse(["fedavg"])
    with pytest.raises(EquipoiseError, match="a weight from the server: add `eagle`"):
        Method(terms=parse("eagle").terms)


def test_numbers_take_their_declared_type():
    assert parse("fedheal(tau=0)") == parse("fedheal(tau=0.0)")
    assert parse("fedfe(tau=1.0)").step == parse("fedfe(tau=1)").step


def test_registering_a_method_of_ones_own():
    @register(title="mine", reference="none")
    def mine_for_this_test(strength: float = 1.0) -> Method:
        return Method(weigh=daa(a=strength).weigh)

    try:
        assert parse("mine_for_this_test(strength=2)").weigh.a == 2.0
        assert str(mine_for_this_test(strength=2)) == "mine_for_this_test(strength=2.0)"
    finally:
        del METHODS["mine_for_this_test"]


def test_lists_and_calls():
    assert split_list("a(x=(1, 2)), b") == ["a(x=(1, 2))", "b"]
    assert split_list("") == []
    assert [str(c) for c in parse_calls("a(x=-1, y='t', z=None, w=(1, 2)) + b()")] == [
        "a(x=-1, y='t', z=None, w=(1, 2))",
        "b",
    ]


def test_every_part_knows_its_role():
    for name in METHODS:
        method = parse(name)
        for role in ROLES:
            parts = getattr(method, role)
            for part in parts if isinstance(parts, tuple) else (parts,):
                assert part.role == role
                assert dataclasses.is_dataclass(part)


def test_fedfe_without_conflicts_momentum_and_q_is_uniform_fedavg():
    import torch

    from equipoise import aggregate

    D = torch.rand(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # all products positive
    result = aggregate(
        fedfe(q=0, beta_init=0, lr=0.1), torch.zeros(9, dtype=torch.float64), D, clients=range(4),
        reports={"loss": torch.rand(4, dtype=torch.float64) + 0.1},
    )  # fmt: skip
    torch.testing.assert_close(result.theta, D.mean(0))


def test_what_looks_at_the_final_direction_stands_last_in_every_sum():
    for text in ("afl + scaffold(server_lr=0.25)", "scaffold(server_lr=0.25) + afl", "afl + feddyn", "feddyn + afl"):
        method = parse(text)
        assert type(method.step[-1]).__name__ == "MeanOfRounds", text
        assert len(method.step) == 2


def test_a_method_of_ones_own_does_not_take_the_name_of_another():
    def fedavg() -> Method:
        return Method()

    with pytest.raises(EquipoiseError, match="`fedavg` is a method of Equipoise"):
        register(title="mine", reference="none")(fedavg)
    assert METHODS["fedavg"].function.__module__ == "equipoise.methods.fedavg"
