"""vLLM's buffers: role to rule.

Sources are vLLM's linear, vocab_parallel_embedding and fused_moe layers and its models (qwen3_next, qwen3_5,
deepseek_v2, kimi_k3), as of vLLM 0.32, which tests compare all of this with. A rule's buffer is named from
the module above the modules of its parameters on. A new family is new rows here.
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

KEPT_IN_FLOAT32 = frozenset(
    (
        roles.GDN_A_LOG,
        roles.KDA_A_LOG,
        roles.KDA_DT_BIAS,
        roles.KDA_Q_CONV,
        roles.KDA_K_CONV,
        roles.KDA_V_CONV,
        roles.ROUTER_BIAS,
    )
)
"""Roles whose buffers vLLM makes in float32 whatever the model's dtype is."""

OWN = ""
"""Buffer name of rules whose buffer is called as the checkpoint calls its one parameter."""


def _qkv(query: str) -> Pieces:
    """Rows of ``qkv_proj``: the rank's query heads, then its heads of keys, then those of values.

    With more ranks than heads of keys and values, neighbours hold the same one.
    """

    def pieces(share: Share) -> Iterator[Piece]:
        model = share.model
        share.require(model.heads, "query heads")
        groups, count = model.kv_heads, share.count
        if not groups or (groups % count and count % groups):
            raise SpecError(
                f"{share.option} is {count}, but {model.family} has {groups} heads of keys and values;"
                f" expected a divisor or a multiple of {groups}"
            )
        for role, size in share.extents.items():
            if role == query:
                yield share.even(role, 0, size)
                continue
            if size % groups:
                raise SpecError(
                    f"{model.family} has {size} rows of role {role}; expected a multiple of its {groups}"
                    " heads"
                )
            head = size // groups
            own = max(1, groups // count)
            first = share.rank * groups // count
            yield role, first * head, (first + own) * head

    return pieces


def _kimi_in_proj(alignment: int) -> Pieces:
    """Rows of ``in_proj_qkvgfab``, of which f_a is the same on every rank.

    Args:
        alignment: what the number of rows is padded to a multiple of.
    """

    def pieces(share: Share) -> Iterator[Piece]:
        share.require(share.model.linear_value_heads, "heads of linear attention")
        rows = 0
        for role, size in share.extents.items():
            piece = (role, 0, size) if role == roles.KDA_F_A else share.even(role, 0, size)
            rows += piece[2] - piece[1]
            yield piece
        yield None, 0, -rows % alignment

    return pieces


def _down_and_gate(share: Share) -> Iterator[Piece]:
    """Rows of ``fused_qkv_a_g_proj``: latents as they are, then the gates of the rank's heads."""
    share.require(share.model.heads, "heads")
    for role, size in share.extents.items():
        yield share.even(role, 0, size) if role == roles.ATTENTION_GATE else (role, 0, size)


KIMI_LEAST = 256
"""Rows of an expert that a rank has at least, with padding (kimi_k3, min_moe_intermediate_per_partition)."""


def _kimi_experts(share: Share) -> Iterator[Piece]:
    """As :func:`even`, and padding behind each part where experts are cut into parts that are too small."""
    for role, size in share.extents.items():
        yield share.even(role, 0, size)
        if share.count > 1:
            yield None, 0, max(0, KIMI_LEAST - size // share.count)


OUTSIDE: tuple[Rule, ...] = (
    Rule(OWN, (roles.EMBEDDING,), vocabulary),
    Rule(OWN, (roles.HEAD,), vocabulary),
    Rule(OWN, (roles.FINAL_NORM,), whole),
    Rule(OWN, (roles.OUTPUT_RESIDUAL_NORM,), whole),
    Rule(OWN, (roles.OUTPUT_RESIDUAL,), whole),
)
"""Before and after all layers; a tied head is the buffer of the embedding."""

_AROUND = (
    Rule(OWN, (roles.INPUT_NORM,), whole),
    Rule(OWN, (roles.POST_NORM,), whole),
    Rule(OWN, (roles.ATTENTION_RESIDUAL_NORM,), whole),
    Rule(OWN, (roles.ATTENTION_RESIDUAL,), whole),
    Rule(OWN, (roles.MLP_RESIDUAL_NORM,), whole),
    Rule(OWN, (roles.MLP_RESIDUAL,), whole),
)

_GQA = (
    Rule("qkv_proj.weight", (roles.Q, roles.K, roles.V), _qkv(roles.Q)),
    Rule(
        "qkv_proj.bias",
        (roles.Q_BIAS, roles.K_BIAS, roles.V_BIAS),
        _qkv(roles.Q_BIAS),
    ),
    Rule(OWN, (roles.Q_NORM,), whole),
    Rule(OWN, (roles.K_NORM,), whole),
    Rule(OWN, (roles.O,), even, dim=1),
    # added once, by the first rank
    Rule(OWN, (roles.O_BIAS,), whole),
)

_MLA = (
    Rule(OWN, (roles.Q_A_NORM,), whole),
    Rule(OWN, (roles.KV_A_NORM,), whole),
    Rule(OWN, (roles.Q_B,), by_heads("heads")),
    Rule(OWN, (roles.KV_B,), by_heads("heads")),
    Rule(OWN, (roles.O,), even, dim=1),
    Rule(OWN, (roles.O_BIAS,), whole),
)
_FUSED_DOWN = (
    Rule("fused_qkv_a_proj.weight", (roles.Q_A, roles.KV_A), whole),
    Rule("fused_qkv_a_proj.bias", (roles.Q_A_BIAS, roles.KV_A_BIAS), whole),
)
_FUSED_DOWN_AND_GATE = (
    Rule("fused_qkv_a_g_proj.weight", (roles.Q_A, roles.KV_A, roles.ATTENTION_GATE), _down_and_gate),
)
_KV_DOWN = (
    Rule(OWN, (roles.KV_A,), whole),
    Rule(OWN, (roles.KV_A_BIAS,), whole),
    Rule(OWN, (roles.ATTENTION_GATE,), by_heads("heads")),
)

_GDN = (
    Rule("in_proj_qkvz.weight", (roles.GDN_QKV, roles.GDN_Z), linear_heads({roles.GDN_QKV: gdn_parts})),
    Rule("in_proj_ba.weight", (roles.GDN_B, roles.GDN_A), linear_heads({})),
    Rule(OWN, (roles.GDN_CONV,), linear_heads({roles.GDN_CONV: gdn_parts})),
    Rule(OWN, (roles.GDN_A_LOG,), linear_heads({})),
    Rule(OWN, (roles.GDN_DT_BIAS,), linear_heads({})),
    Rule(OWN, (roles.GDN_NORM,), whole),
    Rule(OWN, (roles.O,), by_heads("linear_value_heads"), dim=1),
)

_KDA = (
    Rule(
        "conv1d.weight",
        (roles.KDA_Q_CONV, roles.KDA_K_CONV, roles.KDA_V_CONV),
        by_heads("linear_value_heads"),
    ),
    Rule(OWN, (roles.KDA_F_B,), by_heads("linear_value_heads")),
    Rule(OWN, (roles.KDA_DT_BIAS,), by_heads("linear_value_heads")),
    Rule(OWN, (roles.KDA_NORM,), whole),
    Rule(OWN, (roles.O,), by_heads("linear_value_heads"), dim=1),
)
_FULL_RANK_GATE = (
    Rule(
        "in_proj_qkvgfab.weight",
        (roles.KDA_Q, roles.KDA_K, roles.KDA_V, roles.KDA_G, roles.KDA_F_A, roles.KDA_B),
        _kimi_in_proj(16),
    ),
)
_LOW_RANK_GATE = (
    Rule(
        "in_proj_qkvgfab.weight",
        (roles.KDA_Q, roles.KDA_K, roles.KDA_V, roles.KDA_B, roles.KDA_F_A),
        _kimi_in_proj(1),
    ),
    Rule(OWN, (roles.KDA_G_A,), whole),
    Rule(OWN, (roles.KDA_G_B,), by_heads("linear_value_heads")),
)
_A_LOG = Rule(OWN, (roles.KDA_A_LOG,), first_heads)
_A_LOG_OF_FOUR = Rule(OWN, (roles.KDA_A_LOG,), first_heads, dim=2)

_DENSE = (
    Rule("gate_up_proj.weight", (roles.GATE, roles.UP), even),
    Rule("gate_up_proj.bias", (roles.GATE_BIAS, roles.UP_BIAS), even),
    Rule(OWN, (roles.DOWN,), even, dim=1),
    Rule(OWN, (roles.DOWN_BIAS,), whole),
)
_WHOLE_DENSE = (
    Rule("gate_up_proj.weight", (roles.GATE, roles.UP), whole),
    Rule(OWN, (roles.DOWN,), whole, dim=1),
)
_SHARED = (
    Rule("gate_up_proj.weight", (roles.SHARED_GATE, roles.SHARED_UP), even),
    Rule(OWN, (roles.SHARED_DOWN,), even, dim=1),
)
_WHOLE_SHARED = (
    Rule("gate_up_proj.weight", (roles.SHARED_GATE, roles.SHARED_UP), whole),
    Rule(OWN, (roles.SHARED_DOWN,), whole, dim=1),
)
_ROUTED = (
    Rule("routed_experts.w13_weight", (roles.EXPERT_GATE, roles.EXPERT_UP), even, experts=True),
    Rule("routed_experts.w13_weight", (roles.EXPERT_GATE_UP,), halves, experts=True),
    Rule("routed_experts.w2_weight", (roles.EXPERT_DOWN,), even, dim=1, experts=True),
)
_KIMI_ROUTED = (
    Rule("routed_experts.w13_weight", (roles.EXPERT_GATE, roles.EXPERT_UP), _kimi_experts, experts=True),
    Rule("routed_experts.w2_weight", (roles.EXPERT_DOWN,), _kimi_experts, dim=1, experts=True),
)
_BESIDE_EXPERTS = (
    Rule(OWN, (roles.ROUTER,), whole),
    Rule(OWN, (roles.ROUTER_BIAS,), whole),
    Rule(OWN, (roles.SHARED_ROUTER,), whole),
    Rule(OWN, (roles.LATENT_DOWN,), whole),
    Rule(OWN, (roles.LATENT_UP,), whole),
    Rule(OWN, (roles.LATENT_NORM,), whole),
)

_MTP = (
    Rule(OWN, (roles.MTP_EMBEDDING_NORM,), whole),
    Rule(OWN, (roles.MTP_HIDDEN_NORM,), whole),
    Rule(OWN, (roles.MTP_NORM,), whole),
)
_COLUMN_PROJECTION = Rule(OWN, (roles.MTP_PROJECTION,), even)
_REPLICATED_PROJECTION = Rule(OWN, (roles.MTP_PROJECTION,), whole)


KIMI = frozenset(("kimi_k3", "kimi_linear"))
"""Families of vLLM's kimi_k3."""


def layer_rules(layer: Layer, family: str, *, sequence_parallel: bool) -> tuple[Rule, ...]:
    """The rules of a layer, by what it consists of.

    Args:
        layer: its parameters.
        family: family of the model.
        sequence_parallel: whether tensor parallel ranks read tokens of their own behind attention, and
            therefore hold shared experts whole; in Kimi also dense feed-forward parts.
    """
    kimi = family in KIMI
    return (
        *_AROUND,
        *_attention(layer),
        *(_WHOLE_DENSE if kimi and sequence_parallel else _DENSE),
        *(_WHOLE_SHARED if sequence_parallel else _SHARED),
        *(_KIMI_ROUTED if kimi else _ROUTED),
        *_BESIDE_EXPERTS,
        *_MTP,
        _projection(layer),
    )


def _attention(layer: Layer) -> tuple[Rule, ...]:
    if roles.GDN_QKV in layer:
        return _GDN
    if KDA & layer.keys():
        a_log = layer.get(roles.KDA_A_LOG)
        inputs = _LOW_RANK_GATE if roles.KDA_G_A in layer else _FULL_RANK_GATE
        return (*_KDA, *inputs, _A_LOG if a_log is None or len(a_log.shape) == 1 else _A_LOG_OF_FOUR)
    if roles.KV_B in layer:
        return (*_MLA, *_down(layer))
    return _GQA


def _down(layer: Layer) -> tuple[Rule, ...]:
    if roles.Q_A not in layer:
        return _KV_DOWN
    return _FUSED_DOWN_AND_GATE if roles.ATTENTION_GATE in layer else _FUSED_DOWN


def _projection(layer: Layer) -> Rule:
    # the drafters of Qwen have a column parallel fc, those of DeepSeek a replicated eh_proj
    parameter = layer.get(roles.MTP_PROJECTION)
    is_fc = parameter is not None and parameter.name.removesuffix(".weight").endswith("fc")
    return _COLUMN_PROJECTION if is_fc else _REPLICATED_PROJECTION
