"""Which local tensors share memory, compared with their sets of bytes."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reshard_executors.binding import LocalMemory, whole_view
from reshard_executors.overlap import byte_runs, check_overlap, shared_nbytes
from reshard_executors.views import StridedView

from reshard_planner.errors import InputError

ROOM = torch.zeros(96, dtype=torch.uint8)


@st.composite
def views(draw):
    """Views into one storage whose elements do not share bytes with one another."""
    itemsize = draw(st.sampled_from([1, 2, 4]))
    shape, strides, reach = [], [], 1
    for _ in range(draw(st.integers(0, 3))):
        extent = draw(st.integers(1, 3))
        stride = reach + draw(st.integers(0, 2))
        shape.append(extent)
        strides.append(stride)
        reach += stride * (extent - 1)
    order = draw(st.permutations(range(len(shape))))
    room = ROOM.numel() // itemsize - reach
    if room < 0:
        return StridedView(ROOM.untyped_storage(), 0, (), (), itemsize)
    start = draw(st.integers(0, room)) * itemsize
    sorted_shape, sorted_strides = (tuple(each[at] for at in order) for each in (shape, strides))
    return StridedView(ROOM.untyped_storage(), start, sorted_shape, sorted_strides, itemsize)


def bytes_of(view):
    """The bytes of every element, one by one."""
    return {
        view.start
        + sum(at * stride for at, stride in zip(index, view.strides, strict=True)) * view.itemsize
        + byte
        for index in product(*map(range, view.shape))
        for byte in range(view.itemsize)
    }


@given(views())
def test_runs_are_the_bytes_of_a_view(view):
    starts, size = byte_runs(view)
    base = ROOM.untyped_storage().data_ptr()
    found = [start - base + at for start in starts.tolist() for at in range(size)]
    assert len(found) == len(set(found)) == view.nbytes
    assert set(found) == bytes_of(view)
    assert max(found) + 1 - view.start == view.reach_nbytes


@given(views(), views())
def test_shared_bytes_are_those_that_both_have(one, two):
    assert shared_nbytes(one, two) == shared_nbytes(two, one) == len(bytes_of(one) & bytes_of(two))


@given(st.lists(st.tuples(views(), st.booleans()), max_size=5))
def test_tensors_are_refused_if_one_that_is_written_shares_bytes_with_another(given_views):
    locals_ = [
        (LocalMemory(f"t{at}", frozenset((at,)), view), written)
        for at, (view, written) in enumerate(given_views)
    ]
    clash = any(
        (written or other_written) and bytes_of(one.whole) & bytes_of(two.whole)
        for at, (one, written) in enumerate(locals_)
        for two, other_written in locals_[:at]
    )
    sides = [[local for local, written in locals_ if written is side] for side in (False, True)]
    if clash:
        with pytest.raises(InputError, match=r"t\d and t\d share memory"):
            check_overlap(*sides, {})
    else:
        check_overlap(*sides, {})


@given(views(), views())
def test_a_source_may_share_exactly_the_bytes_that_stay(source, target):
    shared = bytes_of(source) & bytes_of(target)
    sides = [[LocalMemory(name, frozenset((0,)), view)] for name, view in (("from", source), ("to", target))]
    each_byte = [StridedView(ROOM.untyped_storage(), at, (1,), (1,), 1) for at in sorted(shared)]
    check_overlap(*sides, {0: each_byte})
    if shared:
        with pytest.raises(InputError, match="share memory"):
            check_overlap(*sides, {0: each_byte[1:]})


def test_columns_of_one_buffer_are_apart():
    buffer = torch.zeros(512, 64)
    columns = [LocalMemory(f"w{at}", frozenset((at,)), whole_view(buffer[:, at::8], 4)) for at in range(8)]
    check_overlap(columns[:1], columns[1:], {})
    with pytest.raises(InputError, match="w0 and w1 share memory"):
        check_overlap(columns[:1], [LocalMemory("w1", frozenset((1,)), whole_view(buffer[:, 8:9], 4))], {})
