"""Fused buffers: tensors that share one agree on it, and no two of them write the same place."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import SpecError, UnsupportedError
from reshard_planner.layout import Layout, Mesh, Storage, Tile
from reshard_planner.layout.partition import row_major_strides
from reshard_planner.layout.stored import Stored, arrange
from reshard_planner.spec.values import SIDES, Side, TensorSpec

Ints = NDArray[np.int64]


MAX_RUNS = 2**24
"""Most runs of neighbouring elements that the tiles of one local buffer may consist of."""


@dataclass(frozen=True, slots=True)
class _User:
    """A tensor that has a buffer of some name, at some position of those of the name, in one of its layouts.

    Attributes:
        tensor: the tensor.
        layout: the layout.
        key: number of the name in the layout's storage, and the position; zeros without storage.
    """

    tensor: TensorSpec
    layout: Layout
    key: tuple[int, int]

    def form(self, side: Side) -> Hashable:
        """All that the checks depend on, but for which ranks they are."""
        return self.layout.form, self.key, self.tensor.shape, self.tensor.side_dtype(side)

    def kinds(self) -> tuple[Ints, Ints]:
        """Every rank, and a number that is equal for those that store the same; -1 without the buffer."""
        tiling = self.layout.tiling(self.tensor.shape)
        if self.layout.storage is None:
            return tiling.ranks, tiling.alike
        arranged = arrange(self.layout.storage, self.tensor.shape)
        holding = np.array([self.key in positions for positions in arranged.positions], dtype=np.bool_)
        return tiling.ranks, np.where(holding[tiling.alike], tiling.alike, -1)

    def local(self, rank: int) -> tuple[tuple[int, ...], Sequence[Tile]]:
        """Shape of the rank's buffer, and the tensor's tiles in it."""
        tiling = self.layout.tiling(self.tensor.shape)
        if isinstance(tiling, Stored):
            return tiling.buffer(rank, self.key)
        [(_, shape)] = tiling.buffers(rank)
        return shape, [tile for _, tile in tiling.local_tiles(rank)]


def check_buffers(tensors: Iterable[TensorSpec]) -> None:
    """Check all local buffers that storage describes or that have names of their own.

    Layers of a model are alike: each kind of sharing is looked at once.

    Raises:
        SpecError: if tensors differ in shape or dtype of a buffer that they share on a rank, or two tiles
            take one place of a destination buffer, or positions of a name's buffers have gaps or differ
            between tensors; naming buffer, rank and tensors.
        UnsupportedError: if tiles consist of too many runs to be compared.
    """
    tensors = tuple(tensors)
    for side in SIDES:
        users = _users(tensors, side)
        known: set[Hashable] = set()
        apart: set[Hashable] = set()
        for name in sorted(users):
            for at in sorted(users[name]):
                where = f"{side} buffer {name!r}{f' at {at}' * (at > 0)}"
                for group in _meeting(users[name][at]):
                    form = tuple(user.form(side) for user in group)
                    # of ranks that are not the same in all layouts, more than the form is needed
                    key = form if _one_mesh(group) else (form, tuple(user.layout.mesh for user in group))
                    if key not in known:
                        known.add(key)
                        _check_buffer(where, side, group, apart)
            if any(users[name]):
                _check_positions(f"{side} buffer {name!r}", users[name])


def _users(tensors: Sequence[TensorSpec], side: Side) -> dict[str, dict[int, list[_User]]]:
    """Users by name and position, of names that storage describes or that are not the tensor's."""
    users: dict[str, dict[int, list[_User]]] = {}
    fused: set[str] = set()
    keys: dict[Storage | None, list[tuple[int, int]]] = {None: [(0, 0)]}
    for tensor in tensors:
        for layout, names in zip(tensor.layouts(side), tensor.buffers(side), strict=True):
            storage = layout.storage
            if storage is not None and storage not in keys:
                keys[storage] = sorted({buffer.key for entry in storage.entries for buffer in entry})
            for key in keys[storage]:
                name, at = names[key[0]], key[1]
                users.setdefault(name, {}).setdefault(at, []).append(_User(tensor, layout, key))
                if storage is not None or name != tensor.name:
                    fused.add(name)
    return {name: users[name] for name in fused}


def _one_mesh(users: Sequence[_User]) -> bool:
    return all(user.layout.mesh == users[0].layout.mesh for user in users)


def _meeting(users: Sequence[_User]) -> list[list[_User]]:
    """Users by the ranks that they share: pipeline stages use one name for layers of their own."""
    groups: list[tuple[frozenset[int], list[_User]]] = []
    by_mesh: dict[Mesh, list[_User]] = {}
    for user in users:
        by_mesh.setdefault(user.layout.mesh, []).append(user)
    for mesh, own in by_mesh.items():
        ranks, together = frozenset(mesh.ranks), list(own)
        apart = []
        for others, members in groups:
            if ranks.isdisjoint(others):
                apart.append((others, members))
            else:
                ranks, together = ranks | others, [*members, *together]
        groups = [*apart, (ranks, together)]
    return [members for _, members in groups]


def _check_positions(buffer: str, users: Mapping[int, Sequence[_User]]) -> None:
    """Check that each tensor's buffers of a name count from 0 on every rank, as far as those of others.

    So a rank's list of them is known from each of the tensors alone.
    """
    by_tensor: dict[str, list[tuple[int, Ints]]] = {}
    for at in sorted(users):
        for user in users[at]:
            ranks, kinds = user.kinds()
            by_tensor.setdefault(user.tensor.name, []).append((at, ranks[kinds >= 0]))
    ranks = np.unique(np.concatenate([own for parts in by_tensor.values() for _, own in parts]))
    counts = np.zeros((len(by_tensor), len(ranks)), dtype=np.int64)
    for number, (name, parts) in enumerate(by_tensor.items()):
        for at, own in parts:  # ascending
            columns = np.searchsorted(ranks, own)
            gaps = columns[counts[number, columns] < at]
            if len(gaps):
                raise SpecError(
                    f"{buffer}, rank {ranks[gaps[0]]}: tensor {name!r} has one at {at} and none at"
                    f" {counts[number, gaps[0]]}; expected positions from 0 without gaps"
                )
            counts[number, columns] = at + 1
    most = counts.max(axis=0)
    fewer = np.argwhere((counts != most) & (counts > 0))
    if len(fewer):
        number, column = fewer[0].tolist()
        names = list(by_tensor)
        raise SpecError(
            f"{buffer}, rank {ranks[column]}: tensor {names[number]!r} has {counts[number, column]} of the"
            f" name, tensor {names[int(counts[:, column].argmax())]!r} {most[column]}; expected as many"
        )


def _check_buffer(buffer: str, side: Side, users: Sequence[_User], apart: set[Hashable]) -> None:
    """Check one buffer on all ranks; ``apart`` has the places that are known to be apart."""
    columns = [user.kinds() for user in users]
    ranks = columns[0][0] if _one_mesh(users) else np.unique(np.concatenate([own for own, _ in columns]))
    kinds = np.full((len(ranks), len(users)), -1, dtype=np.int64)
    at = {rank: position for position, rank in enumerate(ranks.tolist())}
    for number, (own, kind) in enumerate(columns):
        rows = slice(None) if own is ranks else [at[rank] for rank in own.tolist()]
        kinds[rows, number] = kind
    distinct, first = np.unique(kinds, axis=0, return_index=True)
    for combination, position in zip(distinct.tolist(), first.tolist(), strict=True):
        sharing = [user for user, kind in zip(users, combination, strict=True) if kind >= 0]
        if sharing:
            rank = int(ranks[position])
            where = f"{buffer}, rank {rank}"
            _check_local(where, side, rank, sharing)
            if side == "dst":
                places = tuple(
                    (number, tile.box.shape, tile.offset, tile.strides)
                    for number, user in enumerate(sharing)
                    for tile in user.local(rank)[1]
                )
                if places not in apart:
                    _check_places(where, rank, sharing)
                    apart.add(places)


def _check_local(where: str, side: Side, rank: int, users: Sequence[_User]) -> None:
    first, *others = users
    shape, _ = first.local(rank)
    for other in others:
        have = other.local(rank)[0]
        if have != shape:
            raise SpecError(
                f"{where}: tensor {first.tensor.name!r} says that its shape is {list(shape)}, tensor"
                f" {other.tensor.name!r} {list(have)}; expected it equal"
            )
        if other.tensor.side_dtype(side) != first.tensor.side_dtype(side):
            raise SpecError(
                f"{where}: tensor {first.tensor.name!r} has dtype {first.tensor.side_dtype(side)}, tensor"
                f" {other.tensor.name!r} {other.tensor.side_dtype(side)}; expected it equal"
            )
    whole = [user.tensor.name for user in users if user.layout.storage is None]
    if len(whole) > 1:
        raise SpecError(
            f"{where}: it is the whole buffer of tensor {whole[0]!r} and of {whole[1]!r}; expected different"
            " names, or storage that says where each lies"
        )


def _check_places(where: str, rank: int, users: Sequence[_User]) -> None:
    starts, stops, owners = [], [], []
    total = 0
    for number, user in enumerate(users):
        for tile in user.local(rank)[1]:
            count, length = _runs(tile)
            total += count
            if total > MAX_RUNS:
                raise UnsupportedError(
                    f"{where}: tiles of tensor {user.tensor.name!r} consist of more than {MAX_RUNS} runs of"
                    " neighbouring elements; expected fewer, as with the last dimension dense"
                )
            begin = _run_starts(tile, count)
            starts.append(begin)
            stops.append(begin + length)
            owners.append(np.full(len(begin), number))
    if not starts:
        return
    start, stop, owner = (np.concatenate(columns) for columns in (starts, stops, owners))
    order = np.argsort(start, kind="stable")
    twice = np.flatnonzero(start[order][1:] < stop[order][:-1])
    if len(twice):
        names = [users[int(owner[order[at]])].tensor.name for at in (twice[0], twice[0] + 1)]
        raise SpecError(
            f"{where}: element {int(start[order[twice[0] + 1]])} is the place of two elements, of tensor"
            f" {names[0]!r} and of {names[1]!r}; expected a place of its own for each"
        )


def _dense_dims(tile: Tile) -> int:
    """How many dimensions there are from the first on before the rest of a tile is one run."""
    shape = tile.box.shape
    dense = row_major_strides(shape)
    count = len(shape)
    while count and (shape[count - 1] == 1 or tile.strides[count - 1] == dense[count - 1]):
        count -= 1
    return count


def _runs(tile: Tile) -> tuple[int, int]:
    """Number of runs of neighbouring elements, and their length."""
    outer = _dense_dims(tile)
    return prod(tile.box.shape[:outer]), prod(tile.box.shape[outer:])


def _run_starts(tile: Tile, count: int) -> Ints:
    outer = _dense_dims(tile)
    starts = np.full(1, tile.offset, dtype=np.int64)
    for extent, stride in zip(tile.box.shape[:outer], tile.strides[:outer], strict=True):
        steps = np.arange(extent, dtype=np.int64) * stride
        starts = (starts[:, None] + steps).reshape(-1)
    return starts.reshape(count)
