"""Workloads written down message by message."""

from __future__ import annotations

import numpy as np

from reshard_planner.simulate import Messages, RankSlots, Workload
from reshard_planner.transfer import Medium


def by_hand(
    messages: list[tuple[int, int, int, Medium, int]],
    lag: int = 2,
    host_nbytes: dict[tuple[int, int], tuple[int, int, int]] | None = None,
) -> Workload:
    """Messages as (slot, src, dst, medium, nbytes), and bytes copied, packed and unpacked by (rank, slot)."""
    given_nbytes = host_nbytes or {}
    messages = sorted(messages)
    rows = sorted(
        {(rank, slot) for slot, src, dst, _, _ in messages for rank in (src, dst)} | set(given_nbytes)
    )
    posted = [sum(slot == at and rank in ends for at, *ends, _, _ in messages) for rank, slot in rows]
    table = np.array([(*row, *given_nbytes.get(row, (0, 0, 0))) for row in rows], dtype=np.int64)
    rank, number, copied, packed, unpacked = table.T.copy()
    none = np.zeros(len(rows), dtype=np.int64)
    slot, src, dst, medium, nbytes = np.array(messages, dtype=np.int64).reshape(-1, 5).T.copy()
    return Workload(
        tuple(range(max(rank for rank, _ in rows) + 1)),
        lag,
        Messages(src, dst, slot, medium, nbytes),
        RankSlots(rank, number, copied, packed, none, unpacked, none, np.array(posted, dtype=np.int64)),
        np.array([rows.index((rank, at)) for at, rank, *_ in messages], dtype=np.int64),
        np.array([rows.index((rank, at)) for at, _, rank, *_ in messages], dtype=np.int64),
    )
