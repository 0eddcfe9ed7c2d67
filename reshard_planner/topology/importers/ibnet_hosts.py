"""Hosts of an InfiniBand network, as the descriptions of their ports name them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin, PortFacts
from reshard_planner.topology.cluster.hostlist import MAX_HOSTS, brief_names
from reshard_planner.topology.cluster.model import Host, HostNic
from reshard_planner.topology.importers.ibnet_cables import Cable, Cables
from reshard_planner.topology.importers.ibnet_rails import find_rails
from reshard_planner.topology.importers.ibnet_switches import is_aggregation
from reshard_planner.topology.wording import listed, natural, quote

_NAMED = re.compile(
    r"(\S{1,64})\s+((?:mlx\d{1,2}_|HCA-|ibp?\d|ibs|roce|qib|hfi\d_|mthca|bnxt_re|irdma|efa_|cxi)\w{0,32})",
    re.ASCII,
)
"""What drivers and ``rdma-ndd`` set: the name of the host and that of the device."""

_DEFAULT = re.compile(
    r"localhost(?:\..*)?|ubuntu|debian|centos|rocky|linux|node|\(none\)|bogon|unknown", re.IGNORECASE
)
"""Host names of systems that were given none."""


class Plug(NamedTuple):
    """One port of a host with its cable; None where it has none that could be taken."""

    host: str
    nic: str
    guid: str
    cable: Cable | None


def read_hosts(
    cables: Cables, names: dict[str, str], source: str
) -> tuple[tuple[Host, ...], tuple[Finding, ...]]:
    """The hosts with their NICs, in natural order of their names.

    Args:
        cables: all cables.
        names: names of switches by their node.
        source: name of the text, for display.
    """
    findings: list[Finding] = []
    by_host: dict[str, dict[str, Plug]] = {}
    for plug in _distinct(_plugs(cables, source, findings), findings):
        by_host.setdefault(plug.host, {})[plug.nic] = plug
    if len(by_host) > MAX_HOSTS:
        raise TopologyError(f"{source} has {len(by_host)} hosts; expected at most {MAX_HOSTS}")
    ordered = {
        host: {nic: by_host[host][nic] for nic in sorted(by_host[host], key=natural)}
        for host in sorted(by_host, key=natural)
    }
    defaults = [host for host in ordered if _DEFAULT.fullmatch(host)]
    if defaults:
        text = "a name that systems have before they are given one; NICs of several hosts may stand under it"
        findings.append(Finding(FindingKind.CONFLICT, f"hosts {brief_names(defaults)}", text))
    rails = find_rails(
        {
            host: {nic: leaf for nic, plug in nics.items() if (leaf := _leaf(plug, names)) is not None}
            for host, nics in ordered.items()
        }
    )
    findings.extend(rails.findings)
    hosts = []
    for host, nics in ordered.items():
        ports = []
        for nic, plug in nics.items():
            leaf = _leaf(plug, names)
            rail = rails.of_leaf.get(leaf) if leaf is not None else None
            origin = Origin.ASSUMED if (host, nic) in rails.odd else Origin.FILE
            rate = plug.cable.bytes_per_s if plug.cable is not None else None
            ports.append(
                HostNic(
                    nic,
                    guid=plug.guid.zfill(16),
                    rail=None if rail is None else Fact(rail, origin, source),
                    leaf=None if leaf is None else Fact(leaf, Origin.FILE, source),
                    port=PortFacts(None if rate is None else Fact(rate, Origin.FILE, source)),
                )
            )
        hosts.append(Host(host, nics=tuple(ports)))
    return tuple(hosts), tuple(findings)


def _leaf(plug: Plug, names: dict[str, str]) -> str | None:
    return names.get(plug.cable.peer) if plug.cable is not None else None


def _plugs(cables: Cables, source: str, findings: list[Finding]) -> list[Plug]:
    """The ports whose descriptions name a host and a device; the others are left out, with a finding."""
    plugs: list[Plug] = []
    nameless: list[str] = []
    idle: list[str] = []
    for node, ends in cables.ends.items():
        if not node.startswith("H") or is_aggregation(cables, node):
            continue
        named = _NAMED.fullmatch(cables.descriptions[node].strip())
        if named is None:
            nameless.append(node)
            continue
        if not ends:
            idle.append(f"{named[1]} {named[2]}")
            plugs.append(Plug(named[1], named[2], node[2:], None))
        for cable in ends:
            nic = named[2] if len(ends) == 1 else f"{named[2]}:{cable.port}"
            plugs.append(Plug(named[1], nic, cable.guid or node[2:], cable))
    if nameless:
        adapters = len({cables.images.get(node) or node for node in nameless})
        example = quote(cables.descriptions[nameless[0]], 64)
        text = (
            f"{len(nameless)} ports of {adapters} adapters name no host, such as {example}; they are left"
            f" out, as are hosts that have no others: {listed(nameless, 3)}"
        )
        findings.append(Finding(FindingKind.UNKNOWN, source, text))
    if idle:
        text = f"{len(idle)} ports have no cable that could be taken: {listed(idle)}; their leaf is left open"
        findings.append(Finding(FindingKind.DEGRADED, source, text))
    return plugs


def _distinct(plugs: list[Plug], findings: list[Finding]) -> list[Plug]:
    """The ports without those that have the same names, of which nobody can tell the hosts."""
    counts = Counter((plug.host, plug.nic) for plug in plugs)
    twice: dict[str, list[str]] = defaultdict(list)
    for (host, nic), count in counts.items():
        if count > 1:
            twice[host].append(nic)
    if not twice:
        return plugs
    # a host without a name of its own may be any number of hosts: nothing of it can be trusted
    shared = {host for host in twice if _DEFAULT.fullmatch(host)}
    for host, nics in twice.items():
        left = "the host is left out" if host in shared else "these NICs are left out"
        called = listed(sorted(nics, key=natural))
        text = f"several ports are called {called}, so that several hosts share the name; {left}"
        findings.append(Finding(FindingKind.CONFLICT, f"host {host}", text))
    return [plug for plug in plugs if plug.host not in shared and counts[plug.host, plug.nic] == 1]
