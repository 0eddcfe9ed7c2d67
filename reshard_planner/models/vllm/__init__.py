"""vLLM: tensor, data and expert parallelism."""

from reshard_planner.models.vllm.parallelism import Vllm

__all__ = ["Vllm"]
