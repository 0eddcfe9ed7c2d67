"""A program bound to memory: every message and copy as tensors that are ready to be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from operator import mul
from typing import Literal

import torch

from reshard_executors.binding import LocalMemories, LocalMemory
from reshard_executors.copies import Pair, copy_in_bulk, stays
from reshard_executors.messages import BUFFERS, Exchange, Lowered, Message, aligned, dense_strides
from reshard_executors.overlap import check_overlap
from reshard_executors.views import StridedView
from reshard_planner.ir.messages import goes_straight
from reshard_planner.ir.program import Move
from reshard_planner.ir.views import Place, View, common_views, storage_nbytes
from reshard_planner.spec import TensorSpec
from reshard_planner.transfer import Medium


@dataclass(frozen=True, slots=True)
class ReadyMessage:
    """A message and its bytes.

    Attributes:
        message: what it is.
        buffer: its bytes, shape (nbytes,), uint8: in a staging buffer, or where they come from or go to.
    """

    message: Message
    buffer: torch.Tensor


@dataclass(frozen=True, slots=True)
class ReadyExchange:
    """One slot of one rank, bound to memory.

    Attributes:
        slot: number of the slot.
        after: position of the last slot before it that must be over before it begins; -1 for none.
        pack: copies within the rank, and packs what is sent.
        sends: messages to other ranks.
        receives: messages from other ranks.
        unpack: unpacks what was received.
        packed: bytes that ``pack`` copies, by medium of the messages; local within the rank.
        unpacked: likewise, of ``unpack``.
    """

    slot: int
    after: int
    pack: Callable[[], None]
    sends: tuple[ReadyMessage, ...]
    receives: tuple[ReadyMessage, ...]
    unpack: Callable[[], None]
    packed: Mapping[Medium, int]
    unpacked: Mapping[Medium, int]


class Staging:
    """Memory of one Resharder beside the tensors: staging buffers, and scratch.

    It grows to what a program needs once it is bound, and stays for later runs.
    """

    def __init__(self, device: torch.device) -> None:
        """Start with nothing."""
        self.device = device
        self._blocks: dict[str, torch.UntypedStorage] = {}

    @property
    def nbytes(self) -> int:
        """Size of all of it."""
        return sum(block.nbytes() for block in self._blocks.values())

    def block(self, name: str, nbytes: int) -> torch.UntypedStorage:
        """The block of this name, made anew if it is smaller than asked for.

        Raises:
            RuntimeError: if there is not enough memory.
        """
        block = self._blocks.get(name)
        if block is None or block.nbytes() < nbytes:
            self._blocks.pop(name, None)
            block = torch.empty(nbytes, dtype=torch.uint8, device=self.device).untyped_storage()
            self._blocks[name] = block
        return block


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of one tensor of the spec.

    Attributes:
        itemsize: bytes of a storage element on its way.
        src: type in sources, if the tensor is converted; None otherwise, like the others.
        wire: type on the way.
        dst: type in destinations.
    """

    itemsize: int
    src: torch.dtype | None = None
    wire: torch.dtype | None = None
    dst: torch.dtype | None = None

    @classmethod
    def of(cls, tensor: TensorSpec) -> Elements:
        """Those of a tensor."""
        if tensor.dst_dtype == tensor.dtype:
            return cls(storage_nbytes(tensor.bits))
        names = (tensor.dtype, tensor.wire_dtype, tensor.dst_dtype)
        return cls(storage_nbytes(tensor.bits), *(getattr(torch, name) for name in names))

    def at(self, place: Place) -> torch.dtype | None:
        """Type at a place."""
        if place == Place.SCRATCH:
            return self.wire
        return self.src if place == Place.SOURCE else self.dst


def distinct(memories: LocalMemories) -> list[LocalMemory]:
    """Every local tensor once."""
    return list({id(local): local for own in memories.values() for local in own}.values())


@dataclass(frozen=True, slots=True)
class _Placed:
    """A message, the places of its moves in memory, and its place in the staging buffer.

    Attributes:
        message: what it is.
        parts: per move, all views of it with the positions of their first elements in the move's box.
        elements: per move, those of its tensor.
        staged_at: in the staging buffer, in bytes; None if the message is one run of bytes in memory.
    """

    message: Message
    parts: tuple[tuple[tuple[tuple[int, ...], StridedView], ...], ...]
    elements: tuple[Elements, ...]
    staged_at: int | None

    def ready(self, block: torch.UntypedStorage) -> ReadyMessage:
        """The message with its bytes, given the staging buffer."""
        if self.staged_at is None:
            [[(_, view)]] = self.parts
            return ReadyMessage(self.message, view.as_bytes())
        staged = StridedView(block, self.staged_at, (self.message.nbytes,), (1,), 1)
        return ReadyMessage(self.message, staged.as_bytes())

    def staged(self, block: torch.UntypedStorage) -> list[Pair]:
        """Pairs of each view's place in the staging buffer, and the view."""
        start = self.staged_at
        if start is None:
            return []
        found = []
        for move, parts, elements in zip(self.message.moves, self.parts, self.elements, strict=True):
            for (at, strides), (_, view) in zip(_places(move, parts, elements), parts, strict=True):
                place = start + at * elements.itemsize
                dense = StridedView(block, place, view.shape, strides, elements.itemsize, elements.wire)
                found.append((dense, view))
            start += move.nbytes
        return found


def _staged(placed: Sequence[_Placed]) -> dict[Medium, int]:
    """Bytes of the messages that lie in a staging buffer, by medium."""
    found: dict[Medium, int] = {}
    for each in placed:
        if each.staged_at is not None:
            medium = each.message.medium
            found[medium] = found.get(medium, 0) + each.message.nbytes
    return found


def _places(
    move: Move, parts: Sequence[tuple[tuple[int, ...], StridedView]], elements: Elements
) -> list[tuple[int, tuple[int, ...]]]:
    """First element and strides of each part of a move in its row-major bytes."""
    if len(parts) == 1:
        return [(0, dense_strides(parts[0][1].shape))]
    outer = move.box.shape[:-1]
    strides = dense_strides((*outer, move.nbytes // elements.itemsize // prod(outer)))
    return [(sum(map(mul, at, strides)), strides) for at, _ in parts]


def bind(
    lowered: Lowered,
    staging: Staging,
    elements: Sequence[Elements],
    sources: LocalMemories,
    destinations: LocalMemories,
) -> tuple[ReadyExchange, ...]:
    """Bind a program to the memory of a run.

    Args:
        lowered: the program.
        staging: grows to what the program needs.
        elements: per tensor of the spec.
        sources: memory of the local source tensors, by position of the tensor.
        destinations: likewise of the destination tensors.

    Returns:
        All slots, ready to run.

    Raises:
        InputError: if a destination shares memory with a source or another destination.
        RuntimeError: if there is not enough memory.
    """
    return _Binder(lowered, staging, elements, sources, destinations).bind()


class _Binder:
    """Finds the place of every message and move."""

    def __init__(
        self,
        lowered: Lowered,
        staging: Staging,
        elements: Sequence[Elements],
        sources: LocalMemories,
        destinations: LocalMemories,
    ) -> None:
        self.lowered, self.staging, self.elements = lowered, staging, elements
        self.memories = {Place.SOURCE: sources, Place.DESTINATION: destinations}
        self.scratch = staging.block("scratch", lowered.scratch.nbytes)

    def bind(self) -> tuple[ReadyExchange, ...]:
        copies = [[self.copy(move) for move in exchange.copies] for exchange in self.lowered.exchanges]
        self.check_overlap(copies)
        sent, send_nbytes = self.place_all("sends")
        received, receive_nbytes = self.place_all("receives")
        outgoing = [self.staging.block(f"send {at}", send_nbytes) for at in range(BUFFERS)]
        incoming = [self.staging.block(f"receive {at}", receive_nbytes) for at in range(BUFFERS)]
        device = self.staging.device
        found = []
        for at, exchange in enumerate(self.lowered.exchanges):
            out, into = outgoing[at % BUFFERS], incoming[at % BUFFERS]
            packed = [pair for placed in sent[at] for pair in placed.staged(out)]
            unpacked = [(view, dense) for placed in received[at] for dense, view in placed.staged(into)]
            within = [pair for pairs in copies[at] for pair in pairs]
            found.append(
                ReadyExchange(
                    exchange.slot,
                    self.lowered.scratch.after[at],
                    copy_in_bulk([*within, *packed], device),
                    tuple(placed.ready(out) for placed in sent[at]),
                    tuple(placed.ready(into) for placed in received[at]),
                    copy_in_bulk(unpacked, device),
                    {
                        Medium.LOCAL: sum(pair[0].nbytes for pair in within if not stays(pair)),
                        **_staged(sent[at]),
                    },
                    _staged(received[at]),
                )
            )
        return tuple(found)

    def check_overlap(self, copies: Sequence[Sequence[Sequence[Pair]]]) -> None:
        staying: dict[int, list[StridedView]] = {}
        for exchange, moves in zip(self.lowered.exchanges, copies, strict=True):
            for move, pairs in zip(exchange.copies, moves, strict=True):
                staying.setdefault(move.tensor, []).extend(pair[0] for pair in pairs if stays(pair))
        sources, destinations = map(distinct, (self.memories[Place.SOURCE], self.memories[Place.DESTINATION]))
        check_overlap(sources, destinations, staying)

    def place_all(self, direction: Literal["sends", "receives"]) -> tuple[list[list[_Placed]], int]:
        """Lay the messages of every slot out one after another; also the most bytes that any slot takes."""
        found = []
        most = 0
        for exchange in self.lowered.exchanges:
            placed, nbytes = self.place(exchange, direction)
            found.append(placed)
            most = max(most, nbytes)
        return found, most

    def place(self, exchange: Exchange, direction: Literal["sends", "receives"]) -> tuple[list[_Placed], int]:
        placed = []
        end = 0
        for message in exchange.sends if direction == "sends" else exchange.receives:
            views = [move.read if direction == "sends" else move.write for move in message.moves]
            parts = tuple(
                tuple((view.at, self.view(move, view)) for view in own)
                for move, own in zip(message.moves, views, strict=True)
            )
            staged_at = None
            # the memory of a local tensor may have gaps that the plan does not know
            if not (goes_straight(views) and parts[0][0][1].is_dense):
                staged_at = aligned(end)
                end = staged_at + message.nbytes
            elements = tuple(self.elements[move.tensor] for move in message.moves)
            placed.append(_Placed(message, parts, elements, staged_at))
        return placed, end

    def copy(self, move: Move) -> list[Pair]:
        """A copy within the rank, for every two places that have elements in common."""
        if len(move.read) == len(move.write) == 1:
            return [(self.view(move, move.write[0]), self.view(move, move.read[0]))]
        found = []
        for write, read in product(move.write, move.read):
            both = common_views(write, read)
            if both is not None:
                found.append((self.view(move, both[0]), self.view(move, both[1])))
        return found

    def view(self, move: Move, view: View) -> StridedView:
        elements = self.elements[move.tensor]
        if view.place != Place.SCRATCH:
            found = self.memories[view.place][move.tensor][view.buffer].view(view)
            return found if elements.wire is None else replace(found, dtype=elements.at(view.place))
        start = self.lowered.scratch.at[view.buffer] + view.offset * elements.itemsize
        return StridedView(self.scratch, start, view.shape, view.strides, elements.itemsize, elements.wire)
