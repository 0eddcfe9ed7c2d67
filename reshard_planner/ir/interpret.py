"""The numpy interpreter: runs the programs of all ranks in one process. It is the oracle of executors.

Buffers are raw: the interpreter moves storage elements, and looks into them only where a tensor is converted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import LocalShapeError
from reshard_planner.ir.conversion import convert
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.program import Move, Program, Slot
from reshard_planner.ir.views import Place, View, storage_nbytes, storage_shape
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import SideTiles, expected_buffers
from reshard_planner.spec.values import Side
from reshard_planner.transfer import Medium

Buffer = NDArray[Any]
Buffers = Mapping[int, Mapping[str, Sequence[Buffer]]]
"""Local buffers by rank and name: that of the tensor, one per layout that the rank is part of, in the spec's
order, or the name that the spec gives to the buffer."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes that a run moved, counted where messages were made.

    Attributes:
        network_nbytes: between domains.
        nvlink_nbytes: within domains.
    """

    network_nbytes: int
    nvlink_nbytes: int


@dataclass(frozen=True, slots=True)
class Interpretation:
    """What the interpreter produced.

    Attributes:
        destinations: destination buffers by rank and name.
        measured: bytes moved between ranks.
    """

    destinations: dict[int, dict[str, list[Buffer]]]
    measured: Measured


def interpret(plan: Plan, sources: Buffers) -> Interpretation:
    """Run a plan on local buffers.

    Args:
        plan: what to run.
        sources: for every rank that holds part of a tensor, its local buffers: arrays of the shape that the
            layout gives (bytes along the last dimension for dtypes below eight bits) and of the size of the
            tensor's elements, of any numpy dtype.

    Returns:
        Destination buffers, zero where nothing is written, in the dtype of the source arrays (unsigned
        integers where a tensor is converted), and the bytes moved.

    Raises:
        LocalShapeError: if a source buffer is missing or differs from its layout.
    """
    dtypes: dict[int, np.dtype[Any]] = {}
    held = {rank: _checked_sources(plan, rank, sources.get(rank, {}), dtypes) for rank in plan.ranks}
    for number, tensor in enumerate(plan.spec.tensors):
        if tensor.dst_dtype != tensor.dtype:
            dtypes[number] = np.dtype(f"<u{DTYPE_BITS[tensor.dst_dtype] // 8}")
    kept = {rank: make_buffers(plan, rank, "dst", dtypes) for rank in plan.ranks}
    tensors = plan.spec.tensors
    machines = {rank: _Machine(plan.program(rank), held[rank], kept[rank], tensors) for rank in plan.ranks}
    measured = {Medium.NETWORK: 0, Medium.NVLINK: 0}
    for number in sorted({slot.number for machine in machines.values() for slot in machine.slots.values()}):
        wire: dict[tuple[int, int], list[bytes]] = {}
        for machine in machines.values():
            machine.send(number, wire, measured)
        for machine in machines.values():
            machine.receive(number, wire)
    destinations = {rank: by_name(plan, rank, "dst", by_tensor) for rank, by_tensor in kept.items()}
    return Interpretation(destinations, Measured(measured[Medium.NETWORK], measured[Medium.NVLINK]))


class _Machine:
    """One rank: its buffers and its scratch."""

    def __init__(
        self,
        program: Program,
        held: dict[int, list[Buffer]],
        kept: dict[int, list[Buffer]],
        tensors: Sequence[TensorSpec],
    ) -> None:
        self.rank = program.rank
        self.tensors = tensors
        self.slots = {slot.number: slot for slot in program.slots}
        self.held, self.kept = held, kept
        self.scratch: dict[int, Buffer] = {}

    def send(
        self, number: int, wire: dict[tuple[int, int], list[bytes]], measured: dict[Medium, int]
    ) -> None:
        """Copy within the rank and pack what goes to peers; both read what arrived in earlier slots."""
        slot = self.slots.get(number)
        if slot is None:
            return
        arrived = [(move, self.load(move)) for move in slot.copies]
        for peer, moves in slot.sends:
            wire[self.rank, peer] = [self.load(move) for move in moves]
            for move in moves:
                measured[move.medium] += move.nbytes
        for move, data in arrived:
            self.store(move, data)

    def receive(self, number: int, wire: dict[tuple[int, int], list[bytes]]) -> None:
        """Unpack what peers sent."""
        slot = self.slots.get(number)
        if slot is None:
            return
        for peer, moves in slot.receives:
            for move, data in zip(moves, wire[peer, self.rank], strict=True):
                self.store(move, data)
        self.free(slot)

    def free(self, slot: Slot) -> None:
        for op in slot.frees:
            self.scratch.pop(op, None)

    def load(self, move: Move) -> bytes:
        """A move's bytes as they travel."""
        tensor = self.tensors[move.tensor]
        parts = []
        for view in move.read:
            part = self.view(move, view)
            if view.converts:
                here = tensor.dtype if view.place == Place.SOURCE else tensor.dst_dtype
                part = convert(part, here, tensor.wire_dtype)
            parts.append(part)
        if len(parts) == 1:
            return parts[0].tobytes()
        raw = np.dtype(f"V{storage_nbytes(tensor.bits)}")  # buffers may be of different dtypes
        whole = np.empty(storage_shape(move.box.shape, tensor.bits), dtype=raw)
        for view, part in zip(move.read, parts, strict=True):
            whole[_within(view)] = part.view(raw)
        return whole.tobytes()

    def store(self, move: Move, data: bytes) -> None:
        tensor = self.tensors[move.tensor]
        raw = np.dtype(f"V{storage_nbytes(tensor.bits)}")
        whole = np.frombuffer(data, dtype=raw).reshape(storage_shape(move.box.shape, tensor.bits))
        for view in move.write:
            if view.place == Place.SCRATCH:
                self.scratch[view.buffer] = whole
                continue
            target, part = self.view(move, view), whole[_within(view)]
            if view.converts:
                unsigned = np.dtype(f"<u{target.itemsize}")
                target.view(unsigned)[...] = convert(part, tensor.wire_dtype, tensor.dst_dtype)
            else:
                target[...] = np.ascontiguousarray(part).view(target.dtype).reshape(target.shape)

    def view(self, move: Move, view: View) -> Buffer:
        if view.place == Place.SCRATCH:
            flat = self.scratch[view.buffer].reshape(-1)
        else:
            by_tensor = self.held if view.place == Place.SOURCE else self.kept
            flat = by_tensor[move.tensor][view.buffer].reshape(-1)
        strides = tuple(stride * flat.itemsize for stride in view.strides)
        return np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides)


def _within(view: View) -> tuple[slice, ...]:
    """Where a view's elements stand in the box of its move."""
    first = view.at or (0,) * len(view.shape)
    return tuple(slice(lo, lo + extent) for lo, extent in zip(first, view.shape, strict=True))


def make_buffers(
    plan: Plan, rank: int, side: Side, dtypes: Mapping[int, np.dtype[Any]]
) -> dict[int, list[Buffer]]:
    """Zeroed local buffers of a rank, by tensor position; raw bytes where no dtype is given.

    Tensors that share a buffer have the same array.
    """
    found = {}
    made: dict[tuple[str, int], Buffer] = {}
    for number, tensor in enumerate(plan.spec.tensors):
        bits = DTYPE_BITS[tensor.side_dtype(side)]
        dtype = dtypes.get(number, np.dtype(f"V{storage_nbytes(bits)}"))
        found[number] = [
            made[buffer.key]
            if buffer.key in made
            else made.setdefault(buffer.key, np.zeros(storage_shape(buffer.shape, bits), dtype=dtype))
            for buffer in SideTiles(tensor, side).buffers(rank)
        ]
    return found


def by_name(
    plan: Plan, rank: int, side: Side, buffers: Mapping[int, Sequence[Buffer]]
) -> dict[str, list[Buffer]]:
    """The local buffers of a rank under the names that they go by, given by tensor position."""
    found: dict[str, dict[int, Buffer]] = {}
    for number, own in buffers.items():
        tensor = plan.spec.tensors[number]
        locals_ = SideTiles(tensor, side).buffers(rank)
        if not locals_:
            found.setdefault(tensor.name, {})
        for buffer, array in zip(locals_, own, strict=True):
            found.setdefault(buffer.name, {})[buffer.at] = array
    return {name: [arrays[at] for at in sorted(arrays)] for name, arrays in found.items()}


def _checked_sources(
    plan: Plan, rank: int, given: Mapping[str, Sequence[Buffer]], dtypes: dict[int, np.dtype[Any]]
) -> dict[int, list[Buffer]]:
    checked = {}
    expected = expected_buffers(plan.spec.tensors, "src", rank)
    for number, tensor in enumerate(plan.spec.tensors):
        bits = DTYPE_BITS[tensor.dtype]
        own = {}
        for name, shapes in expected[number].items():
            own[name] = [np.asarray(buffer, order="C") for buffer in given.get(name, ())]
            wanted = [storage_shape(shape, bits) for shape in shapes]
            check_shapes(name, rank, wanted, [buffer.shape for buffer in own[name]])
        buffers = SideTiles(tensor, "src").pick(rank, own)
        for buffer in buffers:
            if buffer.dtype.itemsize != storage_nbytes(bits):
                raise LocalShapeError(
                    f"tensor {tensor.name!r}, rank {rank}: local buffer has elements of"
                    f" {buffer.dtype.itemsize} bytes; {tensor.dtype} needs {storage_nbytes(bits)}"
                )
            dtypes.setdefault(number, buffer.dtype)
        checked[number] = buffers
    return checked


def check_shapes(
    name: str, rank: int, expected: Sequence[tuple[int, ...]], given: Sequence[tuple[int, ...]]
) -> None:
    """Compare the shapes of a rank's local buffers of one name with those that layouts give.

    Raises:
        LocalShapeError: naming the buffers, the rank and both shapes.
    """
    if len(expected) != len(given):
        raise LocalShapeError(
            f"tensor {name!r}, rank {rank}: {len(given)} local buffers are given; expected {len(expected)}"
        )
    for want, have in zip(expected, given, strict=True):
        if tuple(want) != tuple(have):
            raise LocalShapeError(
                f"tensor {name!r}, rank {rank}: local shape is {list(have)}; its layout gives {list(want)}"
            )
