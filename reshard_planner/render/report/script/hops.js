// ---- flows: what one line of a picture of transfers stands for, and diagrams of single tensors
const SVG = "http://www.w3.org/2000/svg";
const svgNode = (tag, attributes, text) => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const kindOf = (flow) => data.kinds[`${flow[2]} ${flow[3]}`];
const flowWords = (graph, flow) => {
  const [medium, role] = kindOf(flow);
  const [from, to] = [graph.places[flow[0]][0], graph.places[flow[1]][0]];
  return `${from === to ? `within ${from}` : `${from} to ${to}`}, ${medium} ${role}, ${count(flow[4], "transfer")}, ${bytes(flow[5])}`;
};
let opener = null; // what has the focus again when the details are closed

function openFlow(graph, at, most, node, box = $("flow")) {
  state.flow = graph.flows[at];
  opener = node;
  changed();
  showFlow(graph, state.flow, most, box);
  box.hidden = false;
  box.focus({ preventScroll: true });
  box.scrollIntoView({ block: "nearest", behavior: "instant" });
}
function closeFlow() {
  state.flow = null;
  for (const box of document.querySelectorAll(".flow")) box.hidden = true;
  if (opener && opener.isConnected) opener.focus({ preventScroll: true });
  opener = null;
}

function showFlow(graph, flow, most, box) {
  const [src, dst, , , transfers, nbytes] = flow;
  const [medium, role, meaning] = kindOf(flow);
  const [from, to] = [graph.places[src], graph.places[dst]];
  const list = make("dl");
  const fact = (name, ...values) => {
    const value = make("dd");
    value.append(...values);
    list.append(make("dt", name), value);
  };
  const place = (which) => plainButton(said(which), () => chooseRanks(which[0], which[1]));
  fact("From", place(from));
  fact("To", from === to ? "the same" : place(to));
  fact("Medium", medium);
  fact("Role", meaning ? `${role} (${meaning})` : role);
  fact("Transfers", transfers.toLocaleString("en"));
  fact("Bytes", `${bytes(nbytes)} (${nbytes.toLocaleString("en")})`);
  if (most && most.length) {
    const links = most.map(([row, part]) => {
      const line = make("span", undefined, "most");
      line.append(plainButton(data.tensors.name[row], () => chooseTensor(row)), ` ${bytes(part)}`);
      return line;
    });
    fact(`Tensors with most bytes`, ...links);
  }
  box.replaceChildren(make("h3", "Flow"), list, plainButton("Close", () => { closeFlow(); changed(); }));
}
function chooseTensor(row) {
  state.tensor = row;
  changed();
  $("tensor").scrollIntoView({ block: "start" });
  $("tensor").focus({ preventScroll: true });
}
