"""Positions: which of a rank's local tensors of one name a layout's is, kept where layouts become storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reshard_planner.layout import Entry, Layout, Storage, StoredBuffer


def keep_positions(
    names: Sequence[str | None], left: Mapping[int, Layout], shape: tuple[int, ...]
) -> dict[int, Layout]:
    """Have storage say what the order of layouts without storage said before some of them became storage.

    A rank that is part of several dense layouts of one name has a local tensor for each, in their order.
    Where one of them is stored now, all of them are, at the positions that they had.

    Args:
        names: of the one dense buffer of every layout as it was, None for layouts with storage.
        left: what is left of layouts, by number. A rank that is left is in the same ones as before.
        shape: global shape of the tensor, in elements.

    Returns:
        The layouts, by number; those that are as they were where no positions need to be said.
    """
    found = dict(left)
    for name in dict.fromkeys(names):
        own = [number for number in left if names[number] == name]
        if name is None or all(left[number].storage is None for number in own):
            continue
        seen: dict[int, int] = {}
        positions: dict[int, list[int]] = {}
        for number in own:
            positions[number] = [seen.get(rank, 0) for rank in left[number].mesh.ranks]
            seen.update({rank: seen.get(rank, 0) + 1 for rank in left[number].mesh.ranks})
        if max(seen.values()) > 1:
            found.update({number: _placed(left[number], shape, positions[number]) for number in own})
    return found


def _placed(layout: Layout, shape: tuple[int, ...], positions: Sequence[int]) -> Layout:
    """A layout of one buffer per rank with the buffers at these positions, rank by rank of its mesh."""
    tiling = layout.tiling(shape)
    made: dict[tuple[int, int], Entry] = {}
    entries: list[Entry] = []
    for rank, kind, at in zip(tiling.ranks.tolist(), tiling.alike.tolist(), positions, strict=True):
        if (kind, at) not in made:
            [(_, extents)] = tiling.buffers(rank)
            tiles = tuple(tile for _, tile in tiling.local_tiles(rank))
            made[kind, at] = (StoredBuffer(0, extents, tiles, at),)
        entries.append(made[kind, at])
    return Layout(layout.mesh, layout.placements, Storage.of(entries))
