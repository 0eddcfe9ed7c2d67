"""Every tile of one tensor, per side and rank, numbered as plans refer to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reshard_planner.box import Box
from reshard_planner.layout import Tile
from reshard_planner.layout.stored import Stored
from reshard_planner.spec.values import Side, TensorSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LocalBuffer:
    """A local buffer of a rank, as those who give and receive buffers know it.

    Attributes:
        name: the name it goes by.
        at: its position among the rank's buffers of that name: each of several layouts without storage has
            a buffer of its own, in their order, and storage says at which position a buffer is.
        shape: extent per dimension, in elements.
    """

    name: str
    at: int
    shape: tuple[int, ...]

    @property
    def key(self) -> tuple[str, int]:
        """What tells the rank's buffers apart on one side."""
        return self.name, self.at


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a tile that lies in one buffer.

    Attributes:
        buffer: position among the rank's buffers of this tensor and side.
        tile: box, offset and strides.
    """

    buffer: int
    tile: Tile


@dataclass(frozen=True, slots=True)
class LocalTile:
    """A tile of a rank, and where it lies: in one place, or in several with storage.

    Attributes:
        box: what it holds.
        spans: disjoint parts that make it up.
    """

    box: Box
    spans: tuple[Span, ...]


class SideTiles:
    """The tiles of one tensor on one side.

    A rank's buffers are numbered through all layouts that it is part of, in the order of the layouts, and its
    tiles through all buffers in storage order. Plans name destination tiles by these numbers.
    """

    def __init__(self, tensor: TensorSpec, side: Side) -> None:
        self._tilings = tensor.tilings(side)
        self._names = tensor.buffers(side)
        self._members = [frozenset(tiling.ranks.tolist()) for tiling in self._tilings]
        self._tiles: dict[int, tuple[LocalTile, ...]] = {}

    def ranks(self) -> tuple[int, ...]:
        """Ranks that store part of the tensor on this side, ascending; some may store empty shards."""
        return tuple(sorted(frozenset[int]().union(*self._members)))

    def buffers(self, rank: int) -> tuple[LocalBuffer, ...]:
        """The rank's buffers; none for a rank outside the meshes."""
        found: list[LocalBuffer] = []
        seen: dict[str, int] = {}
        for number, (tiling, members) in enumerate(zip(self._tilings, self._members, strict=True)):
            if rank in members:
                names = self._names[number]
                if isinstance(tiling, Stored):
                    entry = tiling.entry(rank)
                    found.extend(LocalBuffer(names[own.buffer], own.at, own.shape) for own in entry)
                    continue
                for at, shape in tiling.buffers(rank):
                    place = seen[names[at]] = seen.get(names[at], -1) + 1
                    found.append(LocalBuffer(names[at], place, shape))
        return tuple(found)

    def expected(self, rank: int) -> dict[str, list[tuple[int, ...]]]:
        """Shapes in elements of the rank's buffers by name."""
        found: dict[str, dict[int, tuple[int, ...]]] = {}
        for buffer in self.buffers(rank):
            found.setdefault(buffer.name, {})[buffer.at] = buffer.shape
        return {name: [shapes[at] for at in sorted(shapes)] for name, shapes in found.items()}

    def pick(self, rank: int, by_name: Mapping[str, Sequence[T]]) -> list[T]:
        """The rank's buffers of this tensor among all of its buffers on this side, all of which are given."""
        return [by_name[buffer.name][buffer.at] for buffer in self.buffers(rank)]

    def count(self, rank: int) -> int:
        """Number of the rank's non-empty tiles."""
        return sum(
            tiling.count(rank)
            for tiling, members in zip(self._tilings, self._members, strict=True)
            if rank in members
        )

    def tiles(self, rank: int) -> tuple[LocalTile, ...]:
        """The rank's non-empty tiles through all of its buffers."""
        if rank not in self._tiles:
            found: list[LocalTile] = []
            base = 0
            for tiling, members in zip(self._tilings, self._members, strict=True):
                if rank in members:
                    spans = [Span(base + at, tile) for at, tile in tiling.local_tiles(rank)]
                    joined = tiling.joined(rank)
                    found.extend(LocalTile(box, tuple(spans[at] for at in parts)) for box, parts in joined)
                    base += len(tiling.buffers(rank))
            self._tiles[rank] = tuple(found)
        return self._tiles[rank]

    def containing(self, rank: int, box: Box) -> tuple[int, ...]:
        """Numbers of the rank's tiles that contain a non-empty box, ascending."""
        found: list[int] = []
        base = 0
        for tiling, members in zip(self._tilings, self._members, strict=True):
            if rank in members:
                found.extend(base + number for number in tiling.containing(rank, box))
                base += tiling.count(rank)
        return tuple(found)


def expected_buffers(
    tensors: Sequence[TensorSpec], side: Side, rank: int
) -> list[dict[str, list[tuple[int, ...]]]]:
    """What a rank must give of every tensor on one side: shapes in elements, by name.

    Of a tensor that it stores nothing of, that is nothing under its name, unless this is the name of another
    tensor's buffer: pipeline stages number their layers alike.
    """
    found = [SideTiles(tensor, side).expected(rank) for tensor in tensors]
    held = {name for own in found for name in own}
    for tensor, own in zip(tensors, found, strict=True):
        name = tensor.buffers(side)[0][0]
        if not own and name not in held:
            own[name] = []
    return found
