"""Kimi-K3 and Kimi-Linear: layers of Kimi delta attention, and of latent attention between.

The names and shapes are those of the released checkpoints: layers of ``moonshotai/Kimi-K3`` as their headers
list them, and ``KimiLinearForCausalLM`` of transformers with its mapping from checkpoints. Beyond
Kimi-Linear, Kimi-K3 gates the output of latent attention, gates delta attention by a full projection, lets
experts work in a latent of their own, and attends to the outputs of earlier layers. Its language model stands
within ``language_model``. The vision tower is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from reshard_planner.errors import ModelError
from reshard_planner.models import roles
from reshard_planner.models.config import Config
from reshard_planner.models.families import parts
from reshard_planner.models.families.parts import Parameters, Place
from reshard_planner.models.model import Model


@dataclass(frozen=True, slots=True)
class Delta:
    """Sizes of Kimi delta attention.

    Attributes:
        heads: heads of queries, keys and values.
        head_dim: their size, in elements.
        width: width of the convolutions, in tokens.
        full_gate: whether the gate is one projection instead of two of a low rank.
        small_dtype: element type of convolutions and norm.
    """

    heads: int
    head_dim: int
    width: int
    full_gate: bool
    small_dtype: str


def build_k3(config: Config, *, mtp: bool) -> Model:
    """The model of a configuration of Kimi-K3.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    # its checkpoint has convolutions and norms of delta attention in float32
    return _build(config, "kimi_k3", "float32", mtp=mtp)


def build_linear(config: Config, *, mtp: bool) -> Model:
    """The model of a configuration of Kimi-Linear.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    return _build(config, "kimi_linear", config.dtype, mtp=mtp)


def _build(config: Config, family: str, small_dtype: str, *, mtp: bool) -> Model:
    hidden = config.count("hidden_size")
    layers = config.count("num_hidden_layers")
    vocab = config.count("vocab_size")
    sizes = parts.read_latent(config)
    gate = config.flag("mla_use_output_gate", default=False)
    bias = config.flag("attention_bias", default=False)
    tied = config.flag("tie_word_embeddings")
    sparse = parts.sparse_layers(config, layers)
    delta_layers = _delta_layers(config, layers)
    delta = _read_delta(config, small_dtype) if delta_layers else None
    residual = config.count_or_null("attn_res_block_size", None) is not None
    extra = config.natural("num_nextn_predict_layers") if mtp else 0
    if extra:
        raise ModelError(
            config.refusal(
                "num_nextn_predict_layers", extra, "0, as no layer of multi-token prediction of Kimi is known"
            )
        )

    top = Place("language_model." if config.nested else "", config.dtype)
    model = top.at("model")
    found: Parameters = parts.embedding(model, vocab, hidden)
    full = partial(parts.latent_attention, hidden=hidden, sizes=sizes, bias=bias, output_gate=gate)
    for number in range(layers):
        layer = model.of_layer(number)
        found += parts.layer_norms(layer, hidden)
        found += _residuals(layer, hidden) if residual else ()
        attention = layer.at("self_attn")
        if delta is not None and number in delta_layers:
            found += _delta_attention(attention, hidden, delta)
        else:
            found += full(attention)
        if number in sparse:
            found += _experts(config, layer.at("block_sparse_moe"), hidden)
        else:
            found += parts.dense_mlp(layer.at("mlp"), hidden, config.count("intermediate_size"))
    if residual:
        found += (
            model.weight(roles.OUTPUT_RESIDUAL_NORM, "output_attn_res_norm", hidden),
            model.weight(roles.OUTPUT_RESIDUAL, "output_attn_res_proj", 1, hidden),
        )
    found += parts.final_norm(model, hidden) + parts.head(top, vocab, hidden, tied=tied)
    return Model(
        family=family,
        parameters=found,
        layers=layers,
        heads=sizes.heads,
        kv_heads=sizes.heads,
        head_dim=sizes.qk_dim,
        v_head_dim=sizes.v_dim,
        linear_key_heads=delta.heads if delta else 0,
        linear_value_heads=delta.heads if delta else 0,
        linear_key_head_dim=delta.head_dim if delta else 0,
        linear_value_head_dim=delta.head_dim if delta else 0,
        experts=config.count("num_experts") if sparse else 0,
        vocab=vocab,
        tied=tied,
        dense_layers=frozenset(range(layers)) - sparse,
        notes=_notes(config, mtp=mtp),
    )


def _delta_layers(config: Config, layers: int) -> frozenset[int]:
    """Layers of delta attention, from 0; configurations number them from 1."""
    delta = config.numbers("linear_attn_config.kda_layers", 1, layers)
    full = config.numbers("linear_attn_config.full_attn_layers", 1, layers)
    if sorted(delta + full) != list(range(1, layers + 1)):
        rest = sorted(set(range(1, layers + 1)) - set(delta))
        raise ModelError(
            config.refusal("linear_attn_config.full_attn_layers", list(full), f"{rest}, the other layers")
        )
    return frozenset(number - 1 for number in delta)


def _read_delta(config: Config, small_dtype: str) -> Delta:
    section = "linear_attn_config"
    return Delta(
        heads=config.count(f"{section}.num_heads"),
        head_dim=config.count(f"{section}.head_dim"),
        width=config.count(f"{section}.short_conv_kernel_size"),
        full_gate=config.flag(f"{section}.use_full_rank_gate", default=False),
        small_dtype=small_dtype,
    )


def _delta_attention(place: Place, hidden: int, sizes: Delta) -> Parameters:
    rows, dim, dtype = sizes.heads * sizes.head_dim, sizes.head_dim, sizes.small_dtype
    gate: Parameters = (place.weight(roles.KDA_G, "g_proj", rows, hidden),)
    if not sizes.full_gate:
        gate = (
            place.weight(roles.KDA_G_A, "g_a_proj", dim, hidden),
            place.weight(roles.KDA_G_B, "g_b_proj", rows, dim),
        )
    return (
        place.weight(roles.KDA_Q, "q_proj", rows, hidden),
        place.weight(roles.KDA_K, "k_proj", rows, hidden),
        place.weight(roles.KDA_V, "v_proj", rows, hidden),
        place.weight(roles.KDA_Q_CONV, "q_conv1d", rows, 1, sizes.width, dtype=dtype),
        place.weight(roles.KDA_K_CONV, "k_conv1d", rows, 1, sizes.width, dtype=dtype),
        place.weight(roles.KDA_V_CONV, "v_conv1d", rows, 1, sizes.width, dtype=dtype),
        *gate,
        place.weight(roles.KDA_F_A, "f_a_proj", dim, hidden),
        place.weight(roles.KDA_F_B, "f_b_proj", rows, dim),
        place.weight(roles.KDA_B, "b_proj", sizes.heads, hidden),
        # decay is computed in float32, and checkpoints keep it so
        place.parameter(roles.KDA_A_LOG, "A_log", 1, 1, sizes.heads, 1, dtype="float32"),
        place.parameter(roles.KDA_DT_BIAS, "dt_bias", rows, dtype="float32"),
        place.weight(roles.KDA_NORM, "o_norm", dim, dtype=dtype),
        place.weight(roles.O, "o_proj", hidden, rows),
    )


def _residuals(layer: Place, hidden: int) -> Parameters:
    return (
        layer.weight(roles.ATTENTION_RESIDUAL_NORM, "self_attention_res_norm", hidden),
        layer.weight(roles.ATTENTION_RESIDUAL, "self_attention_res_proj", 1, hidden),
        layer.weight(roles.MLP_RESIDUAL_NORM, "mlp_res_norm", hidden),
        layer.weight(roles.MLP_RESIDUAL, "mlp_res_proj", 1, hidden),
    )


def _experts(config: Config, moe: Place, hidden: int) -> Parameters:
    experts = config.count("num_experts")
    intermediate = config.count("moe_intermediate_size")
    latent = config.count_or_null("routed_expert_hidden_size", None)
    shared = config.natural("num_shared_experts")
    # every release has the bias, also those whose configuration does not name the method
    config.choice("topk_method", ("noaux_tc",), "noaux_tc")
    found = parts.router(moe, experts, hidden, bias=True)
    found += parts.routed_experts(moe, experts, intermediate, latent or hidden, ("w1", "w3", "w2"))
    if shared:
        found += parts.shared_expert(moe.at("shared_experts"), hidden, shared * intermediate)
    if latent:
        found += (
            moe.weight(roles.LATENT_DOWN, "routed_expert_down_proj", latent, hidden),
            moe.weight(roles.LATENT_UP, "routed_expert_up_proj", hidden, latent),
        )
        if config.flag("latent_moe_use_norm"):
            found += (moe.weight(roles.LATENT_NORM, "routed_expert_norm", latent),)
    return found


def _notes(config: Config, *, mtp: bool) -> tuple[str, ...]:
    found = []
    if config.has("vision_config"):
        found.append("the vision tower is left out")
    count = config.natural("num_nextn_predict_layers", 0)
    if count and not mtp:
        found.append(f"layers of multi-token prediction are left out: {count}")
    return tuple(found)
