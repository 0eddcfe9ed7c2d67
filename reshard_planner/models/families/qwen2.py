"""Qwen2 and Qwen2.5: grouped-query attention with biases of its inputs, and a dense feed-forward part.

The names and shapes are those of ``Qwen2ForCausalLM`` of transformers.
"""

from __future__ import annotations

from reshard_planner.models.config import Config
from reshard_planner.models.families import parts
from reshard_planner.models.families.parts import Parameters, Place
from reshard_planner.models.model import Model


def build(config: Config, *, mtp: bool) -> Model:  # noqa: ARG001 - Qwen2 has no such layers
    """The model of a configuration.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    hidden = config.count("hidden_size")
    layers = config.count("num_hidden_layers")
    vocab = config.count("vocab_size")
    intermediate = config.count("intermediate_size")
    heads = parts.attention_heads(config, hidden)
    tied = config.flag("tie_word_embeddings")

    top = Place("", config.dtype)
    model = top.at("model")
    found: Parameters = parts.embedding(model, vocab, hidden)
    for number in range(layers):
        layer = model.of_layer(number)
        found += parts.layer_norms(layer, hidden)
        found += parts.grouped_query_attention(
            layer.at("self_attn"), hidden, heads, bias=True, norms=False, output_bias=False
        )
        found += parts.dense_mlp(layer.at("mlp"), hidden, intermediate, bias=False)
    found += parts.final_norm(model, hidden) + parts.head(top, vocab, hidden, tied=tied)
    return Model(
        family="qwen2",
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
