"""A large cluster: hosts that are alike as one box, in the frames of their pods, switches beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from reshard_planner.render.cluster.devices import Devices
from reshard_planner.render.cluster.network import Endpoint, find_network
from reshard_planner.render.cluster.picture import TITLE_FONT, Frame, Node, Picture
from reshard_planner.render.cluster.tiers import place_tiers
from reshard_planner.render.cluster.words import gpus_text, name_list, nics_text, rate_text, uplink_texts
from reshard_planner.render.sheets.rectangle import Rectangle
from reshard_planner.render.sheets.widths import text_width
from reshard_planner.render.text import format_count, format_ranks, format_rate, plain
from reshard_planner.topology.cluster.model import Cluster, Host
from reshard_planner.topology.cluster.pods import ResolvedPod
from reshard_planner.topology.cluster.resolve import Resolved
from reshard_planner.topology.cluster.speeds import model_of, nic_facts
from reshard_planner.topology.model import NIC_LINK

MAX_BOXES = 12
"""Most boxes of hosts; above, hosts are joined over domains, and then over pods that are alike."""

PAD, TITLE, GAP, SPACE = 10.0, 20.0, 10.0, 22.0
"""Room inside frames, height of their titles, room between boxes and between frames, in points."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a host is like.

    Attributes:
        gpus, nics: in words.
        known: whether anything but their number is known of its GPUs.
        domain: hosts and GPUs of its domain, if that has several hosts; and how many domains it has, else.
        marked: whether a device of it is less than its like.
    """

    gpus: str
    nics: str
    known: bool
    domain: tuple[int, int]
    marked: bool


def overview_picture(cluster: Cluster, resolved: Resolved) -> Picture:
    """Groups of hosts with their places.

    Args:
        cluster: overrides applied.
        resolved: what planning makes of it.
    """
    pods = resolved.pods
    devices = Devices.of(cluster, resolved)
    kinds = [_kind(devices, index) for index in range(len(cluster.hosts))]
    groups = _groups(devices, kinds, pods)
    nodes, endpoints = [], []
    titles = _titles(devices, pods, groups)
    for at, group in enumerate(groups):
        hosts = group.hosts
        nodes.append(_box(devices, kinds, f"hosts_{at}", hosts, group.frames[-1] if group.frames else None))
        leaves = dict.fromkeys(leaf for host in hosts for leaf in cluster.hosts[host].leaves)
        endpoints.append(
            Endpoint(f"hosts_{at}", tuple(cluster.hosts[host].name for host in hosts), tuple(leaves))
        )
    placed, frames = _place(nodes, groups, titles)
    network = find_network(cluster, endpoints, pods, join=True)
    right = max([*(box.right for _, box in placed), *(frame.box.right for frame in frames)])
    tiers = place_tiers(network, {node.name: box for node, box in placed}, right)
    down = max(0.0, -min((box.top for _, box in tiers), default=0.0))
    moved = [(node, box.moved(0, down)) for node, box in (*placed, *tiers)]
    framed = [Frame(f.name, f.kind, f.title, f.box.moved(0, down), f.parent, f.assumed) for f in frames]
    return Picture(tuple(moved), tuple(framed), network.lines)


@dataclass(frozen=True, slots=True)
class _Group:
    """Hosts that are one box.

    Attributes:
        pod: the pod, or the first of those that are alike, in whose frame they stand.
        domain: the domain over several hosts in whose frame they stand.
        hosts: their indices.
    """

    pod: int | None
    domain: int | None
    hosts: tuple[int, ...]

    @property
    def frames(self) -> tuple[str, ...]:
        """Names of the frames around them, the outer first."""
        frames = (("pod", self.pod), ("domain", self.domain))
        return tuple(f"{kind}_{number}" for kind, number in frames if number is not None)


def _groups(devices: Devices, kinds: Sequence[_Kind], pods: Sequence[ResolvedPod]) -> list[_Group]:
    """Hosts that become one box each, by the finest likeness that leaves few enough of them."""
    hosts = devices.cluster.hosts
    pod_of = {name: index for index, pod in enumerate(pods) for name in pod.hosts}
    alike: dict[Hashable, int] = {}
    first_alike = [
        alike.setdefault((len(pod.hosts), pod.uplink, pod.limits), index) for index, pod in enumerate(pods)
    ]
    framed = [_framed(devices, pod_of, index) for index in range(len(hosts))]
    # by kind, domain and pod; then without domains; then with pods that are alike as one; then by size alone
    found: dict[tuple[int | None, int | None, Hashable], list[int]] = {}
    for by_domain, by_pod, by_kind in (
        (True, True, True),
        (False, True, True),
        (False, False, True),
        (False,) * 3,
    ):
        found = {}
        for index, host in enumerate(hosts):
            pod = pod_of.get(host.name)
            pod = pod if pod is None or by_pod else first_alike[pod]
            domain = framed[index] if by_domain else None
            kind: Hashable = kinds[index] if by_kind else len(host.gpus)
            found.setdefault((pod, domain, kind), []).append(index)
        if len(found) <= MAX_BOXES:
            break
    groups = [_Group(pod, domain, tuple(members)) for (pod, domain, _), members in found.items()]
    last = len(hosts) + len(devices.domain_of)
    groups.sort(
        key=lambda group: (
            last if group.pod is None else group.pod,
            last if group.domain is None else group.domain,
            group.hosts[0],
        )
    )
    rest = tuple(sorted(index for group in groups[MAX_BOXES:] for index in group.hosts))
    return [*groups[:MAX_BOXES], *([_Group(None, None, rest)] if rest else [])]


def _framed(devices: Devices, pod_of: Mapping[str, int], index: int) -> int | None:
    """The domain that a host is all of with others of its pod, if there is one."""
    domains = devices.domains_of_host[index]
    if len(domains) != 1:
        return None
    [domain] = domains
    members = devices.hosts_of_domain[domain]
    names = (devices.cluster.hosts[member].name for member in members)
    return domain if len(members) > 1 and len({pod_of.get(name) for name in names}) == 1 else None


def _kind(devices: Devices, index: int) -> _Kind:
    cluster = devices.cluster
    host = cluster.hosts[index]
    domains = devices.domains_of_host[index]
    across = max((len(devices.hosts_of_domain[domain]) for domain in domains), default=0)
    first = min(domains, default=0)
    size = len(devices.resolved.domains[first].gpus) if across > 1 else len(domains)
    number = devices.firsts[index]
    marked = any(number + position in devices.marks.gpus for position in range(len(host.gpus)))
    marked = marked or any((host.name, nic.name) in devices.marks.nics for nic in host.nics)
    known = any(model_of(cluster, host, gpu) or gpu.nvlinks is not None for gpu in host.gpus) or not host.gpus
    return _Kind(gpus_text(cluster, host), _nics(cluster, host), known, (across, size), marked)


def _nics(cluster: Cluster, host: Host) -> str:
    """NICs of a host with their rates."""
    rates = Counter(
        rate_text(nic_facts(cluster, host, nic).bytes_per_s, NIC_LINK.bytes_per_s) for nic in host.nics
    )
    if len(rates) == 1:
        return nics_text(host.nics, f" of {next(iter(rates))}")
    return nics_text(host.nics) + "".join(f", {count} of {rate}" for rate, count in rates.items())


def _box(
    devices: Devices, of_host: Sequence[_Kind], name: str, hosts: Sequence[int], frame: str | None
) -> Node:
    """Hosts that are alike."""
    cluster = devices.cluster
    names = [cluster.hosts[index].name for index in hosts]
    kinds = list(dict.fromkeys(of_host[index] for index in hosts))
    count = sum(len(cluster.hosts[index].gpus) for index in hosts)
    title = f"host {plain(names[0], 40)}"
    if len(hosts) > 1:
        sizes = {len(cluster.hosts[index].gpus) for index in hosts}
        size = f" x {format_count(max(sizes), 'GPU')}" if len(sizes) == 1 and max(sizes) else ""
        title = f"{name_list(names, 40)}: {format_count(len(hosts), 'host')}{size}"
    framed = frame is not None and frame.startswith("domain")
    each = "each: " if len(hosts) > 1 else ""
    if len(kinds) == 1:
        said = [kinds[0].gpus] if kinds[0].known or not each else []
        lines = [
            title,
            *(f"{each}{text}" for text in (*said, kinds[0].nics)),
            *([] if framed else _domains(devices, hosts)),
        ]
    else:
        lines = [title, f"{len(kinds)} kinds of hosts, {format_count(count, 'GPU')}"]
    numbers = sorted({domain for index in hosts for domain in devices.domains_of_host[index]})
    return Node(
        name,
        "hosts",
        tuple(lines),
        (name_list(names, 300), *lines[1:]),
        marked=any(kind.marked for kind in kinds),
        assumed=any(devices.assumed(domain) for domain in numbers[:1]),
        frame=frame,
        attributes={"hosts": str(len(hosts)), "gpus": str(count), "domains": str(len(numbers))},
    )


def _domains(devices: Devices, hosts: Sequence[int]) -> list[str]:
    """The domains of hosts that are alike."""
    numbers = sorted({domain for index in hosts for domain in devices.domains_of_host[index]})
    if not numbers:
        return []
    links = Counter(devices.resolved.topology.domains[number].link.bytes_per_s for number in numbers)
    rate = format_rate(min(links)) + ("" if len(links) == 1 else f" to {format_rate(max(links))}")
    over_pcie = all(devices.resolved.domains[number].over_pcie for number in numbers)
    spread = {len(devices.hosts_of_domain[number]) for number in numbers}
    sizes = {len(devices.resolved.domains[number].gpus) for number in numbers}
    size = format_count(max(sizes), "GPU") if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)} GPUs"
    named = f"domain {numbers[0]}" if len(numbers) == 1 else f"domains {format_ranks(numbers)}"
    where = f" on {format_count(max(spread), 'host')}" if max(spread) > 1 else ""
    every = "" if len(numbers) == 1 else " each"
    medium = "PCIe" if over_pcie else "NVLink"
    one_each = 1 < len(numbers) == len(hosts) and max(spread) == 1
    lines = [f"{named}: one per host" if one_each else f"{named}: {size}{where}{every}"]
    if max(sizes) > 1:
        lines.append(f"{medium} {rate} per GPU{devices.origin(numbers[0])}")
    return lines


def _titles(devices: Devices, pods: Sequence[ResolvedPod], groups: Sequence[_Group]) -> dict[str, str]:
    """Title of every frame."""
    pod_of = {name: index for index, pod in enumerate(pods) for name in pod.hosts}
    titles: dict[str, str] = {}
    inside: dict[int, set[int]] = {}
    for group in groups:
        if group.domain is not None:
            titles[f"domain_{group.domain}"] = devices.domain_title(group.domain)
        if group.pod is not None:
            names = (devices.cluster.hosts[index].name for index in group.hosts)
            inside.setdefault(group.pod, set()).update(pod_of[name] for name in names)
    for frame, members in inside.items():
        first = pods[frame]
        named = f"pod {plain(first.name, 40)}" if len(members) == 1 else f"{len(members)} pods, each"
        uplink = "" if devices.cluster.pods else f", uplink {', '.join(uplink_texts(first))}"
        titles[f"pod_{frame}"] = f"{named}: {format_count(len(first.hosts), 'host')}{uplink}"
    return titles


def _place(
    nodes: Sequence[Node], groups: Sequence[_Group], titles: Mapping[str, str]
) -> tuple[list[tuple[Node, Rectangle]], list[Frame]]:
    """Boxes below each other, with frames around those that have them in common."""
    depth = max((len(group.frames) for group in groups), default=0)
    width = max(
        [
            *(node.size[0] for node in nodes),
            *(text_width(title, TITLE_FONT) + 2 * PAD for title in titles.values()),
        ]
    )
    placed: list[tuple[Node, Rectangle]] = []
    found: dict[str, Frame] = {}
    opened: list[tuple[str, float]] = []
    top = 0.0
    for at, (node, group) in enumerate(zip(nodes, groups, strict=True)):
        for level, name in enumerate(group.frames[len(opened) :], len(opened)):
            parent = group.frames[level - 1] if level else None
            found[name] = Frame(name, name.partition("_")[0], titles[name], Rectangle(0, 0, 0, 0), parent)
            opened.append((name, top))
            top += TITLE + PAD / 2
        height = node.size[1]
        left = depth * PAD
        placed.append((node, Rectangle.between(left, left + width, top, top + height)))
        top += height
        following = groups[at + 1].frames if at + 1 < len(groups) else ()
        while opened and [name for name, _ in opened] != list(following[: len(opened)]):
            name, start = opened.pop()
            top += PAD
            outer = len(opened) * PAD
            box = Rectangle.between(outer, 2 * depth * PAD + width - outer, start, top)
            found[name] = replace(found[name], box=box)
        top += GAP if opened else SPACE
    return placed, list(found.values())
