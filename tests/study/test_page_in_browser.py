"""The page in a real browser: sorting, picking, hovering, choosing, printing, and a narrow screen."""

from contextlib import contextmanager

import numpy as np
import pytest

from equipoise.runs.reading import read_all
from equipoise.study.report.figures import group_studies
from equipoise.study.report.page import build_page
from kit.browser import Browser
from kit.made_runs import made

pytestmark = pytest.mark.slow
NAMES = ["a", "b", "c", "d"]


@contextmanager
def open_page(folder, place, **screen):
    """The page of some runs in Chromium, which must find no mistake in it."""
    path = place / "report.html"
    path.write_text(build_page(group_studies(read_all([folder])[0])))
    with Browser(place / "profile") as tab:
        tab.resize(**screen)
        tab.open(path.as_uri())
        yield tab
        assert tab.said == []


def ask(tab, script):
    """Run a script on the page that fills `found`, and return that."""
    return tab.ask(f"(() => {{const found = {{}}; {script}; return found}})()")


def look(folder, script, place, **screen):
    with open_page(folder, place, **screen) as tab:
        return ask(tab, script)


@pytest.fixture
def runs(tmp_path):
    """FedAvg, a fair method, a levelling one, one that changes nothing, and local-only training; d is the worst."""
    start = np.array([0.95, 0.93, 0.90, 0.60])
    for seed in range(3):
        for method, last in (
            ("fedavg", start), ("qffl", start + np.array([0, 0, 0, 0.1])), ("afl", np.full(4, 0.6)), ("term", start),
            ("local_only", start - 0.1),
        ):  # fmt: skip
            curve = np.linspace(last - 0.3, last, 4) + 0.01 * (seed - 1)
            made(tmp_path / "runs", method, curve, seed=seed, names=NAMES, domains=["x", "x", "y", "y"])
    return tmp_path / "runs"


def test_the_page_asks_for_nothing_and_makes_no_mistake(runs, tmp_path):
    script = """
    found.requests = performance.getEntriesByType("resource").length;
    found.images = [...document.querySelectorAll("svg[role=img]")].map((one) => one.getAttribute("aria-label"));
    found.links = [...document.querySelectorAll("nav a")].filter((a) => !document.querySelector(a.getAttribute("href"))).length;
    const all = [...document.querySelectorAll("[id]")].map((one) => one.id);
    found.twice = all.length - new Set(all).size;
    document.getElementById("theme").click(); found.theme = document.documentElement.className"""
    found = look(runs, script, tmp_path)
    assert found["requests"] == found["links"] == found["twice"] == 0
    assert "d 60.0 to 70.0" in " ".join(found["images"])
    assert "fedavg: 54.5 at 1 to 84.5 at 4" in " ".join(found["images"])
    assert found["theme"] in ("dark", "light")


def test_tables_are_sorted_by_the_mouse_and_by_keys(runs, tmp_path):
    heads = "const heads = document.querySelector('table').tHead.rows[0].cells"
    state = f"""{heads}; found.sort = [...heads].map((head) => head.getAttribute('aria-sort'));
    found.first = document.querySelector('table').tBodies[0].rows[0].cells[0].textContent"""
    with open_page(runs, tmp_path) as tab:
        assert set(ask(tab, state)["sort"]) == {"none"}
        tab.walk_to("document.activeElement.textContent === 'MIN'")  # no mouse is needed to come there
        ring = tab.ask("getComputedStyle(document.activeElement).outlineStyle")
        assert ring not in ("", "none")  # and the reader sees where the keys lead
        for key, first, way in (("Enter", "qffl", "descending"), ("Space", "local_only", "ascending")):
            tab.press(key)
            found = ask(tab, state)
            assert found["first"] == first
            assert found["sort"][3] == way
            assert found["sort"].count("none") == len(found["sort"]) - 1
        ask(tab, f"{heads}; heads[1].querySelector('button').click()")
        assert ask(tab, state)["sort"][1:4] == ["descending", "none", "none"]


def test_lines_are_walked_by_keys(runs, tmp_path):
    with open_page(runs, tmp_path) as tab:
        tab.walk_to("document.activeElement.matches('#convergence svg.plot')")
        told = "document.getElementById('tip').textContent"
        for key, text in (
            ("ArrowRight", "fedavg, round 1: AVG 54.5 %"),
            ("ArrowRight", "fedavg, round 2: AVG 64.5 %"),
            ("ArrowDown", "afl, round 2: AVG 40.0 %"),
            ("ArrowLeft", "afl, round 1: AVG 30.0 %"),
        ):
            tab.press(key)
            assert tab.ask(told) == text
        tab.press("Escape")
        assert tab.ask("document.getElementById('tip').style.display") == "none"


def test_a_picked_client_is_marked_in_every_plot_of_clients(runs, tmp_path):
    script = """
    const section = document.querySelector("section"), choice = section.querySelector(".pick select");
    const shows = (figure) => figure.querySelector(".picked, .rug");
    const marked = () => [...section.querySelectorAll("figure")].filter(shows).map((figure) => figure.id);
    const title = () => document.querySelector("#convergence .panel:last-child .title").textContent;
    const lines = () => document.querySelectorAll("#convergence .only:not(.away)").length;
    found.before = [marked(), title(), lines()];
    choice.value = "b"; choice.dispatchEvent(new Event("change"));
    found.after = [marked(), title(), lines()]; found.told = section.querySelector(".pick output").textContent;
    found.rows = [...document.querySelectorAll("#arrows .panel:not([hidden]) text.picked")].map((t) => t.textContent);
    found.rugs = [...document.querySelectorAll("#distribution .rug")].map((line) => line.dataset.note);
    document.querySelector("#holdings text[data-row='2']").dispatchEvent(new MouseEvent("click", {bubbles: true}));
    found.clicked = choice.value;
    document.querySelector("#holdings text[data-row='2']").dispatchEvent(new MouseEvent("click", {bubbles: true}));
    found.gone = [marked(), choice.value]"""
    found = look(runs, script, tmp_path)
    assert found["before"] == [[], "d", 5]
    figures = ["arrows", "domains", "distribution", "losses", "gaps", "optima", "weights", "holdings"]
    assert found["after"] == [figures, "b", 5]
    assert found["told"] == "fedavg 93 %, afl 60 %, qffl 93 %, term 93 %, local_only 83 %"
    assert found["rows"] == ["b"]
    assert "b, afl: 60.0" in found["rugs"]
    assert found["clicked"] == "c"
    assert found["gone"] == [[], ""]


def test_hovering_a_line_tells_round_method_and_value(runs, tmp_path):
    script = """
    const tip = document.getElementById("tip"), panel = document.querySelectorAll("#convergence .panel")[2];
    const line = panel.querySelector(".s[data-s=qffl] polyline"), plot = panel.querySelector(".plot");
    const spot = line.points.getItem(2).matrixTransform(line.getScreenCTM());
    const at = {bubbles: true, clientX: spot.x + 1, clientY: spot.y + 1};
    plot.dispatchEvent(new PointerEvent("pointermove", at)); found.tip = [tip.textContent, tip.style.display];
    found.dots = document.querySelectorAll(".here").length;
    plot.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: spot.x, clientY: spot.y - 200}));
    found.away = tip.style.display;
    const row = document.querySelector("#arrows .panel:not([hidden]) [data-note]:not(text)");
    row.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: 5, clientY: 5})); found.arrow = tip.textContent;
    const named = document.querySelector("#domains .s[data-s=qffl] polyline");
    const place = named.points.getItem(1).matrixTransform(named.getScreenCTM());
    named.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: place.x, clientY: place.y}));
    found.named = tip.textContent"""
    found = look(runs, script, tmp_path)
    assert found["tip"] == ["qffl, round 3: MIN 60.0 %", "block"]
    assert found["dots"] == 1
    assert found["away"] == "none"
    assert found["arrow"].startswith("d: 60.0 → 70.0 %")
    assert found["named"] == "qffl, y: test accuracy 80.0 %"


def test_legends_choices_and_paper(runs, tmp_path):
    script = """
    const figure = document.querySelector("#convergence"), key = figure.querySelector("button.key");
    const mine = [...figure.querySelectorAll(".s")].filter((g) => g.dataset.s === key.dataset.s);
    const marks = () => mine.filter((g) => g.classList.contains("off")).length;
    key.click(); found.hidden = marks() === mine.length && marks(); key.click(); found.shown = marks() === 0;
    const choice = document.querySelector("#arrows select"), panels = [...document.querySelectorAll("#arrows .panel")];
    found.opened = choice.value; found.open = panels.filter((p) => !p.hidden).map((p) => p.dataset.panel);
    choice.selectedIndex = 0; choice.dispatchEvent(new Event("change")); found.chosen = panels.map((p) => p.hidden);
    found.swatch = getComputedStyle(key.querySelector("i")).borderLeftColor;
    const shut = () => document.querySelectorAll("details:not([open])").length, before = shut();
    dispatchEvent(new Event("beforeprint")); found.printed = before > 0 && shut() === 0;
    dispatchEvent(new Event("afterprint")); found.restored = shut() === before"""
    found = look(runs, script, tmp_path)
    assert found["hidden"] == 7  # AVG, STD and MIN, and the lines of four clients
    assert found["shown"]
    assert found["opened"] == "qffl"  # the method that the verdict names, though it is not the first
    assert found["open"] == ["qffl"]
    assert found["chosen"] == [False, True, True]
    assert found["swatch"] == "rgb(0, 114, 178)"  # a border, which is printed; a background would not be
    assert found["printed"]  # on paper nothing can be opened
    assert found["restored"]


# Of all panels: text beyond what can be seen or scrolled to, small text, and names that are written over each other.
LEGIBLE = """
    found.width = innerWidth;
    const wide = (one) => one.getBoundingClientRect().right > innerWidth + 1;
    const parts = [...document.querySelectorAll("main > section > *, figure, .legend, figcaption, select, .panel")];
    found.spill = parts.filter(wide).map((part) => part.id || part.className || part.tagName);
    found.page = document.documentElement.scrollWidth <= innerWidth;
    document.querySelectorAll(".panel").forEach((panel) => { panel.hidden = false; });
    const texts = [...document.querySelectorAll("svg.plot text, p.title")].filter((t) => t.textContent);
    found.small = texts.filter((t) => parseFloat(getComputedStyle(t).fontSize) < 11).length;
    const name = (text) => text.closest("figure").id + ": " + text.textContent;
    found.cut = texts.filter((text) => {
      const panel = text.closest(".panel"), box = panel.getBoundingClientRect(), mine = text.getBoundingClientRect();
      return mine.left < box.left - 1 || mine.right > box.left + panel.scrollWidth + 1 || mine.bottom > box.bottom + 1;
    }).map(name);
    found.over = [];
    for (const plot of document.querySelectorAll("svg.plot")) {
      const level = [...plot.querySelectorAll("text:not([transform])")].map((text) => [text, text.getBoundingClientRect()]);
      level.forEach(([one, a], i) => level.slice(i + 1).forEach(([other, b]) => {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 3) found.over.push(name(one) + " / " + other.textContent);
      }));
      const leaning = [...plot.querySelectorAll("text[transform='rotate(-45)']")];
      const ends = leaning.map((one) => one.getBoundingClientRect().right);
      ends.slice(1).forEach((end, i) => { if (end - ends[i] < 17) found.over.push(name(leaning[i])); });
    }"""


@pytest.mark.parametrize("screen", [{"width": 390}, {"width": 794, "paper": True}], ids=["telephone", "paper"])
@pytest.mark.parametrize("count", [1, 12, 1000])
def test_every_plot_can_be_read_on_a_narrow_screen_and_on_paper(count, screen, tmp_path):
    draw = np.random.default_rng(0)
    long = [f"fedheal(tau=0.{k}) + moon(mu=1.0, tau=0.5)" for k in range(6)]
    for method in ("fedavg", "qffl", *(long if count == 12 else []), "local_only"):
        names = [f"a hospital with a long name {k}" for k in range(count)]
        made(tmp_path / "runs", method, draw.uniform(0.4, 1, (3, count)), names=names)
    found = look(tmp_path / "runs", LEGIBLE, tmp_path, **screen)
    assert found["width"] == screen["width"]
    assert found["spill"] == []
    assert found["page"]
    assert found["small"] == 0
    assert found["cut"] == []
    assert found["over"] == []


def test_paper_is_white_and_shows_all(runs, tmp_path):
    script = """
    const seen = (one) => getComputedStyle(one).display !== "none";
    found.ground = getComputedStyle(document.body).backgroundColor;
    found.panels = [...document.querySelectorAll(".panel")].every(seen);
    found.controls = [...document.querySelectorAll("header, .pick, .choose")].some(seen)"""
    found = look(runs, script, tmp_path, width=794, paper=True, dark=True)
    assert found == {"ground": "rgb(255, 255, 255)", "panels": True, "controls": False}
