// ---- ports
const more = (shown, all) => `${shown.toLocaleString("en")} of ${all.toLocaleString("en")}, show more`;
function setUpPorts() {
  const ports = data.ports;
  const times = ports.nbytes.map((nbytes, at) => ports.rate[at] ? nbytes / ports.rate[at] : 0);
  const longest = Math.max(data.bound, ...times.slice(0, 1), 0) || 1;
  const kindOf = (at) => ports.kinds[ports.kind[at]];
  const select = $("port-kind");
  select.append(make("option", "all kinds"), ...ports.kinds.map((kind) => make("option", kind)));
  const by = $("port-by");
  by.value = ports.name.length <= 24 ? "port" : "domain";
  let limit = 16;
  const placeOf = (at) => { // the pod of an uplink, which may join several domains; else the domain
    const pod = /^uplink of (pod \d+)/.exec(ports.name[at]);
    if (pod) return [pod[1], ports.ranks[at]];
    const number = domainOf.get(ranges(ports.ranks[at])[0][0]);
    return [`domain ${number}`, domainRanks.get(number)];
  };
  const bars = () => {
    const chosen = each(ports.name.length).filter((at) => touches(ports.ranks[at])
      && (select.selectedIndex < 1 || kindOf(at) === select.value));
    if (by.value === "port" || state.ranks) {
      return chosen.map((at) => ({ name: ports.name[at], kind: kindOf(at), time: times[at], nbytes: ports.nbytes[at] }));
    }
    const byKind = by.value === "kind";
    const groups = new Map();
    for (const at of chosen) {
      const place = byKind ? undefined : placeOf(at);
      const name = byKind ? kindOf(at) : `${place[0]}: ${kindOf(at)}`;
      if (!groups.has(name)) groups.set(name, { name, kind: kindOf(at), time: 0, nbytes: 0, most: 0, ports: 0, place });
      const group = groups.get(name);
      if (times[at] > group.time) [group.time, group.most] = [times[at], ports.nbytes[at]];
      group.ports += 1;
      group.nbytes += ports.nbytes[at];
    }
    return [...groups.values()].sort((a, b) => b.time - a.time);
  };
  const summary = (list) => {
    const share = data.bound ? ` The busiest of all takes ${percent(list[0].time / data.bound)} of T* for its bytes.` : "";
    if (by.value === "port" || state.ranks) return `${count(list.length, "port")}, each with its own load.${share}`;
    const ports = list.reduce((total, bar) => total + bar.ports, 0);
    const what = by.value === "kind" ? "kind" : list.some((bar) => bar.place[0].startsWith("pod")) ? "domain or pod and kind" : "domain and kind";
    return `${count(ports, "port")}, of which each bar shows the busiest of one ${what}.${share}`;
  };
  const draw = () => {
    const list = bars();
    const box = $("port-bars");
    box.replaceChildren();
    for (const bar of list.slice(0, limit)) {
      const line = make("div", undefined, "port");
      if (!bar.place) line.append(make("span", bar.name));
      else line.append(plainButton(bar.name, () => chooseRanks(...bar.place)));
      const track = make("span", undefined, "bar");
      const fill = make("i", undefined, bar.kind.startsWith("NVLink") ? "nvlink" : bar.kind.startsWith("uplink") ? "uplink" : "network");
      fill.style.width = `${(bar.time / longest * 100).toFixed(2)}%`;
      const mark = make("em");
      mark.style.left = `${(data.bound / longest * 100).toFixed(2)}%`;
      track.append(fill, mark);
      const several = bar.ports > 1;
      const value = make("span", `${several ? "busiest " : ""}${seconds(bar.time)}`, "value");
      value.append(make("small", several ? ` (${bytes(bar.most)}); ${bar.ports.toLocaleString("en")} ports, ${bytes(bar.nbytes)}` : ` ${bytes(bar.nbytes)}`));
      line.append(track, value);
      box.append(line);
    }
    $("port-summary").textContent = list.length ? summary(list) : "No port carries anything here.";
    $("port-more").textContent = more(limit, list.length);
    $("port-more").hidden = list.length <= limit;
  };
  const again = () => { limit = 16; draw(); };
  select.addEventListener("change", again);
  by.addEventListener("change", again);
  $("port-more").addEventListener("click", () => { limit += 100; draw(); });
  followers.push(again);
  draw();
}

// ---- flows between places: ranks, domains, or several of these
function setUpFlows() {
  const { flows } = data;
  const table = $("flows");
  if (!flows.nbytes.length) {
    table.replaceWith(make("p", "Nothing moves.", "note"));
    return;
  }
  const place = (number) => plainButton(flows.places[number][0], () => chooseRanks(...flows.places[number]));
  const columns = [
    { title: "From", key: (at) => flows.places[flows.src[at]][0], show: (at) => place(flows.src[at]), kind: "place" },
    { title: "To", key: (at) => flows.places[flows.dst[at]][0], show: (at) => place(flows.dst[at]), kind: "place" },
    { title: "How", key: (at) => flows.kind[at], show: (at) => flows.kind[at] },
    { title: "Bytes", key: (at) => flows.nbytes[at], show: (at) => bytes(flows.nbytes[at]), number: true },
  ];
  const sorting = { by: 3, down: true };
  let limit = 12;
  const draw = () => {
    const rows = each(flows.nbytes.length).filter((at) => touches(flows.places[flows.src[at]][1]) || touches(flows.places[flows.dst[at]][1]));
    const order = sorted(rows, columns, sorting);
    table.tBodies[0].replaceChildren(...order.slice(0, limit).map((at) => row(columns, at)));
    showSorting(table, sorting);
    $("flows-more").hidden = rows.length <= limit;
    $("flows-more").textContent = more(limit, rows.length);
  };
  setUpHead(table, columns, sorting, draw);
  $("flows-more").addEventListener("click", () => { limit += 100; draw(); });
  followers.push(() => { limit = 12; draw(); });
  draw();
}
