"""Cables of an InfiniBand network: what both ends of each say, brought together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.importers.ibnet_text import Listing, PortLine, bytes_per_s
from reshard_planner.topology.wording import listed

_End = tuple[str, int]
_MOST = 5


class Cable(NamedTuple):
    """One cable: node, number and GUID of the port at both ends, and its rate; None is unknown."""

    node: str
    port: int
    guid: str
    peer: str
    peer_port: int
    peer_guid: str
    bytes_per_s: int | None


@dataclass(frozen=True, slots=True)
class Cables:
    """All cables of a network.

    Attributes:
        descriptions: what nodes are called, by node; also of those that only their neighbours name.
        images: GUID of the adapter that a node is part of, by node.
        ends: the cables of each node, seen from it, in the order of its ports.
        findings: where the two ends of a cable differ, or one says nothing.
    """

    descriptions: dict[str, str]
    images: dict[str, str]
    ends: dict[str, list[Cable]]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Doubts:
    """Places where the two ends of cables do not fit together."""

    missing: dict[str, None] = field(default_factory=dict)
    one_sided: list[str] = field(default_factory=list)
    contradicted: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    unknown_rates: set[str] = field(default_factory=set)


def read_cables(listing: Listing, source: str) -> Cables:
    """The cables that a listing states; where its two ends contradict each other, a cable is left out."""
    descriptions = {node: block.description for node, block in listing.blocks.items()}
    ends: dict[str, list[Cable]] = {node: [] for node in listing.blocks}
    doubts = _Doubts()
    taken: set[_End] = set()
    for node, number, port in _ports(listing):
        here, there = (node, number), (port.peer, port.peer_port)
        place = f"{node}[{number}] in line {port.line}"
        block = listing.blocks.get(port.peer)
        back = block.ports.get(port.peer_port) if block is not None else None
        if block is None:
            doubts.missing[port.peer] = None
            descriptions.setdefault(port.peer, port.description)
            ends.setdefault(port.peer, [])
        elif port.description != block.description:
            doubts.renamed.append(f"{port.peer} in line {port.line}")
        agreed = back is not None and (back.peer, back.peer_port) == here
        if agreed and here in taken:
            continue  # the other end came first
        if here in taken or there in taken or here == there or (back is not None and not agreed):
            doubts.contradicted.append(place)
            continue
        if block is not None and back is None:
            doubts.one_sided.append(place)
        taken.update((here, there))
        cable = Cable(node, number, *_merged(port, back, there, place, doubts))
        ends[node].append(cable)
        ends[cable.peer].append(
            Cable(*there, cable.peer_guid, cable.node, cable.port, cable.guid, cable.bytes_per_s)
        )
    for cables in ends.values():
        cables.sort(key=lambda cable: cable.port)
    images = {node: block.image for node, block in listing.blocks.items()}
    return Cables(descriptions, images, ends, _findings(doubts, source))


def _merged(
    port: PortLine, back: PortLine | None, there: _End, place: str, doubts: _Doubts
) -> tuple[str, str, int, str, int | None]:
    """What follows node and port in a cable."""
    rate = bytes_per_s(port.rate)
    for written in {port.rate, back.rate if back is not None else port.rate}:
        if bytes_per_s(written) is None:
            doubts.unknown_rates.add(written)
    if back is None:
        return port.guid, *there, port.peer_guid, rate
    if back.rate != port.rate or _differ(port.guid, back.peer_guid) or _differ(port.peer_guid, back.guid):
        doubts.differing.append(f"{place}, {port.rate} and {back.rate}")
        other = bytes_per_s(back.rate)
        rate = None if rate is None or other is None else min(rate, other)
    return port.guid or back.peer_guid, *there, port.peer_guid or back.guid, rate


def _findings(doubts: _Doubts, source: str) -> tuple[Finding, ...]:
    findings = []
    if doubts.missing:
        nodes = list(doubts.missing)
        text = f"nodes that only their neighbours name: {len(nodes)}, {listed(nodes, _MOST)}"
        findings.append(
            Finding(FindingKind.UNKNOWN, source, f"{text}; the file may end early, and cables be missing")
        )
    for places, text in (
        (
            doubts.one_sided,
            "the block at one end of a cable does not state it, that of the other does; it is taken",
        ),
        (doubts.contradicted, "the two ends of a cable name other ports; it is left out"),
        (doubts.differing, "the two ends of a cable differ in its rate or a GUID; the lower rate is taken"),
        (doubts.renamed, "a node has another name at its neighbour than in its own block, which is taken"),
    ):
        if places:
            findings.append(Finding(FindingKind.CONFLICT, source, f"{text}: {listed(places, _MOST)}"))
    if doubts.unknown_rates:
        rates = listed(sorted(doubts.unknown_rates), _MOST)
        text = f"rates {rates} are not known, expected such as 4xNDR; the speed of these cables is left open"
        findings.append(Finding(FindingKind.UNKNOWN, source, text))
    return tuple(findings)


def _ports(listing: Listing) -> Iterator[tuple[str, int, PortLine]]:
    for node, block in listing.blocks.items():
        for number, port in block.ports.items():
            yield node, number, port


def _differ(here: str, there: str) -> bool:
    """Whether two lines state different GUIDs; an empty one states none."""
    return bool(here) and bool(there) and here != there
