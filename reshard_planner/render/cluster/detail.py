"""A small cluster device by device: hosts as frames with domains, GPUs and NICs in them, switches beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from reshard_planner.render.cluster.devices import Devices
from reshard_planner.render.cluster.hostnodes import HostNodes, Piece, host_nodes
from reshard_planner.render.cluster.network import Endpoint, find_network
from reshard_planner.render.cluster.picture import TITLE_FONT, Frame, Node, Picture
from reshard_planner.render.cluster.tiers import place_tiers
from reshard_planner.render.cluster.words import name_list
from reshard_planner.render.sheets.rectangle import Rectangle
from reshard_planner.render.sheets.spread import spread
from reshard_planner.render.sheets.widths import text_width
from reshard_planner.topology.cluster.model import Cluster
from reshard_planner.topology.cluster.resolve import Resolved

PAD, TITLE, GAP = 9.0, 20.0, 9.0
"""Room inside frames, height of their titles, and room between nodes of a column, in points."""

SPACE = 26.0
"""Room between hosts."""

ACROSS, SHARED = 70.0, 130.0
"""Distance of columns, and of those with a node for sharing between them."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """Widths of the columns within hosts, and the distance between them."""

    gpus: float
    nics: float
    across: float
    width: float


def detail_picture(cluster: Cluster, resolved: Resolved) -> Picture:
    """All devices of a cluster with their places.

    Args:
        cluster: overrides applied.
        resolved: what planning makes of it.
    """
    devices = Devices.of(cluster, resolved)
    hosts = [host_nodes(devices, index) for index in _order(devices)]
    whole = _whole_domains(devices)
    columns = _columns(devices, hosts, whole)
    nodes: list[tuple[Node, Rectangle]] = []
    frames: list[Frame] = []
    top, outer, outer_top = 0.0, None, 0.0
    left = PAD if whole else 0.0
    for at, host in enumerate(hosts):
        domain = whole.get(host.index)
        if domain is not None and domain != outer:
            outer, outer_top = domain, top
            top += TITLE + PAD
        host_frames, host_places, bottom = _place_host(host, columns, left, top, whole)
        frames.extend(host_frames)
        nodes.extend(host_places)
        top = bottom + (SPACE / 2 if domain is not None else SPACE)
        following = whole.get(hosts[at + 1].index) if at + 1 < len(hosts) else None
        if domain is not None and following != domain:
            box = Rectangle.between(0.0, left + columns.width + PAD, outer_top, bottom + PAD)
            frames.insert(
                next(i for i, frame in enumerate(frames) if frame.parent == f"domain_{domain}"),
                Frame(
                    f"domain_{domain}", "domain", _across(devices, domain), box, None, devices.assumed(domain)
                ),
            )
            outer, top = None, bottom + PAD + SPACE
    network = find_network(cluster, _endpoints(cluster, hosts), resolved.pods, join=False)
    lines = tuple(line for host in hosts for line in host.lines)
    right = left + columns.width + (PAD if whole else 0.0)
    nodes.extend(place_tiers(network, {node.name: box for node, box in nodes}, right))
    return _from_the_top(Picture(tuple(nodes), tuple(frames), (*lines, *network.lines)))


def _order(devices: Devices) -> list[int]:
    """Hosts, those of one domain after each other."""
    last = len(devices.domain_of)
    return sorted(
        range(len(devices.cluster.hosts)), key=lambda host: min(devices.domains_of_host[host], default=last)
    )


def _whole_domains(devices: Devices) -> dict[int, int]:
    """Domain of each host, for domains of several hosts that have nothing else in them."""
    found: dict[int, int] = {}
    for domain, hosts in enumerate(devices.hosts_of_domain):
        if len(hosts) > 1 and all(devices.domains_of_host[host] == {domain} for host in hosts):
            found.update(dict.fromkeys(hosts, domain))
    return found


def _across(devices: Devices, domain: int) -> str:
    names = [devices.cluster.hosts[host].name for host in devices.hosts_of_domain[domain]]
    return f"{devices.domain_title(domain)}, across hosts {name_list(names)}"


def _columns(devices: Devices, hosts: Sequence[HostNodes], whole: Mapping[int, int]) -> _Columns:
    titles = [
        text_width(piece.title, TITLE_FONT) + 2 * PAD
        for host in hosts
        for piece in host.pieces
        if piece.title
    ]
    gpus = max([80.0, *titles, *(node.size[0] + 2 * PAD for host in hosts for node in host.gpus.values())])
    nics = max([0.0, *(node.size[0] for host in hosts for node in host.nics)])
    across = SHARED if any(host.shared for host in hosts) else ACROSS
    inner = gpus + (across + nics if nics else 0.0) + 2 * PAD
    named = [text_width(host.title, TITLE_FONT) + 2 * PAD for host in hosts]
    named += [text_width(_across(devices, domain), TITLE_FONT) for domain in set(whole.values())]
    return _Columns(gpus, nics, across, max(inner, *named))


def _place_host(
    host: HostNodes, columns: _Columns, left: float, top: float, whole: Mapping[int, int]
) -> tuple[list[Frame], list[tuple[Node, Rectangle]], float]:
    """Frames, boxes and the lower end of a host whose frame begins at a place."""
    inside = top + TITLE + PAD
    frames: list[Frame] = []
    places: list[tuple[Node, Rectangle]] = []
    middle = left + PAD + columns.gpus / 2
    wide = columns.gpus - 2 * PAD
    y = inside
    heights: dict[int, float] = {}
    for piece in host.pieces:
        start = y
        y += TITLE + GAP / 2 if piece.title else 0.0
        for position in piece.positions:
            node = host.gpus[position]
            height = node.size[1]
            heights[position] = y + height / 2
            places.append((node, Rectangle(middle, y + height / 2, wide, height)))
            y += height + GAP
        if piece.title:
            frames.append(
                _piece_frame(host, piece, Rectangle.between(left + PAD, left + PAD + columns.gpus, start, y))
            )
            y += GAP
    bottom = y
    used = [[heights[gpu] for gpu in host.users.get(node.name, ())] for node in host.nics]
    wanted = [sum(of) / len(of) if of else bottom for of in used]
    middles = spread(wanted, [node.size[1] for node in host.nics], GAP)
    shift = max(
        0.0,
        inside - min((y - n.size[1] / 2 for y, n in zip(middles, host.nics, strict=True)), default=inside),
    )
    x = left + PAD + columns.gpus + columns.across + columns.nics / 2
    of_nic: dict[str, float] = {}
    for node, y in zip(host.nics, middles, strict=True):
        of_nic[node.name] = y + shift
        places.append((node, Rectangle(x, y + shift, columns.nics, node.size[1])))
        bottom = max(bottom, y + shift + node.size[1] / 2 + GAP)
    joints = [
        (node, [of_nic[nic] for nic in nics] + [heights[gpu] for gpu in gpus])
        for node, gpus, nics in host.shared
    ]
    between = left + PAD + columns.gpus + columns.across / 2
    around = spread([sum(of) / len(of) for _, of in joints], [node.size[1] for node, _ in joints], GAP)
    places.extend(
        (node, Rectangle(between, y, *node.size)) for (node, _), y in zip(joints, around, strict=True)
    )
    bottom += PAD - GAP / 2
    outer = whole.get(host.index)
    parent = None if outer is None else f"domain_{outer}"
    box = Rectangle.between(left, left + columns.width, top, bottom)
    return [Frame(host.name, "host", host.title, box, parent), *frames], places, bottom


def _piece_frame(host: HostNodes, piece: Piece, box: Rectangle) -> Frame:
    return Frame(piece.name, "domain", piece.title, box, host.name, piece.assumed)


def _endpoints(cluster: Cluster, hosts: Sequence[HostNodes]) -> list[Endpoint]:
    endpoints = []
    for host in hosts:
        known = cluster.hosts[host.index]
        for nic, node in zip(known.nics, host.nics, strict=True):
            if node.off:
                continue
            leaves: tuple[str, ...] = (nic.leaf.value,) if nic.leaf is not None else ()
            if not leaves and all(each.leaf is None for each in known.nics):
                leaves = known.leaves
            endpoints.append(Endpoint(node.name, (known.name,), leaves, host.rates.get(node.name)))
    return endpoints


def _from_the_top(picture: Picture) -> Picture:
    """The picture moved down so that nothing is above its origin."""
    boxes = [*(box for _, box in picture.nodes), *(frame.box for frame in picture.frames)]
    down = max(0.0, -min((box.top for box in boxes), default=0.0))
    if not down:
        return picture
    return Picture(
        tuple((node, box.moved(0, down)) for node, box in picture.nodes),
        tuple(replace(frame, box=frame.box.moved(0, down)) for frame in picture.frames),
        picture.lines,
    )
