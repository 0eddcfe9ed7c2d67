"""A program bound to memory: every message and copy as tensors that are ready to be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from reshard_executors.binding import LocalMemories
from reshard_executors.copies import Pair, copy_in_bulk, stays
from reshard_executors.messages import BUFFERS, Exchange, Lowered, Message, aligned, dense_strides
from reshard_executors.overlap import check_overlap
from reshard_executors.views import StridedView
from reshard_planner.ir.program import Move, Place, View


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
    """

    slot: int
    after: int
    pack: Callable[[], None]
    sends: tuple[ReadyMessage, ...]
    receives: tuple[ReadyMessage, ...]
    unpack: Callable[[], None]


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
class _Placed:
    """A message, its views in memory, and its place in the staging buffer; None if it is one run of bytes."""

    message: Message
    views: tuple[StridedView, ...]
    staged_at: int | None

    def ready(self, block: torch.UntypedStorage) -> ReadyMessage:
        """The message with its bytes, given the staging buffer."""
        if self.staged_at is None:
            return ReadyMessage(self.message, self.views[0].as_bytes())
        staged = StridedView(block, self.staged_at, (self.message.nbytes,), (1,), 1)
        return ReadyMessage(self.message, staged.as_bytes())

    def staged(self, block: torch.UntypedStorage) -> list[tuple[StridedView, StridedView]]:
        """Pairs of each view's place in the staging buffer, and the view."""
        at = self.staged_at
        if at is None:
            return []
        found = []
        for view in self.views:
            dense = StridedView(block, at, view.shape, dense_strides(view.shape), view.itemsize)
            found.append((dense, view))
            at += view.nbytes
        return found


def bind(
    lowered: Lowered,
    staging: Staging,
    itemsizes: Sequence[int],
    sources: LocalMemories,
    destinations: LocalMemories,
) -> tuple[ReadyExchange, ...]:
    """Bind a program to the memory of a run.

    Args:
        lowered: the program.
        staging: grows to what the program needs.
        itemsizes: bytes of one storage element, per tensor of the spec.
        sources: memory of the local source tensors, by position of the tensor.
        destinations: likewise of the destination tensors.

    Returns:
        All slots, ready to run.

    Raises:
        InputError: if a destination shares memory with a source or another destination.
        RuntimeError: if there is not enough memory.
    """
    return _Binder(lowered, staging, itemsizes, sources, destinations).bind()


class _Binder:
    """Finds the place of every message and move."""

    def __init__(
        self,
        lowered: Lowered,
        staging: Staging,
        itemsizes: Sequence[int],
        sources: LocalMemories,
        destinations: LocalMemories,
    ) -> None:
        self.lowered, self.staging, self.itemsizes = lowered, staging, itemsizes
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
            found.append(
                ReadyExchange(
                    exchange.slot,
                    self.lowered.scratch.after[at],
                    copy_in_bulk([*copies[at], *packed], device),
                    tuple(placed.ready(out) for placed in sent[at]),
                    tuple(placed.ready(into) for placed in received[at]),
                    copy_in_bulk(unpacked, device),
                )
            )
        return tuple(found)

    def check_overlap(self, copies: Sequence[Sequence[Pair]]) -> None:
        staying: dict[int, list[StridedView]] = {}
        for exchange, pairs in zip(self.lowered.exchanges, copies, strict=True):
            for move, pair in zip(exchange.copies, pairs, strict=True):
                if stays(pair):
                    staying.setdefault(move.tensor, []).append(pair[0])
        sources, destinations = (
            [local for locals_ in self.memories[place].values() for local in locals_]
            for place in (Place.SOURCE, Place.DESTINATION)
        )
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
            views = tuple(
                self.view(move, move.read if direction == "sends" else move.write) for move in message.moves
            )
            staged_at = None
            if len(views) > 1 or not views[0].is_dense:
                staged_at = aligned(end)
                end = staged_at + message.nbytes
            placed.append(_Placed(message, views, staged_at))
        return placed, end

    def copy(self, move: Move) -> Pair:
        return self.view(move, move.write), self.view(move, move.read)

    def view(self, move: Move, view: View | None) -> StridedView:
        if view is None:
            raise RuntimeError(f"operation {move.op} has no bytes on this side")
        if view.place != Place.SCRATCH:
            return self.memories[view.place][move.tensor][view.buffer].view(view)
        itemsize = self.itemsizes[move.tensor]
        start = self.lowered.scratch.at[view.buffer] + view.offset * itemsize
        return StridedView(self.scratch, start, view.shape, view.strides, itemsize)
