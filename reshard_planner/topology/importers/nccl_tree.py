"""The tree of an NCCL topology file, as what hangs in it, by host: GPUs, network ports, other functions."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.model import Nearness
from reshard_planner.topology.importers.pci import pci_address
from reshard_planner.topology.importers.safexml import stray_text
from reshard_planner.topology.wording import listed, quote

MAX_DEPTH = 32
"""Most PCI functions above one another."""

_NUMBER = re.compile(r"-?[0-9]{1,12}", re.ASCII)
_HASH = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.ASCII | re.IGNORECASE)
# What people or newer releases add beside GPUs, links and ports, and what says nothing about them.
_SILENT = frozenset({"c2c", "pcilink"})


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a device hangs.

    Attributes:
        cpu: position of its ``<cpu>`` in the file.
        numa: NUMA node; None where the file does not know it.
        bridges: numbers of the PCI bridges above it, the outermost first.
        pci: its PCI function; None for what hangs at a CPU directly, as virtual network devices do.
    """

    cpu: int
    numa: int | None
    bridges: tuple[int, ...] = ()
    pci: Element | None = None

    @property
    def bus(self) -> str | None:
        return pci_address(self.pci.get("busid")) if self.pci is not None else None

    @property
    def pci_class(self) -> str:
        return "" if self.pci is None else self.pci.get("class", "").lower()

    def nearness(self, other: Spot) -> Nearness:
        """What lies between two devices of one host."""
        if self.cpu != other.cpu:
            return Nearness.NODE if self.numa is not None and self.numa == other.numa else Nearness.SYS
        if not self.bridges or not other.bridges or self.bridges[0] != other.bridges[0]:
            return Nearness.PHB
        return Nearness.PIX if self.bridges == other.bridges else Nearness.PXB


@dataclass(frozen=True, slots=True)
class HostTree:
    """The devices of one host, in the order of the file.

    Attributes:
        gpus: each ``<gpu>`` with its place.
        nets: each ``<net>`` with its place.
        functions: PCI functions that have neither, and no function below them.
    """

    gpus: list[tuple[Spot, Element]] = field(default_factory=list)
    nets: list[tuple[Spot, Element]] = field(default_factory=list)
    functions: list[Spot] = field(default_factory=list)


def read_number(element: Element, name: str) -> int | None:
    """A whole number in an attribute; None where there is none."""
    text = element.get(name, "").strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def missing_numbers(devs: list[int | None]) -> str:
    """Which numbers below the largest are missing, in words; "" for none, as NCCL numbers devices from 0."""
    numbers = {dev for dev in devs if dev is not None and dev >= 0}
    missing = max(numbers, default=-1) + 1 - len(numbers)
    if not missing:
        return ""
    first = next(number for number in range(len(numbers) + 1) if number not in numbers)
    return (
        f"number {first} is missing" if missing == 1 else f"{missing} numbers are missing, the first {first}"
    )


def read_tree(system: Element) -> tuple[dict[str, HostTree], list[Finding]]:
    """The devices below ``<system>``, by the hash of their host; "" where the file has no hashes.

    Raises:
        TopologyError: if hosts cannot be told apart, or functions are nested too deep.
    """
    hosts: dict[str, HostTree] = {}
    odd: Counter[str] = Counter()
    stray: Counter[str] = Counter()
    bridges = 0
    for number, cpu in enumerate(_children(system, {"cpu"}, odd, stray)):
        tree = hosts.setdefault(_host_hash(cpu), HostTree())
        numa = read_number(cpu, "numaid")
        todo = [(cpu, Spot(number, None if numa is None or numa < 0 else numa))]
        while todo:
            element, spot = todo.pop()
            inside = _children(element, {"pci", "gpu", "nic"}, odd, stray)
            above = spot.bridges if spot.pci is None else (*spot.bridges, bridges)
            bridges += 1
            if len(above) > MAX_DEPTH:
                raise TopologyError(
                    f"PCI functions are nested {len(above)} deep; expected at most {MAX_DEPTH}"
                )
            used = spot.pci is None or spot.pci_class.startswith("0x0604")
            for child in inside:
                if child.tag == "gpu":
                    tree.gpus.append((spot, child))
                    used = True
                    _children(child, {"nvlink", "xgmi"}, odd, stray)
                elif child.tag == "nic":
                    nets = _children(child, {"net"}, odd, stray)
                    tree.nets.extend((spot, net) for net in nets)
                    used = used or bool(nets)
            below = [(child, Spot(number, spot.numa, above, child)) for child in inside if child.tag == "pci"]
            if not used and not below:
                tree.functions.append(spot)
            todo.extend(reversed(below))
    if "" in hosts and len(hosts) > 1:
        raise TopologyError("some cpu elements have a host_hash and some have none; expected all or none")
    return hosts, _ignored(odd, stray)


def _children(element: Element, known: set[str], odd: Counter[str], stray: Counter[str]) -> list[Element]:
    children = [child for child in element if child.tag in known]
    if len(children) < len(element):
        odd.update(child.tag for child in element if child.tag not in known and child.tag not in _SILENT)
    if text := stray_text(element):
        stray[text] += 1
    return children


def _host_hash(cpu: Element) -> str:
    text = cpu.get("host_hash")
    if text is None:
        return ""
    match = _HASH.fullmatch(text.strip())
    if match is None:
        raise TopologyError(f"host_hash of a cpu is {quote(text)}; expected a hexadecimal number")
    return match[1].lower()


def _ignored(odd: Counter[str], stray: Counter[str]) -> list[Finding]:
    findings = []
    if odd:
        names = listed([quote(name) for name, _ in odd.most_common()], 3)
        text = (
            f"{odd.total()} elements are unknown, or not where they belong ({names}): what they say is lost"
        )
        findings.append(Finding(FindingKind.UNKNOWN, "the file", text))
    if stray:
        text = (
            f"text stands between elements, first {quote(next(iter(stray)))}: devices may be missing for it"
        )
        findings.append(Finding(FindingKind.UNKNOWN, "the file", text))
    return findings
