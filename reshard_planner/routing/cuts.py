"""Cutting boxes in parts, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box

Ints = NDArray[np.int64]

LEAST_PIECE_NBYTES = 1024
"""Size below which splitting a class no further pays: at 50 GB/s this is 20 ns, against microseconds
that a message costs. See docs/adr/0003-least-piece.md."""

FINEST_PARTS = 100
"""Boxes are cut at shares along the outermost dimension with this many steps: cuts can fall anywhere."""


def split_boxes(lo: Ints, hi: Ints, parts: Ints, bits: int, step: int) -> tuple[Ints, Ints, Ints]:
    """Cut each box in about ``parts`` along its outermost dimensions, never finer than ``step`` elements.

    The outermost dimension with an extent of ``parts`` is cut in one go; where none has it, the outer
    ones are cut to single indices first and what remains along the next. Boxes are cut in at most as many
    parts as they have times ``LEAST_PIECE_NBYTES``; rounding to whole steps makes some of them smaller than
    others, by less than half.

    Args:
        lo: first index per box and dimension, shape (boxes, dims).
        hi: index past the last, likewise.
        parts: parts wanted of each box.
        bits: bits of one element.
        step: elements that no cut may part, in the last dimension.

    Returns the box that each part is of, ascending, and the parts' ``lo`` and ``hi``.
    """
    sizes = np.prod(hi - lo, axis=1, dtype=np.int64) * bits // 8
    parts = np.maximum(1, np.minimum(parts, sizes // LEAST_PIECE_NBYTES))
    if not lo.shape[1] or (parts == 1).all():
        return np.arange(len(lo)), lo, hi
    steps = _steps(hi - lo, step)
    enough = steps >= parts[:, None]
    simple = enough.any(1) | (parts == 1)
    count = np.where(simple, parts, 1)
    owner = np.repeat(np.arange(len(lo)), count)
    index = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    dim = np.where(enough.any(1), np.argmax(enough, axis=1), 0)[owner]
    align = np.where(dim == lo.shape[1] - 1, step, 1)
    rows = np.arange(len(owner))
    extent, of = steps[owner, dim], count[owner]
    part_lo, part_hi = lo[owner].copy(), hi[owner].copy()
    cut = of > 1
    start = lo[owner, dim]
    part_hi[rows[cut], dim[cut]] = (start + align * (extent * (index + 1) // of))[cut]
    part_lo[rows[cut], dim[cut]] = (start + align * (extent * index // of))[cut]
    if simple.all():
        return owner, part_lo, part_hi
    owners, los, his = [owner[simple[owner]]], [part_lo[simple[owner]]], [part_hi[simple[owner]]]
    for at in np.flatnonzero(~simple).tolist():
        pieces = split_box(Box(tuple(lo[at].tolist()), tuple(hi[at].tolist())), int(parts[at]), step)
        owners.append(np.full(len(pieces), at, dtype=np.int64))
        los.append(np.array([piece.lo for piece in pieces], dtype=np.int64))
        his.append(np.array([piece.hi for piece in pieces], dtype=np.int64))
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return owner[order], np.concatenate(los)[order], np.concatenate(his)[order]


def split_box(box: Box, parts: int, step: int) -> list[Box]:
    """Cut one box as :func:`split_boxes` does."""
    if parts <= 1 or not box.ndim:
        return [box]
    dim = cut_dim(box, parts, step)
    if extent_steps(box, dim, step) >= parts:
        return list(box.chunks(dim, parts, step if dim == box.ndim - 1 else 1))
    pieces = [box]
    for dim in range(box.ndim):
        steps = extent_steps(box, dim, step)
        count = min(steps, parts // len(pieces))
        if count > 1:
            align = step if dim == box.ndim - 1 else 1
            pieces = [part for piece in pieces for part in piece.chunks(dim, count, align)]
    return pieces


def cut_dim(box: Box, parts: int, step: int) -> int:
    """The outermost dimension that can be cut in ``parts``, else the one with the most steps; -1 if 0-d."""
    best, most = -1, 0
    for dim in range(box.ndim):
        steps = extent_steps(box, dim, step)
        if steps >= parts:
            return dim
        if steps > most:
            best, most = dim, steps
    return best


def split_at(box: Box, shares: Sequence[float], bits: int, step: int) -> list[tuple[Box, float]]:
    """Cut a box at shares of it, to whole steps, along its outermost dimension of ``FINEST_PARTS`` steps.

    Cuts that would leave a part below ``LEAST_PIECE_NBYTES`` are left out.

    Args:
        box: what to cut.
        shares: where to cut, ascending, from 0 to 1.
        bits: bits of one element.
        step: elements that no cut may part, in the last dimension.

    Returns the parts in order, each with where its middle lies, as a share of the box.
    """
    dim = cut_dim(box, FINEST_PARTS, step) if shares else -1
    if dim < 0:
        return [(box, 0.5)]
    steps = extent_steps(box, dim, step)
    least = max(1, -(-LEAST_PIECE_NBYTES * steps // max(1, box.volume * bits // 8)))  # steps of a part
    bounds = [0]
    for share in shares:
        at = round(share * steps)
        if at - bounds[-1] >= least and steps - at >= least:
            bounds.append(at)
    bounds.append(steps)
    align = step if dim == box.ndim - 1 else 1
    start, stop = box.lo[dim], box.hi[dim]
    return [
        (
            box.replace(dim, start + first * align, start + last * align if last < steps else stop),
            (first + last) / 2 / steps,
        )
        for first, last in pairwise(bounds)
    ]


def extent_steps(box: Box, dim: int, step: int) -> int:
    """Number of indivisible steps along a dimension: elements, or whole bytes in the last one."""
    extent = box.hi[dim] - box.lo[dim]
    return extent // step if dim == box.ndim - 1 else extent


def _steps(extents: Ints, step: int) -> Ints:
    steps = extents.copy()
    steps[:, -1] //= step
    return steps
