"""Overlap: which local tensors share memory, exactly also for tensors with gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from reshard_executors.binding import LocalMemory
from reshard_executors.views import StridedView
from reshard_planner.errors import InputError

Ints = NDArray[np.int64]

Spanned: TypeAlias = tuple[LocalMemory, bool]
"""A local tensor, and whether it is written."""


def check_overlap(
    sources: Iterable[LocalMemory],
    destinations: Iterable[LocalMemory],
    staying: Mapping[int, Sequence[StridedView]],
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
    spans = [(local, False) for local in sources] + [(local, True) for local in destinations]
    spans = sorted((span for span in spans if span[0].whole.nbytes), key=lambda span: _span(span[0].whole))
    for cluster in _clusters(spans):
        if not _disjoint([local.whole for local, _ in cluster]):
            _check_cluster(cluster, staying)


def _clusters(spans: Sequence[Spanned]) -> Iterator[list[Spanned]]:
    """Tensors whose spans of memory overlap, directly or through one another; spans ascend."""
    cluster: list[Spanned] = []
    device, reach = "", 0
    for local, written in spans:
        where, first, end = _span(local.whole)
        if cluster and (where != device or first >= reach):
            yield cluster
            cluster, reach = [], 0
        cluster.append((local, written))
        device, reach = where, max(reach, end)
    if cluster:
        yield cluster


def _disjoint(views: Sequence[StridedView]) -> bool:
    """Whether no byte belongs to two views, found in one pass over all of their runs."""
    if len(views) == 1:
        return True
    runs = [byte_runs(view) for view in views]
    starts = np.concatenate([found for found, _ in runs])
    ends = np.concatenate([found + size for found, size in runs])
    order = np.argsort(starts, kind="stable")
    return bool((ends[order][:-1] <= starts[order][1:]).all())


def _check_cluster(cluster: Sequence[Spanned], staying: Mapping[int, Sequence[StridedView]]) -> None:
    """Compare every two tensors of which one is written."""
    for at, (one, written) in enumerate(cluster):
        for two, other_written in cluster[:at]:
            if not (written or other_written):
                continue
            common = one.tensors & two.tensors if written != other_written else frozenset()
            places = [place for tensor in sorted(common) for place in staying.get(tensor, ())]
            kept = sum(min(shared_nbytes(each, local.whole) for local in (one, two)) for each in places)
            if shared_nbytes(one.whole, two.whole) > kept:
                raise InputError(
                    f"{two.label} and {one.label} share memory; a destination needs memory of its own"
                )


def _span(view: StridedView) -> tuple[str, int, int]:
    """Device, first byte, and the one past the last."""
    return str(view.storage.device), view.address, view.address + view.reach_nbytes


def shared_nbytes(one: StridedView, two: StridedView) -> int:
    """Bytes that two views have in common."""
    starts, size = byte_runs(one)
    others, other_size = byte_runs(two)
    if len(starts) < len(others):
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


def byte_runs(view: StridedView) -> tuple[Ints, int]:
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
