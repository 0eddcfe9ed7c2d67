// ---- pictures of transfers in columns: what only sends stands left, what only receives right; lines are buttons
const DIAGRAM = { wide: 168, inner: 230, gap: 14, side: 124, line: 13 };

// Where places stand: their columns, and nodes high enough for all lines that end on one side of them.
function arrangeDiagram(graph) {
  const { wide, inner, gap, side, line } = DIAGRAM;
  const used = [...new Set(graph.places.map((place) => place[2]))].sort((a, b) => a - b);
  const column = graph.places.map((place) => used.indexOf(place[2]));
  const between = graph.flows.filter(([src, dst]) => src !== dst);
  const sideOf = (from, to) => column[from] < column[to] ? "right" : column[from] > column[to] ? "left"
    : column[from] === 0 && used.length > 1 ? "left" : "right";
  const ends = new Map();
  for (const [src, dst] of between) for (const key of [`${src} ${sideOf(src, dst)}`, `${dst} ${sideOf(dst, src)}`]) ends.set(key, (ends.get(key) || 0) + 1);
  const arcs = between.filter(([src, dst]) => column[src] === column[dst]).map(([src, dst]) => `${sideOf(src, dst)}`);
  const left = arcs.includes("left") ? side : 10;
  const at = [];
  const heights = used.map(() => gap / 2);
  graph.places.forEach((_, place) => {
    const most = Math.max(ends.get(`${place} left`) || 0, ends.get(`${place} right`) || 0);
    const high = Math.max(46, line * (most + 1));
    const mine = column[place];
    at[place] = { x: left + mine * (wide + inner), y: heights[mine], high, column: mine };
    heights[mine] += high + gap;
  });
  const height = Math.max(...heights, 0);
  for (const place of at) place.y += (height - heights[place.column]) / 2;
  const width = left + used.length * wide + (used.length - 1) * inner + (arcs.includes("right") ? side : 10);
  return { at, between, ends, sideOf, width, height };
}

function lineParts(kind, path, tip, width) {
  const [, , , style, arrow, double] = kind;
  const parts = [svgNode("path", { d: path, class: `seen ${style}`, "stroke-width": double ? "4" : width.toFixed(2) })];
  if (double) parts.push(svgNode("path", { d: path, class: "core" }));
  parts.push(svgNode("path", { d: arrow === "vee" ? tip.open : `${tip.open}z`, class: `tip ${arrow}` }));
  return parts;
}

function hopDiagram(graph, onFlow, label) {
  const { wide } = DIAGRAM;
  const { at, between, ends, sideOf, width, height } = arrangeDiagram(graph);
  const svg = svgNode("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label });
  const most = Math.max(...graph.flows.map((flow) => flow[5]), 1);
  const slots = new Map(); // lines of one side of a place leave it one below the other
  const port = (place, side) => {
    const key = `${place} ${side}`;
    const number = slots.get(key) || 0;
    slots.set(key, number + 1);
    return at[place].y + at[place].high * (number + 1) / (ends.get(key) + 1);
  };
  const order = between.slice().sort((a, b) => at[a[1]].y - at[b[1]].y || at[a[0]].y - at[b[0]].y);
  for (const flow of order) {
    const [src, dst] = flow;
    const kind = kindOf(flow);
    const [out, into] = [sideOf(src, dst), sideOf(dst, src)];
    const [x1, x2] = [at[src].x + (out === "right" ? wide : 0), at[dst].x + (into === "right" ? wide : 0)];
    const [y1, y2] = [port(src, out), port(dst, into)];
    const bend = at[src].column === at[dst].column ? Math.min(144, 88 + Math.abs(y2 - y1) / 8) : Math.abs(x2 - x1) / 2;
    const away = into === "right" ? 1 : -1;
    const [c1, c2] = [x1 + (out === "right" ? bend : -bend), x2 + away * bend];
    const tip = { open: `M${x2 + away * 8},${y2 - 4}L${x2 + away},${y2}L${x2 + away * 8},${y2 + 4}` };
    const path = `M${x1},${y1}C${c1},${y1} ${c2},${y2} ${x2 + away * (kind[4] === "empty" ? 8 : 5)},${y2}`;
    const line = svgNode("g", { class: `line ${kind[1].replaceAll(" ", "-")}` });
    line.append(svgNode("title", {}, flowWords(graph, flow)), svgNode("path", { d: path, class: "near" }),
      ...lineParts(kind, path, tip, 0.9 + 2.1 * flow[5] / most),
      svgNode("text", { x: x2 + away * 14, y: y2 + 3.5, style: `text-anchor:${away > 0 ? "start" : "end"}` }, bytes(flow[5])));
    pressable(line, `Details of ${flowWords(graph, flow)}`, () => onFlow(graph.flows.indexOf(flow), line));
    diagramLines.set(line, flow);
    svg.append(line);
  }
  graph.places.forEach((place, number) => svg.append(diagramNode(graph, place, number, at[number])));
  return svg;
}
const diagramLines = new WeakMap(); // flow of each line that is drawn
followers.push(() => {
  for (const line of document.querySelectorAll(".hops .line")) line.classList.toggle("chosen", state.flow !== null && diagramLines.get(line) === state.flow);
});

function diagramNode(graph, place, number, { x, y, high }) {
  const middle = x + DIAGRAM.wide / 2;
  const within = graph.flows.filter(([src, dst]) => src === number && dst === number);
  const node = svgNode("g", { class: `node${place[3] ? " holds" : ""}` });
  const words = [place[3] && "holds", place[4] && "needs"].filter(Boolean).join(", ") || "helps";
  const lines = [[shorten(place[0])], [place[0].startsWith("rank ") ? words : `${words}: ranks ${place[1].length > 13 ? `${place[1].slice(0, 11)}...` : place[1]}`, "small"]];
  if (within.length) lines.push([`within: ${bytes(within.reduce((total, flow) => total + flow[5], 0))}`, "small"]);
  const top = y + high / 2 - lines.length * 6.5 + 9;
  node.append(svgNode("title", {}, [said(place), ...within.map((flow) => flowWords(graph, flow))].join("\n")),
    svgNode("rect", { x, y, width: DIAGRAM.wide, height: high, rx: place[3] ? 0 : 9 }),
    ...lines.map(([text, kind], line) => svgNode("text", { x: middle, y: top + 13 * line, class: kind || "" }, text)));
  pressable(node, `Show only ${said(place)}`, () => chooseRanks(place[0], place[1]));
  return node;
}

// What the lines of a diagram stand for, each with a sample.
function diagramKeys(graph) {
  const list = make("ul", undefined, "keys");
  const seen = new Set(graph.flows.filter(([src, dst]) => src !== dst).map(kindOf));
  for (const kind of Object.values(data.kinds).filter((each) => seen.has(each))) {
    const item = make("li", undefined, `key ${kind[1].replaceAll(" ", "-")}`);
    const sample = svgNode("svg", { width: 44, height: 12, viewBox: "0 0 44 12", "aria-hidden": "true" });
    sample.append(...lineParts(kind, `M0,6L${kind[4] === "empty" ? 35 : 38},6`, { open: "M35,2L42,6L35,10" }, 2));
    item.append(sample, `${kind[1]}: ${kind[2]}`);
    list.append(item);
  }
  return list;
}
