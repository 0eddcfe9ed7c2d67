"""The values of this room: parameters of a model, and what of its structure fused storage depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import ModelError
from reshard_planner.spec.values import MAX_NBYTES


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a model, as its checkpoint has it.

    Attributes:
        name: name in the Hugging Face checkpoint. Experts of a layer that are tensors of their own there are
            one parameter here, of one more dimension in front, and ``*`` stands for the number of the expert.
        shape: global shape, in elements.
        dtype: torch's name of the element type.
        role: what it does in its layer; see :mod:`reshard_planner.models.roles`. Frameworks place parameters
            by their roles.
        layer: number of its layer, from 0; layers of multi-token prediction come after the last decoder
            layer. None for what stands before or after all layers.
        tensors: number of checkpoint tensors that it stands for.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    layer: int | None = None
    tensors: int = 1

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes, in its own dtype."""
        return self.elements * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class Model:
    """A model: its parameters, and the numbers that fused storage is made of.

    Attributes:
        family: name of the family, ``model_type`` of its configuration.
        parameters: all of them, each once; a tied head is not a parameter of its own.
        layers: number of decoder layers.
        mtp_layers: number of layers of multi-token prediction among the parameters; they are numbered from
            ``layers`` on.
        heads: query heads; 0 without attention of that kind.
        kv_heads: heads of keys and values.
        head_dim: size of a head of queries and keys.
        v_head_dim: size of a head of values.
        output_gate: whether every query head comes with a gate of its size, as the query projection of
            Qwen3.5 has it: rows of head h are its query, then its gate.
        linear_key_heads, linear_value_heads, linear_key_head_dim, linear_value_head_dim: the same numbers of
            linear attention (gated delta net, KDA).
        experts: routed experts of a layer, 0 for none.
        vocab: rows of the embedding.
        tied: whether embedding and head are one parameter.
        dense_layers: layers whose feed-forward part has no experts.
        notes: what was left out, overridden or assumed, one sentence each, for people.

    Raises:
        ModelError: if the parameters are larger together than any spec can be.
    """

    family: str
    parameters: tuple[Parameter, ...]
    layers: int
    mtp_layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    output_gate: bool = False
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    experts: int = 0
    vocab: int = 0
    tied: bool = False
    dense_layers: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    by_name: Mapping[str, Parameter] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = {parameter.name: parameter for parameter in self.parameters}
        object.__setattr__(self, "by_name", MappingProxyType(named))
        if self.nbytes > MAX_NBYTES:
            # the numbers may have more digits than Python writes
            largest = max(self.parameters, key=lambda parameter: parameter.nbytes)
            raise ModelError(
                f"the parameters of {self.family}, of which {largest.name} is the largest, have more than"
                f" {MAX_NBYTES} bytes together; expected at most that"
            )

    @property
    def elements(self) -> int:
        """Parameters in the sense of a model's size."""
        return sum(parameter.elements for parameter in self.parameters)

    @property
    def nbytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters)
