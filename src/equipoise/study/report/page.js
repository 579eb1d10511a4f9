"use strict";
const tip = document.getElementById("tip");
document.addEventListener("mousemove", (event) => {
  const noted = event.target.closest("[data-note]");
  tip.style.display = noted ? "block" : "none";
  if (!noted) return;
  tip.textContent = noted.dataset.note;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
});
for (const key of document.querySelectorAll(".key")) {
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
for (const head of document.querySelectorAll("th")) {
  head.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const down = head.dataset.down !== "true";
    head.dataset.down = down;
    const value = (row) => {
      const text = row.cells[head.cellIndex].textContent;
      const number = parseFloat(text.replace(/,/g, ""));
      const unit = {kB: 1e3, MB: 1e6, GB: 1e9}[text.trim().split(" ").pop()] ?? 1;
      return Number.isNaN(number) ? text : number * unit;
    };
    const rows = [...body.rows].sort((a, b) => {
      const x = value(a), y = value(b);
      const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
      return down ? -order : order;
    });
    body.append(...rows);
  });
}
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
