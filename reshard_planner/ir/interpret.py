"""The numpy interpreter: runs the programs of all ranks in one process. It is the oracle of executors.

Buffers are raw: the interpreter moves storage elements and never looks into them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import LocalShapeError
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.program import Move, Place, Program, Slot, View, storage_nbytes, storage_shape
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import Side
from reshard_planner.transfer import Medium

Buffer = NDArray[Any]
Buffers = Mapping[int, Mapping[str, Sequence[Buffer]]]
"""Local buffers by rank and tensor name: one per layout that the rank is part of, in the spec's order."""


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
        destinations: destination buffers by rank and tensor name.
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
        Destination buffers in the dtype of the source arrays, and the bytes moved.

    Raises:
        LocalShapeError: if a source buffer is missing or differs from its layout.
    """
    dtypes: dict[int, np.dtype[Any]] = {}
    held = {rank: _checked_sources(plan, rank, sources.get(rank, {}), dtypes) for rank in plan.ranks}
    kept = {rank: make_buffers(plan, rank, "dst", dtypes) for rank in plan.ranks}
    machines = {rank: _Machine(plan.program(rank), held[rank], kept[rank]) for rank in plan.ranks}
    measured = {Medium.NETWORK: 0, Medium.NVLINK: 0}
    for number in sorted({slot.number for machine in machines.values() for slot in machine.slots.values()}):
        wire: dict[tuple[int, int], list[bytes]] = {}
        for machine in machines.values():
            machine.send(number, wire, measured)
        for machine in machines.values():
            machine.receive(number, wire)
    destinations = {
        rank: {plan.spec.tensors[tensor].name: buffers for tensor, buffers in by_tensor.items()}
        for rank, by_tensor in kept.items()
    }
    return Interpretation(destinations, Measured(measured[Medium.NETWORK], measured[Medium.NVLINK]))


class _Machine:
    """One rank: its buffers and its scratch."""

    def __init__(
        self, program: Program, held: dict[int, list[Buffer]], kept: dict[int, list[Buffer]]
    ) -> None:
        self.rank = program.rank
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
        arrived = [(move, self.view(move, move.read).tobytes()) for move in slot.copies]
        for peer, moves in slot.sends:
            wire[self.rank, peer] = [self.view(move, move.read).tobytes() for move in moves]
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

    def store(self, move: Move, data: bytes) -> None:
        if move.write is not None and move.write.place == Place.SCRATCH:
            self.scratch[move.write.buffer] = np.frombuffer(data, dtype=self.dtype(move))
            return
        target = self.view(move, move.write)
        target[...] = np.frombuffer(data, dtype=target.dtype).reshape(target.shape)

    def dtype(self, move: Move) -> np.dtype[Any]:
        buffers = self.kept.get(move.tensor) or self.held.get(move.tensor)
        if buffers:
            return buffers[0].dtype
        return np.dtype(f"V{move.nbytes // max(1, prod(move.write.shape if move.write else ()))}")

    def view(self, move: Move, view: View | None) -> Buffer:
        if view is None:
            raise LocalShapeError(f"rank {self.rank} has no part in operation {move.op}")
        if view.place == Place.SCRATCH:
            flat = self.scratch[view.buffer]
        else:
            by_tensor = self.held if view.place == Place.SOURCE else self.kept
            flat = by_tensor[move.tensor][view.buffer].reshape(-1)
        strides = tuple(stride * flat.itemsize for stride in view.strides)
        return np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides)


def make_buffers(
    plan: Plan, rank: int, side: Side, dtypes: Mapping[int, np.dtype[Any]]
) -> dict[int, list[Buffer]]:
    """Zeroed local buffers of a rank, by tensor position; raw bytes where no dtype is given."""
    found = {}
    for number, tensor in enumerate(plan.spec.tensors):
        dtype = dtypes.get(number, np.dtype(f"V{storage_nbytes(tensor.bits)}"))
        shapes = SideTiles(tensor, side).buffer_shapes(rank)
        found[number] = [np.zeros(storage_shape(shape, tensor.bits), dtype=dtype) for shape in shapes]
    return found


def _checked_sources(
    plan: Plan, rank: int, given: Mapping[str, Sequence[Buffer]], dtypes: dict[int, np.dtype[Any]]
) -> dict[int, list[Buffer]]:
    checked = {}
    for number, tensor in enumerate(plan.spec.tensors):
        buffers = [np.asarray(buffer, order="C") for buffer in given.get(tensor.name, ())]
        shapes = [storage_shape(shape, tensor.bits) for shape in SideTiles(tensor, "src").buffer_shapes(rank)]
        check_shapes(tensor, rank, shapes, [buffer.shape for buffer in buffers])
        for buffer in buffers:
            if buffer.dtype.itemsize != storage_nbytes(tensor.bits):
                raise LocalShapeError(
                    f"tensor {tensor.name!r}, rank {rank}: local buffer has elements of"
                    f" {buffer.dtype.itemsize} bytes; {tensor.dtype} needs {storage_nbytes(tensor.bits)}"
                )
            dtypes.setdefault(number, buffer.dtype)
        checked[number] = buffers
    return checked


def check_shapes(
    tensor: TensorSpec, rank: int, expected: Sequence[tuple[int, ...]], given: Sequence[tuple[int, ...]]
) -> None:
    """Compare the shapes of a rank's local buffers with those that its layouts give.

    Raises:
        LocalShapeError: naming the tensor, the rank and both shapes.
    """
    if len(expected) != len(given):
        raise LocalShapeError(
            f"tensor {tensor.name!r}, rank {rank}: {len(given)} local buffers are given;"
            f" expected {len(expected)}"
        )
    for want, have in zip(expected, given, strict=True):
        if tuple(want) != tuple(have):
            raise LocalShapeError(
                f"tensor {tensor.name!r}, rank {rank}: local shape is {list(have)};"
                f" its layout gives {list(want)}"
            )
