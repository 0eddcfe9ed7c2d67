"""Which hosts the values of a source for all its hosts count for, where other sources have more hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin, PortFacts
from reshard_planner.topology.cluster.hostlist import brief_names
from reshard_planner.topology.cluster.joining import Joiner
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, Overrides
from reshard_planner.topology.cluster.speeds import model_facts


@dataclass(frozen=True, slots=True)
class _Wide:
    """What is said of all NICs and GPUs of some hosts at once."""

    nic: PortFacts = field(default_factory=PortFacts)
    nvlink: PortFacts = field(default_factory=PortFacts)
    overrides: Overrides = field(default_factory=Overrides)

    @classmethod
    def of(cls, cluster: Cluster) -> _Wide:
        """What a source says of all its hosts."""
        given = cluster.overrides
        return cls(
            cluster.nic,
            cluster.nvlink,
            Overrides(gpu_model=given.gpu_model, nic=given.nic, nvlink=given.nvlink),
        )


def keep_to_hosts(joiner: Joiner, clusters: Sequence[Cluster], merged: Cluster) -> Cluster:
    """The merged cluster with what sources say of all their hosts: speeds, and the GPUs' model.

    A source that lists no hosts speaks of all. Values that then are the same for every host stay values of
    the cluster; else NICs and GPUs get those of their host.

    Args:
        joiner: joins what several sources say of one host, and notes conflicts.
        clusters: the sources.
        merged: everything else that they say.
    """
    groups = _hosts_by_sources(clusters, merged)
    wide: dict[tuple[int, ...], _Wide] = {}
    for sources, hosts in groups.items():
        of = f" of {brief_names(hosts)}" if len(groups) > 1 else ""
        wide[sources] = _join(joiner, [clusters[source] for source in sources], of)
    common = next(iter(wide.values()))
    if all(each == common for each in wide.values()):
        overrides = replace(
            merged.overrides,
            gpu_model=common.overrides.gpu_model,
            nic=common.overrides.nic,
            nvlink=common.overrides.nvlink,
        )
        return replace(merged, nic=common.nic, nvlink=common.nvlink, overrides=overrides)
    of_host = {host: wide[sources] for sources, hosts in groups.items() for host in hosts}
    return replace(merged, hosts=tuple(_told(host, of_host[host.name]) for host in merged.hosts))


def hosts_of_part(cluster: Cluster, count: int) -> tuple[str, ...] | None:
    """The hosts of a source that lists some of ``count`` hosts; None where it speaks of all."""
    names = tuple(host.name for host in cluster.hosts)
    return names if 0 < len(names) < count else None


def find_sizes_for_all(clusters: Sequence[Cluster], merged: Cluster) -> list[Finding]:
    """Sources of some hosts whose size of domains counts for all, since domains may reach across hosts."""
    return [
        Finding(
            FindingKind.ASSUMED,
            "overrides",
            f"gpus_per_domain {size} is of a source that lists {len(part)} of {len(merged.hosts)} hosts;"
            " domains of all hosts are split by it; name the domains to split fewer",
        )
        for cluster in clusters
        if (size := cluster.overrides.gpus_per_domain) is not None
        and size == merged.overrides.gpus_per_domain
        and (part := hosts_of_part(cluster, len(merged.hosts))) is not None
    ]


def _hosts_by_sources(clusters: Sequence[Cluster], merged: Cluster) -> dict[tuple[int, ...], list[str]]:
    """Hosts by the positions of the sources that speak of them; nobody's hosts are in no group."""
    speaking: dict[str, list[int]] = {host.name: [] for host in merged.hosts}
    for source, cluster in enumerate(clusters):
        for name in (host.name for host in cluster.hosts or merged.hosts):
            speaking[name].append(source)
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, sources in speaking.items():
        groups.setdefault(tuple(sources), []).append(name)
    return groups or {tuple(range(len(clusters))): []}


def _join(joiner: Joiner, clusters: Sequence[Cluster], of: str) -> _Wide:
    joined = _Wide()
    for cluster in clusters:
        theirs = _Wide.of(cluster)
        joined = _Wide(
            joiner.port(joined.nic, theirs.nic, f"default of NICs{of}"),
            joiner.port(joined.nvlink, theirs.nvlink, f"default of NVLink ports{of}"),
            joiner.overrides(joined.overrides, theirs.overrides, of),
        )
    return joined


def _told(host: Host, wide: _Wide) -> Host:
    """The host with everything that is said of all its devices: overrides above, defaults below the rest."""
    nics = tuple(replace(nic, port=wide.overrides.nic.over(nic.port).over(wide.nic)) for nic in host.nics)
    return replace(host, gpus=tuple(_told_gpu(gpu, wide) for gpu in host.gpus), nics=nics)


def _told_gpu(gpu: Gpu, wide: _Wide) -> Gpu:
    if wide.overrides.gpu_model is not None:
        gpu = replace(gpu, model=Fact(wide.overrides.gpu_model, Origin.FILE, "overrides"))
    below = wide.nvlink
    if gpu.model is not None and model_facts(gpu.model.value, gpu).bytes_per_s is not None:
        below = replace(below, bytes_per_s=None)  # what follows from the model goes before defaults
    return replace(gpu, nvlink=wide.overrides.nvlink.over(gpu.nvlink).over(below))
