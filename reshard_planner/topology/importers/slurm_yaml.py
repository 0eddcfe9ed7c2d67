"""Slurm's ``topology.yaml``, from Slurm 25.05 on: topologies, of which one is read; see topology.yaml(5)."""

from __future__ import annotations

import re
from difflib import get_close_matches

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.hostlist import MAX_HOSTS, brief_names, expand_hosts
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.plaindata import described, mapping, parse_yaml_text, sequence, string
from reshard_planner.topology.importers.reading import Reading
from reshard_planner.topology.importers.slurm_facts import SlurmTopology, cut_short, slurm_facts
from reshard_planner.topology.importers.switchtree import SwitchRow
from reshard_planner.topology.wording import listed, quote

TYPES = ("tree", "block", "flat", "ring", "torus3d")
"""Types of topologies, of which each entry has one."""

_FIRST = re.compile(r"^[ \t]*(?:-[ \t]+)?[\"']?topology[\"']?[ \t]*:", re.MULTILINE)
_TYPE = re.compile(r"^[ \t]*(?:-[ \t]+)?[\"']?(?:tree|block|flat|ring|torus3d)[\"']?[ \t]*:", re.MULTILINE)


def recognises(text: str) -> bool:
    """Whether lines begin with ``topology:`` and with a type of topology."""
    return _FIRST.search(text) is not None and _TYPE.search(text) is not None


def read(text: str, reading: Reading) -> Imported:
    """Hosts of one topology, with their switches and their blocks as domains; without GPUs and NICs.

    Args:
        text: the file.
        reading: the name of the file, and of the topology to read; the cluster's default when None.

    Raises:
        TopologyError: if it is no such file, the topology is not there, or switches are no tree.
    """
    source = reading.source
    entries: dict[str, tuple[str, object]] = {}
    defaults: list[str] = []
    findings = cut_short(text, source)
    for index, value in enumerate(sequence(parse_yaml_text(text, source), source)):
        place = f"{source}, topology {index + 1}"
        entry = mapping(value, place)
        name = string(entry.get("topology"), f"{place}: topology")
        kinds = [kind for kind in TYPES if kind in entry]
        if len(kinds) != 1:
            raise TopologyError(f"{place} has {len(kinds)} of {', '.join(TYPES)}; expected one of them")
        if name in entries:
            raise TopologyError(f"{place} has the name {quote(name, 60)} again; expected distinct names")
        default = entry.get("cluster_default", False)
        if not isinstance(default, bool):
            raise TopologyError(f"{place}: cluster_default is {described(default)}; expected true or false")
        findings += _unread(entry, ("topology", "cluster_default", *TYPES), f"topology {name}")
        defaults += [name] if default else []
        entries[name] = (kinds[0], entry[kinds[0]])
    if not entries:
        raise TopologyError(f"{source} has no topology; expected a list of them")
    chosen = _choose(reading.settings.slurm_topology, entries, defaults, source, findings)
    kind, body = entries[chosen]
    place = f"{source}, topology {chosen}: {kind}"
    if kind == "tree":
        found = SlurmTopology(switches=_switches(body, place, findings))
    elif kind == "block":
        found = _blocks(body, place, findings)
    else:
        found = SlurmTopology(others=_others(kind, body, place))
        remark = f"its type {kind} says nothing of domains or switches; nothing but names of hosts is known"
        findings.append(Finding(FindingKind.UNKNOWN, f"topology {chosen}", remark))
    return slurm_facts(found, source=source, findings=findings)


def _choose(
    topology: str | None,
    entries: dict[str, tuple[str, object]],
    defaults: list[str],
    source: str,
    findings: list[Finding],
) -> str:
    """The name of the topology to read."""
    if topology is not None and topology not in entries:
        near = get_close_matches(topology, list(entries)[:1000], 1) or list(entries)[:1]
        raise TopologyError(
            f"{source} has no topology {topology!r}; expected one of its own, such as {near[0]!r}"
        )
    chosen = topology or (defaults or list(entries))[0]
    if topology is None and len(defaults) != 1 and len(entries) > 1:
        text = f"{len(defaults)} topologies are the cluster's default, not one; the first is read"
        findings.append(Finding(FindingKind.ASSUMED, f"topology {chosen}", text))
    others = [f"{name[:60]} ({kind})" for name, (kind, _) in entries.items() if name != chosen]
    if others:
        text = f"the file also has {listed(others)}, which are not read unless one is asked for by name"
        findings.append(Finding(FindingKind.UNKNOWN, f"topology {chosen}", text))
    return chosen


def _switches(body: object, place: str, findings: list[Finding]) -> tuple[SwitchRow, ...]:
    tree = mapping(body, place)
    findings += _unread(tree, ("switches",), place)
    rows, count = [], 0
    for index, value in enumerate(sequence(tree.get("switches"), f"{place}, switches")):
        where = f"{place}, switch {index + 1}"
        entry = mapping(value, where)
        findings += _unread(entry, ("switch", "children", "nodes"), where)
        name = string(entry.get("switch"), f"{where}: switch")
        given = [key for key in ("children", "nodes") if entry.get(key) is not None]
        if len(given) != 1:
            problem = "both children and nodes" if given else "neither children nor nodes"
            raise TopologyError(f"{where} ({name[:60]}) has {problem}; expected one of them")
        names = _names(entry[given[0]], f"{where}: {given[0]}")
        count = _counted(count, names, place)
        rows.append(SwitchRow(name, names, ()) if given == ["children"] else SwitchRow(name, (), names))
    return tuple(rows)


def _blocks(body: object, place: str, findings: list[Finding]) -> SlurmTopology:
    fields = mapping(body, place)
    findings += _unread(fields, ("block_sizes", "blocks"), place)
    sizes = sequence(fields.get("block_sizes", []), f"{place}, block_sizes")
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 10**9:
            raise TopologyError(f"{place}: block_sizes has {described(size)}; expected numbers such as 18")
    blocks: dict[str, tuple[str, ...]] = {}
    count = 0
    for index, value in enumerate(sequence(fields.get("blocks"), f"{place}, blocks")):
        where = f"{place}, block {index + 1}"
        entry = mapping(value, where)
        findings += _unread(entry, ("block", "nodes"), where)
        name = string(entry.get("block"), f"{where}: block")
        if name in blocks:
            raise TopologyError(f"{where} has the name {quote(name, 60)} again; expected distinct names")
        blocks[name] = _names(entry.get("nodes"), f"{where}: nodes")
        count = _counted(count, blocks[name], place)
    return SlurmTopology(blocks=tuple(blocks.items()), block_sizes=tuple(int(str(size)) for size in sizes))


def _others(kind: str, body: object, place: str) -> tuple[str, ...]:
    """Names of the hosts of a type that says nothing else."""
    if kind == "flat":
        return ()
    key = "rings" if kind == "ring" else "toruses"
    names: list[str] = []
    for index, value in enumerate(sequence(mapping(body, place).get(key), f"{place}, {key}")):
        where = f"{place}, {key} {index + 1}"
        names += _names(mapping(value, where).get("nodes"), f"{where}: nodes")
        _counted(0, tuple(names), place)
    return tuple(names)


def _names(value: object, place: str) -> tuple[str, ...]:
    text = string(value, place)
    try:
        return expand_hosts(text)
    except TopologyError as error:
        raise TopologyError(f"{place}: {error}") from None


def _counted(count: int, names: tuple[str, ...], place: str) -> int:
    if count + len(names) > 4 * MAX_HOSTS:
        raise TopologyError(
            f"{place} names more than {4 * MAX_HOSTS} hosts; expected each of {MAX_HOSTS} once"
        )
    return count + len(names)


def _unread(fields: dict[str, object], known: tuple[str, ...], place: str) -> list[Finding]:
    names = [key for key in fields if key not in known]
    if not names:
        return []
    text = f"the fields {brief_names(names)} are not known, and nothing is taken from them"
    return [Finding(FindingKind.UNKNOWN, place, text)]
