"""The wire: one grouped exchange per slot over a process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from reshard_executors.agreement import reason
from reshard_executors.memory import Memory
from reshard_executors.messages import Exchange, Lowered, Message, dense_strides
from reshard_executors.views import BoundView, copy_view
from reshard_planner.errors import ExecutionError
from reshard_planner.ir.plan import Plan
from reshard_planner.transfer import Medium

SHOWN = 3
"""Messages, and tensors of each, that an error names."""


@dataclass(frozen=True, slots=True)
class _Posted:
    """A message, its bytes, and where they come from or go to."""

    message: Message
    call: Callable[..., Any]
    buffer: torch.Tensor
    staging: torch.UntypedStorage
    views: tuple[BoundView, ...]

    def packed(self) -> Iterator[tuple[BoundView, BoundView]]:
        """Pairs of places in the staging buffer and in memory; none for a message that goes straight."""
        at = self.message.staged_at
        if at is None:
            return
        for move, view in zip(self.message.moves, self.views, strict=True):
            dense = dense_strides(view.shape)
            yield BoundView(self.staging, at, view.shape, dense, view.itemsize), view
            at += move.nbytes


class Wire:
    """Exchanges messages with other ranks; owns the staging buffers.

    Attributes:
        sent_nbytes: bytes of the messages posted to other ranks so far, by medium.
        messages: number of them.
    """

    def __init__(
        self,
        plan: Plan,
        lowered: Lowered,
        peers: Mapping[int, int],
        device: torch.device,
    ) -> None:
        """Make the staging buffers.

        Args:
            plan: for the names of its tensors.
            lowered: what will be exchanged.
            peers: rank in the world that plays each rank of the plan.
            device: where staging buffers lie.
        """
        self._plan, self._peers = plan, peers
        self._staging = [
            torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()
            for nbytes in (lowered.send_nbytes, lowered.receive_nbytes)
        ]
        self.sent_nbytes = dict.fromkeys(Medium, 0)
        self.messages = 0

    def exchange(self, group: dist.ProcessGroup, exchange: Exchange, memory: Memory) -> None:
        """Run one slot: everything is read before anything that arrives is unpacked.

        Args:
            group: the group of all ranks; not kept, so that closing gives up the last reference.
            exchange: the slot.
            memory: the rank's memory.

        Raises:
            ExecutionError: naming slot, peer and tensors, if a message fails.
            RuntimeError: if memory runs out.
        """
        for move in exchange.copies:
            copy_view(memory.writing(move), memory.reading(move))
        sends = [self._outgoing(message, memory) for message in exchange.sends]
        receives = [self._incoming(message, memory) for message in exchange.receives]
        for posted in sends:
            for staged, view in posted.packed():
                copy_view(staged, view)
        self._transmit(group, exchange.slot, [*receives, *sends])
        for posted in receives:
            for staged, view in posted.packed():
                copy_view(view, staged)
        memory.free(exchange.frees)

    def _outgoing(self, message: Message, memory: Memory) -> _Posted:
        views = tuple(memory.reading(move) for move in message.moves)
        buffer = _buffer(message, views, self._staging[0])
        return _Posted(message, dist.isend, buffer, self._staging[0], views)

    def _incoming(self, message: Message, memory: Memory) -> _Posted:
        views = tuple(memory.writing(move) for move in message.moves)
        buffer = _buffer(message, views, self._staging[1])
        return _Posted(message, dist.irecv, buffer, self._staging[1], views)

    def _transmit(self, group: dist.ProcessGroup, slot: int, messages: Sequence[_Posted]) -> None:
        """Post all messages as one group and wait for each exactly once."""
        if not messages:
            return
        operations = [
            dist.P2POp(posted.call, posted.buffer, self._peers[posted.message.peer], group)
            for posted in messages
        ]
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as failure:
            raise self._error(slot, messages, failure) from failure
        for posted in messages:
            if posted.call is dist.isend:
                self.sent_nbytes[posted.message.medium] += posted.buffer.numel()
                self.messages += 1
        for at, work in enumerate(works):
            try:
                work.wait()
            except RuntimeError as failure:
                # one work per message, or a single one where the backend joins them
                concerned = messages[at : at + 1] if len(works) == len(messages) else messages
                raise self._error(slot, concerned, failure) from failure

    def _error(self, slot: int, messages: Sequence[_Posted], failure: RuntimeError) -> ExecutionError:
        parts = [self._describe(posted) for posted in messages[:SHOWN]]
        if len(messages) > SHOWN:
            parts.append(f"and {len(messages) - SHOWN} more")
        return ExecutionError(f"slot {slot}: {', '.join(parts)} failed: {reason(failure)}")

    def _describe(self, posted: _Posted) -> str:
        tensors = self._plan.spec.tensors
        names = list(dict.fromkeys(repr(tensors[move.tensor].name) for move in posted.message.moves))
        if len(names) > SHOWN:
            names[SHOWN:] = [f"and {len(names) - SHOWN} more"]
        verb = "sending {} to" if posted.call is dist.isend else "receiving {} from"
        return f"{verb.format(', '.join(names))} rank {posted.message.peer}"


def _buffer(message: Message, views: Sequence[BoundView], staging: torch.UntypedStorage) -> torch.Tensor:
    """The bytes of a message, shape (nbytes,), uint8."""
    if message.staged_at is None:
        return views[0].as_bytes()
    return BoundView(staging, message.staged_at, (message.nbytes,), (1,), 1).as_bytes()
