"""Llama: grouped-query attention and a dense feed-forward part.

The names and shapes are those of ``LlamaForCausalLM`` of transformers.
"""

from __future__ import annotations

from reshard_planner.models.config import Config
from reshard_planner.models.families import parts
from reshard_planner.models.families.parts import Parameters, Place
from reshard_planner.models.model import Model


def build(config: Config, *, mtp: bool) -> Model:  # noqa: ARG001 - Llama has no such layers
    """The model of a configuration.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    hidden = config.count("hidden_size")
    layers = config.count("num_hidden_layers")
    vocab = config.count("vocab_size")
    intermediate = config.count("intermediate_size")
    heads = parts.attention_heads(config, hidden)
    bias = config.flag("attention_bias", default=False)
    mlp_bias = config.flag("mlp_bias", default=False)
    tied = config.flag("tie_word_embeddings")

    top = Place("", config.dtype)
    model = top.at("model")
    found: Parameters = parts.embedding(model, vocab, hidden)
    for number in range(layers):
        layer = model.of_layer(number)
        found += parts.layer_norms(layer, hidden)
        found += parts.grouped_query_attention(layer.at("self_attn"), hidden, heads, bias=bias, norms=False)
        found += parts.dense_mlp(layer.at("mlp"), hidden, intermediate, bias=mlp_bias)
    found += parts.final_norm(model, hidden) + parts.head(top, vocab, hidden, tied=tied)
    return Model(
        family="llama",
        parameters=found,
        layers=layers,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        v_head_dim=heads.head_dim,
        vocab=vocab,
        tied=tied,
        dense_layers=frozenset(range(layers)),
    )
