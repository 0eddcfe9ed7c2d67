"""How NCCL M2N moves a tensor once it is settled which replica of the source serves which of the destination.

The rules are those of the library's source (NVIDIA/nccl-extensions, ``nccl_m2n``, release 0.1.0, where one
communicator has all ranks). A *contribution* is the box that a source shard and a destination shard have in
common; it is never cut. For every destination shard, and every share of replicas that one source replica
serves:

1. The ranks of the share in its first domain are the *leaders* of the shard. The source shards that meet it,
   in order, are dealt out to them by number, as evenly as goes; leader p is sent what falls to position p.
2. Position p of a domain sends on to position p of the next domain. Where that has fewer ranks, the last of
   them takes all further positions, which stay together from there on.
3. In every domain the rank at a position sends what it gets to each other rank of the share itself.

What reaches a leader goes from NIC to NIC, also from a source in the leader's own domain; the rest stays on
NVLink. Where all ranks of the spec are in one domain, holders send over NVLink to every replica themselves,
within the limits below.

The source leaves open who gets one more where a division has a remainder: the first ones, here. Domains are
those of the topology in its order, whatever their sizes, and replicas are in order of their ranks; a shard's
ranks in a share are sorted by the domains that they are really in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reshard_planner.demand import Geometry, Member, group_by_domain
from reshard_planner.errors import UnsupportedError
from reshard_planner.routing.forest import ROOT, Forest, ForestBuilder
from reshard_planner.routing.m2n_limits import find_sides
from reshard_planner.routing.m2n_sides import M2nSide
from reshard_planner.routing.problem import Problem
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium, Role

MAX_COPIES = 129
"""Ranks of one domain that get a shard from one source replica: the leader, and those it sends to."""

MAX_NEAR_RANKS, MAX_NEAR_SOURCES, MAX_NEAR_TARGETS = 64, 32, 64
"""Most ranks, source shards and destination shards where everything is in one domain and stays on NVLink."""


@dataclass(frozen=True, slots=True)
class Share:
    """Replicas of the destination that one replica of the source serves.

    Attributes:
        sender: position of the source replica.
        receivers: positions of the destination replicas, ascending.
    """

    sender: int
    receivers: tuple[int, ...]


Deal = Callable[[M2nSide, M2nSide, Sequence[int]], list[Share]]
"""Deals the replicas of a destination out to those of a source, given the domain of every rank."""


def split(count: int, parts: int) -> list[range]:
    """Ranges of ``count`` numbers that follow one another, as even as can be; the first ones are longer.

    >>> split(7, 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    even, more = divmod(count, parts)
    starts = [part * even + min(part, more) for part in range(parts + 1)]
    return [range(*starts[part : part + 2]) for part in range(parts)]


def route_m2n(problem: Problem, deal: Deal) -> list[Forest]:
    """Route every tensor by the rules of NCCL M2N; see the module's text.

    Args:
        problem: what to route.
        deal: who serves whom.

    Raises:
        UnsupportedError: if NCCL M2N would refuse a tensor, or ranks without a NIC must use the network.
    """
    _refuse(problem.spec.tensors)
    return [
        _Reshard(problem, sample, members, deal).route()
        for geometry in problem.geometries
        for sample, members in _in_order(problem, geometry)
    ]


def _refuse(tensors: Sequence[TensorSpec]) -> None:
    """Refuse the first tensor that M2N would refuse."""
    known: set[tuple[object, ...]] = set()
    for tensor in tensors:
        key = tensor.geometry, tensor.dtype, tensor.dst_dtype
        if key not in known:
            _sides(tensor)
            known.add(key)


def _sides(tensor: TensorSpec) -> tuple[M2nSide, M2nSide]:
    found = find_sides(tensor)
    if isinstance(found, str):
        raise UnsupportedError(f"NCCL M2N would refuse tensor {tensor.name!r}: {found}")
    return found


def _in_order(problem: Problem, geometry: Geometry) -> Iterator[tuple[TensorSpec, tuple[Member, ...]]]:
    """The members by what the rules do alike, each time with a tensor of the first of them.

    The rules go by the order of ranks and domains, which a renaming need not keep.
    """
    first, *others = geometry.members
    sides = geometry.sample.tilings("src"), geometry.sample.tilings("dst")
    ranks = np.unique(np.concatenate([tiling.ranks for tilings in sides for tiling in tilings]))
    order = _domain_order(problem.ports, ranks)
    alike, apart = [first], list[Member]()
    for member in others:
        names = member.rename(ranks)
        same = bool((np.diff(names) > 0).all()) and _domain_order(problem.ports, names) == order
        (alike if same else apart).append(member)
    yield geometry.sample, tuple(alike)
    for member in apart:
        yield problem.spec.tensors[member.tensors[0]], (Member(member.tensors, None),)


def _domain_order(ports: Ports, ranks: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    """The domain of each rank, numbered among those of all of them."""
    found: list[int] = np.unique(ports.domain[ranks], return_inverse=True)[1].tolist()
    return found


class _Reshard:
    """One tensor, and all that are moved alike."""

    def __init__(self, problem: Problem, sample: TensorSpec, members: tuple[Member, ...], deal: Deal) -> None:
        sides = _sides(sample)
        self.name = sample.name
        self.source, self.destination = sides
        self.domain_of = problem.ports.domain.tolist()
        self.problem = problem
        self.near = _is_near(problem, *sides)
        self.shares = deal(*sides, self.domain_of)
        self.forest = ForestBuilder(members)
        self.tiles = SideTiles(sample, "dst")

    def route(self) -> Forest:
        """Move every contribution to every replica."""
        for number, shard in enumerate(self.destination.shards):
            meeting = self.source.meeting(shard)
            pieces = [self.forest.add_piece(shard.intersect(self.source.shards[at])) for at in meeting]
            for share in self.shares:
                senders = [self.source.ranks[at][share.sender] for at in meeting]
                receivers = [self.destination.ranks[number][at] for at in share.receivers]
                if self.near:
                    self._send_near(pieces, senders, receivers)
                else:
                    self._send(pieces, senders, receivers)
        return self.forest.build()

    def _send_near(self, pieces: Sequence[int], senders: Sequence[int], receivers: Sequence[int]) -> None:
        for piece, sender in zip(pieces, senders, strict=True):
            for rank in receivers:
                self._pass(piece, ROOT, sender, rank, Medium.NVLINK, Role.FANOUT)

    def _send(self, pieces: Sequence[int], senders: Sequence[int], receivers: Sequence[int]) -> None:
        """Send what one shard is made of to the ranks of a share that have a copy of it."""
        domains = list(group_by_domain(tuple(receivers), self.domain_of).values())
        if max(map(len, domains)) > MAX_COPIES:
            raise UnsupportedError(
                f"NCCL M2N would refuse tensor {self.name!r}: more than {MAX_COPIES} copies of a destination"
                " shard are in one domain"
            )
        for position, chosen in enumerate(split(len(pieces), len(domains[0]))):
            for at in chosen:
                self._chain(pieces[at], senders[at], domains, position)

    def _chain(self, piece: int, sender: int, domains: Sequence[Sequence[int]], position: int) -> None:
        """Send a contribution from domain to domain, and to all ranks in each."""
        parent = ROOT
        for ranks in domains:
            position = min(position, len(ranks) - 1)
            leader = ranks[position]
            role = Role.INJECT if parent == ROOT else Role.RELAY
            parent = self._pass(piece, parent, sender, leader, Medium.NETWORK, role)
            for rank in ranks:
                if rank != leader:
                    self._pass(piece, parent, leader, rank, Medium.NVLINK, Role.FANOUT)
            sender = leader

    def _pass(self, piece: int, parent: int, src: int, dst: int, medium: Medium, role: Role) -> int:
        if medium == Medium.NETWORK:
            self.problem.check_nics(src, dst)
        return self.forest.deliver(piece, parent, src, dst, medium, role, self.tiles)


def _is_near(problem: Problem, source: M2nSide, destination: M2nSide) -> bool:
    """Whether all ranks of the spec are in one domain, and few enough to stay on NVLink."""
    ranks = list(problem.spec.ranks)
    return (
        len(np.unique(problem.ports.domain[ranks])) == 1
        and len(ranks) <= MAX_NEAR_RANKS
        and len(source.shards) <= MAX_NEAR_SOURCES
        and len(destination.shards) <= MAX_NEAR_TARGETS
        and max(map(max, source.ranks)) < min(map(min, destination.ranks))
    )
