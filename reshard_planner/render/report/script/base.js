const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const make = (tag, text, kind) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text; // never innerHTML: names are text
  if (kind) node.className = kind;
  return node;
};

// ---- numbers, as the rest of the tool writes them
const digits = (value) => {
  const places = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  const text = value.toFixed(places);
  return places ? text.replace(/\.?0+$/, "") : text;
};
const bytes = (value) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  while (unit + 1 < units.length && Math.round(value) >= 1024) { value /= 1024; unit += 1; }
  return `${digits(value)} ${units[unit]}`;
};
const seconds = (value) => {
  if (!value) return "0 s";
  const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  const [scale, unit] = units.find(([one]) => value / one >= 0.995) || units[3];
  return `${digits(value / scale)} ${unit}`;
};
const between = (from, to) => { // with as many digits as tell the two ends apart
  const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  const [scale, unit] = units.find(([one]) => to / one >= 0.995) || units[3];
  const apart = (to - from) / scale;
  const places = apart > 0 ? Math.min(9, Math.max(0, 2 - Math.floor(Math.log10(apart)))) : 2;
  const text = (value) => value ? (value / scale).toFixed(places) : "0";
  return `${text(from)} to ${text(to)} ${unit}`;
};
const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
const ranges = (text) => text === "" ? [] : text.split(",").map((part) => {
  const [first, last] = part.split("-").map(Number);
  return [first, last === undefined ? first : last];
});
const shorten = (text) => text.length > 26 ? `${text.slice(0, 16)} ... ${text.slice(-6)}` : text;
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// ---- what is chosen: ranks (of a place), a flow, a tensor, a layout; everything else follows
const state = { name: "", ranks: null, flow: null, tensor: null, layout: null };
const followers = [];
const changed = () => { showChosen(); followers.forEach((follow) => follow()); };
const touches = (text) => !state.ranks || ranges(text).some(([first, last]) =>
  state.ranks.some(([begin, end]) => first <= end && begin <= last));
const chooseRanks = (name, ranks) => { state.name = name; state.ranks = ranks && ranges(ranks); changed(); };
const domainRanks = new Map(data.domains.map(([number, ranks]) => [number, ranks]));
const domainOf = new Map(data.domains.flatMap(([number, text]) => ranges(text).flatMap(([first, last]) =>
  Array.from({ length: last - first + 1 }, (_, at) => [first + at, number]))));
const said = ([name, ranks]) => name.startsWith("rank ") ? name : `${name} (ranks ${ranks})`;
const rangeText = (list) => list.map(([first, last]) => first === last ? first : `${first}-${last}`).join(",");

function showChosen() {
  const box = $("chosen");
  box.replaceChildren();
  const chip = (what, text, clear, undo = "Show all") => {
    const button = make("button", undo);
    button.type = "button";
    button.addEventListener("click", () => { clear(); changed(); });
    button.setAttribute("aria-label", `No longer ${what} ${text}`);
    box.append(make("span", `${what} ${text}`), button);
  };
  if (state.ranks) chip("Only", said([state.name, rangeText(state.ranks)]), () => { state.ranks = null; state.name = ""; });
  if (state.tensor !== null) chip("Marked", `the time of ${data.tensors.name[state.tensor]}`, () => { state.tensor = null; }, "Unmark");
  if (state.layout !== null) chip("Only", "tensors of one layout, in the table", () => { state.layout = null; });
  box.hidden = !box.childNodes.length;
  const focus = $("focus");
  const custom = focus.querySelector("[value=custom]");
  focus.value = state.name;
  custom.hidden = !state.ranks || focus.selectedIndex >= 0;
  if (!custom.hidden) { custom.textContent = state.name; focus.value = "custom"; }
}

function setUpFocus() {
  const focus = $("focus");
  const chosen = new Map([["", null]]);
  const option = (name, ranks, text) => {
    const node = make("option", text);
    node.value = name;
    chosen.set(name, ranks);
    focus.append(node);
  };
  option("", null, "everything");
  option("custom", null, ""); // ranks that are no domain of their own, as of several
  focus.lastChild.hidden = true;
  for (const [number, ranks] of data.domains) option(`domain ${number}`, ranks, `domain ${number}: ranks ${shorten(ranks)}`);
  if (data.flows.byRank) for (const [name, ranks] of data.flows.places) option(name, ranks, name);
  else if (data.pairs) for (const [first, last] of data.domains.flatMap(([, ranks]) => ranges(ranks))) {
    for (let rank = first; rank <= last; rank += 1) option(`rank ${rank}`, String(rank), `rank ${rank}`);
  }
  focus.addEventListener("change", () => chooseRanks(focus.value, chosen.get(focus.value)));
  $("theme").addEventListener("change", (event) => {
    if (event.target.value) document.documentElement.dataset.theme = event.target.value;
    else delete document.documentElement.dataset.theme;
    themePictures(event.target.value);
    followers.forEach((follow) => follow());
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.target.matches("input, select")) return;
    if (state.flow) closeFlow();
    else if (state.tensor !== null) state.tensor = null;
    else if (state.ranks) [state.ranks, state.name] = [null, ""];
    else return;
    changed();
  });
}

// ---- what can be pressed, by mouse and by key
function pressable(node, label, act) {
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "button");
  node.setAttribute("aria-label", label);
  onPress(node, act);
}
function onPress(node, act) {
  node.classList.add("press");
  node.addEventListener("click", (event) => { event.preventDefault(); event.stopPropagation(); act(); });
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });
}
function plainButton(words, act) {
  const button = make("button", words);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

// ---- tables with columns that may sort
function setUpHead(table, columns, sorting, redraw) {
  const row = make("tr");
  columns.forEach((column, at) => {
    const cell = make("th", undefined, column.number ? "number" : "");
    cell.scope = "col";
    const button = make("button", column.title);
    button.type = "button";
    button.addEventListener("click", () => {
      sorting.down = sorting.by === at ? !sorting.down : Boolean(column.number);
      sorting.by = at;
      redraw();
    });
    cell.append(button);
    row.append(cell);
  });
  table.tHead.replaceChildren(row);
}
function showSorting(table, sorting) {
  [...table.tHead.rows[0].cells].forEach((cell, at) => {
    const mine = sorting.by === at;
    cell.setAttribute("aria-sort", mine ? (sorting.down ? "descending" : "ascending") : "none");
    const button = cell.firstChild;
    button.textContent = button.textContent.replace(/ [▲▼]$/, "") + (mine ? (sorting.down ? " ▼" : " ▲") : "");
  });
}
function sorted(rows, columns, sorting) {
  const { key } = columns[sorting.by];
  const order = rows.slice().sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    const less = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
    return less * (sorting.down ? -1 : 1) || a - b;
  });
  return order;
}
function row(columns, at) {
  const line = make("tr");
  for (const column of columns) {
    const cell = make("td", undefined, column.number ? "number" : column.kind || "");
    cell.append(column.show(at));
    line.append(cell);
  }
  return line;
}
const each = (length) => Array.from({ length }, (_, at) => at);
