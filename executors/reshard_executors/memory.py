"""The memory of one rank during one run: bound tensors and scratch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from reshard_executors.binding import Bound
from reshard_executors.views import BoundView
from reshard_planner.ir.program import Move, Place, View


class Memory:
    """Finds the bytes that a move reads or writes, and keeps scratch while it is needed."""

    def __init__(
        self,
        itemsizes: Sequence[int],
        sources: Mapping[int, Sequence[Bound]],
        destinations: Mapping[int, Sequence[Bound]],
        device: torch.device,
    ) -> None:
        """Start without scratch.

        Args:
            itemsizes: bytes of one storage element, per tensor of the spec.
            sources: memory of the local source tensors, by position of the tensor.
            destinations: likewise of the destination tensors.
            device: where scratch is made.
        """
        self._itemsizes = itemsizes
        self._bound = {Place.SOURCE: sources, Place.DESTINATION: destinations}
        self._device = device
        self._scratch: dict[int, torch.UntypedStorage] = {}

    def reading(self, move: Move) -> BoundView:
        """Where a move reads on this rank."""
        return self._view(move, move.read)

    def writing(self, move: Move) -> BoundView:
        """Where a move writes on this rank; scratch is made if that is where."""
        if move.write is not None and move.write.place == Place.SCRATCH and move.op not in self._scratch:
            made = torch.empty(move.nbytes, dtype=torch.uint8, device=self._device)
            self._scratch[move.op] = made.untyped_storage()
        return self._view(move, move.write)

    def free(self, operations: Iterable[int]) -> None:
        """Give scratch back."""
        for op in operations:
            self._scratch.pop(op, None)

    def _view(self, move: Move, view: View | None) -> BoundView:
        if view is None:
            raise RuntimeError(f"operation {move.op} has no bytes on this side")
        itemsize = self._itemsizes[move.tensor]
        if view.place == Place.SCRATCH:
            storage, start = self._scratch[view.buffer], 0
        else:
            bound = self._bound[view.place][move.tensor][view.buffer]
            storage, start = bound.storage, bound.start
        return BoundView(storage, start + view.offset * itemsize, view.shape, view.strides, itemsize)
