"""Carriers: local tensors as dtypes that every backend moves, and whole tensors cut into tiles.

NCCL has no 16-bit integers and gloo no 8-bit floats, so bytes travel as one dtype per element size; nothing
computes with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from reshard_executors.binding import SIDE_WORDS, LocalTensors
from reshard_planner.errors import LocalShapeError
from reshard_planner.ir.interpret import check_shapes
from reshard_planner.ir.views import Place, storage_nbytes, tile_views
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.spec.tiles import SideTiles, expected_buffers
from reshard_planner.spec.values import Side

CARRIERS = {1: torch.uint8, 2: torch.bfloat16, 4: torch.int32, 8: torch.int64}
"""Dtypes by the bytes of an element; elements of 16 bytes are two of 8, along one more dimension."""

LARGEST = max(CARRIERS)


class Carrier:
    """How the elements of one tensor travel.

    Attributes:
        dtype: of the carrying elements.
        shape: of the whole tensor, in carrying elements.
        stride: of the whole tensor when dense and row-major.
    """

    def __init__(self, tensor: TensorSpec) -> None:
        """Choose it for a tensor of at least eight bits per element."""
        self._nbytes = storage_nbytes(tensor.bits)
        self.dtype = CARRIERS[min(self._nbytes, LARGEST)]
        self.shape, _ = self._widen(tensor.shape, ())
        self.stride = torch.empty(self.shape, device="meta").stride()

    def view(
        self, local: torch.Tensor, offset: int, shape: Sequence[int], strides: Sequence[int]
    ) -> torch.Tensor:
        """Part of a local tensor.

        Args:
            local: a contiguous tensor of the dtype of the spec.
            offset: first element, counted from that of ``local``.
            shape: extent per dimension, in elements.
            strides: distance between neighbours per dimension, in elements.

        Returns:
            A tensor of the carrying dtype over the same memory.
        """
        start = (int(local.storage_offset()) + offset) * max(1, self._nbytes // LARGEST)
        shape, strides = self._widen(shape, strides)
        empty = torch.empty(0, dtype=self.dtype, device=local.device)
        return empty.set_(local.untyped_storage(), start, shape, strides)

    def whole(self, local: torch.Tensor) -> torch.Tensor:
        """All of a contiguous local tensor."""
        return self.view(local, 0, tuple(local.shape), local.stride())

    def _widen(self, shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        parts = self._nbytes // LARGEST
        if parts <= 1:
            return tuple(shape), tuple(strides)
        return (*shape, parts), (*(stride * parts for stride in strides), 1)


class LocalTiles:
    """The destination tiles of one tensor on one rank."""

    def __init__(self, tensor: TensorSpec, rank: int, carrier: Carrier) -> None:
        """Find them; none for a rank that needs nothing of the tensor."""
        self._carrier = carrier
        self._tiles = [
            (span.tile.box.slices(), view)
            for entry in SideTiles(tensor, "dst").tiles(rank)
            for span in entry.spans
            for view in tile_views(Place.DESTINATION, entry, span.tile.box, tensor.bits)
        ]

    def fill(self, full: torch.Tensor, destinations: Sequence[torch.Tensor]) -> None:
        """Copy every tile out of the whole tensor, of the carrier's dtype and shape."""
        for box, view in self._tiles:
            local = destinations[view.buffer]
            self._carrier.view(local, view.offset, view.shape, view.strides).copy_(full[box])


class LocalSide:
    """What one rank is given of one tensor on one side."""

    def __init__(
        self, tensor: TensorSpec, rank: int, side: Side, shapes: Mapping[str, Sequence[tuple[int, ...]]]
    ) -> None:
        """Find its buffers, of which ``shapes`` are given by name; none for a rank that takes no part."""
        self._rank, self._side = rank, side
        self._tiles = SideTiles(tensor, side)
        self._shapes = shapes

    def find(self, given: LocalTensors) -> tuple[torch.Tensor, ...]:
        """The local tensors, one per buffer that the rank has.

        Raises:
            LocalShapeError: if one is missing, or has another shape than its layout gives.
        """
        own = {}
        for name, shapes in self._shapes.items():
            found = given.get(name, ())
            own[name] = (found,) if isinstance(found, torch.Tensor) else tuple(found)
            try:
                check_shapes(name, self._rank, shapes, [tuple(local.shape) for local in own[name]])
            except LocalShapeError as error:
                raise LocalShapeError(f"{SIDE_WORDS[self._side]} {error}") from None
        return tuple(self._tiles.pick(self._rank, own))


class Parts:
    """What one rank holds and needs of all tensors of a spec.

    Attributes:
        carriers: how each tensor travels.
        tiles: destination tiles of each tensor.
    """

    def __init__(self, spec: ReshardSpec, rank: int) -> None:
        """Work them out."""
        self.carriers = [Carrier(tensor) for tensor in spec.tensors]
        self.tiles = [
            LocalTiles(tensor, rank, carrier)
            for tensor, carrier in zip(spec.tensors, self.carriers, strict=True)
        ]
        self._sources, self._destinations = (
            [
                LocalSide(tensor, rank, side, shapes)
                for tensor, shapes in zip(
                    spec.tensors, expected_buffers(spec.tensors, side, rank), strict=True
                )
            ]
            for side in SIDE_WORDS
        )

    def find(
        self, sources: LocalTensors, destinations: LocalTensors
    ) -> tuple[list[tuple[torch.Tensor, ...]], list[tuple[torch.Tensor, ...]]]:
        """The local tensors that are given, by position of the tensor; see :meth:`LocalSide.find`."""
        given = [source.find(sources) for source in self._sources]
        return given, [destination.find(destinations) for destination in self._destinations]
