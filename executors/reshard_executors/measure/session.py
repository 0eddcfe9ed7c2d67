"""One process of a measurement: meets the others, measures in turns, and hands all of it to rank 0."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

import torch
import torch.distributed as dist

from reshard_executors.agreement import meeting_to, reason
from reshard_executors.command.exits import STORE_STAY_S
from reshard_executors.groups import backend_of
from reshard_executors.launchers import RankInfo
from reshard_executors.measure.exchange import Exchange
from reshard_executors.measure.full import collect, plan_loads, play
from reshard_executors.measure.pairs import Pair, plan_full_turns, plan_turns
from reshard_executors.measure.probe import Leader, follow
from reshard_executors.measure.samples import Measurement, PairSample, Seat, group_hosts, rates_by_direction
from reshard_executors.private import PrivateGroup
from reshard_executors.waiting import Waiting
from reshard_executors.world import make_world
from reshard_planner.errors import ExecutionError, InputError, ReshardError

T = TypeVar("T")

SMALL_NBYTES: Final = 4096
"""Message that latency is measured with."""

SIZES: Final = {"nccl": (2**20, 2**24, 2**26), "gloo": (2**18, 2**20, 2**22)}
"""Larger messages by backend, in bytes."""

LEAST_TURN_S: Final = {"nccl": 0.1, "gloo": 0.25}
"""How long a turn lasts at least, where the time is too short for turns of all pairs."""

LEAST_SPAN_S: Final = 0.02
"""How long a pair measures at least, where turns before took longer than they should."""

MOST_TURN_S: Final = 2.0
"""How long a turn lasts at most: longer ones would tell no more."""

MOST_FULL_TURN_S: Final = 1.0
"""How long a full turn lasts at most, in which all ranks send."""

FULL_SHARE: Final = 0.15
"""Share of the time for full turns."""

PATIENCE: Final = 4
"""How many times longer ranks wait than anything should take."""

LOST_AFTER_S: Final = 10.0
"""A rank without a sign of life for so long is lost."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How to measure, the same on all ranks.

    Attributes:
        seconds: how long all of it may take, beside meeting and connecting.
        backend: ``gloo`` or ``nccl``; None for nccl where CUDA is.
        timeout_s: how long ranks wait for one another each time, in seconds.
    """

    seconds: float
    backend: str | None
    timeout_s: float


def measure(
    info: RankInfo, wish: Wish, problem: ReshardError | None, keep: Callable[[Measurement], T]
) -> T | None:
    """Measure with all other ranks of the launcher; called by all of them.

    Args:
        info: what the launcher says of this process.
        wish: how to measure.
        problem: why this rank cannot go on, if it cannot.
        keep: makes the result of what was measured; called on rank 0, while the others wait for it.

    Returns:
        What ``keep`` returns on rank 0, None on others.

    Raises:
        InputError: if there is one rank alone; on all ranks, if one cannot go on or wishes differ.
        ExecutionError: on all ranks that are left, if they do not meet or one is lost.
    """
    if info.world_size == 1:
        raise InputError(
            "there is nothing to measure: this is the only process; expected several, of a launcher, such as:"
            " torchrun --nproc-per-node 8 -m reshard_planner topology measure -o measured.yaml"
        )
    timeout = timedelta(seconds=wish.timeout_s)
    device = make_world(info, wish.backend, timeout, "topology measure")
    try:
        found = _together(info, wish, device, problem, keep)
    except ExecutionError:
        if info.rank == 0:  # which may keep the store, where others find why
            time.sleep(STORE_STAY_S)
        raise
    dist.destroy_process_group()
    return found


def _together(
    info: RankInfo,
    wish: Wish,
    device: torch.device,
    problem: ReshardError | None,
    keep: Callable[[Measurement], T],
) -> T | None:
    timeout = timedelta(seconds=wish.timeout_s)
    lost_after = timedelta(seconds=min(LOST_AFTER_S, wish.timeout_s / 2))
    kept: T | None = None
    group = PrivateGroup(None, timeout, lost_after)
    try:
        facts = {"--seconds": f"{wish.seconds:g}", "--timeout": f"{wish.timeout_s:g}"}
        group.agree("measure", facts, problem)
        seat = Seat(info.rank, socket.gethostname(), info.local_rank, _uuid(device))
        measured = group.wait(group.ask(partial(_measure, wish, seat, device)))
        failed: ReshardError | None = None
        if info.rank == 0:
            try:
                kept = keep(measured)
            except ReshardError as error:
                failed = error
        group.agree("keep what was measured", {}, failed)
    finally:
        group.close()
    return kept


def _uuid(device: torch.device) -> str | None:
    """The GPU, as the driver reports it."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _measure(
    wish: Wish, seat: Seat, device: torch.device, group: dist.ProcessGroup, waiting: Waiting
) -> Measurement:
    """All turns of this rank; in the lane."""
    begin, backend = time.perf_counter(), backend_of(group)
    sizes = SIZES[backend]
    seats = tuple(_gather(group, seat, "tell where they run"))
    by_host = group_hosts(seats)
    hosts = list(by_host.values())
    full_turns = plan_full_turns(hosts)
    pairs_s = wish.seconds * (1 - FULL_SHARE if full_turns else 1)
    plan = plan_turns(hosts, int(pairs_s / LEAST_TURN_S[backend]))
    most_s = min(MOST_TURN_S, wish.timeout_s / PATIENCE)
    exchange = Exchange(group, device, max(sizes))
    exchange.meet()  # what all do comes first
    mine: list[PairSample] = []
    for number, turn in enumerate(plan.turns):
        pair = next((pair for pair in turn if seat.rank in pair), None)
        waiting.begin(partial(_say, f"turn {number + 1} of {len(plan.turns)}", pair))
        left_s = begin + pairs_s - time.perf_counter()
        span_s = max(LEAST_SPAN_S, min(most_s, left_s / (len(plan.turns) - number)))
        mine += _turn(exchange, seat.rank, pair, sizes, span_s)
    samples = [sample for each in _gather(group, mine, "tell what they measured") for sample in each]
    full_s = min(
        FULL_SHARE * wish.seconds / max(1, len(full_turns)), MOST_FULL_TURN_S, wish.timeout_s / PATIENCE
    )
    loads = plan_loads(full_turns, rates_by_direction(samples), full_s)
    elapsed_s: list[float] = []
    for number, full in enumerate(full_turns):
        waiting.begin(partial(_say, f"turn {number + 1} of {len(full_turns)} in which all send", None))
        with meeting_to("send at the same time"):
            elapsed_s.append(play(exchange, seat.rank, full, loads))
    everyone = _gather(group, elapsed_s, "tell how long it took")
    sums = collect(full_turns, loads, everyone, [each.host for each in seats])
    passed_s = time.perf_counter() - begin
    return Measurement(backend, seats, SMALL_NBYTES, tuple(samples), plan.pair_count, sums, passed_s)


def _say(what: str, pair: Pair | None) -> str:
    """What is said of a part of the measurement that fails."""
    return f"measuring failed in {what}" + (f", ranks {pair[0]} and {pair[1]}" if pair else "")


def _turn(
    exchange: Exchange, rank: int, pair: Pair | None, sizes: Sequence[int], span_s: float
) -> list[PairSample]:
    """This rank's part of a turn, and what it measured there; then it waits for all others."""
    found = []
    if pair is not None:
        low, high = pair
        peer = high if rank == low else low
        try:
            if rank == low:
                found.append(Leader(exchange, low, high).measure(SMALL_NBYTES, sizes, span_s))
            else:
                follow(exchange, low)
        except RuntimeError as failure:
            text = f"measuring with rank {peer} failed: {reason(failure)}"
            raise ExecutionError(text, lost=[peer]) from failure
    with meeting_to("end a turn"):
        exchange.meet()
    return found


def _gather(group: dist.ProcessGroup, mine: T, purpose: str) -> list[T]:
    """What every rank gives, by rank."""
    everyone: list[T | None] = [None] * dist.get_world_size(group)
    with meeting_to(purpose):
        dist.all_gather_object(everyone, mine, group=group)
    return [each for each in everyone if each is not None]
