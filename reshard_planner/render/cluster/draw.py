"""The picture of a cluster, as graphviz DOT: every device of a small one, groups of hosts of a large one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reshard_planner.render.cluster.detail import detail_picture
from reshard_planner.render.cluster.network import count_switches
from reshard_planner.render.cluster.overview import overview_picture
from reshard_planner.render.cluster.picture import picture_dot
from reshard_planner.render.text import format_count, plain
from reshard_planner.topology.cluster.checks import worst
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.model import Cluster
from reshard_planner.topology.cluster.nics import apply_nic_overrides
from reshard_planner.topology.cluster.resolve import Resolved

MAX_HOSTS, MAX_GPUS, MAX_NICS, MAX_SWITCHES = 4, 64, 160, 24
"""Most hosts, GPUs, NICs and switches of which each is drawn."""

MAX_SHOWN = 4
"""Most findings that stand above the picture."""


def cluster_dot(cluster: Cluster, resolved: Resolved, findings: Sequence[Finding] = ()) -> str:
    """Draw a cluster.

    Up to 4 hosts of 64 GPUs together are drawn device by device; of more, hosts that are alike are one box.
    Nodes, frames and lines carry a stable ``id``, a ``class``, a tooltip and, for programs, attributes such
    as ``bytes_per_s``.

    Args:
        cluster: what is known.
        resolved: what planning makes of it; see :func:`reshard_planner.topology.cluster.resolve.resolve`.
        findings: about it; of conflicts and degraded hardware the first stand above the picture.

    Returns:
        DOT text without HTML-like labels, the same for the same cluster.
    """
    cluster = apply_nic_overrides(cluster)
    small = (
        len(cluster.hosts) <= MAX_HOSTS
        and cluster.gpu_count <= MAX_GPUS
        and sum(len(host.nics) for host in cluster.hosts) <= MAX_NICS
        and count_switches(cluster) <= MAX_SWITCHES
    )
    picture = (detail_picture if small else overview_picture)(cluster, resolved)
    heading = list(_heading(cluster, resolved, findings))
    return picture_dot(picture, heading, f"cluster {plain(cluster.name)}")


def _heading(cluster: Cluster, resolved: Resolved, findings: Sequence[Finding]) -> Iterator[str]:
    topology = resolved.topology
    counts = (
        format_count(len(cluster.hosts), "host"),
        format_count(topology.gpu_count, "GPU"),
        format_count(len(topology.domains), "domain"),
        f"{format_count(len(topology.nics), 'NIC')} in use",
    )
    named = "" if cluster.name == Cluster().name else f" {plain(cluster.name)}"
    yield f"Cluster{named}: {', '.join(counts)}"
    yield "A domain is GPUs that reach each other without a NIC. Rates are per direction, 1 GB/s = 10^9 B/s."
    if cluster.switches or cluster.pods:
        yield "Rates of switches and uplinks are of all their links together."
    wrong = worst(findings)
    for finding in wrong[:MAX_SHOWN]:
        yield plain(str(finding), 170)
    if len(wrong) > MAX_SHOWN:
        yield f"and {len(wrong) - MAX_SHOWN} more; topology check says all of them"
    assumed = sum(finding.kind is FindingKind.ASSUMED for finding in findings)
    if assumed:
        yield f"{format_count(assumed, 'assumption')}; topology check says which"
