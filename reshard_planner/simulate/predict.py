"""Predictions, from event to event: messages that share ports, between ranks that do one thing at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.plan import Plan
from reshard_planner.schedule.values import BUFFERS_PER_DIRECTION
from reshard_planner.simulate.costs import FREE, Costs
from reshard_planner.simulate.fair import ranked_rates
from reshard_planner.simulate.paths import Paths
from reshard_planner.simulate.values import Intervals, PortUse, Prediction
from reshard_planner.simulate.workload import Workload
from reshard_planner.topology import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

POSTED, STARTED, UNPACKED = range(3)
"""Events: a rank has posted all messages of a slot, a message begins to flow, a rank has unpacked a slot."""

SAME = 1 + 1e-12
"""Times within this factor are one: their order is rounding, and shares are computed once for all of them."""


def predict(plan: Plan, costs: Costs = FREE, *, topology: Topology | None = None) -> Prediction:
    """Predict a run of a plan, as executors run it.

    A rank does one thing at a time. To begin a slot it copies, packs, and posts all its messages; it begins
    one as soon as at most one slot is in flight before it and every own slot that is ``lag`` or more
    before it has finished. To finish a slot it waits for all its messages and unpacks. A message starts when
    both ends have posted it, and takes the largest latency of the ports that it passes. Then ports serve
    messages of earlier slots first, as queues do, and those of one slot have max-min fair shares. The sender
    is done with a message when it has gone, or as soon as it starts if the transport buffers all of it.

    Args:
        plan: the plan.
        costs: what the ranks' own work costs.
        topology: a cluster in place of that of the plan, as with measured links; see
            :func:`reshard_planner.simulate.costs.with_link_costs`.

    Raises:
        VerificationError: if the plan cannot be lowered to programs, or its media contradict the topology.
        TopologyError: if a rank runs on no GPU of the topology.
        UnsupportedError: if GPUs share some of their NICs and not others.
    """
    return predict_workload(Workload.of(plan), plan.spec.topology if topology is None else topology, costs)


def predict_workload(workload: Workload, topology: Topology, costs: Costs = FREE) -> Prediction:
    """Predict a run of a workload; as :func:`predict`, for one plan under many costs.

    Raises:
        MediumError: if a message over the network comes from or goes to a rank without a NIC.
        TopologyError: if a rank runs on no GPU of the topology.
        UnsupportedError: if GPUs share some of their NICs and not others.
    """
    paths = Paths.of(workload, topology)
    run = _Run(workload, paths, costs)
    run.finish()
    messages = workload.messages
    elapsed_s = float(run.end_of_rank.max(initial=0.0))
    return Prediction(
        elapsed_s,
        run.end_of_rank,
        tuple(_uses(paths, messages.nbytes, elapsed_s)),
        Intervals(
            messages.src,
            messages.dst,
            messages.slot,
            messages.medium,
            messages.nbytes,
            run.start_s,
            run.end_s,
        ),
    )


def _uses(paths: Paths, nbytes: Ints, elapsed_s: float) -> Iterator[PortUse]:
    """Bytes and utilisation of all ports that carry any."""
    carried = np.zeros(len(paths.bytes_per_s), dtype=np.int64)
    np.add.at(carried, paths.ports, nbytes[:, np.newaxis])
    for port in np.flatnonzero(carried[:-1]).tolist():
        rate, total = float(paths.bytes_per_s[port]), int(carried[port])
        yield PortUse(paths.names[port], total, rate, total / rate / elapsed_s)


def host_order(slots: Sequence[int], lag: int) -> Iterator[tuple[int, bool]]:
    """What a rank does in turn: positions of its slots, and whether it finishes or begins them.

    Args:
        slots: numbers of its slots, ascending.
        lag: slots between a message and one that sends on what it brought.

    >>> [(position, "finish" if ends else "begin") for position, ends in host_order([0, 5], 2)]
    [(0, 'begin'), (0, 'finish'), (1, 'begin'), (1, 'finish')]
    """
    flying: deque[int] = deque()
    for at, number in enumerate(slots):
        while flying and (len(flying) >= BUFFERS_PER_DIRECTION or slots[flying[0]] <= number - lag):
            yield flying.popleft(), True
        yield at, False
        flying.append(at)
    yield from ((at, True) for at in flying)


class _Run:
    """One run: messages in flight, and a queue of the events to come."""

    def __init__(self, workload: Workload, paths: Paths, costs: Costs) -> None:
        rows, count = workload.rank_slots, len(workload.messages)
        self.paths, self.workload = paths, workload
        self.latency: list[float] = paths.latency_s.tolist()
        self.ends = list(zip(workload.sender.tolist(), workload.receiver.tolist(), strict=True))
        self.of_row: list[list[int]] = [[] for _ in range(len(rows))]
        for message, (sender, receiver) in enumerate(self.ends):
            self.of_row[sender].append(message)
            self.of_row[receiver].append(message)
        per_byte = costs.pack_s_per_byte
        self.open = [len(messages) for messages in self.of_row]
        begin = costs.slot_s + (rows.copy_nbytes + rows.pack_nbytes) * per_byte
        begin += rows.posted * costs.message_s
        self.begin_s: list[float] = begin.tolist()
        self.unpack_s: list[float] = (rows.unpack_nbytes * per_byte).tolist()
        self.buffered: list[bool] = (workload.messages.nbytes <= costs.buffered_nbytes).tolist()
        self.posted_once = [False] * count
        self.waiting = [False] * len(rows)
        self.rank: list[int] = rows.rank.tolist()
        self.first_row: dict[int, int] = {}
        self.turns: dict[int, Iterator[tuple[int, bool]]] = {}
        self.end_of_rank: Floats = np.zeros(max(workload.ranks, default=-1) + 1)
        self.start_s: Floats = np.zeros(count)
        self.end_s: Floats = np.zeros(count)
        self.queue: list[tuple[float, int, int]] = []
        self.starting: list[int] = []
        self.flowing: Ints = np.zeros(0, dtype=np.int64)
        self.left: Floats = np.zeros(0)
        self.rate: Floats = np.zeros(0)
        self.due: Floats = np.zeros(0)
        self.since = 0.0

    def finish(self) -> None:
        """Run from the first event to the last."""
        slots = self.workload.rank_slots.slot.tolist()
        bounds = np.flatnonzero(np.diff(self.workload.rank_slots.rank, prepend=-1, append=-1)).tolist()
        for start, stop in pairwise(bounds):
            rank = self.rank[start]
            self.first_row[rank] = start
            self.turns[rank] = host_order(slots[start:stop], self.workload.lag)
            self._go_on(rank, 0.0)
        while self.queue or len(self.flowing):
            now = min(float(self.due.min(initial=np.inf)), self.queue[0][0] if self.queue else np.inf)
            horizon = now * SAME
            arrived = self.due <= horizon
            for message in self.flowing[arrived].tolist():
                self._arrive(message, now)
            while self.queue and self.queue[0][0] <= horizon:
                _, kind, number = heappop(self.queue)
                self._happen(kind, number, now)
            if self.starting or arrived.any():
                self._share(now, ~arrived)

    def _share(self, now: float, staying: NDArray[np.bool_]) -> None:
        """Let the messages that start flow with those that stay, at new rates."""
        left = self.left[staying] - self.rate[staying] * (now - self.since)
        new = np.array(self.starting, dtype=np.int64)
        self.starting.clear()
        self.flowing = np.concatenate((self.flowing[staying], new))
        self.left = np.concatenate((left, self.workload.messages.nbytes[new]))
        slots = self.workload.messages.slot[self.flowing]
        self.rate = ranked_rates(self.paths.ports[self.flowing], slots, self.paths.bytes_per_s)
        self.due = np.full(len(self.rate), np.inf)
        np.divide(self.left, self.rate, out=self.due, where=self.rate > 0)
        self.due += now
        self.since = now

    def _happen(self, kind: int, number: int, now: float) -> None:
        """An event, at a row or a message."""
        if kind == STARTED:
            self.starting.append(number)
            if self.buffered[number]:
                self._close(self.ends[number][0], now)
            return
        if kind == POSTED:
            for message in self.of_row[number]:
                if self.posted_once[message]:
                    self.start_s[message] = now
                    heappush(self.queue, (now + self.latency[message], STARTED, message))
                self.posted_once[message] = True
        self._go_on(self.rank[number], now)

    def _go_on(self, rank: int, now: float) -> None:
        """Let a rank that has done one thing do the next."""
        at, ends = next(self.turns[rank], (-1, False))
        row = self.first_row[rank] + at
        if at < 0:
            self.end_of_rank[rank] = now
        elif not ends:
            heappush(self.queue, (now + self.begin_s[row], POSTED, row))
        elif self.open[row]:
            self.waiting[row] = True
        else:
            heappush(self.queue, (now + self.unpack_s[row], UNPACKED, row))

    def _arrive(self, message: int, now: float) -> None:
        """The last byte of a message has come."""
        self.end_s[message] = now
        sender, receiver = self.ends[message]
        self._close(receiver, now)
        if not self.buffered[message]:
            self._close(sender, now)

    def _close(self, row: int, now: float) -> None:
        """A rank is done with a message of a slot."""
        self.open[row] -= 1
        if self.waiting[row] and not self.open[row]:
            heappush(self.queue, (now + self.unpack_s[row], UNPACKED, row))
