"""Survivors: what is left of layouts when ranks are gone, with all that the others store as it was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from reshard_planner.layout.layout import Layout
from reshard_planner.layout.mesh import Mesh
from reshard_planner.layout.partition import Partition
from reshard_planner.layout.placement import Replicate
from reshard_planner.layout.storage import Entry, Storage, StoredBuffer

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """What is left of a mesh.

    Attributes:
        mesh: the ranks that are left, in their order.
        kept: their positions in the whole mesh, row-major, int64 of shape (ranks,).
        shorter: the axes along which it has become shorter; None if the ranks that are left fill no mesh of
            as many axes.
    """

    mesh: Mesh
    kept: Ints
    shorter: tuple[int, ...] | None


class Survivors:
    """Layouts without some ranks. Equal layouts, meshes and storages are made once.

    Where all ranks at some coordinates along axes of a mesh are gone and every other rank keeps its shard, as
    with one of several replicas, placements stay and the mesh is smaller. Otherwise storage says what the
    others have: in the same buffers, of the same shapes, at the same places.
    """

    def __init__(self, gone: Iterable[int]) -> None:
        """Leave out some ranks, whether layouts have them or not."""
        self._gone = np.array(sorted(set(gone)), dtype=np.int64)
        self._rests: dict[Mesh, _Rest | None] = {}
        self._layouts: dict[tuple[Layout, tuple[int, ...]], Layout] = {}
        self._restricted: dict[tuple[Storage, bytes], Storage] = {}
        self._storages: dict[Storage, Storage] = {}
        self._made: dict[Layout, Layout] = {}

    def layout(self, layout: Layout, shape: tuple[int, ...]) -> Layout | None:
        """The layout of those that are left, for tensors of a global shape in elements; None for nobody.

        The layout itself where no rank of it is gone.

        Raises:
            LayoutError: if the layout does not fit the shape.
        """
        rest = self._rest(layout.mesh)
        if rest is None:
            return None
        if len(rest.kept) == layout.mesh.size:
            return layout
        if (layout, shape) not in self._layouts:
            self._layouts[layout, shape] = self._reduce(layout, shape, rest)
        return self._layouts[layout, shape]

    def _reduce(self, layout: Layout, shape: tuple[int, ...], rest: _Rest) -> Layout:
        storage = None if layout.storage is None else self._restrict(layout.storage, rest.kept)
        if layout.placements and rest.shorter is not None:
            small = Layout(rest.mesh, layout.placements, storage)
            if all(isinstance(layout.placements[axis], Replicate) for axis in rest.shorter) or _agree(
                layout.partition(shape), small.partition(shape), rest.kept
            ):
                return self._made.setdefault(small, small)
        if storage is None:
            spelled = _spell(layout.partition(shape), rest.kept)
            storage = self._storages.setdefault(spelled, spelled)
        stored = Layout.stored(rest.mesh, storage)
        return self._made.setdefault(stored, stored)

    def _rest(self, mesh: Mesh) -> _Rest | None:
        if mesh not in self._rests:
            self._rests[mesh] = _find_rest(mesh, self._gone)
        return self._rests[mesh]

    def _restrict(self, storage: Storage, kept: Ints) -> Storage:
        key = storage, kept.tobytes()
        if key not in self._restricted:
            numbers: dict[int, int] = {}
            own = np.array(storage.entry_of, dtype=np.int64)[kept].tolist()
            entry_of = [numbers.setdefault(entry, len(numbers)) for entry in own]
            left = Storage((storage.entries[entry] for entry in numbers), entry_of)
            self._restricted[key] = self._storages.setdefault(left, left)
        return self._restricted[key]


def _find_rest(mesh: Mesh, gone: Ints) -> _Rest | None:
    ranks = np.array(mesh.ranks, dtype=np.int64)
    here = ~np.isin(ranks, gone)
    kept: Ints = np.flatnonzero(here)
    if not len(kept):
        return None
    if len(kept) == mesh.size:
        return _Rest(mesh, kept, ())
    living = here.reshape(mesh.shape)
    axes = range(mesh.ndim)
    sizes = [int(living.any(axis=tuple(other for other in axes if other != axis)).sum()) for axis in axes]
    left = ranks[kept].tolist()
    if prod(sizes) != len(kept):
        return _Rest(Mesh(left, ("rank",)), kept, None)
    return _Rest(Mesh(left, mesh.axes, sizes), kept, tuple(a for a in axes if sizes[a] < mesh.shape[a]))


def _agree(before: Partition, after: Partition, kept: Ints) -> bool:
    """Whether ranks have the same shards in both; ``kept`` are the positions of the second in the first."""
    for dim, (old, new) in enumerate(zip(before.shards, after.shards, strict=True)):
        pairs = np.stack([before.choice[kept, dim], after.choice[:, dim]], axis=1)
        if any(old[one] != new[other] for one, other in np.unique(pairs, axis=0).tolist()):
            return False
    return True


def _spell(partition: Partition, kept: Ints) -> Storage:
    """What placements give the ranks at some positions, each in its one dense buffer."""
    numbers: dict[Entry, int] = {}
    number_of: dict[int, int] = {}
    entry_of = []
    kinds = partition.alike[kept].tolist()
    for rank, kind in zip(partition.ranks[kept].tolist(), kinds, strict=True):
        if kind not in number_of:
            entry = (StoredBuffer(0, partition.local_shape(rank), partition.tiles(rank)),)
            number_of[kind] = numbers.setdefault(entry, len(numbers))
        entry_of.append(number_of[kind])
    return Storage(numbers, entry_of)
