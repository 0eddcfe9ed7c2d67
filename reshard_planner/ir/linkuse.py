"""When the bytes of a timeline move, and how fast: what a timeline says of the use of links.

A timeline has both ends of a message as two events, each from the moment when its rank posted it. Bytes move
only once both ranks have; how fast they do in between is not recorded. They are therefore taken to move
evenly from the later of the two moments until they have arrived, except that no link exceeds its rate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.timeline import NO_PEER, Activity, Timeline

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NOISE = 1e-9
"""Share of the largest rate below which a sum of rates that begin and end is taken for zero."""


def match_messages(timeline: Timeline) -> tuple[Ints, Ints]:
    """Both ends of the messages of a timeline.

    Of the messages of a slot from one rank to another the send that begins first belongs to the receipt that
    begins first, and so on: both ends post them in the same order.

    Returns:
        Positions of the sends and, in the same order, of the receipts, each of shape (messages,), in order of
        the starts of the sends. A message of which one end is missing is left out.
    """
    activity, peer = timeline.activity, timeline.peer
    size = int(max(timeline.rank.max(initial=0), peer.max(initial=0))) + 1
    keys, positions = [], []
    for end, sender, receiver in (
        (Activity.SEND, timeline.rank, peer),
        (Activity.RECEIVE, peer, timeline.rank),
    ):
        chosen = np.flatnonzero((activity == end) & (peer != NO_PEER))
        slot, src, dst = (column[chosen].astype(np.int64) for column in (timeline.slot, sender, receiver))
        # two numbers and not one: slots times pairs of ranks may be beyond 64 bits
        pair = src * size + dst
        order = np.lexsort((timeline.start_s[chosen], pair, slot))
        pair, slot = pair[order], slot[order]
        new = (np.diff(pair, prepend=-1) != 0) | (np.diff(slot, prepend=-1) != 0)
        begin = np.flatnonzero(new)
        number = np.arange(len(order)) - np.repeat(begin, np.diff(np.append(begin, len(order))))
        keys.append((number, pair, slot))
        positions.append(chosen[order])
    number, pair, slot = (np.concatenate(columns) for columns in zip(*keys, strict=True))
    position = np.concatenate(positions)
    order = np.lexsort((number, pair, slot))  # stable, so that sends stand before receipts
    same = np.ones(max(0, len(order) - 1), dtype=bool)
    for column in (number, pair, slot):
        ordered = column[order]
        same &= ordered[1:] == ordered[:-1]
    first = np.flatnonzero(same)
    sends, receipts = position[order[first]], position[order[first + 1]]
    by_start = np.argsort(timeline.start_s[sends], kind="stable")
    return sends[by_start], receipts[by_start]


def moving_times(timeline: Timeline, messages: tuple[Ints, Ints] | None = None) -> tuple[Floats, Floats]:
    """When the bytes of every event begin and cease to move, in seconds, each of shape (events,).

    An event keeps its own times if it is no end of a message, the other end is missing, or the clocks of two
    hosts let a message arrive before it was sent.

    Args:
        timeline: the events.
        messages: what :func:`match_messages` gives for it, if that is known already.
    """
    sends, receipts = match_messages(timeline) if messages is None else messages
    start_s, end_s = timeline.start_s.copy(), timeline.end_s.copy()
    posted_s = np.maximum(start_s[sends], start_s[receipts])
    arrived_s = end_s[receipts]
    sound = arrived_s >= posted_s
    for ends in (sends[sound], receipts[sound]):
        start_s[ends], end_s[ends] = posted_s[sound], arrived_s[sound]
    return start_s, end_s


def rate_steps(start_s: Floats, end_s: Floats, amount: NDArray[np.generic]) -> tuple[Floats, Floats]:
    """The sum of the rates of events, over time.

    Args:
        start_s: when each begins, shape (events,).
        end_s: when each ends; those that take no time are left out.
        amount: what each moves, evenly from its start to its end.

    Returns:
        Times in seconds, strictly ascending, and the rate per second from each of them on until the next,
        both of shape (steps,); the last rate is 0. Without events both are empty.
    """
    lasts = end_s > start_s
    start_s, end_s = start_s[lasts], end_s[lasts]
    per_s = amount[lasts].astype(np.float64) / (end_s - start_s)
    time_s, at = np.unique(np.concatenate((start_s, end_s)), return_inverse=True)
    change = np.bincount(at, np.concatenate((per_s, -per_s)), minlength=len(time_s))
    sum_per_s: Floats = np.cumsum(change, dtype=np.float64)
    sum_per_s[sum_per_s < NOISE * sum_per_s.max(initial=0.0)] = 0.0
    sum_per_s[-1:] = 0.0
    return time_s, sum_per_s


def mean_rates(steps: tuple[Floats, Floats], edges_s: Floats) -> Floats:
    """Mean rate between each two neighbouring times.

    Args:
        steps: what :func:`rate_steps` gives.
        edges_s: the times, strictly ascending, shape (n + 1,).

    Returns:
        Rates per second, of shape (n,).
    """
    time_s, per_s = steps
    if not len(time_s):
        return np.zeros(len(edges_s) - 1)
    moved = np.concatenate(([0.0], np.cumsum(per_s[:-1] * np.diff(time_s))))
    means: Floats = np.diff(np.interp(edges_s, time_s, moved)) / np.diff(edges_s)
    return means


def within_rate(steps: tuple[Floats, Floats], bytes_per_s: float) -> tuple[Floats, Floats]:
    """Rates of which none is above that of the link: what is too much moves later, or earlier near the end.

    Args:
        steps: what :func:`rate_steps` gives for bytes.
        bytes_per_s: the rate of the link. If even all of the time at this rate is too short the steps stay as
            they are: then the link is faster than was said.

    Returns:
        The same times, and rates with the same sum over time.
    """
    time_s, per_s = steps
    moved = np.concatenate(([0.0], np.cumsum(per_s[:-1] * np.diff(time_s))))
    if not len(time_s) or moved[-1] > bytes_per_s * (time_s[-1] - time_s[0]):
        return steps
    possible = bytes_per_s * (time_s - time_s[0])
    queued = np.minimum.accumulate(moved - possible) + possible
    fitted = np.maximum(queued, moved[-1] - (possible[-1] - possible))
    return time_s, np.append(np.diff(fitted) / np.diff(time_s), 0.0)
