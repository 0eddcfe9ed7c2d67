"""Megatron-core's buffers: role to rule.

Sources are Megatron-core (attention, multi_latent_attention, mlp, moe, ssm/gated_delta_net, gpt_model,
multi_token_prediction) with Transformer Engine modules, and the mappings of Megatron-Bridge. A new family is
new rows here.
"""

from __future__ import annotations

from collections.abc import Iterator

from reshard_planner.errors import SpecError
from reshard_planner.models import roles
from reshard_planner.models.layers import KDA, Layer
from reshard_planner.models.rules import (
    Piece,
    Pieces,
    Rule,
    Share,
    by_heads,
    even,
    first_heads,
    gdn_parts,
    halves,
    linear_heads,
    vocabulary,
    whole,
)


def interleaved(q: str, k: str, v: str) -> Pieces:
    """Rows of ``linear_qkv``: per group of key and value heads its queries, its gates, its key, its value.

    With an output gate the checkpoint has rows of queries and gates head by head, Megatron all queries of the
    group before all of its gates. Ranks have contiguous parts of these rows, also where a cut falls inside a
    group or a head.
    """

    def pieces(share: Share) -> Iterator[Piece]:
        groups, per_group, size = _group_sizes(share, q, k, v)
        rows: list[Piece] = []
        for group in range(groups):
            first = group * per_group
            if share.model.output_gate:
                heads = range(first, first + per_group)
                rows += [(q, 2 * h * size, (2 * h + 1) * size) for h in heads]
                rows += [(q, (2 * h + 1) * size, (2 * h + 2) * size) for h in heads]
            else:
                rows.append((q, first * size, (first + per_group) * size))
            for role in (k, v):
                step = share.extents[role] // groups
                rows.append((role, group * step, (group + 1) * step))
        return _contiguous(share, rows)

    return pieces


def _group_sizes(share: Share, q: str, k: str, v: str) -> tuple[int, int, int]:
    """Groups, query heads of a group, rows of a query head."""
    model = share.model
    if any(role not in share.extents for role in (q, k, v)):
        missing = ", ".join(role for role in (q, k, v) if role not in share.extents)
        raise SpecError(
            f"a layer of {model.family} lacks the role {missing}; expected all of {q}, {k} and {v}"
        )
    heads, groups = model.heads, model.kv_heads
    if not heads or not groups or heads % groups:
        raise SpecError(
            f"{model.family} has {heads} query heads and {groups} heads of keys and values; expected a"
            f" multiple of {groups or 1}"
        )
    share.require(heads, "query heads")
    size = share.extents[q] // (heads * (1 + model.output_gate))
    if size * heads * (1 + model.output_gate) != share.extents[q] or share.extents[k] % groups:
        raise SpecError(
            f"{model.family} has {share.extents[q]} rows of role {q} and {share.extents[k]} of role {k};"
            f" expected multiples of its {heads} and {groups} heads"
        )
    return groups, heads // groups, size


def _contiguous(share: Share, rows: list[Piece]) -> Iterator[Piece]:
    """The rank's contiguous part of pieces that follow one another."""
    total = sum(hi - lo for _, lo, hi in rows)
    share.require(total, "rows of linear_qkv")
    step = total // share.count
    start, stop = share.rank * step, (share.rank + 1) * step
    position = 0
    for role, lo, hi in rows:
        begin, end = max(start, position), min(stop, position + hi - lo)
        if begin < end:
            yield role, lo + begin - position, lo + end - position
        position += hi - lo


KEPT_IN_FLOAT32 = frozenset((roles.ROUTER_BIAS,))
"""Roles whose buffers Megatron makes in float32 whatever the model's dtype is (moe/router, expert_bias)."""

OUTSIDE = (
    Rule("embedding.word_embeddings.weight", (roles.EMBEDDING,), vocabulary),
    Rule("output_layer.weight", (roles.HEAD,), vocabulary),
    Rule("decoder.final_layernorm.weight", (roles.FINAL_NORM,), whole),
)
"""Before and after all layers."""

LAST_LAYER = (
    Rule("output_attn_res_norm.weight", (roles.OUTPUT_RESIDUAL_NORM,), whole),
    Rule("output_attn_res_proj.weight", (roles.OUTPUT_RESIDUAL,), whole),
)
"""After all layers too, but in the module of the last one."""

TIED_HEAD = Rule("output_layer.weight", (roles.EMBEDDING,), vocabulary)
"""The copy of a tied embedding that the last of several stages has."""

_GQA = (
    Rule("self_attention.linear_qkv.layer_norm_weight", (roles.INPUT_NORM,), whole),
    Rule(
        "self_attention.linear_qkv.weight",
        (roles.Q, roles.K, roles.V),
        interleaved(roles.Q, roles.K, roles.V),
    ),
    Rule(
        "self_attention.linear_qkv.bias",
        (roles.Q_BIAS, roles.K_BIAS, roles.V_BIAS),
        interleaved(roles.Q_BIAS, roles.K_BIAS, roles.V_BIAS),
    ),
    Rule("self_attention.q_layernorm.weight", (roles.Q_NORM,), whole),
    Rule("self_attention.k_layernorm.weight", (roles.K_NORM,), whole),
    Rule("self_attention.linear_proj.weight", (roles.O,), by_heads("heads"), dim=1),
    Rule("self_attention.linear_proj.bias", (roles.O_BIAS,), whole),
)

_MLA = (
    Rule("self_attention.linear_q_down_proj.bias", (roles.Q_A_BIAS,), whole),
    Rule("self_attention.linear_kv_down_proj.bias", (roles.KV_A_BIAS,), whole),
    Rule("self_attention.linear_proj.bias", (roles.O_BIAS,), whole),
    # the norm before MLA is a module of its own, as its down projections are not column parallel
    Rule("input_layernorm.weight", (roles.INPUT_NORM,), whole),
    Rule("self_attention.linear_q_down_proj.weight", (roles.Q_A,), whole),
    Rule("self_attention.linear_q_up_proj.layer_norm_weight", (roles.Q_A_NORM,), whole),
    Rule("self_attention.linear_kv_down_proj.weight", (roles.KV_A,), whole),
    Rule("self_attention.linear_kv_up_proj.layer_norm_weight", (roles.KV_A_NORM,), whole),
    Rule("self_attention.linear_kv_up_proj.weight", (roles.KV_B,), by_heads("heads")),
    Rule("self_attention.linear_proj.weight", (roles.O,), by_heads("heads"), dim=1),
)
_LOW_RANK_QUERY = Rule("self_attention.linear_q_up_proj.weight", (roles.Q_B,), by_heads("heads"))
_FULL_RANK_QUERY = Rule("self_attention.linear_q_proj.weight", (roles.Q_B,), by_heads("heads"))

_GDN = (
    Rule("self_attention.in_proj.layer_norm_weight", (roles.INPUT_NORM,), whole),
    # every rank has its queries, keys, values, gates, betas and alphas in a row
    Rule(
        "self_attention.in_proj.weight",
        (roles.GDN_QKV, roles.GDN_Z, roles.GDN_B, roles.GDN_A),
        linear_heads({roles.GDN_QKV: gdn_parts}),
    ),
    Rule("self_attention.conv1d.weight", (roles.GDN_CONV,), linear_heads({roles.GDN_CONV: gdn_parts})),
    Rule("self_attention.A_log", (roles.GDN_A_LOG,), linear_heads({})),
    Rule("self_attention.dt_bias", (roles.GDN_DT_BIAS,), linear_heads({})),
    Rule("self_attention.out_norm.weight", (roles.GDN_NORM,), whole),
    Rule("self_attention.out_proj.weight", (roles.O,), by_heads("linear_value_heads"), dim=1),
)

# Megatron-Bridge builds Kimi models of modules of their own, which keep the names of the checkpoint
_KIMI_KDA = (
    Rule("input_layernorm.weight", (roles.INPUT_NORM,), whole),
    Rule("self_attention.q_proj.weight", (roles.KDA_Q,), by_heads("linear_value_heads")),
    Rule("self_attention.k_proj.weight", (roles.KDA_K,), by_heads("linear_value_heads")),
    Rule("self_attention.v_proj.weight", (roles.KDA_V,), by_heads("linear_value_heads")),
    Rule("self_attention.g_proj.weight", (roles.KDA_G,), by_heads("linear_value_heads")),
    Rule("self_attention.g_a_proj.weight", (roles.KDA_G_A,), whole),
    Rule("self_attention.g_b_proj.weight", (roles.KDA_G_B,), by_heads("linear_value_heads")),
    Rule("self_attention.q_conv1d.weight", (roles.KDA_Q_CONV,), by_heads("linear_value_heads")),
    Rule("self_attention.k_conv1d.weight", (roles.KDA_K_CONV,), by_heads("linear_value_heads")),
    Rule("self_attention.v_conv1d.weight", (roles.KDA_V_CONV,), by_heads("linear_value_heads")),
    Rule("self_attention.f_a_proj.weight", (roles.KDA_F_A,), whole),
    Rule("self_attention.f_b_proj.weight", (roles.KDA_F_B,), by_heads("linear_value_heads")),
    Rule("self_attention.b_proj.weight", (roles.KDA_B,), by_heads("linear_value_heads")),
    Rule("self_attention.dt_bias", (roles.KDA_DT_BIAS,), by_heads("linear_value_heads")),
    Rule("self_attention.o_norm.weight", (roles.KDA_NORM,), whole),
    Rule("self_attention.o_proj.weight", (roles.O,), by_heads("linear_value_heads"), dim=1),
)
_A_LOG = Rule("self_attention.A_log", (roles.KDA_A_LOG,), first_heads)
_A_LOG_OF_FOUR = Rule("self_attention.A_log", (roles.KDA_A_LOG,), first_heads, dim=2)

_KIMI_MLA = (
    Rule("input_layernorm.weight", (roles.INPUT_NORM,), whole),
    Rule("self_attention.q_a_proj.weight", (roles.Q_A,), whole),
    Rule("self_attention.q_a_layernorm.weight", (roles.Q_A_NORM,), whole),
    Rule("self_attention.kv_a_proj_with_mqa.weight", (roles.KV_A,), whole),
    Rule("self_attention.kv_a_layernorm.weight", (roles.KV_A_NORM,), whole),
    Rule("self_attention.kv_b_proj.weight", (roles.KV_B,), by_heads("heads")),
    Rule("self_attention.g_proj.weight", (roles.ATTENTION_GATE,), by_heads("heads")),
    Rule("self_attention.o_proj.weight", (roles.O,), by_heads("heads"), dim=1),
)
_KIMI_LOW_RANK_QUERY = Rule("self_attention.q_b_proj.weight", (roles.Q_B,), by_heads("heads"))
_KIMI_FULL_RANK_QUERY = Rule("self_attention.q_proj.weight", (roles.Q_B,), by_heads("heads"))

# attention over the outputs of earlier layers
_RESIDUAL = (
    Rule("self_attention_res_norm.weight", (roles.ATTENTION_RESIDUAL_NORM,), whole),
    Rule("self_attention_res_proj.weight", (roles.ATTENTION_RESIDUAL,), whole),
    Rule("mlp_res_norm.weight", (roles.MLP_RESIDUAL_NORM,), whole),
    Rule("mlp_res_proj.weight", (roles.MLP_RESIDUAL,), whole),
)

_DENSE = (
    Rule("mlp.linear_fc1.weight", (roles.GATE, roles.UP), even),
    Rule("mlp.linear_fc1.bias", (roles.GATE_BIAS, roles.UP_BIAS), even),
    Rule("mlp.linear_fc2.weight", (roles.DOWN,), even, dim=1),
    Rule("mlp.linear_fc2.bias", (roles.DOWN_BIAS,), whole),
)
_FUSED_POST_NORM = Rule("mlp.linear_fc1.layer_norm_weight", (roles.POST_NORM,), whole)
_POST_NORM = Rule("pre_mlp_layernorm.weight", (roles.POST_NORM,), whole)


_ROUTED = (
    Rule("mlp.router.weight", (roles.ROUTER,), whole),
    Rule("mlp.router.expert_bias", (roles.ROUTER_BIAS,), whole),
    # unless they are grouped, numbers of local experts follow these names
    Rule("mlp.experts.linear_fc1.weight", (roles.EXPERT_GATE, roles.EXPERT_UP), even, experts=True),
    Rule("mlp.experts.linear_fc1.weight", (roles.EXPERT_GATE_UP,), halves, experts=True),
    Rule("mlp.experts.linear_fc2.weight", (roles.EXPERT_DOWN,), even, dim=1, experts=True),
    Rule("mlp.shared_experts.linear_fc1.weight", (roles.SHARED_GATE, roles.SHARED_UP), even),
    Rule("mlp.shared_experts.linear_fc2.weight", (roles.SHARED_DOWN,), even, dim=1),
    Rule("mlp.shared_experts.gate_weight", (roles.SHARED_ROUTER,), whole),
    Rule("mlp.fc1_latent_proj.weight", (roles.LATENT_DOWN,), whole),
    Rule("mlp.fc2_latent_proj.weight", (roles.LATENT_UP,), whole),
    Rule("mlp.routed_expert_norm.weight", (roles.LATENT_NORM,), whole),
)

MTP = (
    Rule("enorm.weight", (roles.MTP_EMBEDDING_NORM,), whole),
    Rule("hnorm.weight", (roles.MTP_HIDDEN_NORM,), whole),
    Rule("eh_proj.weight", (roles.MTP_PROJECTION,), even),
    Rule("final_layernorm.weight", (roles.MTP_NORM,), whole),
)
"""What a layer of multi-token prediction has around its decoder layer."""


def layer_rules(layer: Layer, *, kimi: bool) -> tuple[Rule, ...]:
    """The rules of a decoder layer, by what it consists of.

    Args:
        layer: its parameters.
        kimi: whether the model has Kimi delta attention in any layer.
    """
    return (*_attention(layer, kimi=kimi), *_feed_forward(layer, kimi=kimi), *_RESIDUAL)


def _attention(layer: Layer, *, kimi: bool) -> tuple[Rule, ...]:
    if roles.GDN_QKV in layer:
        return _GDN
    if KDA & layer.keys():
        a_log = layer.get(roles.KDA_A_LOG)
        return (*_KIMI_KDA, _A_LOG if a_log is None or len(a_log.shape) == 1 else _A_LOG_OF_FOUR)
    if roles.KV_B not in layer:
        return _GQA
    low_rank = roles.Q_A in layer
    if kimi:
        return (*_KIMI_MLA, _KIMI_LOW_RANK_QUERY if low_rank else _KIMI_FULL_RANK_QUERY)
    return (*_MLA, _LOW_RANK_QUERY if low_rank else _FULL_RANK_QUERY)


def _feed_forward(layer: Layer, *, kimi: bool) -> tuple[Rule, ...]:
    # experts read a norm that stands alone; so do all layers of Kimi models
    routed = roles.ROUTER in layer or roles.EXPERT_DOWN in layer
    norm = _POST_NORM if routed or kimi else _FUSED_POST_NORM
    return (norm, *(_ROUTED if routed else _DENSE))
