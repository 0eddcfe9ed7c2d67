"""Boxes: half-open N-d index ranges of a tensor, in global element coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A half-open N-d index range ``lo <= i < hi``, in elements.

    A 0-d box has empty tuples and a volume of one element.
    """

    lo: tuple[int, ...]
    hi: tuple[int, ...]

    @classmethod
    def of_shape(cls, shape: tuple[int, ...]) -> Box:
        """The box of a whole tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def ndim(self) -> int:
        return len(self.lo)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent per dimension, in elements."""
        return tuple(h - l for l, h in zip(self.lo, self.hi, strict=True))

    @property
    def volume(self) -> int:
        """Number of elements; zero if any extent is empty."""
        return prod(max(0, extent) for extent in self.shape)

    def contains(self, other: Box) -> bool:
        """Whether every element of ``other`` lies in this box."""
        for a, b, c, d in zip(self.lo, self.hi, other.lo, other.hi, strict=True):
            if a > c or d > b:
                return other.volume == 0
        return True

    def intersect(self, other: Box) -> Box:
        """The common box; of volume zero where the two do not meet."""
        lo = tuple(map(max, self.lo, other.lo))
        hi = tuple(map(max, lo, map(min, self.hi, other.hi)))
        return Box(lo, hi)

    def without(self, other: Box) -> list[Box]:
        """Disjoint boxes that make up what of this box does not lie in ``other``."""
        if not self.intersect(other).volume:
            return [self]
        parts = []
        rest = self
        for dim, (lo, hi) in enumerate(zip(other.lo, other.hi, strict=True)):
            if rest.lo[dim] < lo:
                parts.append(rest.replace(dim, rest.lo[dim], lo))
            if hi < rest.hi[dim]:
                parts.append(rest.replace(dim, hi, rest.hi[dim]))
            rest = rest.replace(dim, max(lo, rest.lo[dim]), min(hi, rest.hi[dim]))
        return parts

    def replace(self, dim: int, lo: int, hi: int) -> Box:
        """This box with another range along one dimension."""
        return Box((*self.lo[:dim], lo, *self.lo[dim + 1 :]), (*self.hi[:dim], hi, *self.hi[dim + 1 :]))

    def shift(self, origin: tuple[int, ...]) -> Box:
        """This box in coordinates relative to ``origin``."""
        return Box(
            tuple(l - o for l, o in zip(self.lo, origin, strict=True)),
            tuple(h - o for h, o in zip(self.hi, origin, strict=True)),
        )

    def slices(self) -> tuple[slice, ...]:
        """Index expression that selects this box."""
        return tuple(slice(l, h) for l, h in zip(self.lo, self.hi, strict=True))

    def chunk(self, dim: int, index: int, count: int, align: int = 1) -> Box:
        """Range ``index`` of ``count`` near-equal ranges along ``dim``; see :func:`chunk_range`."""
        return self.replace(dim, *chunk_range(self.lo[dim], self.hi[dim], index, count, align))

    def chunks(self, dim: int, count: int, align: int = 1) -> Iterator[Box]:
        """All ``count`` chunks along ``dim``, in order, empty ones included."""
        return (self.chunk(dim, index, count, align) for index in range(count))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{l}:{h}" for l, h in zip(self.lo, self.hi, strict=True)) + "]"


def outside(box: Box, others: Iterable[Box]) -> list[Box]:
    """Disjoint boxes that make up what of a box lies in none of some others."""
    parts = [box]
    for other in others:
        if box.intersect(other).volume:
            parts = [left for part in parts for left in part.without(other)]
    return parts


def chunk_range(lo: int, hi: int, index: int, count: int, align: int = 1) -> tuple[int, int]:
    """Bounds of near-equal chunk ``index`` of ``count`` of the range ``lo:hi``.

    Cuts fall at ``lo + align * floor(steps * j / count)`` with ``steps = (hi - lo) / align``, so the
    chunks are in order, disjoint, cover the range and differ by at most one step.
    ``align`` is in elements; ``hi - lo`` must be a multiple of it.
    """
    steps = (hi - lo) // align
    return lo + align * (steps * index // count), lo + align * (steps * (index + 1) // count)
