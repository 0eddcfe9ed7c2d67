"""Storage: where the tiles of a tensor lie in fused local buffers.

A layout with storage says for every rank which boxes it has, in which of its buffers, and at which strides.
It covers what placements cannot say: heads of several projections in one matrix, halves of a gate and an up
projection, experts one by one, boxes cut at any index, ranks that hold a box twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from reshard_planner.errors import LayoutError
from reshard_planner.layout.tile import Tile


@dataclass(frozen=True, slots=True)
class StoredBuffer:
    """What a rank has of a tensor in one of its buffers.

    Attributes:
        buffer: number of the buffer's name among the names that the tensor gives with the layout.
        shape: extent per dimension of the whole buffer, dense and row-major, in elements.
        tiles: the boxes, with offsets and strides in the buffer.
        at: position of the buffer among the rank's buffers of this name. They count from 0 without gaps, on
            every rank, through all layouts of a tensor.
    """

    buffer: int
    shape: tuple[int, ...]
    tiles: tuple[Tile, ...]
    at: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """What tells the buffers of an entry apart."""
        return self.buffer, self.at


Entry = tuple[StoredBuffer, ...]
"""What a rank stores, buffer by buffer; equal for replicas."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What every rank of a mesh stores, by its position.

    Attributes:
        entries: the distinct ones.
        entry_of: number of the entry of every position of the mesh, row-major.
    """

    entries: tuple[Entry, ...]
    entry_of: tuple[int, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __init__(self, entries: Iterable[Entry], entry_of: Sequence[int]) -> None:
        """Combine entries.

        Raises:
            LayoutError: if a position names an entry that does not exist.
        """
        object.__setattr__(self, "entries", tuple(entries))
        object.__setattr__(self, "entry_of", tuple(entry_of))
        for number in self.entry_of:
            if not 0 <= number < len(self.entries):
                raise LayoutError(
                    f"storage names entry {number}; expected one of its {len(self.entries)} entries"
                )
        # shared by hundreds of tensors, whose layouts are looked up by it
        object.__setattr__(self, "_hash", hash((self.entries, self.entry_of)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, by_position: Iterable[Entry]) -> Storage:
        """Storage from one entry per position of the mesh; equal ones become one."""
        numbers: dict[Entry, int] = {}
        entry_of = [numbers.setdefault(entry, len(numbers)) for entry in by_position]
        return cls(numbers, entry_of)
