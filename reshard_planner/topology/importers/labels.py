"""What labels of Kubernetes nodes say of domains and switches, whoever wrote them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.hostlist import brief_names

CLIQUE = "nvidia.com/gpu.clique"
"""The driver's own id of an NVLink domain, ``<cluster uuid>.<clique>``."""

_CLIQUE_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]+", re.IGNORECASE)
_NO_CLIQUE = re.compile(r"[0-]{36}(?:\.[0-9]+)?")
_AWS = "topology.k8s.aws/network-node-layer-"


@dataclass(frozen=True, slots=True)
class LabelKeys:
    """Keys of labels; there is no standard for them, and most can be configured where they are written.

    Attributes:
        domains: labels that are equal on all nodes of an NVLink domain, the most trustworthy first.
        paths: lists of labels that name the switches above a node, the nearest first; the first list wins.
        gpu_count: number of GPUs.
        gpu_product: model of the GPUs.
    """

    domains: tuple[str, ...] = (
        CLIQUE,
        "accelerator.topograph.run/domain",
        "network.topology.nvidia.com/accelerator",
        "accelerator.topology.test/domain",
        "topology.k8s.aws/ultraserver-id",
    )
    paths: tuple[tuple[str, ...], ...] = (
        tuple(f"fabric.topograph.run/tier-{tier}" for tier in range(8)),
        tuple(f"network.topology.nvidia.com/{tier}" for tier in ("leaf", "spine", "core")),
        tuple(f"{_AWS}{layer}" for layer in (4, 3, 2, 1)),
        tuple(f"cloud.google.com/gce-topology-{level}" for level in ("subblock", "block")),
        tuple(
            f"oci.oraclecloud.com/rdma.{level}_id" for level in ("local_block", "network_block", "hpc_island")
        ),
        tuple(f"oci.oraclecloud.com/host.{level}_id" for level in ("rack", "network_block")),
    )
    gpu_count: str = "nvidia.com/gpu.count"
    gpu_product: str = "nvidia.com/gpu.product"


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """What the labels of nodes say.

    Attributes:
        domains: NVLink domain of each node that has one.
        without: nodes whose driver says that they are in no domain that spans hosts.
        paths: switches above each node, the nearest first.
        findings: where labels differ, or have gaps.
    """

    domains: Mapping[str, str]
    without: frozenset[str]
    paths: Mapping[str, tuple[str, ...]]
    findings: tuple[Finding, ...]


def read_labels(labels: Mapping[str, Mapping[str, str]], keys: LabelKeys) -> LabelFacts:
    """Domains and paths from the labels of each node, by the node's name.

    Values are compared and never taken apart, as long ones are written as hashes.
    """
    findings: list[Finding] = []
    domains: dict[str, str] = {}
    rivals: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    without: set[str] = set()
    paths: dict[str, tuple[str, ...]] = {}
    gaps: list[str] = []
    rings: list[str] = []
    lengths: dict[str, dict[int, list[str]]] = {}
    for node, given in labels.items():
        stated = [(key, given[key]) for key in keys.domains if given.get(key)]
        if any(_NO_CLIQUE.fullmatch(value) for _, value in stated):
            without.add(node)
            stated = [(key, value) for key, value in stated if not _NO_CLIQUE.fullmatch(value)]
        if stated:
            domains[node] = stated[0][1]
            for key, value in stated[1:]:
                rivals.setdefault((stated[0][0], key), []).append((node, stated[0][1], value))
        found = [
            (next(key for key in scheme if given.get(key)), *_path(given, scheme))
            for scheme in keys.paths
            if any(given.get(key) for key in scheme)
        ]
        if not found:
            continue
        nearest, path, gap = found[0]
        gaps += [node] if gap else []
        if len(set(path)) < len(path):
            rings.append(node)
            continue
        paths[node] = path
        lengths.setdefault(nearest, {}).setdefault(len(path), []).append(node)
        for other, other_path, _ in found[1:]:
            if not set(other_path) <= set(path) and not set(path) <= set(other_path):
                rivals.setdefault((nearest, other), []).append((node, path[0], other_path[0]))
    for (first, second), rows in rivals.items():
        findings += _differences(first, second, rows)
    both = sorted(without & set(domains))
    if both:
        text = (
            "the driver says that NVLink ends at the host, other labels name a domain; the labels are taken"
        )
        findings.append(Finding(FindingKind.CONFLICT, f"hosts {brief_names(both)}", text))
    ringed = set(rings)
    placed = domains.keys() | without
    lost = [node for node in labels if node not in placed] if placed else []
    loose = [node for node in labels if node not in paths and node not in ringed] if paths else []
    for names, text in (
        (lost, "no label names their NVLink domain, as labels of others do; it is not known"),
        (loose, "no label names a switch above them, as labels of others do; their paths are not known"),
        (gaps, "labels skip a level of switches, so that switches are missing in their paths"),
        (rings, "labels name one switch at two levels, so that no path is taken for them"),
        (
            _shorter(lengths),
            "labels name fewer levels of switches than those of most others, so that paths may be cut",
        ),
    ):
        if names:
            findings.append(Finding(FindingKind.UNKNOWN, f"hosts {brief_names(names)}", text))
    return LabelFacts(domains, frozenset(without), paths, tuple(findings))


def _path(given: Mapping[str, str], scheme: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """The values at the levels that have one, and whether a level below one of them has none."""
    present = [bool(given.get(key)) for key in scheme]
    last = max(level for level, there in enumerate(present) if there)
    # only some instance types of AWS have a fourth layer
    first = 1 if scheme[0] == f"{_AWS}4" and not present[0] else 0
    return tuple(given[key] for key in scheme if given.get(key)), not all(present[first:last])


def _shorter(lengths: Mapping[str, Mapping[int, list[str]]]) -> list[str]:
    names = []
    for groups in lengths.values():
        usual = max(groups, key=lambda length: (len(groups[length]), length))
        names += [node for length, nodes in groups.items() if length < usual for node in nodes]
    return names


def _differences(first: str, second: str, rows: Sequence[tuple[str, str, str]]) -> list[Finding]:
    """Findings on two keys that are both on some nodes; other names for the same groups are no conflict."""
    unequal = [node for node, one, other in rows if one != other]
    if not unequal:
        return []
    one_to_other: dict[str, set[str]] = {}
    other_to_one: dict[str, set[str]] = {}
    for _, one, other in rows:
        one_to_other.setdefault(one, set()).add(other)
        other_to_one.setdefault(other, set()).add(one)
    apart = [
        node
        for node, one, other in rows
        if len(one_to_other[one]) > 1
        or len(other_to_one[other]) > 1
        or (one != other and _CLIQUE_ID.fullmatch(one) and _CLIQUE_ID.fullmatch(other))
    ]
    if apart:
        text = f"the labels {first} and {second} put them into different groups; {first} is taken"
        return [Finding(FindingKind.CONFLICT, f"hosts {brief_names(apart)}", text)]
    text = f"the labels {first} and {second} name the same groups differently; the names of {first} are taken"
    return [Finding(FindingKind.ASSUMED, f"hosts {brief_names(unequal)}", text)]
