// ---- timeline
function setUpTimeline() {
  const { edges, rows, lanes, full } = data.timeline;
  const cells = Uint8Array.from(atob(data.timeline.cells), (character) => character.charCodeAt(0));
  const spans = edges.length - 1;
  const end = edges[spans];
  const at = (lane, line, span) => cells[(lane * rows.length + line) * spans + span] / full;
  const select = $("lane");
  const option = (value, text) => { const node = make("option", text); node.value = value; select.append(node); };
  option("all", "all");
  lanes.forEach((name, lane) => option(lane, name));
  let picked = false; // by the reader; until then the busiest lane is shown, or all where there is room
  const pickLane = () => {
    if (picked) return;
    const totals = lanes.map((_, lane) => {
      let sum = 0;
      for (const line of shown) for (let span = 0; span < spans; span += 1) sum += at(lane, line, span);
      return sum;
    });
    select.value = shown.length <= 32 ? "all" : String(totals.indexOf(Math.max(...totals)));
  };
  const view = { from: 0, to: end };
  let shown = [];
  let drag = null;
  const gutter = 132; // room for names on the left, and above the first row
  const pad = 6;
  const canvas = $("rows");
  const mean = $("mean");
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    return { ink: get("--ink"), faint: get("--faint"), line: get("--line"), back: get("--card"), bound: get("--bound"), pick: get("--pick"),
      lanes: [get("--network"), get("--network"), get("--nvlink"), get("--nvlink"), get("--own")] };
  };
  const laneList = () => select.value === "all" ? lanes.map((_, lane) => lane) : [Number(select.value)];
  const fit = (node, height) => {
    const scale = window.devicePixelRatio || 1;
    const width = node.clientWidth || 800;
    node.width = Math.round(width * scale);
    node.height = Math.round(height * scale);
    node.style.height = `${height}px`;
    const pen = node.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px Helvetica, Arial, sans-serif";
    pen.textBaseline = "middle";
    return [pen, width];
  };
  const first = (time) => { // the span that a time falls in
    let [low, high] = [0, spans];
    while (low + 1 < high) { const middle = (low + high) >> 1; if (edges[middle] <= time) low = middle; else high = middle; }
    return low;
  };
  const zoomed = () => view.to - view.from < end * 0.999999;
  const scaleX = (width) => (time) => gutter + (time - view.from) / ((view.to - view.from) || 1) * (width - gutter - 4);
  const sides = (x, span) => { // on whole pixels, so that neighbours meet
    const left = Math.max(gutter, Math.round(x(edges[span])));
    return [left, Math.max(left + 0.5, Math.round(x(Math.min(edges[span + 1], view.to))))];
  };
  const chosenTime = () => {
    if (state.tensor === null) return null;
    const [begin, stop] = [data.tensors.begin[state.tensor], data.tensors.end[state.tensor]];
    return begin < 0 ? null : [begin, stop];
  };
  const ticks = (pen, x, height, palette) => {
    const width = view.to - view.from;
    if (!(width > 0)) return;
    const rough = width / 6;
    const ten = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((times) => times * ten).find((one) => one >= rough);
    pen.fillStyle = palette.faint;
    pen.textAlign = "center";
    for (let number = Math.ceil(view.from / step); number * step <= view.to; number += 1) {
      const position = x(number * step);
      pen.fillRect(position, height - 14, 1, 4);
      if (position < gutter + 20) continue;
      pen.fillText(seconds(number * step), Math.min(position, x(view.to) - 22), height - 5);
    }
  };
  const drawMean = (list, palette) => {
    const height = 26 * list.length + 18;
    const [pen, width] = fit(mean, height);
    const x = scaleX(width);
    const last = first(view.to);
    list.forEach((lane, number) => {
      const base = 26 * (number + 1);
      pen.fillStyle = palette.lanes[lane];
      for (let span = first(view.from); span <= Math.min(last, spans - 1); span += 1) {
        let sum = 0;
        for (const line of shown) sum += at(lane, line, span);
        const [left, right] = sides(x, span);
        const high = shown.length ? sum / shown.length * 22 : 0;
        pen.fillRect(left, base - high, right - left, high);
      }
      pen.fillStyle = palette.line;
      pen.fillRect(gutter, base, width - gutter - 4, 1);
      pen.fillStyle = palette.ink;
      pen.textAlign = "right";
      pen.fillText(`mean ${lanes[lane]}`, gutter - 6, base - 9);
    });
    ticks(pen, x, height, palette);
  };
  const lineHeight = (list) => Math.max(list.length * 3, Math.min(24 * list.length, Math.floor(470 / Math.max(1, shown.length))));
  const draw = () => {
    const palette = colours();
    shown = each(rows.length).filter((line) => touches(rows[line][1]));
    pickLane();
    const list = laneList();
    if (!(end > 0) || !shown.length) { $("cell").textContent = "Nothing moves between ranks here, so there is no time to show."; $("timeline-box").hidden = true; return; }
    drawMean(list, palette);
    const tall = lineHeight(list);
    const one = tall / list.length;
    const [pen, width] = fit(canvas, tall * shown.length + pad);
    const x = scaleX(width);
    const marked = chosenTime();
    if (marked) {
      pen.fillStyle = palette.pick;
      const left = Math.max(gutter, x(marked[0]));
      pen.fillRect(left, 0, Math.max(1, x(marked[1]) - left), tall * shown.length + pad);
    }
    const from = first(view.from);
    const last = Math.min(first(view.to), spans - 1);
    shown.forEach((line, number) => {
      list.forEach((lane, part) => {
        const top = pad + number * tall + part * one;
        pen.fillStyle = palette.lanes[lane];
        for (let span = from; span <= last; span += 1) {
          const share = at(lane, line, span);
          if (!share) continue;
          const [left, right] = sides(x, span);
          if (one >= 8) { // room for a bar: its height says how busy
            const high = Math.max(1, share * (one - 1));
            pen.globalAlpha = 0.45 + 0.55 * share;
            pen.fillRect(left, top + one - high, right - left, high);
          } else {
            pen.globalAlpha = 0.15 + 0.85 * share;
            pen.fillRect(left, top, right - left, Math.max(1, one - (one > 3 ? 1 : 0)));
          }
        }
        pen.globalAlpha = 1;
        if (list.length > 1 && one >= 9) {
          pen.fillStyle = palette.faint;
          pen.textAlign = "right";
          pen.fillText(lanes[lane], gutter - 6, top + one / 2 + 1);
        }
      });
      if (tall >= 9) {
        pen.fillStyle = palette.line;
        pen.fillRect(list.length > 1 ? 0 : gutter, pad + (number + 1) * tall - 1, width, 1);
      }
      const every = Math.ceil(12 / tall);
      if (number % every === 0) {
        pen.fillStyle = palette.ink;
        pen.textAlign = "left";
        pen.fillText(shorten(rows[line][0]), 4, pad + number * tall + (list.length > 1 && one >= 9 ? one / 2 : tall / 2) + 1);
      }
    });
    if (marked) {
      pen.fillStyle = palette.bound;
      for (const time of marked) if (time >= view.from && time <= view.to) pen.fillRect(x(time) - 1, 0, 2, tall * shown.length + pad);
    }
    if (drag && drag.to !== null) {
      pen.globalAlpha = 0.25;
      pen.fillStyle = palette.bound;
      pen.fillRect(Math.min(drag.from, drag.to), 0, Math.abs(drag.to - drag.from), tall * shown.length + pad);
      pen.globalAlpha = 1;
    }
    $("range").textContent = `${seconds(view.from)} to ${seconds(view.to)}${zoomed() ? `, zoomed ${digits(end / (view.to - view.from))} times` : ""}`;
    canvas.setAttribute("aria-label", `Timeline of ${count(shown.length, "row")} from ${seconds(view.from)} to ${seconds(view.to)}. `
      + list.map((lane) => `${lanes[lane]}: busy ${percent(average(lane))} of the time on average`).join(". "));
  };
  const average = (lane) => {
    let [sum, weight] = [0, 0];
    for (let span = first(view.from); span <= Math.min(first(view.to), spans - 1); span += 1) {
      const length = edges[span + 1] - edges[span];
      for (const line of shown) { sum += at(lane, line, span) * length; weight += length; }
    }
    return weight ? sum / weight : 0;
  };
  const look = (from, to) => {
    const least = end / 1e4;
    const width = Math.min(end, Math.max(least, to - from));
    const middle = (from + to) / 2;
    view.from = Math.min(Math.max(0, middle - width / 2), end - width);
    view.to = view.from + width;
    draw();
  };
  const acts = {
    in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25), all: () => look(0, end),
  };
  const zoom = (times, around = (view.from + view.to) / 2) =>
    look(around - (around - view.from) * times, around + (view.to - around) * times);
  const move = (share) => { const by = (view.to - view.from) * share; look(view.from + by, view.to + by); };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => acts[button.dataset.zoom]());
  canvas.addEventListener("keydown", (event) => {
    const key = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", Home: "all", 0: "all" }[event.key];
    if (!key || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    acts[key]();
  });
  const timeAt = (position) => view.from + (position - gutter) / (canvas.clientWidth - gutter - 4) * (view.to - view.from);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // else the page scrolls
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.offsetX));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { if (event.offsetX >= gutter) drag = { from: event.offsetX, to: null }; });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && event.buttons) { drag.to = Math.max(gutter, event.offsetX); draw(); }
    const list = laneList();
    const tall = lineHeight(list);
    const line = shown[Math.floor((event.offsetY - pad) / tall)];
    if (line === undefined || event.offsetX < gutter) return;
    const span = first(timeAt(event.offsetX));
    const slots = data.timeline.slots[span];
    const when = `${seconds(edges[span])} to ${seconds(edges[span + 1])}${slots ? (slots[0] === slots[1] ? `, slot ${slots[0]}` : `, slots ${slots[0]} to ${slots[1]}`) : ""}`;
    $("cell").textContent = `${rows[line][0]}, ${when}: ${lanes.map((name, lane) => `${name} ${percent(at(lane, line, span))}`).join(", ")}`;
  });
  const release = () => {
    if (!drag) return;
    const { from, to } = drag;
    drag = null;
    if (to !== null && Math.abs(to - from) > 5) look(timeAt(Math.min(from, to)), timeAt(Math.max(from, to)));
    else draw();
  };
  window.addEventListener("pointerup", release);
  window.addEventListener("pointercancel", release);
  canvas.addEventListener("dblclick", acts.all);
  select.addEventListener("change", () => { picked = true; draw(); });
  window.addEventListener("resize", draw);
  for (const media of ["(prefers-color-scheme: dark)", "print"]) window.matchMedia(media).addEventListener("change", draw);
  followers.push(draw);
  draw();
}
