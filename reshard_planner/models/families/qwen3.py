"""Qwen3, dense and with experts: grouped-query attention with norms of queries and keys.

The names and shapes are those of ``Qwen3ForCausalLM``, and of checkpoints of ``Qwen3MoeForCausalLM``, of
transformers.
"""

from __future__ import annotations

from reshard_planner.models.config import Config
from reshard_planner.models.families import parts
from reshard_planner.models.families.parts import Parameters, Place
from reshard_planner.models.model import Model


def build_dense(config: Config, *, mtp: bool) -> Model:  # noqa: ARG001 - Qwen3 has no such layers
    """The model of a configuration without experts.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    return _build(config, "qwen3", dense=frozenset(range(config.count("num_hidden_layers"))), experts=0)


def build_sparse(config: Config, *, mtp: bool) -> Model:  # noqa: ARG001 - Qwen3 has no such layers
    """The model of a configuration with experts.

    Every ``decoder_sparse_step``-th layer has experts, but those of ``mlp_only_layers``.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    layers = config.count("num_hidden_layers")
    # the default of transformers' Qwen3MoeConfig, in models/qwen3_moe/configuration_qwen3_moe.py
    step = config.count("decoder_sparse_step", 1)
    only = config.numbers("mlp_only_layers", 0, layers - 1, ())
    dense = frozenset(number for number in range(layers) if number in only or (number + 1) % step)
    # transformers 5 writes num_local_experts, released configurations say num_experts
    field = "num_local_experts" if config.has("num_local_experts") else "num_experts"
    return _build(config, "qwen3_moe", dense=dense, experts=config.count(field))


def _build(config: Config, family: str, *, dense: frozenset[int], experts: int) -> Model:
    hidden = config.count("hidden_size")
    layers = config.count("num_hidden_layers")
    vocab = config.count("vocab_size")
    heads = parts.read_heads(config)
    bias = config.flag("attention_bias", default=False)
    tied = config.flag("tie_word_embeddings")

    top = Place("", config.dtype)
    model = top.at("model")
    found: Parameters = parts.embedding(model, vocab, hidden)
    for number in range(layers):
        layer = model.of_layer(number)
        found += parts.layer_norms(layer, hidden)
        found += parts.grouped_query_attention(layer.at("self_attn"), hidden, heads, bias=bias, norms=True)
        mlp = layer.at("mlp")
        if number in dense:
            found += parts.dense_mlp(mlp, hidden, config.count("intermediate_size"))
        else:
            found += parts.router(mlp, experts, hidden)
            found += parts.routed_experts(mlp, experts, config.count("moe_intermediate_size"), hidden)
    found += parts.final_norm(model, hidden) + parts.head(top, vocab, hidden, tied=tied)
    return Model(
        family=family,
        parameters=found,
        layers=layers,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        v_head_dim=heads.head_dim,
        experts=experts,
        vocab=vocab,
        tied=tied,
        dense_layers=dense,
    )
