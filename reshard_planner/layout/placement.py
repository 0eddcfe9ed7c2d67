"""Placements: what one mesh axis does to a tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass

from reshard_planner.errors import PlacementError


def _check_integer(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlacementError(f"placement number {value!r} is not an integer")


@dataclass(frozen=True, slots=True)
class Shard:
    """The mesh axis cuts tensor dimension ``dim`` in ceil-chunks, as ``torch.chunk`` does."""

    dim: int

    def __post_init__(self) -> None:
        _check_integer(self.dim)

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every coordinate of the mesh axis stores the same elements."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True)
class StridedShard:
    """Torch's ``_StridedShard``: cut in ``split_factor`` parts first, then each part over the axis.

    Together with a ``Shard`` of the same dimension to its right it records that the right one is
    applied first (tensor parallel, then FSDP). Alone it describes a rank that stores its share of
    ``split_factor`` fused parts one after another, such as gate and up projections.
    """

    dim: int
    split_factor: int

    def __post_init__(self) -> None:
        _check_integer(self.dim)
        _check_integer(self.split_factor)
        if self.split_factor < 1:
            raise PlacementError(f"split factor {self.split_factor} of {self} must be at least 1")

    def __str__(self) -> str:
        return f"_S({self.dim}, sf={self.split_factor})"


Placement = Shard | Replicate | StridedShard

_SHARD = re.compile(r"(?:S|Shard)\((?:dim=)?(-?\d{1,9})\)")
_STRIDED = re.compile(
    r"(?:_S|_StridedShard|StridedShard)\((?:dim=)?(-?\d{1,9}),(?:sf=|split_factor=)?(\d{1,18})\)"
)
_REPLICATE = re.compile(r"R|Replicate(?:\(\))?")
_PARTIAL = re.compile(r"P(?:artial)?(?:\(.*\))?|_MaskPartial.*|_NormPartial.*")


def parse_placement(text: str) -> Placement:
    """Parse one placement in this project's or in DTensor's spelling.

    ``S(0)``, ``Shard(dim=0)``, ``R``, ``Replicate()``, ``_S(0, sf=2)`` and
    ``_StridedShard(dim=0, sf=2)`` are understood.

    Raises:
        PlacementError: for ``Partial`` placements and for anything else.
    """
    packed = re.sub(r"\s+", "", text)
    if match := _SHARD.fullmatch(packed):
        return Shard(int(match[1]))
    if match := _STRIDED.fullmatch(packed):
        return StridedShard(int(match[1]), int(match[2]))
    if _REPLICATE.fullmatch(packed):
        return Replicate()
    if _PARTIAL.fullmatch(packed):
        raise PlacementError(
            f"placement {text!r} is not supported: partial sums must be reduced before they are moved"
        )
    raise PlacementError(f"placement {text!r} is unknown; expected S(d), R or _S(d, sf=k)")
