"""DeepSeek-V3, and Kimi-K2 in its form: latent attention, and experts with shared ones beside them.

The names and shapes are those of the released checkpoints, which ``DeepseekV3ForCausalLM`` of transformers
reads. Layers of multi-token prediction follow the decoder layers there, by number.
"""

from __future__ import annotations

from functools import partial

from reshard_planner.models import roles
from reshard_planner.models.config import Config
from reshard_planner.models.families import parts
from reshard_planner.models.families.parts import Parameters, Place
from reshard_planner.models.model import Model

TOPK_METHODS = ("noaux_tc", "group_limited_greedy", "greedy")
"""Ways to choose experts: the first corrects scores by a bias."""


def build(config: Config, *, mtp: bool, family: str = "deepseek_v3") -> Model:
    """The model of a configuration.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    hidden = config.count("hidden_size")
    layers = config.count("num_hidden_layers")
    vocab = config.count("vocab_size")
    sizes = parts.read_latent(config)
    bias = config.flag("attention_bias", default=False)
    tied = config.flag("tie_word_embeddings")
    sparse = parts.sparse_layers(config, layers)
    extra = config.natural("num_nextn_predict_layers") if mtp else 0

    top = Place("", config.dtype)
    model = top.at("model")
    found: Parameters = parts.embedding(model, vocab, hidden)
    attention = partial(parts.latent_attention, hidden=hidden, sizes=sizes, bias=bias)
    for number in range(layers + extra):
        layer = model.of_layer(number)
        found += parts.layer_norms(layer, hidden) + attention(layer.at("self_attn"))
        if number in sparse or number >= layers:
            found += _experts(config, layer.at("mlp"), hidden)
        else:
            found += parts.dense_mlp(layer.at("mlp"), hidden, config.count("intermediate_size"))
        if number >= layers:
            found += _prediction(layer, hidden)
    found += parts.final_norm(model, hidden) + parts.head(top, vocab, hidden, tied=tied)
    return Model(
        family=family,
        parameters=found,
        layers=layers,
        mtp_layers=extra,
        heads=sizes.heads,
        kv_heads=sizes.heads,
        head_dim=sizes.qk_dim,
        v_head_dim=sizes.v_dim,
        experts=config.count("n_routed_experts") if sparse or extra else 0,
        vocab=vocab,
        tied=tied,
        dense_layers=frozenset(range(layers)) - sparse,
        notes=_notes(config, mtp=mtp),
    )


def build_kimi_k2(config: Config, *, mtp: bool) -> Model:
    """The model of a configuration of Kimi-K2, whose fields and names are those of DeepSeek-V3.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    return build(config, mtp=mtp, family="kimi_k2")


def _experts(config: Config, mlp: Place, hidden: int) -> Parameters:
    experts = config.count("n_routed_experts")
    intermediate = config.count("moe_intermediate_size")
    # the DeepseekV3Config of transformers has no such field, and its router always has the bias
    method = config.choice("topk_method", TOPK_METHODS, TOPK_METHODS[0])
    shared = config.natural("n_shared_experts")
    found = parts.router(mlp, experts, hidden, bias=method == TOPK_METHODS[0])
    found += parts.routed_experts(mlp, experts, intermediate, hidden)
    if shared:
        found += parts.shared_expert(mlp.at("shared_experts"), hidden, shared * intermediate)
    return found


def _prediction(layer: Place, hidden: int) -> Parameters:
    """What a layer of multi-token prediction has beside a decoder layer; it shares embedding and head."""
    return (
        layer.weight(roles.MTP_EMBEDDING_NORM, "enorm", hidden),
        layer.weight(roles.MTP_HIDDEN_NORM, "hnorm", hidden),
        layer.weight(roles.MTP_PROJECTION, "eh_proj", hidden, 2 * hidden),
        layer.weight(roles.MTP_NORM, "shared_head.norm", hidden),
    )


def _notes(config: Config, *, mtp: bool) -> tuple[str, ...]:
    if mtp:
        shared = "multi-token prediction shares the embedding and the head, whose copies are left out"
        return (shared,) if config.natural("num_nextn_predict_layers") else ()
    count = config.natural("num_nextn_predict_layers", 0)
    return (f"layers of multi-token prediction are left out: {count}",) if count else ()
