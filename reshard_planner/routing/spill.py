"""Spilling: what NICs have no time for goes over those of neighbours, handed on over NVLink.

Pieces that cross an overloaded NIC are laid end to end, and cut where the NIC's time is used up and where a
neighbour's spare time is. So a slow or missing NIC costs the fewest further pieces, whatever routed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.demand import Member
from reshard_planner.routing.cuts import split_at
from reshard_planner.routing.forest import NO_TILE, ROOT, Forest
from reshard_planner.routing.nics import NicPorts
from reshard_planner.routing.problem import Problem
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import byte_step
from reshard_planner.transfer import Medium, Role

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Detour:
    """Part of a transfer that goes over a neighbour's NIC.

    Attributes:
        row: the transfer.
        sending: whether the neighbour's NIC sends instead of the source's; else it receives instead of the
            destination's.
        start: where the part begins, as a share of the piece.
        stop: where it ends.
        neighbour: the rank that lends its NIC.
    """

    row: int
    sending: bool
    start: float
    stop: float
    neighbour: int


def spill(problem: Problem, forests: Sequence[Forest], time_s: float) -> list[Forest] | None:
    """Relieve every NIC that takes longer than a time; None if that fails.

    Args:
        problem: what is compiled.
        forests: routed tensors.
        time_s: time that no NIC should exceed, in seconds.
    """
    budget = _Budget(problem, forests, time_s)
    detours: list[list[Detour]] = [[] for _ in forests]
    for sending in (False, True):
        for port in budget.overloaded(sending=sending):
            if not budget.relieve(port, detours, sending=sending):
                return None
    spilt = [
        _apply(problem, forest, found) if found else forest
        for forest, found in zip(forests, detours, strict=True)
    ]
    without = problem.ports.nic_group < 0
    for forest in spilt:
        network = forest.medium == Medium.NETWORK
        if (without[forest.src[network]] | without[forest.dst[network]]).any():
            return None
    return spilt


@dataclass(frozen=True, slots=True, eq=False)
class _Crossings:
    """The network rows of a forest in one direction, sorted by the port that the sample's rank has.

    Attributes:
        rows: the rows, int64 of shape (rows,).
        port: port of each, ascending, likewise.
        nbytes: bytes of each over that port, in all tensors of the members whose rank has the same port.
    """

    rows: Ints
    port: Ints
    nbytes: Floats

    def of(self, port: int) -> slice:
        """Where the rows of a port stand."""
        first, stop = np.searchsorted(self.port, (port, port + 1)).tolist()
        return slice(first, stop)


class _Budget:
    """Loads of the NICs against what they can carry; a rank without one has a port that carries nothing."""

    def __init__(self, problem: Problem, forests: Sequence[Forest], time_s: float) -> None:
        ports = problem.ports
        self.domain = ports.domain
        nics = NicPorts(ports)
        self.port = nics.of_rank
        self.room = np.floor(nics.bytes_per_s * time_s)
        self.ranks = np.array(problem.spec.ranks, dtype=np.int64)
        self.known: dict[int, Ints] = {}
        self.forests = forests
        bits = [problem.spec.tensors[forest.members[0].tensors[0]].bits for forest in forests]
        self.loads: dict[bool, Floats] = {}
        self.crossings: dict[bool, list[_Crossings]] = {}
        self.users: dict[bool, dict[int, list[int]]] = {}
        for sending in (False, True):
            loads = np.zeros(len(self.room))
            for forest, width in zip(forests, bits, strict=True):
                loads += nics.loads(forest, width, sending=sending)
            self.loads[sending] = loads
            found = [
                self._find_crossings(forest, width, sending=sending)
                for forest, width in zip(forests, bits, strict=True)
            ]
            self.crossings[sending] = found
            users = self.users[sending] = {}
            for number, crossings in enumerate(found):
                for port in np.unique(crossings.port).tolist():
                    users.setdefault(port, []).append(number)

    def _find_crossings(self, forest: Forest, bits: int, *, sending: bool) -> _Crossings:
        ranks = forest.src if sending else forest.dst
        rows = np.flatnonzero(forest.medium == Medium.NETWORK)
        rows = rows[np.argsort(self.port[ranks[rows]], kind="stable")]
        port = self.port[ranks[rows]]
        times = np.zeros(len(rows))
        for member in forest.members:
            times[self.port[member.rename(ranks[rows])] == port] += len(member.tensors)
        return _Crossings(rows, port, forest.nbytes(bits)[rows] * times)

    def overloaded(self, *, sending: bool) -> list[int]:
        """Ports without time for their load."""
        return np.flatnonzero(self.loads[sending] > self.room + 1).tolist()

    def relieve(self, port: int, detours: list[list[Detour]], *, sending: bool) -> bool:
        """Plan the detours of one port; returns whether neighbours have enough room."""
        load, room = self.loads[sending], self.room
        domain = int(self.domain[self.ranks[self.port[self.ranks] == port][0]])
        neighbours = [
            rank
            for rank in self.ranks[self.domain[self.ranks] == domain].tolist()
            if room[self.port[rank]] > load[self.port[rank]] and self._lends(rank, port, sending=sending)
        ]
        tape = list(self._tape(port, sending=sending))
        total = sum(weight for _, _, weight in tape)
        left = [(ROOT, max(0.0, total - (load[port] - room[port])))]
        for rank in neighbours:
            relief = self.port[rank]
            spare = room[relief] - load[relief]
            short = total - sum(amount for _, amount in left)
            took = min(short, spare)
            if took > 0:
                left.append((rank, took))
                load[relief] += took
        if total - sum(amount for _, amount in left) > 1:
            return False
        load[port] = min(load[port], room[port])
        at, used = 0, 0.0
        for number, row, weight in tape:
            done = 0.0
            while done < weight and at < len(left):
                part = min(weight - done, left[at][1] - used)
                if left[at][0] != ROOT and part > 0:
                    bounds = (done / weight, (done + part) / weight)
                    detours[number].append(Detour(row, sending, *bounds, left[at][0]))
                done += part
                used += part
                if used >= left[at][1] and at < len(left) - 1:
                    at, used = at + 1, 0.0
                elif done < weight and part <= 0:
                    break
        return True

    def _lends(self, rank: int, port: int, *, sending: bool) -> bool:
        """Whether a rank stands beside the port's ranks in every member, and does not share their NIC."""
        if self.port[rank] == port:
            return False
        for number in self.users[sending].get(port, ()):
            forest, crossings = self.forests[number], self.crossings[sending][number]
            row = crossings.rows[crossings.of(port).start]
            mine = (forest.src if sending else forest.dst)[row]
            for member in forest.members:
                renamed = member.rename(np.array((rank, mine)))
                here, there = self.domain[renamed].tolist()
                if here != there or self._stands_for_another(number, member, rank):
                    return False
        return True

    def _stands_for_another(self, number: int, member: Member, rank: int) -> bool:
        """Whether a rank that a forest does not know stands for one of its ranks in a member."""
        if member.ranks is None:
            return False
        if number not in self.known:
            self.known[number] = np.unique(
                np.concatenate((self.forests[number].src, self.forests[number].dst))
            )
        known = self.known[number]
        return rank not in known and bool((member.ranks[known] == member.ranks[rank]).any())

    def _tape(self, port: int, *, sending: bool) -> Iterable[tuple[int, int, float]]:
        """Forest, row and bytes over the port of every network row that loads it."""
        for number in self.users[sending].get(port, ()):
            crossings = self.crossings[sending][number]
            at = crossings.of(port)
            for row, nbytes in zip(crossings.rows[at].tolist(), crossings.nbytes[at].tolist(), strict=True):
                yield number, row, nbytes


def _apply(problem: Problem, forest: Forest, detours: Sequence[Detour]) -> Forest:
    """The forest with its pieces cut and its rows redirected."""
    sample = problem.spec.tensors[forest.members[0].tensors[0]]
    shares: dict[int, set[float]] = {}
    for detour in detours:
        shares.setdefault(int(forest.piece[detour.row]), set()).update((detour.start, detour.stop))
    cut = _cut_pieces(forest, shares, sample.bits)
    rows = _Rows(cut.forest, SideTiles(sample, "src"))
    for detour in detours:
        piece = int(forest.piece[detour.row])
        first, stop = np.searchsorted(cut.owner, (piece, piece + 1)).tolist()
        for part in range(first, stop):
            if detour.start <= cut.middle[part] < detour.stop:
                rows.redirect(int(cut.base[part] + cut.place[detour.row]), detour)
    return rows.build()


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """A forest with some pieces cut; every part has a copy of all rows of its piece, in one block.

    Attributes:
        forest: the forest.
        owner: piece that each part is of, ascending.
        middle: where the middle of each part lies, as a share of its piece.
        base: first row of each part.
        place: place of each row of the old forest among the rows of its piece.
    """

    forest: Forest
    owner: Ints
    middle: Floats
    base: Ints
    place: Ints


def _cut_pieces(forest: Forest, shares: dict[int, set[float]], bits: int) -> _Cut:
    """Cut pieces at shares of them."""
    step = byte_step(bits)
    whole = np.array([piece for piece in range(len(forest.lo)) if piece not in shares], dtype=np.int64)
    los, his = [forest.lo[whole]], [forest.hi[whole]]
    owners, middles = [whole], [np.full(len(whole), 0.5)]
    for piece in sorted(shares):
        box = Box(tuple(forest.lo[piece].tolist()), tuple(forest.hi[piece].tolist()))
        parts = split_at(box, sorted(shares[piece]), bits, step)
        los.append(np.array([part.lo for part, _ in parts], dtype=np.int64))
        his.append(np.array([part.hi for part, _ in parts], dtype=np.int64))
        owners.append(np.full(len(parts), piece))
        middles.append(np.array([middle for _, middle in parts]))
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    owner = owner[order]
    by_piece = np.argsort(forest.piece, kind="stable")
    count = np.bincount(forest.piece, minlength=len(forest.lo))
    start = np.cumsum(count) - count
    place = np.empty(len(forest.piece), dtype=np.int64)
    place[by_piece] = np.arange(len(by_piece)) - np.repeat(start, count)
    lengths = count[owner]
    base = np.cumsum(lengths) - lengths
    row = by_piece[np.arange(int(lengths.sum())) + np.repeat(start[owner] - base, lengths)]
    parent = forest.parent[row]
    cut = Forest(
        forest.members,
        np.concatenate(los)[order],
        np.concatenate(his)[order],
        np.repeat(np.arange(len(owner)), lengths),
        np.where(parent >= 0, np.repeat(base, lengths) + place[np.maximum(parent, 0)], ROOT),
        *(getattr(forest, name)[row] for name in ("src", "dst", "medium", "role", "tile")),
    )
    return _Cut(cut, owner, np.concatenate(middles)[order], base, place)


class _Rows:
    """Rows of a forest that are redirected one at a time."""

    def __init__(self, forest: Forest, sources: SideTiles) -> None:
        self.forest = forest
        self.sources = sources
        names = [column.name for column in fields(forest)][3:]
        self.columns: dict[str, list[int]] = {name: getattr(forest, name).tolist() for name in names}
        self.children: dict[int, list[int]] = {}
        self.arrival: dict[tuple[int, int], int] = {}
        for row, parent in enumerate(self.columns["parent"]):
            if parent >= 0:
                self.children.setdefault(parent, []).append(row)
            self.arrival.setdefault((self.columns["piece"][row], self.columns["dst"][row]), row)

    def redirect(self, row: int, detour: Detour) -> None:
        """Send or receive one row over the neighbour's NIC."""
        if detour.sending:
            self._send_by(row, detour.neighbour)
        else:
            self._receive_by(row, detour.neighbour)

    def _send_by(self, row: int, neighbour: int) -> None:
        columns = self.columns
        piece, src, parent = columns["piece"][row], columns["src"][row], columns["parent"][row]
        if self._holds(neighbour, piece):
            feeder, role = ROOT, Role.INJECT
        else:
            feeder, role = self.arrival.get((piece, neighbour), ROOT), Role.RELAY
            if feeder == ROOT:
                feeder = self._add(piece, parent, src, neighbour, NO_TILE)
            elif self._comes_from(feeder, row):
                return  # the neighbour has the bytes only after this very transfer
        if parent != ROOT:
            self.children[parent].remove(row)
        if feeder != ROOT:
            self.children.setdefault(feeder, []).append(row)
        columns["src"][row], columns["parent"][row], columns["role"][row] = neighbour, feeder, role

    def _comes_from(self, row: int, ancestor: int) -> bool:
        while row not in (ROOT, ancestor):
            row = self.columns["parent"][row]
        return row == ancestor

    def _receive_by(self, row: int, neighbour: int) -> None:
        columns = self.columns
        piece, dst = columns["piece"][row], columns["dst"][row]
        known = next(
            (
                child
                for child in self.children.get(row, ())
                if columns["dst"][child] == neighbour and columns["medium"][child] == Medium.NVLINK
            ),
            None,
        )
        if known is None and (piece, neighbour) in self.arrival:
            return  # it gets the bytes another way, later
        tile = columns["tile"][row]
        columns["dst"][row] = neighbour
        self.arrival[piece, neighbour] = row
        if known is None:
            columns["tile"][row] = NO_TILE
            handed = self._add(piece, row, neighbour, dst, tile)
        else:
            # the neighbour needs the piece itself: the two change places
            columns["tile"][row] = columns["tile"][known]
            handed = known
            columns["src"][known], columns["dst"][known] = neighbour, dst
            columns["tile"][known] = tile
        mine = [child for child in self.children.get(row, ()) if child != handed]
        theirs = self.children.get(handed, []) if known is not None else []
        self.arrival[piece, dst] = handed
        self.children[row] = [handed, *theirs]
        self.children[handed] = mine
        for child in mine:
            columns["parent"][child] = handed
        for child in theirs:
            columns["parent"][child] = row

    def _holds(self, rank: int, piece: int) -> bool:
        lo, hi = self.forest.lo[piece].tolist(), self.forest.hi[piece].tolist()
        return bool(self.sources.containing(rank, Box(tuple(lo), tuple(hi))))

    def _add(self, piece: int, parent: int, src: int, dst: int, tile: int) -> int:
        """Hand a piece on over NVLink."""
        row = len(self.columns["piece"])
        values = (piece, parent, src, dst, Medium.NVLINK, Role.HANDOFF, tile)
        for name, value in zip(self.columns, values, strict=True):
            self.columns[name].append(int(value))
        if parent != ROOT:
            self.children.setdefault(parent, []).append(row)
        self.arrival[piece, dst] = row
        return row

    def build(self) -> Forest:
        """The forest, parents before children again."""
        columns = {name: np.array(values, dtype=np.int64) for name, values in self.columns.items()}
        parent = columns["parent"]
        depth = np.zeros(len(parent), dtype=np.int64)
        while True:
            deeper = np.where(parent >= 0, depth[np.maximum(parent, 0)] + 1, 0)
            if (deeper == depth).all():
                break
            depth = deeper
        order = np.argsort(depth, kind="stable")
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        columns["parent"] = np.where(parent >= 0, number[np.maximum(parent, 0)], ROOT)[order]
        rest = {name: column[order] for name, column in columns.items() if name != "parent"}
        return Forest(self.forest.members, self.forest.lo, self.forest.hi, parent=columns["parent"], **rest)
