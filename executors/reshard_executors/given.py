"""Given: what callers say of tensors and meshes, as facts to share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

from reshard_executors.agreement import reason
from reshard_executors.sharing import Facts
from reshard_planner.errors import DtypeMismatchError, InputError, ShapeMismatchError

KINDS: dict[str, type[InputError]] = {
    "shape": ShapeMismatchError,
    "dtype": DtypeMismatchError,
    "source mesh": InputError,
    "list of source placements": InputError,
    "destination mesh": InputError,
    "list of destination placements": InputError,
}
"""What defines a plan, and the error where ranks differ on it."""


@dataclass(frozen=True, slots=True)
class Described:
    """A DTensor that this rank holds no part of.

    Attributes:
        shape: global shape.
        dtype: element type.
        device_mesh: where it lies.
        placements: one per dimension of the mesh.
    """

    shape: Sequence[int]
    dtype: torch.dtype
    device_mesh: DeviceMesh
    placements: Sequence[Placement]


class MeshLike(Protocol):
    """A mesh as :meth:`Redistributor.xferdtensor` reads it: an N-d tensor, array or list of ranks."""

    @property
    def mesh(self) -> Any:
        """The ranks."""
        ...


class TensorLike(Protocol):
    """A tensor as :meth:`Redistributor.xferdtensor` reads it: a DTensor, or anything with these two."""

    @property
    def shape(self) -> Sequence[int]:
        """Global shape."""
        ...

    @property
    def _local_tensor(self) -> torch.Tensor:
        """This rank's part, of any strides."""
        ...


def as_input_error(failure: Exception) -> InputError:
    """What is wrong with what a caller gave, where reading it failed."""
    if isinstance(failure, InputError):
        return failure
    return InputError(f"what was given cannot be read: {type(failure).__name__}: {reason(failure)}")


def mesh_facts(side: str, ranks: Any, placements: Sequence[Placement]) -> Facts:
    """The mesh, given as an N-d tensor, array or list of ranks, and the placements of one side.

    Raises:
        InputError: if the ranks are not plain numbers.
    """
    nested = ranks.tolist() if hasattr(ranks, "tolist") else ranks
    try:
        text = json.dumps(nested)
    except TypeError:
        raise InputError(f"the {side} mesh is {nested!r}; expected integers, nested as the mesh is") from None
    return {
        f"{side} mesh": text,
        f"list of {side} placements": json.dumps(list(map(str, placements))),
    }


def tensor_facts(shape: Sequence[int], dtype: torch.dtype) -> Facts:
    """Global shape and dtype."""
    return {"shape": json.dumps([int(size) for size in shape]), "dtype": str(dtype).removeprefix("torch.")}


def facts_of_both(src: TensorLike | None, dst: TensorLike | None) -> Facts:
    """Global shape and dtype, from the tensors of a rank, which may have none, one or both.

    Raises:
        ShapeMismatchError: if their shapes differ.
        DtypeMismatchError: if their dtypes differ.
    """
    found: Facts = {}
    for word, given in (("source", src), ("destination", dst)):
        if given is None:
            continue
        mine = tensor_facts(given.shape, local_of(given).dtype)
        for name, fact in mine.items():
            if found.get(name, fact) != fact:
                raise KINDS[name](
                    f"the {name} is {found[name]} at the source, but {fact} at the {word}; expected it equal"
                )
        found |= mine
    return found


def ranks_of(name: str, mesh: MeshLike) -> Any:
    """The ranks of a mesh that was given as the argument ``name``.

    Raises:
        InputError: if it has none.
    """
    ranks = getattr(mesh, "mesh", None)
    if ranks is None:
        raise InputError(f"{name} is of type {type(mesh).__name__}; expected a mesh with its ranks in .mesh")
    return ranks


def local_of(given: TensorLike) -> torch.Tensor:
    """This rank's part, without its history.

    Raises:
        InputError: if it has none.
    """
    local = getattr(given, "_local_tensor", None)
    if not isinstance(local, torch.Tensor):
        raise InputError(
            f"a tensor is of type {type(given).__name__}; expected this rank's part in ._local_tensor"
        )
    if isinstance(local, AsyncCollectiveTensor):  # its values are still on their way
        local = local.wait()
    return local.detach()
