"""Pods of a cluster: domains behind uplinks that carry less than their NICs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, PortFacts
from reshard_planner.topology.cluster.model import Cluster, HostPod, Switch
from reshard_planner.topology.cluster.overlap import join_overlapping
from reshard_planner.topology.cluster.speeds import to_link
from reshard_planner.topology.model import UPLINK_EFFICIENCY, Link, Nic, Pod


@dataclass(frozen=True, slots=True)
class ResolvedPod:
    """A pod with what its uplink carries.

    Attributes:
        name: for display.
        hosts: names of its hosts.
        uplink: its uplink; None where the rate of that is unknown.
        ratio: rate of the NICs of its hosts over that of the uplink; None where that is unknown.
    """

    name: str
    hosts: tuple[str, ...]
    uplink: Link | None
    ratio: float | None

    @property
    def limits(self) -> bool:
        """Whether the uplink carries less than the NICs."""
        return self.ratio is not None and self.ratio > 1


@dataclass(frozen=True, slots=True)
class FoundPods:
    """The pods of a cluster.

    Attributes:
        pods: those that limit transfers, for planning.
        all: those too that are no limit, or not known as one.
        findings: what is unknown of them.
    """

    pods: tuple[Pod, ...] = ()
    all: tuple[ResolvedPod, ...] = ()
    findings: tuple[Finding, ...] = ()


def host_pods(cluster: Cluster) -> Sequence[HostPod]:
    """The stated pods; where there are none, hosts that share leaf switches, directly or through others.

    One of the latter alone is none: everything is in it.
    """
    if cluster.pods:
        return cluster.pods
    switches = {switch.name: switch for switch in cluster.switches}
    groups = join_overlapping((host.name, switches.keys() & host.leaves) for host in cluster.hosts)
    order = {host.name: index for index, host in enumerate(cluster.hosts)}
    if len(groups) < 2:
        return []
    return [
        HostPod(
            _name(sorted(names)),
            tuple(sorted(hosts, key=order.__getitem__)),
            _together([switches[name] for name in sorted(names)]),
        )
        for hosts, names in sorted(groups, key=lambda group: min(order[host] for host in group[0]))
    ]


def _name(switches: list[str]) -> str:
    return switches[0] if len(switches) == 1 else f"{switches[0]} and {len(switches) - 1} more"


def _together(switches: Sequence[Switch]) -> PortFacts:
    """Uplinks of switches as one; nothing is known of them where that of one is not."""
    rates = [switch.uplink.bytes_per_s for switch in switches]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates) or not known:
        return PortFacts()
    least = min(known, key=lambda rate: rate.origin.trust)
    first = switches[0].uplink
    return PortFacts(
        Fact(sum(rate.value for rate in known), least.origin, least.source), first.efficiency, first.latency_s
    )


def find_pods(cluster: Cluster, domains: Sequence[Sequence[int]], nics: Sequence[Nic]) -> FoundPods:
    """The pods with what their uplinks carry.

    Args:
        cluster: the cluster.
        domains: GPUs of each domain.
        nics: the NICs that are used.
    """
    of_hosts = host_pods(cluster)
    if not of_hosts:
        return FoundPods()
    findings: list[Finding] = []
    inside = _gpus_inside(cluster, of_hosts)
    domain_pods = [Counter(inside.get(gpu) for gpu in gpus) for gpus in domains]
    rates: Counter[int | None] = Counter()
    for nic in nics:
        rates[inside.get(nic.gpus[0])] += nic.link.bytes_per_s
    pods: list[Pod] = []
    resolved: list[ResolvedPod] = []
    for index, pod in enumerate(of_hosts):
        uplink = _uplink(pod, rates[index])
        ratio = None if uplink is None else rates[index] / uplink.bytes_per_s
        resolved.append(ResolvedPod(pod.name, pod.hosts, uplink, ratio))
        if uplink is None or not resolved[-1].limits:
            continue  # what carries all that its NICs do is never a limit
        members = [number for number, counts in enumerate(domain_pods) if set(counts) == {index}]
        split = [number for number, counts in enumerate(domain_pods) if index in counts and len(counts) > 1]
        if split:
            findings.append(
                Finding(
                    FindingKind.UNKNOWN,
                    f"pod {pod.name}",
                    f"{len(split)} domains lie only partly in it; its uplink does not count their traffic",
                )
            )
        if members:
            pods.append(Pod(tuple(members), uplink))
    unknown = [pod.name for pod in resolved if pod.uplink is None]
    if unknown:
        text = (
            "the rate of its uplink is unknown and taken as no limit; state pods with uplink or"
            " oversubscription to change that"
        )
        place = f"{len(unknown)} pods, first {unknown[0]}" if len(unknown) > 1 else f"pod {unknown[0]}"
        findings.append(Finding(FindingKind.ASSUMED, place, text))
    return FoundPods(tuple(pods), tuple(resolved), tuple(findings))


def _gpus_inside(cluster: Cluster, of_hosts: Sequence[HostPod]) -> dict[int, int]:
    """Pod of every GPU that is in one."""
    firsts = cluster.first_gpus()
    sizes = {host.name: len(host.gpus) for host in cluster.hosts}
    return {
        firsts[host] + position: index
        for index, pod in enumerate(of_hosts)
        for host in pod.hosts
        for position in range(sizes[host])
    }


def _uplink(pod: HostPod, nic_bytes_per_s: int) -> Link | None:
    """The uplink as a link; None where its rate is unknown."""
    if pod.uplink.bytes_per_s is not None:
        rate = pod.uplink.bytes_per_s.value
    elif pod.oversubscription is not None:
        rate = max(1, int(nic_bytes_per_s / pod.oversubscription.value))
    else:
        return None
    return replace(to_link(pod.uplink, Link(1, UPLINK_EFFICIENCY, 0.0)), bytes_per_s=rate)
