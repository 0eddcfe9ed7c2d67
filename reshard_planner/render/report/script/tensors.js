// ---- tensors
function setUpTensors() {
  const { tensors } = data;
  const table = $("table");
  const text = tensors.name.map((name, at) => `${name} ${tensors.shape[at]} ${tensors.dtype[at]}`.toLowerCase());
  const slots = (at) => tensors.first[at] < 0 ? "-" : tensors.first[at] === tensors.last[at] ? `${tensors.first[at]}` : `${tensors.first[at]} to ${tensors.last[at]}`;
  const link = (at) => plainButton(tensors.name[at], () => { state.tensor = state.tensor === at ? null : at; changed(); });
  const columns = [
    { title: "Tensor", key: (at) => tensors.name[at], show: link, kind: "name" },
    { title: "Shape", key: (at) => tensors.elements[at], show: (at) => tensors.shape[at], kind: "shape" },
    { title: "Type", key: (at) => tensors.dtype[at], show: (at) => tensors.dtype[at] },
    { title: "Size", key: (at) => tensors.nbytes[at], show: (at) => bytes(tensors.nbytes[at]), number: true },
    { title: "Network", key: (at) => tensors.network[at], show: (at) => bytes(tensors.network[at]), number: true },
    { title: "NVLink", key: (at) => tensors.nvlink[at], show: (at) => bytes(tensors.nvlink[at]), number: true },
    { title: "Slots", key: (at) => tensors.first[at], show: slots, number: true },
  ];
  const sorting = { by: 3, down: true };
  const perPage = 50;
  let page = 0;
  let shown = null;
  const details = () => {
    const box = $("tensor");
    const at = state.tensor;
    box.hidden = at === null;
    if (at === shown) return; // what has the focus in it keeps it
    shown = at;
    if (at === null) return;
    const [src, dst] = tensors.sides[tensors.side[at]];
    box.replaceChildren(make("h3", "Tensor"), make("p", tensors.name[at], "figure"));
    const line = (words) => box.append(make("p", words));
    line(`${tensors.shape[at]} ${tensors.dtype[at]}, ${bytes(tensors.nbytes[at])}. Held by ranks ${src}; needed by ranks ${dst}.`);
    line(`Moves ${bytes(tensors.network[at])} over the network, ${bytes(tensors.nvlink[at])} over NVLink and ${bytes(tensors.local[at])} within ranks`
      + (tensors.first[at] < 0 ? "." : `, in slots ${slots(at)}, from ${between(tensors.begin[at], tensors.end[at])}: the time that the timeline marks.`));
    if (!/\.\.\./.test(tensors.name[at])) {
      const hint = make("p", "Why its bytes go this way: ", "note");
      hint.append(make("code", `reshard-planner explain PLAN --tensor '${tensors.name[at].replaceAll("'", "'\\''")}'`));
      box.append(hint);
    }
    box.append(...hopParts(at));
    const picture = $(`r-layout-${tensors.picture[at]}`);
    if (picture) box.append(plainButton("Show its layout", () => { picture.open = true; picture.scrollIntoView(); }));
    box.append(" ", plainButton("Close", () => { state.tensor = null; changed(); }));
  };
  const hopParts = (at) => {
    const graph = data.graphs[tensors.graph[at]];
    if (!graph) return [make("p", "Its transfers are not in this page: reshard-planner draw PLAN --tensor NAME draws them.", "note")];
    if (!graph.flows.length) return [make("p", "None of its bytes moves.", "note")];
    const facts = make("div", undefined, "flow card");
    facts.hidden = true;
    facts.tabIndex = -1;
    const frame = make("div", undefined, "scroll hops");
    frame.append(hopDiagram(graph, (number, line) => openFlow(graph, number, null, line, facts), "Hop diagram of the tensor"));
    const keys = make("div", undefined, "hops");
    keys.append(diagramKeys(graph));
    const lines = graph.flows.some(([src, dst]) => src !== dst);
    const hint = lines ? "Choose a line for what it stands for, or a node to see its ports." : "All of its bytes stay within these places.";
    return [keys, make("p", "The diagram may be wider than the window: scroll it sideways.", "hint"), frame, make("p", hint, "note"), facts];
  };
  const draw = () => {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = each(tensors.name.length).filter((at) => words.every((word) => text[at].includes(word))
      && (state.layout === null || tensors.picture[at] === state.layout)
      && (!state.ranks || tensors.sides[tensors.side[at]].some(touches)));
    const order = sorted(rows, columns, sorting);
    const pages = Math.max(1, Math.ceil(rows.length / perPage));
    page = Math.min(page, pages - 1);
    table.tBodies[0].replaceChildren(...order.slice(page * perPage, (page + 1) * perPage).map((at) => {
      const line = row(columns, at);
      line.classList.toggle("picked", at === state.tensor);
      return line;
    }));
    showSorting(table, sorting);
    const sum = (column) => rows.reduce((total, at) => total + column[at], 0);
    const rest = tensors.all > tensors.name.length ? `, the ${tensors.name.length.toLocaleString("en")} largest of all` : "";
    $("count").textContent = `${count(rows.length, "tensor")} of ${tensors.all.toLocaleString("en")}${rest}: ${bytes(sum(tensors.nbytes))}; ${rows.length === 1 ? "moves" : "move"} ${bytes(sum(tensors.network))} over the network (copies counted)`;
    const box = $("pages");
    box.replaceChildren();
    if (pages > 1) {
      const step = (words, by, off) => {
        const button = plainButton(words, () => { page += by; draw(); });
        button.disabled = off;
        return button;
      };
      box.append(step("Previous", -1, page === 0), make("span", `page ${page + 1} of ${pages}`), step("Next", 1, page === pages - 1));
    }
    details();
  };
  setUpHead(table, columns, sorting, () => { page = 0; draw(); });
  $("search").addEventListener("input", () => { page = 0; draw(); });
  followers.push(draw);
  draw();
}
