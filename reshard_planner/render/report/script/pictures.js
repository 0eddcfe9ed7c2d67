// ---- pictures: SVG of trees of their own, in which places and flows can be chosen
function setUpPictures() {
  for (const host of document.querySelectorAll(".picture")) {
    const template = host.querySelector("template"); // where the browser did not make the tree itself
    if (template && !host.shadowRoot) host.attachShadow({ mode: "open" }).append(template.content.cloneNode(true));
  }
  if ($("r-picture-hops")) setUpHopPicture($("r-picture-hops").shadowRoot);
  for (const button of document.querySelectorAll("[data-size]")) setUpSize(button, $(`r-picture-${button.dataset.size}`));
  for (const button of document.querySelectorAll("[data-layout]")) {
    button.addEventListener("click", () => {
      state.layout = Number(button.dataset.layout);
      changed();
      $("tensors").scrollIntoView();
    });
  }
}

// A picture wider than its frame shrinks as far as its text allows: the button shows it as it is, or fits what did not shrink.
function setUpSize(button, host) {
  const svg = host && host.shadowRoot.querySelector("svg");
  if (!svg) return;
  const share = (parseFloat(getComputedStyle(svg).minWidth) || 0) / svg.width.baseVal.value;
  const stack = stacking(svg);
  const look = () => {
    const room = host.clientWidth - 16;
    if (room <= 0) return; // in a layout that is closed
    stack(room);
    const natural = svg.width.baseVal.value;
    const least = Math.floor(natural * share);
    button.hidden = natural <= room + 1;
    button.dataset.mode = Math.max(least, Math.min(room, natural)) < natural - 1 ? "full" : "fit";
    button.textContent = button.dataset.mode === "full" ? "Full size" : "Fit the width";
    const pressed = button.getAttribute("aria-pressed") === "true";
    for (const mode of ["full", "fit"]) host.classList.toggle(mode, pressed && mode === button.dataset.mode);
    svg.style.minWidth = host.classList.contains("fit") ? "0" : `${least}px`;
  };
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    look();
  });
  new ResizeObserver(look).observe(host);
  look();
}

// Layouts whose sides do not fit beside one another have the one before above the one after.
function stacking(svg) {
  const title = [...svg.querySelectorAll("text")].find((each) => each.textContent === data.after);
  const after = title && title.parentNode;
  const arrow = after && after.previousElementSibling;
  const paper = svg.querySelector(".paper");
  if (!arrow || !paper) return () => {};
  const [sides, page] = [after.parentNode, after.parentNode.parentNode];
  const [beside, width, height] = [after.getAttribute("transform"), svg.width.baseVal.value, svg.height.baseVal.value];
  const resize = (wide, high) => {
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    for (const node of [svg, paper]) { node.setAttribute("width", wide); node.setAttribute("height", high); }
  };
  let stacked = false;
  return (room) => {
    if (width > room + 1 === stacked) return;
    stacked = !stacked;
    arrow.style.display = stacked ? "none" : "";
    after.setAttribute("transform", beside);
    if (!stacked) return resize(width, height);
    after.style.display = "none";
    const before = sides.getBBox();
    after.style.display = "";
    after.setAttribute("transform", `translate(0 ${Math.ceil(before.y + before.height + 24)})`);
    const box = page.getBBox();
    return resize(Math.ceil(box.x + box.width + 32), Math.ceil(box.y + box.height + 30));
  };
}

// Styles for dark screens follow the system; where a theme is chosen they follow that.
const darkRules = new Map();
function themePictures(theme) {
  for (const { shadowRoot } of document.querySelectorAll(".picture")) for (const sheet of shadowRoot.styleSheets) {
    for (const rule of sheet.cssRules) {
      if (!(rule instanceof CSSMediaRule) || rule.conditionText === "print") continue;
      if (!darkRules.has(rule)) darkRules.set(rule, rule.media.mediaText);
      rule.media.mediaText = { dark: "screen", light: "not all" }[theme] || darkRules.get(rule);
    }
  }
}

// Nodes and lines are known by their ids alone; what is behind them is in the data.
function setUpHopPicture(root) {
  const { ids, places, nics, lines, flows } = data.picture;
  const nodes = [];
  const node = (id, place) => {
    const found = root.getElementById(id);
    if (!found) return;
    const [name, ranks] = place;
    pressable(found, `Show only ${said(place)}`, () => chooseRanks(name, ranks));
    nodes.push([found, name]);
  };
  ids.forEach((id, at) => node(id, places[at]));
  for (const [id, ranks] of Object.entries(nics)) node(id, [`rank${/\D/.test(ranks) ? "s" : ""} ${ranks}`, ranks]);
  for (const [number, ranks] of data.domains) if (!ids.includes(`domain_${number}`)) node(`domain_${number}`, [`domain ${number}`, ranks]);
  const drawn = lines.flatMap((id, at) => {
    const [text, ...rest] = [`${id}_text`, id, `${id}_start`].map((each) => id && root.getElementById(each)).filter(Boolean);
    if (!text) return [];
    const act = () => openFlow(data.picture, at, data.picture.most[at], text);
    pressable(text, `Details of ${flowWords(data.picture, flows[at])}`, act);
    rest.forEach((each) => onPress(each, act));
    return [[[text, ...rest], flows[at]]];
  });
  followers.push(() => {
    nodes.forEach(([each, name]) => each.classList.toggle("chosen", Boolean(state.ranks) && state.name === name));
    drawn.forEach(([parts, flow]) => parts.forEach((each) => each.classList.toggle("chosen", state.flow === flow)));
  });
}
