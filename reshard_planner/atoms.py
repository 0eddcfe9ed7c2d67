"""Atoms and classes: the finest boxes that a reshard tells apart, merged by who holds and who needs them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.errors import SpecError, UnsupportedError
from reshard_planner.layout.tiling import Painted, cuts_of
from reshard_planner.spec import TensorSpec

Ranks = tuple[int, ...]

MAX_ATOMS = 2**21
"""Most atoms of one tensor: layouts that cut each other to dust are refused instead of filling the memory."""


@dataclass(frozen=True, slots=True)
class Atoms:
    """The atoms and classes of one tensor.

    Attributes:
        lo: first index of each atom that somebody needs, int64 of shape (atoms, dims).
        hi: index past the last of each atom, int64 of shape (atoms, dims).
        class_of: class of each atom, int64 of shape (atoms,); atoms are sorted by it, then row-major.
        nbytes: bytes of each class, in one tensor.
        holders: ranks that have the bytes before, ascending, per class.
        needers: ranks that must have them after, ascending, per class.
    """

    lo: NDArray[np.int64]
    hi: NDArray[np.int64]
    class_of: NDArray[np.int64]
    nbytes: tuple[int, ...]
    holders: tuple[Ranks, ...]
    needers: tuple[Ranks, ...]

    def __post_init__(self) -> None:
        for column in (self.lo, self.hi, self.class_of):
            column.setflags(write=False)

    @property
    def class_count(self) -> int:
        return len(self.nbytes)


def find_atoms(tensor: TensorSpec) -> Atoms:
    """Refine both sides' tiles and merge the parts by (holders, needers).

    Works on the distinct shards or boxes, never on pairs of ranks: each dimension is cut at every boundary
    of every layout, and the product of the dimensions' intervals are the atoms, but for those that nobody
    needs. An atom thus lies within one tile of each rank and layout that stores it. With one layout per side,
    neighbouring atoms differ in holders or needers; with several, or with storage, they may agree, and stay
    apart because of their tiles.

    Raises:
        SpecError: if a rank needs what no rank holds.
        UnsupportedError: if there are too many atoms.
    """
    src, dst = tensor.tilings("src"), tensor.tilings("dst")
    cuts = cuts_of((*src, *dst), tensor.shape)
    extents = tuple(max(0, len(cut) - 1) for cut in cuts)
    count = prod(extents)
    if count > MAX_ATOMS:
        raise UnsupportedError(
            f"tensor {tensor.name!r}: its layouts cut it in {count} atoms; expected at most {MAX_ATOMS}"
        )
    holder_of, holders = _rank_sets([each for tiling in src for each in tiling.paint(cuts, extents)], count)
    needer_of, needers = _rank_sets([each for tiling in dst for each in tiling.paint(cuts, extents)], count)
    atoms = np.arange(count)
    if not all(needers):
        atoms = np.flatnonzero(np.array([bool(ranks) for ranks in needers])[needer_of])
        holder_of, needer_of = holder_of[atoms], needer_of[atoms]
    pair = holder_of * max(1, len(needers)) + needer_of
    _, first, class_of = np.unique(pair, return_index=True, return_inverse=True)
    by_appearance = np.argsort(np.argsort(first, kind="stable"), kind="stable")
    class_of = by_appearance[class_of.reshape(-1)]
    index = np.unravel_index(atoms, extents) if extents else ()
    lo = np.empty((len(atoms), len(extents)), dtype=np.int64)
    hi = np.empty((len(atoms), len(extents)), dtype=np.int64)
    for dim, cut in enumerate(cuts):
        lo[:, dim] = cut[index[dim]]
        hi[:, dim] = cut[index[dim] + 1]
    for atom in sorted(first.tolist()):
        if not holders[holder_of[atom]]:
            raise SpecError(
                f"tensor {tensor.name!r}: rank {needers[needer_of[atom]][0]} needs"
                f" {Box(tuple(lo[atom].tolist()), tuple(hi[atom].tolist()))}, which no source holds"
            )
    by_class = np.lexsort((np.arange(len(atoms)), class_of))
    lo, hi, class_of = lo[by_class], hi[by_class], class_of[by_class]
    volumes = np.prod(hi - lo, axis=1, dtype=np.int64)
    sizes = np.zeros(len(first), dtype=np.int64)
    np.add.at(sizes, class_of, volumes)
    order = np.sort(first)
    return Atoms(
        lo,
        hi,
        class_of,
        tuple(int(size) * tensor.bits // 8 for size in sizes),
        tuple(holders[int(holder_of[atom])] for atom in order),
        tuple(needers[int(needer_of[atom])] for atom in order),
    )


def _rank_sets(painted: list[Painted], count: int) -> tuple[NDArray[np.int64], list[Ranks]]:
    """Number the distinct sets of ranks that store the atoms; returns the set of each atom and the sets."""
    if not painted:
        return np.zeros(count, dtype=np.int64), [()]
    number: dict[Ranks, int] = {}
    combined = np.stack([each.key for each in painted], axis=1)
    distinct, inverse = np.unique(combined, axis=0, return_inverse=True)
    numbers = np.empty(len(distinct), dtype=np.int64)
    for row, key in enumerate(distinct.tolist()):
        found = [each.ranks[part] for each, part in zip(painted, key, strict=True)]
        filled = [ranks for ranks in found if ranks]
        ranks = filled[0] if len(filled) == 1 else tuple(sorted({rank for each in filled for rank in each}))
        numbers[row] = number.setdefault(ranks, len(number))
    return numbers[inverse.reshape(-1)], list(number)
