"""Views: where boxes lie in a rank's buffers, in storage elements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from reshard_planner.box import Box
from reshard_planner.spec.tiles import LocalTile


class Place(IntEnum):
    """Where the bytes of a move lie on this rank."""

    SOURCE = 0
    """In a source buffer."""
    DESTINATION = 1
    """In a destination buffer."""
    SCRATCH = 2
    """In scratch, dense and row-major, under the number of the operation that brought them."""


@dataclass(frozen=True, slots=True)
class View:
    """A box within a buffer, all of a move or a part of it, in storage elements.

    A storage element is one element of the tensor, or one byte for dtypes below eight bits.

    Attributes:
        place: kind of buffer.
        buffer: number of the buffer among the rank's buffers of the tensor on that side, or number of the
            operation that brought the scratch.
        offset: position of the first storage element.
        shape: extent per dimension.
        strides: distance between neighbours per dimension.
        converts: whether elements have another type here than on their way.
        at: position of its first element within the box of the move, per dimension; empty for the origin.
    """

    place: Place
    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    converts: bool = False
    at: tuple[int, ...] = ()


def tile_views(
    place: Place, entry: LocalTile, box: Box, bits: int, *, converting: bool = False
) -> tuple[View, ...]:
    """A box within a tile, as far as it lies in each of the tile's spans, in their order.

    Args:
        place: kind of buffer.
        entry: the tile.
        box: what of it.
        bits: bits of one element.
        converting: whether elements have another type here than on their way; such are whole bytes.
    """
    found = []
    for span in entry.spans:
        tile = span.tile
        part = box if len(entry.spans) == 1 else box.intersect(tile.box)
        if not part.volume:
            continue
        offset = tile.offset + _distance(part.lo, tile.box.lo, tile.strides)
        at = tuple(lo - first for lo, first in zip(part.lo, box.lo, strict=True)) if part.lo != box.lo else ()
        if converting:
            found.append(View(place, span.buffer, offset, part.shape, tile.strides, converts=True, at=at))
        else:
            found.append(_storage_view(place, span.buffer, offset, part.shape, tile.strides, bits, at))
    return tuple(found)


def common_views(one: View, two: View) -> tuple[View, View] | None:
    """What two views of one move have in common, as a view at each of their places; None if nothing."""
    origin = (0,) * len(one.shape)
    one_at, two_at = one.at or origin, two.at or origin
    lo = tuple(map(max, one_at, two_at))
    hi = tuple(min(a + b, c + d) for a, b, c, d in zip(one_at, one.shape, two_at, two.shape, strict=True))
    shape = tuple(h - l for l, h in zip(lo, hi, strict=True))
    if min(shape, default=1) <= 0:
        return None
    first, second = (
        replace(view, shape=shape, at=lo, offset=view.offset + _distance(lo, at, view.strides))
        for view, at in ((one, one_at), (two, two_at))
    )
    return first, second


def _distance(to: tuple[int, ...], start: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((a - b) * stride for a, b, stride in zip(to, start, strides, strict=True))


def scratch_view(op: int, whole: Box, box: Box, bits: int) -> View:
    """A box within the dense scratch copy of a larger one."""
    extents = whole.shape
    strides = [1] * len(extents)
    for dim in reversed(range(len(extents) - 1)):
        strides[dim] = strides[dim + 1] * extents[dim + 1]
    offset = _distance(box.lo, whole.lo, tuple(strides))
    return _storage_view(Place.SCRATCH, op, offset, box.shape, tuple(strides), bits)


def _storage_view(
    place: Place,
    buffer: int,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    bits: int,
    at: tuple[int, ...] = (),
) -> View:
    if bits >= 8:
        return View(place, buffer, offset, shape, strides, at=at)
    packed = (*(stride * bits // 8 for stride in strides[:-1]), 1)
    if at:
        at = (*at[:-1], at[-1] * bits // 8)
    return View(place, buffer, offset * bits // 8, (*shape[:-1], shape[-1] * bits // 8), packed, at=at)


def storage_shape(shape: tuple[int, ...], bits: int) -> tuple[int, ...]:
    """Shape of a local buffer in storage elements: bytes along the last dimension below eight bits."""
    return (*shape[:-1], shape[-1] * bits // 8) if bits < 8 and shape else shape


def storage_nbytes(bits: int) -> int:
    """Bytes of one storage element."""
    return max(1, bits // 8)
