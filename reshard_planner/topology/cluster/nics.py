"""Which GPUs use which NICs, and on which rails these are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin, PortFacts
from reshard_planner.topology.cluster.model import Cluster, Host, HostNic, Nearness
from reshard_planner.topology.cluster.overlap import join_overlapping
from reshard_planner.topology.cluster.speeds import nic_facts, to_link
from reshard_planner.topology.model import NIC_LINK, Nic


@dataclass(frozen=True, slots=True)
class NicUse:
    """One NIC of a host that is used, with the positions of the GPUs that use it."""

    nic: HostNic
    gpus: tuple[int, ...]


def used_nics(
    cluster: Cluster, uses: Sequence[Sequence[NicUse]]
) -> Iterator[tuple[Host, HostNic, PortFacts]]:
    """Every NIC in use with its host and what is known of its port.

    Args:
        cluster: overrides applied.
        uses: who uses which NICs, by host.
    """
    for host, own in zip(cluster.hosts, uses, strict=True):
        for use in own:
            yield host, use.nic, nic_facts(cluster, host, use.nic)


def apply_nic_overrides(cluster: Cluster) -> Cluster:
    """The cluster with rails and disabled NICs as the overrides say.

    Raises:
        TopologyError: if an override names a NIC that no host has.
    """
    rails, disabled = dict(cluster.overrides.rails), set(cluster.overrides.disabled_nics)
    if not rails and not disabled:
        return cluster
    known = {
        name for host in cluster.hosts for nic in host.nics for name in (nic.name, f"{host.name}:{nic.name}")
    }
    for field, names in (("rails", rails), ("disabled_nics", sorted(disabled))):
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise TopologyError(
                f"overrides.{field} names NIC {unknown!r}, which no host has; expected its name, or host:name"
            )
    hosts = []
    for host in cluster.hosts:
        nics = []
        for nic in host.nics:
            both = (f"{host.name}:{nic.name}", nic.name)
            rail = next((rails[name] for name in both if name in rails), None)
            changed = nic if rail is None else replace(nic, rail=Fact(rail, Origin.FILE, "overrides"))
            if disabled.intersection(both):
                changed = replace(changed, enabled=Fact(value=False, origin=Origin.FILE, source="overrides"))
            nics.append(changed)
        hosts.append(replace(host, nics=tuple(nics)))
    return replace(cluster, hosts=tuple(hosts))


def is_disabled(cluster: Cluster, host: Host, nic: HostNic) -> bool:
    """Whether overrides say that a NIC is not to be used."""
    return not {nic.name, f"{host.name}:{nic.name}"}.isdisjoint(cluster.overrides.disabled_nics)


def find_uses(host: Host, domain_of: Sequence[int] | None = None) -> tuple[list[NicUse], list[Finding]]:
    """Who uses the NICs of a host.

    A NIC that names its GPUs is used by those. Else GPUs use the NICs that they are nearest to and that are
    nearest to them. What is left over uses its nearest NICs if no host bridge lies between, or if no GPU of
    its domain has a NIC; it has none otherwise, and neighbours lend theirs. GPUs that have a NIC in common
    share all of theirs. Where nothing is known of nearness, as many NICs as GPUs go one to one, in their
    order, and all GPUs share all NICs otherwise.

    Args:
        host: the host.
        domain_of: domain of each of its GPUs; all are in one when None.
    """
    enabled = [nic for nic in host.nics if nic.is_on]
    stated = [NicUse(nic, nic.gpus.value) for nic in enabled if nic.gpus is not None and nic.gpus.value]
    left = [nic for nic in enabled if nic.gpus is None]
    free = [gpu for gpu in range(len(host.gpus)) if not any(gpu in use.gpus for use in stated)]
    if not left:
        return stated, []
    if not free:
        text = (
            f"all its GPUs are named by other NICs; transfers do not use {_list([nic.name for nic in left])}"
        )
        unused = [Finding(FindingKind.UNKNOWN, f"host {host.name}", text)] if host.gpus else []
        return stated, unused
    near = [nic for nic in left if nic.near is not None]
    if not near:
        return [*stated, *_by_order(left, free)], [_without_nearness(host, left, free)]
    served = {gpu for use in stated for gpu in use.gpus}
    uses, findings = _by_nearness(host, near, free, served, domain_of or [0] * len(host.gpus))
    used = {use.nic.name for use in uses}
    idle = [nic.name for nic in left if nic.name not in used]
    if idle:
        text = (
            f"{_list(idle)} {'is' if len(idle) == 1 else 'are'} nearest to no GPU"
            f"{'' if len(near) == len(left) else ', or of unknown nearness'}; transfers do not use"
            " what no GPU is named for"
        )
        findings.append(Finding(FindingKind.UNKNOWN, f"host {host.name}", text))
    return [*stated, *uses], findings


def _by_order(nics: Sequence[HostNic], gpus: Sequence[int]) -> list[NicUse]:
    if len(nics) == len(gpus):
        return [NicUse(nic, (gpu,)) for nic, gpu in zip(nics, gpus, strict=True)]
    return [NicUse(nic, tuple(gpus)) for nic in nics]


def _without_nearness(host: Host, nics: Sequence[HostNic], gpus: Sequence[int]) -> Finding:
    if len(nics) == len(gpus):
        text = (
            f"nearness of its {len(nics)} NICs is unknown; NIC and GPU of equal position are taken together"
        )
    else:
        text = f"nearness of its {len(nics)} NICs is unknown; its {len(gpus)} GPUs are taken to share them"
    return Finding(FindingKind.ASSUMED, f"host {host.name}", text)


def _by_nearness(
    host: Host, nics: Sequence[HostNic], gpus: Sequence[int], served: set[int], domain_of: Sequence[int]
) -> tuple[list[NicUse], list[Finding]]:
    chosen = _nearest(nics, gpus, served, domain_of)
    pools = join_overlapping((gpu, chosen[gpu]) for gpu in gpus)
    uses = [
        NicUse(nics[index], tuple(sorted(members)))
        for members, indices in sorted(pools, key=lambda pool: min(pool[1]))
        for index in sorted(indices)
    ]
    shared = [members for members, indices in pools if len(members) > 1 and len(indices) > 1]
    if not shared:
        return uses, []
    text = (
        f"{sum(map(len, shared))} of its GPUs are equally near to several NICs and are taken to share these:"
        " each may use all of them"
    )
    return uses, [Finding(FindingKind.ASSUMED, f"host {host.name}", text)]


def _nearest(
    nics: Sequence[HostNic], gpus: Sequence[int], served: set[int], domain_of: Sequence[int]
) -> dict[int, set[int]]:
    """Positions of the NICs that each GPU uses; see :func:`find_uses`."""
    distance = [[near.distance for near in nic.near.value] for nic in nics if nic.near is not None]
    closest = [min(row[gpu] for gpu in gpus) for row in distance]  # of each NIC, to any of the GPUs
    nearest, chosen = {}, {}
    for gpu in gpus:
        best = min(row[gpu] for row in distance)
        nearest[gpu] = {index for index, row in enumerate(distance) if row[gpu] == best}
        chosen[gpu] = {index for index in nearest[gpu] if closest[index] == best}
    lending = {domain_of[gpu] for gpu in (*served, *(gpu for gpu in gpus if chosen[gpu]))}
    for gpu in gpus:
        if chosen[gpu]:
            continue
        close = min(row[gpu] for row in distance) <= Nearness.PXB.distance
        if close or domain_of[gpu] not in lending:
            chosen[gpu] = nearest[gpu]
    return chosen


@dataclass(frozen=True, slots=True)
class FoundNics:
    """The NICs of the planner's topology.

    Attributes:
        nics: those that are used; one that GPUs of several domains share is one for each of these.
        names: host and name of each.
        uses: who uses which, by host.
        findings: what had to be assumed.
    """

    nics: tuple[Nic, ...]
    names: tuple[tuple[str, str], ...]
    uses: tuple[tuple[NicUse, ...], ...]
    findings: tuple[Finding, ...]


def find_nics(cluster: Cluster, domain_of: Sequence[int]) -> FoundNics:
    """The NICs that GPUs use, with their rates and rails.

    Args:
        cluster: overrides applied; see :func:`apply_nic_overrides`.
        domain_of: domain of every GPU.
    """
    findings: list[Finding] = []
    by_host: list[tuple[NicUse, ...]] = []
    firsts = cluster.first_gpus()
    for host in cluster.hosts:
        first = firsts[host.name]
        of_host, noted = find_uses(host, domain_of[first : first + len(host.gpus)])
        by_host.append(tuple(of_host))
        findings.extend(noted)
    uses = [(host, use) for host, own in zip(cluster.hosts, by_host, strict=True) for use in own]
    rails, noted = _rails(uses)
    findings.extend(noted)
    nics, names = [], []
    for (host, use), rail in zip(uses, rails, strict=True):
        link = to_link(nic_facts(cluster, host, use.nic), NIC_LINK)
        gpus = [firsts[host.name] + position for position in use.gpus]
        by_domain: dict[int, list[int]] = {}
        for gpu in gpus:
            by_domain.setdefault(domain_of[gpu], []).append(gpu)
        if len(by_domain) > 1:
            findings.append(_across(host, use, len(by_domain)))
        for members in by_domain.values():
            share = link
            if len(by_domain) > 1:
                share = replace(link, bytes_per_s=max(1, link.bytes_per_s * len(members) // len(gpus)))
            nics.append(Nic(tuple(members), share, rail))
            names.append((host.name, use.nic.name))
    return FoundNics(tuple(nics), tuple(names), tuple(by_host), tuple(findings))


def _across(host: Host, use: NicUse, domains: int) -> Finding:
    return Finding(
        FindingKind.ASSUMED,
        f"host {host.name}, {use.nic.name}",
        f"GPUs of {domains} domains share it; each domain is taken to have its part of the rate, by GPUs",
    )


def _rails(uses: Sequence[tuple[Host, NicUse]]) -> tuple[list[int | None], list[Finding]]:
    """The rail of each NIC as stated; by position where nobody states any and all hosts are alike."""
    stated = [use.nic.rail.value if use.nic.rail is not None else None for _, use in uses]
    if any(rail is not None for rail in stated):
        missing = [
            f"{host.name}:{use.nic.name}"
            for (host, use), rail in zip(uses, stated, strict=True)
            if rail is None
        ]
        if not missing:
            return stated, []
        text = f"{len(missing)} NICs that are used have no rail; no pairs are preferred for them"
        return stated, [Finding(FindingKind.UNKNOWN, missing[0], text)]
    counts = Counter(host.name for host, _ in uses)
    if len(counts) < 2 or len(set(counts.values())) != 1:
        return stated, []
    position: Counter[str] = Counter()
    derived: list[int | None] = []
    for host, _ in uses:
        derived.append(position[host.name])
        position[host.name] += 1
    text = "rails are unknown; NICs of equal position among those that their hosts use are taken as one rail"
    return derived, [Finding(FindingKind.ASSUMED, f"{len(counts)} hosts", text)]


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
