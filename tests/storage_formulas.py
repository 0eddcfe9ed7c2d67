"""The published formulas: which rows, columns and experts a rank of Megatron or of vLLM has, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reshard_planner.models.model import Model

Row = tuple[str, int]
"""One row of a parameter: what the parameter does, and the number of the row."""


class Heads(NamedTuple):
    """Numbers of grouped-query attention."""

    heads: int
    groups: int
    size: int
    gated: bool

    @property
    def n(self) -> int:
        """Query heads of a group."""
        return self.heads // self.groups


def heads_of(model: Model) -> Heads:
    return Heads(model.heads, model.kv_heads, model.head_dim, model.output_gate)


def linear_qkv(all_of: Heads) -> list[Row]:
    """Megatron: all rows of linear_qkv, before they are split over ranks."""
    heads, groups, size, gated = all_of
    n = all_of.n
    width = n * (1 + gated) + 2
    rows: list[Row] = [("", -1)] * (groups * width * size)
    for h in range(heads):
        for d in range(size):
            rows[((h // n) * width + h % n) * size + d] = ("q", h * size * (1 + gated) + d)
            if gated:
                rows[((h // n) * width + n + h % n) * size + d] = ("q", h * size * 2 + size + d)
    for g in range(groups):
        for d in range(size):
            rows[(g * width + width - 2) * size + d] = ("k", g * size + d)
            rows[(g * width + width - 1) * size + d] = ("v", g * size + d)
    return rows


def rank_of_linear_qkv(all_of: Heads, rank: int, tp: int) -> list[Row]:
    """Megatron: the rows of linear_qkv that one rank has."""
    return plain(linear_qkv(all_of), rank, tp)


def qkv_proj(all_of: Heads, rank: int, tp: int) -> list[Row]:
    """vLLM: the rows of qkv_proj that one rank has."""
    heads, groups, size, gated = all_of
    own, kept = heads // tp, max(1, groups // tp)
    first = rank // max(1, tp // groups) * kept
    rows: list[Row] = []
    for h in range(rank * own, rank * own + own):
        rows += [("q", h * size * (1 + gated) + d) for d in range(size * (1 + gated))]
    for role in ("k", "v"):
        for g in range(first, first + kept):
            rows += [(role, g * size + d) for d in range(size)]
    return rows


def gate_up(size: int, rank: int, tp: int) -> list[Row]:
    """Both: the rows of gate and up that one rank has."""
    own = range(rank * size // tp, (rank + 1) * size // tp)
    return [("gate", i) for i in own] + [("up", i) for i in own]


def plain(rows: Sequence[Row], rank: int, tp: int) -> list[Row]:
    """Rows that a rank has of rows that are split evenly, in one piece each."""
    own = len(rows) // tp
    return list(rows[rank * own : rank * own + own])


def columns(size: int, rank: int, tp: int) -> range:
    """Columns that a rank has of a row parallel matrix."""
    own = size // tp
    return range(rank * own, rank * own + own)


def vocabulary(vocab: int, multiple: int, rank: int, tp: int, role: str) -> list[Row | None]:
    """Rows that a rank has of the padded vocabulary."""
    padded = -(-vocab // multiple) * multiple
    own = padded // tp
    return [(role, row) if row < vocab else None for row in range(rank * own, rank * own + own)]


def experts_of_megatron(experts: int, rank: int, ep: int) -> list[int]:
    """Experts that an expert parallel rank has, in its order."""
    own = experts // ep
    return [rank * own + slot for slot in range(own)]


def experts_of_vllm(experts: int, rank: int, ep: int, redundant: int, placement: str) -> list[int]:
    """Experts that an expert parallel rank has, in its order."""
    if placement == "round_robin":
        return [expert for expert in range(experts) if expert % ep == rank]
    slots = experts + redundant
    counts = [slots // ep + (1 if at < slots % ep else 0) for at in range(ep)]
    first = sum(counts[:rank])
    return [
        slot if slot < experts else (slot - experts) % experts for slot in range(first, first + counts[rank])
    ]


def megatron_coordinates(
    rank: int, tp: int, cp: int, dp: int, ep: int, etp: int
) -> tuple[int, int, int, int]:
    """What a rank is: its place in tp, its stage, its places in etp and ep."""
    stage, within = divmod(rank, tp * cp * dp)
    return within % tp, stage, within % etp, within // etp % ep


def vllm_coordinates(rank: int, tp: int, ep: int) -> tuple[int, int]:
    """What a rank is: its places in tp and ep."""
    return rank % tp, rank % ep
