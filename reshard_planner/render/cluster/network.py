"""The network of a picture: switches in tiers above what is plugged into them, pods, and what is beyond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from reshard_planner.intset import format_ints
from reshard_planner.render.cluster.picture import Line, Node
from reshard_planner.render.cluster.words import name_list, ratio_text, uplink_texts
from reshard_planner.render.text import format_rate, plain
from reshard_planner.topology.cluster.checks import oversubscription
from reshard_planner.topology.cluster.model import Cluster, Switch
from reshard_planner.topology.cluster.pods import ResolvedPod

MAX_LEAVES, MAX_ABOVE = 12, 2
"""Most boxes of leaves, and of each tier above, where switches that are alike are joined."""

NETWORK = "network"
"""Node of what is not known of the network."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is plugged into switches.

    Attributes:
        name: its node.
        hosts: names of hosts that it belongs to.
        leaves: switches that it is plugged into.
        bytes_per_s: rate of each of its ports; None where they differ or are unknown.
    """

    name: str
    hosts: tuple[str, ...]
    leaves: tuple[str, ...]
    bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """Nodes from the leaves up, and the lines that join them and what is below."""

    tiers: tuple[tuple[Node, ...], ...]
    lines: tuple[Line, ...]


def count_switches(cluster: Cluster) -> int:
    """Switches that a picture has if none of them are joined."""
    leaves = (leaf for host in cluster.hosts for leaf in host.leaves)
    return len(_levels({switch.name: switch for switch in cluster.switches}, leaves))


def find_network(
    cluster: Cluster, endpoints: Sequence[Endpoint], pods: Sequence[ResolvedPod], *, join: bool
) -> Network:
    """The network above some endpoints.

    Args:
        cluster: overrides applied.
        endpoints: what is plugged in.
        pods: of the cluster; those that are stated get a node for their uplink.
        join: whether switches that are alike become one node.
    """
    switches = {switch.name: switch for switch in cluster.switches}
    levels = _levels(switches, (leaf for end in endpoints for leaf in end.leaves))
    known = {name: switches.get(name, Switch(name)) for name in levels}
    groups = _groups(known, levels, endpoints, join=join)
    rails = _rails(cluster)
    group_of = {name: f"switch_{index}" for index, names in enumerate(groups) for name in names}
    count = max(levels.values(), default=-1) + 1
    tiers: list[list[Node]] = [[] for _ in range(count)]
    for index, names in enumerate(groups):
        members = [known[name] for name in names]
        tiers[levels[names[0]]].append(_switch(f"switch_{index}", members, rails))
    lines: dict[tuple[str, str], Line] = {}
    for end in endpoints:
        for leaf in end.leaves:
            line = Line(end.name, group_of[leaf], "port", (plain(leaf),), bytes_per_s=end.bytes_per_s)
            lines.setdefault((line.tail, line.head), line)
    for switch in known.values():
        for parent in switch.parents:
            if levels[parent] <= levels[switch.name]:
                continue  # told from the other side
            line = Line(
                group_of[switch.name], group_of[parent], "uplink", (plain(switch.name), plain(parent))
            )
            lines.setdefault((line.tail, line.head), line)
    beyond = _beyond(endpoints, pods if cluster.pods else (), group_of)
    tops = [
        Line(group_of[switch.name], NETWORK, "uplink", (plain(switch.name),))
        for switch in known.values()
        if not switch.parents and switch.uplink.bytes_per_s is not None
    ]
    above = [*beyond.lines, *tops]
    tiers.append(list(beyond.nodes))
    if any(line.head == NETWORK for line in above):
        words = (NETWORK,) if known else (NETWORK, "switches unknown")
        tiers.append([Node(NETWORK, "switch", words, assumed=True)])
    unique = {(line.tail, line.head): line for line in (*lines.values(), *above)}
    return Network(tuple(tuple(tier) for tier in tiers if tier), tuple(unique.values()))


def _levels(switches: Mapping[str, Switch], leaves: Iterable[str]) -> dict[str, int]:
    """How many links each switch is above the nearest of the leaves; 0 for these."""
    levels: dict[str, int] = {}
    level, reached = 0, list(dict.fromkeys(leaves))
    while reached:
        levels.update((name, level) for name in reached)
        above = (parent for name in reached if name in switches for parent in switches[name].parents)
        reached = [name for name in dict.fromkeys(above) if name not in levels]
        level += 1
    return levels


def _groups(
    known: Mapping[str, Switch], levels: Mapping[str, int], endpoints: Sequence[Endpoint], *, join: bool
) -> list[list[str]]:
    """Switches that become one node each, by the finest likeness that leaves few enough of them."""
    if not join:
        return [[name] for name in known]
    ends: dict[str, list[str]] = {}
    for end in endpoints:
        for leaf in end.leaves:
            ends.setdefault(leaf, []).append(end.name)

    def rates(switch: Switch) -> tuple[Hashable, ...]:
        ports = (switch.downlink.bytes_per_s, switch.uplink.bytes_per_s)
        return tuple(None if rate is None else rate.value for rate in ports)

    likenesses: tuple[Callable[[Switch], Hashable], ...] = (
        lambda switch: (rates(switch), tuple(ends.get(switch.name, ()))),
        rates,
        lambda switch: (oversubscription(switch) or 0) > 1,
        lambda _: None,
    )
    groups: list[list[str]] = []
    for level in range(max(levels.values(), default=-1) + 1):
        names = [name for name in known if levels[name] == level]
        for likeness in likenesses:
            found: dict[Hashable, list[str]] = {}
            for name in names:
                found.setdefault(likeness(known[name]), []).append(name)
            if len(found) <= (MAX_ABOVE if level else MAX_LEAVES):
                break
        groups.extend(found.values())
    return groups


def _rails(cluster: Cluster) -> dict[str, tuple[int, ...]]:
    """Rails of each leaf."""
    rails: dict[str, set[int]] = {}
    for host in cluster.hosts:
        for nic in host.nics:
            if nic.leaf is not None and nic.rail is not None:
                rails.setdefault(nic.leaf.value, set()).add(nic.rail.value)
    return {leaf: tuple(sorted(numbers)) for leaf, numbers in rails.items()}


def _switch(name: str, members: Sequence[Switch], rails: Mapping[str, tuple[int, ...]]) -> Node:
    """One switch, or several that are alike."""
    several = len(members) > 1
    names = [member.name for member in members]
    lines = [f"{len(members)} switches" if several else plain(names[0])]
    if several:
        lines.append(name_list(names, 40))
    of = [rails.get(each, ()) for each in names]
    numbers = sorted({rail for each in of for rail in each})
    if several and len(numbers) > 1 and all(len(each) == 1 for each in of):
        lines.append(f"each of one rail: {format_ints(numbers)}")
    elif numbers:
        lines.append(f"rail{'s' * (len(numbers) > 1)} {format_ints(numbers)}")
    each_word = "each " if several else ""
    rates = {
        word: Counter(fact.value for fact in facts if fact is not None)
        for word, facts in (
            ("down", [member.downlink.bytes_per_s for member in members]),
            ("up", [member.uplink.bytes_per_s for member in members]),
        )
    }
    shown = [f"{word} {_rates(counts)}" for word, counts in rates.items() if counts]
    if shown:
        lines.append(each_word + ", ".join(shown))
    ratios = [ratio for member in members if (ratio := oversubscription(member)) is not None and ratio > 1]
    if ratios:
        lines.append(("up to " if len(set(ratios)) > 1 else "") + ratio_text(max(ratios)))
    attributes = {"count": str(len(members))} if several else {"switch": plain(names[0], 256)}
    tooltip = (name_list(names, 300), *lines[1:])
    return Node(name, "switch", tuple(lines), tooltip, marked=bool(ratios), attributes=attributes)


def _rates(counts: Counter[int]) -> str:
    least, most = min(counts), max(counts)
    return format_rate(least) if least == most else f"{format_rate(least)} to {format_rate(most)}"


@dataclass(frozen=True, slots=True)
class _Beyond:
    nodes: tuple[Node, ...]
    lines: tuple[Line, ...]


def _beyond(
    endpoints: Sequence[Endpoint], pods: Sequence[ResolvedPod], group_of: Mapping[str, str]
) -> _Beyond:
    """Uplinks of stated pods, alike ones joined if they are many, and the unknown network."""
    alike: dict[Hashable, list[ResolvedPod]] = {}
    for index, pod in enumerate(pods):
        key = index if len(pods) <= MAX_LEAVES else (len(pod.hosts), pod.uplink)
        alike.setdefault(key, []).append(pod)
    node_of: dict[str, str] = {}
    nodes = []
    for index, members in enumerate(alike.values()):
        node_of.update((host, f"uplink_{index}") for pod in members for host in pod.hosts)
        nodes.append(_uplink(f"uplink_{index}", members))
    lines: list[Line] = []
    for end in endpoints:
        heads = dict.fromkeys(node_of.get(host, NETWORK) for host in end.hosts)
        for head in heads:
            if not end.leaves:
                lines.append(
                    Line(end.name, head, "port", (), assumed=head == NETWORK, bytes_per_s=end.bytes_per_s)
                )
            elif head != NETWORK:
                lines.extend(Line(group_of[leaf], head, "uplink") for leaf in end.leaves)
    reached = {line.head for line in lines}
    kept = [node for node in nodes if node.name in reached]
    lines += [Line(node.name, NETWORK, "uplink", node.lines) for node in kept]
    return _Beyond(tuple(kept), tuple(lines))


def _uplink(name: str, pods: Sequence[ResolvedPod]) -> Node:
    first = pods[0]
    if len(pods) == 1:
        title = f"uplink of pod {plain(first.name, 40)}"
    else:
        title = f"{len(pods)} uplinks of pods {name_list([pod.name for pod in pods], 40)}"
    each = "each " if len(pods) > 1 else ""
    rate, *ratio = uplink_texts(first)
    lines = (title, each + rate, *ratio)
    attributes = {} if first.uplink is None else {"bytes_per_s": str(first.uplink.bytes_per_s)}
    return Node(
        name,
        "pod",
        lines,
        marked=first.limits,
        assumed=first.uplink is None,
        attributes=attributes,
    )
