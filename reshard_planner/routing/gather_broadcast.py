"""The strategy ``gather-broadcast``: the conventional refit, as the baseline.

The first rank of the source (that has a NIC) gathers the whole tensor, in scratch. It is then broadcast
whole to every destination rank: along a chain through one leader per domain, and along a chain over NVLink
within each domain. Each rank keeps it in scratch and copies its tiles out.

Tiles are those of the first source layout, and come from the first rank of it that can reach the root. Where
none can, any other rank of the source that holds the tile is as good; ranks of other layouts may be the root.
"""

from __future__ import annotations

import itertools

from reshard_planner.box import Box, outside
from reshard_planner.demand import Geometry
from reshard_planner.routing.forest import NO_TILE, ROOT, Forest, ForestBuilder
from reshard_planner.routing.problem import Problem, Strategy
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.transfer import Medium, Role


def route(problem: Problem) -> list[Forest]:
    """Route every tensor over its first source rank; see the module's text.

    Raises:
        UnsupportedError: if bytes must cross the network at ranks without a NIC.
    """
    return [_Broadcast(problem, geometry).route() for geometry in problem.geometries]


class _Broadcast:
    """The broadcast of one geometry: who gathers, and in which order ranks pass tensors on."""

    def __init__(self, problem: Problem, geometry: Geometry) -> None:
        self.problem = problem
        self.domain_of = problem.ports.domain.tolist()
        self.has_nic = (problem.ports.nic_group >= 0).tolist()
        self.forest = ForestBuilder(geometry.members)
        self.sources = geometry.sample.tilings("src")
        self.stored = geometry.sample.src[0].storage is not None
        self.tiles = SideTiles(geometry.sample, "dst")
        self.needers = self.tiles.ranks()
        self.needing = frozenset(self.needers)
        self.held = SideTiles(geometry.sample, "src")
        ranks = (rank for source in self.sources for rank in source.ranks.tolist())
        self.holding = tuple(dict.fromkeys(ranks))
        self.root = self._find_root()
        self.order = self._order()

    def route(self) -> Forest:
        """Gather and broadcast every distinct tile of the source."""
        for box, holders in self._distinct_tiles().items():
            self._route_tile(box, self._nearest(box, holders))
        return self.forest.build()

    def _find_root(self) -> int:
        """The first rank of the source with a NIC; that of a later layout only where some are elsewhere."""
        first = self.holding[0]
        domains = {self.domain_of[rank] for rank in (first, *self.needers)}
        among = self.sources[0].ranks.tolist() if len(domains) == 1 else self.holding
        found: int = next((rank for rank in among if self.has_nic[rank]), first)
        return found

    def _distinct_tiles(self) -> dict[Box, list[int]]:
        """Distinct tiles that make up the tensor, with the ranks that store them.

        They are those of the first layout, and of others where they add something.
        """
        found: dict[Box, list[int]] = {}
        for number, source in enumerate(self.sources):
            own: dict[Box, list[int]] = {}
            for rank in source.ranks.tolist():
                for box, _ in source.joined(rank):
                    own.setdefault(box, []).append(rank)
            for box, ranks in own.items():
                # shards of one layout are disjoint, boxes of storage may overlap
                for part in outside(box, found) if number or self.stored else [box]:
                    found[part] = ranks
        return found

    def _nearest(self, box: Box, holders: list[int]) -> int:
        """The first holder that can reach the root: itself, a neighbour, or one with a NIC.

        Ranks that hold the box otherwise, as part of a larger tile or in another layout, come last.
        """
        if self.root in holders or self.held.containing(self.root, box):
            return self.root
        others = (rank for rank in self.holding if self.held.containing(rank, box))
        reaching = (rank for rank in itertools.chain(holders, others) if self._reaches(rank))
        return next(reaching, holders[0])

    def _reaches(self, rank: int) -> bool:
        """Whether a rank can send to the root itself; where the root has no NIC, only its neighbours can."""
        near = self.domain_of[rank] == self.domain_of[self.root]
        return bool(near or (self.has_nic[rank] and self.has_nic[self.root]))

    def _order(self) -> list[tuple[int, int]]:
        """(sender, receiver) pairs: leaders from domain to domain, then neighbours within each domain."""
        domain = self.domain_of[self.root]
        by_domain: dict[int, list[int]] = {domain: [self.root]}
        for rank in sorted(
            self.needers, key=lambda rank: (self.domain_of[rank], not self.has_nic[rank], rank)
        ):
            if rank != self.root:
                by_domain.setdefault(self.domain_of[rank], []).append(rank)
        leaders = [members[0] for members in by_domain.values()]
        pairs = list(itertools.pairwise(leaders))
        for members in by_domain.values():
            pairs.extend(itertools.pairwise(members))
        return pairs

    def _route_tile(self, box: Box, holder: int) -> None:
        piece = self.forest.add_piece(box)
        arrival = {holder: ROOT}
        if holder != self.root:
            self._add(piece, arrival, holder, self.root)
        for src, dst in self.order:
            if dst not in arrival:
                self._add(piece, arrival, src, dst)
        for rank in self.needers:
            for number, entry in enumerate(self.tiles.tiles(rank)):
                part = entry.box.intersect(box)
                if part.volume:
                    smaller = piece if part == box else self.forest.add_piece(part)
                    self.forest.add(smaller, arrival[rank], rank, rank, Medium.LOCAL, Role.COPY, number)

    def _add(self, piece: int, arrival: dict[int, int], src: int, dst: int) -> None:
        """Pass a piece on, into scratch."""
        parent = arrival[src]
        if self.domain_of[src] == self.domain_of[dst]:
            medium, role = Medium.NVLINK, Role.FANOUT if dst in self.needing else Role.HANDOFF
        else:
            self.problem.check_nics(src, dst)
            medium, role = Medium.NETWORK, Role.INJECT if parent == ROOT else Role.RELAY
        arrival[dst] = self.forest.add(piece, parent, src, dst, medium, role, NO_TILE)


STRATEGY = Strategy(
    "gather-broadcast",
    route,
    claims_least=False,
    summary="the conventional refit: gather whole tensors at one source rank, broadcast them whole",
)
