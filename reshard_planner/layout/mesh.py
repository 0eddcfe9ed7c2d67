"""Meshes: N-d arrays of distinct global ranks with named axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import LayoutError

MAX_RANK = 2**20
"""Largest rank number accepted: tables are sized by it, so that a typing error cannot ask for terabytes."""

MAX_AXES = 32
"""Most axes of a mesh: numpy gives arrays no more dimensions."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """An N-d array of distinct global ranks, stored row-major, with one name per axis.

    Attributes:
        ranks: the ranks in row-major order.
        shape: extent per axis; its product is ``len(ranks)``.
        axes: name per axis.
    """

    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        ranks: Sequence[Any] | NDArray[np.integer[Any]],
        axes: Sequence[str] | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        """Build a mesh from a (nested) list of ranks.

        Args:
            ranks: ranks as a nested list, whose nesting gives the shape, or as a flat list.
            axes: a distinct name per axis; ``axis0, axis1, ...`` when absent.
            shape: the shape of a flat list of ranks; one axis when absent.

        Raises:
            LayoutError: if ranks repeat, are negative or ragged, or names and shape do not fit.

        >>> Mesh([[0, 1], [2, 3]], ("dp", "tp")).shape
        (2, 2)
        """
        flat, nested = _flatten(ranks if isinstance(ranks, list | tuple) else np.asarray(ranks).tolist())
        final = nested if shape is None else tuple(map(as_integer, shape))
        if shape is not None and min(final, default=1) < 1:
            raise LayoutError(f"mesh shape {list(final)} has a size below 1")
        if shape is not None and (len(nested) != 1 or prod(final) != len(flat)):
            raise LayoutError(
                f"mesh shape {list(final)} holds {prod(final)} ranks, but {len(flat)} are given"
            )
        names = tuple(f"axis{i}" for i in range(len(final))) if axes is None else tuple(axes)
        for name in names:
            if not isinstance(name, str):
                raise LayoutError(f"mesh axis name {name!r} is not a string")
        if len(names) != len(final):
            raise LayoutError(f"mesh of shape {list(final)} needs {len(final)} axis names, got {list(names)}")
        if len(final) > MAX_AXES:
            raise LayoutError(f"mesh has {len(final)} axes; expected at most {MAX_AXES}")
        if len(set(names)) != len(names):
            raise LayoutError(f"mesh axis names {list(names)} are not distinct")
        if not flat:
            raise LayoutError("mesh has no ranks; expected at least one")
        _check_ranks(flat)
        object.__setattr__(self, "ranks", flat)
        object.__setattr__(self, "shape", final)
        object.__setattr__(self, "axes", names)
        # layouts are looked up by their meshes all the time, which may have thousands of ranks; of numbers
        # alone, since hashes of names differ between processes that may exchange meshes
        object.__setattr__(self, "_hash", hash((flat, final)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def array(self) -> NDArray[np.int64]:
        """The ranks as an array of the mesh's shape, int64."""
        return np.array(self.ranks, dtype=np.int64).reshape(self.shape)

    def __repr__(self) -> str:
        return f"Mesh({self.array().tolist()!r}, {self.axes!r})"


def _flatten(ranks: Any, depth: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if depth > MAX_AXES:
        raise LayoutError(f"mesh ranks nest more than {MAX_AXES} deep; expected at most {MAX_AXES} axes")
    if not isinstance(ranks, list | tuple):
        raise LayoutError(f"mesh ranks {ranks!r} are not a list of integers")
    if not any(isinstance(item, list | tuple) for item in ranks):
        for item in ranks:
            if isinstance(item, bool) or not isinstance(item, int | np.integer):
                raise LayoutError(f"mesh rank {item!r} is not an integer")
        return tuple(int(item) for item in ranks), (len(ranks),)
    parts = [_flatten(item, depth + 1) for item in ranks]
    inner = parts[0][1]
    for _, other in parts:
        if other != inner:
            raise LayoutError(f"mesh ranks are ragged: rows of shape {list(inner)} and {list(other)}")
    return tuple(rank for part, _ in parts for rank in part), (len(parts), *inner)


def as_integer(value: Any) -> int:
    """The value as a Python integer.

    Raises:
        LayoutError: if it is of another type, such as a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise LayoutError(f"{value!r} is not an integer")
    return int(value)


def _check_ranks(flat: Iterable[int]) -> None:
    seen: set[int] = set()
    for rank in flat:
        if not 0 <= rank < MAX_RANK:
            raise LayoutError(f"mesh rank {rank} is out of range; expected 0 to {MAX_RANK - 1}")
        if rank in seen:
            raise LayoutError(f"mesh has duplicate rank {rank}; every rank may appear once")
        seen.add(rank)
