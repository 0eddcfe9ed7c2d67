"""Rounds: which units go into which.

Units go into rounds one by one, in order of their turns, each into the round that it prolongs least. There
are two ways to look for that round: from the unit's turn on, which keeps the pattern of plans whose forests
are all alike, and among rounds spread over the whole plan, which finds room where they are not. Whichever
gives the shorter schedule is kept. No rank gets more peers in a slot than allowed.

The constants were found by trial on the models of ``docs/published.md`` and of the benchmarks' suites (see
``docs/adr/0024``). What others would give is said beside each: by how much the sum over slots of the busiest
port changes, on average over the suite ``models``, four of ``whole`` and the tensors of 64 GPUs, and for the
worst of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.schedule.cutting import FULL, STAGING_FILL
from reshard_planner.schedule.kinds import Kind
from reshard_planner.schedule.round_size import TIE, Batches, Need
from reshard_planner.schedule.values import Floats, Ints

MOST_SHARE = 1e6
"""Largest share of a round that is told apart from larger ones."""

LARGE = 0.2
"""Share of a buffer of staging from which on a unit is kept apart from others that fill it.

Half and double change nothing.
"""

FEW_TRIES = 12
"""Most rounds with room at its busiest port that a unit is tried in, from its turn on.

With 6 the sum is 0.2 % longer (2.4 %); 24 change it by less than 0.1 % (1.5 %).
"""

TRIES = 128
"""The same, spread over the whole plan.

With 64 the sum is 0.3 % longer (2.6 %) in 0.8 of the time to place; with 256 0.1 % shorter in 1.5 of it.
"""

MOST_ASKED = 16
"""Of these, the best that are asked whether peers stay within the limit.

With 4 the sum is 0.1 % longer (0.6 %); 64 change nothing.
"""

STRIDE = 5
"""Rounds with room by which those that are tried shift from unit to unit.

1 and 11 change the sum by less than 0.1 % (0.8 %).
"""

WINDOW = 256
"""Rounds from its turn on in which room for a unit is looked for.

With 64 the sum is up to 0.3 % longer; 1024 change nothing.
"""

OVERLOAD = 0.5
"""What a load beyond a round's share costs, over what it prolongs its slot by.

With 0 the sum is 0.2 % longer (1.2 %), with 0.25 0.1 % (1.7 %); 1 changes it by less than 0.1 % (0.8 %).
"""

LEVEL = 0.1
"""What the load of its busiest port costs where a unit may go anywhere in the plan.

With 0 the sum is 0.4 % longer (1.8 %), with 0.05 0.1 % (0.7 %); with 0.2 0.1 % shorter.
"""

OVERFLOW = 1000.0
"""What staging beyond the budget costs, which no schedule may have.

A tenth changes the sum by less than 0.1 % (0.5 %); with ten times as much it is 0.1 % longer (1.1 %).
"""

UNEVEN = 0.4
"""What slots are longer than a round, over the largest unit, where units may go anywhere (measured).

With 0 the sum is 0.7 % longer (11.7 %); half and double change nothing.
"""

NEARLY_IDEAL = 1.05
"""Sum of the slots, over the least possible, up to which no other way is tried.

A choice of ADR 24, to save the time of the second way. From 1.0 to 1.1 it changes nothing else.
"""

Shares = NDArray[np.float32]


def fill_rounds(
    kinds: Sequence[Kind],
    staged: NDArray[np.bool_],
    ranks: int,
    batches: Batches,
    *,
    most_peers: int,
    alpha: float,
    filling: int,
) -> Ints:
    """The round of each batch, the first of them 0; see the module's text.

    Args:
        kinds: what units load.
        staged: whether each port is a buffer of staging.
        ranks: number of ranks that peers are counted for.
        batches: what is to be placed.
        most_peers: most peers that a rank may have in a slot.
        alpha: start-up time of a slot, as a share of a round.
        filling: rounds that it takes to fill the pipeline, packing and unpacking included.
    """
    need = Need.of(kinds, staged, batches)
    best, found = np.inf, np.zeros(len(batches.kind), dtype=np.int64)
    for anywhere, uneven in ((False, 0.0), (True, UNEVEN)):
        scale, rounds = need.choose(alpha, filling, uneven)
        slots = _Rounds(kinds, staged, ranks, scale, most_peers, alpha * scale, anywhere=anywhere)
        placed = slots.place(batches, rounds)
        length = slots.length()
        cost = (length + filling) / scale + int(slots.used.sum()) * alpha
        if cost < best:
            best, found = cost, placed
        if length <= NEARLY_IDEAL * slots.least():
            break
    return found - found.min() if len(found) else found


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


class _Rounds:
    """Loads and peers of the slots so far.

    Args:
        kinds: what units load.
        staged: whether each port is a buffer of staging.
        ranks: number of ranks that peers are counted for.
        scale: what turns shares of the pace's rounds into shares of these.
        most_peers: most peers that a rank may have in a slot.
        alpha: start-up time of a slot, as a share of one of these rounds.
        anywhere: whether units may go anywhere in the plan, or from their turns on.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        staged: NDArray[np.bool_],
        ranks: int,
        scale: float,
        most_peers: int,
        alpha: float,
        *,
        anywhere: bool,
    ) -> None:
        self.kinds = kinds
        self.ports = max(1, len(staged))
        self.staged = staged
        self.scale = scale
        self.most_peers = most_peers
        self.alpha = alpha
        self.anywhere = anywhere
        self.depth = max((int(kind.slot.max(initial=0)) for kind in kinds), default=0)
        self.depth = max([self.depth, *(peers.slot for kind in kinds for peers in kind.peers)])
        self.load: Shares = np.zeros((0, self.ports), dtype=np.float32)
        self.peers: NDArray[np.int32] = np.zeros((0, ranks), dtype=np.int32)
        self.flat = self.load.ravel()
        self.longest = np.zeros(0)
        self.used = np.zeros(0, dtype=np.bool_)
        self.fits: dict[tuple[int, int], _Fit] = {}
        self.talking: set[tuple[int, int]] = set()
        self.totals = np.zeros(self.ports)
        self.end = 0
        self.placed = 0

    def place(self, batches: Batches, rounds: int) -> Ints:
        """The round of each batch, where the busiest port needs so many rounds."""
        taken = list(zip(batches.kind.tolist(), batches.size.tolist(), batches.turn.tolist(), strict=True))
        for number, size, _ in taken:
            kind = self.kinds[number]
            np.add.at(self.totals, kind.port, kind.load * (size / kind.chunks))
        self._grow(rounds)
        if self.anywhere:
            self.end = rounds
            self.longest[:rounds] = 1.0  # the busiest port needs them anyway
        found = [self._place(kind, size, int(turn * rounds)) for kind, size, turn in taken]
        return np.array(found, dtype=np.int64)

    def length(self) -> float:
        """Sum over all slots of what the busiest port does, in shares of a round."""
        time = self.load[:, ~self.staged]
        return float(time.max(axis=1, initial=0.0).sum())

    def least(self) -> float:
        """What the busiest port does in all slots."""
        time = self.load[:, ~self.staged]
        return float(time.sum(axis=0, dtype=np.float64).max(initial=0.0))

    def _place(self, number: int, size: int, turn: int) -> int:
        """Find the round of one batch, and load its slots."""
        kind = self.kinds[number]
        fit = self.fits.get((number, size))
        if fit is None:
            fit = self.fits[number, size] = self._fit(kind, size / kind.chunks)
        chosen = self._choose(kind, fit, turn) if len(fit.starts) else self._first(kind, turn)
        at = fit.at + chosen * self.ports
        loaded = self.flat[at] + fit.load
        self.flat[at] = loaded
        if len(fit.starts):
            slots = fit.slots + chosen
            self.longest[slots] = np.maximum(self.longest[slots], np.maximum.reduceat(loaded, fit.starts))
            self.used[slots] = True
        for peers in kind.peers:
            key = (chosen + peers.slot, peers.pairs)
            if key not in self.talking:
                self.talking.add(key)
                self.peers[key[0], peers.ranks] += peers.counts
        self.end = max(self.end, chosen + 1)
        self.placed += 1
        return chosen

    def _fit(self, kind: Kind, part: float) -> _Fit:
        scale = np.where(self.staged[kind.port], part, part * self.scale)
        load = np.minimum(kind.load * scale, MOST_SHARE).astype(np.float32)
        whole = np.minimum(kind.whole * scale, MOST_SHARE)
        starts = np.flatnonzero(np.diff(kind.slot, prepend=-1))
        leader = int(np.argmax(self.totals[kind.port])) if len(load) else -1
        most = max(FULL, float(whole.max(initial=0.0)))
        port, slot, room = -1, 0, 0.0
        if leader >= 0:
            port, slot = int(kind.port[leader]), int(kind.slot[leader])
            room = max(FULL, float(whole[leader])) - float(load[leader]) + TIE
        buffers = np.flatnonzero(self.staged[kind.port]) if len(load) else np.zeros(0, dtype=np.int64)
        filled = np.maximum(np.float32(1 / STAGING_FILL), load[buffers])
        at = kind.slot * self.ports + kind.port
        return _Fit(at, load, starts, kind.slot[starts], most, buffers, filled, port, slot, room)

    def _choose(self, kind: Kind, fit: _Fit, turn: int) -> int:
        """The round that one batch prolongs least: one of those with room, or the first after all others."""
        after = self.end if self.anywhere else max(self.end, turn)
        self._grow(after + 1)
        tried = np.append(self._with_room(fit, turn), after)
        cost = self._cost(fit, tried) + np.linspace(0, TIE, len(tried))
        for at in np.argsort(cost, kind="stable")[:MOST_ASKED].tolist():
            if cost[at] < np.inf and self._may_talk(kind, int(tried[at])):
                return int(tried[at])
        # beyond all others what earlier units forward may still fill buffers, or talk
        self._grow(after + self.depth + 2)
        fresh = np.arange(after, after + self.depth + 1)
        for chosen in fresh[self._cost(fit, fresh) < np.inf].tolist():
            if self._may_talk(kind, chosen):
                return int(chosen)
        return self._first(kind, after + self.depth + 1)

    def _first(self, kind: Kind, chosen: int) -> int:
        """The first round from one on in which peers stay within the limit."""
        self._grow(chosen + 1)
        while not self._may_talk(kind, chosen):
            chosen += 1
            self._grow(chosen + 1)
        return chosen

    def _with_room(self, fit: _Fit, turn: int) -> Ints:
        """Rounds to try, with room at the busiest port: the first from the turn on, or some of all."""
        first, last = (0, self.end) if self.anywhere else (turn, min(turn + WINDOW, self.end))
        found = np.flatnonzero(self.load[first + fit.slot : last + fit.slot, fit.port] <= fit.room) + first
        if not self.anywhere:
            return found[:FEW_TRIES]
        if len(found) > TRIES:
            found = found[(np.arange(TRIES) * len(found) // TRIES + STRIDE * self.placed) % len(found)]
        return found

    def _cost(self, fit: _Fit, tried: Ints) -> Floats:
        """By how much the batch would prolong the slots that it runs in, and overload them, per round.

        Infinite where it would fill a buffer that others fill.
        """
        loaded = self.flat[fit.at + tried[:, None] * self.ports] + fit.load
        busiest = np.maximum.reduceat(loaded, fit.starts, axis=1)
        longer = np.maximum(0.0, busiest - self.longest[fit.slots + tried[:, None]]).sum(axis=1)
        over = np.maximum(0.0, busiest - fit.most).sum(axis=1)
        overflow = np.maximum(0.0, loaded[:, fit.buffers] - fit.filled).max(axis=1, initial=0.0)
        opened = self.alpha * (~self.used[fit.slots + tried[:, None]]).sum(axis=1)
        cost: Floats = longer + OVERLOAD * over + opened
        cost += np.where(overflow > LARGE, np.inf, OVERFLOW * (1 + self.alpha) * overflow)
        return cost + LEVEL * busiest.max(axis=1) if self.anywhere else cost

    def _may_talk(self, kind: Kind, chosen: int) -> bool:
        """Whether peers stay within the limit, or the unit is the first to talk where it alone exceeds it."""
        fresh = [peers for peers in kind.peers if (chosen + peers.slot, peers.pairs) not in self.talking]
        for slot in {peers.slot for peers in fresh}:
            row = self.peers[chosen + slot]
            after = row.copy()
            for peers in fresh:
                if peers.slot == slot:
                    after[peers.ranks] += peers.counts
            if ((row > 0) & (after > row) & (after > self.most_peers)).any():
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
        self.used = np.append(self.used, np.zeros(more, dtype=np.bool_))
        self.peers = np.concatenate((self.peers, np.zeros((more, self.peers.shape[1]), dtype=np.int32)))
