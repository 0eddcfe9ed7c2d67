"""Families of models: what parameters a configuration stands for. Each is a file and a row of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol

from reshard_planner.errors import ModelError
from reshard_planner.models.config import Config
from reshard_planner.models.families import deepseek_v3, kimi, llama, qwen2, qwen3, qwen3_5
from reshard_planner.models.model import Model


class Builder(Protocol):
    """What a family is: a function from a configuration to its model."""

    def __call__(self, config: Config, *, mtp: bool) -> Model:
        """The model of a configuration, with layers of multi-token prediction or without.

        Raises:
            ModelError: if a field is missing or wrong.
        """


@dataclass(frozen=True, slots=True)
class Family:
    """A row of the table.

    Attributes:
        build: gives the model of a configuration.
        beside: patterns of tensors that its checkpoints hold beside parameters of the language model:
            vision towers, and copies of shared tensors. They match at the start of a name.
        prediction: the same for layers of multi-token prediction, where they have names of their own.
    """

    build: Builder
    beside: tuple[str, ...] = ()
    prediction: tuple[str, ...] = ()


_DEEPSEEK_COPIES: Final = (r"model\.layers\.\d+\.(embed_tokens|shared_head\.head)\.weight$",)
_QWEN_VISION: Final = (r"model\.visual\.",)
_QWEN_PREDICTION: Final = (r"mtp\.",)
_KIMI_VISION: Final = (r"vision_tower\.", r"mm_projector\.")

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "deepseek_v3": Family(deepseek_v3.build, _DEEPSEEK_COPIES),
        "kimi_k2": Family(deepseek_v3.build_kimi_k2, _DEEPSEEK_COPIES),
        "kimi_k3": Family(kimi.build_k3, _KIMI_VISION),
        "kimi_linear": Family(kimi.build_linear),
        "llama": Family(llama.build),
        "qwen2": Family(qwen2.build),
        "qwen3": Family(qwen3.build_dense),
        "qwen3_5": Family(qwen3_5.build_dense, _QWEN_VISION, _QWEN_PREDICTION),
        "qwen3_5_moe": Family(qwen3_5.build_sparse, _QWEN_VISION, _QWEN_PREDICTION),
        "qwen3_5_moe_text": Family(qwen3_5.build_sparse, (), _QWEN_PREDICTION),
        "qwen3_5_text": Family(qwen3_5.build_dense, (), _QWEN_PREDICTION),
        "qwen3_moe": Family(qwen3.build_sparse),
    }
)
"""Families by ``model_type`` of their configuration."""


def find_family(model_type: object, where: str) -> Family:
    """The family of a ``model_type``.

    Args:
        model_type: what a configuration says.
        where: what errors call the configuration.

    Raises:
        ModelError: if the family is not known.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ModelError(f"{where}: model_type is {model_type!r}; expected one of {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def build_model(family: Family, config: Config, *, mtp: bool = False) -> Model:
    """The model of a configuration.

    Args:
        family: the family of its ``model_type``.
        config: the configuration.
        mtp: whether layers of multi-token prediction are among the parameters. Recipes of reinforcement
            learning leave them out.

    Returns:
        The model; its notes begin with the overrides that were used.

    Raises:
        ModelError: if a field is missing or wrong, or an override is not read.
    """
    model = family.build(config, mtp=mtp)
    notes = model.notes
    if config.has("quantization_config"):
        notes = ("quantization_config is ignored, as weights are planned without quantisation", *notes)
    return replace(model, notes=(*config.notes(), *notes))
