"""Checks ``units`` and ``coverage``: every destination tile is filled exactly once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.errors import CoverageError
from reshard_planner.ir.checks.subject import Subject
from reshard_planner.layout.disjoint import are_disjoint

Ints = NDArray[np.int64]


def check_units(subject: Subject) -> None:
    """Every chunk of every part of every tensor is scheduled exactly once.

    Raises:
        CoverageError: naming tensor, part and chunk.
    """
    plan = subject.plan
    pieces, schedule, groups = plan.pieces, plan.schedule, plan.groups
    size = int(max(pieces.part.max(initial=0), schedule.part.max(initial=0))) + 1
    order = np.lexsort((schedule.chunk, schedule.part, schedule.tensor))
    key = (schedule.tensor.astype(np.int64) * size + schedule.part)[order]
    chunk, wanted = schedule.chunk[order].astype(np.int64), schedule.n_chunks[order]
    found, first, inverse, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    right = np.ones(len(found), dtype=bool)
    np.logical_and.at(right, inverse, wanted == wanted[first][inverse])
    right &= wanted[first] == count
    np.logical_and.at(right, inverse, chunk == np.arange(len(chunk)) - first[inverse])
    if not right.all():
        at = int(np.flatnonzero(~right)[0])
        units = inverse == at
        _refuse_units(subject, int(found[at]) // size, int(found[at]) % size, chunk[units], wanted[units])
    parts: Ints = np.unique(pieces.group.astype(np.int64) * size + pieces.part)
    owner = groups.routes_of[groups.group_of].astype(np.int64)
    start, stop = np.searchsorted(parts, owner * size), np.searchsorted(parts, (owner + 1) * size)
    tensor = np.repeat(np.arange(len(owner)), stop - start)
    within = np.arange(len(tensor)) - np.repeat(np.cumsum(stop - start) - stop, stop - start)
    needed = tensor * size + parts[within] % size
    missing = np.setdiff1d(needed, found)
    if len(missing):
        empty = np.zeros(0, dtype=np.int64)
        _refuse_units(subject, int(missing[0]) // size, int(missing[0]) % size, empty, empty)
    surplus = np.setdiff1d(found, needed)
    if len(surplus):
        name = plan.spec.tensors[int(surplus[0]) // size].name
        raise CoverageError(f"tensor {name!r}: part {int(surplus[0]) % size} is scheduled but has no pieces")


def _refuse_units(subject: Subject, tensor: int, part: int, chunk: Ints, n_chunks: Ints) -> None:
    where = f"tensor {subject.plan.spec.tensors[tensor].name!r}, part {part}"
    counts = set(n_chunks.tolist())
    if len(counts) > 1:
        raise CoverageError(f"{where}: units disagree on n_chunks {counts}")
    wanted = counts.pop() if counts else 1
    raise CoverageError(
        f"{where}: {len(chunk)} chunks are scheduled, {len(np.unique(chunk))} of them distinct; expected each"
        f" of 0 to {wanted - 1} once"
    )


def check_coverage(subject: Subject) -> None:
    """The pieces that arrive in each destination tile are disjoint and fill it.

    Raises:
        CoverageError: naming tensor, rank, tile and what is missing or doubled.
    """
    for group in sorted(subject.samples):
        if subject.lenders[group] == group:
            _check_group(subject, group, subject.rows_of(group))
    _check_operations(subject)


def _check_operations(subject: Subject) -> None:
    """The operations of all units together bring every destination tile its bytes."""
    needed: dict[int, int] = {}
    groups = subject.plan.groups.group_of.tolist()
    arriving = subject.traffic.arriving.tolist()
    for tensor, group, nbytes in zip(subject.plan.spec.tensors, groups, arriving, strict=True):
        lender = subject.lenders[group]
        if lender not in needed:
            needed[lender] = int(subject.tiles(lender, "dst").volume.sum())
        right = needed[lender] * tensor.bits // 8
        if nbytes != right:
            raise CoverageError(
                f"tensor {tensor.name!r}: operations bring {nbytes} bytes to its destination tiles; expected"
                f" {right}"
            )


def _check_group(subject: Subject, group: int, rows: Ints) -> None:
    plan = subject.plan
    routes, pieces = plan.routes, plan.pieces
    dst = subject.rename(group, routes.dst[rows])
    _check_scratch(subject, group, rows, dst)
    into_tile = routes.scratch[rows] == 0
    rows, dst = rows[into_tile], dst[into_tile]
    tensor = subject.samples[group]
    tiles = subject.tiles(group, "dst")
    number = routes.tile[rows].astype(np.int64)
    tile = tiles.number_of(dst, number)
    if (tile < 0).any():
        at = int(np.flatnonzero(tile < 0)[0])
        raise CoverageError(
            f"tensor {tensor.name!r}: rank {int(dst[at])} has no destination tile {int(number[at])} to fill"
        )
    key = np.sort(tile * max(1, len(pieces)) + routes.piece[rows])
    tile, piece = key // max(1, len(pieces)), key % max(1, len(pieces))
    lo, hi = subject.boxes(group, piece)
    outside = np.flatnonzero(~((lo >= tiles.lo[tile]) & (hi <= tiles.hi[tile])).all(1))
    twice = np.flatnonzero(np.diff(key) == 0)
    arriving = np.zeros(len(tiles.volume), dtype=np.int64)
    np.add.at(arriving, tile, np.prod(hi - lo, axis=1, dtype=np.int64))
    wrong = np.flatnonzero(arriving != tiles.volume)
    # the first tile that is not right is named, with the most telling of its faults
    found = [(int(tile[at]), order) for order, faults in enumerate((outside, twice)) for at in faults[:1]]
    found += [(int(at), 2) for at in wrong[:1]]
    if found:
        first, order = min(found)
        where, box = _tile(subject, group, first)
        if order == 0:
            part = Box(tuple(lo[outside[0]].tolist()), tuple(hi[outside[0]].tolist()))
            raise CoverageError(f"{where}: piece {int(piece[outside[0]])}, {part}, does not lie within {box}")
        if order == 1:
            raise CoverageError(f"{where}: piece {int(piece[twice[0]])} arrives twice")
        if not arriving[first]:
            raise CoverageError(f"{where}: nothing arrives in {box}")
        raise CoverageError(f"{where}: {int(arriving[first])} of {box.volume} elements arrive")
    distinct = np.unique(piece)
    if not are_disjoint(pieces.lo[distinct], pieces.hi[distinct]):
        _check_overlaps(subject, group, tile, piece)


def _check_overlaps(subject: Subject, group: int, tile: Ints, piece: Ints) -> None:
    """Pieces of one tile are disjoint, where those of different ones overlap; ``tile`` ascends."""
    starts = np.append(np.flatnonzero(np.diff(tile, prepend=-1)), len(tile))
    known: dict[bytes, bool] = {}  # replicas are filled with the same pieces
    for start, stop in zip(starts.tolist(), starts[1:].tolist(), strict=False):
        own = piece[start:stop]
        if own.tobytes() not in known:
            known[own.tobytes()] = are_disjoint(*subject.boxes(group, own))
        if not known[own.tobytes()]:
            where, _ = _tile(subject, group, int(tile[start]))
            raise CoverageError(f"{where}: pieces {own.tolist()[:8]} overlap")


def _tile(subject: Subject, group: int, tile: int) -> tuple[str, Box]:
    """What a tile is called in errors, and its box."""
    tiles = subject.tiles(group, "dst")
    rank = int(tiles.rank[tile])
    number = tile - int(tiles.first[np.searchsorted(tiles.ranks, rank)])
    box = Box(tuple(tiles.lo[tile].tolist()), tuple(tiles.hi[tile].tolist()))
    return f"tensor {subject.samples[group].name!r}, rank {rank}, destination tile {number}", box


def _check_scratch(subject: Subject, group: int, rows: Ints, dst: Ints) -> None:
    """A rank keeps a piece aside at most once."""
    routes = subject.plan.routes
    aside = routes.scratch[rows] > 0
    size = max(1, len(subject.plan.pieces))
    keys = np.sort(dst[aside] * size + routes.piece[rows][aside])
    twice = np.flatnonzero(np.diff(keys) == 0)
    if len(twice):
        rank, piece = divmod(int(keys[twice[0]]), size)
        name = subject.samples[group].name
        raise CoverageError(f"tensor {name!r}: rank {rank} keeps piece {piece} in scratch twice")
