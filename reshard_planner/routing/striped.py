"""The strategy ``striped``: the planner in Python of NeMo RL, as a baseline.

The rules are those of its source (NVIDIA-NeMo/RL, ``nemo_rl/weight_sync/xferdtensor_python.py``), which plans
one tensor at a time from exact intersections and knows no topology. Ranks of the destination that need the
same box are a *group*, in the order of their mesh.

1. If every group of several ranks can be cut in equal stripes along dimension 0, one for each of its ranks in
   order, each rank is sent its stripe, and the group completes it by an all-gather. From stripe to stripe the
   ranks that hold the same bytes take turns in sending; a rank that holds its own stripe copies it.
2. Otherwise, and where no group has several ranks, or where a message would be in pieces at both of its ends,
   the first rank of each group is sent the whole box by the first rank that holds it, or copies what it holds
   itself, and broadcasts it to the group.

The source leaves both collectives to NCCL. Here they are rings, as NCCL's mostly are: each rank sends what it
gets on to the next, also to one that holds the bytes already. A ring enters every domain once. Where a group
spans domains it has as many rings as the domain with the fewest of its ranks has ranks, each through another
first rank of every domain, else one; they share stripes, or a box that is broadcast, equally.

The source takes one layout of ``Shard`` and ``Replicate`` a side. Here several layouts and storage are told
apart by what ranks hold and need, whichever layout says it; shards count as dense in their buffers. Stripes
end at whole bytes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from reshard_planner.atoms import Ranks
from reshard_planner.box import Box
from reshard_planner.demand import Geometry
from reshard_planner.layout import Tiling
from reshard_planner.routing.cuts import LEAST_PIECE_NBYTES, split_box
from reshard_planner.routing.forest import ROOT, Forest, ForestBuilder
from reshard_planner.routing.problem import Problem, Strategy
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import byte_step
from reshard_planner.transfer import Medium, Role


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks that need one box.

    Attributes:
        box: the box.
        tiles: numbers of the tiles that are this box, per rank; the ranks in order.
        rings: orders in which rings pass through the ranks.
    """

    box: Box
    tiles: dict[int, list[int]]
    rings: tuple[Ranks, ...]


@dataclass(frozen=True, slots=True)
class _Target:
    """What one rank of a group is sent: its stripe, or everything; and the rings that take it further."""

    group: _Group
    box: Box
    receiver: int
    rings: tuple[Ranks, ...]


_Part = tuple[Box, int]
"""What of a target one rank sends, and that rank."""


def route(problem: Problem) -> list[Forest]:
    """Route every tensor by itself; see the module's text.

    Raises:
        UnsupportedError: if bytes must cross the network at ranks without a NIC.
    """
    return [_Reshard(problem, geometry).route() for geometry in problem.geometries]


class _Reshard:
    """One tensor, and all of its geometry: the rules go by the order of meshes, which renaming keeps."""

    def __init__(self, problem: Problem, geometry: Geometry) -> None:
        self.domain_of = problem.ports.domain.tolist()
        self.problem = problem
        self.atoms = geometry.atoms
        self.bits = geometry.sample.bits
        self.step = byte_step(self.bits)
        self.forest = ForestBuilder(geometry.members)
        self.held = SideTiles(geometry.sample, "src")
        # ranks of several layouts come in the order of the layouts
        ranks = (rank for tiling in geometry.sample.tilings("src") for rank in tiling.ranks.tolist())
        order = {rank: at for at, rank in enumerate(dict.fromkeys(ranks))}
        self.holders = [tuple(sorted(each, key=order.__getitem__)) for each in self.atoms.holders]
        self.groups = self._find_groups(geometry.sample.tilings("dst"))

    def route(self) -> Forest:
        """Send every target its parts, and each of them around its group."""
        targets = self._stripes()
        parts = self._from_holders(targets, in_turns=True)
        if not targets or any(
            not self._is_whole(target, part)
            for target, own in zip(targets, parts, strict=True)
            for part in own
        ):
            targets = [
                _Target(group, group.box, next(iter(group.tiles)), group.rings) for group in self.groups
            ]
            parts = self._from_holders(targets, in_turns=False)
        for target, own in zip(targets, parts, strict=True):
            for box, sender in own:
                self._send(target, box, sender)
        return self.forest.build()

    def _find_groups(self, tilings: Sequence[Tiling]) -> list[_Group]:
        """The groups in the order in which they appear, with tiles numbered through all layouts."""
        found: dict[Box, dict[int, list[int]]] = {}
        first: Counter[int] = Counter()
        for tiling in tilings:
            stored: dict[int, list[Box]] = {}
            for rank, kind in zip(tiling.ranks.tolist(), tiling.alike.tolist(), strict=True):
                if kind not in stored:
                    stored[kind] = [box for box, _ in tiling.joined(rank)]
                for number, box in enumerate(stored[kind], first[rank]):
                    found.setdefault(box, {}).setdefault(rank, []).append(number)
                first[rank] += len(stored[kind])
        return [_Group(box, tiles, self._rings(list(tiles))) for box, tiles in found.items()]

    def _rings(self, ranks: Sequence[int]) -> tuple[Ranks, ...]:
        by_domain: dict[int, list[int]] = {}
        for rank in ranks:
            by_domain.setdefault(self.domain_of[rank], []).append(rank)
        domains = list(by_domain.values())
        count = min(map(len, domains)) if len(domains) > 1 else 1
        return tuple(
            tuple(rank for members in domains for rank in (*members[turn:], *members[:turn]))
            for turn in range(count)
        )

    def _stripes(self) -> list[_Target]:
        """Equal stripes for the ranks of every group; none where the rules do not stripe."""
        found: list[_Target] = []
        if all(len(group.tiles) == 1 for group in self.groups):
            return []
        for group in self.groups:
            box, count = group.box, len(group.tiles)
            unit = count * (self.step if box.ndim == 1 else 1)
            if count > 1 and (not box.ndim or box.shape[0] % unit):
                return []
            stripes = box.chunks(0, count) if count > 1 else (box,)
            for at, (stripe, rank) in enumerate(zip(stripes, group.tiles, strict=True)):
                ring = group.rings[at * len(group.rings) // count]
                found.append(_Target(group, stripe, rank, (ring,)))
        return found

    def _from_holders(self, targets: Sequence[_Target], *, in_turns: bool) -> list[list[_Part]]:
        """Who sends what to each target: the first of the ranks that hold it, or these in turns.

        A target takes all that the same ranks hold from one of them.
        """
        sent: Counter[Ranks] = Counter()
        parts: list[list[_Part]] = []
        for target in targets:
            chosen: dict[Ranks, int] = {}
            own: list[_Part] = []
            for box, kind in self._within(target.box):
                holders = self.holders[kind]
                if holders not in chosen:
                    chosen[holders] = holders[sent[holders] % len(holders)]
                    if target.receiver in holders:
                        chosen[holders] = target.receiver
                    elif in_turns:
                        sent[holders] += 1
                own.append((box, chosen[holders]))
            parts.append(own)
        return parts

    def _within(self, box: Box) -> Iterator[tuple[Box, int]]:
        """What of the atoms lies in a box, and their classes."""
        lo = np.maximum(self.atoms.lo, np.array(box.lo, dtype=np.int64))
        hi = np.minimum(self.atoms.hi, np.array(box.hi, dtype=np.int64))
        inside = np.flatnonzero((hi > lo).all(axis=1))
        found = zip(
            map(tuple, lo[inside].tolist()),
            map(tuple, hi[inside].tolist()),
            self.atoms.class_of[inside].tolist(),
            strict=True,
        )
        return ((Box(first, last), kind) for first, last, kind in sorted(found, key=itemgetter(0)))

    def _is_whole(self, target: _Target, part: _Part) -> bool:
        """Whether a part is one run of bytes where it is sent or where it arrives, or stays on its rank."""
        box, sender = part
        if sender == target.receiver or _is_run(box, target.group.box):
            return True
        tiles = self.held.tiles(sender)
        return any(_is_run(box, tiles[number].box) for number in self.held.containing(sender, box))

    def _send(self, target: _Target, box: Box, sender: int) -> None:
        """Send a box to a target, and on around its rings."""
        group, receiver = target.group, target.receiver
        most = max(1, box.volume * self.bits // 8 // LEAST_PIECE_NBYTES)
        shares = split_box(box, min(len(target.rings), most), self.step)
        for share, ring in zip(shares, target.rings, strict=False):  # small boxes are for the first rings
            piece = self.forest.add_piece(share)
            parent = self._pass(group, piece, ROOT, sender, receiver)
            if sender == receiver:
                parent = ROOT  # it sends on from where it holds the bytes
            at = ring.index(receiver)
            for src, dst in itertools.pairwise((*ring[at:], *ring[:at])):
                parent = self._pass(group, piece, parent, src, dst)

    def _pass(self, group: _Group, piece: int, parent: int, src: int, dst: int) -> int:
        """Move a piece into all tiles of a rank that are the group's box; returns the row that brings it."""
        if src == dst:
            medium, role = Medium.LOCAL, Role.COPY
        elif self.domain_of[src] == self.domain_of[dst]:
            medium, role = Medium.NVLINK, Role.FANOUT
        else:
            self.problem.check_nics(src, dst)
            medium, role = Medium.NETWORK, Role.INJECT if parent == ROOT else Role.RELAY
        first, *others = group.tiles[dst]
        row = self.forest.add(piece, parent, src, dst, medium, role, first)
        for number in others:
            self.forest.add(piece, row, dst, dst, Medium.LOCAL, Role.COPY, number)
        return row


def _is_run(part: Box, whole: Box) -> bool:
    """Whether a part of a dense row-major box is one run of it."""
    cut = False
    for own, all_of_it in zip(reversed(part.shape), reversed(whole.shape), strict=True):
        if cut and own > 1:
            return False
        cut |= own < all_of_it
    return True


STRATEGY = Strategy(
    "striped",
    route,
    claims_least=False,
    summary="NeMo RL's own planner: replicas take in a stripe each and exchange them",
)
