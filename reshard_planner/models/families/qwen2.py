"""Qwen2 and Qwen2.5: grouped-query attention with biases of its inputs, and a dense feed-forward part.

The names and shapes are those of ``Qwen2ForCausalLM`` of transformers.
"""

from __future__ import annotations

from reshard_planner.models.config import Config
from reshard_planner.models.families.parts import dense_decoder
from reshard_planner.models.model import Model


def build(config: Config, *, mtp: bool) -> Model:  # noqa: ARG001 - Qwen2 has no such layers
    """The model of a configuration.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    return dense_decoder(config, "qwen2", bias=True, output_bias=False)
