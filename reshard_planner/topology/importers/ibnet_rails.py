"""Rails of a network: which NICs of different hosts share leaf switches."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.hostlist import brief_names
from reshard_planner.topology.wording import listed, natural

Plugs = Mapping[str, Mapping[str, str]]
"""Name of the switch that each NIC is plugged into, by host and NIC."""


@dataclass(frozen=True, slots=True)
class Rails:
    """Rails.

    Attributes:
        of_leaf: number of the rail that a leaf belongs to, by its name; leaves of no rail are left out.
        odd: pairs of a host and a NIC that is on another rail than the NICs of that name elsewhere.
        findings: NICs that are plugged in oddly, leaves without a rail, and hosts that lack NICs.
    """

    of_leaf: dict[str, int]
    odd: frozenset[tuple[str, str]]
    findings: tuple[Finding, ...]


def find_rails(plugs: Plugs) -> Rails:
    """The rails that leaves show.

    NICs are numbered in the order of their names, among all names that are alike or occur together on hosts.
    The numbers that most hosts of a leaf plug into it make its rail, which leaves of the same numbers share.
    Where all leaves are alike in this, as where all NICs of a host share a leaf, there are no rails.
    """
    families = _families(plugs)
    findings = _lacking(plugs, families)
    numbers = {name: number for family in families for number, name in enumerate(family)}
    wanted = _numbers_of_leaves(plugs, numbers)
    carried: Counter[frozenset[int]] = Counter()
    for nics in plugs.values():
        for name, leaf in nics.items():
            if numbers[name] in wanted[leaf]:
                carried[wanted[leaf]] += 1
    accepted: list[frozenset[int]] = []
    for group, _ in sorted(carried.items(), key=lambda item: (-item[1], sorted(item[0]))):
        if all(group.isdisjoint(other) for other in accepted):
            accepted.append(group)
    if len(accepted) < 2:
        return Rails({}, frozenset(), tuple(findings))
    accepted.sort(key=min)
    of_leaf = {leaf: accepted.index(group) for leaf, group in wanted.items() if group in accepted}
    bare = sorted((leaf for leaf in wanted if leaf not in of_leaf), key=natural)
    if bare:
        text = "NICs of no one number are plugged in here, unlike at other leaves; their rail is left open"
        findings.append(Finding(FindingKind.UNKNOWN, f"switches {brief_names(bare)}", text))
    odd = _odd(plugs, numbers, accepted, of_leaf, findings)
    return Rails(of_leaf, odd, tuple(findings))


def _families(plugs: Plugs) -> list[list[str]]:
    """Names of NICs that differ in numbers alone or occur together on hosts; each family in natural order."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    together = {tuple(sorted(nics)) for nics in plugs.values()}
    shapes: dict[str, set[str]] = defaultdict(set)
    for name in {name for names in together for name in names}:
        leader[name] = name
        shapes[re.sub(r"\d+", "0", name)].add(name)
    for names in (*together, *shapes.values()):
        for first, second in pairwise(sorted(names)):
            leader[find(first)] = find(second)
    families: dict[str, list[str]] = defaultdict(list)
    for name in sorted(leader, key=natural):
        families[find(name)].append(name)
    return sorted(families.values(), key=lambda family: natural(family[0]))


def _lacking(plugs: Plugs, families: list[list[str]]) -> list[Finding]:
    """Findings on hosts that lack NICs which most hosts with like names have."""
    family_of = {name: at for at, family in enumerate(families) for name in family}
    kinds: dict[int, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for nics in plugs.values():
        if nics:
            kinds[family_of[next(iter(nics))]][tuple(sorted(nics, key=natural))] += 1
    usual = {
        at: max(counts, key=lambda names: (counts[names], len(names), names)) for at, counts in kinds.items()
    }
    lacking: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host, nics in plugs.items():
        if nics:
            names = tuple(name for name in usual[family_of[next(iter(nics))]] if name not in nics)
            if names:
                lacking[names].append(host)
    return [
        Finding(
            FindingKind.DEGRADED,
            _hosts(hosts),
            f"no {listed(names)}, which most hosts with NICs of like names have; links may be down",
        )
        for names, hosts in sorted(lacking.items())
    ]


def _numbers_of_leaves(plugs: Plugs, numbers: Mapping[str, int]) -> dict[str, frozenset[int]]:
    """Numbers of the NICs that more than half of the hosts of a leaf plug into it, by leaf."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    hosts: Counter[str] = Counter()
    for nics in plugs.values():
        for number, leaf in {(numbers[name], leaf) for name, leaf in nics.items()}:
            counts[leaf][number] += 1
        hosts.update(set(nics.values()))
    return {
        leaf: frozenset(n for n, count in counts[leaf].items() if 2 * count > hosts[leaf]) for leaf in counts
    }


def _odd(
    plugs: Plugs,
    numbers: Mapping[str, int],
    accepted: list[frozenset[int]],
    of_leaf: Mapping[str, int],
    findings: list[Finding],
) -> frozenset[tuple[str, str]]:
    rail_of = {number: rail for rail, group in enumerate(accepted) for number in group}
    odd: list[tuple[str, str]] = []
    hosts: dict[tuple[tuple[str, int, int], ...], list[str]] = defaultdict(list)
    for host, nics in plugs.items():
        moved = []
        for name, leaf in nics.items():
            rail, expected = of_leaf.get(leaf), rail_of.get(numbers[name])
            if rail is not None and expected is not None and rail != expected:
                odd.append((host, name))
                moved.append((name, rail, expected))
        if moved:
            hosts[tuple(moved)].append(host)
    for moved_nics, names in hosts.items():
        what = listed([f"{name} on rail {rail} instead of {expected}" for name, rail, expected in moved_nics])
        text = f"{what}, where most hosts have it; if cables are not swapped, rails are to be set by hand"
        findings.append(Finding(FindingKind.CONFLICT, _hosts(names), text))
    return frozenset(odd)


def _hosts(names: list[str]) -> str:
    return ("host " if len(names) == 1 else "hosts ") + brief_names(names)
