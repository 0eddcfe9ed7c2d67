"""Demands: what must move, joint over all tensors, with the domains on both ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.atoms import Atoms, Ranks, find_atoms
from reshard_planner.layout import Layout
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.topology import Ports

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """Tensors of a geometry that agree in all but their name.

    Attributes:
        tensors: positions in the spec, ascending.
        ranks: rank that stands for each rank of the geometry's sample, int64 indexed by rank; None if every
            rank stands for itself.
    """

    tensors: tuple[int, ...]
    ranks: Ints | None

    def rename(self, ranks: Ints) -> Ints:
        """The ranks that stand for ranks of the sample, one by one; any shape."""
        return ranks if self.ranks is None else self.ranks[ranks]

    def substitute(self, ranks: Ranks) -> Ranks:
        """The ranks that stand for some ranks of the sample, ascending."""
        if self.ranks is None:
            return ranks
        return tuple(sorted(self.rename(np.array(ranks, dtype=np.int64)).tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Tensors whose layouts agree but for a renaming of ranks that keeps domains, NICs and their rates.

    Pipeline stages are renamings of one another, so that the layers of all stages are one geometry.

    Attributes:
        members: by renaming; the first one's ranks stand for themselves.
        sample: first tensor of the first member.
        atoms: atoms and classes of the sample.
    """

    members: tuple[Member, ...]
    sample: TensorSpec
    atoms: Atoms


@dataclass(frozen=True, slots=True)
class Demand:
    """One class of one member of a geometry.

    Attributes:
        geometry: position of the geometry.
        member: position of the member in the geometry.
        class_index: position of the class in the geometry's atoms.
        nbytes: bytes of the class in all tensors of the member together.
        holders: ranks that have the bytes, ascending.
        needers: ranks that must have them, ascending.
        holder_domains: domains of the holders, ascending.
        needing_domains: domains with a needer and no holder, ascending; k of them.
    """

    geometry: int
    member: int
    class_index: int
    nbytes: int
    holders: Ranks
    needers: Ranks
    holder_domains: tuple[int, ...]
    needing_domains: tuple[int, ...]


def find_geometries(spec: ReshardSpec, ports: Ports) -> tuple[Geometry, ...]:
    """Group the tensors of a spec by geometry, in order of first appearance."""
    alike: dict[tuple[tuple[int, ...], int, tuple[Layout, ...], tuple[Layout, ...]], list[int]] = {}
    for index, tensor in enumerate(spec.tensors):
        alike.setdefault(tensor.geometry, []).append(index)
    patterns: dict[tuple[tuple[Layout, ...], tuple[Layout, ...]], tuple[object, Ints]] = {}
    found: dict[object, list[tuple[tuple[int, ...], Ints]]] = {}
    for (shape, bits, src, dst), indices in alike.items():
        if (src, dst) not in patterns:
            patterns[src, dst] = _pattern(src, dst, ports)
        pattern, ranks = patterns[src, dst]
        found.setdefault((shape, bits, pattern), []).append((tuple(indices), ranks))
    geometries = []
    for members in found.values():
        tensors, given = members[0]
        sample = spec.tensors[tensors[0]]
        renamed = (Member(others, _renaming(given, ranks, ports)) for others, ranks in members[1:])
        geometries.append(Geometry((Member(tensors, None), *renamed), sample, find_atoms(sample)))
    return tuple(geometries)


def _pattern(src: tuple[Layout, ...], dst: tuple[Layout, ...], ports: Ports) -> tuple[object, Ints]:
    """What layouts have in common with all their renamings, and their ranks in order."""
    layouts = (*src, *dst)
    ranks = np.array([rank for layout in layouts for rank in layout.mesh.ranks], dtype=np.int64)
    groups = ports.nic_group[ranks]
    with_nic = groups >= 0
    rate = np.zeros(len(ranks), dtype=np.int64)
    rate[with_nic] = ports.nic_bytes_per_s[groups[with_nic]]
    forms = tuple(layout.form for layout in layouts)
    columns = (
        _by_appearance(ranks),
        _by_appearance(ports.domain[ranks]),
        _by_appearance(groups),
        rate,
        ports.nvlink_bytes_per_s[ranks],
        _by_appearance(ports.pod[ranks]),
        np.append(ports.uplink_bytes_per_s, 0)[ports.pod[ranks]],
        _by_appearance(ports.rails[ranks]),
    )
    return (len(src), forms, *(column.tobytes() for column in columns)), ranks


def _by_appearance(values: Ints) -> Ints:
    """Number the distinct values in the order in which they appear."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    numbered: Ints = number[inverse.reshape(-1)]
    return numbered


def _renaming(given: Ints, ranks: Ints, ports: Ports) -> Ints:
    mapping = np.arange(len(ports.domain), dtype=np.int64)
    mapping[given] = ranks
    mapping.setflags(write=False)
    return mapping


def find_demands(geometries: Sequence[Geometry], ports: Ports) -> tuple[Demand, ...]:
    """The classes of all members with their domains; classes of no bytes are left out.

    Demands with equal rank sets or domains share their tuples.
    """
    domains = _DomainSets(ports)
    demands = []
    for number, geometry in enumerate(geometries):
        atoms = geometry.atoms
        holder_sets, holders_of = _numbered(atoms.holders)
        needer_sets, needers_of = _numbered(atoms.needers)
        for position, member in enumerate(geometry.members):
            holders = [domains.share(member.substitute(ranks)) for ranks in holder_sets]
            needers = [domains.share(member.substitute(ranks)) for ranks in needer_sets]
            holding = [domains.of(ranks) for ranks in holders]
            needer_domains = [domains.of(ranks) for ranks in needers]
            count = len(member.tensors)
            for index, (nbytes, held, need) in enumerate(
                zip(atoms.nbytes, holders_of, needers_of, strict=True)
            ):
                if nbytes:
                    outside = domains.without(needer_domains[need], holding[held])
                    demands.append(
                        Demand(
                            number,
                            position,
                            index,
                            nbytes * count,
                            holders[held],
                            needers[need],
                            holding[held],
                            outside,
                        )
                    )
    return tuple(demands)


def _numbered(sets: Iterable[Ranks]) -> tuple[list[Ranks], list[int]]:
    """The distinct sets, and the number of each; sets that share a tuple are not compared."""
    by_id: dict[int, int] = {}
    by_value: dict[Ranks, int] = {}
    numbers = []
    for ranks in sets:
        number = by_id.get(id(ranks))
        if number is None:
            number = by_id[id(ranks)] = by_value.setdefault(ranks, len(by_value))
        numbers.append(number)
    return list(by_value), numbers


class _DomainSets:
    """Domains of sets of ranks, each found once; equal sets are one tuple."""

    def __init__(self, ports: Ports) -> None:
        self._domain_of: list[int] = ports.domain.tolist()
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._of: dict[Ranks, tuple[int, ...]] = {}
        self._without: dict[tuple[int, int], tuple[int, ...]] = {}

    def share(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """The one tuple that stands for all equal ones."""
        return self._shared.setdefault(values, values)

    def of(self, ranks: Ranks) -> tuple[int, ...]:
        """Domains of some ranks, ascending."""
        found = self._of.get(ranks)
        if found is None:
            found = self._of[ranks] = self.share(tuple(sorted({self._domain_of[rank] for rank in ranks})))
        return found

    def without(self, domains: tuple[int, ...], taken: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the domains that are not taken; both must be shared tuples."""
        key = (id(domains), id(taken))
        found = self._without.get(key)
        if found is None:
            held = set(taken)
            found = self._without[key] = self.share(tuple(domain for domain in domains if domain not in held))
        return found


def group_by_domain(ranks: Ranks, domain_of: Sequence[int]) -> dict[int, Ranks]:
    """Ranks by domain, the domains ascending; within each the ranks keep their order."""
    found: dict[int, list[int]] = {}
    for rank in ranks:
        found.setdefault(domain_of[rank], []).append(rank)
    return {domain: tuple(found[domain]) for domain in sorted(found)}


def minimum_network_nbytes(demands: Iterable[Demand]) -> int:
    """P*: every domain in need takes in every byte once, ``sum k_c W_c`` (in bytes)."""
    return sum(len(demand.needing_domains) * demand.nbytes for demand in demands)
