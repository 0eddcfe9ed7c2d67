"""Rank maps and overrides of sources in terms of the merged cluster: its GPU numbers and NIC names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from reshard_planner.intset import format_ints, parse_ints
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.joining import Joiner
from reshard_planner.topology.cluster.model import Cluster, Host, Overrides
from reshard_planner.topology.cluster.scope import hosts_of_part


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


class Translation:
    """Numbers of GPUs and names of NICs of each source in the merged cluster."""

    def __init__(self, clusters: Sequence[Cluster], joined: Sequence[JoinedHost]) -> None:
        self._clusters = clusters
        self._joined = {each.host.name: each for each in joined}
        self.host_count = len(joined)
        self.parts = [hosts_of_part(cluster, len(joined)) for cluster in clusters]
        self._hosts_with: dict[str, list[str]] = {}
        self._renamed: list[dict[str, dict[str, str]]] = [{} for _ in clusters]
        firsts, count = {}, 0
        for each in joined:
            firsts[each.host.name] = count
            count += len(each.host.gpus)
            for nic in each.host.nics:
                self._hosts_with.setdefault(nic.name, []).append(each.host.name)
            for source, names in each.nic_names.items():
                for old, new in names.items():
                    if old != new:
                        self._renamed[source].setdefault(old, {})[each.host.name] = new
        self._numbers: list[list[int | None]] = []
        for source, cluster in enumerate(clusters):
            numbers: list[int | None] = []
            for host in cluster.hosts:
                first = firsts[host.name]
                places = self._joined[host.name].places[source]
                numbers += [None if place is None else first + place for place in places]
            self._numbers.append(numbers if cluster.hosts else list(range(count)))

    def rank_map(self, source: int, given: tuple[int, ...]) -> tuple[int, ...] | None:
        """The rank map of a source in merged numbers; None if a GPU of it is not there.

        That of a source without hosts is one of the merged cluster.
        """
        numbers = self._numbers[source]
        found = [numbers[gpu] if gpu < len(numbers) else None for gpu in given]
        kept = tuple(gpu for gpu in found if gpu is not None)
        return kept if len(kept) == len(found) else None

    def domains(self, source: int) -> list[tuple[str, ...]]:
        """The domains that overrides of a source name, with positions of GPUs in merged hosts."""
        domains = [
            tuple(found for entry in entries if (found := self._entry(source, entry)) is not None)
            for entries in self._clusters[source].overrides.domains
        ]
        return [domain for domain in domains if domain]

    def _entry(self, source: int, entry: str) -> str | None:
        """What overrides call some GPUs now; None where all of them were left out."""
        host, colon, positions = entry.rpartition(":")
        known = self._joined.get(host)
        order = None if known is None else known.places.get(source)
        if not colon or order is None or entry in self._joined:
            return entry
        try:
            given = parse_ints(positions)
        except ValueError:
            return entry  # said where overrides are applied
        found = [order[position] if position < len(order) else position for position in given]
        kept = [place for place in found if place is not None]
        return f"{host}:{format_ints(kept)}" if kept else None

    def keeps_names(self, sources: Sequence[int]) -> bool:
        """Whether NICs may keep the names that overrides of some sources give.

        That is if the sources speak of all hosts, none of these NICs has another name now, and no NIC is
        named on all hosts by one source and on one host by another.
        """
        said = {}
        for source in sources:
            given = self._clusters[source].overrides
            bare: set[str] = set()
            of_hosts: set[str] = set()
            for name in (*dict(given.rails), *given.disabled_nics):
                host, nic = self._split(name)
                if self.parts[source] is not None or nic in self._renamed[source]:
                    return False
                (bare if host is None else of_hosts).add(nic)
            said[given.rails, given.disabled_nics] = bare, of_hosts
        return not any(one[0] & other[1] for one, other in permutations(said.values(), 2))

    def rails(self, source: int) -> dict[str, int]:
        """The rails that overrides of a source give, each to one NIC of one host: its own before all."""
        given = sorted(
            self._clusters[source].overrides.rails, key=lambda pair: self._split(pair[0])[0] is not None
        )
        return {name: rail for old, rail in given for name in self.nics(source, old)}

    def nics(self, source: int, name: str) -> list[str]:
        """What overrides call the NICs now that a source names so: one by one.

        A name that nothing has stays, to be refused where overrides are applied.
        """
        host, nic = self._split(name)
        renamed = self._renamed[source].get(nic, {})
        if host is not None:
            return [f"{host}:{renamed.get(host, nic)}"]
        part = self.parts[source]
        named = dict(renamed)
        for each in self._hosts_with.get(nic, ()):
            if part is None or each in part:
                named.setdefault(each, nic)
        if not named:
            return [name if part is None else f"{next(iter(part))}:{name}"]
        return [f"{each}:{new}" for each, new in named.items()]

    def _split(self, name: str) -> tuple[str | None, str]:
        """Host and NIC; no host where all NICs of the name are meant."""
        for at, letter in enumerate(name):
            if letter == ":" and name[:at] in self._joined:
                return name[:at], name[at + 1 :]
        return None, name


def join_overrides(joiner: Joiner, clusters: Sequence[Cluster], translation: Translation) -> Overrides:
    """The overrides of all sources, but for those of all NICs and GPUs at once; of two the first wins."""
    place = "overrides"
    speaking = [
        source
        for source, cluster in enumerate(clusters)
        if cluster.overrides.rails or cluster.overrides.disabled_nics
    ]
    plain = translation.keeps_names(speaking)
    rails: dict[str, int] = {}
    disabled: dict[str, None] = {}
    domains: dict[tuple[str, ...], None] = {}
    size: int | None = None
    for source, cluster in enumerate(clusters):
        given = cluster.overrides
        for name, rail in (dict(given.rails) if plain else translation.rails(source)).items():
            if rails.setdefault(name, rail) != rail:
                joiner.conflict(place, f"rails of {name}", rails[name], "", rail, "")
        for name in given.disabled_nics:
            disabled |= dict.fromkeys([name] if plain else translation.nics(source, name))
        domains |= dict.fromkeys(translation.domains(source))
        theirs = given.gpus_per_domain
        if theirs is not None and size not in (None, theirs):
            joiner.conflict(place, "gpus_per_domain", size, "", theirs, "")
        size = theirs if size is None else size
    if size is not None:
        joiner.findings += _size_of_part(clusters, translation, size)
    return Overrides(tuple(rails.items()), tuple(disabled), tuple(domains), size)


def _size_of_part(clusters: Sequence[Cluster], translation: Translation, size: int) -> list[Finding]:
    """Says that a size of domains which sources of some hosts alone give counts for all hosts.

    Domains may reach across hosts, so that it cannot be kept to some.
    """
    listed: set[str] = set()
    for cluster, part in zip(clusters, translation.parts, strict=True):
        if cluster.overrides.gpus_per_domain == size:
            if part is None:
                return []
            listed |= part.keys()
    if len(listed) == translation.host_count:
        return []
    text = (
        f"gpus_per_domain {size} is of sources that list {len(listed)} of {translation.host_count} hosts;"
        " domains of all hosts are split by it; name the domains to split fewer"
    )
    return [Finding(FindingKind.ASSUMED, "overrides", text)]


def join_rank_maps(
    joiner: Joiner, clusters: Sequence[Cluster], translation: Translation
) -> tuple[int, ...] | None:
    """The rank map of the first source that has one, in merged numbers."""
    found: tuple[int, ...] | None = None
    for source, cluster in enumerate(clusters):
        if cluster.rank_map is None:
            continue
        given = translation.rank_map(source, cluster.rank_map)
        if given is None:
            text = "a source's rank map names GPUs that the merged hosts lack; it is left out"
            joiner.findings.append(Finding(FindingKind.CONFLICT, "rank_map", text))
        elif found is None:
            found = given
        elif given != found:
            joiner.conflict("rank_map", "GPUs", format_ints(found), "", format_ints(given), "")
    return found
