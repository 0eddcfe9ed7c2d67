// ---- pictures: SVG of trees of their own, in which domains and ranks can be chosen
function setUpPictures() {
  for (const host of document.querySelectorAll(".picture")) {
    const template = host.querySelector("template"); // where the browser did not make the tree itself
    if (template && !host.shadowRoot) host.attachShadow({ mode: "open" }).append(template.content.cloneNode(true));
  }
  const hops = $("r-picture-hops");
  if (hops) {
    const nodes = [...hops.shadowRoot.querySelectorAll("g[id]")].flatMap((node) => {
      const match = /^(rank|domain)_(\d+)$/.exec(node.id);
      return match ? [[node, match[1], Number(match[2])]] : [];
    });
    for (const [node, kind, number] of nodes) {
      if (kind === "domain" && !domainRanks.has(number)) continue;
      // several domains may be drawn as one node, whose tooltip names all of them
      const link = node.querySelector("a");
      const tooltip = link ? link.getAttribute("xlink:title") || "" : "";
      const joined = /^(domains [\d,-]+)\n[\d,]+ ranks?: ([\d,-]+)$/m.exec(tooltip);
      const act = () => kind === "rank" ? chooseRanks(`rank ${number}`, String(number))
        : joined ? chooseRanks(`${joined[1]} (ranks ${joined[2]})`, joined[2]) : chooseDomain(number);
      node.dataset.name = kind === "rank" ? `rank ${number}` : joined ? joined[1] : `domain ${number}`;
      node.setAttribute("tabindex", "0");
      node.setAttribute("role", "button");
      node.setAttribute("aria-label", `Show only ${node.dataset.name}`);
      node.addEventListener("click", (event) => { event.preventDefault(); event.stopPropagation(); act(); });
      node.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        act();
      });
    }
    followers.push(() => nodes.forEach(([node]) => node.classList.toggle("chosen",
      Boolean(state.ranks) && (state.name === node.dataset.name || state.name.startsWith(`${node.dataset.name} `)))));
  }
  for (const button of document.querySelectorAll("[data-size]")) {
    button.addEventListener("click", () => {
      const full = $(`r-picture-${button.dataset.size}`).classList.toggle("full");
      button.setAttribute("aria-pressed", String(full));
    });
  }
  for (const button of document.querySelectorAll("[data-layout]")) {
    button.addEventListener("click", () => {
      state.layout = Number(button.dataset.layout);
      changed();
      $("tensors").scrollIntoView();
    });
  }
}
