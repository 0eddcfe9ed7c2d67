"""What Slurm's descriptions of topologies mean for a cluster, whichever file they stand in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin
from reshard_planner.topology.cluster.hostlist import brief_names
from reshard_planner.topology.cluster.model import Cluster, Host
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.switchtree import SwitchRow, build_tree, check_hosts
from reshard_planner.topology.wording import listed


@dataclass(frozen=True, slots=True)
class SlurmTopology:
    """One topology of Slurm.

    Attributes:
        switches: of a tree.
        blocks: names of blocks and of their hosts.
        block_sizes: hosts of a block, and of the aggregates of blocks in which jobs are placed.
        others: names of hosts of rings and tori, which say nothing of domains or switches.
    """

    switches: tuple[SwitchRow, ...] = ()
    blocks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    block_sizes: tuple[int, ...] = ()
    others: tuple[str, ...] = ()


def slurm_facts(topology: SlurmTopology, *, source: str, findings: Sequence[Finding]) -> Imported:
    """The cluster that a topology of Slurm describes: hosts without GPUs, switches, and blocks as domains.

    Raises:
        TopologyError: if switches are no tree, or there are too many hosts.
    """
    tree = build_tree(topology.switches, source)
    blocks_of: dict[str, list[str]] = {}
    for block, names in topology.blocks:
        for name in dict.fromkeys(names):
            blocks_of.setdefault(name, []).append(block)
        check_hosts(len(blocks_of), source)
    hosts = []
    names = tuple(dict.fromkeys((*tree.hosts, *blocks_of, *topology.others)))
    check_hosts(len(names), source)
    # facts are shared: there are few switches and blocks, and many hosts
    path_facts = {path: Fact(path, Origin.FILE, source) for path in set(tree.paths.values())}
    domain_facts = {block: Fact(block, Origin.ASSUMED, source) for block, _ in topology.blocks}
    for name in names:
        blocks, path = blocks_of.get(name, []), tree.paths.get(name)
        hosts.append(
            Host(
                name,
                domain=domain_facts[blocks[0]] if len(blocks) == 1 else None,
                path=path_facts[path] if path is not None else None,
            )
        )
    found = (*findings, *tree.findings, *_block_findings(topology, blocks_of))
    return Imported(Cluster(hosts=tuple(hosts), switches=tree.switches), found)


def cut_short(text: str, source: str) -> list[Finding]:
    """A finding where the last line has no end, as of a file that was not copied to its end."""
    if text.endswith("\n"):
        return []
    return [
        Finding(
            FindingKind.UNKNOWN,
            source,
            "the last line has no end, so that the file may end early and lack hosts",
        )
    ]


def _block_findings(topology: SlurmTopology, blocks_of: dict[str, list[str]]) -> list[Finding]:
    if not topology.blocks:
        return []
    larger = listed([str(size) for size in topology.block_sizes[1:]])
    aggregates = (
        f"; sizes above that of a block ({larger}) are for placing jobs, and make no domains"
        if larger
        else ""
    )
    findings = [
        Finding(
            FindingKind.ASSUMED,
            f"blocks {brief_names(name for name, _ in topology.blocks)}",
            f"each is taken for one NVLink domain, unless GPUs report another one{aggregates}",
        )
    ]
    doubly: dict[tuple[str, ...], list[str]] = {}
    for host, blocks in blocks_of.items():
        if len(blocks) > 1:
            doubly.setdefault(tuple(blocks), []).append(host)
    findings += [
        Finding(
            FindingKind.CONFLICT,
            f"hosts {brief_names(hosts)}",
            f"listed in the blocks {brief_names(blocks)}, and a host is in one; no domain is taken for them",
        )
        for blocks, hosts in doubly.items()
    ]
    sizes = {name: len(set(hosts)) for name, hosts in topology.blocks}
    usual = Counter(sizes.values()).most_common(1)[0][0]
    base = topology.block_sizes[0] if topology.block_sizes else 0
    groups: dict[int, list[str]] = {}
    for name, size in sizes.items():
        if size != usual or size < base:
            groups.setdefault(size, []).append(name)
    for size, names in groups.items():
        expected = f"most have {usual}" if size != usual else f"BlockSizes asks for {base}"
        findings.append(
            Finding(
                FindingKind.DEGRADED,
                f"blocks {brief_names(names)}",
                f"have {size} hosts where {expected}, so that their domains are of other size",
            )
        )
    return findings
