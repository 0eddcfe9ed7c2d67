"""Atoms and classes: the finest boxes that a reshard tells apart, merged by who holds and who needs them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import UnsupportedError
from reshard_planner.layout import Partition
from reshard_planner.spec import TensorSpec

Ranks = tuple[int, ...]

MAX_ATOMS = 2**21
"""Most atoms of one tensor: layouts that cut each other to dust are refused instead of filling the memory."""


@dataclass(frozen=True, slots=True)
class Atoms:
    """The atoms and classes of one tensor.

    Attributes:
        lo: first index of each atom, int64 of shape (atoms, dims).
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

    Works on the distinct shards per dimension, never on pairs of ranks: each dimension is cut at every
    shard boundary of every layout, and the product of the dimensions' intervals are the atoms. An atom
    thus lies within one tile of each rank and layout that stores it. With one layout per side, neighbouring
    atoms differ in holders or needers; with several, they may agree, and stay apart because of their tiles.
    """
    src, dst = tensor.partitions("src"), tensor.partitions("dst")
    partitions = (*src, *dst)
    cuts = [_cuts(partitions, dim, size) for dim, size in enumerate(tensor.shape)]
    extents = tuple(max(0, len(cut) - 1) for cut in cuts)
    count = prod(extents)
    if count > MAX_ATOMS:
        raise UnsupportedError(
            f"tensor {tensor.name!r}: its layouts cut it in {count} atoms; expected at most {MAX_ATOMS}"
        )
    keys = [_shard_keys(partition, cuts, extents) for partition in partitions]
    holder_of, holders = _rank_sets(src, keys[: len(src)])
    needer_of, needers = _rank_sets(dst, keys[len(src) :])
    pair = holder_of * max(1, len(needers)) + needer_of
    _, first, class_of = np.unique(pair, return_index=True, return_inverse=True)
    by_appearance = np.argsort(np.argsort(first, kind="stable"), kind="stable")
    class_of = by_appearance[class_of.reshape(-1)]
    count = len(class_of)
    index = np.unravel_index(np.arange(count), extents) if extents else ()
    lo = np.empty((count, len(extents)), dtype=np.int64)
    hi = np.empty((count, len(extents)), dtype=np.int64)
    for dim, cut in enumerate(cuts):
        lo[:, dim] = cut[index[dim]]
        hi[:, dim] = cut[index[dim] + 1]
    by_class = np.lexsort((np.arange(count), class_of))
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


def _cuts(partitions: tuple[Partition, ...], dim: int, size: int) -> NDArray[np.int64]:
    bounds = {0, size}
    for partition in partitions:
        for shard in partition.shards[dim]:
            for lo, hi in shard:
                bounds.update((lo, hi))
    return np.array(sorted(bounds), dtype=np.int64)


def _shard_keys(
    partition: Partition, cuts: list[NDArray[np.int64]], extents: tuple[int, ...]
) -> NDArray[np.int64]:
    """The shard that every atom of the product lies in, as one number per atom."""
    key = np.zeros(extents, dtype=np.int64)
    for dim, cut in enumerate(cuts):
        shard_of = np.zeros(extents[dim], dtype=np.int64)
        for shard, intervals in enumerate(partition.shards[dim]):
            for lo, hi in intervals:
                first, last = np.searchsorted(cut, (lo, hi))
                shard_of[first:last] = shard
        along = [1] * len(extents)
        along[dim] = extents[dim]
        key = key * len(partition.shards[dim]) + shard_of.reshape(along)
    return key.reshape(-1)


def _rank_sets(
    partitions: tuple[Partition, ...], keys: list[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], list[Ranks]]:
    """Number the distinct sets of ranks that store the atoms; returns the set of each atom and the sets."""
    number: dict[Ranks, int] = {}
    stores = [_ranks_by_key(partition) for partition in partitions]
    combined = np.stack(keys, axis=1)
    distinct, inverse = np.unique(combined, axis=0, return_inverse=True)
    numbers = np.empty(len(distinct), dtype=np.int64)
    for row, key in enumerate(distinct.tolist()):
        if len(stores) == 1:
            ranks = stores[0][key[0]]
        else:
            ranks = tuple(
                sorted({rank for store, part in zip(stores, key, strict=True) for rank in store[part]})
            )
        numbers[row] = number.setdefault(ranks, len(number))
    return numbers[inverse.reshape(-1)], list(number)


def _ranks_by_key(partition: Partition) -> dict[int, Ranks]:
    key = np.zeros(len(partition.ranks), dtype=np.int64)
    for dim, shards in enumerate(partition.shards):
        key = key * len(shards) + partition.choice[:, dim]
    order = np.lexsort((partition.ranks, key))
    bounds = np.flatnonzero(np.diff(key[order], prepend=-1, append=-1))
    ranks = partition.ranks[order].tolist()
    starts = bounds.tolist()
    return {int(key[order[start]]): tuple(ranks[start:stop]) for start, stop in itertools.pairwise(starts)}
