"""Placing: which round each unit starts in.

Units of all forests and members are taken side by side, each kind at an even pace over the whole plan. A unit
goes to the round from its turn on that prolongs its slots least: where other ports are busy anyway, and its
own ports have room. No rank gets more peers in a slot than allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil

import numpy as np
from numpy.typing import NDArray

from reshard_planner.routing.forest import Forest
from reshard_planner.routing.problem import Problem
from reshard_planner.schedule.cutting import FULL, STAGING_FILL, shares
from reshard_planner.schedule.kinds import Kind, find_kinds, merge_alike
from reshard_planner.schedule.loads import Workload
from reshard_planner.schedule.values import Floats, Ints, Pace, Timing, Units, sum_by

BUSY = 0.05
"""Ports below this share of the busiest one's load are not watched."""

MOST_SHARE = 1e6
"""Largest share of a round that is told apart from larger ones."""

LARGE = 0.2
"""Share of a buffer of staging from which on a unit is kept apart from others that fill it."""

TRIES = 12
"""Rounds with room at its busiest port in which a unit is tried, before it goes beyond all others."""

ROOM = 0.02
"""Room in a round, as a share of it, below which nobody looks there."""

OVERLOAD = 0.5
"""What a load beyond a round's share costs, over what it prolongs its slot by."""

OVERFLOW = 1000.0
"""The same for staging beyond the budget, which no schedule may have."""

TIE = 1e-4
"""Shares of a round that count as nothing."""

WINDOW = 256
"""Slots in which room is looked for at once."""

BATCH = 0.5
"""Share of a round that tensors with small messages may fill together."""

Shares = NDArray[np.float32]


def assign_rounds(
    problem: Problem, forests: Sequence[Forest], workload: Workload, timings: Sequence[Timing], pace: Pace
) -> Units:
    """Choose the rounds of all units; see the module's text.

    Args:
        problem: what is compiled.
        forests: routed groups.
        workload: their loads.
        timings: their parts and chunks.
        pace: what a round is to carry.
    """
    factor = shares(workload, pace)
    totals = workload.totals * factor
    watched = np.full(len(totals), -1, dtype=np.int64)
    watch = totals > BUSY * totals.max(initial=0.0)
    watch |= _fills(forests, workload, timings, factor)
    busy = np.flatnonzero(watch)
    watched[busy] = np.arange(len(busy))
    most_peers = problem.spec.options.max_peers_per_slot
    with_peers = len(problem.spec.ranks) > most_peers + 1
    kinds: list[Kind] = []
    columns: list[tuple[Ints, ...]] = []
    turns: list[Floats] = []
    for number, (forest, loads, timing) in enumerate(zip(forests, workload.forests, timings, strict=True)):
        if not len(forest.lo):
            continue
        base = len(kinds)
        kinds.extend(
            find_kinds(problem, forest, loads, timing, workload.table, factor, watched, with_peers=with_peers)
        )
        parts = len(timing.n_chunks)
        for position, member in enumerate(forest.members):
            of_member = kinds[base + position * parts : base + (position + 1) * parts]
            unit, turn = _units(
                number, position, member.tensors, of_member, base + position * parts, pace.min_message_nbytes
            )
            columns.append(unit)
            # members differ in the parts that they run at one time, since these load different ports
            turns.append((turn + position / len(forest.members)) % 1.0)
    if not columns:
        return Units(*(np.zeros(0, dtype=np.int64) for _ in range(7)))
    forest_of, member_of, tensor, part, chunk, kind_of, batch = (
        np.concatenate([column[i] for column in columns]) for i in range(7)
    )
    turn = np.concatenate(turns)
    chunks = np.array([kind.chunks for kind in kinds], dtype=np.int64)[kind_of]
    order = np.lexsort((chunk, batch, kind_of, turn))
    merged, staged, ranks = merge_alike(
        kinds, busy >= workload.table.first_staging, len(problem.ports.domain)
    )
    round_of = _Placing(problem, merged, staged, ranks).place(order, kind_of, batch, turn)
    order = np.lexsort((chunk, part, tensor, member_of, forest_of, round_of))
    return Units(*(column[order] for column in (forest_of, member_of, tensor, part, chunk, chunks, round_of)))


def _fills(
    forests: Sequence[Forest], workload: Workload, timings: Sequence[Timing], factor: Floats
) -> NDArray[np.bool_]:
    """Whether some unit alone fills much of each buffer of staging."""
    table = workload.table
    found = np.zeros(table.count, dtype=np.bool_)
    for forest, loads, timing in zip(forests, workload.forests, timings, strict=True):
        part = np.zeros(len(loads.nbytes), dtype=np.int64)
        part[loads.root] = timing.part
        staged = np.flatnonzero(loads.port >= table.first_staging)
        key, inverse = np.unique((part[loads.tree[staged]] << 32) | loads.port[staged], return_inverse=True)
        port = key & 0xFFFFFFFF
        share = sum_by(inverse.reshape(-1), loads.load[staged], len(key)) / timing.n_chunks[key >> 32]
        for member in forest.members:
            numbers = loads.rename(table, port, member.ranks)
            found[numbers[share * factor[numbers] > LARGE]] = True
    return found


def _units(
    forest: int, member: int, tensors: tuple[int, ...], kinds: Sequence[Kind], base: int, least_message: int
) -> tuple[tuple[Ints, ...], Floats]:
    """Columns of the units of one member, and their turns, from 0 to 1.

    The last two columns are the kind and the batch, whose units share a round. The units of a kind have their
    turns at equal distances, and those of the parts between them.
    """
    columns: list[tuple[Ints, Ints, Ints, Floats]] = []
    for part, kind in enumerate(kinds):
        chunks = kind.chunks
        batches = -(-len(tensors) // _batch(kind, len(tensors), least_message))
        each = np.arange(len(tensors) * chunks, dtype=np.int64)
        batch = each // chunks * batches // len(tensors) * chunks + each % chunks
        # chunks of one tensor are as far apart as tensors are: all parts have a turn in between
        turn = (batch + (part + 0.5) / len(kinds)) / (batches * chunks)
        columns.append((np.array(tensors, dtype=np.int64)[each // chunks], each % chunks, batch, turn))
    part_of = np.repeat(np.arange(len(kinds)), [len(column[0]) for column in columns])
    tensor, chunk, batches_of, turns = zip(*columns, strict=True)
    where = np.full((2, len(part_of)), [[forest], [member]], dtype=np.int64)
    unit = (
        where[0],
        where[1],
        np.concatenate(tensor),
        part_of,
        np.concatenate(chunk),
        part_of + base,
        np.concatenate(batches_of),
    )
    return unit, np.concatenate(turns)


def _batch(kind: Kind, tensors: int, least_message: int) -> int:
    """How many tensors share a round: as many as messages need to be large, within half a round's share."""
    if kind.chunks > 1 or not kind.message:
        return 1
    most = min(tensors, ceil(least_message / kind.message))
    return max(1, min(most, int(BATCH / kind.largest))) if kind.largest else most


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """What one batch of a kind loads.

    Attributes:
        at: place of each load in the flat table of slots and ports, for round 0.
        load: shares of a round.
        starts: first load of each slot.
        slots: slots after the round.
        most: load of a port up to which a slot is not overloaded by the batch.
        buffers: loads of staging, by position.
        filled: load of each of these buffers up to which it does not overflow.
        port: the port that decides where to look for room; -1 without loads.
        slot: slots after the round at which it is loaded.
        room: what it may be loaded with before.
    """

    at: Ints
    load: Shares
    starts: Ints
    slots: Ints
    most: float
    buffers: Ints
    filled: Shares
    port: int
    slot: int
    room: float


class _Placing:
    """Loads and peers of the slots so far."""

    def __init__(
        self, problem: Problem, kinds: Sequence[Kind], staged: NDArray[np.bool_], ranks: int
    ) -> None:
        self.kinds = kinds
        self.ports = max(1, len(staged))
        self.staged = staged
        self.most_peers = problem.spec.options.max_peers_per_slot
        self.depth = max((int(kind.slot.max(initial=0)) for kind in kinds), default=0)
        self.depth = max([self.depth, *(peers.slot for kind in kinds for peers in kind.peers)])
        self.load: Shares = np.zeros((0, self.ports), dtype=np.float32)
        self.peers: NDArray[np.int32] = np.zeros((0, ranks), dtype=np.int32)
        self.flat = self.load.ravel()
        self.longest = np.zeros(0)
        self.fits: dict[tuple[int, int], _Fit] = {}
        self.talking: set[tuple[int, int]] = set()
        self.full = [0] * self.ports
        self.totals = np.zeros(self.ports)
        self.end = 0

    def place(self, order: Ints, kind_of: Ints, batch: Ints, turn: Floats) -> Ints:
        """Place all units; arguments are columns of the units, and the order to take them in."""
        starts = np.flatnonzero(
            (np.diff(kind_of[order], prepend=-1) != 0) | (np.diff(batch[order], prepend=-1) != 0)
        )
        sizes = np.diff(np.append(starts, len(order)))
        first = order[starts]
        taken = list(zip(kind_of[first].tolist(), sizes.tolist(), turn[first].tolist(), strict=True))
        rounds = self._needed(taken)
        self._grow(rounds)
        found = [self._place(kind, size, int(turn * rounds)) for kind, size, turn in taken]
        round_of = np.zeros(len(order), dtype=np.int64)
        round_of[order] = np.repeat(np.array(found, dtype=np.int64), sizes)
        return round_of

    def _needed(self, taken: list[tuple[int, int, float]]) -> int:
        """Rounds that the busiest port needs, with as many units in each as fit."""
        needed = np.zeros(self.ports)
        units: dict[tuple[int, int], int] = {}
        for kind, size, _ in taken:
            units[kind, size] = units.get((kind, size), 0) + 1
        for (kind, size), number in units.items():
            each = self.kinds[kind]
            load = each.load * (size / each.chunks)
            whole = each.whole * (size / each.chunks)
            np.add.at(needed, each.port, number * load / whole / np.maximum(1.0, np.floor(FULL / whole)))
            np.add.at(self.totals, each.port, number * load)
        return max(1, round(float(needed.max(initial=0.0))))

    def _place(self, number: int, size: int, turn: int) -> int:
        """Find the round of one batch, and load its slots."""
        kind = self.kinds[number]
        fit = self.fits.get((number, size))
        if fit is None:
            fit = self.fits[number, size] = self._fit(kind, size / kind.chunks)
        chosen, least = turn, np.inf
        for tried in self._candidates(fit, turn):
            self._grow(tried + 1)
            if not self._may_talk(kind, tried):
                continue
            cost = self._cost(fit, tried)
            if cost < least - TIE:
                chosen, least = tried, cost
            if least <= TIE or (
                tried >= self.end and (cost < OVERFLOW * LARGE or tried > self.end + self.depth)
            ):
                break
        at = fit.at + chosen * self.ports
        loaded = self.flat[at] + fit.load
        self.flat[at] = loaded
        if len(fit.starts):
            slots = fit.slots + chosen
            self.longest[slots] = np.maximum(self.longest[slots], np.maximum.reduceat(loaded, fit.starts))
        for peers in kind.peers:
            key = (chosen + peers.slot, peers.pairs)
            if key not in self.talking:
                self.talking.add(key)
                self.peers[key[0], peers.ranks] += peers.counts
        self.end = max(self.end, chosen + 1)
        return chosen

    def _fit(self, kind: Kind, scale: float) -> _Fit:
        load = np.minimum(kind.load * scale, MOST_SHARE).astype(np.float32)
        starts = np.flatnonzero(np.diff(kind.slot, prepend=-1))
        leader = int(np.argmax(self.totals[kind.port])) if len(load) else -1
        most = max(FULL, float(kind.whole.max(initial=0.0)) * scale)
        port, slot, room = -1, 0, 0.0
        if leader >= 0:
            port, slot = int(kind.port[leader]), int(kind.slot[leader])
            room = max(FULL, min(MOST_SHARE, float(kind.whole[leader]) * scale)) - float(load[leader])
        buffers = np.flatnonzero(self.staged[kind.port]) if len(load) else np.zeros(0, dtype=np.int64)
        filled = np.maximum(np.float32(1 / STAGING_FILL), load[buffers])
        at = kind.slot * self.ports + kind.port
        return _Fit(at, load, starts, kind.slot[starts], most, buffers, filled, port, slot, room)

    def _cost(self, fit: _Fit, tried: int) -> float:
        """By how much the unit would prolong the slots that it runs in, and overload them."""
        if not len(fit.starts):
            return 0.0
        loaded = self.flat[fit.at + tried * self.ports] + fit.load
        busiest = np.maximum.reduceat(loaded, fit.starts)
        longer = np.maximum(0.0, busiest - self.longest[fit.slots + tried]).sum()
        over = np.maximum(0.0, busiest - fit.most).sum()
        overflow = np.maximum(0.0, loaded[fit.buffers] - fit.filled).max(initial=0.0)
        return float(longer + OVERLOAD * over + OVERFLOW * overflow)

    def _candidates(self, fit: _Fit, turn: int) -> Iterator[int]:
        """Rounds to try from the turn on: with room at the busiest port, then after all others."""
        if fit.port >= 0:
            column = self.load[:, fit.port]
            full = self.full[fit.port]
            while full < len(column) and column[full] > FULL - ROOM:
                full += 1
            self.full[fit.port] = full
            turn = max(turn, full - fit.slot)
            window = column[turn + fit.slot : min(turn + WINDOW, self.end) + fit.slot]
            yield from (np.flatnonzero(window <= fit.room)[:TRIES] + turn).tolist()
        else:
            yield from range(turn, self.end)
        yield from count(max(self.end, turn))

    def _may_talk(self, kind: Kind, chosen: int) -> bool:
        """Whether peers stay within the limit, or the unit is the first to talk where it alone exceeds it."""
        for peers in kind.peers:
            slot = chosen + peers.slot
            if (slot, peers.pairs) in self.talking:
                continue
            before = self.peers[slot, peers.ranks]
            if ((before > 0) & (before + peers.counts > self.most_peers)).any():
                return False
        return True

    def _grow(self, rounds: int) -> None:
        """Have slots for so many rounds."""
        wanted = rounds + self.depth
        if wanted <= len(self.load):
            return
        more = max(wanted, len(self.load) * 5 // 4) - len(self.load)
        self.load = np.concatenate((self.load, np.zeros((more, self.ports), dtype=np.float32)))
        self.flat = self.load.ravel()
        self.longest = np.append(self.longest, np.zeros(more))
        self.peers = np.concatenate((self.peers, np.zeros((more, self.peers.shape[1]), dtype=np.int32)))
