"""Overlap: which local tensors share memory, exactly also for tensors with gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from reshard_executors.binding import Bound
from reshard_executors.views import BoundView
from reshard_planner.errors import InputError

Ints = NDArray[np.int64]


def check_overlap(
    sources: Iterable[Bound], destinations: Iterable[Bound], staying: Mapping[int, Sequence[BoundView]]
) -> None:
    """Refuse destinations that share memory with a source or with one another.

    Args:
        sources: what is read.
        destinations: what is written.
        staying: places that are read and written by the same copy within the rank, so that their bytes stay,
            by position of the tensor; its source and its destination may share these.

    Raises:
        InputError: naming both tensors.
    """
    spans = [(bound, False) for bound in sources] + [(bound, True) for bound in destinations]
    spans = [span for span in spans if span[0].whole.nbytes]
    firsts = [_span(bound.whole) for bound, _ in spans]
    order = sorted(range(len(spans)), key=lambda at: firsts[at])
    active: list[int] = []
    for at in order:
        device, first, _ = firsts[at]
        active = [other for other in active if firsts[other][0] == device and firsts[other][2] > first]
        for other in active:
            (one, written), (two, other_written) = spans[at], spans[other]
            if not (written or other_written):
                continue
            may_stay = written != other_written and one.tensor == two.tensor
            places = staying.get(one.tensor, ()) if may_stay else ()
            kept = sum(min(shared_nbytes(each, bound.whole) for bound in (one, two)) for each in places)
            if shared_nbytes(one.whole, two.whole) > kept:
                raise InputError(
                    f"{two.label} and {one.label} share memory; a destination needs memory of its own"
                )
        active.append(at)


def _span(view: BoundView) -> tuple[str, int, int]:
    """Device, first byte, and the one past the last."""
    reach = sum((extent - 1) * stride for extent, stride in zip(view.shape, view.strides, strict=True))
    return str(view.storage.device), view.address, view.address + (reach + 1) * view.itemsize


def shared_nbytes(one: BoundView, two: BoundView) -> int:
    """Bytes that two views have in common."""
    starts, size = byte_runs(one)
    others, other_size = byte_runs(two)
    if len(starts) > len(others):
        starts, size, others, other_size = others, other_size, starts, size
    first = np.searchsorted(others, starts - other_size, side="right")
    last = np.searchsorted(others, starts + size, side="left")
    total = 0
    for step in range(int((last - first).max(initial=0))):
        at = first + step
        mine = starts[at < last]
        theirs = others[at[at < last]]
        total += int((np.minimum(mine + size, theirs + other_size) - np.maximum(mine, theirs)).sum())
    return total


def byte_runs(view: BoundView) -> tuple[Ints, int]:
    """Addresses of the runs of bytes that a view is made of, ascending, and the size of each."""
    dims = sorted(
        (stride * view.itemsize, extent)
        for extent, stride in zip(view.shape, view.strides, strict=True)
        if extent > 1
    )
    size = view.itemsize
    while dims and dims[0][0] == size:
        size *= dims.pop(0)[1]
    starts = np.array([view.address], dtype=np.int64)
    for stride, extent in dims:
        starts = (np.arange(extent, dtype=np.int64)[:, None] * stride + starts).reshape(-1)
    return np.sort(starts), size
