"""NCCL's topology as XML: what a run has found, or what a cloud gives it to read."""

from __future__ import annotations

from dataclasses import replace
from xml.etree.ElementTree import Element

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.model import MAX_HOST_GPUS, MAX_NICS, Cluster, Host
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.nccl_gpus import (
    HostGpus,
    functions_as_gpus,
    join_fabric,
    read_gpus,
)
from reshard_planner.topology.importers.nccl_nics import function_as_nic, read_nics
from reshard_planner.topology.importers.nccl_tree import HostTree, Spot, read_tree
from reshard_planner.topology.importers.reading import Reading
from reshard_planner.topology.importers.safexml import parse_xml, root_name
from reshard_planner.topology.wording import listed, quote

_DUMP = "a run with NCCL_TOPO_DUMP_FILE set writes a file that has it"


def recognises(text: str) -> bool:
    """Whether the outermost element is one of NCCL's."""
    return root_name(text) in {"system", "graphs"}


def read(text: str, reading: Reading) -> Imported:
    """The hosts of a topology file; ``reading`` names the one of a file that has no more than one.

    Raises:
        TopologyError: if it is no topology XML of a version that is known, is damaged, or is too large.
    """
    source = reading.source
    root = parse_xml(text, source)
    _check_root(root, source)
    trees, findings = read_tree(root)
    if not trees:
        raise TopologyError(f"{source} has no cpu element: there is no host in it")
    several = len(trees) > 1
    read_hosts: list[tuple[HostGpus, Host]] = []
    for key, tree in trees.items():
        name = f"host-{key}" if several else reading.host
        read_hosts.append(_read_host(tree, name, source, findings))
    if several:
        fabric = "nvlink-" + min(trees)
        read_hosts = [
            (joined := join_fabric(gpus, fabric, source), replace(made, gpus=joined.gpus))
            for gpus, made in read_hosts
        ]
    linked = [gpu.nvlinks for _, made in read_hosts for gpu in made.gpus if gpu.island is not None]
    if linked and all(nvlinks is not None and nvlinks.value == 0 for nvlinks in linked):
        text = "no GPU has an nvlink element: all are taken as GPUs without NVLink"
        findings.append(Finding(FindingKind.ASSUMED, "the file", text))
    if root.get("version") == "2" and any(made.gpus for _, made in read_hosts):
        text = (
            "xGMI links stand as NVLinks, but two GPUs use only those between them: state the speed yourself"
        )
        findings.append(Finding(FindingKind.UNKNOWN, "the file", text))
    hosts, rank_map = _order(read_hosts, findings)
    return Imported(Cluster(hosts=hosts, rank_map=rank_map), tuple(findings))


def _check_root(root: Element, source: str) -> None:
    if root.tag == "graphs":
        raise TopologyError(
            f"{source} is an NCCL graph file: it has the rings and trees that NCCL found, not the topology;"
            " expected what NCCL_TOPO_DUMP_FILE names, not NCCL_GRAPH_DUMP_FILE"
        )
    if root.tag != "system":
        raise TopologyError(
            f"{source} begins with element {quote(root.tag)}; expected system, as NCCL writes it"
        )
    version = root.get("version")
    if version not in {"1", "2"}:
        shown = "none" if version is None else quote(version)
        raise TopologyError(f"version of system in {source} is {shown}; expected 1 (NCCL) or 2 (RCCL)")


def _read_host(tree: HostTree, name: str, source: str, findings: list[Finding]) -> tuple[HostGpus, Host]:
    place = f"host {name}"
    gpu_functions, nic_functions = _sort_functions(tree, place, findings)
    if tree.gpus:
        gpus = read_gpus(tree, place, source, findings)
    else:
        gpus = functions_as_gpus(gpu_functions, source)
        text = (
            f"{len(gpu_functions)} GPUs are PCI functions only, in the order of the file: their models"
            f" and NVLinks are unknown; {_DUMP}"
            if gpu_functions
            else f"no GPU is in the file; {_DUMP}"
        )
        findings.append(Finding(FindingKind.UNKNOWN, place, text))
    if tree.nets:
        nics = read_nics(tree, gpus.spots, place, source, findings)
    else:
        nics = tuple(function_as_nic(spot, gpus.spots, source) for spot in nic_functions)
        text = (
            f"{len(nics)} NICs are PCI functions only, called by their addresses: their names and speeds are"
            f" unknown; {_DUMP}"
            if nics
            else f"no NIC is in the file; {_DUMP}"
        )
        findings.append(Finding(FindingKind.UNKNOWN, place, text))
    spots = [*gpus.spots, *(spot for spot, _ in tree.nets)]
    if any(spot.numa is None for spot in spots):
        text = "a cpu has no NUMA node, as in virtual machines: how near NICs and GPUs are may be made up"
        findings.append(Finding(FindingKind.UNKNOWN, place, text))
    return gpus, Host(name, gpus.gpus, nics)


def _sort_functions(tree: HostTree, place: str, findings: list[Finding]) -> tuple[list[Spot], list[Spot]]:
    """GPUs and NICs among PCI functions that have no element of their own, by their class."""
    sorted_: dict[str, list[Spot]] = {"gpu": [], "nic": [], "bare": [], "other": []}
    seen: set[str] = set()
    for spot in tree.functions:
        pci_class = spot.pci_class
        if pci_class.startswith(("0x0302", "0x1200")):
            kind = "gpu"
        elif pci_class.startswith("0x02"):
            kind = "nic"
        else:
            kind = "other" if pci_class else "bare"
        if kind in {"gpu", "nic"}:
            bus = spot.bus
            if bus is None or bus in seen:
                text = f"a {kind.upper()} has no address, or that of another: it is left out"
                findings.append(Finding(FindingKind.CONFLICT, place, text))
                continue
            seen.add(bus)
        sorted_[kind].append(spot)

    def left_out(spots: list[Spot], why: str) -> None:
        if spots:
            addresses = listed([spot.bus or "without an address" for spot in spots], 3)
            findings.append(Finding(FindingKind.UNKNOWN, f"{place}, PCI {addresses}", f"{why}; left out"))

    for kind, limit, elements in (("gpu", MAX_HOST_GPUS, tree.gpus), ("nic", MAX_NICS, tree.nets)):
        if len(sorted_[kind]) > limit:
            raise TopologyError(f"{place} has {len(sorted_[kind])} {kind.upper()}s; expected at most {limit}")
        if elements:
            left_out(sorted_[kind], f"with the class of a {kind.upper()}, but no element of one")
    left_out(sorted_["bare"], "without a class, so that nothing tells whether they are GPUs or NICs")
    if other := sorted_["other"]:
        left_out(other, f"of class {quote(other[0].pci_class)}, neither GPU nor NIC")
    return sorted_["gpu"], sorted_["nic"]


def _order(
    read_hosts: list[tuple[HostGpus, Host]], findings: list[Finding]
) -> tuple[tuple[Host, ...], tuple[int, ...] | None]:
    """Hosts in the order of their first ranks, and the GPU of each rank where its number is another."""
    ranks = [rank for gpus, _ in read_hosts for rank in gpus.ranks]
    if (
        not ranks
        or None in ranks
        or sorted(rank for rank in ranks if rank is not None) != [*range(len(ranks))]
    ):
        numbers = [rank for rank in ranks if rank is not None]
        if numbers:
            text = (
                f"its ranks, from {min(numbers)} to {max(numbers)}, are not those of a whole job:"
                " which GPU a rank has is not taken from it"
            )
            findings.append(Finding(FindingKind.UNKNOWN, "the file", text))
        return tuple(host for _, host in read_hosts), None
    read_hosts = sorted(
        read_hosts, key=lambda pair: min((r for r in pair[0].ranks if r is not None), default=0)
    )
    order = [rank for gpus, _ in read_hosts for rank in gpus.ranks if rank is not None]
    rank_map = tuple(sorted(range(len(order)), key=order.__getitem__))
    return tuple(host for _, host in read_hosts), None if rank_map == tuple(range(len(order))) else rank_map
