"""Tiles as columns are the tiles of every rank, in the order of their numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import tensor_specs

import reshard_planner as rp
from reshard_planner.ir.checks import tiles
from reshard_planner.ir.checks.tiles import TileColumns
from reshard_planner.spec.tiles import SideTiles

SIDES = st.sampled_from(["src", "dst"])


@given(tensor_specs(), SIDES)
def test_columns_list_the_tiles_of_every_rank_by_number(tensor, side):
    columns, known = TileColumns(tensor, side), SideTiles(tensor, side)
    assert columns.ranks.tolist() == list(known.ranks())
    listed = [(rank, entry.box) for rank in known.ranks() for entry in known.tiles(rank)]
    boxes = zip(columns.lo.tolist(), columns.hi.tolist(), strict=True)
    found = [
        (rank, rp.Box(tuple(lo), tuple(hi)))
        for rank, (lo, hi) in zip(columns.rank.tolist(), boxes, strict=True)
    ]
    assert found == listed
    assert columns.volume.tolist() == [box.volume for _, box in listed]
    numbers = [number for rank in known.ranks() for number in range(len(known.tiles(rank)))]
    assert columns.number_of(columns.rank, np.array(numbers, dtype=np.int64)).tolist() == list(
        range(len(listed))
    )


@given(tensor_specs(), SIDES)
def test_numbers_that_no_tile_has_are_not_found(tensor, side):
    columns, known = TileColumns(tensor, side), SideTiles(tensor, side)
    for rank in (*known.ranks(), 99):
        count = len(known.tiles(rank))
        assert columns.number_of(np.array([rank] * 2), np.array([-1, count])).tolist() == [-1, -1]


@given(tensor_specs(), SIDES, st.sampled_from([0, 2**22]), st.data())
def test_a_rank_holds_a_box_exactly_if_one_of_its_tiles_contains_it(tensor, side, limit, data):
    known = SideTiles(tensor, side)
    ranks, boxes = [], []
    for _ in range(data.draw(st.integers(1, 8))):
        ranks.append(data.draw(st.sampled_from([*known.ranks(), 99])))
        edges = [sorted(data.draw(st.tuples(*[st.integers(0, size)] * 2))) for size in tensor.shape]
        boxes.append(rp.Box(tuple(a for a, _ in edges), tuple(b for _, b in edges)))
    kept = [at for at, box in enumerate(boxes) if box.volume]
    lo, hi = (
        np.array([getattr(boxes[at], end) for at in kept], dtype=np.int64).reshape(
            len(kept), len(tensor.shape)
        )
        for end in ("lo", "hi")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "MAX_COMPARISONS", limit)
        held = TileColumns(tensor, side).holding(np.array([ranks[at] for at in kept], dtype=np.int64), lo, hi)
    assert held.tolist() == [bool(known.containing(ranks[at], boxes[at])) for at in kept]
