"""Boxes of storage as plans know them: neighbours are joined, and colours say who has which atoms."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_strategies import irregular_specs

from reshard_planner.box import Box
from reshard_planner.layout.stored import join_boxes
from reshard_planner.layout.tiling import NOTHING


@st.composite
def box_lists(draw):
    """Cells of a small grid, grouped at random into boxes; some twice, some overlapping."""
    shape = draw(st.sampled_from([(), (6,), (4, 3), (2, 3, 2)]))
    box = st.tuples(*(st.tuples(st.integers(0, n - 1), st.integers(1, n)) for n in shape)).map(
        lambda ends: Box(
            tuple(lo for lo, _ in ends),
            tuple(min(n, lo + size) for (lo, size), n in zip(ends, shape, strict=True)),
        )
    )
    return draw(st.lists(box, max_size=9))


def elements(boxes):
    """How often every index lies in a box."""
    return Counter(
        tuple(int(lo + at) for lo, at in zip(box.lo, index, strict=True))
        for box in boxes
        for index in np.ndindex(*box.shape)
    )


def are_joinable(one, two):
    """Whether two boxes meet at a side that they share whole."""
    differ = [dim for dim in range(one.ndim) if (one.lo[dim], one.hi[dim]) != (two.lo[dim], two.hi[dim])]
    return len(differ) == 1 and (
        one.hi[differ[0]] == two.lo[differ[0]] or two.hi[differ[0]] == one.lo[differ[0]]
    )


@settings(max_examples=300)
@given(box_lists())
def test_joined_boxes_have_the_same_elements_and_no_neighbours_are_left(boxes):
    joined = join_boxes(boxes)
    assert sorted(at for _, positions in joined for at in positions) == list(range(len(boxes)))
    for box, positions in joined:
        assert elements([box]) == elements([boxes[at] for at in positions])
        assert list(positions) == sorted(positions)
    assert [positions for _, positions in joined] == sorted(positions for _, positions in joined)
    assert not any(are_joinable(a, b) for at, (a, _) in enumerate(joined) for b, _ in joined[:at])
    assert join_boxes(boxes) == joined


@given(irregular_specs())
def test_a_colouring_has_every_box_of_every_rank_whole(spec):
    for tensor in spec.tensors:
        for tiling in (*tensor.tilings("src"), *tensor.tilings("dst")):
            cuts = [
                np.array(sorted({0, size} | tiling.cuts(dim)), dtype=np.int64)
                for dim, size in enumerate(tensor.shape)
            ]
            extents = tuple(max(0, len(cut) - 1) for cut in cuts)
            found = Counter()
            for painted in tiling.paint(cuts, extents):
                for atom, key in zip(np.ndindex(*extents), painted.key.tolist(), strict=True):
                    assert (key == NOTHING) == (not painted.ranks[key])
                    found.update((rank, atom) for rank in painted.ranks[key])
            wanted = set()
            for rank in tiling.ranks.tolist():
                for atom in np.ndindex(*extents):
                    lo = tuple(int(cut[at]) for cut, at in zip(cuts, atom, strict=True))
                    hi = tuple(int(cut[at + 1]) for cut, at in zip(cuts, atom, strict=True))
                    if any(box.contains(Box(lo, hi)) for box, _ in tiling.joined(rank)):
                        wanted.add((rank, atom))
            assert set(found) == wanted
