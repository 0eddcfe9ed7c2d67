"""Switches of an InfiniBand network: their names, which is above which, and what lies between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin, PortFacts
from reshard_planner.topology.cluster.hostlist import brief_names
from reshard_planner.topology.cluster.model import MAX_NAME, Switch
from reshard_planner.topology.importers.ibnet_cables import Cable, Cables
from reshard_planner.topology.wording import gigabytes, listed, natural

_FEW = 4
"""A switch is a leaf if one of its neighbours has at most so many times more hosts' ports."""


@dataclass(frozen=True, slots=True)
class Network:
    """The switches; their names by node, such as ``S-2c5eab0300b87b40``."""

    switches: tuple[Switch, ...]
    names: dict[str, str]
    findings: tuple[Finding, ...]


def is_aggregation(cables: Cables, node: str) -> bool:
    """Whether a node is what a switch computes reductions with, which looks like a host's port."""
    return "Aggregation Node" in cables.descriptions[node]


def read_switches(cables: Cables, source: str) -> Network:
    """The switches of a network and findings on their cables."""
    nodes = [node for node in cables.ends if node.startswith("S")]
    names = _names(nodes, cables)
    nodes.sort(key=lambda node: natural(names[node]))
    hosts = {node: [l for l in cables.ends[node] if _is_host(cables, l.peer)] for node in nodes}
    joined = {
        node: [l for l in cables.ends[node] if l.peer.startswith("S") and l.peer != node] for node in nodes
    }
    levels = _levels(nodes, hosts, joined)
    above = {n: [l for l in joined[n] if levels.get(l.peer, 0) > levels.get(n, 0)] for n in nodes}
    below = {n: [l for l in joined[n] if levels.get(l.peer, 0) < levels.get(n, 0)] for n in nodes}
    switches = tuple(
        Switch(
            names[node],
            parents=tuple(
                names[peer] for peer in sorted({l.peer for l in above[node]}, key=lambda p: natural(names[p]))
            ),
            uplink=_speed(above[node], source),
            downlink=_speed(hosts[node] + below[node], source),
        )
        for node in nodes
    )
    findings: list[Finding] = []
    _judge_order(nodes, names, levels, hosts, joined, findings)
    _judge_counts(nodes, names, levels, above, findings)
    _judge_slow(nodes, names, levels, above, findings)
    return Network(switches, names, tuple(findings))


def _is_host(cables: Cables, node: str) -> bool:
    return node.startswith("H") and not is_aggregation(cables, node)


def _names(nodes: list[str], cables: Cables) -> dict[str, str]:
    """The name that each switch was given; that of the node where there is none, or several have it."""
    given = {node: _given_name(cables.descriptions[node]) for node in nodes}
    counts = Counter(given.values())
    return {
        node: name if name and counts[name] == 1 and name not in cables.ends else node
        for node, name in given.items()
    }


def _given_name(description: str) -> str:
    """``MF0;leaf-1:MQM9700/U1`` is leaf-1; chips of a chassis keep their place, as in leaf-1/L03/U1."""
    name = description.strip()[:MAX_NAME]
    if not name.startswith("MF0;"):
        return name
    system, _, model = name.removeprefix("MF0;").partition(":")
    _, _, place = model.partition("/")
    return system if place in ("", "U1") or not system else f"{system}/{place}"


def _levels(
    nodes: list[str], hosts: dict[str, list[Cable]], joined: dict[str, list[Cable]]
) -> dict[str, int]:
    """Least number of cables to a leaf, by switch; a few ports of hosts do not make a spine a leaf."""
    level = [
        node
        for node in nodes
        if hosts[node]
        and len(hosts[node]) * _FEW >= max((len(hosts[l.peer]) for l in joined[node]), default=0)
    ]
    levels = dict.fromkeys(level, 0)
    while level:
        following = []
        for node in level:
            for cable in joined[node]:
                if cable.peer not in levels:
                    levels[cable.peer] = levels[node] + 1
                    following.append(cable.peer)
        level = following
    return levels


def _speed(cables: Iterable[Cable], source: str) -> PortFacts:
    rates = [cable.bytes_per_s for cable in cables]
    known = [rate for rate in rates if rate is not None]
    if not rates or len(known) < len(rates):
        return PortFacts()
    return PortFacts(Fact(sum(known), Origin.FILE, source))


def _judge_order(
    nodes: list[str],
    names: dict[str, str],
    levels: dict[str, int],
    hosts: dict[str, list[Cable]],
    joined: dict[str, list[Cable]],
    findings: list[Finding],
) -> None:
    apart = [names[node] for node in nodes if node not in levels]
    if apart:
        text = "no path to a host leads from here; what is above or below is left open"
        findings.append(Finding(FindingKind.UNKNOWN, _switches(apart), text))
    level = [n for n in nodes if n in levels and any(levels[l.peer] == levels[n] for l in joined[n])]
    if level:
        text = "joined to switches of the same level; this is no tree, and uplinks are without these cables"
        findings.append(Finding(FindingKind.UNKNOWN, _switches([names[n] for n in level]), text))
    high = [names[node] for node in nodes if hosts[node] and levels.get(node)]
    if high:
        text = "has ports of hosts although it is above switches with more of them; it is not taken as a leaf"
        findings.append(Finding(FindingKind.ASSUMED, _switches(high), text))


def _by_level(nodes: list[str], levels: dict[str, int], above: dict[str, list[Cable]]) -> list[list[str]]:
    """Switches with links upwards, those of one level together, the lowest level first."""
    found: dict[int, list[str]] = defaultdict(list)
    for node in nodes:
        if above[node]:
            found[levels[node]].append(node)
    return [found[level] for level in sorted(found)]


def _judge_counts(
    nodes: list[str],
    names: dict[str, str],
    levels: dict[str, int],
    above: dict[str, list[Cable]],
    findings: list[Finding],
) -> None:
    """Switches with fewer links upwards than most of their level, and where these are missing."""
    for alike in _by_level(nodes, levels, above):
        usual = _usual(len(above[node]) for node in alike)
        counts = {node: Counter(cable.peer for cable in above[node]) for node in alike}
        per_peer = _usual(count for node in alike for count in counts[node].values())
        shared = Counter(peer for node in alike for peer in counts[node])
        peers = [peer for peer, count in shared.items() if 2 * count > len(alike)]
        for node in alike:
            if len(above[node]) < usual:
                low = [p for p in peers if counts[node][p] < per_peer]
                text = f"{len(above[node])} links up where most of its level have {usual}"
                if low:
                    text += ": " + listed([f"{counts[node][p]} of {per_peer} to {names[p]}" for p in low])
                text += "; some may be down"
                findings.append(Finding(FindingKind.DEGRADED, f"switch {names[node]}", text))


def _judge_slow(
    nodes: list[str],
    names: dict[str, str],
    levels: dict[str, int],
    above: dict[str, list[Cable]],
    findings: list[Finding],
) -> None:
    for alike in _by_level(nodes, levels, above):
        cables_up = [cable for node in alike for cable in above[node]]
        usual = _usual(cable.bytes_per_s for cable in cables_up if cable.bytes_per_s)
        slow: dict[tuple[str, int], list[Cable]] = defaultdict(list)
        for cable in cables_up:
            if cable.bytes_per_s and cable.bytes_per_s < usual:
                slow[cable.node, cable.bytes_per_s].append(cable)
        for (node, rate), cables in slow.items():
            ports = listed([f"{cable.port} to {names[cable.peer]}" for cable in cables])
            text = f"links up at {gigabytes(rate)} where most have {gigabytes(usual)}: port {ports}"
            findings.append(Finding(FindingKind.DEGRADED, f"switch {names[node]}", text))


def _usual(numbers: Iterable[int]) -> int:
    """The most common of numbers, the largest of several; 0 where there are none."""
    counts = Counter(numbers)
    return max(counts, key=lambda number: (counts[number], number), default=0)


def _switches(names: list[str]) -> str:
    return ("switch " if len(names) == 1 else "switches ") + brief_names(names)
