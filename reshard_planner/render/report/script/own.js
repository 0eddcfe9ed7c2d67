// ---- the transfers of the ranks that are chosen, where the picture joins ranks
const MOST_PARTNERS = 20;
const MOST_RANKS = 12; // of partners on one side, above which they are joined by domain

function setUpOwn() {
  const box = $("own");
  const joined = !$("r-picture-hops") || data.picture.places.some(([name]) => !name.startsWith("rank "));
  if (!joined) return;
  let shown = "";
  const draw = () => {
    const key = state.ranks ? rangeText(state.ranks) : "";
    if (key === shown) return; // what has the focus in it keeps it
    shown = key;
    box.hidden = !key;
    if (!key) return;
    const title = `Sent and received by ${state.name}`;
    const parts = [make("h3", title)];
    const graph = data.pairs && ownGraph(state.name, state.ranks);
    if (!graph) parts.push(make("p", "Too many pairs of ranks for this page: reshard-planner draw PLAN --rank RANK draws them.", "note"));
    else if (graph.flows.length) {
      const frame = make("div", undefined, "scroll hops");
      frame.append(hopDiagram(graph, (at, line) => openFlow(graph, at, null, line), title));
      const keys = make("div", undefined, "hops");
      keys.append(diagramKeys(graph));
      parts.push(keys, make("p", "The diagram may be wider than the window: scroll it sideways.", "hint"), frame);
    } else parts.push(make("p", "Nothing.", "note"));
    box.replaceChildren(...parts);
  };
  followers.push(draw);
  draw();
}

// Senders, the chosen ranks, and receivers, in this order; who does both stands on both sides.
function ownGraph(name, chosen) {
  const { kinds, starts, src, dst, count: counts, nbytes, holds, needs } = data.pairs;
  const mine = (rank) => chosen.some(([first, last]) => first <= rank && rank <= last);
  const does = (list) => (text) => ranges(text).some(([first, last]) => list.some(([begin, end]) => first <= end && begin <= last));
  const [holding, needing] = [does(ranges(holds)), does(ranges(needs))];
  const found = kinds.flatMap((kind, number) => each(starts[number + 1] - starts[number]).map((at) => at + starts[number])
    .filter((at) => mine(src[at]) || mine(dst[at])).map((at) => [at, kind]));
  const places = [];
  const numbers = new Map();
  const number = (key, place) => {
    if (!numbers.has(key)) { numbers.set(key, places.length); places.push(place()); }
    return numbers.get(key);
  };
  const place = (title, ranks, column) => [title, ranks, column, holding(ranks), needing(ranks)];
  const own = number("own", () => place(name, rangeText(chosen), 1));
  const partners = [src, dst].map((end, side) => {
    const sums = new Map();
    for (const [at] of found) if (!mine(end[at])) sums.set(end[at], (sums.get(end[at]) || 0) + nbytes[at]);
    return partnerPlaces(sums, side * 2, new Set(chosen.map(([rank]) => domainOf.get(rank))));
  });
  const at = (rank, side) => mine(rank) ? own : number(`${side} ${partners[side].get(rank)[0]}`, () => place(...partners[side].get(rank)));
  const sums = new Map();
  for (const [pair, [medium, role]] of found) {
    const ends = [at(src[pair], 0), at(dst[pair], 1), medium, role];
    const key = ends.join();
    if (!sums.has(key)) sums.set(key, [...ends, 0, 0]);
    const flow = sums.get(key);
    flow[4] += counts[pair];
    flow[5] += nbytes[pair];
  }
  const order = each(places.length).sort((a, b) => places[a][2] - places[b][2] || firstRank(places[a]) - firstRank(places[b]));
  const flows = [...sums.values()].map(([from, to, ...rest]) => [order.indexOf(from), order.indexOf(to), ...rest]);
  return { places: order.map((at) => places[at]), flows };
}

const joinRanks = (ranks) => rangeText(ranks.reduce((list, rank) => { // ascending ranks
  if (list.length && list.at(-1)[1] === rank - 1) list.at(-1)[1] = rank;
  else list.push([rank, rank]);
  return list;
}, []));
const firstRank = ([title, text]) => title.endsWith("other domains") ? Infinity : ranges(text)[0][0];

// Which place each partner on one side is in: ranks, domains where these are many, and the rest of them together.
function partnerPlaces(sums, column, near) {
  const byRank = sums.size <= MOST_RANKS;
  const title = (rank) => byRank ? `rank ${rank}` : `domain ${domainOf.get(rank)}`;
  const totals = new Map();
  for (const [rank, nbytes] of sums) totals.set(title(rank), (totals.get(title(rank)) || 0) + nbytes);
  const beside = new Set([...near].map((number) => `domain ${number}`)); // never among others
  const order = [...totals.keys()].sort((a, b) => beside.has(b) - beside.has(a) || totals.get(b) - totals.get(a));
  const single = new Set(order.length > MOST_PARTNERS ? order.slice(0, MOST_PARTNERS - 1) : order);
  const rest = [...sums.keys()].filter((rank) => !single.has(title(rank))).sort((a, b) => a - b);
  const others = `${order.length - single.size} other domains`;
  return new Map([...sums.keys()].map((rank) => {
    if (!single.has(title(rank))) return [rank, [others, joinRanks(rest), column]];
    return [rank, [title(rank), byRank ? String(rank) : domainRanks.get(domainOf.get(rank)), column]];
  }));
}
