"""Hypothesis strategies for storage: the shards of ordinary specs in fused buffers, and boxes cut anywhere.

What matters for shrinking is drawn: shapes, layouts, and which kinds of storage there are. Where boxes are
cut and where they lie comes from one drawn seed, as a tensor may have hundreds of boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod
from random import Random

import numpy as np
from hypothesis import strategies as st
from strategies import (
    MAX_RANKS,
    STRATEGIES,
    SUB_BYTE_DTYPES,
    WHOLE_BYTE_DTYPES,
    layouts,
    options,
    shapes,
    specs,
    topologies,
)

import reshard_planner as rp
from reshard_planner.box import Box
from reshard_planner.dtypes import DTYPE_BITS, is_castable
from reshard_planner.layout import Storage, StoredBuffer, Tile
from reshard_planner.spec.values import Side, byte_step

FLOATS = tuple(name for name in DTYPE_BITS if is_castable(name, name))
DTYPES = (*WHOLE_BYTE_DTYPES, *SUB_BYTE_DTYPES)
SIDES: tuple[Side, Side] = ("src", "dst")
MAX_PIECES = 6
TRIES = 40
"""Offsets that are tried before a box goes to the end of its buffer."""

GENERATORS = st.integers(0, 2**32).map(Random)
"""Sources of what is not drawn one by one."""

Ranked = dict[int, list[Box]]
"""Boxes by rank."""


@dataclass
class _Room:
    """A local buffer that is being filled."""

    taken: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def is_free(self, at: np.ndarray) -> bool:
        return not self.taken[at[at < len(self.taken)]].any()

    def take(self, at: np.ndarray) -> None:
        if at.max() >= len(self.taken):
            self.taken = np.append(self.taken, np.zeros(int(at.max()) + 1 - len(self.taken), dtype=bool))
        self.taken[at] = True


@dataclass
class _Placed:
    """Where the tiles of one layout lie: by rank, in order, each with the name of its buffer."""

    layout: rp.Layout
    tiles: dict[int, list[tuple[str, Tile]]]


class Rooms:
    """The local buffers of all ranks on one side, filled tensor by tensor."""

    def __init__(self, rng: Random, step_of: dict[str, int]) -> None:
        self.rng, self.step_of = rng, step_of
        self.rooms: dict[tuple[int, str], _Room] = {}
        self.padding: dict[str, int] = {}

    def put(
        self, rank: int, names: Sequence[str], box: Box, like: Sequence[tuple[str, Tile]]
    ) -> tuple[str, Tile]:
        """A free place for a box; one of a replica's if that is free here, too."""
        for name, tile in like:
            room = self.rooms.setdefault((rank, name), _Room())
            if tile.box == box and room.is_free(at := positions(box.shape, tile.offset, tile.strides)):
                room.take(at)
                return name, tile
        name = self.rng.choice(list(names))
        room, step = self.rooms.setdefault((rank, name), _Room()), self.step_of[name]
        strides = self.strides(box.shape, step)
        offset = self.rng.choice((0, 0, 1, 5)) * step
        for _ in range(TRIES):
            if room.is_free(positions(box.shape, offset, strides)):
                break
            offset += step * self.rng.choice((1, 1, 2, 7))
        else:
            offset = -(-len(room.taken) // step) * step
        room.take(positions(box.shape, offset, strides))
        return name, Tile(box, offset, strides)

    def strides(self, shape: tuple[int, ...], step: int) -> tuple[int, ...]:
        """Dimensions in any order, with gaps; rows stay in whole bytes."""
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        if step > 1:
            order = [dim for dim in order if dim != len(shape) - 1] + [len(shape) - 1]
        strides = [0] * len(shape)
        stride = 1 if step > 1 else self.rng.choice((1, 1, 1, 2))
        for dim in reversed(order):
            strides[dim] = stride
            stride = stride * shape[dim] + self.rng.choice((0, 0, 0, 1, 3)) * step
        return tuple(strides)

    def shape(self, rank: int, name: str) -> tuple[int, ...]:
        """The shape of a buffer once all is in it: flat, or of rows; a little too large."""
        step = self.step_of[name]
        padding = self.padding.setdefault(name, self.rng.choice((0, 0, 1, 4)))
        count = -(-len(self.rooms[rank, name].taken) // step) + padding
        rows = 1 + padding % 3 if padding else 1
        return (rows, -(-count // rows) * step) if rows > 1 else (count * step,)

    def layout(
        self, placed: _Placed, names: Sequence[str], *, keep: bool
    ) -> tuple[rp.Layout, tuple[str, ...]]:
        """The layout that storage gives, with the placements of the one it comes from or without."""
        used = sorted({name for tiles in placed.tiles.values() for name, _ in tiles})
        self.rng.shuffle(used)
        used = used or [names[0]]
        entries = []
        for rank in placed.layout.mesh.ranks:
            by_name: dict[str, list[Tile]] = {}
            for name, tile in placed.tiles.get(rank, ()):
                by_name.setdefault(name, []).append(tile)
            entries.append(
                tuple(
                    StoredBuffer(used.index(name), self.shape(rank, name), tuple(tiles))
                    for name, tiles in by_name.items()
                )
            )
        storage, mesh = Storage.of(entries), placed.layout.mesh
        layout = (
            rp.Layout(mesh, placed.layout.placements, storage) if keep else rp.Layout.stored(mesh, storage)
        )
        return layout, tuple(used)


def positions(shape: Sequence[int], offset: int, strides: Sequence[int]) -> np.ndarray:
    """Where the elements of a box lie in its buffer, row-major."""
    found = np.full(1, offset)
    for extent, stride in zip(shape, strides, strict=True):
        found = (found[:, None] + np.arange(extent) * stride).reshape(-1)
    return found


def cut(rng: Random, box: Box, step: int, *, grid: bool) -> list[Box]:
    """Some boxes that make one up: of a grid, or halves of halves; cut at whole bytes."""

    def between(part: Box, dim: int) -> list[int]:
        by = step if dim == box.ndim - 1 else 1
        return list(range(part.lo[dim] + by, part.hi[dim], by))

    if grid:
        ranges = []
        for dim in range(box.ndim):
            inner = between(box, dim)
            chosen = sorted(rng.sample(inner, min(len(inner), rng.choice((0, 0, 1, 2)))))
            ranges.append(list(pairwise((box.lo[dim], *chosen, box.hi[dim]))))
        return [Box(tuple(lo for lo, _ in each), tuple(hi for _, hi in each)) for each in product(*ranges)]
    parts = [box]
    for _ in range(rng.randrange(MAX_PIECES)):
        part = parts.pop(rng.randrange(len(parts)))
        dims = [dim for dim in range(box.ndim) if between(part, dim)]
        if not dims:
            return [*parts, part]
        dim = rng.choice(dims)
        at = rng.choice(between(part, dim))
        parts += [part.replace(dim, part.lo[dim], at), part.replace(dim, at, part.hi[dim])]
    rng.shuffle(parts)
    return parts


def buffer_names(side: Side, tensor: rp.TensorSpec) -> list[str]:
    """Names of buffers that a tensor may use with others of its dtype."""
    return [f"{side}.{tensor.side_dtype(side)}.{number}" for number in range(3)]


def _rooms(rng: Random, side: Side, tensors: Sequence[rp.TensorSpec]) -> Rooms:
    steps = {
        name: byte_step(DTYPE_BITS[tensor.side_dtype(side)])
        for tensor in tensors
        for name in (*buffer_names(side, tensor), tensor.name)
    }
    return Rooms(rng, steps)


@st.composite
def stored(draw: st.DrawFn, spec: rp.ReshardSpec, *, exact: bool = False) -> rp.ReshardSpec:
    """The spec with storage: every rank's shards cut, and spread over buffers that tensors may share.

    Args:
        draw: from hypothesis.
        spec: whose layouts are of placements.
        exact: whether all boxes are cut to grids, kept in order, and stored once.
    """
    rng = draw(GENERATORS)
    sides: dict[Side, list[list[tuple[rp.Layout, tuple[str, ...]]]]] = {}
    for side in SIDES:
        rooms = _rooms(rng, side, spec.tensors)
        placed: list[list[tuple[_Placed | rp.Layout, bool]]] = []
        for tensor in spec.tensors:
            kinds = [draw(st.sampled_from(["both", "alone", "none"])) for _ in tensor.layouts(side)]
            names = buffer_names(side, tensor)[: draw(st.integers(1, 3))]
            if "none" not in kinds and draw(st.booleans()):
                names = [*names, tensor.name]
            step = byte_step(DTYPE_BITS[tensor.side_dtype(side)])
            found: list[tuple[_Placed | rp.Layout, bool]] = []
            for layout, kind in zip(tensor.layouts(side), kinds, strict=True):
                if kind == "none":
                    found.append((layout, True))
                    continue
                twice = kind == "alone" and not exact and draw(st.integers(0, 3)) == 0
                boxes = _cut_shards(rng, layout, tensor.shape, step, exact=exact, twice=twice)
                tiles: dict[int, list[tuple[str, Tile]]] = {}
                replicas = draw(st.booleans())
                for rank, own in boxes.items():
                    like = next((done for done in tiles.values() if replicas), [])
                    tiles[rank] = [rooms.put(rank, names, box, like) for box in own]
                found.append((_Placed(layout, tiles), kind == "both"))
            placed.append(found)
        sides[side] = [
            [
                rooms.layout(each, buffer_names(side, tensor), keep=keep)
                if isinstance(each, _Placed)
                else (each, (tensor.name,))
                for each, keep in found
            ]
            for tensor, found in zip(spec.tensors, placed, strict=True)
        ]
    return _rebuilt(spec, sides)


def _cut_shards(
    rng: Random, layout: rp.Layout, shape: tuple[int, ...], step: int, *, exact: bool, twice: bool
) -> Ranked:
    """What every rank has under a layout of placements, cut; equal shards in equal ways half of the time."""
    partition = layout.partition(shape)
    known: dict[int, list[Box]] = {}
    found: Ranked = {}
    for rank, kind in zip(partition.ranks.tolist(), partition.alike.tolist(), strict=True):
        boxes = known.get(kind)
        if boxes is None or rng.random() < 0.3:
            boxes = [
                part
                for tile in partition.tiles(rank)
                for part in cut(rng, tile.box, step, grid=exact or rng.random() < 0.4)
            ]
            if not exact:
                rng.shuffle(boxes)
            if twice and boxes:
                boxes = [*boxes, rng.choice(boxes)]
            known[kind] = boxes
        found[rank] = boxes
    return found


def _rebuilt(
    spec: rp.ReshardSpec, sides: dict[Side, list[list[tuple[rp.Layout, tuple[str, ...]]]]]
) -> rp.ReshardSpec:
    tensors = [
        rp.TensorSpec(
            tensor.name,
            tensor.shape,
            tensor.dtype,
            [layout for layout, _ in src],
            [layout for layout, _ in dst],
            dst_dtype=tensor.dst_dtype,
            cast=True,
            src_buffers=[names for _, names in src],
            dst_buffers=[names for _, names in dst],
        )
        for tensor, src, dst in zip(spec.tensors, sides["src"], sides["dst"], strict=True)
    ]
    return rp.ReshardSpec(tensors, spec.topology, spec.options)


def random_box(rng: Random, shape: tuple[int, ...], step: int) -> Box:
    """A non-empty box of a tensor, in whole bytes along the last dimension."""
    lo, hi = [], []
    for dim, size in enumerate(shape):
        by = step if dim == len(shape) - 1 else 1
        first = rng.randrange(size // by)
        lo.append(first * by)
        hi.append(rng.randint(first + 1, size // by) * by)
    return Box(tuple(lo), tuple(hi))


@st.composite
def irregular_specs(
    draw: st.DrawFn,
    max_ranks: int = MAX_RANKS,
    dtypes: Sequence[str] = DTYPES,
    strategies: Sequence[str] = STRATEGIES,
) -> rp.ReshardSpec:
    """Specs that no placements can say: boxes of any extents and overlaps; sources cover what is needed."""
    rng = draw(GENERATORS)
    pool = range(draw(st.integers(1, max_ranks) | st.integers((max_ranks + 1) // 2, max_ranks)))
    dtypes = draw(st.lists(st.sampled_from(list(dtypes)), min_size=1, max_size=3))
    plain = []
    for number, dtype in enumerate(dtypes):
        shape = draw(shapes(last_multiple_of=byte_step(DTYPE_BITS[dtype])))
        kinds = draw(st.sampled_from([("boxes", "boxes"), ("boxes", "layout"), ("layout", "boxes")]))
        whole = rp.Layout(rp.Mesh(rng.sample(pool, rng.randint(1, len(pool)))), ["R"])
        dims = range(len(shape) - 1) if byte_step(DTYPE_BITS[dtype]) > 1 else None
        src, dst = (draw(layouts(shape, pool, dims)) if kind == "layout" else whole for kind in kinds)
        plain.append((rp.TensorSpec(f"t{number}", shape, dtype, src, dst), kinds))
    sides: dict[Side, list[list[tuple[rp.Layout, tuple[str, ...]]]]] = {}
    for side, which in zip(SIDES, (0, 1), strict=True):
        rooms = _rooms(rng, side, [tensor for tensor, _ in plain])
        placed = []
        for tensor, kinds in plain:
            [layout] = tensor.layouts(side)
            step = byte_step(DTYPE_BITS[tensor.dtype])
            tiles = {
                rank: [rooms.put(rank, buffer_names(side, tensor), box, ()) for box in own]
                for rank, own in _any_boxes(rng, side, layout.mesh.ranks, tensor.shape, step).items()
            }
            placed.append(_Placed(layout, tiles) if kinds[which] == "boxes" else layout)
        sides[side] = [
            [
                rooms.layout(each, buffer_names(side, tensor), keep=False)
                if isinstance(each, _Placed)
                else (each, (tensor.name,))
            ]
            for (tensor, _), each in zip(plain, placed, strict=True)
        ]
    spec = rp.ReshardSpec(
        [tensor for tensor, _ in plain], draw(topologies(pool)), draw(options(list(strategies)))
    )
    return _rebuilt(spec, sides)


def _any_boxes(rng: Random, side: Side, ranks: Sequence[int], shape: tuple[int, ...], step: int) -> Ranked:
    found: Ranked = {rank: [] for rank in ranks}
    if not prod(shape):
        return found
    if side == "src":
        for box in cut(rng, Box.of_shape(shape), step, grid=rng.random() < 0.3):
            for rank in rng.sample(list(ranks), rng.randint(1, min(3, len(ranks)))):
                found[rank].append(box)
    for own in found.values():
        own.extend(random_box(rng, shape, step) for _ in range(rng.choice((0, 1, 1, 2, 3))))
        if own and side == "dst" and rng.random() < 0.2:
            own.append(rng.choice(own))
    return found


@st.composite
def with_casts(draw: st.DrawFn, spec: rp.ReshardSpec) -> rp.ReshardSpec:
    """The spec with most of its floating-point tensors converted on their way."""
    tensors = []
    for tensor in spec.tensors:
        to = draw(st.sampled_from(FLOATS)) if is_castable(tensor.dtype, tensor.dtype) else tensor.dtype
        tensors.append(
            rp.TensorSpec(
                tensor.name, tensor.shape, tensor.dtype, tensor.src, tensor.dst, dst_dtype=to, cast=True
            )
        )
    return rp.ReshardSpec(tensors, spec.topology, spec.options)


@st.composite
def stored_specs(
    draw: st.DrawFn, max_ranks: int = MAX_RANKS, dtypes: Sequence[str] = DTYPES, *, casts: bool = False
) -> rp.ReshardSpec:
    """Specs with storage of either kind; with ``casts``, of which some are converted, too."""
    if not casts and draw(st.integers(0, 2)) == 0:
        return draw(irregular_specs(max_ranks, dtypes))
    spec = draw(specs(max_ranks=max_ranks, dtypes=dtypes))
    return draw(stored(draw(with_casts(spec)) if casts else spec))
