"""Several sources about one cluster, joined. Where they differ, the more trustworthy one wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeVar

from reshard_planner.intset import format_ints, parse_ints
from reshard_planner.topology.cluster.facts import Finding, FindingKind, join_alike
from reshard_planner.topology.cluster.joining import Joiner
from reshard_planner.topology.cluster.matching import GPU_KEYS, NIC_KEYS, match_devices
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic, HostPod, Overrides, Switch
from reshard_planner.topology.cluster.scope import find_sizes_for_all, hosts_of_part, keep_to_hosts
from reshard_planner.topology.wording import listed

Named = TypeVar("Named", Host, Switch, HostPod)


@dataclass(frozen=True, slots=True)
class JoinedHost:
    """A host, and where each source's GPUs went.

    Attributes:
        host: everything that sources say of it.
        places: per source that knows the host, by the source's position: the position in ``host`` of each of
            its GPUs, None for one that is left out.
        nic_names: likewise the name in ``host`` of each of its NICs, by the name that it gives.
    """

    host: Host
    places: dict[int, tuple[int | None, ...]]
    nic_names: dict[int, dict[str, str]]


def merge(clusters: Sequence[Cluster]) -> tuple[Cluster, tuple[Finding, ...]]:
    """One cluster of all that the given ones say, and their conflicts.

    Hosts, switches and pods are joined by name, in the order of their first mention; GPUs of a host by uuid,
    else PCI address, else position; NICs by GUID, else name, else PCI address, whatever the order of the
    sources. Of facts that differ the one of the more trustworthy origin is taken, and of equal origins the
    first, with a finding. Rank maps and overrides are translated where GPUs get other numbers; overrides of
    several sources add up. Defaults and overrides of a source that lists some of the hosts count for those.

    Raises:
        TopologyError: if what comes out is no cluster, such as one of too many GPUs.
    """
    joiner = Joiner()
    joined = [_join_host(joiner, mentions) for mentions in _by_name([each.hosts for each in clusters])]
    hosts = tuple(each.host for each in joined)
    names = [each.name for each in clusters if each.name != Cluster().name]
    switches = [_fold(joiner.switch, mentions) for mentions in _by_name([each.switches for each in clusters])]
    pods = [_fold(joiner.pod, mentions) for mentions in _by_name([each.pods for each in clusters])]
    translation = _Translation(clusters, joined)
    overrides = Overrides()
    for source, cluster in enumerate(clusters):
        overrides = joiner.overrides(overrides, translation.overrides(source, cluster.overrides))
    merged = Cluster(
        names[0] if names else Cluster().name,
        hosts,
        tuple(switches),
        tuple(pods),
        _rank_map(joiner, clusters, translation),
        overrides=overrides,
    )
    merged = keep_to_hosts(joiner, clusters, merged)
    return merged, join_alike((*joiner.findings, *find_sizes_for_all(clusters, merged)))


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
    first = mentions[0][1]
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
            f"no source gives both uuid and PCI address of GPU {format_ints(matches.guessed)};"
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


class _Translation:
    """Numbers of GPUs and names of NICs of each source in the merged cluster."""

    def __init__(self, clusters: Sequence[Cluster], joined: Sequence[JoinedHost]) -> None:
        self.places = {each.host.name: each.places for each in joined}
        self.nic_names = {each.host.name: each.nic_names for each in joined}
        firsts, count = {}, 0
        for each in joined:
            firsts[each.host.name] = count
            count += len(each.host.gpus)
        self.known_nics = {each.host.name: {nic.name for nic in each.host.nics} for each in joined}
        self.parts = [hosts_of_part(cluster, len(joined)) for cluster in clusters]
        self.numbers: list[list[int | None]] = []
        for source, cluster in enumerate(clusters):
            numbers: list[int | None] = []
            for host in cluster.hosts:
                first = firsts[host.name]
                numbers += [
                    None if place is None else first + place for place in self.places[host.name][source]
                ]
            self.numbers.append(numbers)

    def rank_map(self, source: int, given: tuple[int, ...]) -> tuple[int, ...] | None:
        """The rank map of a source in merged numbers; None if a GPU of it is not there."""
        numbers = self.numbers[source]
        found = [numbers[gpu] if gpu < len(numbers) else None for gpu in given]
        kept = tuple(gpu for gpu in found if gpu is not None)
        return kept if len(kept) == len(found) else None

    def overrides(self, source: int, given: Overrides) -> Overrides:
        """The overrides of a source with positions of GPUs and names of NICs in merged hosts.

        What they say of all GPUs and NICs is left out; see :func:`keep_to_hosts`.
        """
        domains = [
            tuple(found for entry in entries if (found := self._entry(source, entry)) is not None)
            for entries in given.domains
        ]
        rails = {name: rail for old, rail in given.rails for name in self._nics(source, old)}
        disabled = dict.fromkeys(name for old in given.disabled_nics for name in self._nics(source, old))
        return Overrides(
            tuple(rails.items()),
            tuple(disabled),
            tuple(domain for domain in domains if domain),
            given.gpus_per_domain,
        )

    def _nics(self, source: int, name: str) -> list[str]:
        """What overrides call the NICs of a name now; the name itself where nothing changed."""
        host, colon, nic = name.rpartition(":")
        if colon and host in self.nic_names:
            return [f"{host}:{self.nic_names[host].get(source, {}).get(nic, nic)}"]
        if (part := self.parts[source]) is not None:
            news = {each: self.nic_names[each][source].get(name, name) for each in part}
            there = [f"{each}:{new}" for each, new in news.items() if new in self.known_nics[each]]
            return there or [f"{part[0]}:{name}"]  # which is refused where overrides are applied
        found = {
            each: names[source][name]
            for each, names in self.nic_names.items()
            if name in names.get(source, {})
        }
        if all(new == name for new in found.values()):
            return [name]
        return [f"{each}:{new}" for each, new in found.items()]

    def _entry(self, source: int, entry: str) -> str | None:
        """What overrides call some GPUs now; None where all of them were left out."""
        host, colon, positions = entry.rpartition(":")
        order = self.places.get(host, {}).get(source)
        if not colon or order is None or entry in self.places:
            return entry
        try:
            given = parse_ints(positions)
        except ValueError:
            return entry  # said where overrides are applied
        found = [order[position] if position < len(order) else position for position in given]
        kept = [place for place in found if place is not None]
        return f"{host}:{format_ints(kept)}" if kept else None


def _rank_map(
    joiner: Joiner, clusters: Sequence[Cluster], translation: _Translation
) -> tuple[int, ...] | None:
    found: tuple[int, ...] | None = None
    for source, cluster in enumerate(clusters):
        if cluster.rank_map is None:
            continue
        given = translation.rank_map(source, cluster.rank_map)
        if given is None:
            text = "a source's rank map names GPUs that the first source of their host lacks; it is left out"
            joiner.findings.append(Finding(FindingKind.CONFLICT, "rank_map", text))
        elif found is None:
            found = given
        elif given != found:
            joiner.conflict("rank_map", "GPUs", format_ints(found), "", format_ints(given), "")
    return found
