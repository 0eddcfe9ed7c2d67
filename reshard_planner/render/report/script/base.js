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
const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
const ranges = (text) => text === "" ? [] : text.split(",").map((part) => {
  const [first, last] = part.split("-").map(Number);
  return [first, last === undefined ? first : last];
});
const shorten = (text) => text.length > 26 ? `${text.slice(0, 16)} ... ${text.slice(-6)}` : text;
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// ---- what is chosen: ranks (of a domain, or one), a tensor, a layout; everything else follows
const state = { name: "", ranks: null, tensor: null, layout: null };
const followers = [];
const changed = () => { showChosen(); followers.forEach((follow) => follow()); };
const touches = (text) => !state.ranks || ranges(text).some(([first, last]) =>
  state.ranks.some(([begin, end]) => first <= end && begin <= last));
const domainRanks = new Map(data.domains.map(([number, ranks]) => [number, ranks]));
const chooseRanks = (name, ranks) => { state.name = name; state.ranks = ranks && ranges(ranks); changed(); };
const chooseDomain = (number) => chooseRanks(`domain ${number} (ranks ${domainRanks.get(number)})`, domainRanks.get(number));
const choosePlace = (number) => data.flows && data.flows.byRank
  ? chooseRanks(`rank ${number}`, String(number)) : chooseDomain(number);

function showChosen() {
  const box = $("chosen");
  box.replaceChildren();
  const chip = (what, text, clear) => {
    const button = make("button", "Show all");
    button.type = "button";
    button.addEventListener("click", () => { clear(); changed(); });
    button.setAttribute("aria-label", `No longer ${what} ${text}`);
    box.append(make("span", `${what} ${text}`), button);
  };
  if (state.ranks) chip("Only", state.name, () => { state.ranks = null; state.name = ""; });
  if (state.tensor !== null) chip("Marked", `the time of ${data.tensors.name[state.tensor]}`, () => { state.tensor = null; });
  if (state.layout !== null) chip("Only", "tensors of one layout, in the table", () => { state.layout = null; });
  box.hidden = !box.childNodes.length;
  const focus = $("focus");
  const words = state.name.split(" ");
  const custom = focus.querySelector("[value=custom]");
  focus.value = state.ranks ? `${words[0]} ${words[1]}` : "";
  custom.hidden = !state.ranks || focus.selectedIndex >= 0;
  if (!custom.hidden) { custom.textContent = `${words[0]} ${words[1]}`; focus.value = "custom"; }
}

function setUpFocus() {
  const focus = $("focus");
  const option = (value, text) => { const node = make("option", text); node.value = value; focus.append(node); };
  option("", "everything");
  option("custom", ""); // domains that the picture draws as one
  focus.lastChild.hidden = true;
  for (const [number, ranks] of data.domains) option(`domain ${number}`, `domain ${number}: ranks ${shorten(ranks)}`);
  if (data.flows && data.flows.byRank) {
    for (const [, text] of data.domains) for (const [first, last] of ranges(text)) {
      for (let rank = first; rank <= last; rank += 1) option(`rank ${rank}`, `rank ${rank}`);
    }
  }
  focus.addEventListener("change", () => {
    const [kind, number] = focus.value.split(" ");
    if (kind === "domain") chooseDomain(Number(number));
    else if (kind === "rank") chooseRanks(`rank ${number}`, number);
    else if (kind === "") chooseRanks("", null);
  });
  $("theme").addEventListener("change", (event) => {
    if (event.target.value) document.documentElement.dataset.theme = event.target.value;
    else delete document.documentElement.dataset.theme;
    followers.forEach((follow) => follow());
  });
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
