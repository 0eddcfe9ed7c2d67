"""Models from checkpoints: the parameters that a configuration implies, compared with what the files hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import ModelError
from reshard_planner.models import roles
from reshard_planner.models.families import Family
from reshard_planner.models.headers import Tensor
from reshard_planner.models.model import Model, Parameter

PLAIN: Final = "plain"
"""Family of models without a known structure, whose parameters have no roles."""

QUANTISED: Final = ("_scale_inv", "_scale", "_scale_2", "_shape", "_packed")
"""Ends of the names of tensors that hold, beside or instead of a weight, its quantised form."""

PACKED: Final = "_packed"

_BUFFERS: Final = (r".*rotary_emb\.inv_freq$",)
_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def plain_model(tensors: Mapping[str, Tensor], dtype: str | None, note: str) -> Model:
    """A model of every tensor of a checkpoint, without roles.

    Args:
        tensors: tensors by name.
        dtype: element type of all floating-point parameters, that of the files when None.
        note: why there are no roles.
    """
    found = (
        Parameter(name, tensor.shape, replaced_dtype(tensor.dtype, dtype), "")
        for name, tensor in tensors.items()
    )
    return Model(family=PLAIN, parameters=tuple(found), layers=0, notes=(note,))


def replaced_dtype(dtype: str, instead: str | None) -> str:
    """An element type, replaced where it is one of floating point."""
    return instead if instead is not None and dtype.startswith(("float", "bfloat")) else dtype


def match_checkpoint(
    model: Model, family: Family, tensors: Mapping[str, Tensor], where: str, dtype: str | None = None
) -> Model:
    """Check that a checkpoint has the parameters of a model, and give them the element types of its tensors.

    Args:
        model: what the configuration implies.
        family: its family, which says what else its checkpoints hold.
        tensors: tensors of the checkpoint, by name.
        where: what errors call the checkpoint.
        dtype: the element type that was asked for. Parameters then keep what ``model`` says.

    Returns:
        The model. A parameter that the checkpoint holds quantised keeps the element type that it had.

    Raises:
        ModelError: if tensors are missing, surplus or of another shape, or experts of one parameter have
            different element types. The message names the first of each kind, and how many there are.
    """
    found: list[Parameter] = []
    faults = _Faults([], [], [])
    used: set[str] = set()
    quantised = 0
    padded = 0
    for parameter in _as_stored(model.parameters, tensors):
        dtypes = set()
        for name, shape in _tensors(parameter):
            parts = [name + end for end in QUANTISED if name + end in tensors]
            used.update((name, *parts))
            quantised += bool(parts)
            tensor = tensors.get(name)
            if tensor is None and name + PACKED in tensors:
                if not _packs(tensors[name + PACKED], shape):
                    faults.different.append((name, tensors[name + PACKED].shape, shape))
            elif tensor is None:
                faults.missing.append(name)
            elif tensor.shape == shape:
                dtypes |= set() if parts else {tensor.dtype}
            elif parameter.role == roles.KDA_A_LOG and _holds_heads(tensor.shape, shape):
                padded += 1
                dtypes.add(tensor.dtype)
            else:
                faults.different.append((name, tensor.shape, shape))
        if len(dtypes) > 1:
            names = " and ".join(sorted(dtypes))
            raise ModelError(f"{where}: tensors of {parameter.name!r} are {names}; expected one dtype")
        own = dtypes.pop() if dtypes and dtype is None else parameter.dtype
        found.append(replace(parameter, dtype=own))
    beside = _Beside(model, family)
    rest = {name: beside.reason(name) for name in tensors if name not in used}
    faults.surplus.extend(name for name, reason in rest.items() if not reason)
    faults.check(where)
    notes = list(model.notes)
    if quantised:
        notes.append(
            f"weights that the checkpoint holds quantised are planned as {_said(model)}: {quantised}"
        )
    if padded:
        notes.append(
            f"A_log is padded or of another shape in the checkpoint, and planned as its heads: {padded}"
        )
    for reason in dict.fromkeys(reason for reason in rest.values() if reason):
        count = sum(other == reason for other in rest.values())
        notes.append(f"tensors of the checkpoint are left out, as {reason}: {count}")
    return replace(model, parameters=tuple(found), notes=tuple(notes))


def _as_stored(parameters: tuple[Parameter, ...], tensors: Mapping[str, Tensor]) -> Iterator[Parameter]:
    """Parameters, with stacks of experts as single tensors where the checkpoint holds those instead.

    Releases of Qwen3.5 stack the experts of a layer; transformers saves them one by one, and so do forms with
    fewer bits.
    """
    for parameter in parameters:
        place, _, name = parameter.name.rpartition(".experts.")
        modules = {roles.EXPERT_GATE: "gate_proj", roles.EXPERT_UP: "up_proj"}
        if parameter.role == roles.EXPERT_DOWN:
            modules = {roles.EXPERT_DOWN: "down_proj"}
        single = f"{place}.experts.0.{next(iter(modules.values()))}.weight"
        stacked = parameter.role in {roles.EXPERT_GATE_UP, roles.EXPERT_DOWN} and "*" not in name
        if not stacked or parameter.name in tensors or not {single, single + PACKED} & tensors.keys():
            yield parameter
            continue
        experts, rows, columns = parameter.shape
        for role, module in modules.items():
            yield Parameter(
                name=f"{place}.experts.*.{module}.weight",
                shape=(experts, rows // len(modules), columns),
                dtype=parameter.dtype,
                role=role,
                layer=parameter.layer,
                tensors=experts,
            )


def _said(model: Model) -> str:
    """The element type of the largest parameter, which is that of the configuration."""
    return max(model.parameters, key=lambda parameter: parameter.elements).dtype


def _tensors(parameter: Parameter) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors of the checkpoint that a parameter stands for, with their shapes."""
    if "*" not in parameter.name:
        yield parameter.name, parameter.shape
        return
    for number in range(parameter.tensors):
        yield parameter.name.replace("*", str(number)), parameter.shape[1:]


def _packs(packed: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a tensor holds four bits per element of a shape, joined along its last dimension."""
    bits = prod(packed.shape) * DTYPE_BITS[packed.dtype]
    return packed.shape[:-1] == shape[:-1] and bits == 4 * prod(shape)


def _holds_heads(stored: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a list of heads, perhaps with padding at its end, stands for one in more dimensions."""
    return len(stored) == 1 and stored[0] >= prod(shape)


@dataclass(frozen=True, slots=True)
class _Beside:
    """What checkpoints hold beside the parameters of a model, and why it is left out."""

    model: Model
    family: Family

    def reason(self, name: str) -> str:
        """Why a tensor is left out, "" where it should not be there."""
        for patterns, reason in (
            (self.family.beside, "they belong to a vision tower, or are copies of shared tensors"),
            (_BUFFERS, "they are buffers of position embeddings"),
            (() if self.model.mtp_layers else self.family.prediction, "they predict further tokens"),
        ):
            if any(re.match(pattern, name) for pattern in patterns):
                return reason
        if self.model.tied and name.endswith("lm_head.weight"):
            return "the head is tied to the embedding"
        layer = _LAYER.search(name)
        if layer and int(layer[1]) >= self.model.layers and not self.model.mtp_layers:
            return "they predict further tokens"
        return ""


@dataclass(frozen=True, slots=True)
class _Faults:
    """Where a checkpoint and a configuration differ."""

    missing: list[str]
    surplus: list[str]
    different: list[tuple[str, tuple[int, ...], tuple[int, ...]]]

    def check(self, where: str) -> None:
        said = []
        if self.missing:
            said.append(f"missing tensors: {len(self.missing)}, first {self.missing[0]!r}")
        if self.surplus:
            said.append(f"surplus tensors: {len(self.surplus)}, first {self.surplus[0]!r}")
        if self.different:
            name, stored, shape = self.different[0]
            said.append(
                f"tensors of other shapes: {len(self.different)}, first {name!r} with {list(stored)} instead"
                f" of {list(shape)}"
            )
        if said:
            raise ModelError(f"{where} does not fit its configuration: {'; '.join(said)}")
