"""The wire: messages of one slot over a process group, posted as one group and waited for once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from reshard_executors.agreement import reason
from reshard_executors.messages import Message
from reshard_executors.ready import ReadyExchange
from reshard_executors.spelling import spell_names, spell_ranks
from reshard_planner.errors import ExecutionError
from reshard_planner.spec import ReshardSpec

SHOWN = 3
"""Messages, and tensors of each, that an error names."""

WaitFor: TypeAlias = Callable[[Callable[[], str]], object]
"""Told what is waited for."""

Landed: TypeAlias = Callable[["InFlight", int, float], object]
"""Told of a message that is done."""


def ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """The messages of a slot that are on their way.

    Attributes:
        slot: number of the slot.
        receives: messages to come.
        sends: messages to go.
        works: what to wait for: one per message, receives first, or one for all where the backend joins them.
        posted_at: when they were posted, by ``time.perf_counter``.
    """

    slot: int
    receives: tuple[Message, ...]
    sends: tuple[Message, ...]
    works: tuple[dist.Work, ...]
    posted_at: float

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of them, as works go."""
        return self.receives + self.sends

    @property
    def joined(self) -> bool:
        """Whether one work stands for all messages."""
        return len(self.works) != len(self.messages)


class Wire:
    """Exchanges messages with other ranks."""

    def __init__(self, spec: ReshardSpec, positions: Mapping[int, int]) -> None:
        """Know the ranks.

        Args:
            spec: for the names of its tensors.
            positions: position in the group of each rank of the plan.
        """
        self._spec, self._positions = spec, positions

    def positions_of(self, ranks: Iterable[int]) -> list[int]:
        """Positions in the group of ranks of the plan."""
        return [self._positions[rank] for rank in ranks]

    def post(self, group: dist.ProcessGroup, exchange: ReadyExchange) -> InFlight:
        """Post all messages of a slot as one group.

        Args:
            group: the group of all ranks; not kept, so that closing gives up the last reference.
            exchange: the slot.

        Raises:
            ExecutionError: naming slot, peers and tensors, if that fails.
        """
        receives = tuple(ready.message for ready in exchange.receives)
        sends = tuple(ready.message for ready in exchange.sends)
        operations = [
            self._operation(dist.irecv, group, ready.buffer, ready.message.peer)
            for ready in exchange.receives
        ]
        operations += [
            self._operation(dist.isend, group, ready.buffer, ready.message.peer) for ready in exchange.sends
        ]
        works: list[dist.Work] = []
        posted_at = time.perf_counter()
        try:
            if operations:
                works = dist.batch_isend_irecv(operations)
        except (RuntimeError, ValueError) as failure:  # the latter for a group that has been destroyed
            flight = InFlight(exchange.slot, receives, sends, (), posted_at)
            raise self._error(flight, None, failure) from failure
        return InFlight(exchange.slot, receives, sends, tuple(works), posted_at)

    def wait(self, flight: InFlight, wait_for: WaitFor = ignore, landed: Landed = ignore) -> None:
        """Wait for every message of a slot exactly once; on CUDA the current stream waits, not this thread.

        Args:
            flight: the slot's messages.
            wait_for: told what is waited for, as a function that says it.
            landed: told the slot, the number of each message that is done, and when.

        Raises:
            ExecutionError: naming slot, peer and tensors, if a message fails.
        """
        for at, work in enumerate(flight.works):
            which = None if flight.joined else at
            wait_for(partial(self.describe, flight, which))
            try:
                work.wait()
            except RuntimeError as failure:
                raise self._error(flight, which, failure) from failure
            now = time.perf_counter()
            for done in range(len(flight.messages)) if which is None else (which,):
                landed(flight, done, now)

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
        except (RuntimeError, ValueError) as failure:
            text = f"{connecting(peers)}: {reason(failure)}"
            raise ExecutionError(text, lost=[*peers[0], *peers[1]]) from failure

    def _operation(
        self, call: Callable[..., Any], group: dist.ProcessGroup, buffer: torch.Tensor, peer: int
    ) -> dist.P2POp:
        return dist.P2POp(call, buffer, None, group, 0, self._positions[peer])

    def _error(self, flight: InFlight, at: int | None, failure: Exception) -> ExecutionError:
        failed = flight.messages if at is None else flight.messages[at : at + 1]
        peers = [message.peer for message in failed]
        return ExecutionError(f"{self.describe(flight, at)}: {reason(failure)}", lost=peers)

    def describe(self, flight: InFlight, at: int | None = None) -> str:
        """What is said of a slot, or of one of its messages, that fails."""
        verbs = ["receiving {} from"] * len(flight.receives) + ["sending {} to"] * len(flight.sends)
        said = list(zip(verbs, flight.messages, strict=True))
        if at is not None:
            said = said[at : at + 1]
        parts = [self._describe(verb, message) for verb, message in said[:SHOWN]]
        parts += [f"{len(said) - SHOWN} more"] * (len(said) > SHOWN)
        return f"slot {flight.slot}: {spell_names(parts, len(parts))} failed"

    def _describe(self, verb: str, message: Message) -> str:
        names = list(dict.fromkeys(repr(self._spec.tensors[move.tensor].name) for move in message.moves))
        return f"{verb.format(spell_names(names, SHOWN))} rank {message.peer}"


def connecting(peers: tuple[Sequence[int], Sequence[int]]) -> str:
    """What is said of connecting with peers where it fails."""
    return f"connecting with {spell_ranks([*peers[0], *peers[1]])} failed"
