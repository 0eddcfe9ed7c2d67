"""Labels of Kubernetes nodes, as ``kubectl get nodes -o json`` or ``-o yaml`` prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin
from reshard_planner.topology.cluster.hostlist import brief_names
from reshard_planner.topology.cluster.model import MAX_HOST_GPUS, Cluster, Gpu, Host
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.labels import LabelFacts, LabelKeys, read_labels
from reshard_planner.topology.importers.plaindata import (
    described,
    mapping,
    parse_plain,
    sequence,
    string,
    strings,
)
from reshard_planner.topology.importers.reading import Reading
from reshard_planner.topology.importers.switchtree import check_hosts, switches_of_paths
from reshard_planner.topology.wording import quote

_ITEMS = re.compile(r"""^[ \t{]*["']?(?:items|kind)["']?[ \t]*:""", re.MULTILINE)
_LABELS = re.compile(r"""["']?labels["']?[ \t]*:""")
_EKS = re.compile(r"""["']?Nodes["']?[ \t]*:""")
_TOPOLOGY = re.compile(r"""["']?Topology["']?[ \t]*:""")
_CAPACITY = "nvidia.com/gpu"


def recognises(text: str) -> bool:
    """Whether it has nodes of Kubernetes with labels, or nodes with the topology that AWS gives them."""
    if _EKS.search(text) is not None and _TOPOLOGY.search(text) is not None:
        return True
    return "metadata" in text and _LABELS.search(text) is not None and _kubernetes(text)


def _kubernetes(text: str) -> bool:
    return _ITEMS.search(text) is not None or '"items"' in text or '"kind"' in text


def read(text: str, reading: Reading) -> Imported:
    """Hosts with their domains, switches and GPUs, as far as labels name them.

    Args:
        text: the output.
        reading: the name of the file, and the keys of labels.

    Raises:
        TopologyError: if it is no list of nodes, or their labels are not text.
    """
    source, keys = reading.source, reading.settings.label_keys
    findings: list[Finding] = []
    labels: dict[str, dict[str, str]] = {}
    capacities: dict[str, object] = {}
    for name, given, capacity in _nodes(parse_plain(text, source), source, keys, findings):
        if name in labels:
            raise TopologyError(f"{source} has node {quote(name, 60)} twice; expected each once")
        labels[name] = given
        capacities[name] = capacity
    check_hosts(len(labels), source)
    known = {
        *keys.domains,
        *(key for scheme in keys.paths for key in scheme),
        keys.gpu_count,
        keys.gpu_product,
    }
    bare = [name for name, given in labels.items() if not known & given.keys() and capacities[name] is None]
    if bare:
        remark = "no label says anything of their GPUs, domain or switches, so that they are left out"
        findings.append(Finding(FindingKind.UNKNOWN, f"nodes {brief_names(bare)}", remark))
    for name in bare:
        del labels[name]
    if not labels:
        raise TopologyError(
            f"{source} has no node with a label of GPUs, a domain or switches; expected one at least"
        )
    facts = read_labels(labels, keys)
    hosts = _hosts(labels, capacities, facts, keys, source, findings)
    switches = switches_of_paths(facts.paths.values(), source)
    return Imported(Cluster(hosts=hosts, switches=switches), (*findings, *facts.findings))


def _nodes(
    value: object, source: str, keys: LabelKeys, findings: list[Finding]
) -> Iterator[tuple[str, dict[str, str], object]]:
    """Name, labels and capacity of GPUs of every node."""
    top = mapping(value, source)
    if "Nodes" in top:
        for index, entry in enumerate(sequence(top["Nodes"], f"{source}: Nodes")):
            place = f"{source}, node {index + 1}"
            node = mapping(entry, place)
            name = string(node.get("Name"), f"{place}: Name")
            yield name, _labels(node.get("Topology"), f"{place}: Topology", keys), None
        return
    if "items" in top:
        items = sequence(top["items"], f"{source}: items")
        if strings(top.get("metadata"), f"{source}: metadata").get("continue"):
            remark = "the list has a continuation, so that it ends early and nodes are missing"
            findings.append(Finding(FindingKind.UNKNOWN, source, remark))
    elif "metadata" in top:
        items = [top]
    else:
        raise TopologyError(
            f"{source} has neither items nor Nodes; expected the output of kubectl get nodes -o json"
        )
    for index, entry in enumerate(items):
        place = f"{source}, node {index + 1}"
        node = mapping(entry, place)
        kind = node.get("kind", "Node")
        if kind != "Node":
            raise TopologyError(
                f"{place} is of kind {described(kind)}; expected Node, as kubectl get nodes prints"
            )
        metadata = mapping(node.get("metadata"), f"{place}: metadata")
        name = string(metadata.get("name"), f"{place}: metadata.name")
        status = mapping(node.get("status") or {}, f"{place}: status")
        capacity = mapping(status.get("capacity") or {}, f"{place}: status.capacity").get(_CAPACITY)
        yield name, _labels(metadata.get("labels"), f"{place}: metadata.labels", keys), capacity


def _labels(value: object, place: str, keys: LabelKeys) -> dict[str, str]:
    if value is None:
        return {}
    fields = mapping(value, place)
    count = fields.get(keys.gpu_count)
    if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 10**6:
        fields = {**fields, keys.gpu_count: str(count)}
    for key, text in fields.items():
        if not isinstance(text, str) or len(text) > 256:
            raise TopologyError(
                f"{place} has {key[:60]} {described(text)}; expected text of at most 256 characters"
            )
    return strings(fields, place)


def _hosts(
    labels: dict[str, dict[str, str]],
    capacities: dict[str, object],
    facts: LabelFacts,
    keys: LabelKeys,
    source: str,
    findings: list[Finding],
) -> tuple[Host, ...]:
    shared: dict[object, Fact[str]] = {}
    paths: dict[tuple[str, ...], Fact[tuple[str, ...]]] = {}
    gpus: dict[tuple[int, str | None, bool], tuple[Gpu, ...]] = {}
    hosts = []
    unlike: list[str] = []
    uncounted: list[str] = []

    def fact(value: str) -> Fact[str]:
        return shared.setdefault(value, Fact(value, Origin.FILE, source))

    for name, given in labels.items():
        stated = _count(given.get(keys.gpu_count), f"{source}, node {name[:60]}: {keys.gpu_count}")
        capacity = _count(capacities[name], f"{source}, node {name[:60]}: status.capacity {_CAPACITY}")
        if stated is not None and capacity is not None and stated != capacity:
            unlike.append(name)
        count = stated if stated is not None else capacity
        if count is None:
            uncounted.append(name)
        product = given.get(keys.gpu_product)
        key = (count or 0, product, name in facts.without and name not in facts.domains)
        if key not in gpus:
            gpus[key] = tuple(
                Gpu(f"GPU{index}", fact(product) if product else None, fabric=fact("") if key[2] else None)
                for index in range(key[0])
            )
        path = facts.paths.get(name)
        hosts.append(
            Host(
                name,
                gpus[key],
                domain=fact(facts.domains[name]) if name in facts.domains else None,
                path=paths.setdefault(path, Fact(path, Origin.FILE, source)) if path is not None else None,
            )
        )
    if unlike:
        text = f"{keys.gpu_count} and status.capacity differ, as where GPUs are shared; the label is taken"
        findings.append(Finding(FindingKind.CONFLICT, f"hosts {brief_names(unlike)}", text))
    if uncounted:
        text = f"without the label {keys.gpu_count}, so that their GPUs are not known"
        findings.append(Finding(FindingKind.UNKNOWN, f"hosts {brief_names(uncounted)}", text))
    return tuple(hosts)


def _count(value: object, place: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 10**6 else "a large number"
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,6}", value) or int(value) > MAX_HOST_GPUS:
        raise TopologyError(f"{place} is {described(value)}; expected 0 to {MAX_HOST_GPUS}")
    return int(value)
