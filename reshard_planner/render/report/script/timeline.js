// ---- timeline
function setUpTimeline() {
  const { runs, edges, stretch, tops, rows, full } = data.timeline;
  const apart = stretch.some((times) => times !== 1); // each run has its own scale of time; that of the view is the first's
  const kinds = [...new Set(data.timeline.lanes.map(([, name]) => name))];
  const kindOfLane = data.timeline.lanes.map(([, name]) => kinds.indexOf(name));
  const lanes = data.timeline.lanes.map(([run, name]) => runs.length > 1 ? `${name}, ${runs[run][0]}` : name);
  const cells = Uint8Array.from(atob(data.timeline.cells), (character) => character.charCodeAt(0));
  const spans = edges.length - 1;
  const end = edges[spans];
  const at = (lane, line, span) => cells[(lane * rows.length + line) * spans + span] / full; // of what its lane can show
  const eachRun = (from, to) => runs.map(([kind], run) => `${between(from * stretch[run], to * stretch[run])}${apart ? ` ${kind}` : ""}`)
    .slice(0, apart ? runs.length : 1).join(", ");
  const busy = (lane, share) => `${share === 1 && tops[lane] < 1 ? "at least " : ""}${percent(share * tops[lane])}`;
  const select = $("lane");
  const option = (value, text) => { const node = make("option", text); node.value = value; select.append(node); };
  option("all", "all");
  kinds.forEach((name, kind) => option(kind, name));
  let picked = false; // by the reader; until then the lane that binds is shown, or the busiest where nothing is in that
  const pickLane = () => {
    if (picked) return;
    const totals = kinds.map((_, kind) => {
      const lane = kindOfLane.indexOf(kind); // of the first run
      let sum = 0;
      for (const line of shown) for (let span = 0; span < spans; span += 1) sum += at(lane, line, span);
      return sum;
    });
    const binds = kinds.indexOf(data.timeline.binds);
    select.value = String(totals[binds] ? binds : totals.indexOf(Math.max(...totals)));
  };
  const hint = $("cell").textContent;
  const nothing = "Nothing moves between ranks here, so there is no time to show.";
  const view = { from: 0, to: end };
  let shown = [];
  let drag = null;
  const named = 64; // rows up to which each lane of several has room for its name and for a bar
  let gutter = 0; // room for names on the left, and above the first row
  const pad = 6;
  const canvas = $("rows");
  const mean = $("mean");
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    return { ink: get("--ink"), faint: get("--faint"), line: get("--line"), back: get("--card"), bound: get("--bound"), pick: get("--pick"),
      lanes: kindOfLane.map((kind) => get(["--network", "--network", "--nvlink", "--nvlink", "--own"][kind])) };
  };
  const laneList = () => each(lanes.length).filter((lane) => select.value === "all" || kindOfLane[lane] === Number(select.value))
    .sort((a, b) => kindOfLane[a] - kindOfLane[b]); // both runs of a kind below one another
  const fit = (node, height) => {
    const scale = window.devicePixelRatio || 1;
    const width = $("rows-box").clientWidth || 800; // both: one scale of time, beside the bar that scrolls
    node.width = Math.round(width * scale);
    node.height = Math.round(height * scale);
    node.style.height = `${height}px`;
    node.style.width = `${width}px`;
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
  const ticks = (pen, x, height, palette, times) => {
    const width = (view.to - view.from) * times;
    if (!(width > 0)) return;
    const rough = width / Math.max(2, Math.min(6, Math.floor((x(view.to) - x(view.from)) / 70)));
    const ten = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((times) => times * ten).find((one) => one >= rough);
    pen.fillStyle = palette.faint;
    pen.textAlign = "center";
    for (let number = Math.ceil(view.from * times / step); number * step <= view.to * times; number += 1) {
      const position = x(number * step / times);
      pen.fillRect(position, height - 14, 1, 4);
      if (position < gutter + 20) continue;
      pen.fillText(seconds(number * step), Math.min(position, x(view.to) - 22), height - 5);
    }
  };
  const drawMean = (list, palette) => {
    const scales = stretch.slice(0, apart ? runs.length : 1);
    const height = 26 * list.length + 18 * scales.length;
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
    scales.forEach((times, run) => {
      const bottom = height - 18 * (scales.length - 1 - run);
      ticks(pen, x, bottom, palette, times);
      pen.textAlign = "right";
      if (apart) pen.fillText(runs[run][0], gutter - 6, bottom - 5);
    });
  };
  const hasNames = (list) => list.length > 1 && shown.length <= named;
  const lineHeight = (list) => Math.max(list.length * (hasNames(list) ? 14 : 3), Math.min(24 * list.length, Math.floor((runs.length > 1 ? 760 : 470) / Math.max(1, shown.length))));
  const measureGutter = (list) => {
    const pen = canvas.getContext("2d");
    pen.font = "11px Helvetica, Arial, sans-serif";
    const longest = (texts) => Math.max(0, ...texts.map((text) => pen.measureText(text).width));
    const names = longest(shown.map((line) => shorten(rows[line][0]))) + (hasNames(list) ? longest(list.map((lane) => lanes[lane])) + 10 : 0);
    gutter = Math.ceil(12 + Math.max(names, longest(list.map((lane) => `mean ${lanes[lane]}`))));
    canvas.dataset.gutter = String(gutter);
  };
  const showKey = (list) => {
    const colours = [["NIC", "blue"], ["NVLink", "green"], ["pack", "pink, what ranks do themselves"]]
      .filter(([name]) => list.some((lane) => lanes[lane].startsWith(name))).map(([name, colour]) => `${name}: ${colour}`);
    const bars = lineHeight(list) / list.length >= 8 ? "The higher a bar, the busier the port" : "The stronger the colour, the busier the port";
    const where = list.length < 2 ? "" : hasNames(list) ? " Each row has its lanes below one another, named on the left." : ` The lanes of a row, from above: ${list.map((lane) => lanes[lane]).join("; ")}.`;
    $("timeline-key").textContent = `${bars}. ${colours.join("; ")}.${where}`;
  };
  const draw = () => {
    const palette = colours();
    shown = each(rows.length).filter((line) => touches(rows[line][1]));
    pickLane();
    const list = laneList();
    if (!(end > 0) || !shown.length) { $("cell").textContent = nothing; $("timeline-box").hidden = true; return; }
    $("timeline-box").hidden = false;
    if ($("cell").textContent === nothing) $("cell").textContent = hint;
    measureGutter(list);
    showKey(list);
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
            const high = Math.max(1, share * (one - 2));
            pen.fillRect(left, top + one - 1 - high, right - left, high);
          } else {
            pen.globalAlpha = 0.15 + 0.85 * share;
            pen.fillRect(left, top, right - left, Math.max(1, one - (one > 3 ? 1 : 0)));
          }
        }
        pen.globalAlpha = 1;
        if (hasNames(list)) {
          pen.fillStyle = palette.faint;
          pen.textAlign = "right";
          pen.fillText(lanes[lane], gutter - 6, top + one / 2); // above the line that ends the rank
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
        pen.fillText(shorten(rows[line][0]), 4, pad + number * tall + (hasNames(list) ? one / 2 : tall / 2 + 1));
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
    showBusy(list, tall);
    $("range").textContent = `${eachRun(view.from, view.to)}${zoomed() ? `, zoomed ${digits(end / (view.to - view.from))} times` : ""}`;
    canvas.setAttribute("aria-label", `Timeline of ${count(shown.length, "row")} from ${eachRun(view.from, view.to)}. `
      + list.map((lane) => `${lanes[lane]}: busy ${percent(average(lane) * tops[lane])} of the time on average`).join(". "));
  };
  let looked = ""; // lane and rows for which the first row that is not empty was brought into view
  const showBusy = (list, tall) => {
    const now = `${select.value} ${shown.join()}`;
    if (now === looked) return;
    looked = now;
    const busy = shown.findIndex((line) => list.some((lane) => each(spans).some((span) => at(lane, line, span))));
    $("rows-box").scrollTop = Math.max(0, (busy - 2) * tall);
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
    const when = `${eachRun(edges[span], edges[span + 1])}${slots ? (slots[0] === slots[1] ? `, slot ${slots[0]}` : `, slots ${slots[0]} to ${slots[1]}`) : ""}`;
    $("cell").textContent = `${rows[line][0]}, ${when}: ${lanes.map((name, lane) => `${name} ${busy(lane, at(lane, line, span))}`).join(", ")}`;
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
  let drawnWidth = 0;
  new ResizeObserver(() => {
    if ($("rows-box").clientWidth === drawnWidth) return;
    drawnWidth = $("rows-box").clientWidth;
    draw();
  }).observe($("rows-box"));
  for (const media of ["(prefers-color-scheme: dark)", "print"]) window.matchMedia(media).addEventListener("change", draw);
  followers.push(draw);
  draw();
}
