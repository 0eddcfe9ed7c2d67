"""Qwen3.5, dense and with experts: layers of gated delta net, and of gated grouped-query attention between.

The names and shapes are those of the released checkpoints, which ``Qwen3_5ForConditionalGeneration`` and
``Qwen3_5MoeForConditionalGeneration`` of transformers read: the language model stands within
``model.language_model``, and the experts of a layer are two tensors. The vision tower is left out.
"""

from __future__ import annotations

from reshard_planner.errors import ModelError
from reshard_planner.models import roles
from reshard_planner.models.config import Config
from reshard_planner.models.families import parts
from reshard_planner.models.families.parts import Parameters, Place
from reshard_planner.models.model import Model

LAYER_TYPES = ("linear_attention", "full_attention")


def build_dense(config: Config, *, mtp: bool) -> Model:
    """The model of a configuration without experts.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    return _build(config, "qwen3_5", 0, mtp=mtp)


def build_sparse(config: Config, *, mtp: bool) -> Model:
    """The model of a configuration with experts in every layer.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    layers = config.count("num_hidden_layers")
    only = config.numbers("mlp_only_layers", 0, layers - 1, ())
    if only:
        raise ModelError(
            config.refusal("mlp_only_layers", list(only), "[], as every layer of this family has experts")
        )
    return _build(config, "qwen3_5_moe", config.count("num_experts"), mtp=mtp)


def _build(config: Config, family: str, experts: int, *, mtp: bool) -> Model:
    hidden = config.count("hidden_size")
    layers = config.count("num_hidden_layers")
    vocab = config.count("vocab_size")
    heads = parts.read_heads(config)
    gate = config.flag("attn_output_gate", default=True)
    bias = config.flag("attention_bias", default=False)
    tied = config.flag("tie_word_embeddings")
    types = _layer_types(config, layers)
    extra = config.natural("mtp_num_hidden_layers") if mtp else 0

    top = Place("", config.dtype)
    model = top.at("model.language_model" if config.nested else "model")
    found: Parameters = parts.embedding(model, vocab, hidden)
    for number in range(layers + extra):
        layer = model.of_layer(number)
        if number >= layers:
            layer = Place(f"mtp.layers.{number - layers}.", config.dtype, number)
        found += parts.layer_norms(layer, hidden)
        if number >= layers or types[number] == "full_attention":
            found += parts.grouped_query_attention(
                layer.at("self_attn"), hidden, heads, bias=bias, norms=True, output_gate=gate
            )
        else:
            found += _delta_net(config, layer.at("linear_attn"), hidden)
        found += _feed_forward(config, layer.at("mlp"), hidden, experts)
    if extra:
        found += _prediction(Place("mtp.", config.dtype, layers), hidden)
    found += parts.final_norm(model, hidden) + parts.head(top, vocab, hidden, tied=tied)
    linear = "linear_attention" in types
    return Model(
        family=family,
        parameters=found,
        layers=layers,
        mtp_layers=extra,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        v_head_dim=heads.head_dim,
        output_gate=gate,
        linear_key_heads=config.count("linear_num_key_heads") if linear else 0,
        linear_value_heads=config.count("linear_num_value_heads") if linear else 0,
        linear_key_head_dim=config.count("linear_key_head_dim") if linear else 0,
        linear_value_head_dim=config.count("linear_value_head_dim") if linear else 0,
        experts=experts,
        vocab=vocab,
        tied=tied,
        dense_layers=frozenset() if experts else frozenset(range(layers)),
        notes=_notes(config, mtp=mtp),
    )


def _layer_types(config: Config, layers: int) -> tuple[str, ...]:
    """Kind of attention of every layer, from a list, an interval, or both where they agree."""
    interval = config.count("full_attention_interval", None)
    if interval is None:
        return config.words("layer_types", LAYER_TYPES, layers)
    regular = tuple(LAYER_TYPES[(number + 1) % interval == 0] for number in range(layers))
    types = config.words("layer_types", LAYER_TYPES, layers, regular)
    if types != regular:
        full = [number for number, kind in enumerate(types) if kind == "full_attention"]
        raise ModelError(
            config.refusal(
                "full_attention_interval",
                interval,
                f"the interval of layer_types, whose full layers are {full}",
            )
        )
    return types


def _delta_net(config: Config, place: Place, hidden: int) -> Parameters:
    key_heads = config.count("linear_num_key_heads")
    value_heads = config.count("linear_num_value_heads")
    if value_heads % key_heads:
        raise ModelError(
            config.refusal("linear_num_key_heads", key_heads, f"a divisor of {value_heads} value heads")
        )
    value_dim = config.count("linear_value_head_dim")
    values = value_heads * value_dim
    channels = 2 * key_heads * config.count("linear_key_head_dim") + values
    width = config.count("linear_conv_kernel_dim")
    return (
        place.weight(roles.GDN_QKV, "in_proj_qkv", channels, hidden),
        place.weight(roles.GDN_Z, "in_proj_z", values, hidden),
        place.weight(roles.GDN_B, "in_proj_b", value_heads, hidden),
        place.weight(roles.GDN_A, "in_proj_a", value_heads, hidden),
        place.weight(roles.GDN_CONV, "conv1d", channels, 1, width),
        place.parameter(roles.GDN_A_LOG, "A_log", value_heads),
        place.parameter(roles.GDN_DT_BIAS, "dt_bias", value_heads),
        place.weight(roles.GDN_NORM, "norm", value_dim),
        place.weight(roles.O, "out_proj", hidden, values),
    )


def _feed_forward(config: Config, mlp: Place, hidden: int, experts: int) -> Parameters:
    if not experts:
        return parts.dense_mlp(mlp, hidden, config.count("intermediate_size"))
    shared = config.count("shared_expert_intermediate_size")
    return (
        *parts.router(mlp, experts, hidden),
        *parts.stacked_experts(mlp, experts, config.count("moe_intermediate_size"), hidden),
        *parts.shared_expert(mlp.at("shared_expert"), hidden, shared),
        mlp.weight(roles.SHARED_ROUTER, "shared_expert_gate", 1, hidden),
    )


def _prediction(place: Place, hidden: int) -> Parameters:
    """What multi-token prediction has beside its decoder layers, once for all of them."""
    return (
        place.weight(roles.MTP_EMBEDDING_NORM, "pre_fc_norm_embedding", hidden),
        place.weight(roles.MTP_HIDDEN_NORM, "pre_fc_norm_hidden", hidden),
        place.weight(roles.MTP_PROJECTION, "fc", hidden, 2 * hidden),
        place.weight(roles.MTP_NORM, "norm", hidden),
    )


def _notes(config: Config, *, mtp: bool) -> tuple[str, ...]:
    found = []
    if config.has("vision_config"):
        found.append("the vision tower is left out")
    count = config.natural("mtp_num_hidden_layers", 0)
    if mtp and config.flag("mtp_use_dedicated_embeddings", default=False):
        raise ModelError(
            config.refusal("mtp_use_dedicated_embeddings", True, "false, as the embedding is shared")
        )
    if count and not mtp:
        found.append(f"layers of multi-token prediction are left out: {count}")
    return tuple(found)
