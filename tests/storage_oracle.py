"""Brute force: which element of which parameter lies where in the buffers of Megatron, vLLM and FSDP2.

Written from the published formulas, one element after the other, without the planner's layouts, rules or
tiles. Only models are shared with the code under test. Every function of a framework gives, for every rank of
it in its own order and every buffer by the framework's own name, the numbers of the elements in the buffer, 0
in padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
import storage_formulas as formulas
from numpy.typing import NDArray
from storage_formulas import Row, heads_of

from reshard_planner.models import roles
from reshard_planner.models.model import Model

Stored = dict[tuple[int, str], NDArray[np.int32]]
"""By rank and name of a buffer, the numbers of its elements."""


class Numbers:
    """A number from 1 on for every element of every parameter of a model."""

    def __init__(self, model: Model) -> None:
        self.by_role = {(parameter.layer, parameter.role): parameter for parameter in model.parameters}
        self.base: dict[str, int] = {}
        following = 1
        for parameter in model.parameters:
            self.base[parameter.name] = following
            following += prod(parameter.shape)

    def has(self, layer: int | None, role: str) -> bool:
        return (layer, role) in self.by_role

    def shape(self, layer: int | None, role: str) -> tuple[int, ...]:
        return self.by_role[layer, role].shape

    def of(self, layer: int | None, role: str, *index: int) -> int:
        """The number of one element."""
        parameter = self.by_role[layer, role]
        flat = 0
        for size, at in zip(parameter.shape, index, strict=True):
            if not 0 <= at < size:
                raise IndexError(f"{parameter.name} has no element {index}")
            flat = flat * size + at
        return self.base[parameter.name] + flat

    def rows(
        self, layer: int | None, rows: Sequence[Row | None], columns: range | None = None
    ) -> NDArray[np.int32]:
        """A buffer of these rows, each of these columns; of vectors where there are no columns."""
        if columns is None:
            return np.array([0 if row is None else self.of(layer, *row) for row in rows], dtype=np.int32)
        made = np.zeros((len(rows), len(columns)), dtype=np.int32)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                if row is not None:
                    made[i, j] = self.of(layer, *row, column)
        return made

    def full_rows(self, layer: int | None, rows: Sequence[Row]) -> NDArray[np.int32]:
        """A buffer of these rows, each of all columns that its parameter has."""
        shape = self.shape(layer, rows[0][0])
        return self.rows(layer, rows, range(shape[1]) if len(shape) > 1 else None)

    def whole(self, layer: int | None, role: str) -> NDArray[np.int32]:
        """A buffer that is the parameter."""
        return self.full_rows(layer, [(role, row) for row in range(self.shape(layer, role)[0])])


def expert_matrix(
    numbers: Numbers, layer: int, expert: int, rows: Sequence[Row], hidden: int, size: int
) -> NDArray[np.int32]:
    """Gate and up of one expert, whether the checkpoint has them apart or stacked."""
    made = np.zeros((len(rows), hidden), dtype=np.int32)
    for i, (role, row) in enumerate(rows):
        for j in range(hidden):
            if numbers.has(layer, roles.EXPERT_GATE_UP):
                at = row if role == "gate" else size + row
                made[i, j] = numbers.of(layer, roles.EXPERT_GATE_UP, expert, at, j)
            else:
                made[i, j] = numbers.of(layer, f"expert_{role}", expert, row, j)
    return made


def down_matrix(numbers: Numbers, layer: int, expert: int, hidden: int, own: range) -> NDArray[np.int32]:
    """Down of one expert: these columns."""
    made = np.zeros((hidden, len(own)), dtype=np.int32)
    for i in range(hidden):
        for j, column in enumerate(own):
            made[i, j] = numbers.of(layer, roles.EXPERT_DOWN, expert, i, column)
    return made


def megatron(
    model: Model,
    *,
    tp: int = 1,
    cp: int = 1,
    dp: int = 1,
    pp: int = 1,
    ep: int = 1,
    etp: int = 1,
    pad: int = 128,
    grouped: bool = False,
) -> Stored:
    """What every rank of Megatron stores; layers are split evenly over stages."""
    numbers = Numbers(model)
    per_stage = model.layers // pp
    stored: Stored = {}
    for rank in range(tp * cp * dp * pp):
        t, stage, et, e = formulas.megatron_coordinates(rank, tp, cp, dp, ep, etp)
        found = dict(_megatron_outside(numbers, model, stage, t, tp, pp, pad))
        for local in range(per_stage):
            layer = stage * per_stage + local
            for name, made in _megatron_layer(numbers, model, layer, t, tp):
                found[f"decoder.layers.{local}.{name}"] = made
            for name, made in _megatron_experts(numbers, model, layer, (et, etp), (e, ep), grouped=grouped):
                found[f"decoder.layers.{local}.mlp.experts.{name}"] = made
        stored.update({(rank, name): made for name, made in found.items()})
    return stored


Named = Iterator[tuple[str, NDArray[np.int32]]]


def _megatron_outside(
    numbers: Numbers, model: Model, stage: int, t: int, tp: int, pp: int, pad: int
) -> Named:
    last = stage == pp - 1
    for role, name, here in (
        (roles.EMBEDDING, "embedding.word_embeddings.weight", stage == 0),
        (roles.HEAD, "output_layer.weight", last),
        (roles.EMBEDDING, "output_layer.weight", last and model.tied and pp > 1),
    ):
        if here and numbers.has(None, role):
            vocab, hidden = numbers.shape(None, role)
            yield name, numbers.rows(None, formulas.vocabulary(vocab, pad * tp, t, tp, role), range(hidden))
    if last and numbers.has(None, roles.FINAL_NORM):
        yield "decoder.final_layernorm.weight", numbers.whole(None, roles.FINAL_NORM)


def _megatron_layer(numbers: Numbers, model: Model, layer: int, t: int, tp: int) -> Named:
    latent, routed = numbers.has(layer, roles.KV_A), numbers.has(layer, roles.ROUTER)
    norm_of_fc1 = "pre_mlp_layernorm.weight" if routed else "mlp.linear_fc1.layer_norm_weight"
    norm_of_qkv = "input_layernorm.weight" if latent else "self_attention.linear_qkv.layer_norm_weight"
    for role, name in (
        (roles.INPUT_NORM, norm_of_qkv),
        (roles.POST_NORM, norm_of_fc1),
        (roles.Q_NORM, "self_attention.q_layernorm.weight"),
        (roles.K_NORM, "self_attention.k_layernorm.weight"),
        (roles.O_BIAS, "self_attention.linear_proj.bias"),
        (roles.Q_A, "self_attention.linear_q_down_proj.weight"),
        (roles.Q_A_BIAS, "self_attention.linear_q_down_proj.bias"),
        (roles.KV_A_BIAS, "self_attention.linear_kv_down_proj.bias"),
        (roles.Q_A_NORM, "self_attention.linear_q_up_proj.layer_norm_weight"),
        (roles.KV_A, "self_attention.linear_kv_down_proj.weight"),
        (roles.KV_A_NORM, "self_attention.linear_kv_up_proj.layer_norm_weight"),
        (roles.DOWN_BIAS, "mlp.linear_fc2.bias"),
        (roles.ROUTER, "mlp.router.weight"),
        (roles.ROUTER_BIAS, "mlp.router.expert_bias"),
        (roles.SHARED_ROUTER, "mlp.shared_experts.gate_weight"),
    ):
        if numbers.has(layer, role):
            yield name, numbers.whole(layer, role)
    for suffix, name in (("", "weight"), ("_bias", "bias")):
        if numbers.has(layer, f"q{suffix}"):
            rows = formulas.rank_of_linear_qkv(heads_of(model), t, tp)
            rows = [(role + suffix, row) for role, row in rows]
            yield f"self_attention.linear_qkv.{name}", numbers.full_rows(layer, rows)
        yield from _gate_up(numbers, layer, "", suffix, t, tp, f"mlp.linear_fc1.{name}")
    yield from _gate_up(numbers, layer, "shared_", "", t, tp, "mlp.shared_experts.linear_fc1.weight")
    first = "linear_q_up_proj" if numbers.has(layer, roles.Q_A) else "linear_q_proj"
    yield from _split(
        numbers,
        layer,
        t,
        tp,
        {
            roles.Q_B: f"self_attention.{first}.weight",
            roles.KV_B: "self_attention.linear_kv_up_proj.weight",
        },
        {
            roles.O: "self_attention.linear_proj.weight",
            roles.DOWN: "mlp.linear_fc2.weight",
            roles.SHARED_DOWN: "mlp.shared_experts.linear_fc2.weight",
        },
    )


def _gate_up(numbers: Numbers, layer: int, prefix: str, suffix: str, t: int, tp: int, name: str) -> Named:
    if numbers.has(layer, f"{prefix}gate{suffix}"):
        rows = formulas.gate_up(numbers.shape(layer, f"{prefix}gate{suffix}")[0], t, tp)
        yield name, numbers.full_rows(layer, [(prefix + role + suffix, row) for role, row in rows])


def _split(
    numbers: Numbers, layer: int, t: int, tp: int, by_rows: dict[str, str], by_columns: dict[str, str]
) -> Named:
    for role, name in by_rows.items():
        if numbers.has(layer, role):
            rows = [(role, row) for row in range(numbers.shape(layer, role)[0])]
            yield name, numbers.full_rows(layer, formulas.plain(rows, t, tp))
    for role, name in by_columns.items():
        if numbers.has(layer, role):
            height, width = numbers.shape(layer, role)
            yield (
                name,
                numbers.rows(layer, [(role, row) for row in range(height)], formulas.columns(width, t, tp)),
            )


def _megatron_experts(
    numbers: Numbers,
    model: Model,
    layer: int,
    tensor: tuple[int, int],
    expert: tuple[int, int],
    *,
    grouped: bool,
) -> Named:
    if not numbers.has(layer, roles.EXPERT_DOWN):
        return
    _, hidden, size = numbers.shape(layer, roles.EXPERT_DOWN)
    first, second = [], []
    for number in formulas.experts_of_megatron(model.experts, *expert):
        first.append(expert_matrix(numbers, layer, number, formulas.gate_up(size, *tensor), hidden, size))
        second.append(down_matrix(numbers, layer, number, hidden, formulas.columns(size, *tensor)))
    for name, parts in (("linear_fc1.weight", first), ("linear_fc2.weight", second)):
        if grouped:
            yield name, np.stack(parts)
        else:
            yield from ((f"{name}{slot}", part) for slot, part in enumerate(parts))


def vllm(
    model: Model,
    *,
    tp: int = 1,
    dp: int = 1,
    ep: int = 1,
    redundant: int = 0,
    expert_placement: str = "linear",
) -> Stored:
    """What every rank of vLLM stores."""
    numbers = Numbers(model)
    stored: Stored = {}
    for rank in range(tp * dp):
        t, e = formulas.vllm_coordinates(rank, tp, ep)
        found: dict[str, NDArray[np.int32]] = {}
        for role, name in ((roles.EMBEDDING, "model.embed_tokens.weight"), (roles.HEAD, "lm_head.weight")):
            if numbers.has(None, role):
                vocab, hidden = numbers.shape(None, role)
                found[name] = numbers.rows(None, formulas.vocabulary(vocab, 64, t, tp, role), range(hidden))
        if numbers.has(None, roles.FINAL_NORM):
            found["model.norm.weight"] = numbers.whole(None, roles.FINAL_NORM)
        tensor, experts = (t, tp), list(range(model.experts))
        if ep > 1:
            tensor, experts = (
                (0, 1),
                formulas.experts_of_vllm(model.experts, e, ep, redundant, expert_placement),
            )
        # an engine of several data parallel ranks spreads tokens over them, and shared experts are whole
        shared = (0, 1) if ep > tp > 1 else (t, tp)
        for layer in range(model.layers):
            for name, made in (
                *_vllm_layer(numbers, model, layer, t, tp),
                *_vllm_shared(numbers, layer, *shared),
                *_vllm_experts(numbers, layer, tensor, experts),
            ):
                found[f"model.layers.{layer}.{name}"] = made
        stored.update({(rank, name): made for name, made in found.items()})
    return stored


def _vllm_layer(numbers: Numbers, model: Model, layer: int, t: int, tp: int) -> Named:
    fused = numbers.has(layer, roles.Q_A)
    for role, name in (
        (roles.INPUT_NORM, "input_layernorm.weight"),
        (roles.POST_NORM, "post_attention_layernorm.weight"),
        (roles.Q_NORM, "self_attn.q_norm.weight"),
        (roles.K_NORM, "self_attn.k_norm.weight"),
        (roles.O_BIAS, "self_attn.o_proj.bias"),
        (roles.Q_A_NORM, "self_attn.q_a_layernorm.weight"),
        (roles.KV_A_NORM, "self_attn.kv_a_layernorm.weight"),
        (roles.KV_A, "" if fused else "self_attn.kv_a_proj_with_mqa.weight"),
        (roles.DOWN_BIAS, "mlp.down_proj.bias"),
        (roles.ROUTER, "mlp.gate.weight"),
        (roles.ROUTER_BIAS, "mlp.gate.bias"),
        (roles.SHARED_ROUTER, "mlp.shared_expert_gate.weight"),
    ):
        if name and numbers.has(layer, role):
            yield name, numbers.whole(layer, role)
    for suffix, name in (("", "weight"), ("_bias", "bias")):
        if fused and numbers.has(layer, f"q_a{suffix}"):
            both = (f"q_a{suffix}", f"kv_a{suffix}")
            rows = [(role, row) for role in both for row in range(numbers.shape(layer, role)[0])]
            yield f"self_attn.fused_qkv_a_proj.{name}", numbers.full_rows(layer, rows)
        if numbers.has(layer, f"q{suffix}"):
            rows = formulas.qkv_proj(heads_of(model), t, tp)
            rows = [(role + suffix, row) for role, row in rows]
            yield f"self_attn.qkv_proj.{name}", numbers.full_rows(layer, rows)
        yield from _gate_up(numbers, layer, "", suffix, t, tp, f"mlp.gate_up_proj.{name}")
    yield from _split(
        numbers,
        layer,
        t,
        tp,
        {
            roles.Q_B: f"self_attn.{'q_b_proj' if fused else 'q_proj'}.weight",
            roles.KV_B: "self_attn.kv_b_proj.weight",
        },
        {
            roles.O: "self_attn.o_proj.weight",
            roles.DOWN: "mlp.down_proj.weight",
        },
    )


def _vllm_shared(numbers: Numbers, layer: int, t: int, tp: int) -> Named:
    yield from _gate_up(numbers, layer, "shared_", "", t, tp, "mlp.shared_expert.gate_up_proj.weight")
    yield from _split(numbers, layer, t, tp, {}, {roles.SHARED_DOWN: "mlp.shared_expert.down_proj.weight"})


def _vllm_experts(numbers: Numbers, layer: int, tensor: tuple[int, int], experts: Sequence[int]) -> Named:
    if numbers.has(layer, roles.EXPERT_DOWN):
        _, hidden, size = numbers.shape(layer, roles.EXPERT_DOWN)
        rows, own = formulas.gate_up(size, *tensor), formulas.columns(size, *tensor)
        first = [expert_matrix(numbers, layer, expert, rows, hidden, size) for expert in experts]
        second = [down_matrix(numbers, layer, expert, hidden, own) for expert in experts]
        yield "mlp.experts.routed_experts.w13_weight", np.stack(first)
        yield "mlp.experts.routed_experts.w2_weight", np.stack(second)


COLUMN_PARALLEL = frozenset(
    f"{name}{suffix}" for name in ("q", "k", "v", "gate", "up") for suffix in ("", "_bias")
) | {roles.EMBEDDING, roles.HEAD, roles.Q_B, roles.KV_B}
ROW_PARALLEL = frozenset((roles.O, roles.DOWN))


def fsdp(model: Model, *, tp: int = 1, dp: int = 1, replicas: int = 1) -> Stored:
    """What every rank stores of DTensors, first cut by tensor parallelism, then by FSDP2, by ``torch.chunk``.

    For models without experts.
    """
    numbers = Numbers(model)
    stored: Stored = {}
    for rank in range(replicas * dp * tp):
        t, shard = rank % tp, rank // tp % dp
        for parameter in model.parameters:
            rows, width = list(range(parameter.shape[0])), None
            if len(parameter.shape) > 1:
                width = range(parameter.shape[1])
            if parameter.role in COLUMN_PARALLEL:
                rows = chunk(rows, t, tp)
            if parameter.role in ROW_PARALLEL and width is not None:
                own = chunk(list(width), t, tp)
                width = range(own[0], own[-1] + 1) if own else range(0)
            rows = chunk(rows, shard, dp)
            made = numbers.rows(parameter.layer, [(parameter.role, row) for row in rows], width)
            stored[rank, parameter.name] = made
    return stored


def chunk(indices: list[int], at: int, count: int) -> list[int]:
    """One chunk of ``torch.chunk``: steps of ceil(size / count), nothing where the indices run out."""
    step = -(-len(indices) // count)
    return indices[at * step : (at + 1) * step]
