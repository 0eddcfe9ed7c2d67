"""Llama: grouped-query attention and a dense feed-forward part.

The names and shapes are those of ``LlamaForCausalLM`` of transformers.
"""

from __future__ import annotations

from reshard_planner.models.config import Config
from reshard_planner.models.families.parts import dense_decoder
from reshard_planner.models.model import Model


def build(config: Config, *, mtp: bool) -> Model:  # noqa: ARG001 - Llama has no such layers
    """The model of a configuration.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    bias = config.flag("attention_bias", default=False)
    mlp_bias = config.flag("mlp_bias", default=False)
    return dense_decoder(config, "llama", bias=bias, mlp_bias=mlp_bias)
