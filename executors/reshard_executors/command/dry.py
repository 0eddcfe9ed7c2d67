"""Dry runs: what ranks would do, read from the plan alone, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_executors.command.output import align
from reshard_executors.spelling import spell_nbytes, spell_ranks
from reshard_planner.errors import InputError
from reshard_planner.ir.messages import split_moves
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.program import Move
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]

DIGEST_DIGITS = 12
"""Digits of a digest that people are shown."""


def describe_ranks(plan: Plan, played: Sequence[int] | None = None) -> dict[str, Any]:
    """What every rank would do, in plain JSON types.

    Args:
        plan: what would be run.
        played: rank of the plan that each process plays, in their order; its own when None.

    Raises:
        InputError: if no process plays some rank of the plan.
    """
    ops = plan.ops()
    process = {rank: rank for rank in plan.ranks}
    if played is not None:
        process = {rank: at for at, rank in enumerate(played)}
        missing = [rank for rank in plan.ranks if rank not in process]
        if missing:
            raise InputError(
                f"--ranks leaves out {spell_ranks(missing)} of the plan; expected all of its ranks, and"
                " perhaps others"
            )
    size = max((*plan.ranks, -1)) + 1
    columns = {
        ("send", medium): _sums(ops, ops.src, medium, size) for medium in (Medium.NETWORK, Medium.NVLINK)
    } | {("receive", medium): _sums(ops, ops.dst, medium, size) for medium in (Medium.NETWORK, Medium.NVLINK)}
    local = _sums(ops, ops.src, Medium.LOCAL, size)
    moved = ops.medium != Medium.LOCAL
    receivers = _distinct(ops.src[moved], ops.dst[moved], size)
    senders = _distinct(ops.dst[moved], ops.src[moved], size)
    slots = _distinct(np.concatenate((ops.src, ops.dst)), np.concatenate((ops.slot, ops.slot)), size)
    return {
        "digest": plan.digest,
        "slots": plan.certificate.schedule.slots,
        "ranks": [
            {
                "rank": rank,
                "process": process[rank],
                "slots": int(slots[rank]),
                **{
                    side: {
                        "peers": int(peers[rank]),
                        "network_nbytes": int(columns[side, Medium.NETWORK][rank]),
                        "nvlink_nbytes": int(columns[side, Medium.NVLINK][rank]),
                    }
                    for side, peers in (("send", receivers), ("receive", senders))
                },
                "local_nbytes": int(local[rank]),
            }
            for rank in plan.ranks
        ],
    }


def _sums(ops: Ops, ends: Ints, medium: Medium, size: int) -> Ints:
    """Bytes over one medium per rank."""
    sums = np.zeros(size, dtype=np.int64)
    chosen = ops.medium == medium
    np.add.at(sums, ends[chosen], ops.nbytes[chosen])
    return sums


def _distinct(ranks: Ints, others: Ints, size: int) -> Ints:
    """How many different values of a second column each rank has."""
    pairs = np.unique(np.stack((ranks, others)), axis=1)
    return np.bincount(pairs[0], minlength=size)


def describe_rank(plan: Plan, rank: int) -> dict[str, Any]:
    """What one rank would do, slot by slot, in plain JSON types.

    Raises:
        InputError: if the plan does not have the rank.
        VerificationError: if the plan cannot be lowered to programs.
    """
    if rank not in plan.ranks:
        own = spell_ranks(plan.ranks) if plan.ranks else "none"
        raise InputError(f"--rank {rank} is no rank of the plan, which has {own}")
    return {
        "digest": plan.digest,
        "rank": rank,
        "slots": [
            {
                "slot": slot.number,
                "sends": _exchanges(slot.sends),
                "receives": _exchanges(slot.receives),
                "local_nbytes": sum(move.nbytes for move in slot.copies),
            }
            for slot in plan.program(rank).slots
        ],
    }


def _exchanges(per_peer: Iterable[tuple[int, Sequence[Move]]]) -> list[dict[str, Any]]:
    """What goes to or comes from each peer, by medium."""
    return [
        {
            "peer": peer,
            "medium": medium.label,
            "messages": len(split_moves(own)),
            "nbytes": sum(move.nbytes for move in own),
        }
        for peer, moves in per_peer
        for medium in Medium
        if (own := [move for move in moves if move.medium == medium])
    ]


def ranks_text(found: dict[str, Any]) -> str:
    """What :func:`describe_ranks` gave, for people."""
    rows: list[tuple[str, ...]] = [
        (
            *("rank", "process", "slots", "sends to", "network", "nvlink"),
            *("receives from", "network", "nvlink", "local"),
        )
    ]
    rows += [
        (
            str(each["rank"]),
            str(each["process"]),
            str(each["slots"]),
            *(
                cell
                for side in ("send", "receive")
                for cell in (
                    str(each[side]["peers"]),
                    spell_nbytes(each[side]["network_nbytes"]),
                    spell_nbytes(each[side]["nvlink_nbytes"]),
                )
            ),
            spell_nbytes(each["local_nbytes"]),
        )
        for each in found["ranks"]
    ]
    title = f"plan {found['digest'][:DIGEST_DIGITS]}, {len(found['ranks'])} ranks, {found['slots']} slots"
    return f"{title}\n{align(rows, left=0)}"


def rank_text(found: dict[str, Any]) -> str:
    """What :func:`describe_rank` gave, for people."""
    rows = [("slot", "does", "medium", "messages", "bytes")]
    for slot in found["slots"]:
        for side, word in (("sends", "sends to"), ("receives", "receives from")):
            rows += [
                (
                    str(slot["slot"]),
                    f"{word} {each['peer']}",
                    each["medium"],
                    str(each["messages"]),
                    spell_nbytes(each["nbytes"]),
                )
                for each in slot[side]
            ]
        if slot["local_nbytes"]:
            rows.append((str(slot["slot"]), "copies", "local", "-", spell_nbytes(slot["local_nbytes"])))
    title = f"plan {found['digest'][:DIGEST_DIGITS]}, rank {found['rank']}, {len(found['slots'])} slots"
    return f"{title}\n{align(rows, left=3)}"
