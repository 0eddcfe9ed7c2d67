"""Checks of a cluster: what is less than its like, or does not line up, with what follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from reshard_planner.intset import format_ints
from reshard_planner.topology.cluster.facts import Finding, FindingKind, join_alike
from reshard_planner.topology.cluster.likeness import find_few_links, find_slow_nics
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic, Switch
from reshard_planner.topology.cluster.nics import NicUse, apply_nic_overrides
from reshard_planner.topology.cluster.resolve import Resolved, resolve
from reshard_planner.topology.cluster.speeds import find_link_speed, model_of

Uses = Sequence[Sequence[NicUse]]
"""Who uses which NICs, by host."""


def check(cluster: Cluster, resolved: Resolved | None = None) -> tuple[Finding, ...]:
    """Everything about a cluster that costs time or may be a mistake, and what planning with it assumes.

    Args:
        cluster: the cluster.
        resolved: what :func:`resolve` made of it; found here when None.

    Raises:
        TopologyError: if an override names something that the cluster lacks.
    """
    if not cluster.gpu_count:
        return join_alike((*_without_gpus(apply_nic_overrides(cluster)), *_nics_down(cluster)))
    resolved = resolved or resolve(cluster)
    down = _nics_down(cluster)  # not those that overrides disable
    cluster = apply_nic_overrides(cluster)
    return join_alike(
        (
            *_links(cluster),
            *_nics_missing(cluster, resolved.uses),
            *_nics_slow(cluster, resolved.uses),
            *down,
            *_crossed(cluster),
            *_unequal_rails(cluster, resolved.uses),
            *_domains(cluster, resolved),
            *_oversubscription(cluster),
            *_pods(resolved),
            *resolved.findings,
        )
    )


def _without_gpus(cluster: Cluster) -> Iterator[Finding]:
    """What can be said of a network alone, as a source of the fabric tells it."""
    uses = [[NicUse(nic, ()) for nic in host.nics if nic.is_on] for host in cluster.hosts]
    yield from _nics_slow(cluster, uses)
    yield from _crossed(cluster)
    yield from _unequal_rails(cluster, uses)
    yield from _oversubscription(cluster)
    text = "no source lists GPUs, without which nothing can be planned; add one of the hosts"
    yield Finding(FindingKind.UNKNOWN, f"{len(cluster.hosts)} hosts", text)


def _links(cluster: Cluster) -> Iterator[Finding]:
    """GPUs with fewer NVLinks than others of their host, or with none; hosts with fewer than others."""
    yield from _hosts_of_few_links(cluster)
    for host in cluster.hosts:
        for position, (links, most) in find_few_links(host).items():
            gpu = host.gpus[position]
            text = _fewer(cluster, host, gpu, links, most)
            yield Finding(FindingKind.DEGRADED, f"host {host.name}, {gpu.name}", text)


def _hosts_of_few_links(cluster: Cluster) -> Iterator[Finding]:
    """Hosts all of whose GPUs have fewer NVLinks than those of other hosts of their model."""
    most_of: dict[str, int] = {}
    found: list[tuple[Host, Gpu, int]] = []
    for host in cluster.hosts:
        known = [(gpu.nvlinks.value, gpu) for gpu in host.gpus if gpu.nvlinks is not None]
        if known:
            most, gpu = max(known, key=lambda pair: pair[0])
            model = model_of(cluster, host, gpu)
            most_of[model] = max(most, most_of.get(model, 0))
            found.append((host, gpu, most))
    for host, gpu, most in found:
        usual = most_of[model_of(cluster, host, gpu)]
        speed = find_link_speed(model_of(cluster, host, gpu))
        if 0 < most < usual and speed is not None:
            text = (
                f"its GPUs have {most} NVLinks, those of other hosts of this model {usual}: fan-out in its"
                f" domain is limited to {most * speed.reached_bytes_per_s / 1e9:.0f} GB/s"
            )
            yield Finding(FindingKind.DEGRADED, f"host {host.name}", text)


def _fewer(cluster: Cluster, host: Host, gpu: Gpu, links: int, most: int) -> str:
    if not links:
        return (
            f"it has no NVLink, its peers {most}: it is a domain of its own, and every byte between it and"
            " them takes the network"
        )
    speed = find_link_speed(model_of(cluster, host, gpu))
    limit = "" if speed is None else f" to {links * speed.reached_bytes_per_s / 1e9:.0f} GB/s"
    return f"it has {links} NVLinks, its peers {most}: fan-out in this domain is limited{limit}"


def _alike(cluster: Cluster) -> dict[tuple[int, str], list[Host]]:
    """Hosts that should be alike: equal numbers of GPUs of one model."""
    groups: dict[tuple[int, str], list[Host]] = {}
    for host in cluster.hosts:
        if host.gpus:
            groups.setdefault((len(host.gpus), model_of(cluster, host, host.gpus[0])), []).append(host)
    return groups


def _nics_missing(cluster: Cluster, uses: Uses) -> Iterator[Finding]:
    """Hosts with fewer NICs in use than most hosts like them."""
    used = {host.name: len(own) for host, own in zip(cluster.hosts, uses, strict=True)}
    for hosts in _alike(cluster).values():
        counts = {host.name: used[host.name] for host in hosts}
        usual, times = Counter(counts.values()).most_common(1)[0]
        if times * 2 <= len(hosts):
            continue
        for host in hosts:
            if counts[host.name] < usual:
                text = (
                    f"it uses {counts[host.name]} NICs, {times} hosts like it {usual}: it sends and receives"
                    f" {counts[host.name] / usual:.0%} of what they can"
                )
                yield Finding(FindingKind.DEGRADED, f"host {host.name}", text)


def _nics_slow(cluster: Cluster, uses: Uses) -> Iterator[Finding]:
    """NICs in use that are slower than most in use."""
    for slow in find_slow_nics(cluster, uses):
        own, usual = slow.bytes_per_s, slow.usual_bytes_per_s
        text = (
            f"it runs at {own / 1e9:.4g} GB/s, most at {usual / 1e9:.4g}: its GPUs send and receive"
            f" {own / usual:.0%} of what others can"
        )
        yield Finding(FindingKind.DEGRADED, f"host {slow.host}, {slow.nic}", text)


def _nics_down(cluster: Cluster) -> Iterator[Finding]:
    """NICs that sources say are down, or not to be used."""
    for host in cluster.hosts:
        for nic in host.nics:
            if not nic.is_on:
                text = "its port is down: its GPUs use their other NICs, or those of neighbours"
                yield Finding(FindingKind.DEGRADED, f"host {host.name}, {nic.name}", text)


def _crossed(cluster: Cluster) -> Iterator[Finding]:
    """NICs whose leaf serves another rail for most of its NICs: two cables swapped."""
    votes: dict[str, Counter[int]] = {}
    placed: list[tuple[Host, HostNic, str, int]] = []
    for host in cluster.hosts:
        for nic in host.nics:
            if nic.rail is not None and nic.leaf is not None:
                votes.setdefault(nic.leaf.value, Counter())[nic.rail.value] += 1
                placed.append((host, nic, nic.leaf.value, nic.rail.value))
    for host, nic, leaf, rail in placed:
        usual, times = votes[leaf].most_common(1)[0]
        if rail != usual and times * 2 > votes[leaf].total() and times > 2:
            text = (
                f"it is on rail {rail}, but {times} NICs of its switch {leaf} are on rail {usual}: the cable"
                " may be in the wrong port, and its traffic along the rail crosses the spine"
            )
            yield Finding(FindingKind.CONFLICT, f"host {host.name}, {nic.name}", text)


def _unequal_rails(cluster: Cluster, uses: Uses) -> Iterator[Finding]:
    """Hosts that have other rails than most hosts with rails."""
    rails = {
        host.name: tuple(sorted(use.nic.rail.value for use in own if use.nic.rail is not None))
        for host, own in zip(cluster.hosts, uses, strict=True)
    }
    counts = Counter(numbers for numbers in rails.values() if numbers)
    if len(counts) < 2:
        return
    usual, times = counts.most_common(1)[0]
    if times * 2 <= counts.total():
        text = f"hosts have {len(counts)} different sets of rails: pairs of one rail exist for some NICs only"
        yield Finding(FindingKind.CONFLICT, f"{counts.total()} hosts", text)
        return
    for name, numbers in rails.items():
        if numbers and numbers != usual:
            text = (
                f"its NICs are on rails {format_ints(numbers)}, those of {times} hosts on"
                f" {format_ints(usual)}: other NICs have no partner of their rail there"
            )
            yield Finding(FindingKind.CONFLICT, f"host {name}", text)


def _domains(cluster: Cluster, resolved: Resolved) -> Iterator[Finding]:
    """Domains over several hosts of unequal parts, and NVLink domains of unequal size."""
    host_of = [host.name for host in cluster.hosts for _ in host.gpus]
    sizes = {host.name: len(host.gpus) for host in cluster.hosts}
    several = [domain for domain in resolved.domains if len({host_of[gpu] for gpu in domain.gpus}) > 1]
    for domain in several:
        parts = Counter(host_of[gpu] for gpu in domain.gpus)
        partial = [name for name, count in parts.items() if count < sizes[name]]
        if partial:
            text = (
                f"it has {parts[partial[0]]} of the {sizes[partial[0]]} GPUs of host {partial[0]}"
                f"{f' and parts of {len(partial) - 1} more' if len(partial) > 1 else ''}: it does not end"
                " where hosts end, so check the split against the machine"
            )
            yield Finding(FindingKind.CONFLICT, domain.title, text)
    if several:
        counts = Counter(len({host_of[gpu] for gpu in domain.gpus}) for domain in several)
        usual = counts.most_common(1)[0][0]
        for domain in several:
            hosts = len({host_of[gpu] for gpu in domain.gpus})
            if hosts < usual:
                text = f"it spans {hosts} hosts, others {usual}: layouts for {usual} cross domains here"
                yield Finding(FindingKind.DEGRADED, domain.title, text)


def _oversubscription(cluster: Cluster) -> Iterator[Finding]:
    """Switches whose links up carry less than those down."""
    for switch in cluster.switches:
        ratio = oversubscription(switch)
        if ratio is not None and ratio > 1:
            text = (
                f"its links down carry {ratio:.2g} times what those up do: traffic that leaves it is limited"
                f" to {_rate(switch)} GB/s per direction"
            )
            yield Finding(FindingKind.DEGRADED, f"switch {switch.name}", text)


def _pods(resolved: Resolved) -> Iterator[Finding]:
    """Pods whose NICs send more than their uplink carries."""
    for pod in resolved.pods:
        if pod.uplink is not None and pod.ratio is not None and pod.limits:
            text = (
                f"NICs below its uplink send {pod.ratio:.2g} times what it carries: traffic that leaves the"
                f" pod is limited to {pod.uplink.bytes_per_s / 1e9:g} GB/s per direction"
            )
            yield Finding(FindingKind.DEGRADED, f"pod {pod.name}", text)


def oversubscription(switch: Switch) -> float | None:
    """Rate of a switch's links down over that of its links up; None where either is unknown."""
    down, up = switch.downlink.bytes_per_s, switch.uplink.bytes_per_s
    return None if down is None or up is None else down.value / up.value


def _rate(switch: Switch) -> str:
    return "?" if switch.uplink.bytes_per_s is None else f"{switch.uplink.bytes_per_s.value / 1e9:g}"


def worst(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that mean that something is wrong: conflicts and degraded hardware."""
    return [finding for finding in findings if finding.kind in (FindingKind.CONFLICT, FindingKind.DEGRADED)]
