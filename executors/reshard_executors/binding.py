"""Binding: checks the local tensors that a rank is given, and finds the memory behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from reshard_executors.views import StridedView
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import InputError, LocalShapeError
from reshard_planner.ir.interpret import check_shapes
from reshard_planner.ir.views import View, storage_nbytes, storage_shape
from reshard_planner.spec import ReshardSpec
from reshard_planner.spec.tiles import SideTiles, expected_buffers
from reshard_planner.spec.values import Side

LocalTensors: TypeAlias = Mapping[str, torch.Tensor | Sequence[torch.Tensor]]
"""Local tensors by name: that of the tensor in the spec, with one tensor or one per layout that the rank is
part of, in the spec's order or at the positions that storage gives; or the name that the spec gives to the
buffer."""

Selected: TypeAlias = Mapping[str, tuple[torch.Tensor, ...]]
"""Local tensors of all that is moved, by name."""

SIDE_WORDS: dict[Side, str] = {"src": "source", "dst": "destination"}


@dataclass(frozen=True, slots=True)
class LocalMemory:
    """The memory of one local tensor.

    Attributes:
        label: side and name, for messages.
        tensors: positions in the spec of the tensors that lie in it.
        whole: all of its elements.
    """

    label: str
    tensors: frozenset[int]
    whole: StridedView

    def view(self, part: View) -> StridedView:
        """Some of its elements; ``part`` counts as if the tensor had no gaps, the result as it lies.

        Raises:
            LocalShapeError: if the tensor has gaps, and steps of ``part`` go over the ends of its rows.
        """
        start, strides = part.offset, part.strides
        if not self.whole.is_dense:
            start, strides = self._strided(part)
        at = self.whole.start + start * self.whole.itemsize
        return StridedView(self.whole.storage, at, part.shape, strides, self.whole.itemsize)

    def _strided(self, part: View) -> tuple[int, tuple[int, ...]]:
        """Where elements lie in a tensor with gaps: the first one, and steps to the next per dimension."""
        dims: list[tuple[int, int]] = []  # extents and strides, those that are one run taken together
        for extent, stride in zip(self.whole.shape, self.whole.strides, strict=True):
            if extent > 1 and dims and dims[-1][1] == extent * stride:
                dims[-1] = (dims[-1][0] * extent, stride)
            elif extent > 1:
                dims.append((extent, stride))
        steps = [step if extent > 1 else 0 for extent, step in zip(part.shape, part.strides, strict=True)]
        counts = [part.offset, *steps]
        found = [0] * len(counts)
        for extent, stride in reversed(dims):
            index = [count % extent for count in counts]
            counts = [count // extent for count in counts]
            last = index[0] + sum((n - 1) * step for n, step in zip(part.shape, index[1:], strict=True))
            if last >= extent:
                raise LocalShapeError(
                    f"{self.label}: it has strides {list(self.whole.strides)} for shape"
                    f" {list(self.whole.shape)}, and what is stored there goes over the ends of its rows;"
                    " expected a contiguous tensor"
                )
            found = [place + at * stride for place, at in zip(found, index, strict=True)]
        return found[0], tuple(found[1:])


LocalMemories: TypeAlias = Mapping[int, tuple[LocalMemory, ...]]
"""Memory of a rank's local tensors on one side, by position of the tensor in the spec; tensors that share a
buffer have the same."""


class LocalSide:
    """What one rank must be given on one side."""

    def __init__(self, spec: ReshardSpec, rank: int, side: Side, device: torch.device) -> None:
        """Work out the expected shapes; none for a rank that takes no part."""
        self._spec, self._rank, self._side, self._device = spec, rank, side, device
        self._known = {name for tensor in spec.tensors for names in tensor.buffers(side) for name in names}
        self._keys = [
            [buffer.key for buffer in SideTiles(tensor, side).buffers(rank)] for tensor in spec.tensors
        ]
        self._shapes = [
            {
                name: [storage_shape(shape, DTYPE_BITS[tensor.side_dtype(side)]) for shape in shapes]
                for name, shapes in own.items()
            }
            for tensor, own in zip(spec.tensors, expected_buffers(spec.tensors, side, rank), strict=True)
        ]

    def select(self, given: LocalTensors, tensors: Sequence[int]) -> Selected:
        """Find the local tensors of what is moved among those that are given, whatever their shapes.

        Args:
            given: local tensors; those of tensors that are not moved are not looked at.
            tensors: positions of the tensors that are moved.

        Raises:
            LocalShapeError: if something is no plain tensor with memory of its own; naming tensor and rank.
            InputError: if a name is not in the spec, or ``given`` is no mapping.
        """
        word = SIDE_WORDS[self._side]
        if not isinstance(given, Mapping):
            raise InputError(
                f"{word}s of rank {self._rank} are a {type(given).__name__}; expected a mapping of names"
            )
        for name in given:
            if name not in self._known:
                raise InputError(
                    f"{word} tensor {name!r}, rank {self._rank}, is not in the plan,"
                    f" which has {len(self._known)} tensors"
                )
        found: dict[str, tuple[torch.Tensor, ...]] = {}
        for number in tensors:
            for name in self._shapes[number]:
                if name not in found:
                    local = given.get(name, ())
                    locals_ = tuple(local) if isinstance(local, list | tuple) else (local,)
                    for each in locals_:
                        _check_plain(f"{word} tensor {name!r}, rank {self._rank}", each)
                    found[name] = locals_
        return found

    def bind(self, selected: Selected, tensors: Sequence[int]) -> dict[int, tuple[LocalMemory, ...]]:
        """Check the rank's tensors and return the memory behind them, by position of the tensor.

        Args:
            selected: what :meth:`select` found.
            tensors: positions of the tensors that are moved.

        Raises:
            LocalShapeError: if a tensor is missing, has another shape or dtype, lies on another device than
                expected, or is written and has elements that share memory; naming tensor and rank.
        """
        users: dict[str, list[int]] = {}
        for number in tensors:
            for name in self._shapes[number]:
                users.setdefault(name, []).append(number)
        memories = {
            (name, at): memory
            for name, numbers in users.items()
            for at, memory in enumerate(self._bind(name, selected[name], numbers))
        }
        return {number: tuple(memories[key] for key in self._keys[number]) for number in tensors}

    def _bind(self, name: str, locals_: tuple[torch.Tensor, ...], numbers: list[int]) -> list[LocalMemory]:
        label = f"{SIDE_WORDS[self._side]} tensor {name!r}"
        where = f"{label}, rank {self._rank}"
        for number in numbers:
            try:
                check_shapes(
                    name, self._rank, self._shapes[number][name], [tuple(local.shape) for local in locals_]
                )
            except LocalShapeError as error:
                raise LocalShapeError(f"{SIDE_WORDS[self._side]} {error}") from None
        dtype = self._spec.tensors[numbers[0]].side_dtype(self._side)
        bits = DTYPE_BITS[dtype]
        wanted = getattr(torch, dtype) if bits >= 8 else torch.uint8
        found = []
        for local in locals_:
            if local.dtype != wanted:
                packed = f" of packed {dtype}" if bits < 8 else ""
                raise LocalShapeError(f"{where}: local dtype is {local.dtype}; expected {wanted}{packed}")
            if local.device != self._device:
                raise LocalShapeError(f"{where}: it is on device {local.device}; expected {self._device}")
            whole = whole_view(local, storage_nbytes(bits))
            if whole.nbytes and whole.start + whole.reach_nbytes > whole.storage.nbytes():
                raise LocalShapeError(
                    f"{where}: its storage has {whole.storage.nbytes()} bytes; expected at least"
                    f" {whole.start + whole.reach_nbytes}, so it has been freed or shortened"
                )
            if self._side == "dst" and _repeats(local):
                raise LocalShapeError(
                    f"{where}: it has strides {list(local.stride())} for shape {list(local.shape)};"
                    " expected elements with memory of their own"
                )
            if local.is_conj() or local.is_neg():
                raise LocalShapeError(
                    f"{where}: its conjugation or negation is pending; expected resolved values"
                )
            found.append(LocalMemory(label, frozenset(numbers), whole))
        return found


def _check_plain(where: str, local: object) -> None:
    if not isinstance(local, torch.Tensor):
        raise LocalShapeError(f"{where}: {type(local).__name__} is given; expected a torch tensor")
    if type(local).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise LocalShapeError(
            f"{where}: a {type(local).__name__} is given; expected a plain tensor, such as its local part"
        )
    if local.layout != torch.strided:
        raise LocalShapeError(f"{where}: its layout is {local.layout}; expected torch.strided")


def whole_view(local: torch.Tensor, itemsize: int) -> StridedView:
    """All elements of a tensor as they lie in its storage."""
    start = int(local.storage_offset()) * itemsize
    return StridedView(local.untyped_storage(), start, tuple(local.shape), tuple(local.stride()), itemsize)


def _repeats(local: torch.Tensor) -> bool:
    """Whether two elements may have one place: along a dimension that does not step over all smaller ones."""
    reach = 0
    for stride, extent in sorted(zip(local.stride(), local.shape, strict=True)):
        if extent > 1:
            if stride <= reach:
                return True
            reach += stride * (extent - 1)
    return False
