"""Probe: two ranks measure latency and rates of their connection; the lower one leads.

The leader gives orders, and the other one follows them until it hears the end. Messages of a rate go in
trains, one right after the other. Whoever receives a train times it, from the end of its first message to the
end of its last one: neither latency nor what a link lets pass at once after a pause counts then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from statistics import median
from typing import Final

from reshard_executors.measure.exchange import Exchange
from reshard_executors.measure.samples import PairSample, Rate

TRAINS: Final = 3
"""Trains of the largest messages, whose median is the rate."""

MOST_COUNT: Final = 64
"""Small messages, and messages of a train, at most."""

PING_SHARE: Final = 0.1
ONE_WAY_SHARE: Final = 0.3
BOTH_SHARE: Final = 0.2
"""Shares of a pair's time: for latency, for each direction, and for both at the same time."""

LARGEST_SHARE: Final = 0.75
"""Share of the time of a direction that its largest messages have; the others find out which these are."""

WARM_UP: Final = 3
"""Small messages that come first, and trains that find out how much fits into the time."""

FIRST_NBYTES: Final = 2**16
"""The first of these trains, and what slow connections are measured with."""


class Order(IntEnum):
    """What the follower does, so many times, with trains of so many messages after the first one."""

    END = 0
    PING = 1
    """It answers a message with one of its size."""
    UP = 2
    """It receives a train, and tells how long that took."""
    DOWN = 3
    """It sends a train."""
    BOTH = 4
    """It swaps trains."""


def follow(exchange: Exchange, leader: int) -> None:
    """Do what another rank orders, until it says the end."""
    while True:
        kind, nbytes, length, count = exchange.hear(leader)
        if kind == Order.END:
            return
        for _ in range(count):
            match Order(kind):
                case Order.PING:
                    exchange.receive(leader, nbytes)
                    exchange.send(leader, nbytes)
                case Order.UP:
                    passed_ns = _timed_ns(partial(exchange.receive, leader, nbytes), length)
                    exchange.tell(leader, passed_ns, 0, 0, 0)
                case Order.DOWN:
                    _timed_ns(partial(exchange.send, leader, nbytes), length)
                case _:
                    _timed_ns(partial(exchange.swap, leader, nbytes), length)


def _timed_ns(move: Callable[[], None], length: int) -> int:
    """Move a train; how long that took after its first message, in nanoseconds."""
    move()
    begin = time.perf_counter_ns()
    for _ in range(length):
        move()
    return max(1, time.perf_counter_ns() - begin)


class Leader:
    """The rank of a pair that measures."""

    def __init__(self, exchange: Exchange, rank: int, peer: int) -> None:
        """Take the lead.

        Args:
            exchange: of this rank.
            rank: of this process.
            peer: which follows.
        """
        self._exchange, self._rank, self._peer = exchange, rank, peer

    def measure(self, small_nbytes: int, sizes: Sequence[int], span_s: float) -> PairSample:
        """Measure with the other rank, which must :func:`follow`.

        Args:
            small_nbytes: message that latency is measured with.
            sizes: of larger messages, ascending; those are taken that there is time for.
            span_s: how long it may take, beside connecting and trains that are as short as can be.
        """
        self._pings(small_nbytes, WARM_UP)  # connects
        first_s = median(self._pings(small_nbytes, WARM_UP))
        round_trips_s = self._pings(small_nbytes, max(WARM_UP, _fitting(PING_SHARE * span_s, first_s)))
        up = self._rates(Order.UP, sizes, ONE_WAY_SHARE * span_s)
        down = self._rates(Order.DOWN, sizes, ONE_WAY_SHARE * span_s)
        slower = min(up[-1], down[-1], key=lambda rate: rate.bytes_per_s)
        length = _following(BOTH_SHARE * span_s / TRAINS, slower.nbytes / slower.bytes_per_s)
        both = self._rate(Order.BOTH, slower.nbytes, length)
        self._exchange.tell(self._peer, Order.END, 0, 0, 0)
        return PairSample(self._rank, self._peer, median(round_trips_s) / 2, up, down, both)

    def _rates(self, kind: Order, sizes: Sequence[int], span_s: float) -> tuple[Rate, ...]:
        """What messages reach, by size: of those up to the largest one of which several fit into the time."""
        train_s = LARGEST_SHARE * span_s / TRAINS
        small_s = (1 - LARGEST_SHARE) * span_s / len(sizes)
        found, best = [], self._best(kind, FIRST_NBYTES, 1)[1]
        for size in sizes:
            if 2 * size > train_s * best:
                break
            rate, best = self._best(kind, size, _following(small_s / WARM_UP, size / best))
            found.append(rate)
        largest = found.pop().nbytes if found else FIRST_NBYTES
        return (*found, self._rate(kind, largest, _following(train_s, largest / best)))

    def _best(self, kind: Order, nbytes: int, length: int) -> tuple[Rate, float]:
        """What a few trains reach, and what the best one does, in bytes per second: no hiccup slows all."""
        times_s = self._times(kind, nbytes, length, WARM_UP)
        rate = Rate(nbytes, length * WARM_UP, length * nbytes / median(times_s))
        return rate, length * nbytes / min(times_s)

    def _rate(self, kind: Order, nbytes: int, length: int) -> Rate:
        times_s = self._times(kind, nbytes, length, TRAINS)
        return Rate(nbytes, length * TRAINS, length * nbytes / median(times_s))

    def _pings(self, nbytes: int, count: int) -> list[float]:
        """How long each of some messages and its answer took, in seconds."""
        exchange, peer, found = self._exchange, self._peer, []
        exchange.tell(peer, Order.PING, nbytes, 0, count)
        for _ in range(count):
            begin = time.perf_counter()
            exchange.send(peer, nbytes)
            exchange.receive(peer, nbytes)
            found.append(time.perf_counter() - begin)
        return found

    def _times(self, kind: Order, nbytes: int, length: int, trains: int) -> list[float]:
        """How long each of some trains took, in seconds."""
        exchange, peer, found = self._exchange, self._peer, []
        exchange.tell(peer, kind, nbytes, length, trains)
        for _ in range(trains):
            match kind:
                case Order.UP:
                    _timed_ns(partial(exchange.send, peer, nbytes), length)
                    passed_ns, *_ = exchange.hear(peer)
                case Order.DOWN:
                    passed_ns = _timed_ns(partial(exchange.receive, peer, nbytes), length)
                case _:
                    passed_ns = _timed_ns(partial(exchange.swap, peer, nbytes), length)
            found.append(passed_ns / 1e9)
        return found


def _fitting(span_s: float, each_s: float) -> int:
    """How many messages fit into some seconds; one at least."""
    return max(1, min(MOST_COUNT, int(span_s / max(each_s, 1e-9))))


def _following(span_s: float, each_s: float) -> int:
    """How many messages of a train fit after its first one; one at least."""
    return max(1, _fitting(span_s, each_s) - 1)
