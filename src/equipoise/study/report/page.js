"use strict";
// ---------------------------------------------------------------- notes beside the pointer, and values of lines
const tip = document.getElementById("tip");
function showTip(text, x, y) {
  tip.style.display = text ? "block" : "none";
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(y + 14, innerHeight - tip.offsetHeight - 8)) + "px";
}
const digits = (value) => Math.abs(value) >= 10 ? value.toFixed(1) : String(Number(value.toPrecision(3)));
const listLines = (panel) => panel.dataset.axes ?
  [...panel.querySelectorAll("polyline")].filter((line) => !line.closest(".off, .away") && line.points.length) : [];
function placeOf(line, i) {
  const spot = line.points.getItem(i).matrixTransform(line.getScreenCTM());
  return [spot.x, spot.y];
}
// What a point of a line says: the place on the x axis, the name of the line, and the value.
function tellPoint(panel, line, i) {
  const axes = JSON.parse(panel.dataset.axes), spot = line.points.getItem(i), view = line.closest(".curves").viewBox.baseVal;
  const x = axes.x[0] + spot.x / view.width * (axes.x[1] - axes.x[0]);
  const y = axes.y[1] - spot.y / view.height * (axes.y[1] - axes.y[0]);
  const named = panel.querySelector(`text[data-at="${Math.round(x)}"]`);
  const at = axes.whole ? Math.round(x) : digits(x);
  const where = named ? named.dataset.note : `${axes.of[0]} ${at}`.trim();
  const share = axes.of[1].endsWith(" in percent");
  const value = share ? `${axes.of[1].slice(0, -11)} ${digits(y)} %` : `${axes.of[1]} ${digits(y)}`;
  return `${line.closest(".s").dataset.s}, ${where}: ${value}`;
}
const reach = 40;  // pixels from the pointer within which a point is found
function findNearest(panel, x, y) {
  let best = null, least = reach * reach;
  for (const line of listLines(panel)) {
    const matrix = line.getScreenCTM(), points = line.points;
    for (let i = 0; i < points.length; i++) {
      const spot = points[i];
      const far = (matrix.a * spot.x + matrix.e - x) ** 2 + (matrix.d * spot.y + matrix.f - y) ** 2;
      if (far < least) { least = far; best = [line, i]; }
    }
  }
  return best;
}
function markPoint(panel, found) {
  document.querySelectorAll(".here").forEach((dot) => dot.remove());
  if (!found) return;
  const [line, i] = found, area = panel.querySelector(".plot"), spot = line.points.getItem(i);
  const dot = document.createElementNS(area.namespaceURI, "circle");
  dot.setAttribute("class", "here");
  dot.setAttribute("r", 4);
  dot.setAttribute("cx", 100 * spot.x / line.closest(".curves").viewBox.baseVal.width + "%");
  dot.setAttribute("cy", spot.y);
  area.append(dot);
}
for (const kind of ["pointermove", "pointerdown"]) {
  document.addEventListener(kind, (event) => {
    const noted = event.target.closest("[data-note]"), panel = event.target.closest(".panel");
    if (noted) { showTip(noted.dataset.note, event.clientX, event.clientY); markPoint(panel, null); return; }
    const found = panel && findNearest(panel, event.clientX, event.clientY);
    markPoint(panel, found);
    showTip(found ? tellPoint(panel, ...found) : "", event.clientX, event.clientY);
  });
}
// With the keyboard: left and right go along a line, up and down to the next one.
document.addEventListener("keydown", (event) => {
  const way = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
  const panel = event.target.closest?.("svg.plot")?.closest(".panel"), lines = panel ? listLines(panel) : [];
  if (event.key === "Escape") { showTip(""); markPoint(null, null); }
  if (!way || !lines.length) return;
  event.preventDefault();
  const old = panel.at ?? [0, -way[1]];
  const line = Math.min(Math.max(old[0] + way[0], 0), lines.length - 1);
  const i = Math.min(Math.max(old[1] + way[1], 0), lines[line].points.length - 1);
  panel.at = [line, i];
  markPoint(panel, [lines[line], i]);
  showTip(tellPoint(panel, lines[line], i), ...placeOf(lines[line], i));
});
// ---------------------------------------------------------------- legends and choices
for (const key of document.querySelectorAll("button.key")) {
  key.addEventListener("click", () => {
    const on = key.getAttribute("aria-pressed") !== "true";
    key.setAttribute("aria-pressed", on);
    for (const marks of key.closest("figure").querySelectorAll(".s")) {
      if (marks.dataset.s === key.dataset.s) marks.classList.toggle("off", !on);
    }
  });
}
for (const choice of document.querySelectorAll(".choose select")) {
  const panels = choice.closest("figure").querySelectorAll(".panel");
  const show = () => panels.forEach((panel, i) => { panel.hidden = i !== choice.selectedIndex; });
  choice.addEventListener("change", show);
  show();
}
// ---------------------------------------------------------------- one client, marked in every plot
function markRug(panel, client, name) {
  panel.querySelectorAll(".rug").forEach((mark) => mark.remove());
  const area = panel.querySelector(".plot"), {x, rugs} = JSON.parse(panel.dataset.rugs);
  for (const [of, kind, values] of client === null ? [] : rugs) {
    if (values[client] === null) continue;
    const line = document.createElementNS(area.namespaceURI, "line");
    const at = 100 * (values[client] - x[0]) / (x[1] - x[0]) + "%";
    for (const [key, value] of [["class", "rug " + kind], ["x1", at], ["x2", at], ["y1", 0], ["y2", area.getAttribute("height")]]) {
      line.setAttribute(key, value);
    }
    line.dataset.note = `${name}, ${of}: ${digits(values[client])}`;
    area.append(line);
  }
}
function markClient(section, client) {
  const {names, methods, values} = JSON.parse(section.dataset.clients), name = names[client];
  for (const panel of section.querySelectorAll("[data-members]")) {
    const rows = JSON.parse(panel.dataset.members).map((those) => those.includes(client));
    panel.querySelectorAll("[data-row]").forEach((mark) => mark.classList.toggle("picked", Boolean(rows[mark.dataset.row])));
  }
  for (const panel of section.querySelectorAll("[data-rugs]")) markRug(panel, client, name);
  for (const panel of section.querySelectorAll(".panel")) {
    const lines = [...panel.querySelectorAll(".only")];
    const mine = lines.filter((line) => JSON.parse(line.dataset.of).includes(client));
    if (!mine.length) continue;
    lines.forEach((line) => line.classList.toggle("away", !mine.includes(line)));
    panel.querySelector(".title").textContent = mine[0].dataset.who;
  }
  section.querySelector(".pick select").selectedIndex = client === null ? 0 : client + 1;
  section.querySelector(".pick output").textContent = client === null ? "" :
    methods.map((method, i) => `${method} ${values[i][client] ?? "–"}${values[i][client] === null ? "" : " %"}`).join(", ");
  section.picked = client;
}
for (const section of document.querySelectorAll("section[data-clients]")) {
  const choice = section.querySelector(".pick select");
  choice.addEventListener("change", () => markClient(section, choice.selectedIndex ? choice.selectedIndex - 1 : null));
  section.addEventListener("click", (event) => {
    const row = event.target.closest("[data-row]"), panel = row?.closest("[data-members]");
    const those = panel ? JSON.parse(panel.dataset.members)[row.dataset.row] : [];
    if (those?.length === 1) markClient(section, section.picked === those[0] ? null : those[0]);
  });
}
// ---------------------------------------------------------------- tables
const units = {kB: 1e3, MB: 1e6, GB: 1e9};
function readCell(row, column) {
  const text = row.cells[column].textContent, number = parseFloat(text.replace(/,/g, ""));
  return Number.isNaN(number) ? text : number * (units[text.trim().split(" ").pop()] ?? 1);
}
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => {
      const x = readCell(a, head.cellIndex), y = readCell(b, head.cellIndex);
      const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
      return down ? -order : order;
    });
    body.append(...rows);
  });
}
// ---------------------------------------------------------------- light, dark, paper
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.classList.contains("dark") ||
    (!root.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  root.classList.toggle("dark", !dark);
  root.classList.toggle("light", dark);
});
// On paper nothing can be opened: print all, then put it back.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((part) => { part.open = true; });
});
addEventListener("afterprint", () => folded.forEach((part) => { part.open = false; }));
