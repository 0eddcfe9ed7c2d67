"""GPUs of an NCCL topology file, and the NVLink or xGMI links between them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from xml.etree.ElementTree import Element

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind
from reshard_planner.topology.cluster.model import MAX_HOST_GPUS, Gpu
from reshard_planner.topology.importers.nccl_tree import HostTree, Spot, missing_numbers, read_number
from reshard_planner.topology.importers.pci import pci_address
from reshard_planner.topology.wording import quote

MAX_LINKS = 255
"""Most links of one ``<nvlink>`` element that are believed."""

_UNSEEN = re.compile(r"f+:[f:]+(\.[0-9a-f])?", re.IGNORECASE)
_GCN = re.compile(r"(?:gfx)?([0-9a-f]{3,4})(?:[:].*)?", re.IGNORECASE)


@dataclass(slots=True)
class Links:
    """The links of one GPU.

    Attributes:
        switch: number to switches.
        peers: number to each other GPU of the host, by its PCI address.
        unknown: whether the number of some of them is not known.
    """

    switch: int = 0
    peers: Counter[str] = field(default_factory=Counter)
    unknown: bool = False

    @property
    def total(self) -> int:
        return self.switch + self.peers.total()


@dataclass(frozen=True, slots=True)
class HostGpus:
    """The GPUs of one host, in the order of their local ranks.

    Attributes:
        gpus: what is known of each.
        spots: where each hangs.
        ranks: rank of each; None where the file does not say.
        switched: whether each has links to switches.
    """

    gpus: tuple[Gpu, ...]
    spots: tuple[Spot, ...]
    ranks: tuple[int | None, ...]
    switched: tuple[bool, ...]


def read_gpus(tree: HostTree, place: str, source: str, findings: list[Finding]) -> HostGpus:
    """The GPUs that have an element of their own.

    Raises:
        TopologyError: if there are more than :data:`~reshard_planner.topology.cluster.model.MAX_HOST_GPUS`.
    """
    found = _distinct(tree.gpus, place, findings)
    if len(found) > MAX_HOST_GPUS:
        raise TopologyError(f"{place} has {len(found)} GPUs; expected at most {MAX_HOST_GPUS}")
    devs = [read_number(element, "dev") for _, element in found]
    parts = [_part(element) for _, element in found]
    if len(set(zip(devs, parts, strict=True))) == len(found) and None not in devs:
        order = sorted(range(len(found)), key=lambda i: (devs[i], parts[i]))
        names = [f"GPU{devs[i]}" + (f".{parts[i]}" if parts[i] >= 0 else "") for i in order]
    else:
        text = "GPUs have no dev number, or share one: they are taken in the order of the file"
        findings.append(Finding(FindingKind.ASSUMED, place, text))
        order = list(range(len(found)))
        names = [f"GPU{i}" for i in order]
    if missing := missing_numbers(devs):
        text = f"of its GPUs {missing}: the run did not use it, or the file is cut; it is taken as not there"
        findings.append(Finding(FindingKind.UNKNOWN, place, text))
    found = [found[i] for i in order]
    buses = {spot.bus for spot, _ in found} - {None}
    links = [
        _links(element, buses - {spot.bus}, f"{place}, {name}", findings)
        for (spot, element), name in zip(found, names, strict=True)
    ]
    islands = _islands([spot.bus for spot, _ in found], links, names, place, findings)
    sharing = Counter(id(spot.pci) for spot, _ in found)
    gpus = []
    for (spot, element), name, link, island in zip(found, names, links, islands, strict=True):
        where = f"{place}, {name}"
        if spot.bus is None:
            text = "its busid is missing or none: it cannot be matched with other sources by address"
            findings.append(Finding(FindingKind.UNKNOWN, where, text))
        model = _model(element)
        if model is None:
            text = "its sm is missing or none: its model, and so its NVLink speed, is unknown"
            findings.append(Finding(FindingKind.UNKNOWN, where, text))
        gpus.append(
            Gpu(
                name,
                model=Fact(model, source=source) if model is not None else None,
                bus=spot.bus,
                numa=Fact(spot.numa, source=source) if spot.numa is not None else None,
                # The parts of one GPU are listed with all of its links each, and share them.
                nvlinks=None if link.unknown else Fact(link.total // sharing[id(spot.pci)], source=source),
                island=Fact(island, source=source),
            )
        )
    if any(part >= 0 for part in parts):
        text = "some GPUs are split in parts: each part is taken as a GPU with its share of the NVLinks"
        findings.append(Finding(FindingKind.ASSUMED, place, text))
    return HostGpus(
        tuple(gpus),
        tuple(spot for spot, _ in found),
        tuple(read_number(element, "rank") for _, element in found),
        tuple(link.switch > 0 for link in links),
    )


def functions_as_gpus(spots: list[Spot], source: str) -> HostGpus:
    """GPUs of which a file has nothing but PCI functions, in its order."""
    gpus = tuple(
        Gpu(f"GPU{i}", bus=spot.bus, numa=Fact(spot.numa, source=source) if spot.numa is not None else None)
        for i, spot in enumerate(spots)
    )
    return HostGpus(gpus, tuple(spots), (None,) * len(gpus), (False,) * len(gpus))


def join_fabric(gpus: HostGpus, fabric: str, source: str) -> HostGpus:
    """The same GPUs with the NVLink domain of all hosts of the file; those without a switch are in none."""
    joined = (
        replace(gpu, fabric=Fact(fabric if switched else "", source=source))
        for gpu, switched in zip(gpus.gpus, gpus.switched, strict=True)
    )
    return replace(gpus, gpus=tuple(joined))


def _distinct(
    gpus: list[tuple[Spot, Element]], place: str, findings: list[Finding]
) -> list[tuple[Spot, Element]]:
    """Each GPU once: jobs with several ranks on a GPU list it for each of them."""
    seen: dict[tuple[object, int], Spot] = {}
    distinct = []
    for spot, element in gpus:
        key = (spot.bus or id(spot.pci), _part(element))
        if key not in seen:
            seen[key] = spot
            distinct.append((spot, element))
        elif seen[key] is spot:
            text = f"the GPU at {spot.bus} is listed twice, as for several ranks on one GPU: it is taken once"
            findings.append(Finding(FindingKind.ASSUMED, place, text))
        else:
            text = f"the GPU at {spot.bus} is listed in two places: the second is left out"
            findings.append(Finding(FindingKind.CONFLICT, place, text))
    return distinct


def _part(element: Element) -> int:
    part = read_number(element, "mlopart")
    return -1 if part is None or part < 0 else part


def _model(element: Element) -> str | None:
    gcn = _GCN.fullmatch(element.get("gcn", "").strip())
    if gcn is not None:
        return f"gfx{gcn[1].lower()}"
    sm = read_number(element, "sm")
    return f"sm{sm}" if sm is not None and 0 < sm < 1000 else None


def _links(element: Element, buses: set[str | None], where: str, findings: list[Finding]) -> Links:
    links = Links()
    seen: set[str] = set()
    for link in element:
        if link.tag not in {"nvlink", "xgmi"}:
            continue
        target = link.get("target", "").strip().lower()
        count = read_number(link, "count")
        if target in seen:
            text = f"links to {quote(target)} are listed twice: the second is left out"
            findings.append(Finding(FindingKind.CONFLICT, where, text))
            continue
        seen.add(target)
        peer = pci_address(target)
        pci_class = link.get("tclass", "").strip().lower()
        to_switch = bool(_UNSEEN.fullmatch(target)) or (
            pci_class.startswith("0x0680") and pci_class != "0x068001"
        )
        if pci_class == "0x068001" and not to_switch:
            continue  # to the CPU
        if count is None or not 0 < count <= MAX_LINKS:
            text = f"its count of links to {quote(target)} is no number from 1 to {MAX_LINKS}: it is unknown"
            findings.append(Finding(FindingKind.UNKNOWN, where, text))
            links.unknown = True
            count = 1
        if to_switch:
            links.switch += count
        elif peer in buses and peer is not None:
            links.peers[peer] += count
        else:
            text = f"links to {quote(target)}, no other GPU of the host and no switch, are not counted"
            findings.append(Finding(FindingKind.UNKNOWN, where, text))
    return links


def _islands(
    buses: list[str | None], links: list[Links], names: list[str], place: str, findings: list[Finding]
) -> list[int]:
    """Number of the island of each GPU: those at switches are one, direct links join the rest."""
    root = list(range(len(buses)))

    def find(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    at = {bus: i for i, bus in reversed(list(enumerate(buses)))}
    switched = [i for i, link in enumerate(links) if link.switch]
    pairs = [(switched[0], i) for i in switched[1:]]
    # Parts of one GPU have one address, and reach each other within it.
    pairs += [(at[bus], i) for i, bus in enumerate(buses) if bus is not None]
    direct = {(i, at[bus]) for i, link in enumerate(links) for bus in link.peers}
    for i, j in (*pairs, *direct):
        a, b = sorted((find(i), find(j)))
        root[b] = a
    islands = [find(i) for i in range(len(buses))]
    for i, j in sorted(direct):
        if (j, i) not in direct:
            text = f"{names[i]} lists links to {names[j]}, which lists none back: they are taken as there"
            findings.append(Finding(FindingKind.CONFLICT, place, text))
    apart = sorted(
        (i, j)
        for i in range(len(buses))
        for j in range(i + 1, len(buses))
        if islands[i] == islands[j]
        and not (links[i].switch and links[j].switch)
        and buses[i] != buses[j]
        and not {(i, j), (j, i)} & direct
    )
    if apart:
        i, j = apart[0]
        text = (
            f"{names[i]} and {names[j]} have no link of their own, as {len(apart)} pairs: what they send"
            " each other passes GPUs between them, and is slower than planned"
        )
        findings.append(Finding(FindingKind.DEGRADED, place, text))
    numbers = {island: number for number, island in enumerate(dict.fromkeys(islands))}
    return [numbers[island] for island in islands]
