"""Several sources about one cluster, joined. Where they differ, the more trustworthy one wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import TypeVar

from reshard_planner.intset import format_ints
from reshard_planner.topology.cluster.facts import Finding, FindingKind, join_alike
from reshard_planner.topology.cluster.joining import Joiner
from reshard_planner.topology.cluster.matching import GPU_KEYS, NIC_KEYS, match_devices
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic, HostPod, Switch
from reshard_planner.topology.cluster.scope import join_wide
from reshard_planner.topology.cluster.translation import (
    JoinedHost,
    Translation,
    join_overrides,
    join_rank_maps,
)
from reshard_planner.topology.wording import listed

Named = TypeVar("Named", Host, Switch, HostPod)


def merge(clusters: Sequence[Cluster]) -> tuple[Cluster, tuple[Finding, ...]]:
    """One cluster of all that the given ones say, and their conflicts.

    Hosts, switches and pods are joined by name, in the order of their first mention; GPUs of a host by uuid,
    else PCI address, else position; NICs by GUID, else name, else PCI address, whatever the order of the
    sources. Of facts that differ the one of the more trustworthy origin is taken, and of equal origins the
    first, with a finding. Rank maps and overrides are translated where GPUs get other numbers; overrides of
    several sources add up. What a source that lists some of the hosts says of all NICs and GPUs counts for
    its hosts.

    Raises:
        TopologyError: if what comes out is no cluster, such as one of too many GPUs.
    """
    joiner = Joiner()
    joined = [_join_host(joiner, mentions) for mentions in _by_name([each.hosts for each in clusters])]
    hosts = tuple(each.host for each in joined)
    names = [each.name for each in clusters if each.name != Cluster().name]
    switches = [_fold(joiner.switch, mentions) for mentions in _by_name([each.switches for each in clusters])]
    pods = [_fold(joiner.pod, mentions) for mentions in _by_name([each.pods for each in clusters])]
    translation = Translation(clusters, joined)
    merged = Cluster(
        names[0] if names else Cluster().name,
        hosts,
        tuple(switches),
        tuple(pods),
        join_rank_maps(joiner, clusters, translation),
        overrides=join_overrides(joiner, clusters, translation),
    )
    return join_wide(joiner, clusters, merged), join_alike(joiner.findings)


def _by_name(sources: Sequence[tuple[Named, ...]]) -> list[list[tuple[int, Named]]]:
    """The mentions of each name, with the positions of their sources, in order of first mention."""
    mentions: dict[str, list[tuple[int, Named]]] = {}
    for source, items in enumerate(sources):
        for item in items:
            mentions.setdefault(item.name, []).append((source, item))
    return list(mentions.values())


def _fold(join: Callable[[Named, Named], Named], mentions: Sequence[tuple[int, Named]]) -> Named:
    """All mentions of one name, joined in their order."""
    return reduce(join, (item for _, item in mentions))


def _join_host(joiner: Joiner, mentions: Sequence[tuple[int, Host]]) -> JoinedHost:
    source, first = mentions[0]
    if len(mentions) == 1:
        names = {nic.name: nic.name for nic in first.nics}
        return JoinedHost(first, {source: tuple(range(len(first.gpus)))}, {source: names})
    place = f"host {first.name}"
    gpus, order = _join_gpus(joiner, [host for _, host in mentions])
    nics, nic_names = _join_nics(joiner, [host for _, host in mentions], len(gpus), order)
    result = Host(first.name, gpus, nics, first.domain, first.path)
    for _, host in mentions[1:]:
        result = replace(
            result,
            domain=joiner.fact(result.domain, host.domain, place, "domain"),
            path=joiner.fact(result.path, host.path, place, "path"),
        )
    places = {source: order[index] for index, (source, _) in enumerate(mentions)}
    return JoinedHost(result, places, {source: nic_names[at] for at, (source, _) in enumerate(mentions)})


def _join_gpus(joiner: Joiner, hosts: Sequence[Host]) -> tuple[tuple[Gpu, ...], list[tuple[int | None, ...]]]:
    """The GPUs of the first source that lists any, and the place of each source's GPUs among them."""
    sources = [host.gpus for host in hosts]
    matches = match_devices(sources, GPU_KEYS, by_position=True)
    if matches.guessed:
        text = (
            f"sources do not tell GPU {format_ints(matches.guessed)} by the same uuid or PCI address;"
            " GPUs of equal position are taken as one"
        )
        joiner.findings.append(Finding(FindingKind.ASSUMED, f"host {hosts[0].name}", text))
    first = next((gpus for gpus in sources if gpus), ())
    merged: list[Gpu | None] = [None] * len(first)
    order: list[tuple[int | None, ...]] = []
    for host, own in zip(hosts, matches.numbers, strict=True):
        place = f"host {host.name}"
        if host.gpus and len(host.gpus) != len(first):
            joiner.conflict(place, "number of GPUs", len(first), "", len(host.gpus), "")
        left_out = [gpu.name for gpu, number in zip(host.gpus, own, strict=True) if number >= len(first)]
        if left_out and len(host.gpus) == len(first):
            text = f"a later source has {listed(left_out)}, which the first lacks; the first is taken"
            joiner.findings.append(Finding(FindingKind.CONFLICT, place, text))
        for gpu, number in zip(host.gpus, own, strict=True):
            if number < len(first):
                known = merged[number]
                merged[number] = gpu if known is None else joiner.device(known, gpu, f"{place}, {known.name}")
        order.append(tuple(number if number < len(first) else None for number in own))
    return tuple(gpu for gpu in merged if gpu is not None), order


def _join_nics(
    joiner: Joiner, hosts: Sequence[Host], gpu_count: int, order: Sequence[tuple[int | None, ...]]
) -> tuple[tuple[HostNic, ...], list[dict[str, str]]]:
    """The NICs, and their names by those that each source gives; hosts' own names go before a fabric's."""
    numbers = match_devices([host.nics for host in hosts], NIC_KEYS).numbers
    merged: dict[int, HostNic] = {}
    own_names: dict[int, str] = {}
    for host, own, places in zip(hosts, numbers, order, strict=True):
        for nic, number in zip(host.nics, own, strict=True):
            given = _renumbered(nic, gpu_count, places)
            if nic.near is not None or nic.bus is not None:  # as only the host itself sees it
                own_names.setdefault(number, nic.name)
            known = merged.get(number)
            if known is not None:
                given = joiner.device(known, given, f"host {host.name}, {known.name}")
            merged[number] = given
    named: dict[str, HostNic] = {}
    names: dict[int, str] = {}
    for number, nic in merged.items():
        wanted = own_names.get(number, nic.name)
        names[number] = wanted if wanted not in named else _new_name(wanted, named)
        named[names[number]] = replace(nic, name=names[number])
    given_names = [
        {nic.name: names[number] for nic, number in zip(host.nics, own, strict=True)}
        for host, own in zip(hosts, numbers, strict=True)
    ]
    return tuple(named.values()), given_names


def _renumbered(nic: HostNic, gpu_count: int, order: Sequence[int | None]) -> HostNic:
    """A NIC of a source in terms of the GPUs of the merged host."""
    if nic.near is not None:
        near = {
            place: value for place, value in zip(order, nic.near.value, strict=False) if place is not None
        }
        full = len(near) == gpu_count
        values = tuple(near[place] for place in range(gpu_count)) if full else ()
        nic = replace(nic, near=replace(nic.near, value=values) if full else None)
    if nic.gpus is not None:
        places = [order[gpu] for gpu in nic.gpus.value if gpu < len(order)]
        kept = tuple(place for place in places if place is not None)
        nic = replace(nic, gpus=replace(nic.gpus, value=kept) if kept or not nic.gpus.value else None)
    return nic


def _new_name(name: str, taken: dict[str, HostNic]) -> str:
    number = 2
    while f"{name}.{number}" in taken:
        number += 1
    return f"{name}.{number}"
