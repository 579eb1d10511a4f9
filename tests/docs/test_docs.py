"""The documentation tells the truth: its code blocks run, its commands exist, its pages are complete."""

import importlib
import json
import re
import runpy
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from equipoise import EquipoiseWarning, aggregate, run
from equipoise.grammar import split_list
from equipoise.method import METHODS, ROLES
from equipoise.methods import parse
from equipoise.schedules import SCHEDULES
from kit import blobs
from kit.rows import IN_PROCESS

ROOT = Path(__file__).parents[2]
HERE = [*IN_PROCESS, "processes"]  # the runners that need no `torchrun`
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known, schedules = set(METHODS), set(SCHEDULES)
    names = {"__name__": "page"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EquipoiseWarning)
            for block in blocks(page, "python"):
                exec(compile(block, str(page), "exec"), names)
    finally:
        for name in set(METHODS) - known:
            del METHODS[name]
        for name in set(SCHEDULES) - schedules:
            del SCHEDULES[name]


def test_the_example_of_a_new_method_runs_through_every_runner(monkeypatch, capsys):
    path = ROOT / "examples" / "new_method.py"
    source = path.read_text()
    assert len(source.splitlines()) <= 30
    assert source.split('"""\n\n', 1)[1] in (ROOT / "docs" / "new_method.md").read_text(), "page and example differ"
    try:
        monkeypatch.syspath_prepend(path.parent)
        importlib.import_module("new_method")  # registers it, under a name that worker processes find, too
        for participation in (1.0, 0.5):
            thetas = [
                run("fedprox + by_loss", blobs(), runner=runner, participation=participation).server.theta
                for runner in HERE
            ]
            for theta in thetas[1:]:
                torch.testing.assert_close(theta, thetas[0], rtol=1e-4, atol=1e-5)
        loss = torch.tensor([0.3, 0.9, 0.1, 0.5])
        reports = {"loss": loss, "samples": torch.tensor([10.0, 10.0, 30.0, 10.0])}
        found = aggregate(parse("by_loss"), torch.zeros(1), torch.ones(4, 1), clients=range(4), reports=reports)
        torch.testing.assert_close(found.weights, torch.tensor([3.0, 9.0, 3.0, 5.0]) / 20)
        plain = run("by_loss(power=0)", blobs()).server.theta
        torch.testing.assert_close(plain, run("fedavg", blobs()).server.theta)
        monkeypatch.setattr("equipoise.compare", lambda methods, *_, **__: methods)
        runpy.run_path(str(path), run_name="__main__")
        assert "by_loss(power=2)" in capsys.readouterr().out
    finally:
        METHODS.pop("by_loss", None)


def test_each_role_has_an_example_on_the_page():
    page = "\n".join(blocks(ROOT / "docs" / "new_method.md", "python"))  # which `test_code_blocks_run` runs
    for role in ("Select", "Wrap", "Term", "Report", "Shape", "Weigh", "Merge", "Step", "Share"):
        assert re.search(rf"class \w+\(\s*{role}\b", page), role
    assert len(ROLES) == 9


@pytest.fixture
def own_pieces(monkeypatch):
    """`examples/own_pieces.py`, imported under a name that worker processes find, too."""
    path = ROOT / "examples" / "own_pieces.py"
    monkeypatch.syspath_prepend(path.parent)
    sys.modules.pop("own_pieces", None)
    importlib.import_module("own_pieces")
    yield path.read_text()
    for name in ("widest_gap", "nesterov", "qffl_shares"):
        METHODS.pop(name, None)
    SCHEDULES.pop("gentle", None)


def test_the_examples_of_pieces_are_short_and_stand_on_the_page(own_pieces):
    page = (ROOT / "docs" / "new_method.md").read_text()
    pieces = own_pieces.split("GlobalLoss\n\n\n", 1)[1].split("\n\n\n")
    select, make_select, step, make_step, schedule, weigh, make_weigh = (piece.strip() for piece in pieces)
    with_names = ((select, make_select), (step, make_step), (weigh, make_weigh))
    for text in (schedule, *("\n\n\n".join(pair) for pair in with_names)):
        assert text in page, "page and example differ"
        assert len(text.splitlines()) < 15


@pytest.mark.usefixtures("own_pieces")
@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("fedheal + nesterov(beta=0.5)", "constant"),
        ("fedheal", "gentle(warm=2)"),
        ("fedheal + widest_gap(epochs=3)", "constant"),
        ("fedheal(fael=False) + qffl_shares(q=2)", "constant"),
        ("fedheal(fael=False) + qffl_shares(q=2) + nesterov(beta=0.5)", "gentle(rounds=3, warm=2) + cosine"),
    ],
)
def test_pieces_of_ones_own_with_fedheal_everywhere(text, schedule):
    """The same numbers in every runner and over Flower."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'equipoise[flower]'")
    from equipoise.flower import Plan, client_app, federate
    from kit.flower import LoopGrid

    data = blobs()
    training = replace(
        data.protocol.training, lr=0.02, schedule=schedule
    )  # real sites refuse updates that grow at a large rate
    participation = 0.5 if "widest_gap" in text else 1.0
    options = {"rounds": 4, "training": training, "model": "linear", "participation": participation}
    results = [run(text, data, runner=runner, **options) for runner in HERE]
    plan = Plan(
        method=text,
        sites=4,
        rounds=4,
        model="linear",
        participation=participation,
        training={"lr": 0.02, "schedule": schedule},
    )
    grid = LoopGrid(client_app(plan, data=data), {k + 1: {"partition-id": k} for k in range(4)})
    real = federate(grid, plan)
    inline = results[HERE.index("inline")]
    assert torch.equal(real.server.theta, inline.server.theta)
    for result in (*results, real):
        torch.testing.assert_close(result.server.theta, inline.server.theta, rtol=1e-5, atol=1e-6)
        assert [r.lr for r in result.rounds] == training.rate.tabulate(4)
        for record, wanted in zip(result.rounds, inline.rounds, strict=True):
            assert record.clients == wanted.clients
            assert record.weights == pytest.approx(wanted.weights, rel=1e-5)
    same = {**options, "training": replace(training, schedule="constant")}
    plain = run("fedheal", data, runner="inline", **same)
    assert not torch.allclose(plain.server.theta, inline.server.theta, atol=1e-4)


@pytest.mark.usefixtures("own_pieces")
def test_the_step_of_the_example_is_that_of_the_library():
    own, ours = (
        run(f"fedheal + {text}", blobs(), runner="inline").server.theta
        for text in ("nesterov(beta=0.5)", "fedavgm(beta=0.5, nesterov=True)")
    )
    torch.testing.assert_close(own, ours, rtol=1e-6, atol=1e-7)


def test_the_quick_start_is_short():
    first = blocks(ROOT / "README.md", "python")[0]
    assert len(first.strip().splitlines()) <= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" not in target:
            place = page.parent / target if target else page
            assert place.exists(), target
            named = not anchor or anchor.startswith("equipoise.")  # the reference has an anchor per public name
            assert named or anchor in list_anchors(place), f"{target}#{anchor}"


def list_anchors(page):
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    heads = [
        re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", head).strip().lower()
        for head in re.findall(r"^#+ (.*)", text, re.M)
    ]
    return [re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads]


def test_commands_name_real_methods_and_options():
    from typer.main import get_command

    from equipoise.cli import app

    commands = get_command(app).commands
    for page in PAGES:
        for block in blocks(page, "console"):
            for line in block.splitlines():
                words = line.split("#")[0].split()
                if words[:1] != ["equipoise"]:
                    continue
                own = "--plugin" in words  # then there are methods that we do not know
                command = commands[words[1]]
                if hasattr(command, "commands"):  # a group, such as `deploy`
                    command = command.commands[words[2]]
                options = {name for parameter in command.params for name in parameter.opts}
                assert {word for word in words if word.startswith("--")} <= options, line
                for text in () if own else re.findall(r'--methods? "([^"]+)"', line):
                    for method in split_list(text):
                        parse(method)


def test_the_front_page_names_every_method():
    page = (ROOT / "README.md").read_text()
    assert [name for name in METHODS if f"`{name}`" not in page] == []


def test_every_method_has_a_page():
    for name in METHODS:
        assert (ROOT / "docs" / "methods" / f"{name}.md").exists(), f"docs/methods/{name}.md is missing"


def test_the_pages_of_methods_agree_with_the_code():
    from make_pages import generated, page_of

    for name in METHODS:
        assert generated(name) in page_of(name).read_text(), (
            f"run `python docs/make_pages.py`: {name}.md is out of date"
        )


def test_the_table_of_what_methods_reveal_agrees_with_the_code():
    from make_pages import privacy_table

    assert privacy_table() in (ROOT / "docs" / "privacy.md").read_text(), "run `python docs/make_pages.py`"


WITHOUT_PICTURE = {"fedavg", "fedsgd", "f2dc", "f2dc_modules", "local_only", "centralised"}


def test_every_method_has_a_picture_or_stands_in_the_list():
    from make_pictures import FOLDER, PICTURES

    assert set(METHODS) == set(PICTURES) | WITHOUT_PICTURE
    for name in PICTURES:
        assert (FOLDER / f"{name}.svg").exists(), "run `python docs/make_pictures.py`"
        assert f"(../pictures/methods/{name}.svg)" in (ROOT / "docs" / "methods" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", ["afl", "fdse", "fedfv", "fedmgda_plus", "fedprox", "fpl", "scaffold", "term"])
def test_pictures_can_be_drawn(name, tmp_path, monkeypatch):
    import make_pictures

    monkeypatch.setattr(make_pictures, "FOLDER", tmp_path)
    make_pictures.save(name)
    assert (tmp_path / f"{name}.svg").read_text().count("<path") > 10


def test_the_list_of_methods_is_up_to_date(monkeypatch, tmp_path):
    import make_pages

    before = (ROOT / "docs" / "methods" / "README.md").read_text()
    monkeypatch.setattr(make_pages, "FOLDER", tmp_path)
    make_pages.index()
    assert (tmp_path / "README.md").read_text() == before, "run `python docs/make_pages.py`"


def test_pages_are_finished():
    for name in METHODS:
        text = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
        own = re.sub(r"<!-- from the code -->.*<!-- end -->", "", text, flags=re.DOTALL)
        assert len(own) > 200, f"docs/methods/{name}.md says nothing beyond what the code says"
        assert "$" in own or name in ("local_only", "centralised", "f2dc_modules"), f"{name}.md has no formula"


@pytest.mark.parametrize(("module", "page"), [("equipoise", "equipoise.md"), ("equipoise.method", "method.md")])
def test_the_reference_has_every_public_name(module, page):
    from site_hooks import REFERENCE, find_unlisted

    assert REFERENCE[module] == page
    assert find_unlisted(importlib.import_module(module), ROOT / "docs" / "reference" / page) == []


def test_cards_and_results_agree_with_the_stored_results():
    import make_results

    for place, text in make_results.write_all().items():
        assert place.read_text() == text, f"{place.name} is not up to date: run `python docs/make_results.py`"


def test_a_result_with_fewer_values_does_not_take_the_place_of_a_fuller_one(tmp_path):
    import make_results

    new, measured = tmp_path / "new", tmp_path / "measured"
    new.mkdir()
    fuller = {"cells": {"a": {"AVG": {"0": 1.0, "1": 2.0}}}}
    for content, taken in ((fuller, fuller), ({"cells": {"a": {"AVG": {"0": 5.0}}}}, fuller), ({"cells": {}}, fuller)):
        (new / "x-cpu.json").write_text(json.dumps(content))
        left = make_results.take(new, measured)
        assert json.loads((measured / "x-cpu.json").read_text()) == taken
        assert bool(left) == (content is not fuller)
