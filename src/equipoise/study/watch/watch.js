{
  // The page asks whether there is something new, and is then loaded again. What the reader opened, hid, chose or sorted
  // is put back afterwards.
  const SECONDS = 2, STORE = "equipoise watch";
  const mark = document.getElementById("watch"), trouble = document.getElementById("trouble");
  const ahead = Date.now() / 1000 - Number(mark.dataset.now);  // of this clock, against that of the command
  const sorted = {};

  // Elements by a name that is the same when the page is loaded again: the run or data they belong to, and their place.
  const find = (selector) => {
    const counts = {}, found = {};
    for (const element of document.querySelectorAll(selector)) {
      const home = element.closest("[data-key]")?.dataset.key ?? "";
      counts[home] = (counts[home] ?? -1) + 1;
      found[`${home}/${counts[home]}`] = element;
    }
    return Object.entries(found);
  };

  const keep = () => {
    const state = {theme: document.documentElement.className, scroll: scrollY, open: {}, hidden: {}, chosen: {}, sorted};
    for (const [name, part] of find("details")) state.open[name] = part.open;
    for (const [name, key] of find(".key")) state.hidden[name] = key.getAttribute("aria-pressed") === "false";
    for (const [name, choice] of find("select")) state.chosen[name] = choice.value;
    sessionStorage.setItem(STORE, JSON.stringify(state));
  };

  const put_back = () => {
    const state = JSON.parse(sessionStorage.getItem(STORE) ?? "null");
    if (!state) return;
    sessionStorage.removeItem(STORE);
    document.documentElement.className = state.theme;
    for (const [name, part] of find("details")) part.open = state.open[name] ?? part.open;
    for (const [name, key] of find(".key")) if (state.hidden[name]) key.click();
    for (const [name, choice] of find("select")) {
      if (![...choice.options].some((option) => option.value === state.chosen[name])) continue;
      choice.value = state.chosen[name];
      choice.dispatchEvent(new Event("change", {bubbles: true}));
    }
    for (const [name, table] of find("table")) {
      const [column, times] = state.sorted[name] ?? [0, 0];
      const head = table.tHead.rows[0].cells[column];
      for (let i = 0; i < times; i++) (head.querySelector("button") ?? head).click();
    }
    scrollTo(0, state.scroll);
  };

  const say = (seconds) => seconds < 100 ? `${Math.max(0, seconds).toFixed(0)} s`
    : seconds < 6000 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
  const tick = () => {
    for (const moment of document.querySelectorAll("time[data-since]")) {
      moment.textContent = say(Date.now() / 1000 - ahead - Number(moment.dataset.since));
    }
  };

  const tell = (text) => { trouble.textContent = text; trouble.hidden = !text; };
  const look = async () => {
    let version = mark.dataset.version;
    try {
      const answer = await fetch("version", {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.statusText);
      version = await answer.text();
      tell("");
    } catch {
      tell("No answer from `equipoise watch`: it was ended, or cannot be reached. This is what it showed last.");
    }
    if (version !== mark.dataset.version) {
      if (getSelection().isCollapsed) { keep(); location.reload(); return; }
      tell("There is something new. It is shown when no text is selected.");
    }
    setTimeout(look, 1000 * SECONDS);
  };

  document.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    const named = head && find("table").find(([, table]) => table === head.closest("table"));
    if (!named) return;
    const [column, times] = sorted[named[0]] ?? [-1, 0];
    sorted[named[0]] = [head.cellIndex, column === head.cellIndex ? times % 2 + 1 : 1];
  });
  put_back();
  tick();
  setInterval(tick, 1000);
  setTimeout(look, 1000 * SECONDS);
}
