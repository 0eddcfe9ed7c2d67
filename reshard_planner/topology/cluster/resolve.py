"""From a cluster to the topology that planning uses, saying what was assumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.domains import DomainGpus, find_domains
from reshard_planner.topology.cluster.facts import Finding, FindingKind, PortFacts, join_alike
from reshard_planner.topology.cluster.model import Cluster
from reshard_planner.topology.cluster.nics import NicUse, apply_nic_overrides, find_nics, used_nics
from reshard_planner.topology.cluster.pods import ResolvedPod, find_pods
from reshard_planner.topology.cluster.speeds import PCIE_LINK, nvlink_facts, to_link
from reshard_planner.topology.model import NIC_LINK, NVLINK_LINK, Domain, Link, Topology


@dataclass(frozen=True, slots=True)
class Resolved:
    """A topology with what it came from.

    Attributes:
        topology: for planning.
        domains: name and GPUs of each of its domains.
        nics: host and name of each of its NICs.
        uses: who uses which NICs, by host.
        pods: pods of the cluster, those too that are no limit and so not in the topology.
        findings: what was assumed, is unknown, or contradicts itself.
    """

    topology: Topology
    domains: tuple[DomainGpus, ...]
    nics: tuple[tuple[str, str], ...]
    uses: tuple[tuple[NicUse, ...], ...]
    pods: tuple[ResolvedPod, ...]
    findings: tuple[Finding, ...]


def resolve(cluster: Cluster) -> Resolved:
    """Make the topology of a cluster.

    The GPU of number ``i`` is the i-th one, host by host. A domain's speed is that of its slowest port.

    Raises:
        TopologyError: if the cluster has no GPUs, or an override names something that it lacks.
    """
    if not cluster.gpu_count:
        hosts = f"{len(cluster.hosts)} hosts" if cluster.hosts else "no hosts"
        raise TopologyError(
            f"cluster {cluster.name!r} has {hosts} and no GPUs; add a source that lists them, or hosts[].gpus"
        )
    cluster = apply_nic_overrides(cluster)
    named, findings = find_domains(cluster)
    domain_of = [0] * cluster.gpu_count
    for index, domain in enumerate(named):
        for number in domain.gpus:
            domain_of[number] = index
    ports = [nvlink_facts(cluster, host, gpu) for host in cluster.hosts for gpu in host.gpus]
    domains = tuple(
        Domain(domain.gpus, _slowest([ports[number] for number in domain.gpus], domain)) for domain in named
    )
    nics = find_nics(cluster, domain_of)
    pods = find_pods(cluster, [domain.gpus for domain in named], nics.nics)
    topology = Topology(domains, nics.nics, cluster.rank_map, cluster.name, pods.pods)
    speeds = (
        *_assumed("NVLink port", [ports[gpu] for gpu in _joined(named, over_pcie=False)], NVLINK_LINK),
        *_assumed("PCIe port", [ports[gpu] for gpu in _joined(named, over_pcie=True)], PCIE_LINK),
        *_assumed("NIC", [port for _, _, port in used_nics(cluster, nics.uses)], NIC_LINK),
    )
    found = [*findings, *nics.findings, *pods.findings, *speeds, *_without_nic(cluster, topology)]
    return Resolved(topology, tuple(named), nics.names, nics.uses, pods.all, join_alike(found))


def _slowest(ports: list[PortFacts], domain: DomainGpus) -> Link:
    default = PCIE_LINK if domain.over_pcie else NVLINK_LINK
    return min((to_link(port, default) for port in ports), key=lambda link: link.bytes_per_s)


def _joined(domains: Sequence[DomainGpus], *, over_pcie: bool) -> Iterator[int]:
    """GPUs that have others in their domain, with or without NVLink."""
    for domain in domains:
        if len(domain.gpus) > 1 and domain.over_pcie is over_pcie:
            yield from domain.gpus


def _assumed(what: str, ports: list[PortFacts], default: Link) -> list[Finding]:
    """How many ports nobody stated the rate of."""
    count = sum(port.bytes_per_s is None for port in ports)
    if not count:
        return []
    rate = default.bytes_per_s / 1e9
    text = f"the datasheet rate is unknown, {rate:g} GB/s is assumed; state it to change that"
    return [Finding(FindingKind.ASSUMED, f"{count} {what}{'s' * (count > 1)}", text)]


def _without_nic(cluster: Cluster, topology: Topology) -> list[Finding]:
    """GPUs that no NIC serves, by host."""
    served = {gpu for nic in topology.nics for gpu in nic.gpus}
    findings, number = [], 0
    several = len(topology.domains) > 1
    for host in cluster.hosts:
        left = [gpu.name for position, gpu in enumerate(host.gpus) if number + position not in served]
        number += len(host.gpus)
        if not left or not several:
            continue
        over = "bytes for other domains go over NICs of neighbours, if any has one"
        if not host.nics:
            finding = Finding(FindingKind.UNKNOWN, f"host {host.name}", f"no source lists its NICs: {over}")
        elif len(left) == len(host.gpus):
            finding = Finding(
                FindingKind.DEGRADED, f"host {host.name}", f"none of its GPUs has a NIC: {over}"
            )
        else:
            who = f"{', '.join(left)} {'lacks' if len(left) == 1 else 'lack'} a NIC"
            finding = Finding(FindingKind.DEGRADED, f"host {host.name}", f"{who}: {over}")
        findings.append(finding)
    return findings
