// ---- ports
function setUpPorts() {
  const ports = data.ports;
  const times = ports.nbytes.map((nbytes, at) => ports.rate[at] ? nbytes / ports.rate[at] : 0);
  const longest = Math.max(data.bound, ...times.slice(0, 1), 0) || 1;
  const kindOf = (at) => ports.kinds[ports.kind[at]];
  const select = $("port-kind");
  select.append(make("option", "all kinds"), ...ports.kinds.map((kind) => make("option", kind)));
  const domainOf = new Map();
  for (const [number, text] of data.domains) for (const [first, last] of ranges(text)) {
    for (let rank = first; rank <= last; rank += 1) domainOf.set(rank, number);
  }
  const by = $("port-by");
  by.value = ports.name.length <= 24 ? "port" : "domain";
  let limit = 16;
  const bars = () => {
    const chosen = each(ports.name.length).filter((at) => touches(ports.ranks[at])
      && (select.selectedIndex < 1 || kindOf(at) === select.value));
    if (by.value === "port" || state.ranks) {
      return chosen.map((at) => ({ name: ports.name[at], kind: kindOf(at), time: times[at], nbytes: ports.nbytes[at] }));
    }
    const byKind = by.value === "kind";
    const groups = new Map();
    for (const at of chosen) {
      const number = byKind ? undefined : domainOf.get(ranges(ports.ranks[at])[0][0]);
      const key = `${number} ${kindOf(at)}`;
      const name = byKind ? kindOf(at) : `domain ${number}: ${kindOf(at)}`;
      if (!groups.has(key)) groups.set(key, { name, kind: kindOf(at), time: 0, nbytes: 0, sum: 0, ports: 0, number });
      const group = groups.get(key);
      group.time = Math.max(group.time, times[at]);
      group.sum += times[at];
      group.ports += 1;
      group.nbytes += ports.nbytes[at];
    }
    return [...groups.values()].sort((a, b) => b.time - a.time);
  };
  const draw = () => {
    const list = bars();
    const box = $("port-bars");
    box.replaceChildren();
    for (const bar of list.slice(0, limit)) {
      const line = make("div", undefined, "port");
      if (bar.number === undefined) line.append(make("span", bar.name));
      else {
        const button = make("button", bar.name);
        button.type = "button";
        button.addEventListener("click", () => chooseDomain(bar.number));
        line.append(button);
      }
      const track = make("span", undefined, "bar");
      const fill = make("i", undefined, bar.kind.startsWith("NVLink") ? "nvlink" : bar.kind.startsWith("uplink") ? "uplink" : "network");
      fill.style.width = `${(bar.time / longest * 100).toFixed(2)}%`;
      const mark = make("em");
      mark.style.left = `${(data.bound / longest * 100).toFixed(2)}%`;
      track.append(fill, mark);
      const mean = bar.ports > 1 ? `, mean ${seconds(bar.sum / bar.ports)} of ${bar.ports}` : "";
      const value = make("span", `${seconds(bar.time)}`, "value");
      value.append(make("small", ` ${bytes(bar.nbytes)}${mean}`));
      line.append(track, value);
      box.append(line);
    }
    const share = list.length && data.bound ? `, the busiest takes ${percent(list[0].time / data.bound)} of T*` : "";
    const noun = by.value === "port" || state.ranks ? "port" : by.value === "kind" ? "kind" : "port of a domain";
    const many = { port: "ports", kind: "kinds", "port of a domain": "kinds of ports of domains" }[noun];
    $("port-summary").textContent = list.length ? `${list.length.toLocaleString("en")} ${list.length === 1 ? noun : many}${share}`
      : "No port carries anything here.";
    $("port-more").textContent = `Show more of ${list.length.toLocaleString("en")}`;
    $("port-more").hidden = list.length <= limit;
  };
  const again = () => { limit = 16; draw(); };
  select.addEventListener("change", again);
  by.addEventListener("change", again);
  $("port-more").addEventListener("click", () => { limit += 100; draw(); });
  followers.push(again);
  draw();
}

// ---- flows between domains or ranks
function setUpFlows() {
  const { flows } = data;
  const table = $("flows");
  if (!flows || !flows.nbytes.length) {
    table.replaceWith(make("p", flows ? "Nothing moves." : "There are too many domains for a table of what moves between them.", "note"));
    return;
  }
  const noun = flows.byRank ? "rank" : "domain";
  const ranksOf = (number) => flows.byRank ? String(number) : domainRanks.get(number) || "";
  const place = (number) => {
    const button = make("button", `${noun} ${number}`);
    button.type = "button";
    button.addEventListener("click", () => choosePlace(number));
    return button;
  };
  const columns = [
    { title: "From", key: (at) => flows.src[at], show: (at) => place(flows.src[at]), kind: "place" },
    { title: "To", key: (at) => flows.dst[at], show: (at) => place(flows.dst[at]), kind: "place" },
    { title: "How", key: (at) => flows.kinds[flows.kind[at]], show: (at) => flows.kinds[flows.kind[at]] },
    { title: "Bytes", key: (at) => flows.nbytes[at], show: (at) => bytes(flows.nbytes[at]), number: true },
  ];
  const sorting = { by: 3, down: true };
  let limit = 12;
  const draw = () => {
    const rows = each(flows.nbytes.length).filter((at) => touches(ranksOf(flows.src[at])) || touches(ranksOf(flows.dst[at])));
    const order = sorted(rows, columns, sorting);
    table.tBodies[0].replaceChildren(...order.slice(0, limit).map((at) => row(columns, at)));
    showSorting(table, sorting);
    $("flows-more").hidden = rows.length <= limit;
    $("flows-more").textContent = `Show more of ${rows.length.toLocaleString("en")}`;
  };
  setUpHead(table, columns, sorting, draw);
  $("flows-more").addEventListener("click", () => { limit += 100; draw(); });
  followers.push(() => { limit = 12; draw(); });
  draw();
}
