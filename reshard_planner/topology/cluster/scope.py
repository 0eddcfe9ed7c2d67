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


@dataclass(frozen=True, slots=True)
class _Said:
    """What one source says of all NICs and GPUs at once.

    Attributes:
        hosts: the hosts that it lists.
        of_all: of the cluster.
        of_hosts: of hosts alone, by name.
    """

    hosts: tuple[Host, ...]
    of_all: Wide
    of_hosts: dict[str, Wide]

    @classmethod
    def by(cls, cluster: Cluster) -> _Said:
        given = cluster.overrides
        of_all = Wide(cluster.nic, cluster.nvlink, HostOverrides(given.gpu_model, given.nic, given.nvlink))
        of_each = {host.name: Wide(host.nic, host.nvlink, host.overrides) for host in cluster.hosts}
        return cls(cluster.hosts, of_all, {name: wide for name, wide in of_each.items() if wide != Wide()})

    def of(self, name: str) -> Wide:
        """What it says of a host that it lists."""
        return self.of_hosts[name].over(self.of_all) if name in self.of_hosts else self.of_all


def hosts_of_part(cluster: Cluster, count: int) -> dict[str, None] | None:
    """The hosts of a source that lists some of ``count`` hosts, in order; None where it speaks of all."""
    return {host.name: None for host in cluster.hosts} if 0 < len(cluster.hosts) < count else None


def join_wide(joiner: Joiner, clusters: Sequence[Cluster], merged: Cluster) -> Cluster:
    """The merged cluster with what sources say of all NICs and GPUs of theirs.

    A source that lists no hosts speaks of all. Where sources speak of all hosts alike, values of the cluster
    stay such; else each host gets what is said of it.

    Args:
        joiner: joins what several sources say of one host, and notes conflicts.
        clusters: the sources.
        merged: everything else that they say.
    """
    speaking = [said for said in map(_Said.by, clusters) if said.of_all != Wide() or said.of_hosts]
    if not speaking:
        return merged
    of_hosts = speaking[0].of_hosts
    whole = all(len(said.hosts) in (0, len(merged.hosts)) for said in speaking)
    if whole and all(said.of_hosts == of_hosts for said in speaking):
        common = _join(joiner, [said.of_all for said in speaking], "")
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


def _host_by_host(joiner: Joiner, speaking: Sequence[_Said], merged: Cluster) -> dict[str, Wide]:
    """What sources say of each host; hosts of which they say the same are joined, and told, together."""
    wides: dict[str, list[Wide]] = {host.name: [] for host in merged.hosts}
    for said in speaking:
        for host in said.hosts or merged.hosts:
            wides[host.name].append(said.of(host.name))
    groups: dict[tuple[Wide, ...], list[str]] = {}
    for name, of_host in wides.items():
        groups.setdefault(tuple(of_host), []).append(name)
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
