"""The oracle of storage is sharp: every formula that is a little wrong is told from the right one."""

from __future__ import annotations

import pytest
import storage_formulas as formulas
import storage_oracle as oracle
from _bindings import difference, make, megatron, run, vllm


def swapped(role):
    return {"k": "v", "v": "k"}.get(role, role)


def with_keys_and_values_swapped(right):
    return lambda *args: [(swapped(role), row) for role, row in right(*args)]


def split_by_heads(all_of, rank, tp):
    heads, groups, size, gated = all_of
    counts = {"q": heads * size * (1 + gated), "k": groups * size, "v": groups * size}
    parts = [[(role, row) for row in range(count)] for role, count in counts.items()]
    return [row for part in parts for row in formulas.plain(part, rank, tp)]


def heads_of_every_group_in_turn(right):
    def wrong(all_of):
        size, turned = all_of.size, {}
        for h in range(all_of.heads):
            turned[h] = h // all_of.groups + h % all_of.groups * all_of.n
        return [
            (role, turned[row // size] * size + row % size if role == "q" else row)
            for role, row in right(all_of)
        ]

    return wrong


def gates_beside_their_queries(all_of):
    size, step, rows = all_of.size, 2 * all_of.n * all_of.size, []
    for g in range(all_of.groups):
        rows += [("q", row) for row in range(g * step, g * step + step)]
        rows += [(role, row) for role in ("k", "v") for row in range(g * size, (g + 1) * size)]
    return rows


def kept_heads_in_turn(all_of, rank, tp):
    first, own = rank % all_of.groups * all_of.size, all_of.heads * all_of.size // tp
    rows = [("q", row) for row in range(rank * own, rank * own + own)]
    return rows + [(role, row) for role in ("k", "v") for row in range(first, first + all_of.size)]


def plain_gate_up(size, rank, tp):
    return formulas.plain([(role, row) for role in ("gate", "up") for row in range(size)], rank, tp)


def padding_at_every_rank(vocab, multiple, rank, tp, role):
    own, kept = -(-vocab // multiple) * multiple // tp, -(-vocab // tp)
    rows = list(range(rank * kept, min(vocab, (rank + 1) * kept)))
    return [(role, row) for row in rows] + [None] * (own - len(rows))


def ep_before_etp(rank, tp, cp, dp, ep, etp):
    stage, within = divmod(rank, tp * cp * dp)
    return within % tp, stage, within // ep % etp, within % ep


def tp_last(rank, tp, cp, dp, ep, etp):
    stage, within = divmod(rank, tp * cp * dp)
    return within // (cp * dp), stage, within % etp, within // etp % ep


def rest_at_the_end(experts, rank, ep, *_):
    own = experts // ep
    return [*range(rank * own, rank * own + own), *range(experts - experts % ep + rank, experts, ep)]


def redundant_experts_are_the_last(experts, rank, ep, redundant, _):
    slots = [*range(experts), *range(experts - redundant, experts)]
    own = len(slots) // ep
    return slots[rank * own : rank * own + own]


def in_turn(experts, rank, ep):
    return list(range(rank, experts, ep))


GQA = make("attention", heads=8, kv_heads=2, head_dim=4)
GATED = make("attention", heads=8, kv_heads=2, head_dim=4, output_gate=True)
DENSE = make("dense", size=8)
EXPERTS = make("stacked", size=4, experts=6, shared=4)
WORDS = make("", outside=True, vocab=100)

WRONG = [
    ("src", "linear_qkv", with_keys_and_values_swapped(formulas.linear_qkv), GQA, {"tp": 2}, {"tp": 2}),
    ("src", "linear_qkv", heads_of_every_group_in_turn(formulas.linear_qkv), GQA, {"tp": 2}, {"tp": 2}),
    ("src", "linear_qkv", gates_beside_their_queries, GATED, {"tp": 2}, {"tp": 2}),
    ("src", "rank_of_linear_qkv", split_by_heads, GQA, {"tp": 4}, {"tp": 4}),
    ("dst", "qkv_proj", with_keys_and_values_swapped(formulas.qkv_proj), GQA, {"tp": 2}, {"tp": 2}),
    ("dst", "qkv_proj", kept_heads_in_turn, GQA, {"tp": 2}, {"tp": 4}),
    ("src", "gate_up", plain_gate_up, DENSE, {"tp": 2}, {"tp": 2}),
    ("dst", "gate_up", plain_gate_up, DENSE, {"tp": 2}, {"tp": 2}),
    ("dst", "gate_up", plain_gate_up, EXPERTS, {"tp": 2}, {"tp": 2}),
    ("src", "columns", lambda size, rank, tp: range(rank, size, tp), DENSE, {"tp": 2}, {"tp": 2}),
    ("src", "vocabulary", padding_at_every_rank, WORDS, {"tp": 2}, {"tp": 2}),
    ("dst", "vocabulary", padding_at_every_rank, WORDS, {"tp": 2}, {"tp": 2}),
    ("src", "experts_of_megatron", in_turn, EXPERTS, {"dp": 2, "ep": 2}, {"tp": 2}),
    ("src", "megatron_coordinates", ep_before_etp, EXPERTS, {"dp": 4, "ep": 2, "etp": 2}, {"tp": 2}),
    ("src", "megatron_coordinates", tp_last, DENSE, {"dp": 2, "tp": 2}, {"tp": 2}),
    ("dst", "experts_of_vllm", rest_at_the_end, EXPERTS, {}, {"dp": 4, "ep": 4}),
    (
        "dst",
        "experts_of_vllm",
        redundant_experts_are_the_last,
        EXPERTS,
        {},
        {"dp": 4, "ep": 4, "redundant": 2},
    ),
    ("dst", "vllm_coordinates", lambda rank, tp, ep: (rank // tp, rank % ep), DENSE, {}, {"dp": 2, "tp": 2}),
]


@pytest.mark.parametrize(("side", "formula", "wrong", "model", "src", "dst"), WRONG)
def test_a_wrong_map_is_seen(monkeypatch, side, formula, wrong, model, src, dst):
    found, wanted = run(model, megatron(**src), vllm(**dst))
    assert difference(found, wanted) is None
    with monkeypatch.context() as patch:
        patch.setattr(formulas, formula, wrong)
        if side == "dst":
            wanted = oracle.vllm(model, **dst)
        else:
            found, _ = run(model, megatron(**src), vllm(**dst))
    assert found.keys() == wanted.keys()
    assert all(found[key].shape == wanted[key].shape for key in wanted)
    assert difference(found, wanted) is not None
