"""Intervals along one dimension, and torch's rules for cutting them.

A shard of one dimension is a tuple of half-open intervals in local storage order: index ``i`` of the
local dimension is the ``i``-th index of their concatenation. Plain shards have one interval, strided
ones may have several.
"""

from __future__ import annotations

from collections.abc import Sequence

Intervals = tuple[tuple[int, int], ...]


def length(intervals: Intervals) -> int:
    """Number of indices."""
    return sum(hi - lo for lo, hi in intervals)


def take(intervals: Intervals, start: int, stop: int) -> Intervals:
    """The intervals at local positions ``start:stop``."""
    taken = []
    position = 0
    for lo, hi in intervals:
        first = max(start, position)
        last = min(stop, position + hi - lo)
        if first < last:
            taken.append((lo + first - position, lo + last - position))
        position += hi - lo
    return tuple(taken)


def join(parts: Sequence[Intervals]) -> Intervals:
    """Concatenate in storage order, merging intervals that continue one another."""
    joined: list[tuple[int, int]] = []
    for lo, hi in (interval for part in parts for interval in part):
        if joined and joined[-1][1] == lo:
            joined[-1] = (joined[-1][0], hi)
        else:
            joined.append((lo, hi))
    return tuple(joined)


def chunk(intervals: Intervals, count: int) -> list[Intervals]:
    """Cut in ``count`` ceil-chunks as ``torch.chunk`` does, with empty shards where it runs out."""
    size = length(intervals)
    step = -(-size // count)
    return [take(intervals, i * step, min(size, (i + 1) * step)) for i in range(count)]


def strided_chunk(intervals: Intervals, count: int, split_factor: int) -> list[Intervals]:
    """Cut as torch's ``_StridedShard``: in ``split_factor`` chunks, then each of them in ``count``.

    Shard ``i`` is chunk ``i`` of every part, one after another.
    """
    # more parts than indices would only add empty ones
    parts = [chunk(part, count) for part in chunk(intervals, min(split_factor, max(1, length(intervals))))]
    return [join([part[i] for part in parts]) for i in range(count)]
