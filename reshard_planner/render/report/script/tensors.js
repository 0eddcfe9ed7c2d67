// ---- tensors
function setUpTensors() {
  const { tensors } = data;
  const table = $("table");
  const text = tensors.name.map((name, at) => `${name} ${tensors.shape[at]} ${tensors.dtype[at]}`.toLowerCase());
  const slots = (at) => tensors.first[at] < 0 ? "-" : tensors.first[at] === tensors.last[at] ? `${tensors.first[at]}` : `${tensors.first[at]} to ${tensors.last[at]}`;
  const link = (at) => {
    const button = make("button", tensors.name[at]);
    button.type = "button";
    button.addEventListener("click", () => { state.tensor = state.tensor === at ? null : at; changed(); });
    return button;
  };
  const columns = [
    { title: "Tensor", key: (at) => tensors.name[at], show: link, kind: "name" },
    { title: "Shape", key: (at) => tensors.nbytes[at], show: (at) => tensors.shape[at], kind: "shape" },
    { title: "Type", key: (at) => tensors.dtype[at], show: (at) => tensors.dtype[at] },
    { title: "Size", key: (at) => tensors.nbytes[at], show: (at) => bytes(tensors.nbytes[at]), number: true },
    { title: "Network", key: (at) => tensors.network[at], show: (at) => bytes(tensors.network[at]), number: true },
    { title: "NVLink", key: (at) => tensors.nvlink[at], show: (at) => bytes(tensors.nvlink[at]), number: true },
    { title: "Slots", key: (at) => tensors.first[at], show: slots, number: true },
  ];
  const sorting = { by: 3, down: true };
  const perPage = 50;
  let page = 0;
  const details = () => {
    const box = $("tensor");
    const at = state.tensor;
    box.hidden = at === null;
    if (at === null) return;
    const [src, dst] = tensors.sides[tensors.side[at]];
    box.replaceChildren(make("h3", "Tensor"), make("p", tensors.name[at], "figure"));
    const line = (words) => box.append(make("p", words));
    line(`${tensors.shape[at]} ${tensors.dtype[at]}, ${bytes(tensors.nbytes[at])}. Held by ranks ${src}; needed by ranks ${dst}.`);
    line(`Moves ${bytes(tensors.network[at])} over the network, ${bytes(tensors.nvlink[at])} over NVLink and ${bytes(tensors.local[at])} within ranks`
      + (tensors.first[at] < 0 ? "." : `, in slots ${slots(at)}, from ${seconds(tensors.begin[at])} to ${seconds(tensors.end[at])}: the time that the timeline marks.`));
    if (!/\.\.\./.test(tensors.name[at])) {
      const hint = make("p", "Why its bytes go this way: ", "note");
      hint.append(make("code", `reshard-planner explain PLAN --tensor '${tensors.name[at].replaceAll("'", "'\\''")}'`));
      box.append(hint);
    }
    const picture = $(`r-layout-${tensors.picture[at]}`);
    if (picture) {
      const button = make("button", "Show its layout");
      button.type = "button";
      button.addEventListener("click", () => { picture.open = true; picture.scrollIntoView(); });
      box.append(button);
    }
    const all = make("button", "Close");
    all.type = "button";
    all.addEventListener("click", () => { state.tensor = null; changed(); });
    box.append(" ", all);
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
    $("count").textContent = `${count(rows.length, "tensor")} of ${tensors.all.toLocaleString("en")}${rest}: ${bytes(sum(tensors.nbytes))}, of which ${bytes(sum(tensors.network))} over the network`;
    const box = $("pages");
    box.replaceChildren();
    if (pages > 1) {
      const step = (words, by, off) => {
        const button = make("button", words);
        button.type = "button";
        button.disabled = off;
        button.addEventListener("click", () => { page += by; draw(); });
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
