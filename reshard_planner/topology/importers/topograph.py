"""Files of topograph: models of its simulations (YAML), and the output of its engine ``graph`` (JSON)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin
from reshard_planner.topology.cluster.hostlist import MAX_HOSTS, brief_names, expand_hosts
from reshard_planner.topology.cluster.model import Cluster, Host, Switch
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.labels import LabelKeys, read_labels
from reshard_planner.topology.importers.plaindata import mapping, parse_plain, sequence, string, strings
from reshard_planner.topology.importers.reading import Reading
from reshard_planner.topology.importers.slurm_facts import cut_short
from reshard_planner.topology.importers.switchtree import (
    MAX_LEVELS,
    SwitchRow,
    build_tree,
    check_hosts,
    switches_of_paths,
)
from reshard_planner.topology.wording import quote

_JSON = re.compile(r'"(?:instances|network_layers)"\s*+:')
_SWITCHES = re.compile(r"^switches[ \t]*:", re.MULTILINE)
_BLOCKS = re.compile(r"^(?:blocks|nodes|capacity_blocks)[ \t]*:", re.MULTILINE)
_NVLINK = "attributes.nvlink"


def recognises(text: str) -> bool:
    """Whether it has instances with layers of a network, or switches with blocks or nodes at the top."""
    if text.lstrip()[:1] == "{":
        return _JSON.search(text) is not None
    return _SWITCHES.search(text) is not None and _BLOCKS.search(text) is not None


def read(text: str, reading: Reading) -> Imported:
    """Hosts with their switches and domains; without GPUs and NICs, which the file does not name.

    Args:
        text: the file.
        reading: the name of the file, and the keys of labels.

    Raises:
        TopologyError: if it is no such file, or switches are no tree.
    """
    source, keys = reading.source, reading.settings.label_keys
    top = mapping(parse_plain(text, source), source)
    keys = LabelKeys((_NVLINK, *keys.domains), (), keys.gpu_count, keys.gpu_product)
    if "instances" in top:
        return _read_graph(top["instances"], keys, source)
    if "switches" in top:
        return _read_model(top, keys, source, cut_short(text, source))
    raise TopologyError(f"{source} has neither instances nor switches; expected a file of topograph")


def _read_graph(value: object, keys: LabelKeys, source: str) -> Imported:
    """Instances, each with its layers."""
    paths: dict[str, tuple[str, ...]] = {}
    labels: dict[str, dict[str, str]] = {}
    for index, entry in enumerate(sequence(value, f"{source}: instances")):
        place = f"{source}, instance {index + 1}"
        instance = mapping(entry, place)
        name = string(instance.get("id"), f"{place}: id")
        if name in labels:
            raise TopologyError(f"{place} has the id {quote(name, 60)} again; expected distinct ids")
        labels[name] = _labels(instance, place)
        layers = sequence(instance.get("network_layers") or [], f"{place}: network_layers")
        path = tuple(string(layer, f"{place}: network_layers") for layer in layers)
        if len(set(path)) < len(path) or len(path) > MAX_LEVELS:
            raise TopologyError(
                f"{place}: network_layers names a switch twice, or more than {MAX_LEVELS} switches"
            )
        if path:
            paths[name] = path
    if not labels:
        raise TopologyError(f"{source} has no instance; expected one at least")
    remark = "hosts are named by instance ids, and other sources may name them differently"
    findings = [Finding(FindingKind.ASSUMED, source, remark)]
    return _imported(labels, paths, switches_of_paths(paths.values(), source), keys, source, findings)


def _read_model(top: dict[str, object], keys: LabelKeys, source: str, findings: list[Finding]) -> Imported:
    """A tree of switches, and blocks or nodes below its leaves."""
    unread = [key for key in top if key not in ("switches", "blocks", "nodes", "capacity_blocks", "topology")]
    if unread:
        remark = f"the fields {brief_names(unread)} are not known, and nothing is taken from them"
        findings.append(Finding(FindingKind.UNKNOWN, source, remark))
    children: dict[str, list[str]] = {}
    plugged: dict[str, list[str]] = {}
    inherited: dict[str, dict[str, str]] = {}
    leaf_of_block: dict[str, str] = {}
    for name, entry, place in _named(top["switches"], f"{source}, switch"):
        children[name] = [
            string(child, f"{place}: switches")
            for child in sequence(entry.get("switches") or [], f"{place}: switches")
        ]
        plugged[name] = _expanded(entry.get("nodes"), f"{place}: nodes")
        inherited[name] = _labels(entry, place)
        for block in sequence(entry.get("capacity_blocks") or [], f"{place}: capacity_blocks"):
            leaf_of_block[string(block, f"{place}: capacity_blocks")] = name
    # leaves need no entry of their own where another switch names them
    for child in [child for below in children.values() for child in below]:
        children.setdefault(child, [])
    labels: dict[str, dict[str, str]] = {}
    apart: list[str] = []
    for names, leaf, given, place in _blocks(top, leaf_of_block, source):
        if leaf is not None and leaf not in children:
            raise TopologyError(
                f"{place} is below switch {quote(leaf, 60)}, which the file lacks; expected one of its own"
            )
        apart += [name for name in names if not _agree(given, labels.setdefault(name, dict(given)), keys)]
        if leaf is not None:
            plugged.setdefault(leaf, []).extend(names)
        check_hosts(len(labels), source)
    if apart:
        remark = "named in two places with other domains; no domain is taken for them"
        findings.append(Finding(FindingKind.CONFLICT, f"hosts {brief_names(apart)}", remark))
    tree = build_tree(
        (SwitchRow(name, tuple(below), tuple(plugged.get(name, ()))) for name, below in children.items()),
        source,
    )
    for name in tree.hosts:
        labels.setdefault(name, {})
    if not labels:
        raise TopologyError(f"{source} has no nodes; expected blocks with nodes, or switches with nodes")
    for name, path in tree.paths.items():
        for switch in path:
            labels[name] = {**inherited.get(switch, {}), **labels[name]}
    empty = [name for name, below in children.items() if not below and not plugged.get(name)]
    if empty:
        remark = "without hosts and switches below, so that hosts may be missing"
        findings.append(Finding(FindingKind.UNKNOWN, f"switches {brief_names(empty)}", remark))
    return _imported(labels, dict(tree.paths), tree.switches, keys, source, [*findings, *tree.findings])


def _blocks(
    top: dict[str, object], leaf_of_block: dict[str, str], source: str
) -> Iterator[tuple[list[str], str | None, dict[str, str], str]]:
    """Names of nodes that have labels in common, the switch above them, and the labels."""
    for index, value in enumerate(sequence(top.get("blocks") or [], f"{source}: blocks")):
        place = f"{source}, block {index + 1}"
        entry = mapping(value, place)
        names = _expanded(entry.get("nodes"), f"{place}: nodes")
        if not names:
            raise TopologyError(
                f"{place} has no nodes; expected a list such as [node[01-18]], unless it is cut short"
            )
        leaf = entry.get("switch")
        yield names, None if leaf is None else string(leaf, f"{place}: switch"), _labels(entry, place), place
    blocks: dict[str, dict[str, str]] = {}
    for name, entry, place in _named(top.get("capacity_blocks") or {}, f"{source}, capacity block"):
        blocks[name] = _labels(entry, place)
        yield _expanded(entry.get("nodes"), f"{place}: nodes"), leaf_of_block.get(name), blocks[name], place
    for name, entry, place in _named(top.get("nodes") or {}, f"{source}, node"):
        block = entry.get("capacity_block")
        yield [name], None, {**blocks.get(str(block), {}), **_labels(entry, place)}, place


def _named(value: object, place: str) -> Iterator[tuple[str, dict[str, object], str]]:
    """Entries by name: the keys of a mapping, or the names in a list."""
    if isinstance(value, list):
        entries = [mapping(entry, f"{place} {index + 1}") for index, entry in enumerate(value)]
        pairs = [
            (string(entry.get("name"), f"{place} {index + 1}: name"), entry)
            for index, entry in enumerate(entries)
        ]
    else:
        pairs = [
            (name, mapping({} if entry is None else entry, f"{place} {name[:60]}"))
            for name, entry in mapping(value, place).items()
        ]
    seen: set[str] = set()
    for name, entry in pairs:
        if name in seen:
            raise TopologyError(f"{place} {name[:60]} is given twice; expected it once")
        seen.add(name)
        yield name, entry, f"{place} {name[:60]}"


def _expanded(value: object, place: str) -> list[str]:
    names: list[str] = []
    for entry in [value] if isinstance(value, str) else sequence(value or [], place):
        try:
            names += expand_hosts(string(entry, place))
        except TopologyError as error:
            raise TopologyError(
                f"{place}: {error}" if not str(error).startswith(place) else str(error)
            ) from None
        if len(names) > MAX_HOSTS:
            raise TopologyError(f"{place} names more than {MAX_HOSTS} hosts; expected at most that")
    return names


def _labels(entry: dict[str, object], place: str) -> dict[str, str]:
    """Labels, annotations and the older attribute ``nvlink``, which is a domain too."""
    attributes = strings(entry.get("attributes"), f"{place}: attributes")
    nvlink = entry.get("nvlink") or attributes.get("nvlink")
    found = {
        **strings(entry.get("labels"), f"{place}: labels"),
        **strings(entry.get("annotations"), f"{place}: annotations"),
    }
    return found if nvlink is None else {**found, _NVLINK: string(nvlink, f"{place}: nvlink")}


def _agree(given: dict[str, str], kept: dict[str, str], keys: LabelKeys) -> bool:
    """Whether the labels of a node from two places agree on domains; keeps both, and no domain where not."""
    apart = [key for key in keys.domains if key in given and kept.get(key, given[key]) != given[key]]
    kept.update({key: value for key, value in given.items() if key not in kept})
    kept.update(dict.fromkeys(apart, ""))
    return not apart


def _imported(
    labels: dict[str, dict[str, str]],
    paths: dict[str, tuple[str, ...]],
    switches: tuple[Switch, ...],
    keys: LabelKeys,
    source: str,
    findings: list[Finding],
) -> Imported:
    check_hosts(len(labels), source)
    facts = read_labels(labels, keys)
    domains = {name: Fact(name, Origin.FILE, source) for name in set(facts.domains.values())}
    path_facts = {path: Fact(path, Origin.FILE, source) for path in set(paths.values())}
    hosts = tuple(
        Host(
            name,
            domain=domains[facts.domains[name]] if name in facts.domains else None,
            path=path_facts[paths[name]] if name in paths else None,
        )
        for name in labels
    )
    if not facts.domains and not facts.without:
        remark = "no label names an NVLink domain, so that none is known"
        findings.append(Finding(FindingKind.UNKNOWN, source, remark))
    loose = [name for name in labels if name not in paths]
    if loose:
        remark = "no switch is named above them, so that nothing is known of their way to others"
        findings.append(Finding(FindingKind.UNKNOWN, f"hosts {brief_names(loose)}", remark))
    if any("sub-domain" in key for given in labels.values() for key in given):
        remark = "domains have sub-domains; all GPUs of a domain are taken to reach each other over NVLink"
        findings.append(Finding(FindingKind.ASSUMED, source, remark))
    return Imported(Cluster(hosts=hosts, switches=switches), (*findings, *facts.findings))
