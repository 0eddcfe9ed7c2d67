"""A tree of switches, from lists of children or from the switches above each host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.hostlist import MAX_HOSTS, brief_names
from reshard_planner.topology.cluster.model import Switch
from reshard_planner.topology.wording import quote

MAX_LEVELS = 32
"""Most switches above one another."""

MAX_LINKS = 2**19
"""Most links between switches, and most between switches and hosts."""


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """One switch as files list it.

    Attributes:
        name: distinct among all rows.
        children: names of the switches below it.
        hosts: names of the hosts that are plugged into it.
    """

    name: str
    children: tuple[str, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwitchTree:
    """What rows of switches say.

    Attributes:
        switches: all switches, in the order of the rows.
        hosts: names of all hosts, in the order in which they are first named.
        paths: switches above each host, the nearest first; without hosts that are plugged into several.
        findings: where it is no tree.
    """

    switches: tuple[Switch, ...]
    hosts: tuple[str, ...]
    paths: Mapping[str, tuple[str, ...]]
    findings: tuple[Finding, ...]


def build_tree(rows: Iterable[SwitchRow], source: str) -> SwitchTree:
    """Joins rows of switches to a tree; ``source`` names them in errors.

    Raises:
        TopologyError: if a switch has two rows, a child has none, switches are above themselves, or there are
            too many hosts or levels.
    """
    listed: dict[str, SwitchRow] = {}
    for row in rows:
        if row.name in listed:
            raise TopologyError(f"{source} has switch {quote(row.name, 60)} twice; expected each once")
        listed[row.name] = row
    parents: dict[str, list[str]] = {name: [] for name in listed}
    leaves: dict[str, list[str]] = {}
    for row in listed.values():
        for child in dict.fromkeys(row.children):
            if child not in parents:
                raise TopologyError(
                    f"{source} has no switch {quote(child, 60)}, which switch {quote(row.name, 60)} has below"
                    " it; expected one, unless the file is cut short"
                )
            parents[child].append(row.name)
        for host in dict.fromkeys(row.hosts):
            leaves.setdefault(host, []).append(row.name)
    check_hosts(len(leaves), source)
    if max(sum(map(len, parents.values())), sum(map(len, leaves.values()))) > MAX_LINKS:
        raise TopologyError(f"{source} has more than {MAX_LINKS} links of switches; expected at most that")
    levels = _levels(parents, source)
    switches = tuple(Switch(name, tuple(parents[name])) for name in levels)
    above = {name: _path(name, parents) for name in levels}
    paths = {host: above[names[0]] for host, names in leaves.items() if len(names) == 1}
    return SwitchTree(switches, tuple(leaves), paths, (*_several_leaves(leaves), *_several_parents(parents)))


def switches_of_paths(paths: Iterable[tuple[str, ...]], source: str) -> tuple[Switch, ...]:
    """The switches that paths name, each with all that come directly after it in one of them.

    Raises:
        TopologyError: if a switch is above itself, or a path has too many levels.
    """
    above: dict[str, dict[str, None]] = {}
    for path in dict.fromkeys(paths):
        for name in path:
            above.setdefault(name, {})
        for below, name in pairwise(path):
            above[below][name] = None
    parents = {name: list(names) for name, names in above.items()}
    return tuple(Switch(name, tuple(parents[name])) for name in _levels(parents, source))


def check_hosts(count: int, source: str) -> None:
    """Refuses more hosts than a cluster may have.

    Raises:
        TopologyError: if it is more than 131,072.
    """
    if count > MAX_HOSTS:
        raise TopologyError(f"{source} names {count} hosts; expected at most {MAX_HOSTS}")


def _levels(parents: Mapping[str, list[str]], source: str) -> list[str]:
    """The names, in their order, after a look that no switch is above itself and none is too deep."""
    children: dict[str, list[str]] = {name: [] for name in parents}
    waiting = {name: len(above) for name, above in parents.items()}
    for name, above in parents.items():
        for parent in above:
            children[parent].append(name)
    level, seen, depth = [name for name, count in waiting.items() if not count], 0, 0
    while level:
        depth += 1
        if depth > MAX_LEVELS:
            raise TopologyError(
                f"{source} has switches below more than {MAX_LEVELS} others; expected at most that"
            )
        seen += len(level)
        below = []
        for name in level:
            for child in children[name]:
                waiting[child] -= 1
                if not waiting[child]:
                    below.append(child)
        level = below
    if seen < len(parents):
        around = next(name for name, count in waiting.items() if count)
        raise TopologyError(
            f"{source} has switch {quote(around, 60)} above or below a ring of switches; expected a tree"
        )
    return list(parents)


def _path(name: str, parents: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The switch and those above it, up to one that has none above it, or several."""
    path = [name]
    while len(parents[path[-1]]) == 1:
        path.append(parents[path[-1]][0])
    return tuple(path)


def _several_leaves(leaves: Mapping[str, list[str]]) -> list[Finding]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for host, names in leaves.items():
        if len(names) > 1:
            groups.setdefault(tuple(names), []).append(host)
    return [
        Finding(
            FindingKind.CONFLICT,
            f"hosts {brief_names(hosts)}",
            f"listed under several switches, {brief_names(names)}; no path is taken for them",
        )
        for names, hosts in groups.items()
    ]


def _several_parents(parents: Mapping[str, list[str]]) -> list[Finding]:
    names = [name for name, above in parents.items() if len(above) > 1]
    if not names:
        return []
    return [
        Finding(
            FindingKind.UNKNOWN,
            f"switches {brief_names(names)}",
            "listed below several switches, so that paths of hosts end there",
        )
    ]
