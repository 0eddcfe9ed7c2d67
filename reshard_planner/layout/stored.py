"""The tiling that storage spells out: boxes by rank, at any place of any buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.errors import LayoutError
from reshard_planner.layout.storage import Entry, Storage, StoredBuffer
from reshard_planner.layout.tile import Tile
from reshard_planner.layout.tiling import NOTHING, Painted

Ints = NDArray[np.int64]

MAX_ELEMENTS = 2**56
"""Most elements of a local buffer: places in it, in bytes, are 64-bit integers."""

MAX_DIMS = 16
"""Most dimensions of a local buffer, as of a tensor."""

MAX_LOCALS = 2**16
"""Most local buffers of one name on a rank."""

Joined = tuple[tuple[Box, tuple[int, ...]], ...]
"""Boxes that are made of smaller ones, with the positions of those, in order of their first."""


@dataclass(frozen=True, slots=True, eq=False)
class Arranged:
    """What follows from storage and the shape of a tensor, whichever the ranks are.

    Attributes:
        joined: per entry, its boxes joined to larger ones, with positions among its tiles.
        bounds: per entry, first index and index past the last of these, int64 of shape (boxes, dims) each.
        positions: per entry, the positions of its buffers by their keys.
    """

    joined: tuple[Joined, ...]
    bounds: tuple[tuple[Ints, Ints], ...]
    positions: tuple[Mapping[tuple[int, int], int], ...]


@lru_cache(maxsize=1024)
def arrange(storage: Storage, shape: tuple[int, ...]) -> Arranged:
    """Check storage, and join its boxes; once for all pipeline stages.

    Raises:
        LayoutError: if it does not fit the shape.
    """
    check_storage(storage, shape)
    joined = tuple(
        join_boxes([tile.box for buffer in entry for tile in buffer.tiles]) for entry in storage.entries
    )
    bounds = tuple(
        (
            np.array([box.lo for box, _ in own], dtype=np.int64).reshape(len(own), len(shape)),
            np.array([box.hi for box, _ in own], dtype=np.int64).reshape(len(own), len(shape)),
        )
        for own in joined
    )
    positions = tuple(
        MappingProxyType({buffer.key: position for position, buffer in enumerate(entry)})
        for entry in storage.entries
    )
    return Arranged(joined, bounds, positions)


@dataclass(frozen=True, slots=True)
class Stored:
    """Who stores what of one tensor, from the storage of its layout; see :class:`Tiling`.

    Attributes:
        ranks: the ranks of the mesh in row-major order, int64 of shape (ranks,).
        alike: number of the entry of every rank, int64 of shape (ranks,).
        storage: the entries.
        arranged: the same for all ranks that these may be.
        entry_of: the numbers of entries by rank.
        boxes: every distinct joined box with the ranks that store it, ascending.
    """

    ranks: Ints
    alike: Ints
    storage: Storage
    arranged: Arranged
    entry_of: Mapping[int, int] = field(init=False, repr=False, compare=False)
    boxes: Mapping[Box, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        entry_of = dict(zip(self.ranks.tolist(), self.alike.tolist(), strict=True))
        object.__setattr__(self, "entry_of", MappingProxyType(entry_of))
        members: dict[int, list[int]] = {}
        for rank, entry in entry_of.items():
            members.setdefault(entry, []).append(rank)
        holding: dict[Box, set[int]] = {}
        for number, ranks in members.items():
            for box, _ in self.arranged.joined[number]:
                holding.setdefault(box, set()).update(ranks)
        boxes = {box: tuple(sorted(ranks)) for box, ranks in holding.items()}
        object.__setattr__(self, "boxes", MappingProxyType(boxes))

    def entry(self, rank: int) -> Entry:
        """What a rank of the mesh stores, buffer by buffer."""
        return self.storage.entries[self.entry_of[rank]]

    def buffers(self, rank: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Number of the name, and shape in elements, of each local buffer of a rank of the mesh."""
        return tuple((buffer.buffer, buffer.shape) for buffer in self.entry(rank))

    def local_tiles(self, rank: int) -> tuple[tuple[int, Tile], ...]:
        """The boxes of a rank in storage order, each with the position of its buffer."""
        entry = self.entry(rank)
        return tuple((position, tile) for position, buffer in enumerate(entry) for tile in buffer.tiles)

    def joined(self, rank: int) -> Joined:
        """The boxes that plans know, with positions in :meth:`local_tiles`."""
        return self.arranged.joined[self.entry_of[rank]]

    def count(self, rank: int) -> int:
        """Number of the rank's joined boxes."""
        return len(self.joined(rank))

    def containing(self, rank: int, box: Box) -> tuple[int, ...]:
        """Numbers of the rank's joined boxes that contain a non-empty box, ascending."""
        lo, hi = self.arranged.bounds[self.entry_of[rank]]
        inside = (lo <= box.lo).all(axis=1) & (box.hi <= hi).all(axis=1)
        return tuple(np.flatnonzero(inside).tolist())

    def buffer(self, rank: int, key: tuple[int, int]) -> tuple[tuple[int, ...], tuple[Tile, ...]]:
        """Shape of a rank's buffer of this key, which it has, and the tiles in it."""
        entry = self.entry_of[rank]
        found = self.storage.entries[entry][self.arranged.positions[entry][key]]
        return found.shape, found.tiles

    def cuts(self, dim: int) -> set[int]:
        """Where joined boxes begin or end along a dimension."""
        return {bound for box in self.boxes for bound in (box.lo[dim], box.hi[dim])}

    def paint(self, cuts: list[Ints], extents: tuple[int, ...]) -> tuple[Painted, ...]:
        """Colour atoms by the joined boxes that they lie in; where those overlap, in different colourings."""
        keys: list[Ints] = []
        ranks: list[dict[int, tuple[int, ...]]] = []
        bounds = []
        for dim, cut in enumerate(cuts):
            lo = np.searchsorted(cut, [box.lo[dim] for box in self.boxes]).tolist()
            hi = np.searchsorted(cut, [box.hi[dim] for box in self.boxes]).tolist()
            bounds.append([slice(*ends) for ends in zip(lo, hi, strict=True)])
        regions = list(zip(*bounds, strict=True)) if bounds else [() for _ in self.boxes]
        for number, (region, holding) in enumerate(zip(regions, self.boxes.values(), strict=True)):
            free = (at for at, key in enumerate(keys) if (key[region] == NOTHING).all())
            at = next(free, len(keys))
            if at == len(keys):
                keys.append(np.full(extents, NOTHING, dtype=np.int64))
                ranks.append({NOTHING: ()})
            keys[at][region] = number
            ranks[at][number] = holding
        return tuple(Painted(key.reshape(-1), owners) for key, owners in zip(keys, ranks, strict=True))


def join_boxes(boxes: Sequence[Box]) -> Joined:
    """Join boxes that are neighbours along one dimension and agree in all others, as long as there are any.

    What is planned does not depend on where bytes lie: experts in buffers of their own are one box, and so
    are the query heads of all groups of a rank.

    >>> join_boxes([Box((0, 0), (1, 4)), Box((2, 0), (3, 4)), Box((1, 0), (2, 4))])
    ((Box(lo=(0, 0), hi=(3, 4)), (0, 1, 2)),)
    """
    found: list[tuple[Box, tuple[int, ...]]] = [(box, (position,)) for position, box in enumerate(boxes)]
    count = 0
    while len(found) != count:
        count = len(found)
        for dim in range(boxes[0].ndim if boxes else 0):
            found = _join_along(found, dim)
    return tuple(sorted(found, key=lambda each: each[1]))


def _join_along(found: Iterable[tuple[Box, tuple[int, ...]]], dim: int) -> list[tuple[Box, tuple[int, ...]]]:
    done: list[tuple[Box, tuple[int, ...]]] = []
    ends: dict[tuple[tuple[int, ...], tuple[int, ...], int], int] = {}
    for box, positions in sorted(found, key=lambda each: (each[0].lo[dim], each[1])):
        across = ((*box.lo[:dim], *box.lo[dim + 1 :]), (*box.hi[:dim], *box.hi[dim + 1 :]))
        at = ends.pop((*across, box.lo[dim]), None)
        if at is None:
            at = len(done)
            done.append((box, positions))
        else:
            before, others = done[at]
            merged = before.replace(dim, before.lo[dim], box.hi[dim])
            done[at] = (merged, tuple(sorted((*others, *positions))))
        ends[(*across, box.hi[dim])] = at
    return done


def check_storage(storage: Storage, shape: tuple[int, ...]) -> None:
    """Check that all tiles are boxes of a tensor and lie in their buffers.

    Args:
        storage: what is checked.
        shape: global shape of the tensor, in elements.

    Raises:
        LayoutError: naming box, buffer and what would be right.
    """
    for number, entry in enumerate(storage.entries):
        seen: set[tuple[int, int]] = set()
        for buffer in entry:
            at = buffer.at
            if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < MAX_LOCALS:
                raise LayoutError(
                    f"storage has a buffer {buffer.buffer} at {at!r}; expected an integer from 0 to"
                    f" {MAX_LOCALS - 1}"
                )
            if buffer.key in seen:
                raise LayoutError(
                    f"storage describes buffer {buffer.buffer}{f' at {at}' * (at > 0)} twice in"
                    f" entry {number}; expected all of its tiles in one"
                )
            seen.add(buffer.key)
            if buffer.buffer < 0:
                raise LayoutError(f"storage names buffer number {buffer.buffer}; expected 0 or more")
            if min(buffer.shape, default=0) < 0:
                raise LayoutError(f"storage has a buffer of shape {list(buffer.shape)}; expected 0 or more")
            if len(buffer.shape) > MAX_DIMS or prod(size for size in buffer.shape if size) > MAX_ELEMENTS:
                raise LayoutError(
                    f"storage has a buffer of shape {list(buffer.shape)}; expected at most {MAX_DIMS}"
                    f" dimensions and {MAX_ELEMENTS} elements"
                )
            for tile in buffer.tiles:
                _check_tile(tile, buffer, shape)


def _check_tile(tile: Tile, buffer: StoredBuffer, shape: tuple[int, ...]) -> None:
    box = tile.box
    if not len(box.lo) == len(box.hi) == len(shape):
        raise LayoutError(
            f"storage has a box of {len(box.lo)} dimensions; the tensor has {len(shape)}: {list(shape)}"
        )
    if any(not 0 <= lo < hi <= size for lo, hi, size in zip(box.lo, box.hi, shape, strict=True)):
        raise LayoutError(f"storage has the box {box}; expected a non-empty one within {list(shape)}")
    if len(tile.strides) != len(shape):
        raise LayoutError(
            f"storage has {len(tile.strides)} strides for the box {box}; expected {len(shape)}, one for each"
            " dimension"
        )
    if tile.offset < 0 or min(tile.strides, default=0) < 0:
        raise LayoutError(
            f"storage has offset {tile.offset} and strides {list(tile.strides)} for the box {box}; expected 0"
            " or more"
        )
    last = tile.offset + sum(
        (extent - 1) * stride for extent, stride in zip(box.shape, tile.strides, strict=True)
    )
    if last >= prod(buffer.shape):
        raise LayoutError(
            f"storage puts the last element of the box {box} at {last}; its buffer of shape"
            f" {list(buffer.shape)} has {prod(buffer.shape)} elements"
        )
    if max(tile.strides, default=0) > MAX_ELEMENTS:  # of a dimension of one element, as the last one fits
        raise LayoutError(
            f"storage has strides {list(tile.strides)} for the box {box}; expected at most {MAX_ELEMENTS}"
        )
