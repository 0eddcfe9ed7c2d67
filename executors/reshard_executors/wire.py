"""The wire: messages of one slot over a process group, posted as one group and waited for once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from reshard_executors.agreement import reason
from reshard_executors.messages import Message
from reshard_executors.ready import ReadyExchange
from reshard_planner.errors import ExecutionError
from reshard_planner.spec import ReshardSpec

SHOWN = 3
"""Messages, and tensors of each, that an error names."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """The messages of a slot, and what to wait for: a work each, or one where the backend joins them."""

    slot: int
    messages: tuple[tuple[str, Message], ...]
    works: tuple[dist.Work, ...]


class Wire:
    """Exchanges messages with other ranks."""

    def __init__(self, spec: ReshardSpec, positions: Mapping[int, int]) -> None:
        """Know the ranks.

        Args:
            spec: for the names of its tensors.
            positions: position in the group of each rank of the plan.
        """
        self._spec, self._positions = spec, positions

    def post(self, group: dist.ProcessGroup, exchange: ReadyExchange) -> InFlight:
        """Post all messages of a slot as one group.

        Args:
            group: the group of all ranks; not kept, so that closing gives up the last reference.
            exchange: the slot.

        Raises:
            ExecutionError: naming slot, peers and tensors, if that fails.
        """
        said = tuple(
            (verb, ready.message)
            for verb, each in (("receiving {} from", exchange.receives), ("sending {} to", exchange.sends))
            for ready in each
        )
        operations = [
            self._operation(dist.irecv, group, ready.buffer, ready.message.peer)
            for ready in exchange.receives
        ]
        operations += [
            self._operation(dist.isend, group, ready.buffer, ready.message.peer) for ready in exchange.sends
        ]
        if not operations:
            return InFlight(exchange.slot, (), ())
        try:
            works = dist.batch_isend_irecv(operations)
        except (RuntimeError, ValueError) as failure:  # the latter for a group that has been destroyed
            raise self._error(exchange.slot, said, failure) from failure
        return InFlight(exchange.slot, said, tuple(works))

    def wait(self, flight: InFlight) -> None:
        """Wait for every message of a slot exactly once; on CUDA the current stream waits, not this thread.

        Raises:
            ExecutionError: naming slot, peer and tensors, if a message fails.
        """
        for at, work in enumerate(flight.works):
            try:
                work.wait()
            except RuntimeError as failure:
                alone = len(flight.works) == len(flight.messages)
                concerned = flight.messages[at : at + 1] if alone else flight.messages
                raise self._error(flight.slot, concerned, failure) from failure

    def warm_up(
        self,
        group: dist.ProcessGroup,
        peers: tuple[Sequence[int], Sequence[int]],
        device: torch.device,
    ) -> None:
        """Exchange a byte with every peer, so that connections are made before the first run.

        Args:
            group: the group of all ranks, which have used it together before.
            peers: ranks of the plan that this one sends to, and those that it receives from.
            device: where the bytes lie.

        Raises:
            ExecutionError: if a peer cannot be reached.
        """
        operations = [
            self._operation(call, group, torch.zeros(1, dtype=torch.uint8, device=device), peer)
            for call, mine in zip((dist.isend, dist.irecv), peers, strict=True)
            for peer in mine
        ]
        try:
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()
        except RuntimeError as failure:
            known = sorted({*peers[0], *peers[1]})
            raise ExecutionError(f"connecting with ranks {known} failed: {reason(failure)}") from failure

    def _operation(
        self, call: Callable[..., Any], group: dist.ProcessGroup, buffer: torch.Tensor, peer: int
    ) -> dist.P2POp:
        return dist.P2POp(call, buffer, None, group, 0, self._positions[peer])

    def _error(
        self, slot: int, messages: Sequence[tuple[str, Message]], failure: Exception
    ) -> ExecutionError:
        parts = [self._describe(verb, message) for verb, message in messages[:SHOWN]]
        if len(messages) > SHOWN:
            parts.append(f"and {len(messages) - SHOWN} more")
        return ExecutionError(f"slot {slot}: {', '.join(parts)} failed: {reason(failure)}")

    def _describe(self, verb: str, message: Message) -> str:
        names = list(dict.fromkeys(repr(self._spec.tensors[move.tensor].name) for move in message.moves))
        if len(names) > SHOWN:
            names[SHOWN:] = [f"and {len(names) - SHOWN} more"]
        return f"{verb.format(', '.join(names))} rank {message.peer}"
