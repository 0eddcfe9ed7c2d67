"""Importer of ``nvidia-smi topo -m``: the GPUs, NVLinks and NICs of one host."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic, Nearness
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.reading import Reading
from reshard_planner.topology.importers.topo_table import Table, has_table, read_table
from reshard_planner.topology.wording import listed, quote

MOST_LINKS = 18
"""Most NVLinks of a GPU that is joined to others without a switch."""

_Links = dict[tuple[str, str], str]


def recognises(text: str) -> bool:
    """Whether the text has the matrix, whatever stands before and after it."""
    return "GPU0" in text and has_table(text)


def read(text: str, reading: Reading) -> Imported:
    """The host that a matrix describes.

    Args:
        text: the output, also as pasted from a terminal; only its first matrix is read.
        reading: the name of the host, and of the text.

    Raises:
        TopologyError: if the text has no such matrix, or more devices than a host can have.
    """
    host, source = reading.host, reading.source
    table = read_table(text, source)
    findings = list(table.findings)
    links = _links(table, f"host {host}", findings)
    islands = _islands(table.gpus, links)
    doubtful = _doubtful(table.gpus, links, islands)
    nvlinks = {gpu: _nvlinks(gpu, table.gpus, links) for gpu in table.gpus}
    _judge_gpus(table, links, islands, doubtful, f"host {host}", findings)
    numa = _numa(table, f"host {host}", findings)
    gpus = tuple(
        Gpu(
            gpu,
            numa=_fact(numa[gpu], source),
            nvlinks=_fact(nvlinks[gpu], source),
            island=None if gpu in doubtful else Fact(islands[gpu], Origin.FILE, source),
        )
        for gpu in table.gpus
    )
    nics = tuple(
        HostNic(name, near=_near(table, nic, links, source, f"host {host}, {nic}", findings))
        for nic, name in zip(table.nics, _nic_names(table, f"host {host}", findings), strict=True)
    )
    return Imported(Cluster(name=host, hosts=(Host(host, gpus, nics),)), tuple(findings))


def _fact(value: int | None, source: str) -> Fact[int] | None:
    return None if value is None else Fact(value, Origin.FILE, source)


def _links(table: Table, place: str, findings: list[Finding]) -> _Links:
    """The link of each pair of devices, in both orders, where the rows state one and agree."""
    devices = table.gpus + table.nics
    missing = [device for device in devices if device not in table.rows]
    if missing:
        text = (
            f"the matrix has no row of {listed(missing)}; it may end early, and their NUMA nodes are unknown"
        )
        findings.append(Finding(FindingKind.UNKNOWN, place, text))
    links: _Links = {}
    for (i, a), (j, b) in combinations(enumerate(devices), 2):
        there = table.rows[a].links[j] if a in table.rows else None
        back = table.rows[b].links[i] if b in table.rows else None
        if there is not None and back is not None and there != back:
            both = there.startswith("NV") and back.startswith("NV")
            taken = "the lower is taken" if both else "neither is taken"
            text = f"the row of {a} says {there} to {b}, and that of {b} says {back} to {a}; {taken}"
            findings.append(Finding(FindingKind.CONFLICT, f"{place}, {a} and {b}", text))
            there = min(there, back, key=_count) if both else None
        elif there is None:
            there = back
        if there is not None:
            links[a, b] = links[b, a] = there
    return links


def _count(link: str) -> int:
    """Number of NVLinks that a cell states."""
    return int(link[2:]) if link.startswith("NV") else 0


def _islands(gpus: tuple[str, ...], links: _Links) -> dict[str, int]:
    """Number of the GPUs that NVLinks join, directly or over others, by GPU; in the order of their first."""
    islands: dict[str, int] = {}
    for first in gpus:
        if first in islands:
            continue
        number = len(set(islands.values()))
        islands[first], todo = number, [first]
        while todo:
            here = todo.pop()
            for there in gpus:
                if there not in islands and _count(links.get((here, there), "")):
                    islands[there] = number
                    todo.append(there)
    return islands


def _doubtful(gpus: tuple[str, ...], links: _Links, islands: dict[str, int]) -> set[str]:
    """GPUs of islands that a pair without a known link might join to others."""
    unknown = {
        island
        for a, b in combinations(gpus, 2)
        if (a, b) not in links and islands[a] != islands[b]
        for island in (islands[a], islands[b])
    }
    return {gpu for gpu in gpus if islands[gpu] in unknown}


def _nvlinks(gpu: str, gpus: tuple[str, ...], links: _Links) -> int | None:
    """Number of NVLinks of a GPU.

    With a switch each cell counts all links of the GPU; without one, those to one peer alone. Cells are added
    up where the sum is no more than a GPU can have; :func:`_judge_gpus` says where both would do.
    """
    cells = [links.get((gpu, peer)) for peer in gpus if peer != gpu]
    counts = [_count(cell) for cell in cells if cell is not None]
    if not counts or (None in cells and not any(counts)):
        return None
    total = sum(counts)
    if total > MOST_LINKS:
        return max(counts)
    return None if None in cells else total


def _judge_gpus(
    table: Table,
    links: _Links,
    islands: dict[str, int],
    doubtful: set[str],
    place: str,
    findings: list[Finding],
) -> None:
    """Findings on GPUs: islands of unequal size, and counts that can be read in two ways."""
    if doubtful:
        text = f"not all links between {listed(sorted(doubtful, key=table.gpus.index))} are known"
        findings.append(Finding(FindingKind.UNKNOWN, place, f"{text}; their island is left open"))
    sizes = Counter(islands.values())
    largest = max(sizes.values())
    for island, size in sorted(sizes.items()):
        cut = [gpu for gpu in table.gpus if islands[gpu] == island]
        if 1 < size < largest and not doubtful.intersection(cut):  # one without NVLink has none to count
            text = f"no NVLink to the {largest} GPUs that NVLink joins here; reached over PCIe or NICs alone"
            findings.append(Finding(FindingKind.DEGRADED, f"{place}, {listed(cut)}", text))
    cells = {_count(links.get(pair, "")) for pair in combinations(table.gpus, 2)}
    alike = next(iter(cells)) if len(cells) == 1 else 0
    peers = len(table.gpus) - 1
    if peers > 1 and 0 < alike * peers <= MOST_LINKS:
        text = f"taken as {alike} NVLinks to each of {peers} peers; with a switch it would be {alike} in all"
        findings.append(Finding(FindingKind.ASSUMED, f"{place}, all GPUs", text))
    numbers = [int(gpu[3:]) for gpu in table.gpus]
    if numbers != list(range(len(numbers))):
        text = f"GPUs are {listed(list(table.gpus))}, not 0 and on; local ranks follow their order"
        findings.append(Finding(FindingKind.UNKNOWN, place, text))


def _numa(table: Table, place: str, findings: list[Finding]) -> dict[str, int | None]:
    """NUMA node of each GPU; None where the matrix has no such column, or no number in it."""
    nodes: dict[str, int | None] = dict.fromkeys(table.gpus)
    odd: dict[str, list[str]] = {}
    for gpu in table.gpus if table.has_numa else ():
        written = table.rows[gpu].numa if gpu in table.rows else "N/A"  # a missing row is a finding already
        if written.isascii() and written.isdigit() and len(written) <= 4:
            nodes[gpu] = int(written)
        elif written != "N/A":
            odd.setdefault(written, []).append(gpu)
    for written, gpus in odd.items():
        what = (
            f"NUMA affinity {quote(written, 24)} is no number"
            if written
            else "no NUMA affinity could be read"
        )
        text = f"{what}; the NUMA node is left open"
        findings.append(Finding(FindingKind.UNKNOWN, f"{place}, {listed(gpus)}", text))
    return nodes


def _near(
    table: Table, nic: str, links: _Links, source: str, place: str, findings: list[Finding]
) -> Fact[tuple[Nearness, ...]] | None:
    cells = [links.get((gpu, nic)) for gpu in table.gpus]
    near = tuple(Nearness(cell) for cell in cells if cell is not None and cell in Nearness.__members__)
    if len(near) == len(cells):
        return Fact(near, Origin.FILE, source)
    at = next(at for at, cell in enumerate(cells) if cell not in Nearness.__members__)
    what = (
        f"{cells[at]} to {table.gpus[at]} is no distance"
        if cells[at]
        else f"nothing says how near {table.gpus[at]} is"
    )
    findings.append(Finding(FindingKind.UNKNOWN, place, f"{what}; which GPUs it is near to is left open"))
    return None


def _nic_names(table: Table, place: str, findings: list[Finding]) -> list[str]:
    """What the NICs are called: by the legend, else by their column."""
    names = [table.legend.get(nic, nic) for nic in table.nics]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        text = f"the legend calls several NICs {listed(twice)}; the names of the columns are taken"
        findings.append(Finding(FindingKind.CONFLICT, place, text))
        return list(table.nics)
    unnamed = [nic for nic in table.nics if nic.startswith("NIC") and nic not in table.legend]
    if unnamed:
        text = f"the legend does not name {listed(unnamed)}; other sources may call them otherwise"
        findings.append(Finding(FindingKind.UNKNOWN, place, text))
    return names
