"""Roles: what a parameter does in its layer, with its shape in the checkpoint.

H is the hidden size, D the size of a head, I an intermediate size, E the number of experts, V the vocabulary.
Families give roles to their parameters, frameworks say where each role lies.
"""

from __future__ import annotations

# before and after all layers
EMBEDDING = "embedding"
"""[V, H]"""
HEAD = "head"
"""[V, H]"""
FINAL_NORM = "final_norm"
"""[H]"""
OUTPUT_RESIDUAL_NORM = "output_residual_norm"
"""[H], with OUTPUT_RESIDUAL after the last layer what ATTENTION_RESIDUAL is within layers"""
OUTPUT_RESIDUAL = "output_residual"
"""[1, H]"""

# norms of every layer
INPUT_NORM = "input_norm"
"""[H], before attention of any kind"""
POST_NORM = "post_norm"
"""[H], between attention and the feed-forward part"""

# attention over the outputs of earlier layers, before attention and before the feed-forward part (Kimi-K3)
ATTENTION_RESIDUAL_NORM, MLP_RESIDUAL_NORM = "attention_residual_norm", "mlp_residual_norm"
"""[H]"""
ATTENTION_RESIDUAL, MLP_RESIDUAL = "attention_residual", "mlp_residual"
"""[1, H]"""

# grouped-query attention
Q = "q"
"""[heads x D, H]; with an output gate [heads x 2 x D, H]"""
K = "k"
"""[kv heads x D, H]"""
V = "v"
"""[kv heads x D, H]"""
Q_BIAS, K_BIAS, V_BIAS = "q_bias", "k_bias", "v_bias"
"""As the projections, without H"""
O = "o"
"""[H, heads x D], of any kind of attention"""
O_BIAS = "o_bias"
"""[H]"""
Q_NORM, K_NORM = "q_norm", "k_norm"
"""[D]"""

# multi-head latent attention
Q_A = "q_a"
"""[q rank, H]"""
Q_A_NORM = "q_a_norm"
"""[q rank]"""
Q_B = "q_b"
"""[heads x (nope + rope), q rank]; without a q rank [heads x (nope + rope), H]"""
KV_A = "kv_a"
"""[kv rank + rope, H]"""
KV_A_NORM = "kv_a_norm"
"""[kv rank]"""
KV_B = "kv_b"
"""[heads x (nope + v), kv rank]"""
Q_A_BIAS, KV_A_BIAS = "q_a_bias", "kv_a_bias"
"""As the projections, without H"""
ATTENTION_GATE = "attention_gate"
"""[heads x v, H]: gate of the output, by heads"""

# gated delta net
GDN_QKV = "gdn_qkv"
"""[2 x key heads x D + value heads x D, H]: all queries, all keys, all values"""
GDN_Z = "gdn_z"
"""[value heads x D, H]"""
GDN_B, GDN_A = "gdn_b", "gdn_a"
"""[value heads, H]"""
GDN_CONV = "gdn_conv"
"""[2 x key heads x D + value heads x D, 1, width]: as GDN_QKV"""
GDN_A_LOG, GDN_DT_BIAS = "gdn_a_log", "gdn_dt_bias"
"""[value heads]"""
GDN_NORM = "gdn_norm"
"""[D]"""

# Kimi delta attention
KDA_Q, KDA_K, KDA_V, KDA_G = "kda_q", "kda_k", "kda_v", "kda_g"
"""[heads x D, H]"""
KDA_Q_CONV, KDA_K_CONV, KDA_V_CONV = "kda_q_conv", "kda_k_conv", "kda_v_conv"
"""[heads x D, 1, width]"""
KDA_G_A = "kda_g_a"
"""[D, H]: with KDA_G_B in place of KDA_G, where the gate has a low rank"""
KDA_G_B = "kda_g_b"
"""[heads x D, D]"""
KDA_F_A = "kda_f_a"
"""[D, H]"""
KDA_F_B = "kda_f_b"
"""[heads x D, D]"""
KDA_B = "kda_b"
"""[heads, H]"""
KDA_A_LOG = "kda_a_log"
"""[1, 1, heads, 1]"""
KDA_DT_BIAS = "kda_dt_bias"
"""[heads x D]"""
KDA_NORM = "kda_norm"
"""[D]"""

# feed-forward part
GATE, UP = "gate", "up"
"""[I, H]"""
DOWN = "down"
"""[H, I]"""
GATE_BIAS, UP_BIAS = "gate_bias", "up_bias"
"""[I]"""
DOWN_BIAS = "down_bias"
"""[H]"""
ROUTER = "router"
"""[E, H]"""
ROUTER_BIAS = "router_bias"
"""[E]"""
EXPERT_GATE, EXPERT_UP = "expert_gate", "expert_up"
"""[E, I, H]"""
EXPERT_GATE_UP = "expert_gate_up"
"""[E, 2 x I, H]: of every expert all of gate, then all of up"""
EXPERT_DOWN = "expert_down"
"""[E, H, I]"""
SHARED_GATE, SHARED_UP = "shared_gate", "shared_up"
"""[I, H]"""
SHARED_DOWN = "shared_down"
"""[H, I]"""
SHARED_ROUTER = "shared_router"
"""[1, H]: weight of the shared expert"""
LATENT_DOWN = "latent_down"
"""[latent, H]: what routed experts read"""
LATENT_UP = "latent_up"
"""[H, latent]: what they wrote, brought back"""
LATENT_NORM = "latent_norm"
"""[latent]"""

# multi-token prediction, beside the roles of a decoder layer
MTP_EMBEDDING_NORM, MTP_HIDDEN_NORM = "mtp_embedding_norm", "mtp_hidden_norm"
"""[H]"""
MTP_PROJECTION = "mtp_projection"
"""[H, 2 x H]"""
MTP_NORM = "mtp_norm"
"""[H]"""

FEED_FORWARD = frozenset((GATE, UP, DOWN, EXPERT_GATE, EXPERT_UP, EXPERT_GATE_UP, EXPERT_DOWN))
"""What hybrid refits move by reshard: projections of dense and routed feed-forward parts, without shared
experts (NeMo RL, nccl-reshard-refit)."""

KINDS: dict[str, frozenset[str]] = {
    "embedding and head": frozenset((EMBEDDING, HEAD)),
    "attention": frozenset(
        (
            Q,
            K,
            V,
            O,
            Q_BIAS,
            K_BIAS,
            V_BIAS,
            O_BIAS,
            Q_A,
            Q_B,
            KV_A,
            KV_B,
            Q_A_BIAS,
            KV_A_BIAS,
            ATTENTION_GATE,
        )
    ),
    "linear attention": frozenset(
        (GDN_QKV, GDN_Z, GDN_B, GDN_A, GDN_CONV, GDN_A_LOG, GDN_DT_BIAS, KDA_Q, KDA_K, KDA_V, KDA_G)
    )
    | frozenset((KDA_Q_CONV, KDA_K_CONV, KDA_V_CONV, KDA_F_A, KDA_F_B, KDA_B, KDA_A_LOG, KDA_DT_BIAS))
    | frozenset((KDA_G_A, KDA_G_B)),
    "dense feed-forward": frozenset((GATE, UP, DOWN, GATE_BIAS, UP_BIAS, DOWN_BIAS)),
    "routed experts": frozenset((EXPERT_GATE, EXPERT_UP, EXPERT_GATE_UP, EXPERT_DOWN)),
    "shared experts": frozenset((SHARED_GATE, SHARED_UP, SHARED_DOWN, SHARED_ROUTER)),
    "router and latent": frozenset((ROUTER, ROUTER_BIAS, LATENT_DOWN, LATENT_UP)),
}
"""Roles by what people ask of a model; all others are norms and the like."""

OTHERS = "norms and other"


def kind_of(role: str) -> str:
    """The kind of a role; the output projection counts as attention in every kind of layer."""
    return next((kind for kind, roles in KINDS.items() if role in roles), OTHERS)
