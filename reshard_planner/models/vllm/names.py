"""What vLLM calls its parameters."""

from __future__ import annotations

from collections.abc import Iterable

_NESTED = "model.language_model."


def is_nested(names: Iterable[str]) -> bool:
    """Whether a checkpoint has its language model inside a model of several modalities."""
    return any(name.startswith(_NESTED) for name in names)


def buffer_name(name: str, buffer: str, *, nested: bool) -> str:
    """Name of the buffer that a parameter lies in.

    Args:
        name: the parameter's name in the checkpoint.
        buffer: name of the buffer beside the parameter's module; empty if it is called as the parameter.
        nested: whether the checkpoint is one of :func:`is_nested`, whose prefixes vLLM swaps.

    >>> buffer_name("model.layers.0.mlp.gate_proj.weight", "gate_up_proj.weight", nested=False)
    'model.layers.0.mlp.gate_up_proj.weight'
    >>> buffer_name("model.layers.0.mlp.experts.*.up_proj.weight", "routed_experts.w13_weight", nested=False)
    'model.layers.0.mlp.experts.routed_experts.w13_weight'
    """
    if buffer:
        module = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[0]
        name = f"{module.removesuffix('.*')}.{buffer}"
    if not nested:
        return name
    if name.startswith(_NESTED):
        return "language_model.model." + name.removeprefix(_NESTED)
    return "language_model." + name if name.startswith("lm_head.") else name
