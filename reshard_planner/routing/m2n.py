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
within limits of their own. What is refused, and why, says :mod:`reshard_planner.routing.m2n_limits`.

The source leaves open who gets one more where a division has a remainder: the first ones, here. Domains are
those of the topology in its order, whatever their sizes, and replicas are in order of their ranks; a shard's
ranks in a share are sorted by the domains that they are really in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from reshard_planner.demand import Geometry, Member, group_by_domain
from reshard_planner.errors import UnsupportedError
from reshard_planner.routing.forest import ROOT, Forest, ForestBuilder
from reshard_planner.routing.m2n_limits import M2nLimits, M2nReshard
from reshard_planner.routing.m2n_shares import Deal, split
from reshard_planner.routing.problem import Problem
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium, Role


def route_m2n(problem: Problem, deal: Deal) -> list[Forest]:
    """Route every tensor by the rules of NCCL M2N; see the module's text.

    Args:
        problem: what to route.
        deal: who serves whom.

    Raises:
        UnsupportedError: if NCCL M2N would refuse a tensor, or ranks without a NIC must use the network.
    """
    limits = M2nLimits(problem.ports, deal)
    for tensor in problem.spec.tensors:  # so that the first one that is refused is named
        _accepted(limits, tensor)
    return [
        _Reshard(problem, limits, sample, members).route()
        for geometry in problem.geometries
        for sample, members in _in_order(problem, geometry)
    ]


def _accepted(limits: M2nLimits, tensor: TensorSpec) -> M2nReshard:
    found = limits.reshard(tensor)
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

    def __init__(
        self, problem: Problem, limits: M2nLimits, sample: TensorSpec, members: tuple[Member, ...]
    ) -> None:
        self.reshard = _accepted(limits, sample)
        self.domain_of = limits.domain_of
        self.problem = problem
        self.forest = ForestBuilder(members)
        self.tiles = SideTiles(sample, "dst")

    def route(self) -> Forest:
        """Move every contribution to every replica."""
        source, destination = self.reshard.source, self.reshard.destination
        for number, shard in enumerate(destination.shards):
            meeting = source.meeting(shard)
            pieces = [self.forest.add_piece(shard.intersect(source.shards[at])) for at in meeting]
            for share in self.reshard.shares:
                senders = [source.ranks[at][share.sender] for at in meeting]
                receivers = [destination.ranks[number][at] for at in share.receivers]
                if self.reshard.near:
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
        if src == dst:  # there is one rank in all
            medium, role = Medium.LOCAL, Role.COPY
        if medium == Medium.NETWORK:
            self.problem.check_nics(src, dst)
        return self.forest.deliver(piece, parent, src, dst, medium, role, self.tiles)
