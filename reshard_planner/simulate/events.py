"""Predictions as timelines, with the events that executors measure."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import InputError
from reshard_planner.ir.timeline import NO_PEER, Activity, Timeline
from reshard_planner.simulate.values import Prediction
from reshard_planner.simulate.workload import Workload
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def timeline_of(prediction: Prediction, ranks: Collection[int] | None = None) -> Timeline:
    """The events of a predicted run.

    A message is one event at its sender, from posting it until it is done with it, and one at its receiver,
    until the last byte has arrived. What a rank copies, packs and unpacks for a slot are events by medium,
    one after another.

    Args:
        prediction: the run.
        ranks: whose events; of all ranks by default.

    Returns:
        Events, those of messages first. Slots are those of the plan.

    Raises:
        InputError: if the run has no such rank.
    """
    messages, slots = prediction.intervals, prediction.slots
    kept = _kept(len(prediction.end_s), ranks)
    events = [
        _events(messages.src, Activity.SEND, messages.medium, messages.slot, messages.dst, messages.nbytes,
                messages.sent_s, messages.gone_s, kept),
        _events(messages.dst, Activity.RECEIVE, messages.medium, messages.slot, messages.src, messages.nbytes,
                messages.awaited_s, messages.end_s, kept),
    ]  # fmt: skip
    packed = (slots.copy_nbytes, slots.pack_nvlink_nbytes, slots.pack_nbytes - slots.pack_nvlink_nbytes)
    unpacked = (
        np.zeros_like(slots.copy_nbytes),
        slots.unpack_nvlink_nbytes,
        slots.unpack_nbytes - slots.unpack_nvlink_nbytes,
    )
    for activity, parts, start_s, end_s in (
        (Activity.PACK, packed, slots.pack_s, slots.packed_s),
        (Activity.UNPACK, unpacked, slots.unpack_s, slots.unpacked_s),
    ):
        total = np.maximum(1, sum(parts))
        done = np.zeros_like(total)
        begin_s = start_s
        for medium, nbytes in zip(Medium, parts, strict=True):
            done = done + nbytes
            until_s = np.where(done == total, end_s, start_s + (end_s - start_s) * (done / total))
            moves = nbytes > 0
            events.append(
                _events(
                    slots.rank[moves], activity, np.full(moves.sum(), medium), slots.slot[moves],
                    np.full(moves.sum(), NO_PEER), nbytes[moves], begin_s[moves], until_s[moves], kept,
                )
            )  # fmt: skip
            begin_s = until_s
    return Timeline.concatenate(events)


def count_events(workload: Workload, ranks: Collection[int] | None = None) -> int:
    """How many events :func:`timeline_of` gives for a run of a workload.

    Args:
        workload: what is to be done.
        ranks: whose events; of all ranks by default.

    Raises:
        InputError: if the run has no such rank.
    """
    messages, slots = workload.messages, workload.rank_slots
    kept = _kept(max(workload.ranks, default=-1) + 1, ranks)
    mine = kept[slots.rank]
    moved = (
        slots.copy_nbytes,
        slots.pack_nvlink_nbytes,
        slots.pack_nbytes - slots.pack_nvlink_nbytes,
        slots.unpack_nvlink_nbytes,
        slots.unpack_nbytes - slots.unpack_nvlink_nbytes,
    )
    ends = int(kept[messages.src].sum() + kept[messages.dst].sum())
    return ends + sum(int((nbytes[mine] > 0).sum()) for nbytes in moved)


def _kept(count: int, ranks: Collection[int] | None) -> NDArray[np.bool_]:
    """Whether the events of each rank are wanted, bool of shape (ranks,)."""
    kept = np.full(count, ranks is None)
    for rank in () if ranks is None else ranks:
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 0 <= rank < count:
            raise InputError(f"ranks has {rank!r}; expected ranks from 0 to {count - 1}")
        kept[rank] = True
    return kept


def _events(
    rank: Ints,
    activity: Activity,
    medium: Ints,
    slot: Ints,
    peer: Ints,
    nbytes: Ints,
    start_s: Floats,
    end_s: Floats,
    kept: NDArray[np.bool_],
) -> Timeline:
    mine = kept[rank]
    columns = (medium, slot, peer, nbytes, start_s, np.maximum(start_s, end_s))
    chosen = [column[mine] for column in columns]
    return Timeline(rank[mine], np.full(int(mine.sum()), activity), *chosen)
