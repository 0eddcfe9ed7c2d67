"""What sources say of all NICs and GPUs at once, joined: of the cluster, or of some of its hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from reshard_planner.topology.cluster.facts import PortFacts
from reshard_planner.topology.cluster.hostlist import brief_names
from reshard_planner.topology.cluster.joining import Joiner
from reshard_planner.topology.cluster.model import Cluster, Host, HostOverrides


@dataclass(frozen=True, slots=True)
class Wide:
    """What is said of all NICs and GPUs of some hosts: defaults, and what wins over all sources."""

    nic: PortFacts = field(default_factory=PortFacts)
    nvlink: PortFacts = field(default_factory=PortFacts)
    overrides: HostOverrides = field(default_factory=HostOverrides)

    def over(self, other: Wide) -> Wide:
        """These values, and those of ``other`` where there are none."""
        mine, theirs = self.overrides, other.overrides
        return Wide(
            self.nic.over(other.nic),
            self.nvlink.over(other.nvlink),
            HostOverrides(
                mine.gpu_model or theirs.gpu_model,
                mine.nic.over(theirs.nic),
                mine.nvlink.over(theirs.nvlink),
            ),
        )


def hosts_of_part(cluster: Cluster, count: int) -> tuple[str, ...] | None:
    """The hosts of a source that lists some of ``count`` hosts; None where it speaks of all."""
    names = tuple(host.name for host in cluster.hosts)
    return names if 0 < len(names) < count else None


def join_wide(joiner: Joiner, clusters: Sequence[Cluster], merged: Cluster) -> Cluster:
    """The merged cluster with what sources say of all NICs and GPUs of theirs.

    A source that lists no hosts speaks of all. Where sources speak of all hosts alike, values of the cluster
    stay such; else each host gets what is said of it.

    Args:
        joiner: joins what several sources say of one host, and notes conflicts.
        clusters: the sources.
        merged: everything else that they say.
    """
    speaking = [cluster for cluster in clusters if _of_cluster(cluster) != Wide() or _of_hosts(cluster)]
    if not speaking:
        return merged
    of_hosts = _of_hosts(speaking[0])
    apart = any(hosts_of_part(cluster, len(merged.hosts)) for cluster in speaking)
    if not apart and all(_of_hosts(cluster) == of_hosts for cluster in speaking):
        common = _join(joiner, [_of_cluster(cluster) for cluster in speaking], "")
        given = replace(
            merged.overrides,
            gpu_model=common.overrides.gpu_model,
            nic=common.overrides.nic,
            nvlink=common.overrides.nvlink,
        )
        merged = replace(merged, nic=common.nic, nvlink=common.nvlink, overrides=given)
    else:
        of_hosts = _host_by_host(joiner, speaking, merged)
    hosts = (_with(host, of_hosts[host.name]) if host.name in of_hosts else host for host in merged.hosts)
    return replace(merged, hosts=tuple(hosts))


def _of_cluster(cluster: Cluster) -> Wide:
    given = cluster.overrides
    return Wide(cluster.nic, cluster.nvlink, HostOverrides(given.gpu_model, given.nic, given.nvlink))


def _of_hosts(cluster: Cluster) -> dict[str, Wide]:
    """By name, the hosts of which something is said alone."""
    found = {host.name: Wide(host.nic, host.nvlink, host.overrides) for host in cluster.hosts}
    return {name: wide for name, wide in found.items() if wide != Wide()}


def _host_by_host(joiner: Joiner, clusters: Sequence[Cluster], merged: Cluster) -> dict[str, Wide]:
    """What sources say of each host; hosts of which they say the same are joined, and told, together."""
    said: dict[str, list[Wide]] = {host.name: [] for host in merged.hosts}
    for cluster in clusters:
        of_cluster, of_hosts = _of_cluster(cluster), _of_hosts(cluster)
        for name in (host.name for host in cluster.hosts or merged.hosts):
            said[name].append(of_hosts[name].over(of_cluster) if name in of_hosts else of_cluster)
    groups: dict[tuple[Wide, ...], list[str]] = {}
    for name, wides in said.items():
        groups.setdefault(tuple(wides), []).append(name)
    found = {}
    for each, names in groups.items():
        joined = _join(joiner, each, f" of {brief_names(names)}")
        found.update(dict.fromkeys(names, joined))
    return found


def _join(joiner: Joiner, wides: Sequence[Wide], of: str) -> Wide:
    joined = Wide()
    for theirs in wides:
        joined = Wide(
            joiner.port(joined.nic, theirs.nic, f"default of NICs{of}"),
            joiner.port(joined.nvlink, theirs.nvlink, f"default of NVLink ports{of}"),
            joiner.host_overrides(joined.overrides, theirs.overrides, f"overrides{of}"),
        )
    return joined


def _with(host: Host, wide: Wide) -> Host:
    return replace(host, nic=wide.nic, nvlink=wide.nvlink, overrides=wide.overrides)
