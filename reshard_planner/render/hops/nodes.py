"""The nodes of the picture of transfers: what stands in them, how large that is, and how they look."""

from __future__ import annotations

from dataclasses import dataclass

from reshard_planner.render.dot import dot_text
from reshard_planner.render.hops.flows import Place, Stroke
from reshard_planner.render.hops.lines import amount_of, between_ranks, describe, kind_of, line_of
from reshard_planner.render.hops.nics import NicNodes
from reshard_planner.render.hops.scene import Scene
from reshard_planner.render.places import domains_title
from reshard_planner.render.sheets.widths import block_size
from reshard_planner.render.text import format_count, format_nbytes, format_ranks
from reshard_planner.transfer import Medium


@dataclass(frozen=True, slots=True)
class Node:
    """One node before it has its place.

    Attributes:
        name: of the node, which is its ``id`` too.
        lines: its text.
        font: size of the text in points.
        margin: room around the text to the sides, and above and below, in points.
        attributes: of graphviz, besides those of size and place.
        domain: domain in whose frame it stands, if it does.
    """

    name: str
    lines: tuple[str, ...]
    font: float
    margin: tuple[float, float]
    attributes: dict[str, str]
    domain: int | None = None

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in points."""
        width, height = block_size(self.lines, self.font)
        return width + 2 * self.margin[0], height + 2 * self.margin[1]


def frame_title(scene: Scene, domain: int) -> str:
    """Title of the frame of a domain, which says so if it has ranks that are not drawn."""
    drawn = [place for place in scene.flows.places if place.domains[0] == domain]
    every = drawn[0].beside + 1
    if len(drawn) == every:
        return f"domain {domain}"
    return f"domain {domain}: {len(drawn)} of its {every} ranks"


def find_nodes(scene: Scene) -> dict[str, Node]:
    """All nodes by name: places, then NICs, then texts of lines."""
    nodes = [_place(scene, number) for number in range(len(scene.flows.places))]
    domain_of = {nic: scene.flows.places[number].domains[0] for number, nic in scene.nics.of_place.items()}
    nodes += [_nic(scene.nics, nic, domain_of[nic]) for nic in scene.nics.names]
    nodes += [_text(scene, stroke) for stroke in scene.flows.strokes]
    return {node.name: node for node in nodes}


def stroke_tooltip(scene: Scene, stroke: Stroke) -> str:
    """Both ends of each flow of a line, and its exact bytes."""
    lines = []
    for flow in stroke.every:
        ends = f"{scene.name(flow.src)} to {scene.name(flow.dst)}".replace("_", " ")
        lines += [ends, describe(flow)] if len(stroke.every) == 1 else [f"{ends}, {describe(flow)}"]
    return dot_text(*lines)


def _place(scene: Scene, number: int) -> Node:
    """A place: with a thick square frame where it holds, a thin rounded one where it does not."""
    place = scene.flows.places[number]
    touching = [flow for flow in scene.flows.flows if number in (flow.src, flow.dst)]
    inside = [flow for flow in touching if flow.src == flow.dst]
    lines, tooltip = _naming(scene, place)
    words = [word for word, applies in (("holds", place.holds), ("needs", place.needs)) if applies]
    lines.append(", ".join(words) or ("helps" if touching else "stores nothing"))
    lines.extend(f"within: {amount_of(flow, 'transfer')}" for flow in inside if flow.medium != Medium.LOCAL)
    copied = sum(flow.nbytes for flow in inside if flow.medium == Medium.LOCAL)
    if copied:
        lines.append(f"copies {format_nbytes(copied)}")
    tooltip.extend(describe(flow) for flow in inside)
    sums = {medium: sum(flow.nbytes for flow in inside if flow.medium == medium) for medium in Medium}
    attributes = {
        "shape": "box",
        "style": "filled" if place.holds else "rounded,filled",
        "penwidth": "2" if place.holds else "1",
        "fillcolor": "white",
        "tooltip": dot_text(*tooltip),
        "class": "rank" if scene.name(number).startswith("rank") else "domains",
    }
    attributes |= {f"{medium.label}_nbytes": str(total) for medium, total in sums.items() if total}
    domain = place.domains[0] if scene.flows.by_rank else None
    return Node(scene.name(number), tuple(lines), 11, (9, 4), attributes, domain)


def _naming(scene: Scene, place: Place) -> tuple[list[str], list[str]]:
    """First lines of a node's text and of its tooltip."""
    if scene.flows.by_rank or place.alone:
        rank = place.ranks[0]
        gpu = scene.plan.spec.topology.gpu_of(rank)
        lines = [f"rank {rank}"] if gpu == rank else [f"rank {rank}", f"GPU {gpu}"]
        if place.alone:
            lines.append(f"in domain {place.domains[0]}")
        return lines, [f"rank {rank}, GPU {gpu}, domain {place.domains[0]}"]
    count = format_count(len(place.ranks), "rank")
    if place.beside:
        every = format_count(len(place.ranks) + place.beside, "rank")
        count = f"{len(place.ranks):,} of {'its' if len(place.domains) == 1 else 'their'} {every}"
    return [domains_title(place.domains), f"{count}: {format_ranks(place.ranks)}"], [
        domains_title(place.domains, 200),
        f"{count}: {format_ranks(place.ranks, 200)}",
    ]


def _nic(nics: NicNodes, nic: int, domain: int) -> Node:
    """A NIC, or several that the same GPUs share, with the bytes through it."""
    sides = ((verb, nbytes) for verb, nbytes in (("out", nics.out[nic]), ("in", nics.into[nic])) if nbytes)
    lines = (nics.names[nic], *(f"{verb} {format_nbytes(nbytes)}" for verb, nbytes in sides))
    tooltip = (nics.names[nic], f"out {nics.out[nic]:,} bytes, in {nics.into[nic]:,} bytes", nics.rates[nic])
    attributes = {
        "shape": "box",
        "style": "filled",
        "fillcolor": "#DCE4EC",
        "tooltip": dot_text(*tooltip),
        "class": "nic",
    }
    return Node(f"nic_{nic}", lines, 9, (5, 3), attributes, domain)


def _text(scene: Scene, stroke: Stroke) -> Node:
    """The text of a line, which stands in its middle."""
    flow = stroke.first
    attributes = {
        "shape": "plaintext",
        "fontcolor": line_of(flow).ink,
        "tooltip": stroke_tooltip(scene, stroke),
        "class": f"text {kind_of(flow)}",
    }
    margin = 6.0 if stroke.to_many else 3.0  # an arrow ends at the text of many
    return Node(scene.text(stroke), (_words(scene, stroke),), 10, (margin, 1), attributes, scene.inside(flow))


def _words(scene: Scene, stroke: Stroke) -> str:
    """What a line says: between ranks from whom to whom, else how many transfers it is."""
    places = scene.flows.places
    if not scene.flows.by_rank:
        return amount_of(stroke.first)
    place, receivers = places[stroke.first.src], [places[flow.dst].ranks[0] for flow in stroke.flows]
    to = format_ranks(receivers, 16)
    if stroke.to_many and len(receivers) == place.beside:
        to = f"all {len(receivers)} others"
    words = between_ranks(stroke, place.ranks[0], to)
    if scene.choice.one_tree:
        words += f", slot +{stroke.first.offset}"
        if stroke.back is not None and stroke.back.offset != stroke.first.offset:
            words += f" and +{stroke.back.offset}"
    return words
