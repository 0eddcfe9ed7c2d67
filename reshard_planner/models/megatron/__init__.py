"""Megatron-core: tensor, context, expert, data and pipeline parallelism."""

from reshard_planner.models.megatron.parallelism import Megatron
from reshard_planner.models.megatron.stages import split_layers

__all__ = ["Megatron", "split_layers"]
