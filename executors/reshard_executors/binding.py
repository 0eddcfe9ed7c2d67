"""Binding: checks the local tensors that a rank is given, and finds the memory behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from reshard_planner.errors import InputError, LocalShapeError
from reshard_planner.ir.interpret import check_shapes
from reshard_planner.ir.program import storage_nbytes, storage_shape
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import Side

LocalTensors: TypeAlias = Mapping[str, torch.Tensor | Sequence[torch.Tensor]]
"""Local tensors by name: one tensor, or one per layout that the rank is part of, in the spec's order."""

SIDE_WORDS: dict[Side, str] = {"src": "source", "dst": "destination"}


@dataclass(frozen=True, slots=True)
class Bound:
    """The memory of one local tensor.

    Attributes:
        label: side and name, for messages.
        storage: the memory.
        start: place of the first element, in bytes.
        nbytes: size.
    """

    label: str
    storage: torch.UntypedStorage
    start: int
    nbytes: int


class LocalSide:
    """What one rank must be given on one side."""

    def __init__(self, spec: ReshardSpec, rank: int, side: Side, device: torch.device) -> None:
        """Work out the expected shapes; none for a rank that takes no part."""
        self._spec, self._rank, self._side, self._device = spec, rank, side, device
        self._shapes: list[tuple[tuple[int, ...], ...]] = []
        for tensor in spec.tensors:
            shapes = SideTiles(tensor, side).buffer_shapes(rank)
            self._shapes.append(tuple(storage_shape(shape, tensor.bits) for shape in shapes))

    def bind(self, given: LocalTensors) -> dict[int, tuple[Bound, ...]]:
        """Check the rank's tensors and return the memory behind them, by position of the tensor.

        Raises:
            LocalShapeError: if a tensor is missing or has another shape or dtype, gaps, or lies on another
                device than expected; naming tensor and rank.
            InputError: if a name is not in the spec.
        """
        known = {tensor.name for tensor in self._spec.tensors}
        for name in given:
            if name not in known:
                raise InputError(
                    f"{SIDE_WORDS[self._side]} tensor {name!r}, rank {self._rank}, is not in the plan,"
                    f" which has {len(known)} tensors"
                )
        return {
            number: self._bind(tensor, given.get(tensor.name, ()), self._shapes[number])
            for number, tensor in enumerate(self._spec.tensors)
        }

    def _bind(
        self,
        tensor: TensorSpec,
        given: torch.Tensor | Sequence[torch.Tensor],
        expected: Sequence[tuple[int, ...]],
    ) -> tuple[Bound, ...]:
        locals_ = (given,) if isinstance(given, torch.Tensor) else tuple(given)
        label = f"{SIDE_WORDS[self._side]} tensor {tensor.name!r}"
        where = f"{label}, rank {self._rank}"
        for local in locals_:
            if not isinstance(local, torch.Tensor):
                raise LocalShapeError(f"{where}: {type(local).__name__} is given; expected a torch tensor")
        try:
            check_shapes(tensor, self._rank, expected, [tuple(local.shape) for local in locals_])
        except LocalShapeError as error:
            raise LocalShapeError(f"{SIDE_WORDS[self._side]} {error}") from None
        wanted = f"torch.{tensor.dtype}" if tensor.bits >= 8 else "torch.uint8"
        for local in locals_:
            if str(local.dtype) != wanted:
                packed = f" of packed {tensor.dtype}" if tensor.bits < 8 else ""
                raise LocalShapeError(f"{where}: local dtype is {local.dtype}; expected {wanted}{packed}")
            if local.device != self._device:
                raise LocalShapeError(f"{where}: it is on device {local.device}; expected {self._device}")
            if local.layout != torch.strided or not local.is_contiguous():
                raise LocalShapeError(
                    f"{where}: it has strides {list(local.stride())} for shape {list(local.shape)};"
                    " expected a contiguous tensor"
                )
            if local.is_conj() or local.is_neg():
                raise LocalShapeError(
                    f"{where}: its conjugation or negation is pending; expected resolved values"
                )
        itemsize = storage_nbytes(tensor.bits)
        return tuple(
            Bound(
                label,
                local.untyped_storage(),
                int(local.storage_offset()) * itemsize,
                local.numel() * itemsize,
            )
            for local in locals_
        )


def check_overlap(sources: Iterable[Bound], destinations: Iterable[Bound]) -> None:
    """Refuse destinations that share memory with a source or with one another.

    Raises:
        InputError: naming both tensors.
    """
    spans = [
        (str(bound.storage.device), bound.storage.data_ptr() + bound.start, bound, written)
        for bounds, written in ((sources, False), (destinations, True))
        for bound in bounds
        if bound.nbytes
    ]
    spans.sort(key=lambda span: span[:2])
    reach: dict[tuple[str, bool], tuple[int, Bound]] = {}
    for device, first, bound, written in spans:
        for other_written in (True, False) if written else (True,):
            end, other = reach.get((device, other_written), (0, bound))
            if first < end:
                raise InputError(
                    f"{other.label} and {bound.label} share memory; a destination needs memory of its own"
                )
        if first + bound.nbytes > reach.get((device, written), (0, bound))[0]:
            reach[device, written] = (first + bound.nbytes, bound)
