"""Network ports of an NCCL topology file."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from xml.etree.ElementTree import Element

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, PortFacts
from reshard_planner.topology.cluster.model import MAX_NAME, MAX_NICS, HostNic
from reshard_planner.topology.importers.nccl_tree import HostTree, Spot, missing_numbers, read_number
from reshard_planner.topology.wording import listed, quote

MAX_MBPS = 10_000_000
"""Fastest port that is believed, in Mb/s: some plugins give bits in other units."""

_GUID = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.ASCII | re.IGNORECASE)
_BYTES_PER_MBIT = 125_000


def read_nics(
    tree: HostTree, gpus: tuple[Spot, ...], place: str, source: str, findings: list[Finding]
) -> tuple[HostNic, ...]:
    """The ports that have an element of their own, in the order of their numbers in NCCL.

    Raises:
        TopologyError: if there are more than :data:`~reshard_planner.topology.cluster.model.MAX_NICS`.
    """
    nets = _distinct(tree.nets, place, findings)
    if len(nets) > MAX_NICS:
        raise TopologyError(f"{place} has {len(nets)} NICs; expected at most {MAX_NICS}")
    devs = [read_number(net, "dev") for _, net, _ in nets]
    if len(set(devs)) == len(devs) and None not in devs:
        nets = [net for _, net in sorted(zip(devs, nets, strict=True), key=lambda pair: pair[0] or 0)]
    else:
        text = "NICs have no dev number, or share one: they are taken in the order of the file"
        findings.append(Finding(FindingKind.ASSUMED, place, text))
    if missing := missing_numbers(devs):
        text = f"of its NICs {missing}: the run did not use it, or the file is cut; it is taken as not there"
        findings.append(Finding(FindingKind.UNKNOWN, place, text))
    nics = []
    for spot, net, name in nets:
        where = f"{place}, {name}"
        if spot.bus is None:
            text = "hangs at no PCI function with an address: how near it is to GPUs is unknown"
            findings.append(Finding(FindingKind.UNKNOWN, where, text))
        speed = _speed(net, where, findings)
        rail = read_number(net, "rail")
        nics.append(
            replace(
                function_as_nic(spot, gpus, source),
                name=name,
                guid=_guid(net.get("guid", "")),
                rail=Fact(rail, source=source) if rail is not None and rail >= 0 else None,
                port=PortFacts(Fact(speed, source=source) if speed is not None else None),
            )
        )
    nics = _compare_guids(nics, place, findings)
    _look_at_planes([net for _, net, _ in nets], place, findings)
    text = "it has no GPUDirect RDMA: bytes pass the host's memory, slower than planned"
    findings.extend(
        Finding(FindingKind.DEGRADED, f"{place}, {name}", text)
        for _, net, name in nets
        if net.get("gdr") == "0"
    )
    return tuple(nics)


def function_as_nic(spot: Spot, gpus: tuple[Spot, ...], source: str) -> HostNic:
    """A NIC of which no more is known than its PCI function; its name is the address of that."""
    return HostNic(
        spot.bus or "nic",
        bus=spot.bus,
        numa=Fact(spot.numa, source=source) if spot.numa is not None else None,
        near=Fact(tuple(spot.nearness(gpu) for gpu in gpus), source=source) if spot.bus is not None else None,
    )


def _distinct(
    nets: list[tuple[Spot, Element]], place: str, findings: list[Finding]
) -> list[tuple[Spot, Element, str]]:
    """Each port once, with a name of its own."""
    given = Counter(net.get("name", "") for _, net in nets)
    seen: dict[str, Spot] = {}
    distinct = []
    for number, (spot, net) in enumerate(nets):
        name = net.get("name", "").strip()
        if not name or len(name) > MAX_NAME:
            text = f"a NIC has the name {quote(name)}: it is called by its address, and not matched by name"
            findings.append(Finding(FindingKind.UNKNOWN, place, text))
            name = spot.bus or f"nic{number}"
        elif "+" in name and all(given[part] for part in name.split("+")):
            text = f"{quote(name)} is made of NICs that are listed too: it is left out"
            findings.append(Finding(FindingKind.ASSUMED, place, text))
            continue
        first = seen.get(name)
        port = read_number(net, "port")
        if first is not None and first.bus == spot.bus is not None and port is not None and port > 1:
            name = f"{name}:{port}"
            first = seen.get(name)
        if first is not None:
            # A network device without a PCI function is listed below every CPU.
            if first.pci is not None or spot.pci is not None:
                text = f"NIC {quote(name)} is listed twice: the second is left out"
                findings.append(Finding(FindingKind.CONFLICT, place, text))
            continue
        seen[name] = spot
        distinct.append((spot, net, name))
    return distinct


def _speed(net: Element, where: str, findings: list[Finding]) -> int | None:
    """Bytes per second."""
    mbps = read_number(net, "speed")
    if mbps is not None and 0 < mbps <= MAX_MBPS:
        return mbps * _BYTES_PER_MBIT
    text = f"its speed is {quote(net.get('speed', ''))}, expected Mb/s from 1 to {MAX_MBPS}: it is unknown"
    if mbps is None or mbps <= 0:
        text += " (NCCL takes 10 Gb/s)"
    findings.append(Finding(FindingKind.UNKNOWN, where, text))
    return None


def _guid(text: str) -> str | None:
    """A GUID as fabric tools write it: NCCL prints its bytes in reverse, as a little-endian number.

    Plugins without GUIDs print small numbers of their own.
    """
    match = _GUID.fullmatch(text.strip())
    if match is None or int(match[1], 16) < 1 << 16:
        return None
    return int(match[1], 16).to_bytes(8, "little").hex()


def _compare_guids(nics: list[HostNic], place: str, findings: list[Finding]) -> list[HostNic]:
    """The NICs without GUIDs that several of them have: those of cards, or wrong."""
    counts = Counter(nic.guid for nic in nics if nic.guid is not None)
    for guid in [guid for guid, count in counts.items() if count > 1]:
        names = [nic.name for nic in nics if nic.guid == guid]
        text = f"{listed(names, 4)} have one GUID, {guid}: it is left out, and does not match them"
        findings.append(Finding(FindingKind.UNKNOWN, place, text))
    return [replace(nic, guid=None) if counts[nic.guid or ""] > 1 else nic for nic in nics]


def _look_at_planes(nets: list[Element], place: str, findings: list[Finding]) -> None:
    if len({net.get("plane") for net in nets} - {None, "-1"}) > 1:
        text = "its NICs are in several planes of a rail: planning takes a rail as one network"
        findings.append(Finding(FindingKind.UNKNOWN, place, text))
