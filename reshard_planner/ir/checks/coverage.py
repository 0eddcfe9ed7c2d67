"""Checks ``units`` and ``coverage``: every destination tile is filled exactly once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.errors import CoverageError
from reshard_planner.ir.checks.subject import Subject

Ints = NDArray[np.int64]

MAX_CORNERS = 2**24
"""Most corners of boxes that are counted at once."""


def check_units(subject: Subject) -> None:
    """Every chunk of every part of every tensor is scheduled exactly once.

    Raises:
        CoverageError: naming tensor, part and chunk.
    """
    plan = subject.plan
    pieces, schedule, groups = plan.pieces, plan.schedule, plan.groups
    parts: dict[int, set[int]] = {}
    for group, part in zip(pieces.group.tolist(), pieces.part.tolist(), strict=True):
        parts.setdefault(group, set()).add(part)
    seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    columns = (schedule.tensor, schedule.part, schedule.chunk, schedule.n_chunks)
    for tensor, part, chunk, count in zip(*(column.tolist() for column in columns), strict=True):
        seen.setdefault((tensor, part), []).append((chunk, count))
    for number, (tensor, group) in enumerate(zip(plan.spec.tensors, groups.group_of.tolist(), strict=True)):
        for part in sorted(parts.get(int(groups.routes_of[group]), ())):
            found = sorted(seen.pop((number, part), []))
            counts = {count for _, count in found}
            if len(counts) > 1:
                raise CoverageError(
                    f"tensor {tensor.name!r}, part {part}: units disagree on n_chunks {counts}"
                )
            wanted = counts.pop() if counts else 1
            chunks = [chunk for chunk, _ in found]
            if len(chunks) != wanted or chunks != list(range(wanted)):
                raise CoverageError(
                    f"tensor {tensor.name!r}, part {part}: {len(chunks)} chunks are scheduled,"
                    f" {len(set(chunks))} of them distinct; expected each of 0 to {wanted - 1} once"
                )
    if seen:
        number, part = min(seen)
        name = plan.spec.tensors[number].name
        raise CoverageError(f"tensor {name!r}: part {part} is scheduled but has no pieces")


def check_coverage(subject: Subject) -> None:
    """The pieces that arrive in each destination tile are disjoint and fill it.

    Raises:
        CoverageError: naming tensor, rank, tile and what is missing or doubled.
    """
    plan = subject.plan
    table_of_row = plan.pieces.group[plan.routes.piece]
    for group in sorted(subject.samples):
        rows = np.flatnonzero(table_of_row == plan.groups.routes_of[group])
        _check_group(subject, group, rows)
    _check_operations(subject)


def _check_operations(subject: Subject) -> None:
    """The operations of all units together bring every destination tile its bytes."""
    ops = subject.ops
    filled = ops.scratch == 0
    arriving = np.zeros(len(subject.plan.spec.tensors), dtype=np.int64)
    np.add.at(arriving, ops.tensor[filled], ops.nbytes[filled])
    needed: dict[int, int] = {}
    groups = subject.plan.groups.group_of.tolist()
    for tensor, group, nbytes in zip(subject.plan.spec.tensors, groups, arriving.tolist(), strict=True):
        if group not in needed:
            tiles = subject.tiles(group, "dst")
            volume = sum(entry.tile.box.volume for rank in tiles.ranks() for entry in tiles.tiles(rank))
            needed[group] = volume * tensor.bits // 8
        if nbytes != needed[group]:
            raise CoverageError(
                f"tensor {tensor.name!r}: operations bring {nbytes} bytes to its destination tiles; expected"
                f" {needed[group]}"
            )


def _check_group(subject: Subject, group: int, rows: Ints) -> None:
    plan = subject.plan
    routes, pieces = plan.routes, plan.pieces
    dst = routes.dst[rows].astype(np.int64)
    mapping = plan.groups.substitution(group, max(plan.ranks, default=0) + 1)
    if mapping is not None:
        dst = mapping[dst]
    _check_scratch(subject, group, rows, dst)
    into_tile = routes.scratch[rows] == 0
    rows, dst = rows[into_tile], dst[into_tile]
    tile = routes.tile[rows].astype(np.int64)
    piece = routes.piece[rows].astype(np.int64)
    order = np.lexsort((piece, tile, dst))
    dst, tile, piece = dst[order], tile[order], piece[order]
    name = subject.samples[group].name
    tiles = subject.tiles(group, "dst")
    disjoint = are_disjoint(pieces.lo[np.unique(piece)], pieces.hi[np.unique(piece)])
    change = (np.diff(dst, prepend=-1) != 0) | (np.diff(tile, prepend=-1) != 0)
    starts = np.append(np.flatnonzero(change), len(dst))
    filled = set()
    for start, stop in zip(starts.tolist(), starts[1:].tolist(), strict=False):
        rank, number = int(dst[start]), int(tile[start])
        known = tiles.tiles(rank)
        if number >= len(known):
            raise CoverageError(f"tensor {name!r}: rank {rank} has no destination tile {number} to fill")
        filled.add((rank, number))
        _check_tile(
            f"tensor {name!r}, rank {rank}, destination tile {number}",
            known[number].tile.box,
            piece[start:stop],
            subject,
            disjoint=disjoint,
        )
    for rank in tiles.ranks():
        for number, entry in enumerate(tiles.tiles(rank)):
            if (rank, number) not in filled:
                raise CoverageError(
                    f"tensor {name!r}, rank {rank}: nothing arrives in destination tile {number},"
                    f" {entry.tile.box}"
                )


def _check_scratch(subject: Subject, group: int, rows: Ints, dst: Ints) -> None:
    """A rank keeps a piece aside at most once."""
    routes = subject.plan.routes
    aside = routes.scratch[rows] > 0
    keys = np.stack((dst[aside], routes.piece[rows][aside].astype(np.int64)), axis=1)
    distinct, counts = np.unique(keys, axis=0, return_counts=True)
    if (counts > 1).any():
        rank, piece = distinct[counts > 1][0].tolist()
        name = subject.samples[group].name
        raise CoverageError(f"tensor {name!r}: rank {rank} keeps piece {piece} in scratch twice")


def _check_tile(where: str, box: Box, piece: Ints, subject: Subject, *, disjoint: bool) -> None:
    pieces = subject.plan.pieces
    ndim = box.ndim
    lo, hi = pieces.lo[piece][:, :ndim], pieces.hi[piece][:, :ndim]
    inside = (lo >= np.array(box.lo, dtype=np.int64)).all(1) & (hi <= np.array(box.hi, dtype=np.int64)).all(1)
    if not inside.all():
        at = int(np.flatnonzero(~inside)[0])
        part = Box(tuple(lo[at].tolist()), tuple(hi[at].tolist()))
        raise CoverageError(f"{where}: piece {int(piece[at])}, {part}, does not lie within {box}")
    repeated = piece[1:][piece[1:] == piece[:-1]]
    if len(repeated):
        raise CoverageError(f"{where}: piece {int(repeated[0])} arrives twice")
    if not disjoint and not are_disjoint(lo, hi):
        raise CoverageError(f"{where}: pieces {piece.tolist()[:8]} overlap")
    volume = int(np.prod(hi - lo, axis=1, dtype=np.int64).sum())
    if volume != box.volume:
        raise CoverageError(f"{where}: {volume} of {box.volume} elements arrive")


def are_disjoint(lo: Ints, hi: Ints) -> bool:
    """Whether boxes are pairwise disjoint.

    Args:
        lo: first index per box and dimension, shape (boxes, dims).
        hi: index past the last, likewise.
    """
    if len(lo) < 2:
        return True
    varying = ((lo != lo[:1]) | (hi != hi[:1])).any(0)
    lo, hi = lo[:, varying], hi[:, varying]
    if not lo.shape[1]:
        return False
    count = 1
    ranges: list[tuple[Ints, Ints]] = []
    sizes: list[int] = []
    for dim in range(lo.shape[1]):
        cut = np.unique(np.concatenate((lo[:, dim], hi[:, dim])))
        ranges.append((np.searchsorted(cut, lo[:, dim]), np.searchsorted(cut, hi[:, dim])))
        sizes.append(len(cut))
        count *= len(cut)
    if count > MAX_CORNERS:
        return _are_disjoint_halves(lo, hi)
    corners = np.zeros(sizes, dtype=np.int32)
    for corner in np.ndindex(*(2,) * len(ranges)):
        index = tuple(bounds[side] for bounds, side in zip(ranges, corner, strict=True))
        np.add.at(corners, index, 1 if sum(corner) % 2 == 0 else -1)
    for dim in range(len(ranges)):
        corners = np.cumsum(corners, axis=dim, dtype=np.int32)
    return bool(corners.max() <= 1)


def _are_disjoint_halves(lo: Ints, hi: Ints) -> bool:
    """Divide at the middle of the dimension with most cuts and look at each half on its own."""
    cuts = [np.unique(np.concatenate((lo[:, dim], hi[:, dim]))) for dim in range(lo.shape[1])]
    dim = max(range(len(cuts)), key=lambda d: len(cuts[d]))
    middle = int(cuts[dim][len(cuts[dim]) // 2])
    left, right = lo[:, dim] < middle, hi[:, dim] > middle
    left_hi, right_lo = hi[left].copy(), lo[right].copy()
    left_hi[:, dim] = np.minimum(left_hi[:, dim], middle)
    right_lo[:, dim] = np.maximum(right_lo[:, dim], middle)
    return are_disjoint(lo[left], left_hi) and are_disjoint(right_lo, hi[right])
