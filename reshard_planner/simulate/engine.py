"""The engine of predictions: messages that share ports, between ranks that do one thing at a time.

Everything that happens within a window of time is worked out at once, in columns. What happens keeps its own
time; only the rates of messages change together, at the end of the window. A message that begins within it,
or gains or loses rate by what begins or ends there, is given the bytes that it would have moved since then,
so that ports carry no more and no less. A window of no length is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import InputError
from reshard_planner.schedule.values import BUFFERS_PER_DIRECTION
from reshard_planner.simulate.costs import Costs
from reshard_planner.simulate.fair import ordered_rates
from reshard_planner.simulate.paths import Paths
from reshard_planner.simulate.workload import RankSlots, Workload

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SAME = 1 + 1e-12
"""Times within this factor are one: their order is rounding, and shares are computed once for all of them."""


def host_order(rows: RankSlots, lag: int) -> tuple[Ints, Bools]:
    """What ranks do in turn: rows of theirs, and whether they finish or begin them.

    A rank begins its slots in order. Before it begins one, it finishes the one that is two before, and all
    that are ``lag`` slots or more before.

    Args:
        rows: what each rank does in each of its slots.
        lag: slots between a message and one that sends on what it brought.

    Returns:
        The row of each act, rank by rank, int64 of shape (2 x rank slots,), and whether it is finished then.

    >>> rank, nothing = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    >>> row, ends = host_order(RankSlots(rank, np.array([0, 5]), *[nothing] * 6), 2)
    >>> [(at, "finish" if done else "begin") for at, done in zip(row.tolist(), ends.tolist())]
    [(0, 'begin'), (0, 'finish'), (1, 'begin'), (1, 'finish')]
    """
    count = len(rows)
    number = np.arange(count)
    span = int(rows.slot.max(initial=0)) + lag + 1
    late = np.searchsorted(rows.rank * span + rows.slot, rows.rank * span + rows.slot + lag)
    end_of_rank = np.searchsorted(rows.rank, rows.rank, side="right")
    before = np.minimum(np.minimum(late, number + BUFFERS_PER_DIRECTION), end_of_rank)
    row = np.concatenate((number, number))
    ends = np.arange(2 * count) >= count
    order = np.lexsort((row, np.concatenate((2 * number + 1, 2 * before)), rows.rank[row]))
    return row[order], ends[order]


class Engine:
    """One run.

    Args:
        workload: what is to be done.
        paths: ports of its messages.
        costs: what the ranks' own work costs.
        window_s: length of a window, in seconds; 0 for an exact run.

    Attributes:
        workload: what is to be done.
        latency_s: time from when both ends have posted each message until it flows, in seconds, float64 of
            shape (messages,).
        buffered: whether its sender is done with it then, bool, likewise.
        end_of_rank: end of each rank, in seconds since the run began, float64 by rank number.
        start_s: when both ends of each message have posted it, float64 of shape (messages,).
        end_s: when its last byte has arrived, likewise.
        posted_s: when each rank has posted the messages of each of its slots, float64 of shape (rank slots,).
        unpacked_s: when it has unpacked what that slot brought, likewise.
        begin_s: time that it takes to copy, pack and post, likewise.
        unpack_s: time that it takes to unpack, likewise.
        windows: number of windows so far.
        arrived: number of messages whose last byte has arrived so far.
    """

    def __init__(self, workload: Workload, paths: Paths, costs: Costs, window_s: float) -> None:
        self.workload = workload
        rows, messages = workload.rank_slots, workload.messages
        count = len(messages)
        self.window_s = window_s
        used = (paths.ports < len(paths.names)).any(axis=0)
        self.ports: Ints = np.ascontiguousarray(paths.ports[:, used])
        self.bytes_per_s, self.latency_s = paths.bytes_per_s, paths.latency_s
        self.sender, self.receiver = workload.sender, workload.receiver
        self.slot, self.nbytes = messages.slot, messages.nbytes.astype(np.float64)
        self.buffered: Bools = messages.nbytes <= costs.buffered_nbytes
        per_byte = costs.pack_s_per_byte
        begin_s = costs.slot_s + (rows.copy_nbytes + rows.pack_nbytes) * per_byte
        self.begin_s: Floats = np.asarray(begin_s + rows.posted * costs.message_s, dtype=np.float64)
        self.unpack_s: Floats = np.asarray(rows.unpack_nbytes * per_byte, dtype=np.float64)
        # messages of each row
        ends = np.concatenate((workload.sender, workload.receiver))
        order = np.argsort(ends, kind="stable")
        self.of_row: Ints = (order % max(1, count)).astype(np.int64)
        self.open: Ints = np.bincount(ends, minlength=len(rows))
        self.first_of_row: Ints = np.cumsum(self.open) - self.open
        self.count_of_row = self.open.copy()
        # ranks, and what they do in turn
        self.act_row, self.act_ends = host_order(rows, workload.lag)
        ranks, starts, counts = np.unique(rows.rank, return_index=True, return_counts=True)
        self.rank_of_row: Ints = np.repeat(np.arange(len(ranks)), counts)
        self.act: Ints = 2 * starts
        self.last_act: Ints = 2 * (starts + counts)
        self.until: Floats = np.full(len(ranks), np.inf)
        self.free_s = np.zeros(len(ranks))
        self.waiting = np.zeros(len(rows), dtype=bool)
        self.closed_s, self.posted_s, self.unpacked_s = (np.zeros(len(rows)) for _ in range(3))
        self.ranks = ranks
        # messages that are posted, to begin, and under way
        self.posted = np.zeros(count, dtype=np.int8)
        self.start_s, self.end_s = np.zeros(count), np.zeros(count)
        self.pending, self.pending_s = np.zeros(0, dtype=np.int64), np.zeros(0)
        self.flowing = np.zeros(0, dtype=np.int64)
        self.left, self.rate, self.due = np.zeros(0), np.zeros(0), np.zeros(0)
        self.since = 0.0
        self.windows = 0
        self.end_of_rank = np.zeros(max(workload.ranks, default=-1) + 1)
        self.arrived = 0

    def start(self) -> None:
        """Let all ranks do the first thing."""
        self._take_turn(np.arange(len(self.ranks)))

    def next_window(self) -> bool:
        """Go through the next window in which anything happens; False once nothing does.

        Raises:
            InputError: if ranks wait for each other, so that some messages never arrive.
        """
        now = min(
            float(self.due.min(initial=np.inf)),
            float(self.until.min(initial=np.inf)),
            float(self.pending_s.min(initial=np.inf)),
        )
        if now == np.inf:
            if self.arrived < len(self.nbytes):
                raise InputError(
                    f"the workload has {len(self.nbytes)} messages, of which {self.arrived} arrive: its ranks"
                    " wait for each other; expected slots that all ranks can take in order"
                )
            self.end_of_rank[self.ranks] = self.free_s
            return False
        horizon = max(now * SAME, now + self.window_s)
        self.windows += 1
        staying = self.due > horizon
        arrived = np.flatnonzero(~staying)
        if len(arrived):
            self._arrive(self.flowing[arrived], self.due[arrived])
        started: list[tuple[Ints, Floats]] = []
        while True:
            ready = np.flatnonzero(self.until <= horizon)
            if len(ready):
                self._end_act(ready)
            begins = self.pending_s <= horizon
            if begins.any():
                started.append((self.pending[begins], self.pending_s[begins]))
                self.pending, self.pending_s = self.pending[~begins], self.pending_s[~begins]
                self._start(*started[-1])
            elif not len(ready):
                break
        self._share(now + self.window_s, staying, arrived, started)
        return True

    def _end_act(self, ranks: Ints) -> None:
        """Ranks are through with what they did: they post messages, or are free, and take another turn."""
        row, ends, time = self.act_row[self.act[ranks]], self.act_ends[self.act[ranks]], self.until[ranks]
        self.free_s[ranks] = time
        self.unpacked_s[row[ends]] = time[ends]
        begun = ~ends
        if begun.any():
            rows, times = row[begun], time[begun]
            self.posted_s[rows] = times
            counts = self.count_of_row[rows]
            shift = np.cumsum(counts) - counts
            at = np.arange(int(counts.sum())) + np.repeat(self.first_of_row[rows] - shift, counts)
            self._post(self.of_row[at], np.repeat(times, counts))
        self.act[ranks] += 1
        self._take_turn(ranks)

    def _post(self, messages: Ints, times: Floats) -> None:
        """One end posts messages; those that both have posted start after their latency."""
        np.add.at(self.posted, messages, 1)
        np.maximum.at(self.start_s, messages, times)
        both = np.unique(messages[self.posted[messages] == 2])
        if len(both):
            self.pending = np.concatenate((self.pending, both))
            self.pending_s = np.concatenate((self.pending_s, self.start_s[both] + self.latency_s[both]))

    def _take_turn(self, ranks: Ints) -> None:
        """Let ranks that are free do the next thing."""
        self.until[ranks] = np.inf
        ranks = ranks[self.act[ranks] < self.last_act[ranks]]
        row, ends = self.act_row[self.act[ranks]], self.act_ends[self.act[ranks]]
        begins = ~ends
        self.until[ranks[begins]] = self.free_s[ranks[begins]] + self.begin_s[row[begins]]
        closed = ends & (self.open[row] == 0)
        self._unpack(ranks[closed], row[closed])
        self.waiting[row[ends & ~closed]] = True

    def _unpack(self, ranks: Ints, rows: Ints) -> None:
        self.until[ranks] = np.maximum(self.free_s[ranks], self.closed_s[rows]) + self.unpack_s[rows]

    def _start(self, messages: Ints, times: Floats) -> None:
        """Messages begin to flow; senders are done with those that are buffered."""
        buffered = self.buffered[messages]
        if buffered.any():
            self._close(self.sender[messages[buffered]], times[buffered])

    def _arrive(self, messages: Ints, times: Floats) -> None:
        """The last bytes of messages have come."""
        self.end_s[messages] = times
        self.arrived += len(messages)
        waiting = ~self.buffered[messages]
        self._close(
            np.concatenate((self.receiver[messages], self.sender[messages[waiting]])),
            np.concatenate((times, times[waiting])),
        )

    def _close(self, rows: Ints, times: Floats) -> None:
        """Ranks are done with messages of their slots."""
        np.subtract.at(self.open, rows, 1)
        np.maximum.at(self.closed_s, rows, times)
        last = rows[self.waiting[rows] & (self.open[rows] == 0)]
        if len(last):
            last = np.unique(last)
            self.waiting[last] = False
            self._unpack(self.rank_of_row[last], last)

    def _share(self, now: float, staying: Bools, arrived: Ints, started: list[tuple[Ints, Floats]]) -> None:
        """At the end of a window, change the rates of what flows."""
        if not len(arrived) and not started:
            return
        gone_ports, gone_rate = self.ports[self.flowing[arrived]], self.rate[arrived]
        back = now - self.due[arrived]
        rate = self.rate[staying]
        left = self.left[staying] - rate * (now - self.since)
        flowing = self.flowing[staying]
        if len(arrived) and (self.window_s or not started):
            found = self._rates(flowing)
            left -= (found - rate) * self._delays(flowing, gone_ports, gone_rate, back)
            rate = found
        if started:
            new, new_s = (np.concatenate(each) for each in zip(*started, strict=True))
            everything = np.concatenate((flowing, new))
            found = self._rates(everything)
            old, mine = found[: len(flowing)], found[len(flowing) :]
            if self.window_s:
                left -= (old - rate) * self._delays(flowing, self.ports[new], mine, now - new_s)
            left = np.concatenate((left, self.nbytes[new] - mine * (now - new_s)))
            flowing, rate = everything, found
        self.flowing, self.left, self.rate, self.since = flowing, left, rate, now
        self.due = np.full(len(rate), np.inf)
        np.divide(left, rate, out=self.due, where=rate > 0)
        self.due += now

    def _rates(self, flowing: Ints) -> Floats:
        return ordered_rates(self.ports[flowing], self.slot[flowing], self.bytes_per_s)

    def _delays(self, flowing: Ints, ports: Ints, rate: Floats, back: Floats) -> Floats:
        """How long before the end of the window the rate of each message has changed.

        Ports change by what begins or ends there. A message changes as they do, on average of all these
        rates; one whose ports do not change, as all others do on average.

        Args:
            flowing: the messages.
            ports: ports of what begins or ends, one row each.
            rate: its rate.
            back: how long before the end of the window it begins or ends.
        """
        size = len(self.bytes_per_s)
        weight, delay = np.zeros(size), np.zeros(size)
        for row in ports.T:
            weight += np.bincount(row, rate, size)
            delay += np.bincount(row, rate * back, size)
        weight[-1], delay[-1] = 0.0, 0.0  # of no port
        passed = np.ascontiguousarray(self.ports[flowing].T)
        total: Floats = weight[passed].sum(axis=0)
        found: Floats = delay[passed].sum(axis=0)
        everything = float(rate.sum())
        mean = float(rate @ back) / everything if everything else 0.0
        np.divide(found, total, out=found, where=total > 0)
        found[total <= 0] = mean
        return found
