"""The pipeline: packs a slot, has the one before on the wire, and unpacks the one before that."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from reshard_executors.agreement import reason
from reshard_executors.messages import BUFFERS
from reshard_executors.ready import ReadyExchange
from reshard_executors.recorder import Recorder
from reshard_executors.wire import InFlight, WaitFor, Wire, ignore
from reshard_planner.errors import ExecutionError
from reshard_planner.ir.timeline import Activity
from reshard_planner.transfer import Medium


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run of all slots took on one rank.

    Times are those of the thread that ran the slots; on CUDA it only enqueues.

    Attributes:
        sent_nbytes: bytes sent to other ranks, by medium.
        messages: messages sent to other ranks.
        pack_s: seconds of copying within the rank and packing.
        wire_s: seconds of posting messages and waiting for them.
        unpack_s: seconds of unpacking.
    """

    sent_nbytes: dict[Medium, int]
    messages: int
    pack_s: float
    wire_s: float
    unpack_s: float


def run_slots(
    exchanges: Sequence[ReadyExchange],
    wire: Wire,
    group: dist.ProcessGroup,
    lag: int,
    wait_for: WaitFor = ignore,
    recorder: Recorder | None = None,
) -> Spent:
    """Run all slots of a rank.

    A slot may be packed once every slot of ``lag`` or more before it has been unpacked: nothing that it
    sends has arrived later. Nor may it take scratch that a slot in flight reads. There are as many staging
    buffers as slots in flight. With the default lag of 2 this thread packs and unpacks while another slot is
    on the wire, which the backend's own threads or streams see to. On CUDA everything is enqueued on the
    current stream, and the backend has its own.

    Args:
        exchanges: the slots, ascending.
        wire: exchanges the messages.
        group: the group of all ranks.
        lag: slots between a transfer and the one that forwards its bytes.
        wait_for: told what is waited for.
        recorder: told what is done when.

    Raises:
        ExecutionError: naming the slot, if a message or a copy fails; of a message also peer and tensors.
    """
    sent_nbytes = dict.fromkeys(Medium, 0)
    messages = 0
    spent = dict.fromkeys(("pack", "wire", "unpack"), 0.0)
    flying: deque[tuple[int, ReadyExchange, InFlight]] = deque()
    landed = ignore if recorder is None else recorder.landed
    marks: list[tuple[InFlight, torch.cuda.Event]] = []
    now = time.perf_counter()

    def count(what: str) -> float:
        nonlocal now
        before, now = now, time.perf_counter()
        spent[what] += now - before
        return before

    def copy(activity: Activity, exchange: ReadyExchange) -> None:
        packing = activity == Activity.PACK
        wait_for(lambda: _copying(exchange.slot))
        _copy(exchange.pack if packing else exchange.unpack, exchange.slot)
        before = count(activity.label)
        if recorder is not None:
            copied = exchange.packed if packing else exchange.unpacked
            recorder.copied(activity, exchange.slot, copied, before, now)

    def land() -> None:
        _, exchange, flight = flying.popleft()
        wire.wait(flight, wait_for, landed)
        if any(ready.buffer.is_cuda for ready in (*exchange.receives, *exchange.sends)):
            marks.append((flight, _mark()))
        count("wire")
        copy(Activity.UNPACK, exchange)

    for at, exchange in enumerate(exchanges):
        while flying and (
            len(flying) == BUFFERS
            or flying[0][1].slot + lag <= exchange.slot
            or flying[0][0] <= exchange.after
        ):
            land()
        copy(Activity.PACK, exchange)
        flying.append((at, exchange, wire.post(group, exchange)))
        for ready in exchange.sends:
            sent_nbytes[ready.message.medium] += ready.message.nbytes
        messages += len(exchange.sends)
        count("wire")
    while flying:
        land()
    for flight, mark in marks:
        wait_for(partial(wire.describe, flight))
        mark.synchronize()
    return Spent(sent_nbytes, messages, spent["pack"], spent["wire"], spent["unpack"])


def _mark() -> torch.cuda.Event:
    """A place in the current stream."""
    mark: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


def _copying(slot: int) -> str:
    return f"slot {slot}: copying failed"


def _copy(copies: Callable[[], None], slot: int) -> None:
    try:
        copies()
    except Exception as failure:  # a kernel may fail to compile, in ways of its own
        raise ExecutionError(f"{_copying(slot)}: {reason(failure)}") from failure
