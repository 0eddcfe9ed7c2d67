"""Layouts: a mesh, with one placement per mesh axis, or storage, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from reshard_planner.errors import LayoutError, PlacementError
from reshard_planner.layout.disjoint import are_disjoint
from reshard_planner.layout.intervals import Intervals, strided_chunk
from reshard_planner.layout.mesh import Mesh
from reshard_planner.layout.partition import Partition
from reshard_planner.layout.placement import (
    Placement,
    Replicate,
    Shard,
    StridedShard,
    parse_placement,
)
from reshard_planner.layout.storage import Storage
from reshard_planner.layout.stored import Stored, arrange
from reshard_planner.layout.tiling import Tiling

MAX_INTERVALS = 2**20
"""Most intervals that the shards of one dimension may consist of, so that a typing error cannot hang."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A mesh and who stores what on it: placements, read left to right as DTensor does, or storage.

    With both, they say the same, and storage says in addition where it lies. Storage alone may leave out
    parts of a tensor.

    Attributes:
        mesh: the ranks.
        placements: one per mesh axis, or none with storage; strings such as ``"S(0)"`` are parsed.
        storage: what every rank has in which buffers; None for one dense buffer per rank.
    """

    mesh: Mesh
    placements: tuple[Placement, ...]
    storage: Storage | None
    _hash: int = field(init=False, repr=False, compare=False)

    def __init__(
        self, mesh: Mesh, placements: Sequence[Placement | str] = (), storage: Storage | None = None
    ) -> None:
        """Combine a mesh with placements, storage, or both.

        Raises:
            LayoutError: if the number of placements is not that of the mesh axes, one is not understood, or
                storage is not for as many ranks.
        """
        parsed = tuple(parse_placement(p) if isinstance(p, str) else p for p in placements)
        for placement in parsed:
            if not isinstance(placement, Shard | Replicate | StridedShard):
                raise PlacementError(
                    f"placement {placement!r} is not supported; expected S(d), R or _S(d, sf=k)"
                )
        if len(parsed) != mesh.ndim and (parsed or storage is None):
            raise LayoutError(
                f"{len(parsed)} placement{'s' * (len(parsed) != 1)} given for a mesh of {mesh.ndim} axes"
                f" ({', '.join(mesh.axes)}); expected one placement per axis"
            )
        if storage is not None and len(storage.entry_of) != mesh.size:
            raise LayoutError(
                f"storage is for {len(storage.entry_of)} ranks; the mesh has {mesh.size}; expected one entry"
                " for each"
            )
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "placements", parsed)
        object.__setattr__(self, "storage", storage)
        # of numbers alone, as that of a mesh: the hash of None is that of an address
        object.__setattr__(self, "_hash", hash((mesh, parsed, 0 if storage is None else hash(storage))))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def stored(cls, mesh: Mesh, storage: Storage) -> Layout:
        """A layout that storage alone spells out."""
        return cls(mesh, (), storage)

    @property
    def form(self) -> tuple[object, ...]:
        """All of it but which ranks: what pipeline stages have in common."""
        return self.mesh.shape, self.placements, self.storage

    def normalized(self, ndim: int) -> Layout:
        """This layout for tensors of ``ndim`` dimensions, with negative dims counted from the front.

        Raises:
            LayoutError: if a placement shards a dimension that the tensor does not have.
        """
        placements = tuple(_normalize(placement, ndim) for placement in self.placements)
        return self if placements == self.placements else Layout(self.mesh, placements, self.storage)

    def partition(self, shape: tuple[int, ...]) -> Partition:
        """The shards that the placements give a tensor of this global shape, in elements.

        Raises:
            LayoutError: if a placement shards a dimension that the tensor does not have, or there are no
                placements.
        """
        if self.storage is not None and not self.placements:
            raise LayoutError("the layout has storage and no placements; expected its tiling")
        return _partition(self.normalized(len(shape)), tuple(shape))

    def tiling(self, shape: tuple[int, ...]) -> Tiling:
        """Who stores which boxes of a tensor of this global shape, in elements.

        Raises:
            LayoutError: if placements or storage do not fit the shape, or differ.
        """
        return self.partition(shape) if self.storage is None else _stored(self, tuple(shape))

    def __str__(self) -> str:
        if not self.placements:
            return f"({', '.join(map('{}={}'.format, self.mesh.axes, self.mesh.shape))}: as stored)"
        axes = ", ".join(
            f"{name}={size}:{placement}"
            for name, size, placement in zip(self.mesh.axes, self.mesh.shape, self.placements, strict=True)
        )
        return f"({axes})"


def _normalize(placement: Placement, ndim: int) -> Placement:
    if isinstance(placement, Replicate):
        return placement
    dim = placement.dim + ndim if placement.dim < 0 else placement.dim
    if not 0 <= dim < ndim:
        raise LayoutError(f"placement {placement} shards dim {placement.dim} of a {ndim}-d tensor")
    if dim == placement.dim:
        return placement
    return Shard(dim) if isinstance(placement, Shard) else StridedShard(dim, placement.split_factor)


def shard_order(layout: Layout) -> dict[int, list[int]] | None:
    """Per tensor dimension, the mesh axes in the order in which they cut it; None if undecodable.

    A ``StridedShard`` of split factor k stands for a cut that follows other axes of product k to its
    right. This is the rule by which torch 2.13 reads strided placements in redistribution, which is
    also the data that FSDP2 with tensor parallelism really holds. ``layout`` has non-negative dims.
    """
    order: dict[int, list[int]] = {}
    for axis in reversed(range(layout.mesh.ndim)):
        placement = layout.placements[axis]
        if isinstance(placement, Replicate):
            continue
        axes = order.setdefault(placement.dim, [])
        wanted = placement.split_factor if isinstance(placement, StridedShard) else 1
        before = 1
        for position in range(len(axes) + 1):
            if before == wanted:
                axes.insert(position, axis)
                break
            if position < len(axes):
                before *= layout.mesh.shape[axes[position]]
        else:
            return None
    return order


@lru_cache(maxsize=4096)
def _partition(layout: Layout, shape: tuple[int, ...]) -> Partition:
    order = shard_order(layout)
    strided = order is None
    if order is None:
        order = {}
        for axis, placement in enumerate(layout.placements):
            if not isinstance(placement, Replicate):
                order.setdefault(placement.dim, []).append(axis)
    mesh = layout.mesh
    coordinates = np.unravel_index(np.arange(mesh.size), mesh.shape)
    choice = np.zeros((mesh.size, len(shape)), dtype=np.int64)
    shards: list[tuple[Intervals, ...]] = []
    for dim, size in enumerate(shape):
        whole: Intervals = ((0, size),) if size else ()
        pieces = [whole]
        for axis in order.get(dim, []):
            count = mesh.shape[axis]
            placement = layout.placements[axis]
            factor = placement.split_factor if strided and isinstance(placement, StridedShard) else 1
            if min(factor, size) * count * len(pieces) > MAX_INTERVALS:
                raise LayoutError(
                    f"placement {placement} cuts dim {dim} of size {size} in too many intervals;"
                    f" expected at most {MAX_INTERVALS}"
                )
            pieces = [part for piece in pieces for part in strided_chunk(piece, count, factor)]
            choice[:, dim] = choice[:, dim] * count + coordinates[axis]
        shards.append(tuple(pieces))
    ranks = np.array(mesh.ranks, dtype=np.int64)
    ranks.setflags(write=False)
    choice.setflags(write=False)
    return Partition(tuple(shards), ranks, choice)


@lru_cache(maxsize=4096)
def _stored(layout: Layout, shape: tuple[int, ...]) -> Stored:
    storage = layout.storage
    if storage is None:
        raise LayoutError("the layout has no storage")
    arranged = arrange(storage, shape)
    ranks = np.array(layout.mesh.ranks, dtype=np.int64)
    alike = np.array(storage.entry_of, dtype=np.int64)
    ranks.setflags(write=False)
    alike.setflags(write=False)
    stored = Stored(ranks, alike, storage, arranged)
    if layout.placements:
        _check_agreement(stored, layout.partition(shape))
    return stored


def _check_agreement(stored: Stored, partition: Partition) -> None:
    """Every rank stores exactly what its placements give it, each element once."""
    known: set[tuple[int, int]] = set()
    for rank, *kind in zip(
        stored.ranks.tolist(), stored.alike.tolist(), partition.alike.tolist(), strict=True
    ):
        if tuple(kind) in known:
            continue
        known.add((kind[0], kind[1]))
        given = [tile.box for tile in partition.tiles(rank)]
        own = [tile.box for _, tile in stored.local_tiles(rank)]
        for box in own:
            if sum(box.intersect(shard).volume for shard in given) != box.volume:
                raise LayoutError(f"storage gives rank {rank} the box {box}, which its placements do not")
        bounds = (np.array([getattr(box, end) for box in own], dtype=np.int64) for end in ("lo", "hi"))
        if len(own) > 1 and not are_disjoint(*bounds):
            raise LayoutError(f"storage gives rank {rank} boxes of its placements' shard that overlap")
        has, wanted = (sum(box.volume for box in boxes) for boxes in (own, given))
        if has != wanted:
            raise LayoutError(f"storage gives {has} elements to rank {rank}; its placements give it {wanted}")
