"""Storage as plain data: spelled out per layout in spec files, or once for all layouts that share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from reshard_planner.box import Box
from reshard_planner.errors import LayoutError, SpecError
from reshard_planner.forms import convert
from reshard_planner.intset import parse_ints
from reshard_planner.layout import Mesh, Storage, StoredBuffer, Tile


class StorageTileForm(msgspec.Struct, forbid_unknown_fields=True):
    """One tile: its box as ``[lo, hi]`` per dimension, and its place in the buffer in elements."""

    box: list[tuple[int, int]]
    offset: int
    strides: list[int]


class StorageForm(msgspec.Struct, forbid_unknown_fields=True):
    """Where the tiles of some ranks lie in a local buffer of this name and shape.

    Of several of the name on a rank, it is the one ``at`` this position.
    """

    ranks: str | list[int]
    buffer: str
    shape: list[int]
    tiles: list[StorageTileForm]
    at: int = 0


class EntryBufferForm(msgspec.Struct, forbid_unknown_fields=True):
    """What an entry of shared storage has in the buffer of this number, or in that ``at`` a position."""

    buffer: int
    shape: list[int]
    tiles: list[StorageTileForm]
    at: int = 0


class SharedStorageForm(msgspec.Struct, forbid_unknown_fields=True):
    """Storage that several layouts refer to: entries, and the number of the entry of every position."""

    entries: list[list[EntryBufferForm]]
    entry_of: list[int]


def shared_storage(raw: object, path: str) -> Storage:
    """Storage that layouts refer to by name.

    Raises:
        SpecError: naming the field that is wrong.
        LayoutError: if a position names an entry that does not exist.
    """
    form = convert(raw, SharedStorageForm, path)
    try:
        return Storage(
            (
                tuple(
                    StoredBuffer(buffer.buffer, tuple(buffer.shape), _tiles(buffer.tiles), buffer.at)
                    for buffer in entry
                )
                for entry in form.entries
            ),
            form.entry_of,
        )
    except LayoutError as error:
        raise LayoutError(f"{path}: {error}") from None


def layout_storage(forms: list[StorageForm], mesh: Mesh, path: str) -> tuple[Storage, tuple[str, ...]]:
    """Storage that a layout spells out by ranks, and the names of its buffers in order of appearance.

    Args:
        forms: one per buffer and set of ranks.
        mesh: the ranks of the layout; those that no form names store nothing.
        path: of the field, for errors.

    Raises:
        SpecError: naming the field that is wrong.
    """
    names: dict[str, int] = {}
    stored: dict[int, list[StoredBuffer]] = {rank: [] for rank in mesh.ranks}
    for index, form in enumerate(forms):
        where = f"{path}[{index}]"
        number = names.setdefault(form.buffer, len(names))
        buffer = StoredBuffer(number, tuple(form.shape), _tiles(form.tiles), form.at)
        try:
            ranks = parse_ints(form.ranks) if isinstance(form.ranks, str) else form.ranks
        except ValueError as error:
            raise SpecError(f"{where}.ranks: {error}") from None
        for rank in ranks:
            if rank not in stored:
                raise SpecError(f"{where}.ranks has rank {rank}, which is not in the layout's mesh")
            if any(other.key == buffer.key for other in stored[rank]):
                raise SpecError(
                    f"{where}: buffer {form.buffer!r}{f' at {form.at}' * (form.at > 0)} of rank {rank} is"
                    " described twice; expected all of its tiles in one entry"
                )
            stored[rank].append(buffer)
    return Storage.of(tuple(stored[rank]) for rank in mesh.ranks), tuple(names)


def _tiles(forms: list[StorageTileForm]) -> tuple[Tile, ...]:
    return tuple(
        Tile(
            Box(tuple(lo for lo, _ in form.box), tuple(hi for _, hi in form.box)),
            form.offset,
            tuple(form.strides),
        )
        for form in forms
    )


def storage_to_dict(storage: Storage) -> dict[str, Any]:
    """Storage as plain data that :func:`shared_storage` reads back."""
    return {
        "entries": [list(map(_plain_buffer, entry)) for entry in storage.entries],
        "entry_of": list(storage.entry_of),
    }


def _plain_buffer(buffer: StoredBuffer) -> Mapping[str, Any]:
    return {
        "buffer": buffer.buffer,
        **({"at": buffer.at} if buffer.at else {}),
        "shape": list(buffer.shape),
        "tiles": [
            {
                "box": [list(bounds) for bounds in zip(tile.box.lo, tile.box.hi, strict=True)],
                "offset": tile.offset,
                "strides": list(tile.strides),
            }
            for tile in buffer.tiles
        ],
    }
