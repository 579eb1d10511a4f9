"""The page in a real browser: sorting, picking, hovering, choosing, printing, and a narrow screen."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from equipoise.runs.reading import read_all
from equipoise.study.report.figures import group_studies
from equipoise.study.report.page import build_page
from kit.made_runs import made

pytestmark = pytest.mark.slow
NAMES = ["a", "b", "c", "d"]
WATCH = """<script>window.mistakes=[];addEventListener('error',(e)=>mistakes.push(e.message));
for(const k of ['error','warn'])console[k]=(...a)=>mistakes.push(a.join(' '))</script>"""


def open_page(folder, script, place, width=1200):
    """Open the page of some runs in Chromium, run a script that fills `found` in it, and return that."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    text = build_page(group_studies(read_all([folder])[0]))
    end = "document.body.setAttribute('data-found', JSON.stringify(found));"
    probe = f"<script>(async () => {{const found = {{}}; {script}; {end}}})();</script></body>"
    path = place / "report.html"
    path.write_text(text.replace("<head>", f"<head>{WATCH}").replace("</body>", probe))
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", f"--user-data-dir={place / 'profile'}",
            f"--window-size={width},900", "--virtual-time-budget=2000", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=280, check=True,
    )  # fmt: skip
    match = re.search(r'data-found="([^"]*)"', done.stdout)
    assert match, done.stderr[-500:]
    return json.loads(html.unescape(match[1]))


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
    found.errors = window.mistakes; found.requests = performance.getEntriesByType("resource").length;
    found.images = [...document.querySelectorAll("svg[role=img]")].map((one) => one.getAttribute("aria-label"));
    found.links = [...document.querySelectorAll("nav a")].filter((a) => !document.querySelector(a.getAttribute("href"))).length;
    const all = [...document.querySelectorAll("[id]")].map((one) => one.id);
    found.twice = all.length - new Set(all).size;
    document.getElementById("theme").click(); found.theme = document.documentElement.className"""
    found = open_page(runs, script, tmp_path)
    assert found["errors"] == []
    assert found["requests"] == found["links"] == found["twice"] == 0
    assert "d 60.0 to 70.0" in " ".join(found["images"])
    assert "fedavg: 54.5 at 1 to 84.5 at 4" in " ".join(found["images"])
    assert found["theme"] in ("dark", "light")


def test_tables_are_sorted_by_buttons(runs, tmp_path):
    script = """
    const table = document.querySelector("table"), head = table.tHead.rows[0].cells[3], button = head.querySelector("button");
    const first = () => table.tBodies[0].rows[0].cells[0].textContent;
    button.focus(); found.focused = document.activeElement === button; found.before = head.getAttribute("aria-sort");
    button.click(); found.highest = [first(), head.getAttribute("aria-sort")];
    button.click(); found.lowest = [first(), head.getAttribute("aria-sort")];
    table.tHead.rows[0].cells[1].querySelector("button").click(); found.after = head.getAttribute("aria-sort")"""
    found = open_page(runs, script, tmp_path)
    assert found["focused"]
    assert found["before"] == found["after"] == "none"
    assert found["highest"] == ["qffl", "descending"]
    assert found["lowest"] == ["local_only", "ascending"]


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
    found = open_page(runs, script, tmp_path)
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
    const key = (name) => plot.dispatchEvent(new KeyboardEvent("keydown", {bubbles: true, key: name}));
    key("ArrowRight"); found.first = tip.textContent; key("ArrowRight"); key("ArrowDown"); found.second = tip.textContent;
    key("Escape"); found.closed = tip.style.display;
    const row = document.querySelector("#arrows .panel:not([hidden]) [data-note]:not(text)");
    row.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: 5, clientY: 5})); found.arrow = tip.textContent;
    const named = document.querySelector("#domains .s[data-s=qffl] polyline");
    const place = named.points.getItem(1).matrixTransform(named.getScreenCTM());
    named.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: place.x, clientY: place.y}));
    found.named = tip.textContent"""
    found = open_page(runs, script, tmp_path)
    assert found["tip"] == ["qffl, round 3: MIN 60.0 %", "block"]
    assert found["dots"] == 1
    assert found["away"] == found["closed"] == "none"
    assert found["first"] == "fedavg, round 1: MIN 30.0 %"
    assert found["second"] == "afl, round 2: MIN 40.0 %"
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
    found = open_page(runs, script, tmp_path)
    assert found["hidden"] == 7  # AVG, STD and MIN, and the lines of four clients
    assert found["shown"]
    assert found["opened"] == "qffl"  # the method that the verdict names, though it is not the first
    assert found["open"] == ["qffl"]
    assert found["chosen"] == [False, True, True]
    assert found["swatch"] == "rgb(0, 114, 178)"  # a border, which is printed; a background would not be
    assert found["printed"]  # on paper nothing can be opened
    assert found["restored"]


@pytest.mark.parametrize("count", [1, 12, 1000])
def test_every_plot_can_be_read_on_a_narrow_screen(count, tmp_path):
    draw = np.random.default_rng(0)
    for method in ("fedavg", "qffl", "local_only"):
        names = [f"a hospital with a long name {k}" for k in range(count)]
        made(tmp_path / "runs", method, draw.uniform(0.4, 1, (3, count)), names=names)
    script = """
    const wide = (one) => one.getBoundingClientRect().right > innerWidth + 1;
    const parts = [...document.querySelectorAll("main > section > *, figure, .legend, figcaption")];
    found.spill = parts.filter(wide).map((part) => part.id || part.className);
    found.page = document.documentElement.scrollWidth <= innerWidth;
    const texts = [...document.querySelectorAll(".panel:not([hidden]) svg.plot text")].filter((t) => t.textContent);
    found.small = texts.filter((t) => parseFloat(getComputedStyle(t).fontSize) < 11).length;
    // text that is cut off and cannot be scrolled to: left of its panel, or beyond what the panel can be scrolled by
    found.cut = texts.filter((text) => {
      const panel = text.closest(".panel"), box = panel.getBoundingClientRect(), mine = text.getBoundingClientRect();
      return mine.left < box.left - 1 || mine.right > box.left + panel.scrollWidth + 1 || mine.bottom > box.bottom + 1;
    }).map((text) => text.closest("figure").id + ": " + text.textContent)"""
    found = open_page(tmp_path / "runs", script, tmp_path, width=390)
    assert found["spill"] == []
    assert found["page"]
    assert found["small"] == 0
    assert found["cut"] == []
